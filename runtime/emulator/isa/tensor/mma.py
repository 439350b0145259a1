"""mma.sync, ldmatrix, stmatrix and movmatrix: matrix fragments of one warp (spec-ptx 10)."""

from typing import Any

import numpy as np

from ...core.state import SHARED_WINDOW, WarpContext
from ...machine import fragments, warpmma
from ...ptx.ast import Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import WARP_LANES, Lanes
from ..memory.accesses import OFFSET_MASK, observe_access
from ..registry import instruction, runtime
from ..warp.collectives import emit_gather

_MMA_SHAPES = "m16n8k4 m16n8k8 m16n8k16 m16n8k32"
_TYPES = "f16 bf16 tf32 f32 s32 e4m3 e5m2 u8 s8"


@runtime
def warp_mma(
    s: WarpContext,
    form: tuple[str, str, str, str, str, bool],
    counts: tuple[int, int],
    *registers: Lanes,
) -> Any:
    """mma.sync: D's registers.

    Args:
      form: shape, types of D, A, B and C, .satfinite.
      counts: how many of `registers` are A's and B's; the rest are C's.
    """
    shape, d, a, b, c, saturate = form
    first, second = counts[0], counts[0] + counts[1]
    s.launch.count("mma")
    return warpmma.mma_sync(
        shape,
        d,
        a,
        b,
        c,
        np.array(registers[:first]),
        np.array(registers[first:second]),
        np.array(registers[second:]),
        saturate=saturate,
        numeric=s.launch.tensor_core.numeric,
    )


@instruction(
    "mma",
    modifiers=f"{_MMA_SHAPES} row col satfinite kind::f8f6f4 {_TYPES}",
    needs="sync aligned",
    boundary=True,
)
def emit_mma_sync(e: Emitter, i: Instruction) -> None:
    """mma.sync.aligned.SHAPE.row.col{.satfinite}.D.A.B.C d, a, b, c."""
    if tuple(part for part in i.parts if part in ("row", "col")) != ("row", "col"):
        raise e.error("mma.sync here is row.col only")
    emit_gather(e, None)
    shape = e.modifier(i, _MMA_SHAPES)
    counts = warpmma.mma_registers(shape, *i.parts[-4:])
    form = (shape, *i.parts[-4:], i.has("satfinite"))
    d, a, b, c = (e.words(x, count) for x, count in zip(i.operands, counts, strict=True))
    registers = ", ".join(e.src(item, "u32") for item in (*a, *b, *c))
    with e.effect():
        e.rows(d, "u32", f"warp_mma(s, {form!r}, {counts[1:3]}, {registers})")


def _addresses(address: Lanes, generic: bool) -> Any:
    if generic:
        address = address - np.uint64(SHARED_WINDOW)
    return address & address.dtype.type(OFFSET_MASK)


def _observe_rows(s: WarpContext, offsets: Any, rows: int, row_bytes: int, is_write: bool) -> None:
    """Reports accesses to the rows of a matrix, each by the lane that passes its address."""
    if not s.launch.is_watched:
        return
    lanes, first = np.arange(rows), 0
    for width in (16, 8, 4):
        if row_bytes & width:
            observe_access(s, s.cta.shared, lanes, offsets[:rows] + first, width, is_write)
            first += width


_ROW_BYTES = {
    "": 16,
    "b4x16_p64": 8,
    "b6x16_p32": 12,
}  # bytes that ldmatrix reads; the rest is padding


@runtime
def matrix_load(
    s: WarpContext, form: tuple[int, bool, str, str], address: Lanes, generic: bool
) -> Any:
    """ldmatrix; form is (count, .trans, shape, source format)."""
    count, _, shape, source = form
    offsets = _addresses(address, generic)
    rows = min(WARP_LANES, count * (16 if shape == "m16n16" else 8))
    _observe_rows(s, offsets, rows, _ROW_BYTES[source], False)
    return fragments.ldmatrix(s.cta.shared, offsets, *form)


@runtime
def matrix_store(
    s: WarpContext, form: tuple[bool, str], address: Lanes, generic: bool, *values: Lanes
) -> None:
    """stmatrix; form is (.trans, shape)."""
    offsets = _addresses(address, generic)
    _observe_rows(s, offsets, 8 * len(values), 16, True)
    fragments.stmatrix(s.cta.shared, offsets, np.array(values), *form)


_MATRIX_SHAPES = "m8n8 m8n16 m16n16 m16n8"
_MATRIX_MODIFIERS = f"{_MATRIX_SHAPES} x1 x2 x4 trans shared shared::cta b8x16 b4x16_p64 b6x16_p32"


def _matrix_count(e: Emitter, i: Instruction) -> int:
    """How many matrices ldmatrix or stmatrix moves."""
    count = next((int(part[1:]) for part in i.parts if part in ("x1", "x2", "x4")), 0)
    if not count:
        raise e.error(f"'{i.opcode}' needs .x1, .x2 or .x4")
    return count


@instruction("ldmatrix", modifiers=_MATRIX_MODIFIERS, needs="sync aligned", boundary=True)
def emit_ldmatrix(e: Emitter, i: Instruction) -> None:
    """ldmatrix.sync.aligned.SHAPE.xN{.trans}{.shared}.TYPE r, [a]."""
    emit_gather(e, None)
    count = _matrix_count(e, i)
    shape = e.modifier(i, _MATRIX_SHAPES)
    source = i.first_of(("b4x16_p64", "b6x16_p32"))
    generic = not i.has("shared", "shared::cta")
    form = (count, i.has("trans"), shape, source)
    targets = e.words(i.operands[0], 2 * count if shape == "m16n16" else count)
    address = e.address(i.operands[1], generic)
    with e.effect():
        e.rows(targets, "u32", f"matrix_load(s, {form!r}, {address}, {generic})")


@instruction("stmatrix", modifiers=_MATRIX_MODIFIERS, needs="sync aligned", boundary=True)
def emit_stmatrix(e: Emitter, i: Instruction) -> None:
    """stmatrix.sync.aligned.SHAPE.xN{.trans}{.shared}.TYPE [a], r."""
    emit_gather(e, None)
    generic = not i.has("shared", "shared::cta")
    address = e.address(i.operands[0], generic)
    items = e.words(i.operands[1], _matrix_count(e, i))
    values = ", ".join(e.src(item, "u32") for item in items)
    form = (i.has("trans"), e.modifier(i, _MATRIX_SHAPES))
    with e.effect():
        e.line(f"matrix_store(s, {form!r}, {address}, {generic}, {values})")


@runtime
def matrix_transpose(value: Lanes) -> Any:
    """movmatrix."""
    return fragments.movmatrix(value)


@instruction("movmatrix", modifiers="m8n8 trans", needs="sync aligned", boundary=True)
def emit_movmatrix(e: Emitter, i: Instruction) -> None:
    """movmatrix.sync.aligned.m8n8.trans.b16 d, a."""
    emit_gather(e, None)
    e.dst(i.operands[0], "u32", f"matrix_transpose({e.src(i.operands[1], 'u32')})")
