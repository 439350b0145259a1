"""`attn-mlir doctor`: the command line of `attn_mlir.runtime.doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_mlir.runtime.file.bundle import Bundle


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.description = (
        "Print what is installed, and run a small TMA copy and attention on each GPU: causal, "
        "bf16, heads of 128; compared with float64, and timed."
    )
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="PATH",
        help="what --write has made, for a machine that cannot compile: one file, or the folder",
    )
    parser.add_argument(
        "--emulator", action="store_true", help="on the emulator, without a GPU; nothing is timed"
    )
    parser.add_argument("--gpu", type=int, default=None, metavar="N", help="only GPU number N")
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="only write the kernels, for all targets, to DIR"
    )
    parser.set_defaults(act=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from attn_mlir.runtime import doctor

    def say(topic: str, finding: str) -> None:
        print(f"{topic:20s} {finding}", flush=True)

    if args.write is not None:
        for path in _write(args.write, doctor.TARGETS):
            print(path)
        return 0
    kernels, targets = kernels_for, None
    if args.bundle is not None:
        kernels, targets = _read(args.bundle)
    doctor.run(kernels, emulator=args.emulator, targets=targets, index=args.gpu, say=say)
    return 0


def kernels_for(target: str) -> list[Bundle]:
    """The kernels for a target: of the copy, and of attention."""
    from attn_mlir.compiling.compiler import compile, compile_tma_copy
    from attn_mlir.compiling.spec import mha
    from attn_mlir.masks import causal
    from attn_mlir.runtime.attention_trial import HEAD_DIM, HEADS

    spec = mha(heads=HEADS, head_dim=HEAD_DIM, mask=causal())
    return [compile_tma_copy(target), compile(spec, target=target)]


def _write(folder: Path, targets: Sequence[str]) -> list[Path]:
    """Writes a file for each kernel, with its code for all targets."""
    from attn_mlir.files import make_folder
    from attn_mlir.runtime.file.fat_bundle import FatBundle

    make_folder(folder)
    by_target = [kernels_for(target) for target in targets]
    return [
        FatBundle.of(same).save(folder / f"{name}.attn")
        for name, same in zip(("tma_copy", "attention"), zip(*by_target, strict=True), strict=True)
    ]


def _read(path: Path) -> tuple[Callable[[str], list[Bundle]], tuple[str, ...]]:
    """The kernels of a file or a folder, by target, and the targets that there are.

    Raises:
      SpecError: not a bundle, or a folder without one.
    """
    from attn_mlir.errors import SpecError, TargetError
    from attn_mlir.runtime.file.bundle import SUFFIX
    from attn_mlir.runtime.file.fat_bundle import bundles_of, load_bundles

    files = sorted(path.glob(f"*{SUFFIX}"), reverse=True) if path.is_dir() else [path]
    if not files:
        raise SpecError(f"{path} holds no bundle: `attn-mlir doctor --write DIR` makes them")
    bundles = [bundle for file in files for bundle in bundles_of(load_bundles(file))]
    targets = tuple(dict.fromkeys(bundle.target for bundle in bundles))

    def kernels(target: str) -> list[Bundle]:
        matching = [bundle for bundle in bundles if bundle.target == target]
        if not matching:
            raise TargetError(f"{path} has code for {' and '.join(targets)}, not for {target}")
        return matching

    return kernels, targets
