"""Where the cycles of attention in registers go, counted in the kernel on one Hopper GPU.

    python bench/cycles.py --write DIR                            where the compiler is
    python bench/cycles.py --read DIR [--seconds 0.5]             where the GPU is; needs numpy
    python bench/cycles.py --read DIR --cell 128 causal 4096

The kernels are those that `am.attention` takes for the cells of `bench/attention.py`, with clocks
(`ws-record-clocks`): nothing is recorded within a loop. Each is launched for so many seconds, so that
clock and power settle, and the times of the last launch count. Means over all groups of all work
tiles, in cycles of the multiprocessor:

* a key tile: a turn of the loop without tests. All groups of a CTA take a turn in this time;
* the pipe: what the tensor cores need for the products of that turn, as a part of it;
* a tested tile: a turn of a loop with a test of the mask or of the number of keys;
* of a work tile: waiting for the first Q and K; the first key tile, whose products overlap with
  nothing; the last values and the LSE; O to shared memory. And which part of its time is neither a
  tested nor an untested turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.bench.attention import HEAD_DIMS, LENGTHS, MASKS, TOKENS, WIDTH, Cell, clock
from attn_mlir.files import make_folder, write_file
from attn_mlir.runtime.attention_trial import bf16_words
from attn_mlir.runtime.call.tensors import view, view_as
from attn_mlir.runtime.devices import memory
from attn_mlir.runtime.devices.base import Device
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.timing import seconds_per_launch
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel, Machine

TARGET = "sm_90a"
SCHEDULE = "mha-registers"
PRODUCTS_PER_CYCLE = (
    2048  # multiply-adds of 16 bits: 132 x 1.83 GHz x 2 of it are the 989 TFLOP/s of the data sheet
)
LOOPS: dict[tuple[int, int], tuple[str, int]] = {
    (128, 80): ("192x80", 1923),
    (128, 128): ("128x128", 2338),
    (64, 128): ("192x128", 2326),
    (192, 96): ("128x96", 2304),
    (256, 80): ("128x80", 2560),
}
"""Cycles per key tile of a bare loop with loads on an H200, by head size and keys, and its tile."""
INDEX = "cells.json"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A kernel in the folder.

    Attributes:
      file: its bundle.
      groups, keys: of a tile: 64 query rows for each group.
      order: of work tiles.
    """

    cell: Cell
    file: str
    groups: int
    keys: int
    order: str


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Means over the groups of all work tiles, in cycles; None where there is no such turn.

    Attributes:
      steady, tested: a turn of the loop without tests, and of those with one.
      operands, first, values, output: once per work tile.
      rest: the part of a work tile's time that is neither kind of turn.
    """

    steady: float | None
    tested: float | None
    operands: float
    first: float
    values: float
    output: float
    rest: float

    @staticmethod
    def of(clocks: npt.NDArray[np.int32]) -> Cycles:
        """From what `ws-record-clocks` describes, [..., entries]: a tested loop, then an untested one."""
        entries = clocks.reshape(-1, clocks.shape[-1])
        begin, operands, loops, tested, tests, steady, turns = entries.T[:7]
        asked, done = entries.T[-2:]
        spent = [_between(*pair) for pair in ((loops, tested), (tested, steady))]
        whole = _between(begin, done).sum()
        in_turns = spent[0].sum() + spent[1].sum()
        return Cycles(
            steady=_mean(spent[1], turns),
            tested=_mean(spent[0], tests),
            operands=float(_between(begin, operands).mean()),
            first=float(_between(operands, loops).mean()),
            values=float(_between(steady, asked).mean()),
            output=float(_between(asked, done).mean()),
            rest=float(1 - in_turns / whole),
        )


def _between(begin: npt.NDArray[np.int32], end: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Cycles from one reading of a counter that wraps at 2**32 to another."""
    return (end.view(np.uint32) - begin.view(np.uint32)).astype(np.int64)


def _mean(cycles: npt.NDArray[np.int64], turns: npt.NDArray[np.int32]) -> float | None:
    """Cycles per turn of those loops that have any."""
    some = turns > 0
    return float(cycles[some].sum() / turns[some].sum()) if some.any() else None


def compiled(cell: Cell, folder: Path) -> Entry:
    """Compiles the kernel of a cell with clocks to a folder."""
    from attn_mlir.compiling.routes import attention_choice, chosen
    from attn_mlir.compiling.spec import mha
    from attn_mlir.dialect.targets.limits import target_named
    from attn_mlir.lowering.compile import compile_with_clocks
    from attn_mlir.schedules.policy.register_tiling import register_tiling_for

    spec = mha(
        heads=cell.heads, head_dim=cell.head_dim, v_head_dim=cell.v_head_dim,
        mask=MASKS[cell.mask](), return_lse=False, schedule=SCHEDULE,
    )  # fmt: skip
    longest = {"batch": cell.batch, "sq": cell.length, "sk": cell.length}
    spec = chosen(spec, attention_choice(spec, longest, Machine(TARGET, 0)))
    bundle = Bundle.from_bytes(compile_with_clocks(spec, target=TARGET))
    groups = bundle.manifest.tensor("clocks").shape[-2]
    assert isinstance(groups, int)
    order = spec.tile_order or "single"
    sizes = (target_named(TARGET), cell.head_dim, cell.v_head_dim)
    keys = register_tiling_for(*sizes, tile_order=order, groups=groups).tile_n
    name = f"{cell.head_dim}.{cell.mask}.{groups}x{keys}.{order}.attn"
    bundle.save(folder / name)
    return Entry(cell, name, groups, keys, order)


def measured(
    entry: Entry, bundle: Bundle, device: Device, pool: npt.NDArray[np.uint16], seconds: float
) -> tuple[npt.NDArray[np.int32], float | None]:
    """The clocks of the last launch; and on a GPU the time of a launch, in seconds.

    Args:
      pool: words of bf16 that operands are made of.
    """
    cell, arrays = entry.cell, dict[str, Any]()
    tiles = (-(-cell.length // (64 * entry.groups)), cell.heads, cell.batch)
    sizes = {"batch": cell.batch, "sq": cell.length, "sk": cell.length}
    sizes |= {f"clocks_{axis}": count for axis, count in enumerate(tiles)}
    for number, tensor in enumerate(bundle.manifest.tensors):
        shape = [sizes[n] if isinstance(n, str) else n for n in tensor.shape]
        if tensor.dtype == "bf16":
            words = np.roll(pool, 7919 * number)[: np.prod(shape)].reshape(shape)
            arrays[tensor.name] = view_as(np.ascontiguousarray(words), tensor.name, "bf16")
        else:
            arrays[tensor.name] = view(np.zeros(shape, np.int32), tensor.name)
    kernel, clocks = Kernel(bundle), arrays["clocks"].owner
    if not isinstance(device, CudaDevice):
        kernel.launch(arrays, device=device)
        return clocks, None
    there = {name: memory.upload(tensor, device.index) for name, tensor in arrays.items()}
    time = seconds_per_launch(
        lambda: kernel.launch(there, device=device), index=device.index, seconds=seconds
    )
    memory.download(there["clocks"], arrays["clocks"])
    return clocks, time


def row(entry: Entry, cycles: Cycles, seconds: float | None) -> str:
    """A line of the table."""
    cell = entry.cell
    needed = 64 * entry.groups * entry.keys * (cell.head_dim + cell.v_head_dim) / PRODUCTS_PER_CYCLE
    known = LOOPS.get((cell.head_dim, entry.keys))
    is_same = known is not None and known[0] == f"{64 * entry.groups}x{entry.keys}"
    steady = cycles.steady
    cells = [
        f"{cell.title} {cell.length}",
        f"{64 * entry.groups}x{entry.keys}, {entry.order}",
        "" if steady is None else f"{steady:.0f}",
        "" if steady is None else f"{needed / steady:.1%}",
        "" if steady is None or known is None or not is_same else f"{steady / known[1]:.3f}",
        "" if cycles.tested is None else f"{cycles.tested:.0f}",
        *(f"{x:.0f}" for x in (cycles.operands, cycles.first, cycles.values, cycles.output)),
        f"{cycles.rest:.1%}",
        "" if seconds is None else f"{cell.flops / seconds * 1e-12:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


HEADING = (
    "| cell | tile, order | a key tile | pipe | of the bare loop | a tested tile | operands | first | "
    "values | output | rest | TFLOP/s |\n| --- | --- |" + " ---: |" * 10
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile the kernels to DIR")
    parser.add_argument("--read", type=Path, metavar="DIR", help="run the kernels of DIR")
    parser.add_argument(
        "--cell", nargs=3, action="append", metavar=("D", "MASK", "LENGTH"), default=[]
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="that a kernel is launched for")
    given = parser.parse_args()
    if (given.write is None) == (given.read is None):
        parser.error("pass one of --write and --read")
    values = dict(HEAD_DIMS)
    cells = [Cell(int(d), values[int(d)], mask, int(length)) for d, mask, length in given.cell]
    if not cells:
        each = itertools.product(MASKS, HEAD_DIMS, LENGTHS)
        cells = [Cell(*sizes, mask, length) for mask, sizes, length in each]
    if given.write is not None:
        make_folder(given.write)
        entries = [dataclasses.asdict(compiled(cell, given.write)) for cell in cells]
        print(write_file(given.write / INDEX, json.dumps(entries, indent=1)))
        return 0
    stored: list[dict[str, Any]] = json.loads((given.read / INDEX).read_text())
    entries = [Entry(Cell(**fields.pop("cell")), **fields) for fields in stored]
    pool = bf16_words(np.random.default_rng(0).standard_normal(TOKENS * WIDTH, np.float32))
    print(HEADING)
    for entry in entries:
        if not given.cell or entry.cell in cells:
            bundle = Bundle.load(given.read / entry.file)
            clocks, time = measured(entry, bundle, CudaDevice(0), pool, given.seconds)
            print(row(entry, Cycles.of(clocks), time), clock(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
