"""Swizzles and descriptors: worked examples of the machine, and the definition read the other way."""

from __future__ import annotations

import itertools

import pytest

from attn_mlir.lowering import layouts
from attn_mlir.lowering.sm_100a.descriptors import instruction_descriptor, shared_operand

A_K_MAJOR = 0x4000404000010000  # PTX ISA, tcgen05 matrix descriptor: any rows, 128-byte lines of K


def fields(descriptor: int) -> dict[str, int]:
    """The bit fields of a matrix descriptor."""
    widths = {"start": 14, "_0": 2, "leading": 14, "_1": 2, "stride": 14, "constant": 3, "base": 3,
              "mode": 1, "_2": 8, "swizzle": 3}  # fmt: skip
    found: dict[str, int] = {}
    for name, width in widths.items():
        found[name] = descriptor & (1 << width) - 1
        descriptor >>= width
    return found


@pytest.mark.parametrize("rows", [64, 128, 256])
def test_k_major_in_one_chunk(rows: int) -> None:
    """D[128, 256] += A[128, 64] B[256, 64]^T: 4 steps of 2 units."""
    operand = shared_operand(rows, 64, 16, is_mn_major=False)
    assert operand.descriptor == A_K_MAJOR
    assert [step >> 4 for step in operand.step_bytes] == [0, 2, 4, 6]
    assert fields(operand.descriptor) == {
        "start": 0, "_0": 0, "leading": 1, "_1": 0, "stride": 64, "constant": 1, "base": 0,
        "mode": 0, "_2": 0, "swizzle": 2,
    }  # fmt: skip


def test_k_major_in_two_chunks() -> None:
    operand = shared_operand(128, 128, 16, is_mn_major=False)
    assert operand.descriptor == A_K_MAJOR
    assert operand.step_bytes == (0, 32, 64, 96, 16384, 16416, 16448, 16480)


def test_mn_major() -> None:
    """The same B stored [K, N]: 8192 bytes to the next 64 of N, 2048 to the next step of K."""
    operand = shared_operand(64, 256, 16, is_mn_major=True)
    assert operand.descriptor == 0x4000404002000000
    assert [step >> 4 for step in operand.step_bytes] == [0, 128, 256, 384]
    operand = shared_operand(128, 256, 16, is_mn_major=True)
    assert operand.descriptor == 0x4000404004000000
    assert len(operand.step_bytes) == 8


@pytest.mark.parametrize(
    ("element", "n", "b_is_mn_major", "expected"),
    [
        ("bf16", 256, False, 0x08400490),
        ("bf16", 256, True, 0x08410490),
        ("bf16", 128, False, 0x08200490),
        ("f16", 256, False, 0x08400010),
        ("f8E4M3FN", 256, False, 0x08400010),
        ("f8E5M2", 256, True, 0x08410490),
    ],
)
def test_instruction_descriptors(element: str, n: int, b_is_mn_major: bool, expected: int) -> None:
    found = instruction_descriptor(element, m=128, n=n, b_is_mn_major=b_is_mn_major)
    assert found == expected


PERMUTED = {128: 0x70, 64: 0x30, 32: 0x10, 16: 0}  # bits of an address, by bytes of a line


def address_by_xor(row: int, column: int, rows: int, element_bits: int, line: int) -> int:
    """The copy engine's view: bits 4..6 of the linear address of a box are XORed with bits 7..9; fewer of
    these for shorter lines."""
    box, inner = divmod(column * element_bits // 8, line)
    linear = (box * rows + row) * line + inner
    return linear ^ (linear >> 3 & PERMUTED[line])


@pytest.mark.parametrize("line", PERMUTED)
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(("rows", "lines"), [(8, 1), (64, 2), (128, 3)])
def test_swizzle_is_the_copy_engine_s(rows: int, lines: int, bits: int, line: int) -> None:
    columns = lines * layouts.line_elements(bits, line)
    everywhere = list(itertools.product(range(rows), range(columns)))
    offsets = [
        layouts.swizzled_offset(r, c, rows=rows, element_bits=bits, line_bytes=line)
        for r, c in everywhere
    ]
    assert offsets == [address_by_xor(r, c, rows, bits, line) for r, c in everywhere]
    assert sorted(offsets) == list(range(0, rows * lines * line, bits // 8))


@pytest.mark.parametrize(
    ("line", "leading", "stride", "swizzle", "steps"),
    [
        (64, 1, 32, 4, (0, 32, 8192, 8224)),
        (32, 1, 16, 6, (0, 4096, 8192, 12288)),
        (16, 128, 8, 0, (0, 4096, 8192, 12288)),
    ],
)
def test_k_major_in_shorter_lines(
    line: int, leading: int, stride: int, swizzle: int, steps: tuple[int, ...]
) -> None:
    """A[128, 64] of 16 bits: 8 rows are 8 lines; without a swizzle a step has two lines, `leading` apart."""
    operand = shared_operand(128, 64, 16, is_mn_major=False, line_bytes=line)
    found = fields(operand.descriptor)
    assert (found["leading"], found["stride"], found["swizzle"]) == (leading, stride, swizzle)
    assert operand.step_bytes == steps
    bits = {"rows": 128, "element_bits": 16, "line_bytes": line}
    assert steps == tuple(layouts.swizzled_offset(0, c, **bits) for c in range(0, 64, 16))


@pytest.mark.parametrize(("rows", "k", "bits"), [(64, 128, 16), (128, 64, 16), (128, 256, 8)])
def test_k_steps_start_at_their_elements(rows: int, k: int, bits: int) -> None:
    """Row 0 is not permuted: a K-major step starts where its first element lies."""
    steps = layouts.k_major(rows, k, bits).step_bytes
    columns = range(0, k, layouts.mma_k(bits))
    assert steps == tuple(
        layouts.swizzled_offset(0, c, rows=rows, element_bits=bits) for c in columns
    )


@pytest.mark.parametrize(("k_rows", "bits"), [(64, 16), (128, 16), (128, 8)])
def test_mn_steps_and_leading_offset_are_where_elements_lie(k_rows: int, bits: int) -> None:
    operand = layouts.mn_major(k_rows, bits)
    rows = range(0, k_rows, layouts.mma_k(bits))
    starts = [layouts.swizzled_offset(k, 0, rows=k_rows, element_bits=bits) for k in rows]
    assert operand.step_bytes == tuple(starts)
    leading = fields(operand.descriptor)["leading"] << 4
    next_chunk = layouts.line_elements(bits)
    assert leading == layouts.swizzled_offset(0, next_chunk, rows=k_rows, element_bits=bits)


@pytest.mark.parametrize(
    ("columns", "bits", "cells"), [(128, 32, 128), (128, 16, 64), (16, 16, 8), (8, 8, 2)]
)
def test_tensor_columns(columns: int, bits: int, cells: int) -> None:
    assert layouts.tensor_columns(columns, bits) == cells


@pytest.mark.parametrize(
    ("columns", "bits", "chunks"),
    [(1, 16, 1), (64, 16, 1), (65, 16, 2), (128, 16, 2), (128, 8, 1), (33, 32, 2)],
)
def test_chunks(columns: int, bits: int, chunks: int) -> None:
    assert layouts.chunk_count(columns, bits) == chunks
