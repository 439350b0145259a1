"""Layouts of fragments: worked examples of the PTX ISA, and the emulator's own maps of fragments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attn_mlir.lowering.layouts import COLUMN, ROW, Layout, Scheme
from attn_mlir.lowering.layouts.fragments import (
    accumulator,
    in_fours,
    operand_a,
    operand_b,
    pairs_of_rows,
    row_per_thread,
    units_of_rows,
    upcast_b,
)
from attn_mlir.lowering.layouts.matrices import MATRIX_ROWS, SPLIT, matrices_of
from attn_mlir.runtime.emulator.machine import fragments as machine

LAYOUTS: dict[str, Layout] = {
    "tensor memory": row_per_thread(4).layout([128, 40]),
    "tensor memory, one column": row_per_thread(4).layout([128, 1]),
    "a warp's rows": row_per_thread(1).layout([32, 6]),
    "wgmma": accumulator(4).layout([64, 80]),
    "mma.sync": accumulator(1).layout([32, 24]),
    "two warps": accumulator(2).layout([32, 8]),
    "A of 16 bits": operand_a(4, 16).layout([64, 48]),
    "A of 8 bits": operand_a(4, 8).layout([64, 96]),
    "A of 8 bits, a warp": operand_a(1, 8).layout([16, 32]),
    "B of 16 bits": operand_b(16, is_kn=False).layout([24, 32]),
    "B of 16 bits, transposed": operand_b(16, is_kn=True).layout([32, 24]),
    "B of 8 bits": operand_b(8, is_kn=False).layout([16, 64]),
    "in fours": in_fours().layout([32, 48]),
    "widened B": upcast_b(is_kn=False).layout([16, 64]),
    "widened B, transposed": upcast_b(is_kn=True).layout([32, 48]),
    "a warp, pairs of rows": pairs_of_rows(1).layout([48, 32]),
}


def everywhere(layout: Layout) -> list[tuple[int, int, int]]:
    """Every element of every thread: thread, strip, number in the strip."""
    counts = (layout.thread_count, len(layout.strip_offsets), len(layout.element_offsets))
    return list(itertools.product(*map(range, counts)))


@pytest.mark.parametrize(
    ("layout", "thread", "register", "place"),
    [
        # tcgen05.ld.32x32b: thread t of warp w has lane 32 w + t, register r column r
        ("tensor memory", 0, (0, 0), (0, 0)),
        ("tensor memory", 32 * 2 + 5, (0, 33), (69, 33)),
        # wgmma, D of m64nN: d0, d1 in row t / 4, d2, d3 eight rows on; 16 rows a warp
        ("wgmma", 0, (0, 0), (0, 0)),
        ("wgmma", 0, (0, 1), (0, 1)),
        ("wgmma", 0, (1, 0), (8, 0)),
        ("wgmma", 3, (0, 0), (0, 6)),
        ("wgmma", 4, (0, 0), (1, 0)),
        ("wgmma", 0, (0, 2), (0, 8)),
        ("wgmma", 127, (1, 19), (63, 79)),
        ("wgmma", 32, (0, 0), (16, 0)),
        # mma.m16n8k16, C: c0, c1 in row t / 4, columns 2 (t % 4) and the next; c2, c3 eight rows on
        ("mma.sync", 7, (0, 1), (1, 7)),
        ("mma.sync", 7, (1, 0), (9, 6)),
        ("mma.sync", 7, (2, 0), (17, 6)),
        # A of 16 bits: a0, a1; a2, a3 eight rows on; a4 .. a7 eight columns on
        ("A of 16 bits", 6, (0, 2), (1, 12)),
        ("A of 16 bits", 6, (1, 7), (9, 29)),
        # A of 8 bits: a0 .. a3 in columns 4 (t % 4) on; a8 on sixteen columns on
        ("A of 8 bits", 6, (0, 3), (1, 11)),
        ("A of 8 bits", 6, (1, 4), (9, 24)),
        ("A of 8 bits", 6, (1, 8), (9, 40)),
        # B of 16 bits: b0, b1 with k of 2 (t % 4) on, b2, b3 eight on; n is t / 4
        ("B of 16 bits", 6, (0, 3), (1, 13)),
        ("B of 16 bits", 6, (2, 4), (17, 20)),
        ("B of 16 bits, transposed", 6, (0, 3), (13, 1)),
        ("B of 8 bits", 6, (0, 5), (1, 25)),
        # a widened B: four of 8 bits side by side in k; turned, k in twos and eights, n in twos
        ("in fours", 6, (1, 3), (9, 11)),
        ("in fours", 6, (0, 4), (1, 24)),
        ("widened B", 6, (0, 3), (1, 11)),
        ("widened B", 6, (1, 5), (9, 25)),
        ("widened B, transposed", 6, (0, 1), (5, 2)),
        ("widened B, transposed", 6, (1, 2), (12, 3)),
        ("widened B, transposed", 6, (3, 7), (29, 19)),
    ],
)
def test_worked_examples(
    layout: str, thread: int, register: tuple[int, int], place: tuple[int, int]
) -> None:
    assert LAYOUTS[layout].position(thread, *register) == place


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_element_has_one_place_and_back(name: str) -> None:
    layout = LAYOUTS[name]
    found = {where: layout.position(*where) for where in everywhere(layout)}
    rows, columns = layout.extent(ROW), layout.extent(COLUMN)
    assert sorted(found.values()) == list(itertools.product(range(rows), range(columns)))
    assert all(layout.holders(*place) == [where] for where, place in found.items())


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("axis", [ROW, COLUMN])
def test_what_is_left_of_an_axis(name: str, axis: int) -> None:
    """Each thread keeps one value for each row (or column) of which it had an element."""
    layout = LAYOUTS[name]
    left = layout.without(axis)
    (kept,) = left.axes
    assert kept != axis and left.extent(kept) == layout.extent(kept)
    assert left.thread_count == layout.thread_count
    had = {(where[0], layout.position(*where)[kept]) for where in everywhere(layout)}
    has = [(where[0], left.position(*where)[kept]) for where in everywhere(left)]
    assert sorted(had) == sorted(has)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("most", [1, 2, 4, 8])
def test_accesses_are_aligned_runs(name: str, most: int) -> None:
    layout = LAYOUTS[name]
    covered: list[tuple[int, int]] = []
    for access in layout.accesses(most):
        assert 1 <= access.count <= most
        for thread in range(layout.thread_count):
            row, column = layout.position(thread, access.strip, access.first)
            zero = layout.position(thread)
            assert (row - zero[ROW], column - zero[COLUMN]) == (access.row, access.column)
            assert column % access.count == 0
            run = [
                layout.position(thread, access.strip, access.first + i) for i in range(access.count)
            ]
            assert run == [(row, column + i) for i in range(access.count)]
        covered += [(access.strip, access.first + i) for i in range(access.count)]
    assert sorted(covered) == sorted({where[1:] for where in everywhere(layout)})


def test_runs_are_as_long_as_they_may_be() -> None:
    counts = {name: {a.count for a in layout.accesses(8)} for name, layout in LAYOUTS.items()}
    assert counts["tensor memory"] == {8} and counts["a warp's rows"] == {4, 2}
    assert counts["wgmma"] == {2} and counts["A of 8 bits"] == {4}
    assert counts["B of 16 bits, transposed"] == {1}


@pytest.mark.parametrize("name", ["tensor memory", "wgmma", "mma.sync", "A of 8 bits"])
def test_mask_bits_belong_to_columns(name: str) -> None:
    layout = LAYOUTS[name]
    mask = layout.mask()
    assert mask.extent(COLUMN) == -(-layout.extent(COLUMN) // 32)
    for thread, strip, element in everywhere(layout):
        row, column = layout.position(thread, strip, element)
        word, bit = layout.mask_bits()[element]
        own = layout.position(thread)[COLUMN]
        assert mask.position(thread, strip, word) == (row, word)
        assert 32 * word + bit + own == column and bit + own < 32


@pytest.mark.parametrize("count", [1, 4, 8, 32, 64])
@pytest.mark.parametrize(
    "layout",
    [
        units_of_rows(4, 64, 8).layout([64, 64]),
        units_of_rows(4, 192, 8).layout([64, 192]),
        accumulator(4).layout([64, 128]),
        row_per_thread(4).layout([128, 192]),
    ],
)
def test_runs_of_columns_are_where_their_columns_are(layout: Layout, count: int) -> None:
    """A thread has each run once of which it has some columns, and no other."""
    runs = layout.runs(count)
    assert runs is not None and runs.extent(COLUMN) == layout.extent(COLUMN) // count
    assert runs.thread_count == layout.thread_count and runs.extent(ROW) == layout.extent(ROW)
    had = {(t, layout.position(t, s, e)[ROW], layout.position(t, s, e)[COLUMN] // count)
           for t, s, e in everywhere(layout)}  # fmt: skip
    has = [(where[0], *runs.position(*where)) for where in everywhere(runs)]
    assert sorted(had) == sorted(has)


def test_runs_that_begin_within_a_digit() -> None:
    assert row_per_thread(1).layout([32, 6]).runs(4) is None
    assert row_per_thread(1).layout([32, 8]).transposed().runs(2) is None


@pytest.mark.parametrize(
    ("scheme", "shape", "expected"),
    [
        (operand_a(1, 16), (16, 16), machine.a_fragment(16, 16)),
        (operand_a(1, 8), (16, 32), machine.a_fragment(32, 8)),
        (operand_b(16, is_kn=False), (8, 16), machine.b_fragment(16, 16)),
        (operand_b(8, is_kn=False), (8, 32), machine.b_fragment(32, 8)),
    ],
    ids=["A of 16 bits", "A of 8 bits", "B of 16 bits", "B of 8 bits"],
)
def test_operands_are_the_machine_s(
    scheme: Scheme, shape: tuple[int, int], expected: machine.FragmentMap
) -> None:
    """The instruction takes word w of strip 0, word w of strip 1, and then the next word."""
    layout = scheme.layout(shape)
    strips, pack = len(layout.strip_offsets), 4 if shape[1] == 32 else 2
    for i in range(expected.row.shape[0]):
        word, inner = divmod(i, pack)
        strip, element = word % strips, word // strips * pack + inner
        for lane in range(32):
            place = layout.position(lane, strip, element)
            assert place == (expected.row[i, lane], expected.column[i, lane])
    turned = operand_b(16, is_kn=True).layout([32, 24])
    straight = operand_b(16, is_kn=False).layout([24, 32])
    for where in everywhere(turned):
        assert turned.position(*where) == straight.position(*where)[::-1]


@pytest.mark.parametrize(("name", "warps"), [("wgmma", 4), ("two warps", 2)])
def test_accumulators_are_the_machine_s(name: str, warps: int) -> None:
    """Register i: element e of strip h of the block of 8 columns j, for i = 4 j + 2 h + e."""
    layout = LAYOUTS[name]
    columns = layout.extent(COLUMN)
    matrices = np.arange(warps * 16 * columns).reshape(warps, 16, columns)
    elements = machine.accumulator_elements(matrices)
    for warp, register, lane in itertools.product(range(warps), range(columns // 2), range(32)):
        block, h, e = register // 4, register // 2 % 2, register % 2
        row, column = layout.position(32 * warp + lane, h, 2 * block + e)
        assert elements[warp, register, lane] == row * columns + column


def test_a_narrowed_accumulator_is_operand_a() -> None:
    """16 bits: the two are one. 8 bits: the columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9 share a register."""
    assert accumulator(4).layout([64, 64]) == operand_a(4, 16).layout([64, 64])
    layout = accumulator(1).layout([16, 32])
    columns = [layout.position(2, 0, element)[COLUMN] for element in range(4)]
    assert columns == [4, 5, 12, 13]


def test_extents_come_in_blocks() -> None:
    assert accumulator(4).misfit([64, 12]) == "columns in multiples of 8"
    assert operand_a(1, 8).misfit([24, 32]) == "rows in multiples of 16"
    assert operand_b(16, is_kn=True).misfit([16, 8]) == ""
    assert row_per_thread(4).misfit([64, 64]) == "rows in multiples of 128"


INTERLEAVED = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)  # of every 16, in its order


@pytest.mark.parametrize("name", ["wgmma", "in fours", "a warp, pairs of rows"])
@pytest.mark.parametrize("axis", [ROW, COLUMN])
def test_interleaved(name: str, axis: int) -> None:
    """Element i of 16 is what was element `INTERLEAVED[i]`; three times is not at all."""
    layout = LAYOUTS[name]
    changed = layout.interleaved(axis)
    for where in everywhere(layout):
        place, found = list(layout.position(*where)), list(changed.position(*where))
        block, i = divmod(found[axis], 16)
        found[axis] = 16 * block + INTERLEAVED[i]
        assert found == place
    assert changed.interleaved(axis).interleaved(axis) == layout.merged


@pytest.mark.parametrize("columns", [32, 96, 192])
def test_an_interleaved_accumulator_is_operand_a(columns: int) -> None:
    given = accumulator(4).layout([64, columns]).interleaved(COLUMN)
    assert given == operand_a(4, 8).layout([64, columns]).merged


@pytest.mark.parametrize(("warps", "shape"), [(1, [16, 16]), (2, [96, 48]), (4, [128, 80])])
def test_pairs_of_rows_are_words_of_the_transpose(warps: int, shape: list[int]) -> None:
    """What `ldmatrix` and byte permutes give a thread goes to the transpose by 32 bits."""
    layout = pairs_of_rows(warps).layout(shape)
    matrices = matrices_of(layout, 8)
    assert matrices is not None and matrices.is_split
    turned = layout.interleaved(ROW).transposed()
    assert [turned.extent(axis) for axis in (ROW, COLUMN)] == shape[::-1]
    assert {access.count for access in turned.accesses(16)} == {4}


@pytest.mark.parametrize(
    ("name", "bits", "first_column", "count"),
    [
        ("A of 16 bits", 16, 0, 4),
        ("A of 8 bits", 8, 0, 4),
        ("A of 8 bits, a warp", 8, 0, 4),
        ("wgmma", 16, 0, 4),
        ("mma.sync", 16, 0, 4),
        ("mma.sync", 16, 8, 4),
        ("B of 16 bits", 16, 0, 4),
        ("B of 16 bits", 16, 16, 2),
        ("B of 16 bits", 16, 8, 1),
        ("B of 16 bits, transposed", 16, 0, 4),
        ("B of 8 bits", 8, 0, 4),
        ("B of 8 bits", 8, 16, 2),
        ("widened B", 8, 0, 4),
        ("in fours", 8, 0, 4),
    ],
)
def test_lanes_give_the_rows_of_matrices(
    name: str, bits: int, first_column: int, count: int
) -> None:
    """Register i of lane 4 g + q has 32 bits of row g of matrix i, whose address lane 8 i + g gives."""
    layout = LAYOUTS[name]
    matrices = matrices_of(layout, bits, first_column)
    assert matrices is not None and len(matrices.steps) == count
    addresses, pack = matrices.addresses, 32 // bits
    assert matrices.is_transposed == (layout.along == ROW)
    covered: list[tuple[int, int]] = []
    for access in addresses.accesses(128 // bits):
        assert access.count == 128 // bits
        for number, (row, column) in enumerate(matrices.steps):
            ((_, strip, first),) = layout.holders(row + access.row, column + access.column)
            covered += [(strip, first + i) for i in range(pack)]
            for warp, lane in itertools.product(range(0, layout.thread_count, 32), range(32)):
                along, across = divmod(lane, 4)[::-1]
                for i in range(pack):
                    line, cell = across, along * pack + i
                    if matrices.is_transposed:
                        line, cell = cell, line
                    giver = warp + number * MATRIX_ROWS + line
                    given = addresses.position(giver, access.strip, access.first)
                    assert layout.position(warp + lane, strip, first + i) == (
                        given[ROW],
                        given[COLUMN] + cell,
                    )
    assert sorted(covered) == sorted({where[1:] for where in everywhere(layout)})


@pytest.mark.parametrize(("shape", "count"), [([16, 16], 2), ([32, 48], 4), ([48, 32], 4)])
def test_cells_of_two_columns_are_split(shape: list[int], count: int) -> None:
    """Byte i of lane 4 g + q in matrix m: row 2 q + i / 2, column 2 g + i % 2; `SPLIT` picks columns."""
    layout = upcast_b(is_kn=True).layout(shape)
    matrices = matrices_of(layout, 8)
    assert matrices is not None and matrices.is_transposed and matrices.is_split
    assert len(matrices.steps) == count
    covered: list[tuple[int, int]] = []
    for access in matrices.addresses.accesses(16):
        for first, lane in itertools.product(range(0, count, 2), range(32)):
            g, q = divmod(lane, 4)
            bytes_: list[tuple[int, int]] = []
            for number, i in itertools.product((first, first + 1), range(4)):
                giver = number * MATRIX_ROWS + 2 * q + i // 2
                row, column = matrices.addresses.position(giver, access.strip, access.first)
                bytes_.append((row, column + 2 * g + i % 2))
            for side, selector in enumerate(SPLIT):
                row, column = (
                    a + b
                    for a, b in zip(matrices.steps[first], (access.row, access.column), strict=True)
                )
                ((_, strip, start),) = layout.holders(row, column + side)
                for i in range(4):
                    assert layout.position(lane, strip, start + i) == bytes_[selector >> 4 * i & 15]
                covered += [(strip, start + i) for i in range(4)] if lane == 0 else []
    assert sorted(covered) == sorted({where[1:] for where in everywhere(layout)})


def test_layouts_that_are_no_matrices() -> None:
    assert matrices_of(LAYOUTS["in fours"], 16) is None
    assert matrices_of(LAYOUTS["widened B, transposed"], 16) is None
    assert matrices_of(LAYOUTS["tensor memory"], 16) is None
    assert matrices_of(LAYOUTS["mma.sync"], 32) is None
    assert matrices_of(LAYOUTS["mma.sync"], 8) is None
    assert matrices_of(operand_b(8, is_kn=True).layout([32, 8]), 8) is None
