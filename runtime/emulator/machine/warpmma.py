"""Matrix products with accumulators in registers: mma.sync and wgmma (spec-ptx 9 and 10).

Numeric modes are those of `tensorcore`. Formats are named as in `formats`, plus "u8" and "s8";
accumulators are "f32", "f16" or "s32".
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import numerics
from .faults import Fault
from .formats import decode
from .fragments import (
    FragmentMap,
    Registers,
    a_fragment,
    accumulator_elements,
    accumulator_matrix,
    b_fragment,
    join_registers,
    register_order,
    split_registers,
)
from .memory import SharedMemory
from .operands import F32, smem_operand

WGMMA_ROWS = 64  # M of every wgmma; spec-ptx 9
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "u8": 8, "s8": 8}
_STORAGE = {8: np.uint8, 16: np.uint16, 32: np.uint32}
_K_BYTES = 32  # K of one wgmma or full-width mma.sync, in bytes


def _element_bits(element: str) -> int:
    if element not in _BITS:
        raise Fault("unsupported", f"matrix operand of type {element}")
    return _BITS[element]


def _decode_elements(codes: npt.NDArray[np.unsignedinteger[Any]], element: str) -> F32:
    if element == "u8":
        return codes.astype(np.float32)
    if element == "s8":
        return codes.astype(np.uint8).view(np.int8).astype(np.float32)
    return decode(element, codes)


def _gather(registers: Registers, element: str, fmap: FragmentMap, rows: int, columns: int) -> F32:
    """Matrix values [rows, columns] from registers uint32[r, 32]."""
    bits = _element_bits(element)
    codes = np.ascontiguousarray(registers).view(_STORAGE[bits]).reshape(-1)
    return _decode_elements(codes.take(register_order(fmap, bits, rows, columns)), element)


def _read_accumulator(registers: Registers, kind: str) -> Registers:
    """Accumulator words [.., 16, n] (f16: bits in the low half) from registers [.., r, 32]."""
    elements = split_registers(registers, 16 if kind == "f16" else 32)
    return accumulator_matrix(elements).astype(np.uint32, copy=False)


def _write_accumulator(matrices: Registers, kind: str) -> Registers:
    elements = accumulator_elements(matrices)
    return join_registers(elements.astype(np.uint16)) if kind == "f16" else elements


def multiply_accumulate(
    a: F32,
    b: F32,
    c: Registers,
    *,
    a_format: str,
    b_format: str,
    c_format: str,
    d_format: str,
    saturate: bool = False,
    fused: bool = False,
    align_bits: int = numerics.ALIGN_BITS,
    d_fraction_bits: int = 23,
) -> Registers:
    """D words [M, N] = A [M, K] times B [N, K] transposed, plus C words [M, N].

    Words hold float32 bits, float16 bits in the low half, or int32.
    """
    if d_format == "s32":
        total = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.int64)
        total += c.view(np.int32)
        if saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(np.int32).view(np.uint32)
    c_values = decode(c_format, c)
    if fused:
        exact = numerics.fused_dot(
            a,
            b,
            c_values,
            a_format=a_format,
            b_format=b_format,
            c_format=c_format,
            align_bits=align_bits,
        )
        if d_format == "f16":
            return numerics.to_f16_bits(exact)
        return numerics.to_f32_bits(exact, d_fraction_bits)
    with np.errstate(over="ignore", invalid="ignore"):
        product = a @ b.T + c_values
        if d_format == "f16":
            return product.astype(np.float16).view(np.uint16).astype(np.uint32)
    return product.view(np.uint32)


def _fp8_in_f16(a: F32, b: F32, c: Registers, d_format: str) -> Registers:
    """mma.sync of 8-bit floats as sm_90 and sm_100 do it; words [16, 8].

    ptxas 13.5 expands it for both: operands become f16, bytes 0 and 1 of every register go through
    one m16n8k16 product that starts from zero, bytes 2 and 3 through a second, and C is added last,
    rounded to nearest.
    """
    total = np.zeros_like(c)
    for first in (0, 2):
        k = [i for i in range(a.shape[1]) if i % 4 // 2 == first // 2]
        total = multiply_accumulate(
            a[:, k],
            b[:, k],
            total,
            a_format="f16",
            b_format="f16",
            c_format=d_format,
            d_format=d_format,
            fused=True,
        )
    with np.errstate(over="ignore", invalid="ignore"):
        if d_format == "f16":
            added = decode("f16", total).astype(np.float16) + decode("f16", c).astype(np.float16)
            bits = added.view(np.uint16).astype(np.uint32)
            return np.where(np.isnan(added), np.uint32(numerics.CANONICAL_NAN_F16), bits)
        added = decode("f32", total) + decode("f32", c)
    return np.where(np.isnan(added), np.uint32(numerics.CANONICAL_NAN_F32), added.view(np.uint32))


def mma_registers(
    shape: str, d_format: str, a_format: str, b_format: str, c_format: str
) -> tuple[int, int, int, int]:
    """32-bit registers per thread of D, A, B and C of an mma.sync.

    Raises:
      Fault: "unsupported" for another shape or type than `mma_sync` takes.
    """
    a_bits, b_bits = _element_bits(a_format), _element_bits(b_format)
    shapes = {32: ("m16n8k4", "m16n8k8"), 16: ("m16n8k8", "m16n8k16"), 8: ("m16n8k16", "m16n8k32")}
    if a_bits != b_bits or shape not in shapes[a_bits]:
        allowed = ", ".join(shapes[a_bits])
        raise Fault("unsupported", f"mma.sync {shape} of {a_format} by {b_format}: {allowed}")
    for accumulator in (d_format, c_format):
        if accumulator not in ("f16", "f32", "s32"):
            raise Fault("unsupported", f"mma.sync into {accumulator}: f16, f32 or s32")
    k = int(shape.removeprefix("m16n8k"))
    d, c = (2 if name == "f16" else 4 for name in (d_format, c_format))
    return d, 16 * k * a_bits // 1024, 8 * k * b_bits // 1024, c


def mma_sync(
    shape: str,
    d_format: str,
    a_format: str,
    b_format: str,
    c_format: str,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    saturate: bool = False,
    numeric: str = "float32",
) -> Registers:
    """mma.sync.aligned.SHAPE.row.col: D's registers uint32[r, 32].

    Args:
      shape: "m16n8k16" (16- or 8-bit), "m16n8k8" (16-bit or tf32), "m16n8k4" (tf32) or "m16n8k32"
        (8-bit).
      a, b, c: uint32[registers, 32].

    Raises:
      Fault: "unsupported" for another shape or type.
    """
    mma_registers(shape, d_format, a_format, b_format, c_format)
    k = int(shape.removeprefix("m16n8k"))
    bits = _element_bits(a_format)
    left = _gather(a, a_format, a_fragment(k, bits), 16, k)
    right = _gather(b, b_format, b_fragment(k, bits), 8, k)
    words = _read_accumulator(c, c_format)
    if numeric == "fused" and a_format in ("e4m3", "e5m2"):
        return _write_accumulator(_fp8_in_f16(left, right, words, d_format), d_format)
    d = multiply_accumulate(
        left,
        right,
        words,
        a_format=a_format,
        b_format=b_format,
        c_format=c_format,
        d_format=d_format,
        saturate=saturate,
        fused=numeric == "fused",
    )
    return _write_accumulator(d, d_format)


@dataclass(frozen=True, slots=True)
class Wgmma:
    """wgmma.mma_async.m64n<n>: types and immediates.

    Attributes:
      n: columns. d_format: "f32", "f16" or "s32".
      negate_a, negate_b: the immediate scale is -1. transpose_a, transpose_b: MN-major.
      saturate: .satfinite of the integer forms.
    """

    n: int
    d_format: str
    a_format: str
    b_format: str
    negate_a: bool = False
    negate_b: bool = False
    transpose_a: bool = False
    transpose_b: bool = False
    saturate: bool = False

    @property
    def k(self) -> int:
        """Elements of K per instruction: 32 bytes."""
        return 8 * _K_BYTES // _element_bits(self.a_format)

    @property
    def d_registers(self) -> int:
        """Accumulator registers per thread."""
        return self.n // 4 if self.d_format == "f16" else self.n // 2


def check_wgmma(op: Wgmma, a_in_registers: bool) -> None:
    """Fault unless shape, types and transposes go together."""
    if op.d_format not in ("f16", "f32", "s32"):
        raise Fault("unsupported", f"wgmma into {op.d_format}: f16, f32 or s32")
    if _element_bits(op.a_format) != _element_bits(op.b_format):
        raise Fault("unsupported", f"wgmma of {op.a_format} by {op.b_format}")
    integer = op.a_format in ("u8", "s8")
    allowed = (8, 16, 24, *range(32, 257, 16)) if integer else tuple(range(8, 257, 8))
    if op.n not in allowed:
        raise Fault("descriptor", f"wgmma n{op.n}: {', '.join(map(str, allowed))} allowed")
    transposed = op.transpose_a or op.transpose_b
    if transposed and _element_bits(op.a_format) != 16:
        raise Fault("descriptor", f"wgmma on {op.a_format} is K-major only")
    if op.transpose_a and a_in_registers:
        raise Fault("descriptor", "wgmma with A in registers cannot transpose A")


def wgmma(
    shared: SharedMemory,
    op: Wgmma,
    a: int | Registers,
    b: int,
    d: Registers | None,
    scale_d: bool,
    *,
    numeric: str = "float32",
) -> Registers:
    """wgmma.mma_async of a warpgroup: the new accumulator uint32[4, registers, 32].

    Args:
      shared: memory of the CTA that both descriptors address.
      a: shared-memory descriptor (sm_90 form), or registers uint32[4, 4, 32] (warp, register,
        lane).
      b: descriptor. d: accumulator in, same shape as the result.
      scale_d: False ignores `d`, which may be None then.
    """
    check_wgmma(op, not isinstance(a, int))
    bits = _element_bits(op.a_format)
    if isinstance(a, int):
        left = smem_operand(
            shared,
            (a,),
            architecture="sm_90",
            element=op.a_format,
            mn_major=op.transpose_a,
            mn_count=WGMMA_ROWS,
            k_bytes=_K_BYTES,
            what="operand A",
            is_by_warp=True,
        )
    else:
        fmap = a_fragment(op.k, bits)
        left = np.concatenate([_gather(part, op.a_format, fmap, 16, op.k) for part in a])
    right = smem_operand(
        shared,
        (b,),
        architecture="sm_90",
        element=op.b_format,
        mn_major=op.transpose_b,
        mn_count=op.n,
        k_bytes=_K_BYTES,
        what="operand B",
    )
    if op.negate_a != op.negate_b:
        left = -left
    if scale_d and d is not None:
        c = _read_accumulator(d, op.d_format).reshape(WGMMA_ROWS, op.n)
    else:
        c = np.zeros((WGMMA_ROWS, op.n), np.uint32)
    is_fp8 = op.a_format in ("e4m3", "e5m2")
    result = multiply_accumulate(
        left,
        right,
        c,
        a_format=op.a_format,
        b_format=op.b_format,
        c_format=op.d_format,
        d_format=op.d_format,
        saturate=op.saturate,
        fused=numeric == "fused",
        align_bits=numerics.ALIGN_BITS_WGMMA_FP8 if is_fp8 else numerics.ALIGN_BITS,
        d_fraction_bits=13 if is_fp8 else 23,
    )
    return _write_accumulator(result.reshape(4, 16, op.n), op.d_format)
