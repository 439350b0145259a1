"""Fragments to and from tensor memory, by `tcgen05.ld` and `tcgen05.st`.

A tile of 128 rows is accessed with the shape 32x32b: a thread has the row of its lane. A tile of 64
rows is accessed with 16x256b: a warp has 16 rows, laid out as the accumulator of `wgmma`, 8 columns
to 4 registers.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import INT, i32
from attn_mlir.dialect.targets.limits import HALF_ROWS

from ..layouts import PART_ELEMENTS, Layout, tensor_columns
from ..layouts.fragments import WORD_BITS
from ..state.handles import Fragment, TileRef
from ..state.lowering import Lowering
from .operands import accumulator_registers, from_accumulator_registers

Value = Any

# columns of one access to a tile of 64 rows; 64 of them fill 32 registers
HALF_WIDTHS = (64, 32, 16, 8)


def wait_tensor_loads(registers: Sequence[Value]) -> list[Value]:
    """`tcgen05.wait::ld` that redefines the registers which earlier loads wrote.

    `nvvm.tcgen05.wait` names no registers, so LLVM may use loaded values before it; tying them to
    the wait forbids that.

    Args:
      registers: i32 values as the loads define them; LLVM would copy values of another type, or
        regrouped ones, before the wait.

    Returns:
      The same values, to be used after the wait.
    """
    count = len(registers)
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")
    constraints = ",".join(["=r"] * count + [str(i) for i in range(count)])
    waited = llvm.InlineAsmOp(
        struct,
        list(registers),
        "tcgen05.wait::ld.sync.aligned;",
        constraints,
        has_side_effects=True,
    ).result
    return [
        llvm.ExtractValueOp(i32(), waited, ir.DenseI64ArrayAttr.get([i])).result
        for i in range(count)
    ]


def _shape(tile: TileRef) -> Any:
    name = "16x256b" if tile.kind.shape[0] == HALF_ROWS else "32x32b"
    return ir.Attribute.parse(f"#nvvm.tcgen05_ldst_shape<shape_{name}>")


def _pointer(low: Lowering, tile: TileRef, column: int) -> Value:
    """Address of this warp's lanes of a tile, `column` elements in."""
    address = INT.add(INT.add(tile.address, low.active.lane_base), tile.tensor_offset(column))
    return llvm.IntToPtrOp(ir.Type.parse("!llvm.ptr<6>"), address).result


def _parts(layout: Layout) -> list[tuple[int, int]]:
    """The first column and the width of each part of a row."""
    return [(number * PART_ELEMENTS, width) for number, width in enumerate(layout.part_widths)]


def _loaded(low: Lowering, tile: TileRef, parts: Sequence[tuple[int, int]]) -> list[Value]:
    """The registers that tcgen05.ld fills, for each part (first column, number of registers)."""
    registers: list[Value] = []
    for column, words in parts:
        raw = ir.VectorType.get([words], i32())
        loaded = nvvm.Tcgen05LdOp(raw, _shape(tile), _pointer(low, tile, column)).result
        registers += [vector.ExtractOp(loaded, [], [i]).result for i in range(words)]
    return wait_tensor_loads(registers)


def load_tensor(low: Lowering, tile: TileRef, kind: ws.FragmentType, layout: Layout) -> Fragment:
    """A tile as a fragment; narrow elements stay packed in i32."""
    if tile.kind.shape[0] == HALF_ROWS:
        return _load_half(low, tile, kind, layout)
    bits = ws.element_bits(tile.kind.element)
    parts = [(column, tensor_columns(width, bits)) for column, width in _parts(layout)]
    registers = _loaded(low, tile, parts)
    vectors: list[Value] = []
    for _, words in parts:
        raw = ir.VectorType.get([words], i32())
        words_vector = vector.FromElementsOp(raw, registers[:words]).result
        del registers[:words]
        element_type = ir.VectorType.get([words], tile.kind.element) if bits == WORD_BITS else raw
        vectors.append(vector.BitCastOp(element_type, words_vector).result)
    return Fragment(kind, layout, tuple(vectors))


def store_tensor(low: Lowering, tile: TileRef, fragment: Fragment) -> None:
    """Writes a fragment to a tile."""
    if tile.kind.shape[0] == HALF_ROWS:
        _store_half(low, tile, fragment)
        return
    for part, (column, _) in zip(fragment.parts, _parts(fragment.layout), strict=True):
        raw = part
        if part.type.element_type != i32():
            raw = vector.BitCastOp(ir.VectorType.get(part.type.shape, i32()), part).result
        nvvm.Tcgen05StOp(_shape(tile), _pointer(low, tile, column), raw)


def _half_accesses(columns: int) -> Iterator[tuple[int, int]]:
    """First column and registers of each access to a tile of 64 rows."""
    first = 0
    for width in HALF_WIDTHS:
        while columns - first >= width:
            yield first, width // 2
            first += width


def _load_half(low: Lowering, tile: TileRef, kind: ws.FragmentType, layout: Layout) -> Fragment:
    f32 = ir.F32Type.get()
    registers = _loaded(low, tile, list(_half_accesses(kind.shape[1])))
    registers = [arith.BitcastOp(f32, register).result for register in registers]
    return from_accumulator_registers(kind, layout, [registers])


def _store_half(low: Lowering, tile: TileRef, fragment: Fragment) -> None:
    (registers,) = accumulator_registers(fragment)
    words = [arith.BitcastOp(i32(), register).result for register in registers]
    for column, count in _half_accesses(fragment.kind.shape[1]):
        raw = vector.FromElementsOp(ir.VectorType.get([count], i32()), words[:count]).result
        del words[:count]
        nvvm.Tcgen05StOp(_shape(tile), _pointer(low, tile, column), raw)
