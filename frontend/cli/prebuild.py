"""`attn-mlir prebuild`: the command line of `attn_mlir.compiling.prebuild`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_prebuild(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.description = (
        "Run a Python program where the compiler is, and write every bundle that it asks for to a "
        "folder. On a machine without a compiler the same program finds them there, with "
        "ATTN_MLIR_BUNDLES=FOLDER or a zip of the folder."
    )
    parser.usage = "%(prog)s [options] -o FOLDER SCRIPT [ARGUMENT ...]"
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the bundles")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        help="keep bundles for this chip, or for several separated by commas, and compile all "
        "kernels "
        "for them; may be repeated (default: the chips that the program asks for)",
    )
    parser.add_argument(
        "--no-run",
        action="store_true",
        help="launch nothing: results hold arbitrary numbers, so only for programs that do not "
        "look",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no line per bundle")
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="the program")
    own = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="of the program"
    )
    own.required = False  # what argparse says of a call without any counts them as missing
    parser.set_defaults(act=_prebuild)


def _prebuild(args: argparse.Namespace) -> int:
    from attn_mlir.compiling.prebuild import prebuild

    def say(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    collector = prebuild(
        args.script,
        args.arguments,
        args.output,
        targets=[target for text in args.target for target in text.split(",")],
        runs=not args.no_run,
        say=say,
    )
    count, size = len(collector.written), sum(collector.written.values())
    print(f"{count} bundle{'s' * (count != 1)}, {size} bytes, in {args.output}")
    for line in collector.failed.values():
        print(f"attn-mlir: no kernel: {line}", file=sys.stderr)
    return 1 if collector.failed else 0
