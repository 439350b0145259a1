"""Matrix fragments in the registers of a warp, and their moves to shared memory (spec-ptx 10).

A register file slice is uint32[registers, 32]: register i of lane t. Elements pack low to high.

Ambiguity resolved here: spec 10 and 16.11, 4-bit elements expanded by ldmatrix land in bits 2..5 of
their byte and 6-bit elements in bits 0..5, as tcgen05.cp does.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .faults import Fault
from .formats import unpack_4_bit, unpack_6_bit
from .memory import SharedMemory

Registers = npt.NDArray[np.uint32]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class FragmentMap:
    """Element i of lane t is at (row, column) of the matrix; both arrays are [elements, 32]."""

    row: Index
    column: Index


def _grid(elements: int) -> tuple[Index, Index, Index]:
    """Element index [elements, 1], and g = t / 4 and q = t % 4, [1, 32]."""
    i = np.arange(elements, dtype=np.intp)[:, None]
    t = np.arange(32, dtype=np.intp)[None, :]
    return i, t // 4, t % 4


@lru_cache(maxsize=64)
def a_fragment(k: int, bits: int) -> FragmentMap:
    """A of m16n8k<k> with `bits`-bit elements, as (row, k).

    Raises:
      Fault: "unsupported" for a shape outside spec-ptx 10.
    """
    if (k, bits) == (16, 16):
        i, g, q = _grid(8)
        row, column = g + 8 * ((i >> 1) & 1), 2 * q + (i & 1) + 8 * (i >= 4)
    elif (k, bits) == (8, 16):
        i, g, q = _grid(4)
        row, column = g + 8 * (i >= 2), 2 * q + (i & 1)
    elif (k, bits) == (8, 32):
        i, g, q = _grid(4)
        row, column = g + 8 * (i & 1), q + 4 * (i >= 2)
    elif (k, bits) == (32, 8):
        i, g, q = _grid(16)
        row, column = g + 8 * ((i >> 2) & 1), 4 * q + (i & 3) + 16 * (i >= 8)
    elif (k, bits) == (16, 8):
        i, g, q = _grid(8)
        row, column = g + 8 * (i >= 4), 4 * q + (i & 3)
    elif (k, bits) == (4, 32):
        i, g, q = _grid(2)
        row, column = g + 8 * i, q + 0 * i
    else:
        raise Fault("unsupported", f"mma.sync m16n8k{k} with {bits}-bit elements")
    return FragmentMap(*np.broadcast_arrays(row, column))


@lru_cache(maxsize=64)
def b_fragment(k: int, bits: int) -> FragmentMap:
    """B of m16n8k<k>, as (n, k): the transpose of the table of spec-ptx 10."""
    if (k, bits) == (16, 16):
        i, g, q = _grid(4)
        row, column = g + 0 * i, 2 * q + (i & 1) + 8 * (i >= 2)
    elif (k, bits) == (8, 16):
        i, g, q = _grid(2)
        row, column = g + 0 * i, 2 * q + i
    elif (k, bits) == (8, 32):
        i, g, q = _grid(2)
        row, column = g + 0 * i, q + 4 * i
    elif (k, bits) == (32, 8):
        i, g, q = _grid(8)
        row, column = g + 0 * i, 4 * q + (i & 3) + 16 * (i >= 4)
    elif (k, bits) == (16, 8):
        i, g, q = _grid(4)
        row, column = g + 0 * i, 4 * q + i
    elif (k, bits) == (4, 32):
        i, g, q = _grid(1)
        row, column = g + 0 * i, q + 0 * i
    else:
        raise Fault("unsupported", f"mma.sync m16n8k{k} with {bits}-bit elements")
    return FragmentMap(*np.broadcast_arrays(row, column))


@lru_cache(maxsize=64)
def register_order(fmap: FragmentMap, bits: int, rows: int, columns: int) -> Index:
    """Elements of `bits` bits in registers uint32[r, 32], by matrix position: [rows, columns]."""
    per = 32 // bits
    element, lane = np.indices(fmap.row.shape)
    order = np.empty((rows, columns), np.intp)
    order[fmap.row, fmap.column] = (element // per * 32 + lane) * per + element % per
    return order


def accumulator_matrix(elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """C or D of one warp or several, [.., n / 2, 32], as matrices [.., 16, n].

    Element i = 4 j + 2 h + e of lane t = 4 g + q is at row g + 8 h, column 8 j + 2 q + e
    (spec-ptx 9 and 10).
    """
    lead, n = elements.shape[:-2], 2 * elements.shape[-2]
    jhegq = elements.reshape(-1, n // 8, 2, 2, 8, 4)
    return jhegq.transpose(0, 2, 4, 1, 5, 3).reshape(*lead, 16, n)


def accumulator_elements(matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The inverse of `accumulator_matrix`."""
    lead, n = matrices.shape[:-2], matrices.shape[-1]
    hgjqe = matrices.reshape(-1, 2, 8, n // 8, 4, 2)
    return hgjqe.transpose(0, 3, 1, 5, 2, 4).reshape(*lead, n // 2, 32)


def split_registers(registers: Registers, bits: int) -> npt.NDArray[Any]:
    """uint32[.., r, 32] as elements [.., r * 32 / bits, 32] of an unsigned integer type."""
    if bits == 32:
        return registers
    storage = np.uint16 if bits == 16 else np.uint8
    lead, per = registers.shape[:-2], 32 // bits
    elements = np.ascontiguousarray(registers).view(storage).reshape(*lead, -1, 32, per)
    return elements.swapaxes(-1, -2).reshape(*lead, -1, 32)


def join_registers(elements: npt.NDArray[Any]) -> Registers:
    """The inverse of `split_registers` for uint8, uint16 or uint32 elements [.., e, 32]."""
    lead, per = elements.shape[:-2], 4 // elements.dtype.itemsize
    grouped = elements.reshape(*lead, -1, per, 32).swapaxes(-1, -2)
    return np.ascontiguousarray(grouped).view(np.uint32).reshape(*lead, -1, 32)


def _matrix_rows(
    shared: SharedMemory, addresses: npt.NDArray[np.integer[Any]], rows: int
) -> npt.NDArray[np.uint8]:
    return shared.load(addresses[:rows], 16)


def _check_count(count: int, allowed: tuple[int, ...], what: str) -> None:
    if count not in allowed:
        raise Fault("unsupported", f"{what}.x{count}: {', '.join(map(str, allowed))} allowed")


@lru_cache(maxsize=8)
def _byte_map_m16n16(matrices: int) -> tuple[Index, Index, Index]:
    """(matrix, row, byte) of byte j of register r of lane t, each [2 * matrices, 32, 4].

    PTX ISA, ldmatrix: each thread loads 4 consecutive columns across 2 rows of the transposed
    matrix. A register has those of one row, as CUTLASS's shuffle behind the load says, and with it
    FlashInfer's decode in NVFP4.
    """
    r = np.arange(2 * matrices)[:, None, None]
    t = np.arange(32)[None, :, None]
    j = np.arange(4)[None, None, :]
    row = 4 * (t % 4) + j
    byte = t // 4 + 8 * (r & 1)
    matrix, row, byte = np.broadcast_arrays(r >> 1, row, byte)
    return matrix, row, byte


def ldmatrix(
    shared: SharedMemory,
    addresses: npt.NDArray[np.integer[Any]],
    count: int,
    transpose: bool = False,
    shape: str = "m8n8",
    source_format: str = "",
) -> Registers:
    """ldmatrix.sync.aligned: uint32[registers, 32].

    Args:
      addresses: [32] shared offsets of 16-byte rows, one per lane; only the lanes that supply
        rows for x<count> are read.
      shape: "m8n8" (b16), "m16n16" (b8, transposed) or "m8n16" (b8x16).
      source_format: "" or "b4x16_p64" / "b6x16_p32": rows of 16 packed elements are expanded.
    """
    if shape == "m8n8":
        _check_count(count, (1, 2, 4), "ldmatrix.m8n8")
        rows = _matrix_rows(shared, addresses, 8 * count)
        matrices = rows.view(np.uint16).reshape(count, 8, 8)
        if transpose:
            matrices = np.ascontiguousarray(matrices.transpose(0, 2, 1))
        return matrices.view(np.uint32).reshape(count, 32)
    if shape == "m8n16":
        _check_count(count, (1, 2, 4), "ldmatrix.m8n16")
        rows = _expand(_matrix_rows(shared, addresses, 8 * count), source_format)
        return np.ascontiguousarray(rows).view(np.uint32).reshape(count, 32)
    if shape == "m16n16":
        _check_count(count, (1, 2), "ldmatrix.m16n16")
        rows = _expand(_matrix_rows(shared, addresses, 16 * count), source_format)
        matrix, row, byte = _byte_map_m16n16(count)
        picked = rows.reshape(count, 16, 16)[matrix, row, byte]
        return np.ascontiguousarray(picked).view(np.uint32).reshape(2 * count, 32)
    raise Fault("unsupported", f"ldmatrix shape {shape}: m8n8, m8n16 or m16n16")


def _expand(rows: npt.NDArray[np.uint8], source_format: str) -> npt.NDArray[np.uint8]:
    if source_format == "b4x16_p64":
        return unpack_4_bit(rows[:, :8])  # 0b0000abcd; CUTLASS shifts them to the middle itself
    if source_format == "b6x16_p32":
        return unpack_6_bit(rows)
    if source_format:
        raise Fault("unsupported", f"ldmatrix source format {source_format}")
    return rows


def stmatrix(
    shared: SharedMemory,
    addresses: npt.NDArray[np.integer[Any]],
    values: Registers,
    transpose: bool = False,
    shape: str = "m8n8",
) -> None:
    """stmatrix of uint32[count, 32]; shape "m8n8" (b16) or "m16n8" (b8, transposed)."""
    count = values.shape[0]
    _check_count(count, (1, 2, 4), f"stmatrix.{shape}")
    if shape == "m8n8":
        matrices = np.ascontiguousarray(values).view(np.uint16).reshape(count, 8, 8)
        if transpose:
            matrices = np.ascontiguousarray(matrices.transpose(0, 2, 1))
        rows = matrices.view(np.uint8).reshape(8 * count, 16)
    elif shape == "m16n8":
        t = np.arange(32)[:, None]
        j = np.arange(4)[None, :]
        rows = np.empty((count, 8, 16), np.uint8)
        source = np.ascontiguousarray(values).view(np.uint8).reshape(count, 32, 4)
        rows[:, 2 * (t % 4) + (j & 1), t // 4 + 8 * (j >> 1)] = source
        rows = rows.reshape(8 * count, 16)
    else:
        raise Fault("unsupported", f"stmatrix shape {shape}: m8n8 or m16n8")
    shared.store(addresses[: 8 * count], rows)


def movmatrix(value: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """movmatrix.sync.aligned.m8n8.trans.b16: transpose the fragment uint32[32]."""
    matrix = np.ascontiguousarray(value).view(np.uint16).reshape(8, 8)
    return np.ascontiguousarray(matrix.T).view(np.uint32).reshape(32)
