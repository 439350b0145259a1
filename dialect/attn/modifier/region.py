"""The region `score_mod` of an operation: what changes a score, and where it lies."""

from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.modifier.yield_ import YieldOp

ARGUMENTS = ["f32", "i32", "i32", "i32", "i32"]  # score, batch, head, q, k


def argument_types() -> list[ir.Type]:
    """The types of a region's arguments."""
    return [ir.Type.parse(name) for name in ARGUMENTS]


def region_misfit(region: Any) -> str:
    """The error in a region's blocks, its arguments and what it yields; "" if none."""
    count = len(region.blocks)
    if count != 1:
        return f"score_mod to have one block, got {count}"
    block = region.blocks[0]
    got = [str(argument.type) for argument in block.arguments]
    if got != ARGUMENTS:
        return f"score_mod arguments ({', '.join(ARGUMENTS)}), got ({', '.join(got)})"
    last = list(block.operations)[-1]
    if not isinstance(last, YieldOp):
        return f"score_mod to end with 'attn.yield', got '{last.name}'"
    kind = last.value.type
    return "" if str(kind) == "f32" else f"score_mod to yield f32, got {kind}"


def inside(op: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """The operations of some kinds in the region of an operation, which may be empty or missing."""
    blocks = (block for region in op.regions for block in region.blocks)
    return [x for block in blocks for x in block.operations if isinstance(x, kind)]
