"""Element-wise bodies whose elements a thread computes a few at a time, for lack of registers.

Emitted in that order they are not computed so: what depends on coordinates alone, values read from
tensors included, the assembler computes for all elements at once, and before the elements are there, since a
product that is under way leaves time for it. A register per score and more is taken beside the scores, O
and what the product fills. So the coordinate along a strip, from which all of it follows, waits:
for the elements, and from then on for the result of `IN_FLIGHT` elements before.
"""

from typing import Any

from attn_mlir.dialect._mlir import vector
from attn_mlir.dialect.scalars import constant

from .context import Lowering
from .inline_ptx import is_word, not_before
from .layouts import Layout
from .layouts.values import numbers_from, own_place

Value = Any

IN_FLIGHT = 16  # elements that may be computed side by side


class Turns:
    """The coordinates along strips of the elements of a fragment, in the order of evaluation.

    Attributes:
      coordinate: the body's argument that they are for.
    """

    def __init__(self, low: Lowering, layout: Layout, coordinate: Value, elements: Value):
        """For a body with this coordinate, and with these as its first elements, a vector."""
        self.coordinate = coordinate
        self._layout, self._count = layout, len(layout.part_widths)
        own = own_place(low, layout, layout.along)
        self._place = constant(0) if own is None else own
        self._words = [_word(elements)]
        self._given = 0

    def numbers(self, part: int, first: int, count: int) -> Value:
        """Those of `count` elements from `first` on of a part, a vector of i32."""
        before = (
            self._given - IN_FLIGHT // count
        )  # what was given then, with its result behind the first word
        word = self._words[max(before + 1, 0)]
        place = self._place if word is None else not_before(self._place, word)
        self._given += 1
        begin = sum(self._layout.part_widths[: part % self._count])
        return numbers_from(place, self._layout, begin + first, count)

    def note(self, result: Value) -> None:
        """Of the elements whose coordinates were given last, what the body makes."""
        self._words.append(_word(result) or self._words[-1])


def _word(values: Value) -> Value | None:
    """The first of some elements if it can be waited for."""
    first = vector.ExtractOp(values, [], [0]).result
    return first if is_word(first) else None
