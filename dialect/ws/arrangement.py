"""Operations that change where the elements of a fragment are, and no element."""

from types import MappingProxyType

from attn_mlir.dialect._mlir import Pure, ext, ir

from .dialect import WS, FragmentType, fail
from .reductions import AXES, AXIS, axis_of

INTERLEAVED = 16  # neighbours whose halves `ws.interleave` interleaves


class TurnOp(WS.Operation, name="turn", traits=[Pure]):
    """A fragment with its axes exchanged, [R, C] -> [C, R]: nothing moves, rows are called columns.

    What lies in memory as the transpose of what is worked with is turned when it has been loaded,
    and before it is stored.

    Operands:
      fragment: [R, C].

    Results:
      turned: [C, R].

    Memory effects: none. Hardware: any.

    Example:
      %s = "ws.turn"(%t) : (!ws.frag<vector<128x8xf32>>) -> !ws.frag<vector<8x128xf32>>
    """

    fragment: ext.Operand[FragmentType]
    turned: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "TurnOp") -> bool:
        """One element type; the extents of the other, exchanged."""
        kind, turned = FragmentType(op.fragment.type), FragmentType(op.turned.type)
        if len(kind.shape) != 2:
            return fail(op, f"expects a fragment of rank 2, got {kind}")
        if (turned.shape, turned.element) != (kind.shape[::-1], kind.element):
            expected = f"{kind.shape[::-1]} of {kind.element}"
            return fail(op, f"expects a result {expected}, got {turned}")
        return True


class InterleaveOp(WS.Operation, name="interleave", traits=[Pure]):
    """The halves of every 16 columns, or rows, interleaved by pairs: 0 1 8 9 2 3 10 11 4 5 12 13 6
    7 14 15.

    The sum of a product does not depend on the order of its K. With both operands interleaved
    along K, a rounded accumulator of 8 bits is the operand A of the next product, and rows that
    have been loaded transposed, two at a time, are words of its operand B: nothing moves.

    Operands:
      fragment: [R, C].

    Attributes:
      axis (optional): `columns`, the default, or `rows`.

    Results:
      interleaved: of the same type.

    Memory effects: none. Hardware: any.

    Example:
      %i = "ws.interleave"(%p)
        : (!ws.frag<vector<64x128xf8E4M3FN>>) -> !ws.frag<vector<64x128xf8E4M3FN>>
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({AXIS: ir.StringAttr})

    fragment: ext.Operand[FragmentType]
    interleaved: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "InterleaveOp") -> bool:
        """One type of rank 2, and a known axis in sixteens."""
        kind = FragmentType(op.fragment.type)
        if len(kind.shape) != 2 or op.interleaved.type != op.fragment.type:
            return fail(op, f"expects a type of rank 2 and a result of it, got {kind}")
        if AXIS in op.attributes and (name := ir.StringAttr(op.attributes[AXIS]).value) not in AXES:
            return fail(op, f"expects axis of {', '.join(AXES)}, got {name}")
        if (extent := kind.shape[op.axis]) % INTERLEAVED:
            return fail(op, f"expects {AXES[op.axis]} in multiples of {INTERLEAVED}, got {extent}")
        return True

    @property
    def axis(self) -> int:
        """The axis that is interleaved: 0 for rows, 1 for columns."""
        return axis_of(self)


class PinOp(WS.Operation, name="pin"):
    """A fragment that is computed here, not later where it is used.

    Sums that a product is added to leave its registers free for the next one, once they are
    computed.

    Operands:
      fragment: [R, C], f32.

    Results:
      pinned: the same.

    Memory effects: none, but it stays between the operations around it. Hardware: any.

    Example:
      %here = "ws.pin"(%sum) : (!ws.frag<vector<64x128xf32>>) -> !ws.frag<vector<64x128xf32>>
    """

    fragment: ext.Operand[FragmentType]
    pinned: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "PinOp") -> bool:
        """One type, of rank 2 and f32."""
        kind = FragmentType(op.fragment.type)
        if len(kind.shape) != 2 or not isinstance(kind.element, ir.F32Type):
            return fail(op, f"expects a fragment of rank 2 and f32, got {kind}")
        if op.pinned.type != op.fragment.type:
            return fail(op, f"expects a result of type {kind}, got {op.pinned.type}")
        return True
