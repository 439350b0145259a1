"""The kernels of latent attention that benchmarks compile."""

from __future__ import annotations

from pathlib import Path

import pytest

import attn_mlir as am
from attn_mlir.bench import _latent, _requests


def test_requests_are_different_kernels() -> None:
    """Each has a name and a canonical form of its own, and machine code is counted of four of them."""
    texts = {name: make().canonical_json() for name, make in _requests.LATENT.items()}
    assert len(set(texts.values())) == len(texts) == 7
    assert {kernel.name for kernel in _latent.KERNELS} <= texts.keys()


@pytest.mark.ptxas
def test_copies_of_gathered_rows_change_their_boxes_in_place(tmp_path: Path) -> None:
    """12.6 instructions for each row when this was written, 9.7 in FlashAttention-4; 23.4 where boxes are moved."""
    bundle = am.compile(_requests.LATENT["lists, 64 heads"](), target=_latent.TARGET)
    cubin = tmp_path / "lists.cubin"
    cubin.write_bytes(bundle.cubin)
    cubin.with_suffix(".ptx").write_text(bundle.ptx)
    assert _latent.record("lists", cubin, 64 * 64, _latent.ROW)["per_entry"] < 14
