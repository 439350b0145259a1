"""Hides scores: puts -inf where a row does not see a column, by words of 32 bits, one per column,
in kernels whose threads hold rows of scores.

The mask's formula for one element is evaluated for 32 columns at once, with words in place of truth
values: `column < limit` gives a word whose lowest `limit - column` bits are set, and the operators
of the formula combine words bitwise.
"""

from collections.abc import Callable
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.ws.compute import WORD_BITS

from .. import emit as b
from ..core.column_tiles import Test
from ..core.problem import Problem, Value, WorkTile


class Words(b.IntOps):
    """Arithmetic in which a truth value is a word: bit i holds the value for column + i.

    The column is the left operand of every comparison, as `Mask.element` promises. In the same way,
    bit i holds the value for row + i where the row is that operand, as in
    `Mask.transposed_element`.
    """

    def less(self, first: Value, end: Value | int, /) -> Value:
        """A word with the lowest end - first bits set: the upper half of 32 ones shifted left by so
        many.
        """
        half = arith.ConstantOp(_i64(), ir.IntegerAttr.get(_i64(), WORD_BITS)).result
        return _low_half(arith.ShRUIOp(self._shifted(first, end), half).result)

    def not_less(self, first: Value, end: Value | int, /) -> Value:
        """A word with all but the lowest end - first bits set: the lower half of the same."""
        return _low_half(self._shifted(first, end))

    def negation(self, a: Value) -> Value:
        """The word with all bits inverted."""
        return self._binary(arith.XOrIOp, a, -1)

    def _shifted(self, first: Value, end: Value | int) -> Value:
        """i64: 32 ones shifted left by end - first, which is clamped to 0 to 32."""
        count = self.max(self.min(self.sub(end, first), WORD_BITS), 0)
        ones = arith.ConstantOp(_i64(), ir.IntegerAttr.get(_i64(), 2**WORD_BITS - 1)).result
        return arith.ShLIOp(ones, arith.ExtUIOp(_i64(), count).result).result


def _i64() -> Any:
    return ir.IntegerType.get_signless(2 * WORD_BITS)


def _low_half(value: Value) -> Value:
    return arith.TruncIOp(b.i32(), value).result


WORDS = Words()


def hide(
    problem: Problem, tile: WorkTile, scores: Value, test: Test, row0: Value, column0: Value
) -> Value:
    """The scores [rows, columns] with -inf where a row does not see a column.

    Args:
      test: the edges to test.
      row0: position of the tile's first row.
      column0: position of the tile's first column.
    """
    if problem.config.owns_keys:  # of a word of columns it has one
        sight, hidden = problem.sight(tile), b.f32_constant(float("-inf"))
        lengths = problem.lengths(tile)

        def element(score: Value, row: Value, number: Value) -> Value:
            position = b.INT.add(row0, problem.rows.position(row))
            column = b.INT.add(column0, number)
            return b.select(sight.element(b.INT, position, column, *lengths), score, hidden)

        return b.map_coordinates(element, scores)

    def place(row: Value, number: Value) -> tuple[Value, Value]:
        position = b.INT.add(row0, problem.rows.position(row))
        return position, b.INT.add(column0, b.INT.mul(number, WORD_BITS))

    return hide_words(problem, tile, scores, test, place)


def hide_words(
    problem: Problem,
    tile: WorkTile,
    scores: Value,
    test: Test,
    place: Callable[[Value, Value], tuple[Value, Value]],
) -> Value:
    """As `hide`, wherever rows and columns lie.

    Args:
      place: of a row and the number of 32 columns the positions of the row and of the first one.
    """
    sight, (rows, columns) = problem.sight(tile), ws.FragmentType(scores.type).shape
    lengths = problem.lengths(tile)

    def word(row: Value, number: Value) -> Value:
        position, column = place(row, number)
        if test is Test.LEFT_EDGE and sight.is_interval:
            begin, _ = sight.column_range(b.INT, position, *lengths)
            return WORDS.not_less(column, begin)
        return sight.element(WORDS, position, column, *lengths)

    bits = b.generate(word, [rows, -(-columns // WORD_BITS)], b.i32())
    return b.mask_select(scores, bits, b.f32_constant(float("-inf")))
