"""`attn-opt`: reads IR, runs passes on it and prints it, as `mlir-opt` does.

Exit status: 0 fine, 1 a diagnosed failure, 2 a usage error. Diagnostics go to stderr as
`file:line:col: error: text`; with `--split-input-file` lines count from the start of the file.
"""

import argparse
import difflib
import errno
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_mlir.errors import AttnError, SpecError
from attn_mlir.files import read_file, reason, write_file
from attn_mlir.passes.opt.command_line import SPLIT_MARKER, check_name, read
from attn_mlir.passes.opt.recovery import recovered


@dataclass
class Chunk:
    """The text of one input module.

    Attributes:
      text: padded with newlines, so that its line numbers are those of the file.
      file: name for diagnostics.
    """

    text: str
    file: str


def split_chunks(text: str, file: str, marker: str = SPLIT_MARKER) -> list[Chunk]:
    """Splits at lines that are the marker; each chunk keeps the line numbers of the file."""
    chunks: list[Chunk] = []
    lines: list[str] = []
    skipped = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.rstrip() == marker:
            chunks.append(Chunk("\n" * skipped + "".join(lines), file))
            lines, skipped = [], number
        else:
            lines.append(line)
    chunks.append(Chunk("\n" * skipped + "".join(lines), file))
    return chunks


@dataclass
class _Run:
    """One run of the tool: its options, its pipeline and the observers.

    Attributes:
      options: the flags.
      pipeline: pipeline text for each chunk.
      verify_each: whether modules are verified after each pass.
      watchers: observers that last for the whole run, by name.
      progress: an observer that shows the running pass elsewhere, or None.
    """

    options: argparse.Namespace
    pipeline: str
    verify_each: bool
    watchers: dict[str, Any] = field(default_factory=dict[str, Any])

    progress: Any = None

    def __post_init__(self) -> None:
        from attn_mlir.passes.opt.printing import Dumps
        from attn_mlir.passes.opt.reports import Statistics, Times

        dumps = Dumps(self.options)
        if self.options.mlir_timing:
            self.watchers["times"] = Times()
        if self.options.mlir_pass_statistics:
            self.watchers["statistics"] = Statistics()
        if dumps.is_active:
            self.watchers["dumps"] = dumps

    def context(self) -> Any:
        """Makes a context: all dialects, or those of `--dialects` and `builtin`."""
        from attn_mlir.dialect import _mlir

        if self.options.dialects is None:
            context = _mlir.make_context()
        else:
            names = [name for name in self.options.dialects.split(",") if name]
            context = _mlir.make_context(dialects=names)
        context.allow_unregistered_dialects = self.options.allow_unregistered_dialect
        return context

    def process(self, chunk: Chunk) -> tuple[str | bytes, list[Any]]:
        """Runs one chunk.

        Returns:
          The printed module (empty after a failure) and the diagnostics, of any severity.

        Raises:
          SpecError: a usage error in the pipeline.
        """
        from attn_mlir.dialect import diagnostics
        from attn_mlir.dialect._mlir import ir
        from attn_mlir.passes.infrastructure.parse import parse_module
        from attn_mlir.passes.infrastructure.pipeline import build

        reported: list[diagnostics.Diagnostic] = []
        context = self.context()

        def handle(diagnostic: Any) -> bool:
            reported.append(diagnostics.convert(diagnostic))
            return True

        handler = context.attach_diagnostic_handler(handle)
        text: str | bytes = ""
        with context, ir.Location.unknown():
            local = self.options.mlir_pass_pipeline_local_reproducer
            fuse = not (self.watchers or local)
            # usage errors come first, and as usage errors
            steps = build(self.pipeline, verify_each=self.verify_each, fuse=fuse)
            if self.options.dump_pass_pipeline:
                passes = ",".join(step.text for step in steps)
                print(f"builtin.module({passes})", file=sys.stderr)
            try:
                module = parse_module(chunk.text, context)
                self._check_input(module)
                self._run(module, steps)
                text = self._output(module)
            except (ir.MLIRError, AttnError) as error:
                cause = error.__cause__
                if isinstance(cause, ir.MLIRError) and cause.error_diagnostics:
                    reported.extend(diagnostics.diagnostics_of(cause))
                else:
                    reported.extend(diagnostics.diagnostics_of(error))
        handler.detach()
        return text, reported

    def _check_input(self, module: Any) -> None:
        """Raises VerifyError for a module that `--dialects` or `--verify-roundtrip` refuses."""
        from attn_mlir.passes.infrastructure import legality

        if self.options.dialects is not None:
            names = ("builtin", *self.options.dialects.split(","))
            stage = legality.Stage("--dialects", tuple(f"{name}." for name in names if name))
            legality.check_stage(module, stage)
        if self.options.verify_roundtrip:
            check_roundtrip(module)

    def _run(self, module: Any, steps: list[Any]) -> None:
        from attn_mlir.passes.infrastructure.pipeline import run_steps
        from attn_mlir.passes.opt.reproducer import Recorder

        options = self.options
        observers = [] if self.progress is None else [self.progress]
        observers += self.watchers.values()
        file = options.mlir_pass_pipeline_crash_reproducer or options.mlir_generate_reproducer
        if file is None:
            run_steps(module, steps, observers)
            return
        local = options.mlir_pass_pipeline_local_reproducer
        always = options.mlir_generate_reproducer is not None
        recorder = Recorder(Path(file), local, self.verify_each, always)
        recorder.begin(steps, module)
        run_steps(module, steps, [recorder, *observers])
        recorder.end()

    def _output(self, module: Any) -> str | bytes:
        from attn_mlir.passes.opt.printing import print_module

        if not self.options.emit_bytecode:
            return print_module(module, self.options)
        data = io.BytesIO()
        module.operation.write_bytecode(data)
        return data.getvalue()

    def report(self) -> None:
        """Prints the timing and statistics tables that the flags ask for."""
        if "statistics" in self.watchers:
            print(self.watchers["statistics"].table(), file=sys.stderr)
        if "times" in self.watchers:
            by_time = self.options.mlir_timing_display == "list"
            print(self.watchers["times"].table(by_time=by_time), file=sys.stderr)


def check_roundtrip(module: Any) -> None:
    """Checks that a module's text, in both forms, and its bytecode parse to the same module.

    Raises:
      VerifyError: with the first line that differs, or the parser's message.
    """
    from attn_mlir.dialect._mlir import ir
    from attn_mlir.dialect.diagnostics import op_error

    expected = str(module)
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    generic = module.operation.get_asm(print_generic_op_form=True)
    forms: dict[str, Any] = {"text": expected, "generic": generic, "bytecode": data.getvalue()}
    for form, printed in forms.items():
        try:
            got = str(ir.Module.parse(printed))
        except ir.MLIRError as error:
            raise op_error(module.operation, f"does not parse from its {form}: {error}") from error
        if got != expected:
            lines = difflib.unified_diff(expected.splitlines(), got.splitlines(), n=0, lineterm="")
            difference = [line for line in lines if line[:1] in "+-" and line[:3] not in "+++---"]
            message = f"changes when its {form} is parsed"
            raise op_error(module.operation, message, notes=tuple(difference[:4]))


def _main(options: argparse.Namespace, pipeline: str, progress: Any = None) -> int:
    """Runs all chunks and writes the output; returns the exit status."""
    from attn_mlir.passes.infrastructure import verify_diagnostics
    from attn_mlir.passes.opt import reproducer

    file = "<stdin>" if options.input == "-" else options.input
    text = _text(options.input)
    verify_each = options.verify_each
    if options.run_reproducer:
        diagnostics = reproducer.read(text, file)
        text, pipeline, verify_each = (
            diagnostics.text,
            diagnostics.pipeline,
            diagnostics.verify_each,
        )
    for name in (options.mlir_print_ir_before, options.mlir_print_ir_after):
        for part in filter(None, (name or "").split(",")):
            check_name(part.strip(), [])
    run = _Run(options, pipeline, verify_each, progress=progress)
    marker = options.split_input_file
    chunks = split_chunks(text, file, marker) if marker else [Chunk(text, file)]
    outputs: list[str | bytes] = []
    failed = False
    for chunk in chunks:
        output, diagnostics = run.process(chunk)
        outputs.append(output)
        if options.verify_diagnostics:
            only_expected = options.verify_diagnostics == "only-expected"
            diagnostics = verify_diagnostics.check(
                chunk.text, diagnostics, only_expected=only_expected
            )
            failed |= bool(diagnostics)
        else:
            failed |= any(diagnostic.severity == "error" for diagnostic in diagnostics)
        for diagnostic in diagnostics:
            print(diagnostic.render(file), file=sys.stderr)
    run.report()
    if not (failed and len(chunks) == 1) and not options.verify_diagnostics:
        between = options.output_split_marker or marker or SPLIT_MARKER
        _write(options.output, outputs, f"{between}\n")
    return 1 if failed else 0


def _text(file: str) -> str:
    """The input.

    Raises:
      SpecError: it is not text in UTF-8, or in no regular file.
    """
    try:
        data = sys.stdin.buffer.read() if file == "-" else read_file(Path(file))
        return data.decode()
    except OSError as error:
        at_stdin = "" if error.errno != errno.EINVAL else "; - reads from standard input"
        raise SpecError(f"cannot read '{file}': {reason(error)}{at_stdin}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{file} is not text in UTF-8: {error}") from error


def _write(file: str, outputs: Sequence[str | bytes], between: str) -> None:
    """Writes text, or bytecode as it is."""
    data: str | bytes
    if outputs and isinstance(outputs[0], bytes):
        data = b"".join(output for output in outputs if isinstance(output, bytes))
    else:
        data = between.join(output for output in outputs if isinstance(output, str))
    if file != "-":
        write_file(Path(file), data)
    elif isinstance(data, bytes):
        sys.stdout.buffer.write(data)
    else:
        sys.stdout.write(data)


def _version() -> str:
    from attn_mlir._version import __version__
    from attn_mlir.dialect._mlir import PROVIDER_PACKAGE, provider_version

    return f"attn-mlir {__version__}, MLIR of {PROVIDER_PACKAGE} {provider_version()}"


def _show(options: argparse.Namespace) -> str | None:
    """The text that flags such as `--list-passes` print instead of running; None without them."""
    if options.version:
        return _version()
    if options.list_passes:
        from attn_mlir.passes.opt.reports import list_passes

        return list_passes()
    if options.show_dialects:
        from attn_mlir.dialect import _mlir

        return "\n".join(_mlir.dialect_names(_Run(options, "", True).context()))
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool in a process of its own and returns its exit status; see `recovery`."""
    argv = sys.argv[1:] if arguments is None else arguments
    file = next((text for text in argv if not text.startswith("-")), "<stdin>")
    return recovered(lambda progress: run(argv, progress), file)


def run(arguments: Sequence[str], progress: Any = None) -> int:
    """Runs the tool in this process and returns its exit status.

    Args:
      arguments: the command line.
      progress: an observer that shows the running pass elsewhere, or None.
    """
    try:
        options, pipeline = read(arguments)
        shown = _show(options)
        if shown is not None:
            print(shown)
            return 0
        return _main(options, pipeline, progress)
    except (SpecError, OSError) as error:
        print(f"attn-opt: error: {error}", file=sys.stderr)
        return 2
    except AttnError as error:
        print(f"attn-opt: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
