"""`attn-mlir prebuild`: collects what a program asks for, or the attention layers of a model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attn_mlir.errors import SpecError


def add_prebuild(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.description = (
        "Run a Python program where the compiler is, and write every bundle that it asks for to a "
        "folder. On a machine without a compiler the same program finds them there, with "
        "ATTN_MLIR_BUNDLES=FOLDER or a zip of the folder. With --model no program is run: the "
        "bundles are those of the model's attention layers, for prefill, decoding and append."
    )
    parser.usage = (
        "%(prog)s [options] -o FOLDER SCRIPT [ARGUMENT ...]\n"
        "       %(prog)s [options] -o FOLDER --model CONFIG.json"
    )
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
    model = parser.add_argument_group("bundles for a model")
    model.add_argument("--model", type=Path, metavar="CONFIG.json", help="of transformers")
    model.add_argument(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="machines that share the heads of a layer (%(default)s)",
    )
    model.add_argument(
        "--page-size", type=int, default=16, metavar="N", help="of its caches (%(default)s)"
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", nargs="?", help="the program")
    own = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="of the program"
    )
    own.required = False  # what argparse says of a call without any counts them as missing
    parser.set_defaults(act=_prebuild)


def _prebuild(args: argparse.Namespace) -> int:
    from attn_mlir.compiling.prebuild import Collector, prebuild

    def say(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    targets = [target for text in args.target for target in text.split(",")]
    if (args.model is None) == (args.script is None):
        raise SpecError("pass a SCRIPT or --model CONFIG.json, and not both")
    collector: Collector
    if args.model is not None:
        from attn_mlir.cli.model_bundles import prebuild_model

        collector = prebuild_model(
            args.model,
            args.output,
            tensor_parallel=args.tensor_parallel,
            page_size=args.page_size,
            targets=targets,
            say=say,
        )
    else:
        collector = prebuild(
            args.script,
            args.arguments,
            args.output,
            targets=targets,
            runs=not args.no_run,
            say=say,
        )
    count, size = len(collector.written), sum(collector.written.values())
    print(f"{count} bundle{'s' * (count != 1)}, {size} bytes, in {args.output}")
    for line in collector.failed.values():
        print(f"attn-mlir: no kernel: {line}", file=sys.stderr)
    return 1 if collector.failed else 0
