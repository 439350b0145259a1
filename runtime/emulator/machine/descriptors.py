"""Shared-memory matrix descriptors and where each element they describe lives (spec-ptx 2.4, 2.5).

All operands move in units of 16 bytes: every swizzle permutes whole units, so an operand is an
array of unit indices into `SharedMemory.units`.

Measured on an H200 (sm_90, driver 580.159, 2026-11; redo with the tests
test/emulator/test_hopper_*.py):
  - base offset b: the row phase of the swizzle is (address >> 7) - b, wherever the tile starts. So
    with 0 the bits of the absolute address count, and a tile may start in any row of the pattern.
  - the leading offset of a swizzled K-major operand is not used.
  - without swizzle, a leading offset of 0 is 0.

Ambiguities resolved here:
  - spec 2.4 does not say what reserved bits do: a non-zero reserved bit faults.
  - spec 2.5 and 16.1, base offset other than 0 on sm_100: as on sm_90.
  - spec 2.5, LBO of a K-major operand without swizzle on sm_100: max(LBO, 16).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from .faults import Fault
from .swizzle import SWIZZLES, xor_addresses

Architecture = Literal["sm_100", "sm_90"]
Units = npt.NDArray[np.intp]

# encoding -> swizzle name; bits 61:64 on sm_100, 62:64 on sm_90
_SWIZZLE_SM100 = {0: "none", 1: "128B_atom32B", 2: "128B", 4: "64B", 6: "32B"}
_SWIZZLE_SM90 = {0: "none", 1: "128B", 2: "64B", 3: "32B"}


@dataclass(frozen=True)
class SmemDescriptor:
    """A decoded descriptor; all quantities in bytes.

    Attributes:
      start: offset of the first element in the CTA's shared window, 18 bits.
      leading: leading-dimension byte offset (LBO).
      stride: stride-dimension byte offset (SBO).
      swizzle: a key of `SWIZZLES`.
      base_offset: row phase at which the swizzle pattern starts, 0..7.
    """

    start: int
    leading: int
    stride: int
    swizzle: str
    base_offset: int = 0


def _bits(value: int, low: int, high: int) -> int:
    return (value >> low) & ((1 << (high - low)) - 1)


def _reject(descriptor: int, why: str) -> Fault:
    return Fault("descriptor", f"shared-memory descriptor 0x{descriptor:016x}: {why}")


@lru_cache(maxsize=4096)
def decode_smem(descriptor: int, architecture: Architecture = "sm_100") -> SmemDescriptor:
    """Decode a 64-bit shared-memory matrix descriptor.

    Raises:
      Fault: "descriptor" for reserved bits, a wrong constant, or an unknown swizzle;
        "unsupported" for an absolute leading dimension.
    """
    sm100 = architecture == "sm_100"
    reserved = [(14, 16), (30, 32)] + ([(53, 61)] if sm100 else [(46, 49), (52, 62)])
    for low, high in reserved:
        if _bits(descriptor, low, high):
            raise _reject(descriptor, f"bits {low}..{high - 1} must be 0 on {architecture}")
    if sm100:
        if _bits(descriptor, 46, 49) != 1:
            raise _reject(descriptor, f"bits 46..48 must be 1, got {_bits(descriptor, 46, 49)}")
        if _bits(descriptor, 52, 53):
            raise Fault("unsupported", "absolute leading dimension (bit 52) is not on sm_100a")
        names, code = _SWIZZLE_SM100, _bits(descriptor, 61, 64)
    else:
        names, code = _SWIZZLE_SM90, _bits(descriptor, 62, 64)
    if code not in names:
        raise _reject(descriptor, f"swizzle code {code} is not one of {sorted(names)}")
    start = _bits(descriptor, 0, 14) << 4
    mode = SWIZZLES[names[code]]
    if start % (1 << mode.shift):
        raise _reject(
            descriptor,
            f"start 0x{start:x} must be {1 << mode.shift}-byte aligned with swizzle {mode.name}",
        )
    return SmemDescriptor(
        start=start,
        leading=_bits(descriptor, 16, 30) << 4,
        stride=_bits(descriptor, 32, 46) << 4,
        swizzle=names[code],
        base_offset=_bits(descriptor, 49, 52),
    )


def _units_at(desc: SmemDescriptor, linear: npt.NDArray[np.int64]) -> Units:
    """Unit indices of linear addresses: the swizzle, its pattern shifted by the base offset."""
    shift = desc.base_offset << 7
    return ((xor_addresses(linear - shift, desc.swizzle) + shift) >> 4).astype(np.intp)


def k_major_units(
    desc: SmemDescriptor, row_count: int, k_bytes: int, architecture: Architecture = "sm_100"
) -> Units:
    """Unit indices [row_count, k_bytes / 16]: row r, 16-byte chunk c of its K extent."""
    pitch = SWIZZLES[desc.swizzle].span_bytes
    smallest = 16 if architecture == "sm_100" else 0
    chunk_step = 16 if desc.swizzle != "none" else max(desc.leading, smallest)
    rows = np.arange(row_count)[:, None]
    chunks = np.arange(k_bytes // 16)[None, :]
    linear = desc.start + rows % 8 * pitch + rows // 8 * desc.stride + chunks * chunk_step
    return _units_at(desc, linear)


def mn_major_units(desc: SmemDescriptor, mn_bytes: int, k_count: int) -> Units:
    """Unit indices [k_count, mn_bytes / 16]: K index k, 16-byte chunk of the M or N extent."""
    k = np.arange(k_count)[:, None]
    x = np.arange(mn_bytes // 16)[None, :] * 16
    pitch = SWIZZLES[desc.swizzle].span_bytes
    if desc.swizzle == "none":
        linear = desc.start + k % 8 * 16 + k // 8 * desc.leading + x // 16 * desc.stride
    elif desc.swizzle == "128B_atom32B":
        linear = desc.start + k % 4 * 128 + k // 4 * desc.stride + x // 128 * desc.leading + x % 128
    else:
        linear = (
            desc.start
            + k % 8 * pitch
            + k // 8 * desc.stride
            + x // pitch * desc.leading
            + x % pitch
        )
    return _units_at(desc, linear)


@dataclass(frozen=True, eq=False)
class Gather:
    """Unit indices of one operand, and their range for the bounds check.

    Attributes:
      units: [rows, chunks]; rows are M or N (K-major) or K (MN-major).
      low, high: smallest index, and one past the largest.
    """

    units: Units
    low: int
    high: int


@lru_cache(maxsize=2048)
def operand_gather(
    descriptors: tuple[int, ...],
    architecture: Architecture,
    mn_major: bool,
    mn_count: int,
    k_count: int,
    element_bytes: int,
) -> Gather:
    """Where an operand's elements are, for K-steps that follow one another.

    Args:
      descriptors: one per K-step; the steps are concatenated along K.
      mn_major: True if M (or N) is the contiguous dimension ("transposed").
      mn_count: rows of A, or columns of B, held by this CTA.
      k_count: elements of K per step.
      element_bytes: bytes of an element's container in shared memory.
    """
    parts: list[Units] = []
    for raw in descriptors:
        desc = decode_smem(raw, architecture)
        if mn_major:
            if (desc.swizzle == "128B_atom32B") != (element_bytes == 4):
                raise _reject(
                    raw,
                    f"MN-major operands of {element_bytes}-byte elements cannot use swizzle "
                    f"{desc.swizzle}: 32-byte atoms are for 4-byte elements, and those need them",
                )
            parts.append(mn_major_units(desc, mn_count * element_bytes, k_count))
        else:
            parts.append(k_major_units(desc, mn_count, k_count * element_bytes, architecture))
    units = np.ascontiguousarray(np.concatenate(parts, axis=0 if mn_major else 1))
    return Gather(units, int(units.min()), int(units.max()) + 1)
