"""`attn-mlir emulate`: a launch of any PTX on the emulator, described by options or in a file."""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_mlir.cli.outputs import check_new
from attn_mlir.errors import SpecError, shown
from attn_mlir.files import write_file

if TYPE_CHECKING:
    from attn_mlir.emulator.description import Described
    from attn_mlir.emulator.kernel import Kernel

FIELDS = ("entry", "grid", "block", "cluster", "shared_bytes", "arguments")


def add_emulate(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.description = (
        "Run a kernel of a PTX file on the emulator, with its checkers, and say what they find by "
        "lines of the PTX. Exit code 1 for a finding or a failure."
    )
    parser.add_argument("ptx", type=Path, help="PTX file")
    parser.add_argument(
        "--launch",
        type=Path,
        metavar="TOML",
        help="file with entry, grid, block, cluster, shared_bytes, arguments and a table save; an "
        "option counts in the place of its field",
    )
    parser.add_argument("--entry", help="name of the kernel (default: the only one)")
    for name, what in (("grid", "CTAs"), ("block", "threads"), ("cluster", "CTAs of a cluster")):
        parser.add_argument(f"--{name}", type=_extents, metavar="X,Y,Z", help=what)
    parser.add_argument("--shared-bytes", type=int, metavar="N", help="dynamic shared memory")
    parser.add_argument(
        "-a",
        "--argument",
        dest="arguments",
        action="append",
        metavar="VALUE",
        help="of the next parameter: NAME.npy, zeros:float32:4x128 or a number; repeated",
    )
    parser.add_argument(
        "--save",
        action="append",
        metavar="PARAMETER=NPY",
        help="write the array of a parameter after the launch; may be repeated",
    )
    parser.add_argument("--check", help="all, none or names (default: all, none with --trace)")
    parser.add_argument("--schedule", default="fair", help="fair or adversarial (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of adversarial (%(default)s)")
    parser.add_argument(
        "--resident", type=int, default=1, help="clusters that run at a time (%(default)s)"
    )
    parser.add_argument("--trace", type=Path, metavar="JSON", help="write a trace of the launch")
    parser.set_defaults(act=_emulate)


def _extents(text: str) -> list[int]:
    """The numbers of `X,Y,Z`."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be numbers X,Y,Z, got {text!r}") from error


def _emulate(args: argparse.Namespace) -> int:
    from attn_mlir.emulator import load, write_trace
    from attn_mlir.emulator.description import argument

    launch, folder = _described(args)
    kernel = load(args.ptx, launch.entry)
    values = [argument(x, folder) for x in launch.arguments]
    saved = _saved(args, launch.save, kernel, values)
    report = kernel.launch(
        *values,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        shared_bytes=launch.shared_bytes,
        check=args.check,
        schedule=args.schedule,
        seed=args.seed,
        resident=args.resident,
        trace=args.trace is not None,
    )
    for path, array in saved.items():
        _write_array(path, array)
    if report.trace is not None:
        write_trace(report.trace, args.trace)
    print(report)
    return 0 if report.ok else 1


def _described(args: argparse.Namespace) -> tuple[Described, Path]:
    """The launch of a command line, and the folder of its files."""
    from attn_mlir.emulator.description import Described, described

    given = {name: getattr(args, name) for name in FIELDS if getattr(args, name) is not None}
    if args.save is not None:
        given["save"] = dict(map(_named_file, args.save))
    if args.launch is None:
        return Described(**given), Path()
    folder = Path() if "arguments" in given else args.launch.parent
    return Described(**{**described(args.launch), **given}), folder


def _named_file(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise SpecError(f"--save must be PARAMETER=NPY, got {shown(text, 40)}")
    return name, path


def _saved(
    args: argparse.Namespace, save: Mapping[str, str], kernel: Kernel, values: Sequence[Any]
) -> dict[Path, Any]:
    """The arrays that are written after the launch, by their files.

    Raises:
      SpecError: no parameter with an array, or the file of the PTX.
    """
    names = [x.name for x in kernel.parameters]
    arrays = {name: x for name, x in zip(names, values, strict=False) if hasattr(x, "shape")}
    for name, path in save.items():
        check_new("--save", Path(path), args.ptx)
        if name not in arrays:
            listed = ", ".join(arrays) or "none"
            raise SpecError(f"save names {shown(name, 40)}, parameters with an array are {listed}")
    return {Path(path): arrays[name] for name, path in save.items()}


def _write_array(path: Path, array: Any) -> None:
    import numpy as np

    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    write_file(path, stream.getvalue())
