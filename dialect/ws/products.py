"""Matrix products that accumulate in tensor memory, or in registers.

`ws.mma` accumulates in tensor memory: one thread issues it, and the ring whose slot it fills or
reads signals its completion. `ws.product` accumulates in the registers of the threads that issue
it. It is asynchronous too, so its result is pending and cannot be used until `ws.settle` has waited
for it:

```
%p = product(%accumulators, %a, %b)      issued
%q = product(%more, %c, %d)      issued behind it
%f = settle(%p) {newest = 1}     one product may still run: that of %q
%g = settle(%q) {newest = 0}
```

Products complete in the order of issue, and are settled in that order. The slots or fragments that
a product reads are in use until it is settled.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I1, ext, ir

from .cluster import PAIR
from .dialect import WS, FragmentType, PendingType, TileType, fail

A_LAYOUTS = ("mk", "km")
B_LAYOUTS = ("kn", "nk")


def _check_operands(
    op: Any,
    acc: Sequence[int],
    a: TileType | FragmentType,
    b: TileType,
    *,
    a_layout: str = "mk",
    ctas: int = 1,
    may_repeat: bool = False,
) -> bool:
    """[M, N] = [M, K] x [K, N] of one element type, b in shared memory and both lying as it says.

    In a pair each CTA has half of the N columns of b. With `may_repeat`, a that lies as km may have
    a divisor of M as its columns.
    """
    if b.space != "shared":
        return fail(op, f"expects b in shared memory, got {b}")
    if len(a.shape) != 2 or len(b.shape) != 2:
        return fail(op, f"expects a and b of two dimensions, got {a.shape} and {b.shape}")
    if a.element != b.element:
        return fail(op, f"expects a and b of one element type, got {a.element}, {b.element}")
    if op.b_layout.value not in B_LAYOUTS:
        return fail(op, f"expects b_layout of {', '.join(B_LAYOUTS)}, got {op.b_layout.value}")
    n, k = b.shape if op.b_layout.value == "nk" else reversed(b.shape)
    rows = a.shape if a_layout == "mk" else a.shape[::-1]
    if may_repeat and a_layout == "km" and acc[0] % rows[0] == 0:
        rows = [acc[0], rows[1]]
    if [acc[0], k] != rows or acc[1] != ctas * n:
        part = "N" if ctas == 1 else f"N / {ctas}"
        return fail(op, f"expects [M, N] = [M, K] x [K, {part}], got {acc}, {rows}, [{k}, {n}]")
    return True


def _a_order(op: Any) -> str:
    """How a lies, `mk` or `km`."""
    attributes = op.operation.attributes
    return ir.StringAttr(attributes["a_layout"]).value if "a_layout" in attributes else "mk"


def _check_a_order(op: Any, a: TileType | FragmentType) -> bool:
    """A known layout of a; only shared memory is read transposed."""
    if op.a_order not in A_LAYOUTS:
        return fail(op, f"expects a_layout of {', '.join(A_LAYOUTS)}, got {op.a_order}")
    if op.a_order == "km" and (isinstance(a, FragmentType) or a.space != "shared"):
        return fail(op, f"expects a as km in shared memory, got {a}")
    return True


class MmaOp(WS.Operation, name="mma"):
    """Tensor core: D = A B, plus D if `accumulate` holds. Asynchronous.

    Operands:
      d: [M, N] accumulator in tensor memory, f32.
      a: [M, K] in shared or tensor memory, or [K, M] in shared memory. As [K, M] it may have fewer
        columns than d has rows, a divisor of them: the others are copies of these.
      b: in shared memory.
      accumulate: i1; if false, the old D is ignored.

    Attributes:
      a_layout (optional): whether a lies as `mk`, where it is absent, or, transposed, as `km`.
      b_layout: whether b lies as `kn` or, transposed, as `nk`.
      ctas (optional): 2 for a product of a pair, issued by the even rank alone for both: each CTA
        has its own M rows of a and d, and of b its half of the N columns, those of the even rank
        first, at the same places. 1 where it is absent. In a pair d may be [2 M, N / 2]: the rows
        for the even rank's half of b, and below them those for the odd rank's. Then a in tensor
        memory is [2 M, K], where either half of its rows is multiplied with one half of b.

    Memory effects: reads a and b, reads and writes d, asynchronously. Hardware: sm_100.

    Example:
      "ws.mma"(%s, %q, %k, %more) {b_layout = "nk"}
        : (!ws.tile<vector<128x64xf32>, "tensor">, !ws.tile<vector<128x128xbf16>, "shared">,
          !ws.tile<vector<64x128xbf16>, "shared">, i1) -> ()
    """

    d: ext.Operand[TileType]
    a: ext.Operand[TileType]
    b: ext.Operand[TileType]
    accumulate: ext.Operand[I1]
    b_layout: ir.StringAttr

    OPTIONAL_ATTRIBUTES = MappingProxyType({"a_layout": ir.StringAttr, "ctas": ir.IntegerAttr})

    @property
    def a_order(self) -> str:
        """How a lies, `mk` or `km`."""
        return _a_order(self)

    @property
    def cta_count(self) -> int:
        """CTAs that compute the product."""
        attributes = self.operation.attributes
        return ir.IntegerAttr(attributes["ctas"]).value if "ctas" in attributes else 1

    @property
    def is_stacked(self) -> bool:
        """Whether d has the halves of its columns, one for each CTA's part of b,
        below one another.
        """
        if self.cta_count != PAIR or self.a_order != "mk":
            return False
        return (
            TileType(self.d.type).shape[1]
            == TileType(self.b.type).shape[self.b_layout.value == "kn"]
        )

    @staticmethod
    def verify_invariants(op: "MmaOp") -> bool:
        """Checks that spaces, element types and extents agree."""
        if op.cta_count not in (1, PAIR):
            return fail(op, f"expects ctas of 1 or {PAIR}, got {op.cta_count}")
        d, a, b = (TileType(value.type) for value in (op.d, op.a, op.b))
        if d.space != "tensor" or not isinstance(d.element, ir.F32Type):
            return fail(op, f"expects an f32 accumulator in tensor memory, got {d}")
        if not _check_a_order(op, a):
            return False
        if any(len(tile.shape) != 2 for tile in (d, a, b)):
            return fail(
                op, f"expects tiles of two dimensions, got {d.shape}, {a.shape} and {b.shape}"
            )
        acc = d.shape
        if op.is_stacked:
            acc = [d.shape[0] // (PAIR if a.space == "shared" else 1), d.shape[1] * PAIR]
        return _check_operands(
            op, acc, a, b, a_layout=op.a_order, ctas=op.cta_count, may_repeat=True
        )


class ProductOp(WS.Operation, name="product"):
    """Tensor core: A B, plus the accumulators if `accumulate` holds, into registers. Asynchronous.

    All threads of a group of the role issue it together.

    Operands:
      accumulators: [M, N], f32; not read if `accumulate` is false. Those of a product that is still
        pending are added to behind it.
      a: [M, K], a shared tile or a fragment, or [K, M], a shared tile.
      b: in shared memory.
      accumulate: i1.

    Attributes:
      a_layout (optional): whether a lies as `mk`, where it is absent, or, transposed, as `km`.
      b_layout: `kn`, or `nk` for a transposed b.

    Results:
      pending: the new accumulators, to be used by one `ws.settle` of the same block, or by another
        product as its accumulators.

    Memory effects: reads a and b, asynchronously. Hardware: sm_90.

    Example:
      %p = "ws.product"(%accumulators, %a, %b, %more) {b_layout = "kn"}
        : (!ws.frag<vector<64x128xf32>>, !ws.tile<vector<64x64xbf16>, "shared">,
          !ws.tile<vector<64x128xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x128xf32>>>
      %f = "ws.settle"(%p) {newest = 0 : i64}
        : (!ws.pending<!ws.frag<vector<64x128xf32>>>) -> !ws.frag<vector<64x128xf32>>
    """

    accumulators: ext.Operand[FragmentType | PendingType]
    a: ext.Operand[TileType | FragmentType]
    b: ext.Operand[TileType]
    accumulate: ext.Operand[I1]
    b_layout: ir.StringAttr
    pending: ext.Result[PendingType]

    OPTIONAL_ATTRIBUTES = MappingProxyType({"a_layout": ir.StringAttr})

    @property
    def a_order(self) -> str:
        """How a lies, `mk` or `km`."""
        return _a_order(self)

    @property
    def settle(self) -> "SettleOp":
        """The waits for this product, or for later ones that add to its accumulators."""
        (user,) = (use.owner for use in self.pending.uses)
        return user if isinstance(user, SettleOp) else user.settle

    @staticmethod
    def verify_invariants(op: "ProductOp") -> bool:
        """Checks that spaces, element types and extents agree, and for one use,
        which settles it.
        """
        pending = PendingType(op.pending.type)
        is_continued = isinstance(op.accumulators.type, PendingType)
        given = op.accumulators.type
        acc = PendingType(given).fragment if is_continued else FragmentType(given)
        if len(acc.shape) != 2 or not isinstance(acc.element, ir.F32Type):
            return fail(op, f"expects accumulators of two dimensions and f32, got {acc}")
        if pending.fragment != acc:
            return fail(op, f"expects a result of pending {acc}, got {pending}")
        if isinstance(op.a.type, TileType) and TileType(op.a.type).space != "shared":
            return fail(op, f"expects a in shared memory or registers, got {op.a.type}")
        users = [use.owner for use in op.pending.uses]
        if len(users) != 1 or not isinstance(users[0], SettleOp | ProductOp):
            return fail(op, f"expects one ws.settle to use its result, got {len(users)} uses")
        if users[0].operation.block != op.operation.block:
            name = users[0].OPERATION_NAME
            return fail(op, f"expects its {name} in the same block")
        kind = TileType if isinstance(op.a.type, TileType) else FragmentType
        a = kind(op.a.type)
        return _check_a_order(op, a) and _check_operands(
            op, acc.shape, a, TileType(op.b.type), a_layout=op.a_order
        )


class SettleOp(WS.Operation, name="settle"):
    """Waits for a product: returns its accumulators, and ends its use of slots and fragments.

    Operands:
      pending: the oldest product of the block that is not settled yet.

    Attributes:
      newest: how many of the products issued after it may still run, counted one by one.

    Memory effects: waits for the tensor core. Hardware: sm_90.

    Example:
      %p = "ws.product"(%accumulators, %a, %b, %more) {b_layout = "nk"}
        : (!ws.frag<vector<64x128xf32>>, !ws.frag<vector<64x64xbf16>>,
          !ws.tile<vector<128x64xbf16>, "shared">, i1) -> !ws.pending<!ws.frag<vector<64x128xf32>>>
      %f = "ws.settle"(%p) {newest = 0 : i64}
        : (!ws.pending<!ws.frag<vector<64x128xf32>>>) -> !ws.frag<vector<64x128xf32>>
    """

    pending: ext.Operand[PendingType]
    newest: ir.IntegerAttr
    accumulators: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "SettleOp") -> bool:
        """Checks for the oldest pending product,
        and that `newest` products were issued after it.
        """
        expected = PendingType(op.pending.type).fragment
        if op.accumulators.type != expected:
            return fail(op, f"expects a result of type {expected}, got {op.accumulators.type}")
        if not isinstance(op.pending.owner, ProductOp):
            return fail(op, "expects the result of a ws.product")
        pending = _pending_at(op)
        if not pending or pending[0] != op.pending:
            return fail(op, "expects products to be settled in the order of issue")
        later = _issued_after(op)
        if not 0 <= op.newest.value <= later:
            return fail(
                op, f"expects newest within 0..{later}, the later ones, got {op.newest.value}"
            )
        return True


def _issued_after(op: SettleOp) -> int:
    """How many products are issued between the one that an operation settles and the operation."""
    operations = [other.operation for other in op.operation.block.operations]
    first, last = (operations.index(x.operation) for x in (op.pending.owner, op))
    return sum(isinstance(other.opview, ProductOp) for other in operations[first + 1 : last])


def _pending_at(op: SettleOp) -> list[Any]:
    """The products of the block that are issued, but not settled, before an operation."""
    pending: list[Any] = []
    for other in op.operation.block.operations:
        if other.operation == op.operation:
            break
        if isinstance(other, ProductOp):
            if other.accumulators in pending:
                pending.remove(other.accumulators)
            pending.append(other.pending)
        elif isinstance(other, SettleOp) and other.pending in pending:
            pending.remove(other.pending)
    return pending
