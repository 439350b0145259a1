"""The flags of `attn-opt`, with the spelling and meaning that they have in `mlir-opt`.

Flags may begin with one dash or two; a flag without a value may be given one (`--verify-each=0`);
`--NAME` runs a pass, in the order of the command line.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from attn_mlir.errors import SpecError

SPLIT_MARKER = "// -----"
_TRUTH = {"": True, "1": True, "true": True, "0": False, "false": False}
_NEXT_OPTION = re.compile(r",(?=[\w-]+=)")  # a comma in front of an option separates options
_QUOTES = ("''", '""', "{}")


def parser() -> argparse.ArgumentParser:
    """The argument parser of all flags except those that name passes; `read` converts switches."""
    flag_parser = argparse.ArgumentParser(
        prog="attn-opt",
        description="Reads MLIR, runs passes on it and prints it.",
        epilog="A pass or pipeline runs by --NAME or --NAME='{key=value ...}', several in that "
        "order; --list-passes shows them with their options.",
        allow_abbrev=False,
    )
    flag_parser.add_argument(
        "input", nargs="?", default="-", help="file to read; - for standard input"
    )
    flag_parser.add_argument(
        "-o", dest="output", default="-", help="file to write; - for standard output"
    )

    group = flag_parser.add_argument_group("what runs")
    add = group.add_argument
    add("--pass-pipeline", metavar="TEXT", help="such as builtin.module(attn-configure,cse)")
    add(
        "--load-pass-plugin",
        metavar="PLUGIN",
        action="append",
        default=[],
        help="make the passes of a file of Python, or of a module, known; may be repeated",
    )
    add("--run-reproducer", **_switch("run the pipeline that stands in the input, a reproducer"))
    add("--dump-pass-pipeline", **_switch("print the pipeline with all options to stderr"))
    add("--verify-each", **_switch("verify after each pass (true unless given as false)", "1"))
    add("--verify-roundtrip", **_switch("check that the input prints and parses to itself"))
    add("--mlir-disable-threading", **_switch("accepted; there is one thread"))

    group = flag_parser.add_argument_group("input")
    add = group.add_argument
    split = f"modules are separated by '{SPLIT_MARKER}', or by MARKER"
    add("--split-input-file", metavar="MARKER", nargs="?", const=SPLIT_MARKER, help=split)
    diagnostics = "check '// expected-error {{...}}'; only-expected ignores what nobody expects"
    kinds = ("all", "only-expected")
    add("--verify-diagnostics", nargs="?", const="all", choices=kinds, help=diagnostics)
    add("--allow-unregistered-dialect", **_switch("accept unknown operations"))
    add("--dialects", metavar="A,B", help="only these dialects; everything else is an error")

    group = flag_parser.add_argument_group("output")
    add = group.add_argument
    add("--output-split-marker", metavar="MARKER", help="between modules; as they were split")
    add("--emit-bytecode", **_switch("write bytecode"))
    add("--mlir-print-op-generic", **_switch("print the generic form"))
    add("--mlir-print-debuginfo", **_switch("print locations"))
    add("--mlir-pretty-debuginfo", **_switch("print locations as people read them"))
    add("--mlir-print-local-scope", **_switch("print without aliases, each operation by itself"))
    add("--mlir-print-assume-verified", **_switch("print without verifying first"))
    add("--mlir-print-skip-regions", **_switch("leave regions out"))
    add("--mlir-use-nameloc-as-prefix", **_switch("name values as their locations do"))
    add("--mlir-elide-elementsattrs-if-larger", type=int, metavar="N", help="elide such constants")
    add("--mlir-elide-resource-strings-if-larger", type=int, metavar="N", help="and resources")

    group = flag_parser.add_argument_group("watching, to stderr")
    add = group.add_argument
    add("--mlir-print-ir-before", metavar="P,P", help="print the IR before these passes")
    add("--mlir-print-ir-after", metavar="P,P", help="print the IR after these passes")
    add("--mlir-print-ir-before-all", **_switch("print the IR before each pass"))
    add("--mlir-print-ir-after-all", **_switch("print the IR after each pass"))
    add("--mlir-print-ir-after-change", **_switch("print the IR after a pass that changed it"))
    add("--mlir-print-ir-after-failure", **_switch("print the IR after a pass that failed"))
    add("--mlir-print-ir-module-scope", **_switch("accepted; the whole module is printed"))
    add("--mlir-print-ir-tree-dir", metavar="DIR", help="write what is printed to files of DIR")
    add("--mlir-timing", **_switch("print the time of each pass"))
    add("--mlir-timing-display", choices=("list", "tree"), default="tree", help="by time, in order")
    add("--mlir-pass-statistics", **_switch("print what each pass did to the operations"))
    crash = "where to write the input and pipeline of a pass that fails or dies"
    add("--mlir-pass-pipeline-crash-reproducer", metavar="FILE", help=crash)
    add("--mlir-pass-pipeline-local-reproducer", **_switch("with that pass alone"))
    add("--mlir-generate-reproducer", metavar="FILE", help="write one, whatever happens")

    group = flag_parser.add_argument_group("instead of running")
    add = group.add_argument
    add("--list-passes", **_switch("print passes and pipelines"))
    add("--show-dialects", **_switch("print the known dialects"))
    add("--version", **_switch("print the versions of attn-mlir and MLIR"))
    return flag_parser


def _switch(text: str, default: str = "0") -> dict[str, Any]:
    """Arguments for a flag that may be given alone or with a truth value, as `--flag=0`."""
    return {"nargs": "?", "const": "1", "default": default, "metavar": "BOOL", "help": text}


def read(arguments: Sequence[str]) -> tuple[argparse.Namespace, str]:
    """Parses the command line: the flags, with switches as bool, and the text of the pipeline.

    Raises:
      SpecError: a value that a switch does not have, two pipelines, a second input, an argument
        that is no flag, or a plug-in that cannot be loaded.
    """
    flag_parser = parser()
    ours = {option: action for action in flag_parser._actions for option in action.option_strings}
    options, extra = flag_parser.parse_known_args(
        [_spelled(argument, ours) for argument in arguments]
    )
    for name, action in ours.items():
        if action.metavar == "BOOL":
            value = getattr(options, action.dest).lower()
            if value not in _TRUTH:
                raise SpecError(f"{name} expects true or false, got '{value}'")
            setattr(options, action.dest, _TRUTH[value])
    if options.load_pass_plugin:
        from attn_mlir.passes.infrastructure import registry

        for plugin in options.load_pass_plugin:
            registry.load_plugin(plugin)
    return options, _pipeline(options, extra, list(ours))


def _spelled(argument: str, ours: dict[str, argparse.Action]) -> str:
    """An argument in argparse's form: two dashes, and a value for a switch without one."""
    if re.fullmatch(r"-[a-zA-Z][\w-]+(=.*)?", argument, re.DOTALL) and argument[:3] != "-o=":
        argument = f"-{argument}"
    argument = argument.replace("-o=", "-o", 1) if argument.startswith("-o=") else argument
    action = ours.get(argument)
    return f"{argument}={action.const}" if action is not None and action.nargs == "?" else argument


def _pipeline(options: argparse.Namespace, extra: Sequence[str], flags: list[str]) -> str:
    """Joins `--pass-pipeline`, or the flags that name passes, into one text."""
    elements: list[str] = []
    for argument in extra:
        if not argument.startswith("--"):
            raise SpecError(f"unexpected argument '{argument}': one input file is allowed")
        name, separator, values = argument[2:].partition("=")
        if not re.fullmatch(r"[\w.-]+", name):
            raise SpecError(
                f"no pass has the name '{name}': options follow '=', as in "
                f"--{name.split()[0] if name.split() else 'NAME'}='key=value key=value'"
            )
        check_name(name, flags)
        elements.append(f"{name}{{{_options(values)}}}" if separator else name)
    chosen = [f"--{element}" for element in elements[:1]]
    chosen += ["--pass-pipeline"] if options.pass_pipeline else []
    chosen += ["--run-reproducer"] if options.run_reproducer else []
    if len(chosen) > 1:
        raise SpecError(f"{chosen[-1]} and {chosen[0]} exclude each other")
    return options.pass_pipeline or ",".join(elements)


def check_name(name: str, flags: Sequence[str]) -> None:
    """Raises SpecError for a name of no flag and no pass, with similar names among both."""
    from attn_mlir.passes.infrastructure import registry

    if name == "pass":
        raise SpecError("--pass is no flag: write --NAME='key=value key=value' for the pass NAME")
    if not registry.is_known(name):
        raise registry.unknown_pass(name, flags=[flag.lstrip("-") for flag in flags])


def _options(text: str) -> str:
    """Pipeline text of the options `a=1,b=2` or `a=1 b=2`, bare, in braces or in quotes."""
    text = text.strip()
    while len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return _NEXT_OPTION.sub(" ", text)
