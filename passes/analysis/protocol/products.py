"""Products into registers: all threads of a group issue them, and keep their slots until settled.

A product reads its slots until it is settled, and no barrier says when it is done: the role that
issued it releases them, by `threads`, after `ws.settle`. It is one instruction of all warps of a
group, so it may not stand in a branch that single warps decide.
"""

from collections.abc import Iterator
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, scf
from attn_mlir.dialect.diagnostics import op_error

Value = Any


def check_products(kernel: ws.KernelOp) -> None:
    """Checks every product of a kernel.

    Raises:
      VerifyError: a slot is released while a product may still read it, or warps of a group may
        disagree about a product; on the release or the branch.
    """
    for op in ws.inside(kernel):
        if not isinstance(op, ws.ProductOp):
            continue
        for around in _enclosing(op):
            if isinstance(around.opview, scf.IfOp) and _is_of_a_warp(around.opview.condition):
                raise op_error(
                    around.opview,
                    "is taken by each warp for itself, by ws.any, and holds a product, which all "
                    "warps of a group issue together",
                )
        settle = op.settle
        for slot in filter(None, map(_slot, (op.a, op.b))):
            for use in slot.uses:
                if isinstance(use.owner, ws.ReleaseOp) and not _is_after(use.owner, settle):
                    label = slot.owner.ring.owner.label
                    raise op_error(
                        use.owner,
                        f"hands a slot of ring {label} back that a product reads until it is "
                        "settled: move the release behind ws.settle",
                    )


def _is_of_a_warp(condition: Value) -> bool:
    """Whether a value may differ between the warps of a group."""
    pending, seen = [condition], set[Value]()
    while pending:
        value = pending.pop()
        owner = value.owner
        if value in seen or isinstance(owner, ir.Block):
            continue
        seen.add(value)
        if isinstance(owner, ws.AnyOp):
            return True
        pending += list(owner.operation.operands)
    return False


def _slot(tile: Value) -> Value | None:
    """The slot that a tile is, or is part of; None for a fragment or the tile of a buffer."""
    while isinstance(tile.owner, ws.ViewOp | ws.ColumnsOp):
        tile = tile.owner.source
    return tile if isinstance(tile.owner, ws.WaitOp) else None


def _is_after(op: Any, other: Any) -> bool:
    """Whether an operation comes after another in the innermost block that encloses both."""
    chain = list(_enclosing(op))
    for outer in _enclosing(other):
        for mine in chain:
            if mine.block == outer.block:
                order = [inner.operation for inner in mine.block.operations]
                return order.index(mine) > order.index(outer)
    return False


def _enclosing(op: Any) -> Iterator[ir.Operation]:
    """An operation and those that enclose it, from the inside out, up to its role."""
    operation = op.operation
    while operation is not None and not isinstance(operation.opview, ws.RoleOp):
        yield operation
        operation = operation.parent
