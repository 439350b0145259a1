"""`attn.join`, the memory in which a kernel puts the results for parts of the keys together."""

from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect

PART_KEYS = "attn.part_keys"  # attribute of `attn.join`: keys of a part
_ELEMENTS = MappingProxyType({"sums": "f32", "extremes": "f32", "arrived": "i32"})


class JoinOp(AttnDialect.Operation, name="join"):
    """Says that the keys of the enclosing attention operation are split into parts among CTAs, and
    that the last CTA of a work tile puts the results for its parts together.

    What the results are does not change. There are as many parts as `sums` has room for: equal
    shares of what a work tile visits, or, where an attribute `attn.part_keys` says so, of that many
    keys each, of which a sequence has as many as it needs and the last one takes the rest. What lies
    in the memory belongs to the schedule, of which the static extents are.

    Operands:
      sums: [splits, tiles, pieces, rows, columns], f32: O of each part, not divided.
      extremes: [2, splits, tiles, copies, rows], f32: of each part's rows the maximum of the scores
        and the sum of the weights.
      arrived: [tiles, copies], i32: how many parts are there; 0 before and after every launch. At
        least as many tiles as the operation has work tiles.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example:
      "attn.join"(%sums, %extremes, %arrived)
        : (tensor<?x?x4x16x32xf32>, tensor<2x?x?x4x16xf32>, tensor<?x4xi32>) -> ()
    """

    AXES = (
        ("splits", "tiles", "pieces", "rows", "columns"),
        ("2", "splits", "tiles", "copies", "rows"),
        ("tiles", "copies"),
    )  # of each operand

    sums: ext.Operand[Any]
    extremes: ext.Operand[Any]
    arrived: ext.Operand[Any]

    @property
    def part_keys(self) -> int | None:
        """Keys of a part, where that is fixed."""
        attributes = self.operation.attributes
        if PART_KEYS not in attributes:
            return None
        return ir.IntegerAttr(attributes[PART_KEYS]).value

    def verify_invariants(self) -> bool:
        """Checks the types of the memory, and that an `attn` operation encloses it."""
        for (name, element), axes in zip(_ELEMENTS.items(), self.AXES, strict=True):
            kind = getattr(self, name).type
            is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank == len(axes)
            if not is_tensor or str(kind.element_type) != element:
                return self._fail(
                    f"{name} to be a tensor [{', '.join(axes)}] of {element}, got {kind}"
                )
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
