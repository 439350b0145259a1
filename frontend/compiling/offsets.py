"""The offsets of coordinates of one call: their kinds, values and largest coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from attn_mlir.compiling.options import MAX_HEADS
from attn_mlir.dialect.attn.coordinates import HEAD_OFFSET, K_OFFSET, Q_OFFSET, Offsets
from attn_mlir.dialect.attn.masks.shifted import MAX_OFFSET
from attn_mlir.runtime.call.scalars import as_int, integer

AXES = {Q_OFFSET: "sq", K_OFFSET: "sk", HEAD_OFFSET: "heads"}
LEAST = {Q_OFFSET: -MAX_OFFSET, K_OFFSET: 0, HEAD_OFFSET: 0}
MOST = {Q_OFFSET: MAX_OFFSET, K_OFFSET: MAX_OFFSET, HEAD_OFFSET: MAX_HEADS}


class CallOffsets(NamedTuple):
    """The offsets of one call.

    Attributes:
      kinds: which there are; static.
      arguments: of the kernel, by name: integers, and arrays i32 [batch].
    """

    kinds: Offsets
    arguments: Mapping[str, object]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of scores along which coordinates are those of a longer problem."""
        return tuple(axis for name, axis in AXES.items() if name in self.arguments)

    def reached(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes, plus the offsets that the host knows along `axes`."""
        extents = dict(sizes)
        for name in self.kinds.numbers:
            extents[AXES[name]] += max(as_int(self.arguments[name]) or 0, 0)
        return extents

    def without_heads(self) -> CallOffsets:
        """The same for a call without modifiers, which alone see heads."""
        numbers = tuple(name for name in self.kinds.numbers if name != HEAD_OFFSET)
        arguments = {name: x for name, x in self.arguments.items() if name != HEAD_OFFSET}
        return CallOffsets(Offsets(numbers, self.kinds.arrays), arguments)


def number(name: str, value: object) -> int:
    """An offset that is one number for all sequences.

    Raises:
      SpecError: no integer, or one that no position or head has.
    """
    also = "" if name == HEAD_OFFSET else " or [batch] of i32"
    return integer(name, value, LEAST[name], MOST[name], also=also)


def numbers_of(q_offset: object, k_offset: object, head_offset: object) -> dict[str, int]:
    """The offsets of a call for all sequences, by name, without those that change nothing.

    Raises:
      SpecError: as of `number`.
    """
    values = {Q_OFFSET: q_offset, K_OFFSET: k_offset}
    numbers = {name: number(name, value) for name, value in values.items() if value is not None}
    head = number(HEAD_OFFSET, head_offset)
    return numbers | {HEAD_OFFSET: head} if head else numbers
