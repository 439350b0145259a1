"""Draws the traces of kernels that stand in the docs.

    python bench/traces.py                   all of them, into docs/
    python bench/traces.py mla mla_decode    these

A picture is of the first CTA, for `sm_100a`, as `attn-mlir trace` draws it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import attn_mlir as am
from attn_mlir.bench.measuring.stats import ROOT
from attn_mlir.cli.timeline import draw, read_trace

DOCS = ROOT / "docs"
Call = Callable[[am.EmulatorDevice], object]


def _drawn(*shape: int) -> np.ndarray[Any, Any]:
    """Normal values in bf16, the same every time."""
    return np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)


def _trace(device: am.EmulatorDevice) -> object:
    operands = [_drawn(1, 512, 1, 128) for _ in "qkv"]
    return am.attention(*operands, mask=am.causal(), query_tiles=2, device=device)


def _mla(device: am.EmulatorDevice) -> object:
    sizes = ((256, 128), (256, 64), (512, 128), (512, 64), (512, 128))
    operands = [_drawn(1, length, 1, columns) for length, columns in sizes]
    return am.mla(*operands, mask=am.causal(), scale=192**-0.5, query_tiles=2, device=device)


def _sparse(heads: int, entries: int) -> Call:
    """The list of one query, an entry for each row of a cache."""

    def call(device: am.EmulatorDevice) -> object:
        indices = np.arange(entries, dtype=np.int32)[None]
        kv = _drawn(entries, 1, 576)
        return am.sparse_mla(_drawn(1, heads, 576), kv, indices, scale=192**-0.5, device=device)

    return call


def _mla_decode(device: am.EmulatorDevice) -> object:
    pages, used = np.arange(6, dtype=np.int32)[None], np.array([384], np.int32)
    cache = am.PagedKV(_drawn(6, 64, 1, 576), page_table=pages, seqused=used)
    return am.mla_decode(
        _drawn(1, 1, 64, 576), cache, mask=am.causal(), scale=192**-0.5, device=device
    )


PICTURES: dict[str, tuple[str, Call]] = {
    "trace": ("Causal attention, head size 128, 512 queries and keys: the first CTA", _trace),
    "mla": ("Latent attention, causal, 256 queries, 512 keys", _mla),
    "sparse_mla": ("Sparse latent attention, 64 heads, 384 entries", _sparse(64, 384)),
    "sparse_mla_pair": ("Sparse latent attention, 128 heads, 512 entries", _sparse(128, 512)),
    "mla_decode": ("Latent decoding, 64 heads, 384 keys", _mla_decode),
}
"""For each file in docs the title of its picture, and the call whose only launch it shows."""


def picture(name: str) -> str:
    """The SVG text of a picture."""
    title, call = PICTURES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        call(am.EmulatorDevice(trace=path, target="sm_100a"))
        return draw(read_trace(path), title=title)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    args = parser.parse_args()
    if unknown := set(args.names) - set(PICTURES):
        parser.error(f"there is no picture {', '.join(sorted(unknown))}")
    for name in args.names or PICTURES:
        path = DOCS / f"{name}.svg"
        path.write_text(picture(name))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
