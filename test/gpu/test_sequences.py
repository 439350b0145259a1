"""Copies of sequences of unequal lengths on a real GPU: ragged tensor maps at the start of memory."""

from __future__ import annotations

import pytest

from attn_mlir.runtime.kernel import load
from attn_mlir.validation.ws.kernels import bundle
from attn_mlir.validation.ws.sequences import check_sequences, copy_sequences, sequences

pytestmark = pytest.mark.gpu


def test_copies_touch_no_row_of_a_neighbour(target: str) -> None:
    """The first sequence's map begins 64 rows in front of an allocation of its own."""
    call = sequences()
    load(bundle(copy_sequences(), target))(*call.values(), most=128, device="cuda")
    check_sequences(**call)
