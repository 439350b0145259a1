"""Element-wise bodies whose elements a thread computes a few at a time, for lack of registers.

Emitted in that order they are not computed so: what depends on coordinates alone, values read from
tensors included, the assembler computes for all elements at once, and before the elements are
there, since a product that is under way leaves time for it. A register per score and more is taken
beside the scores, O and what the product fills. So the coordinate along a strip, from which all of
it follows, waits: for the elements, and from then on for the results of so many elements before.
For all of them: one that nothing waits for is left for later, and what it is made of stays in
registers.
"""

from typing import Any

from attn_mlir.dialect._mlir import vector
from attn_mlir.dialect.scalars import constant

from ..access.inline_ptx import is_word, sum_not_before
from ..access.values import numbers_from, own_place
from ..layouts import Layout
from ..state.lowering import Lowering

Value = Any


class Turns:
    """The coordinates along strips of the elements of a fragment, in the order of evaluation.

    Attributes:
      coordinate: the body's argument that they are for.
    """

    def __init__(
        self, low: Lowering, layout: Layout, coordinate: Value, elements: Value, count: int
    ):
        """For a body with this coordinate, and with these as its first elements, a vector; of
        `count` elements at a time."""
        self.coordinate, self._at_once = coordinate, count
        self._layout, self._count = layout, len(layout.part_widths)
        own = own_place(low, layout, layout.along)
        self._place = constant(0) if own is None else own
        self._words = [_words(elements)[:1]]
        self._given = 0

    def numbers(self, part: int, first: int, count: int) -> Value:
        """Those of `count` elements from `first` on of a part, a vector of i32."""
        # what was given then, with its results behind the first word
        before = self._given - self._at_once // count
        words = self._words[max(before + 1, 0)]
        self._given += 1
        begin = sum(self._layout.part_widths[: part % self._count]) + first
        if not words:
            return numbers_from(self._place, self._layout, begin, count)
        offset, *_ = self._layout.element_offsets[begin:]
        place = sum_not_before(self._place, offset, words)
        return numbers_from(place, self._layout, begin, count, offset)

    def note(self, result: Value) -> None:
        """Of the elements whose coordinates were given last, what the body makes."""
        self._words.append(_words(result) or self._words[-1])


def _words(values: Value) -> list[Value]:
    """Those of some elements that can be waited for."""
    elements = vector.ToElementsOp(values).results
    return [element for element in elements if is_word(element)]
