"""Element-wise bodies that a thread evaluates a few elements at a time, for lack of registers.

The order of emission alone does not hold: ptxas hoists everything that depends on coordinates
alone, loads from tensors included, and computes it for all elements while a product is in flight.
That takes a register per score and more. So the coordinate along a strip gets a false dependence:
first on the elements, then on the results of the elements `count` before. Every result is waited
for: ptxas would defer one that nothing waits for, and keep its operands in registers.
"""

from typing import Any

from attn_mlir.dialect._mlir import vector
from attn_mlir.dialect.scalars import constant

from ..access.inline_ptx import is_word, sum_not_before
from ..access.values import numbers_from, thread_origin
from ..layouts import Layout
from ..state.lowering import Lowering

Value = Any


class OrderedCoordinates:
    """The coordinates along strips of the elements of a fragment, in the order of evaluation.

    Attributes:
      coordinate: the body's argument that they are for.
    """

    def __init__(
        self, low: Lowering, layout: Layout, coordinate: Value, elements: Value, count: int
    ):
        """Orders a body with this coordinate, `count` elements at a time.

        Args:
          elements: the vector of the body's first elements, which the first coordinates wait for.
        """
        self.coordinate, self._at_once = coordinate, count
        self._layout, self._count = layout, len(layout.part_widths)
        origin = thread_origin(low, layout, layout.along)
        self._origin = constant(0) if origin is None else origin
        self._words = [_words(elements)[:1]]
        self._issued = 0

    def numbers(self, part: int, first: int, count: int) -> Value:
        """The coordinates of `count` elements of a part from `first` on, a vector of i32."""
        # the chunk whose results these coordinates wait for; entry 0 is the first elements
        before = self._issued - self._at_once // count
        words = self._words[max(before + 1, 0)]
        self._issued += 1
        begin = sum(self._layout.part_widths[: part % self._count]) + first
        if not words:
            return numbers_from(self._origin, self._layout, begin, count)
        offset, *_ = self._layout.element_offsets[begin:]
        origin = sum_not_before(self._origin, offset, words)
        return numbers_from(origin, self._layout, begin, count, offset)

    def note(self, result: Value) -> None:
        """Records the body's result for the elements whose coordinates were issued last."""
        self._words.append(_words(result) or self._words[-1])


def _words(values: Value) -> list[Value]:
    """The elements that an inline text can depend on."""
    elements = vector.ToElementsOp(values).results
    return [element for element in elements if is_word(element)]
