"""Rows of 8 bits that are widened on their way to shared memory: no bank is written twice at a time."""

from __future__ import annotations

import pytest

from attn_mlir.lowering.layouts.fragments import units_of_rows
from attn_mlir.schedules.latent.common.rows import CHUNK, PAIR_WARPS, UPCAST_WARPS

ROWS, UNIT, BANK_UNITS = 64, 8, 8  # 16-byte units of bf16, of which 128 bytes have eight


@pytest.mark.parametrize("warps", [UPCAST_WARPS, PAIR_WARPS])
@pytest.mark.parametrize(("columns", "element_bits"), [(CHUNK, 8), (CHUNK, 16)])
def test_eight_threads_write_to_all_banks(columns: int, element_bits: int, warps: int) -> None:
    """Unit u of row r of a line lies at place u xor (r mod 8) of its 128 bytes."""
    layout = units_of_rows(warps, columns, element_bits).layout([ROWS, columns])
    for strip, first in {(a.strip, a.first) for a in layout.accesses(UNIT)}:
        for begin in range(0, layout.thread_count, BANK_UNITS):
            places = [layout.position(begin + i, strip, first) for i in range(BANK_UNITS)]
            units = {(column // UNIT) % BANK_UNITS ^ row % 8 for row, column in places}
            assert len(units) == BANK_UNITS
