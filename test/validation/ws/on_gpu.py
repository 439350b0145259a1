"""Small kernels as files: compiled where the compiler is, run and judged on the first GPU elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class OnGpu:
    """A kernel and a call of it.

    Attributes:
      text: gives the kernel in `ws`.
      operands: gives the call's arrays.
      misfit: what is wrong with the arrays after the call, or nothing.
    """

    text: Callable[[], str]
    operands: Callable[[], Sequence[Any]]
    misfit: Callable[[Sequence[Any]], str]


def write(cases: Mapping[str, OnGpu], folder: Path, target: str) -> None:
    """Writes a bundle per case."""
    from attn_mlir.validation.ws.kernels import bundle  # needs the compiler

    folder.mkdir(parents=True, exist_ok=True)
    for name, case in cases.items():
        _file(folder, name).write_bytes(bundle(case.text(), target))


def run(cases: Mapping[str, OnGpu], folder: Path) -> int:
    """Runs the bundles of a folder on the first GPU; returns how many are wrong."""
    from attn_mlir.runtime.kernel import load

    wrong = 0
    for name, case in cases.items():
        arrays = case.operands()
        load(_file(folder, name))(*arrays, device="cuda")
        found = case.misfit(arrays)
        print(f"{name}: {found or 'right'}")
        wrong += bool(found)
    return wrong


def main(description: str, cases: Mapping[str, OnGpu]) -> int:
    """The command line; 0 where everything is right."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="of the bundles")
    parser.add_argument("--write", action="store_true", help="make the bundles; needs the compiler")
    parser.add_argument("--target", default="sm_90a")
    options = parser.parse_args()
    if options.write:
        write(cases, options.folder, options.target)
        return 0
    return run(cases, options.folder)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(' ', '_')}.attn"
