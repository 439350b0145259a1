"""Fragments as SSA values: vectors of a thread's elements, and the elements' coordinates.

A fragment is a list of parts. A strip of several elements is split into vectors of at most
`PART_ELEMENTS`; a strip of one value is a scalar. Vectors of 16-bit and 8-bit elements are packed
into i32, the first element in the lowest bits.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, vector
from attn_mlir.dialect.scalars import INT, compare, constant, i32

from ..layouts.fragments import COLUMN, PACKED_BITS, WORD_BITS, Access, Layout
from ..state.handles import Fragment
from ..state.lowering import Lowering, cell_type

Value = Any


def is_packed(kind: ws.FragmentType) -> bool:
    """Whether a fragment's elements share registers."""
    return len(kind.shape) == 2 and ws.element_bits(kind.element) in PACKED_BITS


def part_types(kind: ws.FragmentType, layout: Layout) -> list[Any]:
    """The types of a fragment's parts."""
    count = len(layout.strip_offsets)
    if layout.is_single:
        return [kind.element] * count
    bits = ws.element_bits(kind.element)
    element, per_word = (i32(), WORD_BITS // bits) if is_packed(kind) else (kind.element, 1)
    widths = [width // per_word for width in layout.part_widths]
    return [ir.VectorType.get([width], element) for width in widths] * count


def parts_of_strips(fragment: Fragment) -> list[tuple[Value, ...]]:
    """The parts of a fragment, grouped by strip."""
    per_strip = len(fragment.layout.part_widths) or 1
    parts = fragment.parts
    return [parts[i : i + per_strip] for i in range(0, len(parts), per_strip)]


def strip_vectors(elements: Iterable[Value], layout: Layout, packing: int = 1) -> list[Value]:
    """The vectors of a strip, from its elements or from registers of `packing` elements each."""
    values, vectors = iter(elements), list[Value]()
    for width in layout.part_widths:
        some = list(itertools.islice(values, width // packing))
        kind = ir.VectorType.get([len(some)], some[0].type)
        vectors.append(vector.FromElementsOp(kind, some).result)
    return vectors


def thread_origin(low: Lowering, layout: Layout, axis: int) -> Value | None:
    """i32: the first coordinate of this thread's elements along an axis; None for 0 everywhere."""
    total: Value | None = None
    for weight, digit in layout.thread_digits(axis):
        offset = _digit(low.active.thread, weight, digit.count, layout.thread_count)
        if digit.step > 1:
            offset = INT.mul(offset, digit.step)
        total = offset if total is None else INT.add(total, offset)
    return total


def _digit(number: Value, weight: int, count: int, end: int) -> Value:
    """The digit with this weight and count of a number below `end`; both are powers of two."""
    if weight > 1:
        number = arith.ShRUIOp(number, constant(weight.bit_length() - 1)).result
    if weight * count < end:
        number = arith.AndIOp(number, constant(count - 1)).result
    return number


def shifted(origin: Value | None, by: int) -> Value:
    """i32: a coordinate of `thread_origin` plus `by`."""
    if origin is None:
        return constant(by)
    return INT.add(origin, by) if by else origin


def is_writer(low: Lowering, layout: Layout) -> Value | None:
    """i1: whether this thread is the first of those that hold copies; None without copies."""
    total: Value | None = None
    for weight, digit in layout.copies():
        number = _digit(low.active.thread, weight, digit.count, layout.thread_count)
        total = number if total is None else arith.OrIOp(total, number).result
    return None if total is None else compare("eq", total, 0)


def along_numbers(low: Lowering, layout: Layout) -> list[Value]:
    """The coordinate along the strips as a vector per part of one strip, i32."""
    origin = thread_origin(low, layout, layout.along)
    ends = itertools.accumulate(layout.part_widths)
    spans = zip(ends, layout.part_widths, strict=True)
    return [numbers_from(origin, layout, end - width, width) for end, width in spans]


def numbers_from(
    origin: Value | None, layout: Layout, first: int, count: int, offset: int = 0
) -> Value:
    """The coordinates along the strips of `count` elements of a strip, a vector of i32.

    Args:
      origin: the thread's first coordinate along them, None for 0.
      first, count: index of the first of these elements in the strip, and their number.
      offset: the offset that `origin` already includes.
    """
    kind = ir.VectorType.get([count], i32())
    offsets = layout.element_offsets[first : first + count]
    numbers = [ir.IntegerAttr.get(i32(), column - offset) for column in offsets]
    part = arith.ConstantOp(kind, ir.DenseElementsAttr.get(numbers, kind)).result
    if origin is None:
        return part
    return arith.AddIOp(vector.BroadcastOp(kind, origin).result, part).result


def unpacked(fragment: Fragment) -> tuple[Value, ...]:
    """The parts of a fragment as vectors of its element type."""
    if not is_packed(fragment.kind):
        return fragment.parts
    parts: list[Value] = []
    for part in fragment.parts:
        count = part.type.shape[0] * WORD_BITS // ws.element_bits(fragment.kind.element)
        kind = ir.VectorType.get([count], fragment.kind.element)
        parts.append(vector.BitCastOp(kind, part).result)
    return tuple(parts)


def packed(part: Value) -> Value:
    """A vector of narrow elements packed into i32."""
    count = part.type.shape[0] * ws.element_bits(part.type.element_type) // WORD_BITS
    return vector.BitCastOp(ir.VectorType.get([count], i32()), part).result


def words_of_strips(fragment: Fragment) -> list[list[Value]]:
    """The packed registers of each strip, in order."""
    return [
        [
            vector.ExtractOp(part, [], [i]).result
            for part in parts
            for i in range(part.type.shape[0])
        ]
        for parts in parts_of_strips(fragment)
    ]


def from_accesses(
    kind: ws.FragmentType, layout: Layout, loaded: Iterator[tuple[Access, Sequence[Value]]]
) -> Fragment:
    """The fragment of loaded accesses: whole registers, or elements if smaller than one."""
    strips: list[dict[int, Sequence[Value]]] = [{} for _ in layout.strip_offsets]
    for access, values in loaded:
        strips[access.strip][access.first] = values
    flat = [[value for first in sorted(strip) for value in strip[first]] for strip in strips]
    if layout.is_single:
        return Fragment(kind, layout, tuple(value for values in flat for value in values))
    parts: list[Value] = []
    per_register = WORD_BITS // ws.element_bits(kind.element) if is_packed(kind) else 1
    for values in flat:
        is_words = len(values) * per_register == len(layout.element_offsets)
        vectors = strip_vectors(values, layout, per_register if is_words else 1)
        parts += vectors if is_words else map(packed, vectors)
    return Fragment(kind, layout, tuple(parts))


def stored_value(fragment: Fragment, access: Access) -> Value:
    """The value that an access stores: a vector of registers, or of elements if smaller."""
    layout, bits = fragment.layout, ws.element_bits(fragment.kind.element)
    parts = parts_of_strips(fragment)[access.strip]
    if layout.is_single:
        return parts[0]
    number, first = divmod(access.first, layout.part_widths[0])
    per_register = WORD_BITS // bits if is_packed(fragment.kind) else 1
    if access.count % per_register or len(layout.axes) == 1:
        elements = unpacked(Fragment(fragment.kind, layout, parts))[number]
        cell = cell_type(fragment.kind.element)
        if cell != fragment.kind.element:
            elements = vector.BitCastOp(
                ir.VectorType.get(elements.type.shape, cell), elements
            ).result
        if access.count == 1:
            return vector.ExtractOp(elements, [], [first]).result
        some = ir.VectorType.get([access.count], cell)
        return vector.ExtractStridedSliceOp(some, elements, [first], [access.count], [1]).result
    lanes = access.count // per_register
    kind = ir.VectorType.get([lanes], parts[number].type.element_type)
    begin = first // per_register
    return vector.ExtractStridedSliceOp(kind, parts[number], [begin], [lanes], [1]).result


def mask_words(low: Lowering, bits: Fragment, layout: Layout) -> list[list[Value]]:
    """The bitmask words for each strip of a layout, shifted right by the thread's first column.

    After the shift, element i of a strip has the word and bit of `Layout.mask_bits` in every
    thread.
    """
    origin = thread_origin(low, layout, COLUMN)
    strips = words_of_strips(bits)
    if origin is None:
        return strips
    return [[arith.ShRUIOp(word, origin).result for word in words] for words in strips]
