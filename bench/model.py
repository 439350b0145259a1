"""The cycle model's clocks of a key tile beside those measured on an H200.

    python bench/cycles.py --write DIR     kernels with clocks, as for the measurement
    python bench/model.py DIR [--measured FILE] [--limit N] [--set NAME=VALUE ...]

Each kernel of the folder runs on the emulator, until N PTX instructions of its first CTA are
recorded; the record is replayed on its machine code. Measured values are those of FILE, what
`bench/cycles.py --read DIR` printed (bench/h200_cycles.md is one for sequences that no constant was
fitted on), else of docs/lab/performance.md, "Where the cycles go".
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attn_mlir.bench.attention import TOKENS, WIDTH, Cell
from attn_mlir.bench.cycles import INDEX, Entry, measured
from attn_mlir.errors import LaunchError
from attn_mlir.runtime.attention_trial import bf16_words
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.timing import (
    H200,
    Recorder,
    Replay,
    assemble_with_lines,
    barrier_names,
    join,
    machine_code,
    report,
)

TABLE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "performance.md"


def on_silicon(entry: Entry) -> float | None:
    """Clocks of a key tile in the table of docs/lab/performance.md; None if it has no such row."""
    cell = entry.cell
    title = (
        f"{cell.head_dim}"
        if cell.head_dim == cell.v_head_dim
        else f"{cell.head_dim}, V {cell.v_head_dim}"
    )
    start = f"| {title} | {cell.mask} | {cell.length} | {64 * entry.groups} x {entry.keys} | {entry.order} | "
    for line in TABLE.read_text().splitlines():
        if line.startswith(start):
            return float(line[len(start) :].partition(" ")[0])
    return None


def from_file(text: str, entry: Entry) -> float | None:
    """Clocks of a key tile in what `bench/cycles.py --read` printed; None if it has none."""
    tile = f"{64 * entry.groups}x{entry.keys}, {entry.order}"
    start = f"| {entry.cell.title} {entry.cell.length} | {tile} | "
    for line in text.splitlines():
        if line.startswith(start):
            clocks = line[len(start) :].partition(" |")[0].strip()
            return float(clocks) if clocks else None
    return None


def modelled(
    entry: Entry, bundle: Bundle, pool: Any, limit: int, overrides: dict[str, float]
) -> tuple[dict[str, float], str]:
    """Clocks of a key tile at each end of the constants' ranges, and the unit that is the limit."""
    recorder = Recorder(limit=limit)
    device = EmulatorDevice(recording=recorder, multiprocessors=H200.sms)
    try:
        measured(entry, bundle, device, pool, 0)
    except LaunchError:
        if not recorder.reached_limit:
            raise
    functions = machine_code(assemble_with_lines(bundle.ptx, bundle.target).cubin)
    joined = join(functions[bundle.entry], recorder.program)
    found: dict[str, float] = {}
    limit_name = ""
    for corner in ("low", "nominal", "high"):
        values = H200.at(corner, overrides)
        replayed = Replay(joined, recorder.clusters[0], values, names=barrier_names()).run()
        result = report(replayed, {})
        assert result.tile is not None
        found[corner] = result.tile.clocks
        if corner == "nominal":
            limit_name = result.units[0].name
    return found, limit_name


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of bench/cycles.py --write")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="what cycles.py --read wrote")
    parser.add_argument("--limit", type=int, default=150_000, help="PTX instructions (%(default)s)")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="constants")
    given = parser.parse_args()
    overrides = {name: float(value) for name, _, value in (t.partition("=") for t in given.set)}
    pool = bf16_words(np.random.default_rng(0).standard_normal(TOKENS * WIDTH, np.float32))
    errors: list[float] = []
    text = None if given.measured is None else given.measured.read_text()
    print("| cell | tile, order | model (low to high) | measured | error | limit |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for fields in json.loads((given.folder / INDEX).read_text()):
        entry = Entry(Cell(**fields.pop("cell")), **fields)
        bundle = Bundle.load(given.folder / entry.file)
        found, limit = modelled(entry, bundle, pool, given.limit, overrides)
        known, error = on_silicon(entry) if text is None else from_file(text, entry), ""
        if known is not None:
            errors.append(found["nominal"] / known - 1)
            error = f"{errors[-1]:+.1%}"
        print(
            f"| {entry.cell.title} {entry.cell.length} | {64 * entry.groups}x{entry.keys}, {entry.order} | "
            f"{found['nominal']:.0f} ({found['low']:.0f} to {found['high']:.0f}) | "
            f"{'' if known is None else f'{known:.0f}'} | {error} | {limit} |",
            flush=True,
        )
    if errors:
        print(f"\nmean error {np.abs(errors).mean():.1%}, worst {np.abs(errors).max():.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
