"""Descriptors and swizzles: worked examples of the machine, and the definition read the other way."""

from __future__ import annotations

import itertools

import pytest

from attn_mlir.lowering import layouts

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
    operand = layouts.k_major(rows, 64)
    assert operand.descriptor == A_K_MAJOR
    assert [step >> 4 for step in operand.step_bytes] == [0, 2, 4, 6]
    assert fields(operand.descriptor) == {
        "start": 0, "_0": 0, "leading": 1, "_1": 0, "stride": 64, "constant": 1, "base": 0,
        "mode": 0, "_2": 0, "swizzle": 2,
    }  # fmt: skip


def test_k_major_in_two_chunks() -> None:
    operand = layouts.k_major(128, 128)
    assert operand.descriptor == A_K_MAJOR
    assert operand.step_bytes == (0, 32, 64, 96, 16384, 16416, 16448, 16480)


def test_mn_major() -> None:
    """The same B stored [K, N]: 8192 bytes to the next 64 of N, 2048 to the next step of K."""
    operand = layouts.mn_major(64)
    assert operand.descriptor == 0x4000404002000000
    assert [step >> 4 for step in operand.step_bytes] == [0, 128, 256, 384]
    operand = layouts.mn_major(128)
    assert operand.descriptor == 0x4000404004000000
    assert len(operand.step_bytes) == 8


@pytest.mark.parametrize(
    ("element", "n", "b_is_mn_major", "expected"),
    [
        ("bf16", 256, False, 0x08400490),
        ("bf16", 256, True, 0x08410490),
        ("bf16", 128, False, 0x08200490),
        ("f16", 256, False, 0x08400010),
    ],
)
def test_instruction_descriptors(element: str, n: int, b_is_mn_major: bool, expected: int) -> None:
    found = layouts.instruction_descriptor(element, m=128, n=n, b_is_mn_major=b_is_mn_major)
    assert found == expected


def address_by_xor(row: int, column: int, rows: int) -> int:
    """The copy engine's view: bits 4..6 of the linear address of a box are XORed with bits 7..9."""
    box, inner = column // 64, column % 64
    linear = box * rows * 128 + row * 128 + inner * 2
    return linear ^ (linear >> 3 & 0x70)


@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (64, 128), (128, 192)])
def test_swizzle_is_the_copy_engine_s(rows: int, columns: int) -> None:
    everywhere = list(itertools.product(range(rows), range(columns)))
    offsets = [layouts.swizzled_offset(r, c, rows=rows) for r, c in everywhere]
    assert offsets == [address_by_xor(r, c, rows) for r, c in everywhere]
    assert sorted(offsets) == list(range(0, 2 * rows * columns, 2))


@pytest.mark.parametrize(("rows", "k"), [(64, 128), (128, 64)])
def test_k_steps_start_at_their_elements(rows: int, k: int) -> None:
    """Row 0 is not permuted: a K-major step starts where its first element lies."""
    steps = layouts.k_major(rows, k).step_bytes
    assert steps == tuple(layouts.swizzled_offset(0, c, rows=rows) for c in range(0, k, 16))


@pytest.mark.parametrize("k_rows", [64, 128])
def test_mn_steps_and_leading_offset_are_where_elements_lie(k_rows: int) -> None:
    operand = layouts.mn_major(k_rows)
    starts = tuple(layouts.swizzled_offset(k, 0, rows=k_rows) for k in range(0, k_rows, 16))
    assert operand.step_bytes == starts
    leading = fields(operand.descriptor)["leading"] << 4
    assert leading == layouts.swizzled_offset(0, 64, rows=k_rows)


@pytest.mark.parametrize(
    ("columns", "bits", "cells"), [(128, 32, 128), (128, 16, 64), (16, 16, 8), (8, 8, 2)]
)
def test_tensor_columns(columns: int, bits: int, cells: int) -> None:
    assert layouts.tensor_columns(columns, bits) == cells


@pytest.mark.parametrize(("columns", "chunks"), [(1, 1), (64, 1), (65, 2), (128, 2)])
def test_chunks(columns: int, chunks: int) -> None:
    assert layouts.chunk_count(columns) == chunks
