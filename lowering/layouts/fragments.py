"""Layouts of fragments: which thread holds which elements, and in what order.

A thread's index in its group is written in digits of mixed radix, lowest first. Each digit adds a
number of rows or columns to the position of the thread's elements, or nothing (then threads hold
copies). A thread's elements form strips: a strip has elements of one row, in the order of their
columns (or, with the axes exchanged, of one column in the order of rows). The indices of strips,
and of elements in a strip, are written in digits likewise.

Worked, the accumulator of `mma.sync.m16n8k16`, 16 x 8 in a warp:

    threads   (4, columns by 2) (8, rows by 1)    thread 4 g + q: row g, column 2 q
    strips    (2, rows by 8)                      strip h: 8 h rows down
    elements  (2, columns by 1)                   element e: e columns on

so element e of strip h of thread 4 g + q is at row g + 8 h, column 2 q + e. The instruction counts
its registers through the elements of strip 0, those of strip 1, and then the next 8 columns.

Sources: PTX ISA, tcgen05.ld (32x32b), wgmma register fragments, mma.sync m16n8k16 and m16n8k32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attn_mlir.dialect.targets.limits import WARP_THREADS

ROW, COLUMN = 0, 1
AXES = (ROW, COLUMN)
PART_ELEMENTS = 32  # elements per vector of a strip; one tcgen05.ld.32x32b.x32 of f32
WORD_BITS = 32  # bits of a register
PACKED_BITS = (8, 16)  # elements of these widths share a register
UNIT_BITS = 128  # bytes of the widest access; PTX ISA, ld and st
MASK_BITS = 32  # columns per word of a mask of bits, see `ws.keep`
INTERLEAVED_STEPS = {1: 1, 2: 4, 4: 8, 8: 2}  # where `ws.interleave` moves each bit of a number


@dataclass(frozen=True)
class Digit:
    """One digit of an index, 0 .. count - 1, and the rows or columns that each unit of it adds.

    Attributes:
      count: the digit's radix.
      axis: `ROW`, `COLUMN`, or None where all values of the digit hold the same elements.
      step: rows or columns per unit.
    """

    count: int
    axis: int | None
    step: int = 0


def _offsets(digits: Sequence[Digit], axis: int | None) -> tuple[int, ...]:
    """The offsets that the digits along `axis` add to its coordinate, for each index in order."""
    offsets = [0]
    for digit in digits:
        step = digit.step if digit.axis == axis else 0
        offsets = [offset + unit * step for unit in range(digit.count) for offset in offsets]
    return tuple(offsets)


def _interleaved(digit: Digit) -> list[Digit]:
    """The digits of the same elements after `ws.interleave` along the digit's axis."""
    split: list[Digit] = []
    count, step = digit.count, digit.step
    while count % 2 == 0 and step in INTERLEAVED_STEPS:
        split.append(Digit(2, digit.axis, INTERLEAVED_STEPS[step]))
        count, step = count // 2, step * 2
    return [*split, Digit(count, digit.axis, step)] if count > 1 or not split else split


def _merged(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """The same indices with contiguous neighbouring digits merged into one."""
    merged: list[Digit] = []
    for digit in digits:
        last = merged[-1] if merged else None
        if last and (last.axis, last.step * last.count) == (digit.axis, digit.step):
            merged[-1] = replace(last, count=last.count * digit.count)
        else:
            merged.append(digit)
    return tuple(merged)


def _count(digits: Sequence[Digit]) -> int:
    return math.prod(digit.count for digit in digits)


@dataclass(frozen=True)
class Access:
    """Contiguous elements of a row that one thread holds; the same for every thread.

    Attributes:
      strip, first: number of the strip, and of the first of these elements in it.
      count: how many; a power of two that divides the first one's column.
      row, column: of the first one, relative to where the thread's elements begin.
    """

    strip: int
    first: int
    count: int
    row: int
    column: int


@dataclass(frozen=True)
class Layout:
    """The layout of one fragment; its extents are those that the digits span.

    A fragment of rank 1 has the layout of one of rank 2 with an axis removed: one value per row (or
    column), of which every thread that would hold elements of the row has a copy. If the strips ran
    along the removed axis, a strip is a single value and there are no element digits.

    Attributes:
      threads: digits of the thread's number in its group.
      strips: digits of the strip's number in the thread; they move across the strips.
      elements: digits of the element's number in the strip; they move along it.
      along: the axis along which the strips run.
    """

    threads: tuple[Digit, ...]
    strips: tuple[Digit, ...]
    elements: tuple[Digit, ...]
    along: int = COLUMN

    def __post_init__(self) -> None:
        assert all(digit.axis == self.across for digit in self.strips)
        assert all(digit.axis == self.along for digit in self.elements)
        for axis in AXES:
            step = 1
            for digit in sorted(self._digits(axis), key=lambda d: (d.step, d.count)):
                assert digit.step == step, f"{self} has a gap along axis {axis}"
                step *= digit.count

    def _digits(self, axis: int) -> list[Digit]:
        return [d for d in (*self.threads, *self.strips, *self.elements) if d.axis == axis]

    @property
    def across(self) -> int:
        """The other axis than `along`."""
        return COLUMN if self.along == ROW else ROW

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes of the fragment, `ROW` first."""
        return tuple(axis for axis in AXES if self._digits(axis))

    def extent(self, axis: int) -> int:
        """Rows or columns of the fragment."""
        return _count(self._digits(axis))

    @cached_property
    def thread_count(self) -> int:
        """Threads that hold the fragment together."""
        return _count(self.threads)

    @cached_property
    def _thread_offsets(self) -> list[tuple[int, ...]]:
        return [_offsets(self.threads, axis) for axis in AXES]

    @cached_property
    def strip_offsets(self) -> tuple[int, ...]:
        """The offset of each strip along the coordinate across the strips."""
        return _offsets(self.strips, self.across)

    @cached_property
    def element_offsets(self) -> tuple[int, ...]:
        """The offset of each element along the strip."""
        return _offsets(self.elements, self.along)

    @property
    def is_single(self) -> bool:
        """Whether a strip is a single value, as `along` has been removed."""
        return not self.elements

    @cached_property
    def part_widths(self) -> tuple[int, ...]:
        """Number of elements in each vector of a strip; empty if a strip is a single value."""
        if self.is_single:
            return ()
        count = len(self.element_offsets)
        return tuple(min(PART_ELEMENTS, count - c) for c in range(0, count, PART_ELEMENTS))

    def thread_digits(self, axis: int) -> list[tuple[int, Digit]]:
        """Thread digits along an axis, each with its weight in the thread's number."""
        pairs: list[tuple[int, Digit]] = []
        weight = 1
        for digit in self.threads:
            if digit.axis == axis and digit.count > 1:
                pairs.append((weight, digit))
            weight *= digit.count
        return pairs

    def copies(self) -> list[tuple[int, Digit]]:
        """Thread digits along no axis, whose threads hold copies, each with its weight."""
        weights = [_count(self.threads[:number]) for number in range(len(self.threads))]
        pairs = zip(weights, self.threads, strict=True)
        return [(w, d) for w, d in pairs if d.axis is None and d.count > 1]

    def position(self, thread: int, strip: int = 0, element: int = 0) -> tuple[int, int]:
        """Row and column of an element of a thread; 0 along a removed axis."""
        position = [self._thread_offsets[axis][thread] for axis in AXES]
        position[self.across] += self.strip_offsets[strip]
        position[self.along] += self.element_offsets[element]
        return position[ROW], position[COLUMN]

    def holders(self, row: int, column: int) -> list[tuple[int, int, int]]:
        """Thread, strip and element number of every copy of the element at a row and column."""
        position = (row, column)

        def numbers(digits: Sequence[Digit]) -> list[int]:
            partial, weight = [0], 1
            for digit in digits:
                if digit.axis is None:
                    units = list(range(digit.count))
                else:
                    units = [position[digit.axis] // digit.step % digit.count]
                partial = [number + unit * weight for unit in units for number in partial]
                weight *= digit.count
            return partial

        (strip,), (element,) = numbers(self.strips), numbers(self.elements)
        return [(thread, strip, element) for thread in numbers(self.threads)]

    def _run(self, first: int, most: int) -> int:
        """The number of contiguous elements of a strip from `first` on: a power of two, at most
        `most`, within one vector of the strip.
        """
        offsets, start = self.element_offsets, self.element_offsets[first]
        steps = [start, *(digit.step for _, digit in self.thread_digits(self.along))]
        end = min(len(offsets), (first // PART_ELEMENTS + 1) * PART_ELEMENTS)
        while most > 1 and (
            first + most > end
            or any(step % most for step in steps)
            or offsets[first + most - 1] != start + most - 1
        ):
            most //= 2
        return most

    def accesses(self, most: int = 1) -> list[Access]:
        """All elements of a thread, in accesses of at most `most` elements, rows in order.

        Elements of strips along columns, and single values, have an access each.
        """
        if self.is_single or self.along == ROW:
            elements = [
                (strip, element, across, along)
                for strip, across in enumerate(self.strip_offsets)
                for element, along in enumerate(self.element_offsets)
            ]
            is_transposed = self.along == ROW
            all_accesses = [
                Access(s, e, 1, b, a) if is_transposed else Access(s, e, 1, a, b)
                for s, e, a, b in elements
            ]
            return sorted(all_accesses, key=lambda access: (access.row, access.column))
        all_accesses: list[Access] = []
        for strip, row in enumerate(self.strip_offsets):
            first = 0
            while first < len(self.element_offsets):
                count = self._run(first, most)
                all_accesses.append(Access(strip, first, count, row, self.element_offsets[first]))
                first += count
        return all_accesses

    def without(self, axis: int) -> "Layout":
        """The layout of one value per row (without `COLUMN`) or per column (without `ROW`)."""
        threads = tuple(
            replace(d, axis=None, step=0) if d.axis == axis else d for d in self.threads
        )
        if axis == self.along:
            return replace(self, threads=threads, elements=())
        return replace(self, threads=threads, strips=())

    def transposed(self) -> "Layout":
        """The layout of the same elements where rows are called columns, and columns rows."""

        def exchanged(digits: Sequence[Digit]) -> tuple[Digit, ...]:
            return tuple(d if d.axis is None else replace(d, axis=1 - d.axis) for d in digits)

        digits = (exchanged(some) for some in (self.threads, self.strips, self.elements))
        return Layout(*digits, along=1 - self.along)

    def interleaved(self, axis: int) -> "Layout":
        """The layout of the same elements after `ws.interleave` along an axis."""

        def moved(digits: Sequence[Digit]) -> tuple[Digit, ...]:
            parts = ([d] if d.axis != axis else _interleaved(d) for d in digits)
            return tuple(part for some in parts for part in some)

        digits = (moved(some) for some in (self.threads, self.strips, self.elements))
        return Layout(*digits, along=self.along).merged

    @cached_property
    def merged(self) -> "Layout":
        """The same layout with as few digits as there can be, which is equal for equal layouts."""
        digits = (_merged(some) for some in (self.threads, self.strips, self.elements))
        return Layout(*digits, along=self.along)

    def narrowed(self, columns: int) -> "Layout":
        """The layout of the first `columns` columns, of which every thread has equally many."""
        assert self.along == COLUMN
        elements = [
            replace(digit, count=min(digit.count, columns // digit.step))
            for digit in self.elements
            if digit.step < columns
        ]
        return replace(self, elements=tuple(elements))

    def runs(self, count: int) -> "Layout | None":
        """The layout of one value for every run of `count` columns, in the threads that have some.

        None where a digit crosses from one run into the next. Worked, runs of 32 of 64 columns, of
        which four threads have 16 each: threads 0 and 1 have run 0, 2 and 3 have run 1.
        """

        def within(digits: Sequence[Digit]) -> list[Digit] | None:
            split: list[Digit] = []
            for digit in digits:
                if digit.axis != COLUMN:
                    split.append(digit)
                    continue
                per_run = min(max(count // digit.step, 1), digit.count)  # units in a run
                run_count, remainder = divmod(digit.count, per_run)
                step, apart = divmod(digit.step * per_run, count)
                if remainder or (run_count > 1 and apart):
                    return None
                split += [Digit(per_run, None)] if per_run > 1 else []
                split += [Digit(run_count, COLUMN, step)] if run_count > 1 else []
            return split

        threads, elements = within(self.threads), within(self.elements)
        if self.along != COLUMN or threads is None or elements is None:
            return None
        columns = tuple(digit for digit in elements if digit.axis == COLUMN)
        return replace(self, threads=tuple(threads), elements=columns or (Digit(1, COLUMN, 1),))

    def mask(self) -> "Layout":
        """The layout of a bitmask [rows, words]: bit b of word w is for column 32 w + b.

        A thread has all words of its rows, whatever columns it holds.
        """
        assert self.along == COLUMN
        words = -(-self.extent(COLUMN) // MASK_BITS)
        rows = self.without(COLUMN)
        return replace(rows, elements=(Digit(words, COLUMN, 1),))

    def mask_bits(self) -> list[tuple[int, int]]:
        """Word and bit of each element of a strip, relative to where the thread's columns begin."""
        return [divmod(offset, MASK_BITS) for offset in self.element_offsets]


@dataclass(frozen=True)
class Scheme:
    """A family of layouts: a block, repeated in registers to fragments of any number of blocks.

    Attributes:
      name: description for messages.
      block: the layout of the smallest fragment.
    """

    name: str
    block: Layout

    def misfit(self, shape: Sequence[int]) -> str:
        """The extents expected instead of these of a fragment [rows, columns]; "" if they fit."""
        for axis, extent in zip(AXES, shape, strict=True):
            step = self.block.extent(axis)
            if extent % step:
                what = "rows" if axis == ROW else "columns"
                return f"{what} in multiples of {step}"
        return ""

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout of a fragment [rows, columns] that fits; further blocks are in registers."""
        assert not self.misfit(shape)
        block = self.block
        digits = {block.across: block.strips, block.along: block.elements}
        for axis, extent in zip(AXES, shape, strict=True):
            step = block.extent(axis)
            blocks = Digit(extent // step, axis, step)
            used = [digit for digit in (*digits[axis], blocks) if digit.count > 1]
            digits[axis] = tuple(used) or digits[axis]
        return replace(block, strips=digits[block.across], elements=digits[block.along])

    def transposed(self) -> "Scheme":
        """The same elements with rows and columns exchanged."""
        end = ", transposed"
        is_turned = self.name.endswith(end)
        name = self.name.removesuffix(end) if is_turned else self.name + end
        return Scheme(name, self.block.transposed())

    def interleaved(self, axis: int) -> "Scheme":
        """The same elements after `ws.interleave` along an axis."""
        shape = [self.block.extent(a) for a in AXES]
        shape[axis] = math.lcm(shape[axis], 2 * max(INTERLEAVED_STEPS))
        return Scheme(f"{self.name}, interleaved", self.layout(shape).interleaved(axis))


def row_per_thread(warps: int) -> Scheme:
    """Thread t holds row t, as `tcgen05.ld.32x32b` loads four warps."""
    threads = (Digit(WARP_THREADS * warps, ROW, 1),)
    return Scheme("one row per thread", Layout(threads, (), (Digit(1, COLUMN, 1),)))


def row_per_lane(warps: int) -> Scheme:
    """Lane i of every warp holds rows i, i + 32, ..., so that each warp has all rows."""
    threads = (Digit(WARP_THREADS, ROW, 1), Digit(warps, None))
    block = Layout(threads[: 2 if warps > 1 else 1], (), (Digit(1, COLUMN, 1),))
    return Scheme("one row per lane", block)


def row_per_warp(warps: int) -> Scheme:
    """All threads of warp w hold row w, such as the result of a vote."""
    threads = (Digit(WARP_THREADS, None), Digit(warps, ROW, 1))
    return Scheme("one row per warp", Layout(threads, (), (Digit(1, COLUMN, 1),)))


def units_of_rows(warps: int, columns: int, element_bits: int) -> Scheme:
    """16 bytes of a row per thread, neighbours in neighbouring threads, for whole lines of memory.

    A row's number of units is a power of two, over the threads, times an odd number, over
    registers. A row shorter than 16 bytes is in one thread.
    """
    unit = min(UNIT_BITS // element_bits, columns)
    count = columns // unit
    across = min(count & -count, WARP_THREADS)  # the largest power of two that divides it
    threads = (Digit(across, COLUMN, unit), Digit(WARP_THREADS * warps // across, ROW, 1))
    return Scheme("16 bytes of a row per thread", Layout(threads, (), (Digit(unit, COLUMN, 1),)))


def accumulator(warps: int) -> Scheme:
    """16 rows per warp, each row in the four threads of a quad.

    The accumulator of `wgmma` (four warps) and of `mma.sync.m16n8` (one), and A of 16 bits of both.
    """
    threads = (Digit(4, COLUMN, 2), Digit(8, ROW, 1), Digit(warps, ROW, 16))
    block = Layout(threads[: 3 if warps > 1 else 2], (Digit(2, ROW, 8),), (Digit(2, COLUMN, 1),))
    return Scheme("accumulator in registers", block)


def operand_a(warps: int, element_bits: int) -> Scheme:
    """A of `wgmma` (four warps) and of `mma.sync.m16n8` (one); columns are K, 32 bytes a block."""
    if element_bits == 16:
        return accumulator(warps)
    assert element_bits == 8
    threads = (Digit(4, COLUMN, 4), Digit(8, ROW, 1), Digit(warps, ROW, 16))
    elements = (Digit(4, COLUMN, 1), Digit(2, COLUMN, 16))
    block = Layout(threads[: 3 if warps > 1 else 2], (Digit(2, ROW, 8),), elements)
    return Scheme("operand A of 8 bits", block)


def operand_b(element_bits: int, *, is_kn: bool) -> Scheme:
    """B of `mma.sync.m16n8`, a fragment [N, K] or, if `is_kn`, [K, N].

    A block is 8 of N by 32 bytes of K. The strips run along K, as a register packs elements of K.
    """
    k, n = (ROW, COLUMN) if is_kn else (COLUMN, ROW)
    pack = WORD_BITS // element_bits
    threads = (Digit(4, k, pack), Digit(8, n, 1))
    elements = (Digit(pack, k, 1), Digit(2, k, 4 * pack))
    order = "kn" if is_kn else "nk"
    block = Layout(threads, (), elements, along=k)
    return Scheme(f"operand B of {element_bits} bits, {order}", block)


def in_fours() -> Scheme:
    """16 rows of a warp by 16 columns; a thread has four contiguous ones in each row.

    Used for A of 16 bits, and for the accumulator, of products with an upcast B (`upcast_b`).
    Elements 0 and 1 of A are the instruction's columns 2 q and 2 q + 1, elements 2 and 3 its
    columns 2 q + 8 and 2 q + 9. Elements 0 and 2 of the accumulator belong to one instruction, 1
    and 3 to the next.
    """
    threads = (Digit(4, COLUMN, 4), Digit(8, ROW, 1))
    block = Layout(threads, (Digit(2, ROW, 8),), (Digit(4, COLUMN, 1),))
    return Scheme("16 rows, columns in fours", block)


def upcast_b(*, is_kn: bool) -> Scheme:
    """B of 16 bits, upcast from 8 bits in shared memory, as a fragment [N, K] or [K, N].

    `ldmatrix` loads two 8-bit elements as one of 16 bits. From [N, K] a thread gets four contiguous
    elements along K, where elements of 16 bits would give two and two; A has its columns in the
    same order (`in_fours`). From [K, N], transposed, it gets two contiguous columns of N: elements
    0 .. 3 of a column are rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9; column 2 g belongs to one
    instruction and 2 g + 1 to the next, so that the accumulator has columns in fours.
    """
    if not is_kn:
        threads = (Digit(4, COLUMN, 4), Digit(8, ROW, 1))
        return Scheme("widened operand B, nk", Layout(threads, (), (Digit(4, COLUMN, 1),)))
    return Scheme("widened operand B, kn", pairs_of_rows(1).block)


def pairs_of_rows(warps: int) -> Scheme:
    """8-bit elements as `ldmatrix` loads them transposed: 2 x 2 in a cell, 16 rows a warp.

    A register has rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of a column. Interleaved, these are four
    contiguous rows: a register of the transpose.
    """
    threads = (Digit(4, ROW, 2), Digit(8, COLUMN, 2), Digit(warps, ROW, 16))
    elements = (Digit(2, ROW, 1), Digit(2, ROW, 8))
    strips = (Digit(2, COLUMN, 1),)
    block = Layout(threads[: 3 if warps > 1 else 2], strips, elements, along=ROW)
    return Scheme("pairs of rows of 8 bits", block)
