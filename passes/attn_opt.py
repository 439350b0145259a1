"""`attn-opt`: reads IR, runs passes on it, prints it; behaves as `mlir-opt` does.

Exit status: 0 fine, 1 a diagnosed failure, 2 a usage error. Diagnostics go to stderr as
`file:line:col: error: text`; with `--split-input-file` lines count from the start of the file.
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from attn_mlir.errors import AttnError, SpecError

SPLIT_MARKER = "// -----"


@dataclass
class Chunk:
    """One module's worth of input.

    Attributes:
      text: padded with newlines, so that its line numbers are those of the file.
      file: name for diagnostics.
    """

    text: str
    file: str


@dataclass
class Reports:
    """What instrumentation gathers over the run."""

    dumps: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])


def split_chunks(text: str, file: str) -> list[Chunk]:
    """Splits at `// -----` lines; each chunk keeps the line numbers of the file."""
    chunks: list[Chunk] = []
    lines: list[str] = []
    skipped = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.rstrip() == SPLIT_MARKER:
            chunks.append(Chunk("\n" * skipped + "".join(lines), file))
            lines, skipped = [], number
        else:
            lines.append(line)
    chunks.append(Chunk("\n" * skipped + "".join(lines), file))
    return chunks


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attn-opt",
        description="Reads MLIR, runs passes on it and prints it.",
        epilog="A pass also runs by --NAME or --NAME=key=value,...; several run in that order.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", nargs="?", default="-", help="file to read; - for standard input")
    add("-o", dest="output", default="-", help="file to write; - for standard output")
    add("--pass-pipeline", metavar="TEXT", help="such as builtin.module(attn-configure,cse)")
    add("--split-input-file", action="store_true", help="modules are separated by '// -----'")
    add("--verify-diagnostics", action="store_true", help="check '// expected-error {{...}}'")
    add("--verify-each", choices=("0", "1"), default="1", help="verify after each pass")
    add("--allow-unregistered-dialect", action="store_true", help="accept unknown operations")
    add("--dialects", metavar="A,B", help="only these dialects; everything else is an error")
    add("--mlir-print-op-generic", action="store_true", help="print the generic form")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--mlir-print-ir-after-all", action="store_true", help="print to stderr after each pass")
    add("--mlir-print-ir-tree-dir", metavar="DIR", help="write the IR after each pass to DIR")
    add("--mlir-timing", action="store_true", help="print the time of each pass to stderr")
    add("--list-passes", action="store_true", help="print passes and pipelines, and stop")
    add("--show-dialects", action="store_true", help="print the known dialects, and stop")
    return parser


def _pipeline_text(options: argparse.Namespace, extra: Sequence[str]) -> str:
    """Joins `--pass-pipeline`, or the flags that name passes, into one text.

    Raises:
      SpecError: both at once, or an argument that is no flag.
    """
    elements: list[str] = []
    for argument in extra:
        if not argument.startswith("--"):
            raise SpecError(f"unexpected argument '{argument}': one input file is allowed")
        name, _, values = argument[2:].partition("=")
        elements.append(f"{name}{{{values.replace(',', ' ')}}}" if values else name)
    if elements and options.pass_pipeline:
        raise SpecError(f"--pass-pipeline and --{elements[0]} exclude each other")
    return options.pass_pipeline or ",".join(elements)


def _describe(entry: Any) -> str:
    """Returns the first line of what a pass or pipeline says about itself."""
    return getattr(entry, "help", None) or (inspect.getdoc(entry) or "").partition("\n")[0]


def list_passes() -> str:
    """Returns one line per pass and pipeline, options indented below."""
    from attn_mlir.passes import registry

    lines: list[str] = []
    for title, entries in (("Passes", registry.passes()), ("Pipelines", registry.pipelines())):
        lines.append(f"{title}:")
        for name, entry in entries.items():
            lines.append(f"  --{name:<28} {_describe(entry)}")
            if isinstance(entry, type):
                for option, spec in registry.option_fields(entry).items():
                    default = "required" if spec.default is MISSING else repr(spec.default)
                    lines.append(f"      {option}={default}")
    return "\n".join(lines)


def _context(options: argparse.Namespace) -> Any:
    """Makes a context: all dialects, or those of `--dialects` and `builtin`."""
    from attn_mlir.dialect import _mlir

    if options.dialects is None:
        context = _mlir.make_context()
    else:
        names = [name for name in options.dialects.split(",") if name]
        context = _mlir.make_context(dialects=names)
    context.allow_unregistered_dialects = options.allow_unregistered_dialect
    return context


def _dialect_names(options: argparse.Namespace) -> list[str]:
    """Returns the dialects that the input may use, of those that have a module in `_mlir`."""
    from attn_mlir.dialect import _mlir

    return _mlir.dialect_names(_context(options))


def _print_op(module: Any, options: argparse.Namespace) -> str:
    text: str = module.operation.get_asm(
        print_generic_op_form=options.mlir_print_op_generic,
        enable_debug_info=options.mlir_print_debuginfo,
    )
    return text.rstrip("\n") + "\n"


def _check_dialects(module: Any, options: argparse.Namespace) -> None:
    """Raises VerifyError for an operation outside `--dialects`, upstream's included."""
    from attn_mlir.passes import legality

    if options.dialects is not None:
        names = ("builtin", *options.dialects.split(","))
        stage = legality.Stage("--dialects", tuple(f"{name}." for name in names if name))
        legality.check_stage(module, stage)


def _process(
    chunk: Chunk, pipeline: str, options: argparse.Namespace, reports: Reports
) -> tuple[str, list[Any]]:
    """Runs one chunk.

    Returns:
      The printed module (empty after a failure) and the diagnostics, of any severity.

    Raises:
      SpecError: a usage error in the pipeline.
    """
    from attn_mlir.dialect._mlir import ir
    from attn_mlir.passes import diagnostics
    from attn_mlir.passes.parse import parse_module
    from attn_mlir.passes.pipeline import build, run_pipeline

    found: list[diagnostics.Diagnostic] = []
    context = _context(options)

    def handle(diagnostic: Any) -> bool:
        found.append(diagnostics.convert(diagnostic))
        return True

    def after(name: str, module: Any) -> None:
        _dump(name, module, options, reports)

    by_pass = options.mlir_print_ir_after_all or options.mlir_print_ir_tree_dir
    fuse = not (by_pass or options.mlir_timing)
    handler = context.attach_diagnostic_handler(handle)
    text = ""
    with context:
        build(pipeline)  # usage errors come first, and as usage errors
        try:
            module = parse_module(chunk.text, context)
            _check_dialects(module, options)
            timings = run_pipeline(
                module,
                pipeline,
                verify_each=options.verify_each == "1",
                fuse=fuse,
                after=after if by_pass else None,
            )
            for timing in timings:
                reports.seconds[timing.name] = (
                    reports.seconds.get(timing.name, 0.0) + timing.seconds
                )
            text = _print_op(module, options)
        except (ir.MLIRError, AttnError) as error:
            cause = error.__cause__
            has_places = isinstance(cause, ir.MLIRError) and cause.error_diagnostics
            source = cause if has_places else error
            found.extend(diagnostics.diagnostics_of(source))
    handler.detach()
    return text, found


def _dump(name: str, module: Any, options: argparse.Namespace, reports: Reports) -> None:
    """Writes the IR after one step, to stderr and to the tree directory, as asked."""
    text = _print_op(module, options)
    if options.mlir_print_ir_after_all:
        sys.stderr.write(f"// -----// IR Dump After {name} //----- //\n{text}\n")
    if options.mlir_print_ir_tree_dir:
        folder = Path(options.mlir_print_ir_tree_dir)
        folder.mkdir(parents=True, exist_ok=True)
        plain = "".join(char if char.isalnum() or char in "-_" else "_" for char in name)
        (folder / f"{reports.dumps:03}_{plain[:80]}.mlir").write_text(text)
    reports.dumps += 1


def _timing_table(reports: Reports) -> str:
    total = sum(reports.seconds.values())
    lines = ["===-- attn-opt: wall time by pass --==="]
    for name, seconds in [*reports.seconds.items(), ("Total", total)]:
        share = 100.0 * seconds / total if total else 0.0
        lines.append(f"{seconds:9.4f} s ({share:5.1f}%)  {name}")
    return "\n".join(lines)


def _run(options: argparse.Namespace, pipeline: str) -> int:
    """Runs all chunks and writes the output; returns the exit status."""
    from attn_mlir.passes import verify_diagnostics

    file = "<stdin>" if options.input == "-" else options.input
    text = sys.stdin.read() if options.input == "-" else Path(options.input).read_text()
    chunks = split_chunks(text, file) if options.split_input_file else [Chunk(text, file)]
    outputs: list[str] = []
    failed = False
    reports = Reports()
    for chunk in chunks:
        output, found = _process(chunk, pipeline, options, reports)
        outputs.append(output)
        if options.verify_diagnostics:
            complaints = verify_diagnostics.check(chunk.text, found)
            failed |= bool(complaints)
            found = complaints
        else:
            failed |= any(diagnostic.severity == "error" for diagnostic in found)
        for diagnostic in found:
            print(diagnostic.render(file), file=sys.stderr)
    if options.mlir_timing:
        print(_timing_table(reports), file=sys.stderr)
    if not (failed and len(chunks) == 1) and not options.verify_diagnostics:
        _write(options.output, f"{SPLIT_MARKER}\n".join(outputs))
    return 1 if failed else 0


def _write(file: str, text: str) -> None:
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool and returns its exit status."""
    options, extra = _parser().parse_known_args(arguments)
    try:
        pipeline = _pipeline_text(options, extra)
        if options.list_passes:
            print(list_passes())
            return 0
        if options.show_dialects:
            print("\n".join(_dialect_names(options)))
            return 0
        return _run(options, pipeline)
    except SpecError as error:
        print(f"attn-opt: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"attn-opt: error: {error}", file=sys.stderr)
        return 2
    except AttnError as error:
        print(f"attn-opt: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
