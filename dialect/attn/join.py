"""`attn.join`: workspace in which a kernel combines the results for parts of the keys."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect

PART_KEYS = "attn.part_keys"  # attribute of `attn.join`: number of keys of a part
_ELEMENTS = MappingProxyType({"sums": "f32", "extremes": "f32", "arrived": "i32"})


class JoinOp(AttnDialect.Operation, name="join"):
    """Splits the keys of the enclosing attention operation into parts, computed by different CTAs.

    The last CTA that finishes a part of a work tile combines all of them, so the results are the
    same as without it. The number of parts is the first extent of `sums`. They are equal shares of
    the key tiles that a work tile visits or, with the attribute `attn.part_keys`, have that many
    keys each: a sequence has as many parts as it needs, and the last possible one takes all
    remaining keys. The schedule defines the contents of the memory, and its static extents.

    Operands:
      sums: [splits, tiles, pieces, rows, columns], f32: O of each part, not divided by the sum of
        weights.
      extremes: [2, splits, tiles, copies, rows], f32: for each row of a part, the maximum of its
        scores and the sum of its weights.
      arrived: [tiles, copies], i32: counters of finished parts; 0 before and after every launch.
        There are at least as many tiles as the operation has work tiles.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example:
      "attn.join"(%sums, %extremes, %arrived)
        : (tensor<?x?x4x16x32xf32>, tensor<2x?x?x4x16xf32>, tensor<?x4xi32>) -> ()
    """

    AXES = (
        ("splits", "tiles", "pieces", "rows", "columns"),
        ("2", "splits", "tiles", "copies", "rows"),
        ("tiles", "copies"),
    )  # ranks of the operands

    sums: ext.Operand[Any]
    extremes: ext.Operand[Any]
    arrived: ext.Operand[Any]

    @property
    def part_keys(self) -> int | None:
        """Number of keys of a part, if it is fixed; else None."""
        attributes = self.operation.attributes
        if PART_KEYS not in attributes:
            return None
        return ir.IntegerAttr(attributes[PART_KEYS]).value

    def verify_invariants(self) -> bool:
        """Checks the types of the memory, and that an `attn` operation encloses it."""
        if misfit := memory_misfit([getattr(self, name) for name in _ELEMENTS]):
            return self._fail(misfit)
        if (keys := self.part_keys) is not None and keys < 1:
            return self._fail(f"{PART_KEYS} of at least 1, got {keys}")
        parent = self.operation.parent
        if parent is None or not parent.name.startswith("attn."):
            got = "nothing" if parent is None else f"'{parent.name}'"
            return self._fail(f"to be inside an attn operation, is inside {got}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False


def memory_misfit(memory: Sequence[ir.Value]) -> str:
    """The error in the types of the three operands of an `attn.join`; "" if none."""
    for (name, element), axes, value in zip(_ELEMENTS.items(), JoinOp.AXES, memory, strict=True):
        kind = value.type
        is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank == len(axes)
        if not is_tensor or str(kind.element_type) != element:
            return f"{name} to be a tensor [{', '.join(axes)}] of {element}, got {kind}"
    return ""
