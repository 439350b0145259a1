"""Masks and fields by position and width: bmsk, szext, fns (PTX ISA, integer arithmetic)."""

from typing import Any

import numpy as np

from ...ptx.ast import Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes, select
from ..registry import instruction, runtime

_NONE = np.uint32(0xFFFF_FFFF)


def _ones_above(position: Any) -> Any:
    """uint32 with the bits from `position` (0..63) up set."""
    return (np.uint64(0xFFFF_FFFF) << position.astype(np.uint64)).astype(np.uint32)


@runtime
def bit_mask(position: Lanes, width: Lanes, clamp: bool) -> Any:
    """bmsk: `width` ones from `position`; both modulo 32, or clamped to 32."""
    if clamp:
        position, width = (np.minimum(x, np.uint32(32)) for x in (position, width))
    else:
        position, width = position & np.uint32(31), width & np.uint32(31)
    return _ones_above(position) & ~_ones_above(np.minimum(position + width, np.uint32(32)))


@instruction("bmsk", modifiers="clamp wrap")
def emit_bmsk(e: Emitter, i: Instruction) -> None:
    """bmsk.{clamp,wrap}.b32 d, position, width."""
    a, b = (e.src(x, "u32") for x in i.operands[1:3])
    e.dst(i.operands[0], "u32", f"bit_mask({a}, {b}, {i.has('clamp')})")


@runtime
def extend(value: Lanes, width: Lanes, clamp: bool, signed: bool) -> Any:
    """szext: the low `width` bits, extended; a width of 32 or more keeps all (clamp) or wraps."""
    bits = width & np.uint32(31)
    above = _ones_above(bits)
    if clamp:
        above = select(width >= 32, np.uint32(0), above)
    result = value & ~above
    if not signed:
        return result
    negative = (value >> ((bits - np.uint32(1)) & np.uint32(31))) & np.uint32(1) != 0
    return select(negative & (bits != 0), result | above, result)


@instruction("szext", modifiers="clamp wrap")
def emit_szext(e: Emitter, i: Instruction) -> None:
    """szext.{clamp,wrap}.{u32,s32} d, a, width."""
    a, b = (e.src(x, "u32") for x in i.operands[1:3])
    e.dst(i.operands[0], "u32", f"extend({a}, {b}, {i.has('clamp')}, {i.type == 's32'})")


@runtime
def find_nth_set(mask: Lanes, base: Lanes, offset: Lanes) -> Any:
    """fns: position of the |offset|-th set bit from `base` up or down;
    all ones if there is none.
    """
    result = np.full(mask.size, _NONE, np.uint32)
    for lane in range(mask.size):
        bits, start, steps = int(mask[lane]), int(base[lane]), int(offset[lane])
        if steps == 0:
            if start < 32 and bits >> start & 1:
                result[lane] = start
            continue
        order = range(start, 32) if steps > 0 else range(min(start, 31), -1, -1)
        positions = [at for at in order if bits >> at & 1]
        if len(positions) >= abs(steps):
            result[lane] = positions[abs(steps) - 1]
    return result


@instruction("fns", modifiers="")
def emit_fns(e: Emitter, i: Instruction) -> None:
    """fns.b32 d, mask, base, offset."""
    mask, base = (e.src(x, "u32") for x in i.operands[1:3])
    text = f"find_nth_set({mask}, {base}, {e.src(i.operands[3], 's32')})"
    e.dst(i.operands[0], "u32", text)
