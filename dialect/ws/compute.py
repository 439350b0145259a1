"""Operations that compute on the elements of fragments, each by itself."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I1, I32, Pure, ext, ir

from .dialect import WS, FragmentType, fail

SCOPES = ("warp", "group")  # of threads
WORD_BITS = 32  # columns per word of `ws.keep`'s bits


class YieldOp(WS.Operation, name="yield", traits=[ir.IsTerminatorTrait, Pure]):
    """Ends the region of `ws.map` with the element's value, of `ws.copy_rows` with the row's
    number.

    Memory effects: none. Hardware: any.

    Example:
      %y = "ws.map"(%x) ({
      ^bb0(%e: f32, %row: i32):
        "ws.yield"(%e) : (f32) -> ()
      }) {operandSegmentSizes = array<i32: 1>}
        : (!ws.frag<vector<128xf32>>) -> !ws.frag<vector<128xf32>>
    """

    value: ext.Operand[Any]


IN_TURN = "ws.in_turn"  # a hint


class MapOp(WS.Operation, name="map"):
    """Computes a fragment element by element from fragments of one shape.

    The region's block receives one element per operand, then the element's row and column in the
    fragment as i32 (row only for a fragment of rank 1). It may use values defined outside.

    With the attribute `ws.in_turn` a thread computes so many elements at a time, none before its
    inputs are there: for bodies whose values would take more registers than a role has.

    Operands:
      inputs: fragments of one shape.

    Memory effects: those of its region. Hardware: any.

    Example:
      %y = "ws.map"(%a, %b) ({
      ^bb0(%x: f32, %y: f32, %row: i32, %column: i32):
        %sum = arith.addf %x, %y : f32
        "ws.yield"(%sum) : (f32) -> ()
      }) {operandSegmentSizes = array<i32: 2>}
        : (!ws.frag<vector<128x64xf32>>, !ws.frag<vector<128x64xf32>>)
          -> !ws.frag<vector<128x64xf32>>
    """

    inputs: Sequence[ext.Operand[FragmentType]]
    fragment: ext.Result[FragmentType]
    body: ext.Region

    @property
    def in_turn(self) -> int:
        """How many elements are computed at a time, 0 for no matter how many."""
        attributes = self.operation.attributes
        return ir.IntegerAttr(attributes[IN_TURN]).value if IN_TURN in attributes else 0

    @staticmethod
    def verify_region_invariants(op: "MapOp") -> bool:
        """Checks that shapes agree, and that block arguments and yield fit the element types."""
        result = FragmentType(op.fragment.type)
        expected = [str(FragmentType(value.type).element) for value in op.inputs]
        for value in op.inputs:
            if FragmentType(value.type).shape != result.shape:
                return fail(
                    op, f"expects inputs of shape {result.shape}, got {FragmentType(value.type)}"
                )
        expected += ["i32"] * len(result.shape)
        if len(op.body.blocks) != 1:
            return fail(op, f"expects one block, got {len(op.body.blocks)}")
        block = op.body.blocks[0]
        got = [str(argument.type) for argument in block.arguments]
        if got != expected:
            return fail(op, f"expects block arguments {expected}, got {got}")
        *_, last = block.operations
        if not isinstance(last, YieldOp):
            return fail(op, "expects ws.yield at the end of its region")
        if last.value.type != result.element:
            return fail(op, f"expects to yield {result.element}, got {last.value.type}")
        return True


class ElementOp(WS.Operation, name="element", traits=[Pure]):
    """Reads one element of a tensor argument; allowed in element-wise regions.

    A coordinate outside the tensor is clamped, so that regions may be evaluated for elements that
    the mask hides.

    Operands:
      source: tensor argument.
      coords: i32 coordinates, one per tensor dimension.

    Results:
      value: of the element type; an `si8` or `ui8` is read as `i8`, and so on.

    Memory effects: none, as inputs of a kernel do not change. Hardware: any.

    Example:
      %bias = "ws.element"(%tensor, %head, %row) {operandSegmentSizes = array<i32: 1, 2>}
        : (memref<16x?xf32>, i32, i32) -> f32
    """

    source: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    value: ext.Result[Any]

    def verify_invariants(self) -> bool:
        """Checks the number of coordinates, and that the result has the element type without
        sign.
        """
        kind = self.source.type
        if not isinstance(kind, ir.MemRefType):
            return fail(self, f"expects a memref, got {kind}")
        if len(self.coords) != kind.rank:
            return fail(self, f"expects {kind.rank} coordinates, got {len(self.coords)}")
        if self.value.type != signless(kind.element_type):
            expected = signless(kind.element_type)
            return fail(self, f"expects a result of {expected}, got {self.value.type}")
        return True


def signless(kind: Any) -> Any:
    """An element type for registers: integers become signless."""
    signs = ("si", "ui")
    return ir.IntegerType.get_signless(kind.width) if str(kind).startswith(signs) else kind


class FillOp(WS.Operation, name="fill", traits=[Pure]):
    """A fragment with the same value in every element.

    Operands:
      value: of the element type.

    Memory effects: none. Hardware: any.

    Example:
      %zeros = "ws.fill"(%zero) : (f32) -> !ws.frag<vector<128x64xf32>>
    """

    value: ext.Operand[Any]
    fragment: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "FillOp") -> bool:
        """Checks that the value has the element type."""
        element = FragmentType(op.fragment.type).element
        if op.value.type != element:
            return fail(op, f"expects a value of {element}, got {op.value.type}")
        return True


class AnyOp(WS.Operation, name="any"):
    """Whether a condition holds anywhere in this warp, or in its group; the same in all the
    threads.

    Operands:
      conditions: [R] or [R, C], i1.

    Attributes:
      scope (optional): `warp`, where it is absent, or `group`.

    Memory effects: none, but the threads of the warp, or of the group, have to meet. Hardware: any.

    Example:
      %some = "ws.any"(%moved) : (!ws.frag<vector<128xi1>>) -> i1
      %all = "ws.any"(%moves) {scope = "group"} : (!ws.frag<vector<8x128xi1>>) -> i1
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({"scope": ir.StringAttr})

    conditions: ext.Operand[FragmentType]
    holds: ext.Result[I1] = ext.infer_result()

    @staticmethod
    def verify_invariants(op: "AnyOp") -> bool:
        """Elements of i1, and a known scope."""
        kind = FragmentType(op.conditions.type)
        if str(kind.element) != "i1":
            return fail(op, f"expects conditions of i1, got {kind}")
        if op.scope not in SCOPES:
            return fail(op, f"expects scope of {', '.join(SCOPES)}, got {op.scope}")
        return True

    @property
    def scope(self) -> str:
        """The threads whose conditions count: `warp` or `group`."""
        attributes = self.operation.attributes
        return ir.StringAttr(attributes["scope"]).value if "scope" in attributes else SCOPES[0]


class BitsOp(WS.Operation, name="bits"):
    """The truth values of 32 rows each as a word: bit i of word w is that of row 32 w + i.

    Operands:
      rows: [R], i1, one row per thread of the group.

    Results:
      words: [R / 32], i32, each the same in all threads of a warp.

    Memory effects: none, but the threads of a warp have to meet. Hardware: any.

    Example:
      %words = "ws.bits"(%valid) : (!ws.frag<vector<64xi1>>) -> !ws.frag<vector<2xi32>>
    """

    rows: ext.Operand[FragmentType]
    words: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "BitsOp") -> bool:
        """One i1 per row, and a word for 32 of them."""
        rows, words = FragmentType(op.rows.type), FragmentType(op.words.type)
        if len(rows.shape) != 1 or str(rows.element) != "i1" or rows.shape[0] % WORD_BITS:
            return fail(op, f"expects one i1 per row, rows in {WORD_BITS}s, got {rows}")
        if (words.shape, str(words.element)) != ([rows.shape[0] // WORD_BITS], "i32"):
            return fail(op, f"expects an i32 per {WORD_BITS} rows, got {words}")
        return True


class Exp2Op(WS.Operation, name="exp2", traits=[Pure]):
    """2 to the power of each element; some columns may be computed without the special-function
    unit.

    Attributes:
      fma_period: columns of a repeating pattern; with 0 the special-function unit computes all.
      fma_count: columns at the end of each period that the multiply-add units compute.
      fma_begin, fma_end: the pattern applies to columns fma_begin to fma_end - 1.

    Operands:
      exponent: f32.

    Memory effects: none. Hardware: any; a pattern has an effect on targets with packed f32
    arithmetic, sm_100.

    Example:
      %p = "ws.exp2"(%x)
        {fma_period = 16 : i64, fma_count = 4 : i64, fma_begin = 32 : i64, fma_end = 96 : i64}
        : (!ws.frag<vector<128x128xf32>>) -> !ws.frag<vector<128x128xf32>>
    """

    exponent: ext.Operand[FragmentType]
    fma_period: ir.IntegerAttr
    fma_count: ir.IntegerAttr
    fma_begin: ir.IntegerAttr
    fma_end: ir.IntegerAttr
    fragment: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "Exp2Op") -> bool:
        """Checks for f32 of one shape, and for a pattern of even numbers within the columns."""
        source, result = FragmentType(op.exponent.type), FragmentType(op.fragment.type)
        if source != result or not isinstance(source.element, ir.F32Type):
            return fail(op, f"expects f32 fragments of one shape, got {source} and {result}")
        period, count = op.fma_period.value, op.fma_count.value
        if period % 2 or count % 2 or not 0 <= count <= period:
            return fail(op, f"expects an even count within an even period, got {count}, {period}")
        if not 0 <= op.fma_begin.value <= op.fma_end.value <= source.shape[-1]:
            span = f"{op.fma_begin.value}..{op.fma_end.value}"
            return fail(op, f"expects columns within 0..{source.shape[-1]}, got {span}")
        return True


class KeepOp(WS.Operation, name="keep", traits=[Pure]):
    """Keeps the elements of a fragment whose bit is set, and replaces the others.

    Operands:
      fragment: [R, C].
      bits: [R, ceil(C / 32)], i32; bit i of word w belongs to column 32 w + i.
      other: the value for the other elements.

    Memory effects: none. Hardware: any.

    Example:
      %kept = "ws.keep"(%s, %bits, %hidden)
        : (!ws.frag<vector<128x64xf32>>, !ws.frag<vector<128x2xi32>>, f32)
          -> !ws.frag<vector<128x64xf32>>
    """

    fragment: ext.Operand[FragmentType]
    bits: ext.Operand[FragmentType]
    other: ext.Operand[Any]
    kept: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "KeepOp") -> bool:
        """Checks for a bit per column, and elements of one type."""
        source, kept = FragmentType(op.fragment.type), FragmentType(op.kept.type)
        if len(source.shape) != 2 or source != kept:
            return fail(op, f"expects fragments [R, C] of one type, got {source} and {kept}")
        bits, shape = (
            FragmentType(op.bits.type),
            [source.shape[0], -(-source.shape[1] // WORD_BITS)],
        )
        if (bits.shape, str(bits.element)) != (shape, "i32"):
            return fail(op, f"expects bits of shape {shape} and i32, got {bits}")
        if op.other.type != source.element:
            return fail(op, f"expects other to be {source.element}, got {op.other.type}")
        return True
