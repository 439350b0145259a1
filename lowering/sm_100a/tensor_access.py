"""Loads and stores of fragments in tensor memory: `tcgen05.ld` and `.st` of the shape 32x32b."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import INT, i32

from ..context import Fragment, Lowering, TileRef
from ..layouts import PART_ELEMENTS, Layout, tensor_columns
from ..layouts.fragments import WORD_BITS

Value = Any


def wait_tensor_loads(registers: Sequence[Value]) -> list[Value]:
    """`tcgen05.wait::ld` that redefines what the loads before it wrote.

    `nvvm.tcgen05.wait` names no registers, so the backend is free to use loaded values before
    it; tying them to the wait is what forbids that.

    Args:
      registers: i32 values as the loads have defined them; the backend would copy values of another
        type, or regrouped ones, before the wait.

    Returns:
      The same values, to be used from here on.
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


def _shape() -> Any:
    return ir.Attribute.parse("#nvvm.tcgen05_ldst_shape<shape_32x32b>")


def _pointer(low: Lowering, tile: TileRef, column: int) -> Value:
    """The address of this warp's lanes of a tile, from element column `column` on."""
    bits = ws.element_bits(tile.kind.element)
    offset = tensor_columns(tile.first_column + column, bits)
    address = INT.add(INT.add(tile.address, low.active.lane_base), offset)
    return llvm.IntToPtrOp(ir.Type.parse("!llvm.ptr<6>"), address).result


def _parts(layout: Layout) -> list[tuple[int, int]]:
    """The first column and the width of each part of a row."""
    return [(number * PART_ELEMENTS, width) for number, width in enumerate(layout.part_widths)]


def load_tensor(low: Lowering, tile: TileRef, kind: ws.FragmentType, layout: Layout) -> Fragment:
    """Loads a tile with one row per thread; narrow elements stay packed in i32."""
    bits = ws.element_bits(tile.kind.element)
    parts = [(column, tensor_columns(width, bits)) for column, width in _parts(layout)]
    registers: list[Value] = []
    for column, words in parts:
        pointer = _pointer(low, tile, column)
        loaded = nvvm.Tcgen05LdOp(ir.VectorType.get([words], i32()), _shape(), pointer).result
        registers += [vector.ExtractOp(loaded, [], [i]).result for i in range(words)]
    registers = wait_tensor_loads(registers)
    vectors: list[Value] = []
    for _, words in parts:
        raw = ir.VectorType.get([words], i32())
        whole = vector.FromElementsOp(raw, registers[:words]).result
        del registers[:words]
        shown = ir.VectorType.get([words], tile.kind.element) if bits == WORD_BITS else raw
        vectors.append(vector.BitCastOp(shown, whole).result)
    return Fragment(kind, layout, tuple(vectors))


def store_tensor(low: Lowering, tile: TileRef, fragment: Fragment) -> None:
    """Writes a fragment with one row per thread to a tile."""
    for part, (column, _) in zip(fragment.parts, _parts(fragment.layout), strict=True):
        raw = part
        if part.type.element_type != i32():
            raw = vector.BitCastOp(ir.VectorType.get(part.type.shape, i32()), part).result
        nvvm.Tcgen05StOp(_shape(), _pointer(low, tile, column), raw)
