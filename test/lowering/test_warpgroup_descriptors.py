"""Operands and registers of a warpgroup's product: worked examples, and the figures of the PTX ISA."""

from __future__ import annotations

import pytest

from attn_mlir.lowering.layouts import accumulator, operand_a
from attn_mlir.lowering.sm_90a.descriptors import a_registers, accumulator_order, warpgroup_operand

WARPS = 4


def fields(descriptor: int) -> dict[str, int]:
    """The bit fields of an sm_90 matrix descriptor, byte offsets in units of 16."""
    widths = {"start": 14, "_0": 2, "leading": 14, "_1": 2, "stride": 14, "_2": 3, "base": 3,
              "_3": 10, "swizzle": 2}  # fmt: skip
    found: dict[str, int] = {}
    for name, width in widths.items():
        found[name] = descriptor & (1 << width) - 1
        descriptor >>= width
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("rows", [8, 64, 256])
def test_k_major(rows: int) -> None:
    """8 rows of 128 bytes to the next group, which is what the stride tells; two chunks of K."""
    operand = warpgroup_operand(rows, 128, 16, is_mn_major=False)
    assert operand.descriptor == 0x4000004000010000
    assert fields(operand.descriptor) == {"leading": 1, "stride": 64, "swizzle": 1}
    chunk = rows * 128
    assert operand.step_bytes == (0, 32, 64, 96, chunk, chunk + 32, chunk + 64, chunk + 96)


@pytest.mark.parametrize("k_rows", [16, 64, 128])
def test_mn_major(k_rows: int) -> None:
    """The leading offset leads to the next 64 of N, one step is 16 rows."""
    operand = warpgroup_operand(k_rows, 256, 16, is_mn_major=True)
    assert fields(operand.descriptor) == {"leading": k_rows * 8, "stride": 64, "swizzle": 1}
    assert operand.step_bytes == tuple(range(0, k_rows * 128, 2048))


@pytest.mark.parametrize("columns", [8, 80, 256])
def test_registers_of_the_sums(columns: int) -> None:
    """Thread 32 w + 4 g + q has in register i the row 16 w + g + 8 (i / 2 mod 2) and so on."""
    layout = accumulator(WARPS).layout([64, columns])
    for thread in range(WARPS * 32):
        w, g, q = thread // 32, thread % 32 // 4, thread % 4
        expected = [
            (16 * w + g + 8 * (i >> 1 & 1), 8 * (i >> 2) + 2 * q + (i & 1))
            for i in range(columns // 2)
        ]
        found = [layout.position(thread, *place) for place in accumulator_order(columns)]
        assert found == expected


@pytest.mark.parametrize("bits", [8, 16])
def test_registers_of_a(bits: int) -> None:
    """Register r of a step: rows 8 (r mod 2) further down, columns in its upper half for r > 1."""
    pack, k = 32 // bits, 256 // bits
    layout = operand_a(WARPS, bits).layout([64, 3 * k])
    for thread in range(WARPS * 32):
        w, g, q = thread // 32, thread % 32 // 4, thread % 4
        for step, registers in enumerate(a_registers(3 * k, bits)):
            for r, (strip, word) in enumerate(registers):
                row, column = 16 * w + g + 8 * (r & 1), step * k + pack * q + k // 2 * (r >> 1)
                places = [layout.position(thread, strip, pack * word + e) for e in range(pack)]
                assert places == [(row, column + e) for e in range(pack)]
