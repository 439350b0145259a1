"""The product of fragments of one warp, synchronous."""

from types import MappingProxyType

from attn_mlir.dialect._mlir import Pure, ext, ir

from .dialect import WS, FragmentType, element_bits, fail
from .products import B_LAYOUTS

WIDENED = "widened"  # unit attribute
WIDE_BITS = 16


class DotOp(WS.Operation, name="dot", traits=[Pure]):
    """Sums plus A B, all of them fragments of one warp, synchronously.

    Operands:
      accumulators: [M, N], f32.
      a: [M, K].
      b: [K, N], or [N, K].

    Attributes:
      b_layout: whether b is `kn` or, transposed, `nk`.
      widened (optional, unit): b was loaded with 8-bit elements and widened to 16 bits in
        registers. Its layout then differs from that of a b with 16 bits in memory, and so does that
        of a or the accumulators.

    Results:
      totals: [M, N].

    Memory effects: none, but the threads of the warp have to meet. Hardware: any.

    Example:
      %next = "ws.dot"(%accumulators, %a, %b) {b_layout = "kn"}
        : (!ws.frag<vector<16x64xf32>>, !ws.frag<vector<16x32xbf16>>,
          !ws.frag<vector<32x64xbf16>>) -> !ws.frag<vector<16x64xf32>>
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({WIDENED: ir.UnitAttr})

    accumulators: ext.Operand[FragmentType]
    a: ext.Operand[FragmentType]
    b: ext.Operand[FragmentType]
    b_layout: ir.StringAttr
    totals: ext.Result[FragmentType]

    @property
    def is_widened(self) -> bool:
        """Whether b was widened from 8 bits."""
        return WIDENED in self.operation.attributes

    @staticmethod
    def verify_invariants(op: "DotOp") -> bool:
        """Checks for accumulators of f32, operands of one element type, and extents that agree."""
        acc, a, b = (FragmentType(value.type) for value in (op.accumulators, op.a, op.b))
        if not isinstance(acc.element, ir.F32Type):
            return fail(op, f"expects accumulators of f32, got {acc}")
        if op.totals.type != acc:
            return fail(op, f"expects a result of type {acc}, got {op.totals.type}")
        if {len(kind.shape) for kind in (acc, a, b)} != {2}:
            return fail(op, f"expects fragments of rank 2, got {acc}, {a} and {b}")
        if a.element != b.element:
            return fail(op, f"expects a and b of one element type, got {a.element}, {b.element}")
        if op.is_widened and element_bits(b.element) != WIDE_BITS:
            return fail(op, f"expects b widened to {WIDE_BITS} bits, got {b.element}")
        if op.b_layout.value not in B_LAYOUTS:
            return fail(op, f"expects b_layout of {', '.join(B_LAYOUTS)}, got {op.b_layout.value}")
        n, k = b.shape if op.b_layout.value == "nk" else reversed(b.shape)
        if [acc.shape[0], k] != a.shape or acc.shape[1] != n:
            return fail(
                op,
                f"expects [M, N] = [M, K] x [K, N], got {acc.shape}, {a.shape}, [{k}, {n}]",
            )
        return True
