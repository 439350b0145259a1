"""Offsets of coordinates: what masks and score modifiers add to rows, columns and heads."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.masks.shifted import shifted

from .. import emit as b

Value = Any


class Shift(NamedTuple):
    """The offsets of one sequence, i32 each; None where the call gives none."""

    q: Value | None
    k: Value | None
    head: Value | None

    def mask(self, mask: Mask) -> Mask:
        """The mask over positions, if rows or columns have any."""
        if self.q is None and self.k is None:
            return mask
        offsets = [b.constant(0) if x is None else x for x in (self.q, self.k)]
        return shifted(mask, *offsets)

    def coordinates(self, head: Value, q: Value, k: Value) -> tuple[Value, Value, Value]:
        """A score's head, query and key as a modifier sees them."""
        pairs = zip((head, q, k), (self.head, self.q, self.k), strict=True)
        head, q, k = (x if offset is None else b.INT.add(x, offset) for x, offset in pairs)
        return head, q, k


class OffsetArguments(NamedTuple):
    """Arguments of a kernel: numbers; of rows and columns also memrefs [batch]."""

    q: Value | None
    k: Value | None
    head: Value | None

    @classmethod
    def of(cls, op: attn.OffsetsOp, captured: Mapping[Value, Value]) -> "OffsetArguments":
        """The arguments that stand for the operands of an `attn.offsets`."""
        groups = (list(group) for group in (op.q, op.k, op.head))
        return cls(*(captured[group[0]] if group else None for group in groups))

    @property
    def lists(self) -> tuple[Value, ...]:
        """Those that have a number for each sequence."""
        return tuple(x for x in self if x is not None and _is_list(x))

    def of_sequence(self, batch: Value) -> Shift:
        """The offsets of sequence number `batch`."""
        return Shift(*(None if x is None else _of_sequence(x, batch) for x in self))


def _of_sequence(offset: Value, batch: Value) -> Value:
    return b.element(offset, [batch]) if _is_list(offset) else offset


def _is_list(offset: Value) -> bool:
    return isinstance(offset.type, ir.MemRefType)
