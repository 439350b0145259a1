"""Tensor memory: allocator, register maps, cp and shift."""

import numpy as np
import pytest

from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.memory import SharedMemory
from attn_mlir.runtime.emulator.machine.tmem import POISON, TensorMemory, register_count

SHAPES = ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"]


def cell(shape: str, t: int, r: int, imm: int = 0) -> tuple[int, int]:
    """The register map of the specification, one cell at a time."""
    return {
        "32x32b": (t, r),
        "16x64b": (t // 4 + 8 * (t & 1), 2 * r + ((t >> 1) & 1)),
        "16x128b": (t // 4 + 8 * (r & 1), 4 * (r >> 1) + (t & 3)),
        "16x256b": (t // 4 + 8 * ((r >> 1) & 1), 8 * (r >> 2) + 2 * (t & 3) + (r & 1)),
        "16x32bx2": (t % 16, r + t // 16 * imm),
    }[shape]


def filled() -> TensorMemory:
    tmem = TensorMemory()
    assert tmem.alloc(512) == 0
    tmem.cells[...] = np.arange(128)[:, None] << 16 | np.arange(512)[None, :]
    tmem.written[...] = True
    return tmem


@pytest.mark.parametrize(
    ("shape", "count", "t", "r", "lane", "column"),
    [
        ("16x256b", 2, 5, 6, 9, 10),
        ("16x64b", 2, 7, 1, 9, 3),
        ("16x128b", 1, 30, 1, 15, 2),
    ],
)
def test_golden_cells(shape: str, count: int, t: int, r: int, lane: int, column: int):
    assert filled().load(shape, count, 0, 0)[r, t] == lane << 16 | column


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("warp", [0, 3, 6])
def test_load_follows_the_table(shape: str, count: int, warp: int):
    tmem = filled()
    lane0 = 32 * (warp % 4) + (16 if shape != "32x32b" and warp == 3 else 0)
    imm = 64
    got = tmem.load(shape, count, lane0 << 16 | 96, warp, half_offset=imm)
    assert got.shape == (register_count(shape, count), 32)
    for r in range(got.shape[0]):
        for t in range(32):
            lane, column = cell(shape, t, r, imm)
            assert got[r, t] == (lane0 + lane) << 16 | (96 + column)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packed", [False, True])
def test_store_then_load_is_the_identity(shape: str, packed: bool):
    tmem = filled()
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 32, (register_count(shape, 4), 32), np.uint32)
    imm = 128
    tmem.store(shape, 4, 32 << 16 | 8, 1, values, packed, imm)
    assert (tmem.load(shape, 4, 32 << 16 | 8, 1, packed, imm) == values).all()
    touched = tmem.cells != filled().cells
    assert not touched[:32].any() and not touched[64:].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_pack_reads_two_columns_per_register(shape: str):
    tmem = filled()
    got = tmem.load(shape, 2, 40, 0, pack16=True, half_offset=64)
    for r in range(got.shape[0]):
        for t in range(32):
            lane, column = cell(shape, t, r)
            first = 40 + 2 * column + (t // 16 * 64 if shape == "16x32bx2" else 0)
            low, high = int(tmem.cells[lane, first]), int(tmem.cells[lane, first + 1])
            assert got[r, t] == (low & 0xFFFF) | (high & 0xFFFF) << 16


def test_unpack_clears_upper_halves():
    tmem = filled()
    tmem.store("32x32b", 1, 0, 0, np.full((1, 32), 0xAAAA5555, np.uint32), unpack16=True)
    assert tmem.cells[0, :2].tolist() == [0x5555, 0xAAAA]


def test_allocator_places_first_fit_and_frees():
    tmem = TensorMemory()
    assert [tmem.alloc(n) for n in (256, 128, 64, 64)] == [0, 256, 384, 448]
    assert tmem.alloc(32) is None
    tmem.dealloc(384, 64)
    assert tmem.alloc(32) == 384
    assert tmem.alloc(32) == 416
    assert tmem.allocations == {0: 256, 256: 128, 448: 64, 384: 32, 416: 32}


def test_allocator_misuse():
    tmem = TensorMemory()
    for bad in (0, 16, 48, 1024):
        with pytest.raises(Fault, match="32, 64, 128, 256 or 512"):
            tmem.alloc(bad)
    assert tmem.alloc(64) == 0
    with pytest.raises(Fault, match="must not grow"):
        tmem.alloc(128)
    for address, count in ((0, 32), (32, 64), (64, 64)):
        with pytest.raises(Fault, match="no such allocation"):
            tmem.dealloc(address, count)
    tmem.relinquish()
    with pytest.raises(Fault, match="after relinquish"):
        tmem.alloc(32)
    tmem.dealloc(0, 64)
    with pytest.raises(Fault):
        tmem.dealloc(0, 64)


def test_fresh_cells_are_poison_and_fault_when_nothing_else_is_read():
    tmem = TensorMemory(track_initialised=True)
    tmem.alloc(32)
    assert (tmem.cells[:, :32] == POISON).all() and np.isnan(np.uint32(POISON).view(np.float32))
    with pytest.raises(Fault, match="64 tensor-memory cells, all of them never written") as error:
        tmem.load("32x32b", 2, 0, 0)
    assert error.value.kind == "uninitialised"
    tmem.store("32x32b", 1, 0, 0, np.zeros((1, 32), np.uint32))
    got = tmem.load("32x32b", 2, 0, 0)
    assert (got[0] == 0).all() and (got[1] == POISON).all()
    with pytest.raises(Fault):
        tmem.load("16x64b", 1, 2, 0, pack16=True)
    tmem.dealloc(0, 32)
    tmem.alloc(32)
    with pytest.raises(Fault):
        tmem.load("32x32b", 1, 0, 0)


def test_without_tracking_fresh_cells_are_read_as_they_are():
    tmem = TensorMemory()
    tmem.alloc(32)
    assert (tmem.load("32x32b", 2, 0, 0) == POISON).all()


def test_a_reader_of_fresh_cells_may_go_on():
    tmem = TensorMemory(track_initialised=True)
    tmem.alloc(32)
    told: list[tuple[str, int]] = []
    tmem.unwritten = lambda fault, extent: told.append((fault.kind, extent))
    assert (tmem.load("32x32b", 2, 0, 0) == POISON).all()
    assert told == [("uninitialised", 2)]


@pytest.mark.parametrize(
    ("shape", "address", "warp", "allowed"),
    [
        ("32x32b", 16 << 16, 0, "0"),
        ("16x256b", 1 << 16, 1, "32 or 48"),
        ("16x64b", 8 << 16, 4, "0 or 16"),
    ],
)
def test_partition_rule(shape: str, address: int, warp: int, allowed: str):
    with pytest.raises(Fault, match=f"allowed: {allowed}"):
        filled().load(shape, 1, address, warp)


@pytest.mark.parametrize("warp", range(6))
@pytest.mark.parametrize("lane", [0, 32, 128, 16, 80])
def test_lanes_are_those_of_the_own_quarter(lane: int, warp: int):
    tmem = filled()
    own = 32 * (warp % 4) + lane % 32
    shape = "16x64b" if lane % 32 else "32x32b"
    got = tmem.load(shape, 1, lane << 16, warp)
    assert (got == tmem.load(shape, 1, own << 16, warp)).all()
    assert got[0, 0] == own << 16


def test_column_bounds():
    tmem = TensorMemory()
    tmem.alloc(64)
    tmem.store("32x32b", 32, 32, 0, np.zeros((32, 32), np.uint32))
    with pytest.raises(Fault, match=r"columns 33\.\.64; allocated \(first\+count\): 0\+64"):
        tmem.load("32x32b", 32, 33, 0)
    with pytest.raises(Fault, match="second half"):
        tmem.load("16x32bx2", 1, 32, 0, half_offset=32)
    with pytest.raises(Fault, match="power of two up to 32"):
        tmem.load("16x256b", 64, 0, 0)
    with pytest.raises(Fault, match="not one of"):
        register_count("8x8b", 1)


COPIES = {
    ("128x256b", ""): (128, 8, lambda r: [r]),
    ("128x128b", ""): (128, 4, lambda r: [r]),
    ("4x256b", ""): (4, 8, lambda r: [32 * r]),
    ("64x128b", "warpx2::02_13"): (64, 4, lambda r: [r, r + 64]),
    ("64x128b", "warpx2::01_23"): (
        64,
        4,
        lambda r: [64 * (r // 32) + r % 32, 64 * (r // 32) + r % 32 + 32],
    ),
    ("32x128b", "warpx4"): (32, 4, lambda r: [r, r + 32, r + 64, r + 96]),
}


@pytest.mark.parametrize(("shape", "multicast"), sorted(COPIES))
def test_copy_shapes(shape: str, multicast: str):
    rows, columns, lanes_of = COPIES[(shape, multicast)]
    shared = SharedMemory(0x4000)
    shared.data[0x400:] = np.random.default_rng(0).integers(0, 256, shared.data.size - 0x400)
    lbo, sbo, start = 2048, 128, 0x400
    desc = 1 << 46 | (sbo >> 4) << 32 | (lbo >> 4) << 16 | start >> 4
    tmem = TensorMemory()
    tmem.alloc(64)
    tmem.copy(shared, 5, desc, shape, multicast)
    expected = np.full((128, 512), POISON, np.uint32)
    for r in range(rows):
        for j in range(columns):
            b = 4 * j
            at = start + r % 8 * 16 + r // 8 * sbo + b // 16 * lbo + b % 16
            for lane in lanes_of(r):
                expected[lane, 5 + j] = shared.data[at : at + 4].view(np.uint32)[0]
    assert (tmem.cells == expected).all()
    assert (tmem.written == (expected != POISON)).all()


def test_copy_decompresses():
    shared = SharedMemory(0x1000)
    shared.data[0x400:] = np.random.default_rng(0).integers(0, 256, shared.data.size - 0x400)
    desc = 1 << 46 | (128 >> 4) << 32 | 0x40
    tmem = TensorMemory()
    tmem.alloc(32)
    tmem.copy(shared, 0, desc, "32x128b", "warpx4", "b4x16_p64")
    got = tmem.cells[9, :4].copy().view(np.uint8)
    packed = shared.data[0x400 + 128 + 16 :][:8]
    assert got.tolist() == [int(b >> s & 15) << 2 for b in packed for s in (0, 4)]
    tmem.copy(shared, 0, desc, "32x128b", "warpx4", "b6x16_p32")
    got = tmem.cells[9, :4].copy().view(np.uint8)
    word = int.from_bytes(shared.data[0x400 + 128 + 16 :][:12].tobytes(), "little")
    assert got.tolist() == [word >> (6 * i) & 63 for i in range(16)]


def test_copy_faults():
    tmem, shared = TensorMemory(), SharedMemory(256)
    tmem.alloc(32)
    desc = 1 << 46 | (128 >> 4) << 32 | 0x40
    with pytest.raises(Fault, match="is not one of"):
        tmem.copy(shared, 0, desc, "32x128b")
    with pytest.raises(Fault, match="lane 0"):
        tmem.copy(shared, 32 << 16, desc, "32x128b", "warpx4")
    with pytest.raises(Fault) as error:
        tmem.copy(shared, 0, desc, "128x128b")
    assert error.value.kind == "out-of-bounds"
    with pytest.raises(Fault, match="columns 30"):
        tmem.copy(shared, 30, desc, "32x128b", "warpx4")


def test_shift_moves_rows_down_within_a_partition():
    tmem = filled()
    before = tmem.cells.copy()
    tmem.shift(64 << 16 | 16)
    expected = before.copy()
    expected[64:95, 16:24] = before[65:96, 16:24]
    assert (tmem.cells == expected).all()
    with pytest.raises(Fault, match="lane 0, 32, 64 or 96"):
        tmem.shift(8 << 16)
