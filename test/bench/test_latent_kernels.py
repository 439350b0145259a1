"""The kernels of latent attention that benchmarks compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.bench import _latent, _requests

MOST_PER_SCORE = 3.95  # FlashAttention-4's kernel of the same sizes


def test_requests_are_different_kernels() -> None:
    """Each has a name and a canonical form of its own, and machine code is counted of four of them."""
    texts = {name: make().canonical_json() for name, make in _requests.LATENT.items()}
    assert len(set(texts.values())) == len(texts) == 9
    assert {kernel.name for kernel in _latent.KERNELS} <= texts.keys()


@pytest.mark.ptxas
def test_copies_of_gathered_rows_change_their_boxes_in_place(tmp_path: Path) -> None:
    """12.6 instructions for each row when this was written, 9.7 in FlashAttention-4; 23.4 where boxes are moved."""
    _, found = recorded("lists, 64 heads", tmp_path)
    assert found["per_entry"] < 14


@pytest.mark.ptxas
@pytest.mark.slow
def test_dense_prefill_executes_no_more_than_promised(tmp_path: Path) -> None:
    """Most exponentials are not polynomials, and nothing is spilled."""
    spilled, found = recorded(_latent.KERNELS[0].name, tmp_path)
    assert found["per_score"] <= MOST_PER_SCORE
    assert 0.9 < found["exponentials"] < 1
    assert found["stack_bytes"] == spilled == 0


def recorded(name: str, folder: Path) -> tuple[int, Any]:
    """Bytes that a kernel of the table of machine code spills, and its row."""
    kernel = next(one for one in _latent.KERNELS if one.name == name)
    bundle = am.compile(_requests.LATENT[name](), target=_latent.TARGET)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(bundle.cubin)
    cubin.with_suffix(".ptx").write_text(bundle.ptx)
    return bundle.report["spill_bytes"], _latent.record(
        name, cubin, kernel.block, kernel.entry_bytes
    )
