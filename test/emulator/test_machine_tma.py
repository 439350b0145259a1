"""The copy engine against an element-by-element oracle."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.runtime.emulator.machine.bulk import bulk_copy, bulk_reduce
from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.memory import GlobalMemory, SharedMemory
from attn_mlir.runtime.emulator.machine.reductions import reduce_values, storage_type
from attn_mlir.runtime.emulator.machine.tensormap import TensorMap, decode
from attn_mlir.runtime.emulator.machine.tma import (
    gather4,
    load_tile,
    reduce_tile,
    scatter4,
    store_tile,
)

CODES = {"u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7}
CODES |= {"f32.ftz": 8, "f64": 9, "bf16": 10}
SIZES = {"u8": 1, "u16": 2, "f16": 2, "bf16": 2, "u32": 4, "s32": 4, "f32": 4, "f32.ftz": 4}
SIZES |= {"u64": 8, "s64": 8, "f64": 8}
MODES = ["none", "32B", "64B", "128B", "128B_atom32B", "128B_atom32B_flip8B", "128B_atom64B"]
SPANS = {"none": 0, "32B": 32, "64B": 64}
SHARED_BYTES = 0x8000


def encode(
    base: int,
    element: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    steps: tuple[int, ...] = (1, 1, 1, 1, 1),
    swizzle: str = "none",
    nan: bool = False,
    code: int | None = None,
    tf32: bool = False,
) -> bytes:
    """A tensor map's bytes, field by field; strides in bytes, from dimension 1 on."""
    w = np.zeros(32, np.uint32)
    s = MODES.index(swizzle)
    w[0], w[1] = base & 0xFFFFFFFF, base >> 32
    w[2] = (len(dims) - 1) << 4 | (CODES[element] if code is None else code) << 7
    w[2] |= min(s, 3) << 13 | max(s - 3, 0) << 19 | nan << 15 | tf32 << 16
    w[3 : 3 + len(strides)] = [x >> 4 for x in strides]
    w[8 : 8 + len(dims)] = [x - 1 for x in dims]
    w[13] = (box[0] - 1) << 24 | sum((e - 1) << 3 * i for i, e in enumerate(steps) if i)
    w[14] = sum((b - 1) << 8 * i for i, b in enumerate(box[1:]))
    return w.tobytes()


def place(address: int, mode: str) -> int:
    """Swizzle of one byte address, from the table of section 7.5."""
    a = address
    if mode in ("32B", "64B", "128B"):
        a ^= ((a >> 7) & {"32B": 1, "64B": 3, "128B": 7}[mode]) << 4
    elif mode.startswith("128B_atom32B"):
        a ^= ((a >> 7) & 3) << 5
        if mode.endswith("flip8B"):
            a ^= (a >> 4) & 8
    elif mode == "128B_atom64B":
        a ^= ((a >> 7) & 1) << 6
    return a


@dataclass
class Case:
    array: npt.NDArray[np.uint8]  # [.., dims[1], dims[0] * size], padded rows
    tmap: TensorMap
    dims: tuple[int, ...]
    size: int
    pitch: int
    mode: str
    memory: GlobalMemory

    def elements(self, coords: tuple[int, ...]):
        """(index of the element in global memory or None, linear byte offset in the box)."""
        counts, steps = self.tmap.counts, self.tmap.element_strides
        for x in product(*(range(n) for n in reversed(counts))):
            x = tuple(reversed(x))
            index = tuple(c + xi * s for c, xi, s in zip(coords, x, steps, strict=True))
            row, rows = 0, 1
            for xi, n in zip(x[1:], counts[1:], strict=True):
                row, rows = row + xi * rows, rows * n
            inside = all(0 <= i < d for i, d in zip(index, self.dims, strict=True))
            yield (index if inside else None), row * self.pitch + x[0] * self.size

    def stored_elements(self, coords: tuple[int, ...]):
        """As `elements`, with every element of a 16-byte chunk whose first byte is in bounds."""
        chunk = 16 // self.size
        inner = -(-self.dims[0] // chunk) * chunk
        return replace(self, dims=(inner, *self.dims[1:])).elements(coords)

    def at(self, index: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """Bytes of one element."""
        row = self.array[tuple(reversed(index[1:]))]
        return row[index[0] * self.size : (index[0] + 1) * self.size]


def make_case(
    element: str,
    dims: tuple[int, ...],
    box: tuple[int, ...],
    steps: tuple[int, ...],
    mode: str,
    seed: int = 0,
    nan: bool = False,
) -> Case:
    size = SIZES[element]
    row_bytes = -(-dims[0] * size // 16) * 16 + 16
    array = np.random.default_rng(seed).integers(
        0, 256, (*reversed(dims[1:]), row_bytes), dtype=np.uint8
    )
    memory = GlobalMemory()
    base = memory.map(array)
    strides = tuple(reversed(array.strides[:-1]))
    tmap = decode(encode(base, element, dims, strides, box, steps, mode, nan))
    pitch = SPANS.get(mode, 128) or tmap.counts[0] * size
    return Case(array, tmap, dims, size, pitch, mode, memory)


@st.composite
def cases(draw: st.DrawFn, modes: list[str] = MODES) -> tuple[Case, tuple[int, ...], int]:
    rank = draw(st.integers(1, 5))
    mode = draw(st.sampled_from(modes))
    element = draw(st.sampled_from(["u8", "f16", "u32", "f64"]))
    span = SPANS.get(mode, 128) or 256
    inner = draw(st.integers(1, span // 16)) * 16 // SIZES[element]
    box = (inner, *(draw(st.integers(1, 4)) for _ in range(rank - 1)))
    dims = tuple(draw(st.integers(1, 2 * b + 1)) for b in box)
    steps = (1, *(draw(st.integers(1, 3)) for _ in range(rank - 1)))
    coords = [draw(st.integers(-b, d + b)) for b, d in zip(box, dims, strict=True)]
    coords[0] -= coords[0] % (16 // SIZES[element])
    alignment = 16 if mode == "none" else 128
    address = 0x400 + alignment * draw(st.integers(0, 16))
    return (
        make_case(element, dims, box, steps, mode, draw(st.integers(0, 99))),
        tuple(coords),
        address,
    )


@settings(max_examples=120, deadline=None)
@given(cases())
def test_load_matches_the_oracle(drawn: tuple[Case, tuple[int, ...], int]):
    case, coords, address = drawn
    shared = SharedMemory(SHARED_BYTES, track_initialised=True)
    shared.data[:] = 0xEE
    expected = shared.data.copy()
    credited = load_tile(case.tmap, coords, case.memory, shared, address)
    total = 0
    for index, offset in case.elements(coords):
        value = np.zeros(case.size, np.uint8) if index is None else case.at(index)
        for i in range(case.size):
            expected[place(address + offset + i, case.mode)] = value[i]
        total += case.size
    assert (shared.data == expected).all()
    assert credited == total == case.tmap.box_bytes
    assert shared.initialised is not None and shared.initialised.sum() == total


@settings(max_examples=120, deadline=None)
@given(cases([m for m in MODES if "flip" not in m]))
def test_store_matches_the_oracle(drawn: tuple[Case, tuple[int, ...], int]):
    case, coords, address = drawn
    coords = tuple(abs(c) for c in coords)
    shared = SharedMemory(SHARED_BYTES)
    shared.data[:] = np.random.default_rng(1).integers(0, 256, shared.data.size)
    expected = case.array.copy()
    store_tile(case.tmap, coords, case.memory, shared, address)
    oracle = replace(case, array=expected)
    for index, offset in case.stored_elements(coords):
        if index is not None:
            for i in range(case.size):
                oracle.at(index)[i] = shared.data[place(address + offset + i, case.mode)]
    assert (case.array == expected).all()


def test_attention_box_of_32_kb():
    """The box of bundle maps: [64, 128, 2] of bf16 at 128B swizzle, two 16 KB halves."""
    heads, size = 4, 128
    q = np.random.default_rng(0).integers(0, 1 << 16, (2, 200, heads, size), dtype=np.uint16)
    memory, shared = GlobalMemory(), SharedMemory(SHARED_BYTES)
    base = memory.map(q)
    row = heads * size * 2
    tmap = decode(
        encode(
            base, "bf16", (64, 200, 2, heads, 2), (row, 128, size * 2, 200 * row),
            (64, 128, 2, 1, 1), swizzle="128B",
        )
    )  # fmt: skip
    assert load_tile(tmap, (0, 128, 0, 3, 1), memory, shared, 0x400) == 32768
    for half, s, d in product(range(2), (0, 1, 9, 71, 72, 127), range(64)):
        at = place(0x400 + half * 16384 + s * 128 + 2 * d, "128B")
        expected = q[1, 128 + s, 3, 64 * half + d] if 128 + s < 200 else 0
        assert shared.data[at : at + 2].view(np.uint16)[0] == expected


@pytest.mark.parametrize("element", ["f16", "f32", "bf16", "f64"])
def test_nan_fill(element: str):
    case = make_case(element, (16, 3), (16, 4), (1, 1), "none", nan=True)
    shared = SharedMemory(SHARED_BYTES)
    load_tile(case.tmap, (8, 1), case.memory, shared, 0x400)
    for index, offset in case.elements((8, 1)):
        got = shared.data[0x400 + offset :][: case.size]
        if index is None:
            assert (got.view(np.uint16) == 0x7FF7).all()
        else:
            assert (got == case.at(index)).all()


def test_tf32_maps_round_on_load():
    values = np.array(
        [1.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11, np.nan, np.inf, -1 - 2.0**-11 * 1.01, 0, 5]
    )
    array = np.tile(values.astype(np.float32), (2, 1))
    memory, shared = GlobalMemory(), SharedMemory(SHARED_BYTES)
    tmap = decode(encode(memory.map(array), "f32", (8, 2), (32,), (8, 2), tf32=True))
    load_tile(tmap, (0, 0), memory, shared, 0x400)
    got = shared.data[0x400 : 0x400 + 32].view(np.float32)
    assert got.view(np.uint32)[3] == 0x7FFFE000
    expected = np.array([1, 1, 1 + 2.0**-9, np.inf, -1 - 2.0**-10, 0, 5], np.float32)
    assert (np.delete(got, 3) == expected).all()


@pytest.mark.parametrize(("code", "bits", "padded"), [(11, 4, 8), (12, 4, 16), (13, 6, 16)])
def test_packed_types_expand_by_groups_of_16(code: int, bits: int, padded: int):
    group = 2 * bits
    row = 128 // 16 * group
    array = np.random.default_rng(0).integers(0, 256, (4, row), dtype=np.uint8)
    memory, shared = GlobalMemory(), SharedMemory(SHARED_BYTES)
    base = memory.map(array)
    raw = encode(base, "", (128, 4), (row,), (128, 8), code=code)
    tmap = decode(raw)
    assert load_tile(tmap, (0, 2), memory, shared, 0x400) == 8 * row
    got = shared.data[0x400 : 0x400 + 64 * padded].reshape(8, 8, padded)
    assert (got[:2, :, :group].reshape(2, -1) == array[2:]).all()
    assert (got[:, :, group:] == 0).all() and (got[2:] == 0).all()
    if code == 12:
        with pytest.raises(Fault, match="loads only"):
            store_tile(tmap, (0, 0), memory, shared, 0x400)
    else:
        array[...] = 0
        store_tile(tmap, (0, 2), memory, shared, 0x400)
        assert (array[2:] == got[:2, :, :group].reshape(2, -1)).all() and (array[:2] == 0).all()
    with pytest.raises(Fault, match="16 elements at once"):
        load_tile(tmap, (8, 0), memory, shared, 0x400)


@pytest.mark.parametrize("mode", ["none", "64B", "128B"])
def test_gather4_and_scatter4(mode: str):
    case = make_case("f16", (64, 20), (32, 1), (1, 1), mode)
    shared = SharedMemory(SHARED_BYTES)
    rows, address = (3, 19, 0, 20), 0x480
    assert gather4(case.tmap, (16, *rows), case.memory, shared, address) == 4 * 64
    for i, row in enumerate(rows):
        for x in range(32):
            at = place(address + i * case.pitch + 2 * x, mode)
            expected = case.at((16 + x, row)) if row < 20 else np.zeros(2, np.uint8)
            assert (shared.data[at : at + 2] == expected).all()
    before = case.array.copy()
    targets = (5, 6, 20, 7)
    assert scatter4(case.tmap, (0, *targets), case.memory, shared, address) == 4 * 64
    for i, row in enumerate(targets):
        if row < 20:
            source = before[rows[i], 32:96] if rows[i] < 20 else 0
            before[row, :64] = source
    assert (case.array == before).all()
    wide = make_case("f16", (64, 20), (32, 2), (1, 1), mode)
    with pytest.raises(Fault, match=r"box\[1\] = 1"):
        gather4(wide.tmap, (0, 1, 2, 3, 4), wide.memory, shared, address)
    with pytest.raises(Fault, match="5 coordinates"):
        scatter4(case.tmap, (0, 1), case.memory, shared, address)


@pytest.mark.parametrize(("element", "operation"), [
    ("f32", "add"), ("u32", "max"), ("s32", "min"), ("u32", "inc"), ("u64", "xor"), ("bf16", "add"),
])  # fmt: skip
def test_reduce_tile_touches_only_chunks_that_begin_inside(element: str, operation: str):
    case = make_case(element, (15, 5), (16, 4), (1, 1), "none", seed=3)
    storage = storage_type(element)
    rng = np.random.default_rng(0)
    for row in case.array:
        row[: 16 * case.size] = rng.integers(0, 9, 16).astype(storage).view(np.uint8)
    shared = SharedMemory(SHARED_BYTES)
    tile = rng.integers(0, 9, (4, 16)).astype(storage)
    shared.data[0x400 : 0x400 + tile.nbytes] = tile.reshape(-1).view(np.uint8)
    before = case.array.copy()
    reduce_tile(case.tmap, (16 // case.size, 2), case.memory, shared, 0x400, operation)
    for index, offset in case.stored_elements((16 // case.size, 2)):
        if index is not None:
            new = shared.data[0x400 + offset :][: case.size].view(storage)
            old = before[index[1], index[0] * case.size :][: case.size].view(storage)
            before[index[1], index[0] * case.size :][: case.size] = reduce_values(
                operation, element, old.copy(), new
            ).view(np.uint8)
    assert (case.array == before).all()


@pytest.mark.parametrize(
    ("operation", "type_name", "old", "new", "expected"),
    [
        ("add", "u32", 0xFFFFFFFF, 2, 1),
        ("add", "s32", 2**31 - 1, 1, -(2**31)),
        ("min", "s32", -1, 1, -1),
        ("min", "u32", 0xFFFFFFFF, 1, 1),
        ("max", "s64", -5, 3, 3),
        ("inc", "u32", 4, 5, 5),
        ("inc", "u32", 5, 5, 0),
        ("inc", "u32", 9, 5, 0),
        ("dec", "u32", 4, 5, 3),
        ("dec", "u32", 0, 5, 5),
        ("dec", "u32", 9, 5, 5),
        ("and", "b32", 12, 10, 8),
        ("or", "b64", 12, 10, 14),
        ("xor", "u32", 12, 10, 6),
        ("add", "f32", 1.5, 2.0, 3.5),
        ("max", "f32", np.nan, 2.0, 2.0),
        ("min", "f64", 1.0, np.nan, 1.0),
        ("add", "f16", 2048.0, 1.0, 2048.0),
        ("add", "f32", 2.0**-140, 0.0, 2.0**-140),
        ("add", "f32.ftz", 2.0**-140, 0.0, 0.0),
    ],
)
def test_reduction_operations(
    operation: str, type_name: str, old: float, new: float, expected: float
):
    storage = storage_type(type_name)
    got = reduce_values(operation, type_name, np.array([old], storage), np.array([new], storage))
    assert got[0] == expected and got.dtype == storage


def test_bf16_add_rounds_once():
    pairs = np.random.default_rng(0).standard_normal((2, 500)).astype(ml_dtypes.bfloat16)
    got = reduce_values("add", "bf16", pairs[0].view(np.uint16), pairs[1].view(np.uint16))
    exact = pairs[0].astype(np.float64) + pairs[1].astype(np.float64)
    assert (got == exact.astype(ml_dtypes.bfloat16).view(np.uint16)).all()


@pytest.mark.parametrize(
    ("operation", "type_name", "text"),
    [("and", "f32", "and on type f32"), ("inc", "s32", "u32 only"), ("mul", "u32", "one of")],
)
def test_reductions_that_do_not_exist(operation: str, type_name: str, text: str):
    zero = np.zeros(1, storage_type(type_name))
    with pytest.raises(Fault, match=text):
        reduce_values(operation, type_name, zero, zero)
    with pytest.raises(Fault, match="type e4m3"):
        storage_type("e4m3")


def test_bulk_copies_between_all_spaces():
    memory = GlobalMemory()
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    src, dst = memory.map(source), memory.map(target)
    first, second = SharedMemory(256), SharedMemory(256)
    assert bulk_copy(first, 0x410, memory, src, 48) == 48
    assert bulk_copy(second, 0x400, first, 0x410, 48) == 48
    assert bulk_copy(memory, dst + 16, second, 0x400, 48) == 48
    assert target.tolist() == [0] * 16 + list(range(48))
    bulk_copy(memory, dst, first, 0x420, 16, byte_mask=0b101)
    assert target[:16].tolist() == [16, 0, 18] + [0] * 13
    assert bulk_copy(first, 0x400, memory, src, 0) == 0
    for args in ((0x408, src, 16), (0x400, src + 8, 16), (0x400, src, 24)):
        with pytest.raises(Fault) as error:
            bulk_copy(first, args[0], memory, *args[1:])
        assert error.value.kind == "misaligned"
    with pytest.raises(Fault) as error:
        bulk_copy(first, 0x400, memory, src, 80)
    assert error.value.kind == "out-of-bounds"


def test_bulk_reduce():
    memory, shared = GlobalMemory(), SharedMemory(64)
    target = np.arange(8, dtype=np.float32)
    address = memory.map(target)
    shared.data[0x400:0x420] = np.full(8, 0.5, np.float32).view(np.uint8)
    assert bulk_reduce(memory, address, shared, 0x400, 32, "add", "f32") == 32
    assert (target == np.arange(8) + 0.5).all()


@pytest.mark.parametrize(("start", "length"), [(0, 16), (3, 5), (9, 1), (20, 12)])
def test_coordinates_times_strides_wrap_round(start: int, length: int):
    """A ragged slice of rows, bounded by where it ends: 2^30 rows of nearly 2^35 bytes move the base back."""
    memory, shared = GlobalMemory(), SharedMemory(SHARED_BYTES)
    rows = np.arange(32 * 8, dtype=np.uint16).reshape(32, 8)
    big = 2**31 - 1
    strides = (16, 16, 2**35 - 16)
    tmap = decode(encode(memory.map(rows), "u16", (8, 2**30, big, big), strides, (8, 16, 1, 1)))
    load_tile(tmap, (0, 2**30 - length, start + length, 2**30), memory, shared, 0x400)
    want = np.zeros((16, 8), np.uint16)
    want[:length] = rows[start : start + length]
    assert (shared.view(0x400, 256).view(np.uint16).reshape(16, 8) == want).all()
    before = rows.copy()
    shared.view(0x400, 256, writing=True)[:] = 7
    store_tile(tmap, (0, 2**30 - length, start + length, 2**30), memory, shared, 0x400)
    before[start : start + length] = 0x0707
    assert (rows == before).all()


def test_load_faults():
    case = make_case("f16", (64, 20), (64, 4), (1, 1), "128B")
    shared = SharedMemory(1024)
    with pytest.raises(Fault, match="3 coordinates for a map of rank 2"):
        load_tile(case.tmap, (0, 0, 0), case.memory, shared, 0x400)
    with pytest.raises(Fault, match="multiple of 128"):
        load_tile(case.tmap, (0, 0), case.memory, shared, 0x410)
    with pytest.raises(Fault, match="the box in shared memory leaves"):
        load_tile(case.tmap, (0, 0), case.memory, shared, 0x680)
    load_tile(case.tmap, (0, 0), case.memory, shared, 0x600)
    with pytest.raises(Fault, match="at least 0"):
        store_tile(case.tmap, (-1, 0), case.memory, shared, 0x400)
    unmapped = replace(case.tmap, base=case.tmap.base + 0x1000000)
    with pytest.raises(Fault, match="not in global memory"):
        load_tile(unmapped, (0, 0), case.memory, shared, 0x400)
    case.array.flags.writeable = False
    frozen = GlobalMemory()
    tmap = replace(case.tmap, base=frozen.map(case.array))
    with pytest.raises(Fault, match="read-only"):
        store_tile(tmap, (0, 0), frozen, shared, 0x400)
    flip = replace(case.tmap, swizzle="128B_atom32B_flip8B")
    with pytest.raises(Fault, match="loads only"):
        store_tile(flip, (0, 0), case.memory, shared, 0x400)


def test_a_copy_of_nothing_touches_the_base_of_its_map():
    rows = np.ones((3, 16), np.float16)
    memory, shared = GlobalMemory(), SharedMemory(2048)
    shared.fill(0x400, 2048)
    base = memory.map(rows)
    plain = decode(encode(base, "f16", (16, 3), (32,), (16, 1)))
    unmapped = replace(plain, base=base - 32, dims=(16, 4))  # row 0 has no memory, row 1 has
    copies = {
        "a load": (load_tile, (0, 1), (0, 4)),
        "a store": (store_tile, (0, 1), (0, 4)),
        "a sum": (partial(reduce_tile, operation="add"), (0, 1), (0, 4)),
        "four rows to shared memory": (gather4, (0, -1, 3, 4, 4), (0, -1, -1, 4, 4)),
        "four rows from shared memory": (scatter4, (0, 3, 4, 4, 4), (0, 4, 4, 4, 4)),
    }
    for name, (copy, some, none) in copies.items():
        copy(unmapped, some, memory, shared, 0x400)
        copy(plain, none, memory, shared, 0x400)
        if copy not in (load_tile, gather4):
            copy(unmapped, none, memory, shared, 0x400)
            continue
        with pytest.raises(Fault, match="touches the base of its tensor map") as error:
            copy(unmapped, none, memory, shared, 0x400)
        assert (error.value.kind, error.value.address) == ("out-of-bounds", base - 32), name


def test_first_coordinate_counts_in_16_bytes():
    case = make_case("f16", (64, 20), (64, 4), (1, 1), "128B")
    shared = SharedMemory(SHARED_BYTES)
    load_tile(case.tmap, (-8, 3), case.memory, shared, 0x400)
    for bad in (-4, 1, 12):
        with pytest.raises(Fault, match="a multiple of 16 B"):
            load_tile(case.tmap, (bad, 0), case.memory, shared, 0x400)


def test_a_store_past_a_row_that_ends_inside_a_chunk_needs_memory_there():
    source = np.zeros((4, 16), np.float16)
    memory, shared = GlobalMemory(), SharedMemory(SHARED_BYTES)
    base = memory.map(source[:, :12])
    tmap = decode(encode(base, "f16", (12, 4), (32,), (16, 4)))
    load_tile(tmap, (0, 0), memory, shared, 0x400)
    with pytest.raises(Fault) as error:
        store_tile(tmap, (0, 0), memory, shared, 0x400)
    assert error.value.kind == "out-of-bounds"


def test_what_a_store_drops_may_be_uninitialised():
    case = make_case("f16", (40, 20), (64, 4), (1, 1), "128B")
    shared = SharedMemory(2048, track_initialised=True)
    line = np.arange(0, 4 * 128, 128)[:, None] + np.arange(0, 128, 16)[None, :]
    units = (0x400 + (line ^ line >> 3 & 0x70)) // 16
    shared.mark_units_written(units[:2, :5].reshape(-1))  # 40 columns of rows 18 and 19
    store_tile(case.tmap, (0, 18), case.memory, shared, 0x400)
    with pytest.raises(Fault) as error:
        store_tile(case.tmap, (0, 17), case.memory, shared, 0x400)
    assert error.value.kind == "uninitialised"


def test_what_a_reduction_or_scatter_drops_may_be_uninitialised():
    case = make_case("f16", (40, 20), (64, 4), (1, 1), "none")
    shared = SharedMemory(2048, track_initialised=True)
    for row in range(2):  # 40 columns of rows 18 and 19
        shared.fill(0x400 + 128 * row, 80)
    reduce_tile(case.tmap, (0, 18), case.memory, shared, 0x400, "add")
    rows = decode(encode(case.tmap.base, "f16", (40, 20), (96,), (64, 1)))
    scatter4(rows, (0, 3, 5, 20, 21), case.memory, shared, 0x400)
    with pytest.raises(Fault) as error:
        reduce_tile(case.tmap, (0, 17), case.memory, shared, 0x400, "add")
    assert error.value.kind == "uninitialised"
    with pytest.raises(Fault) as error:
        scatter4(rows, (0, 3, 5, 7, 21), case.memory, shared, 0x400)
    assert error.value.kind == "uninitialised"


def test_store_of_uninitialised_shared_memory_is_found():
    case = make_case("f16", (64, 20), (64, 4), (1, 1), "128B")
    shared = SharedMemory(1024, track_initialised=True)
    shared.fill(0x400, 0x1F0)
    with pytest.raises(Fault) as error:
        store_tile(case.tmap, (0, 0), case.memory, shared, 0x400)
    assert error.value.kind == "uninitialised"
