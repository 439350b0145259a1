"""Global and shared memory: aliasing, bounds, alignment, initialised bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.errors import LaunchError, SpecError
from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.memory import (
    GLOBAL_ALIGNMENT_BYTES,
    SHARED_BASE,
    GlobalMemory,
    SharedMemory,
)


def kind_of(error: pytest.ExceptionInfo[Fault]) -> str:
    assert isinstance(error.value, LaunchError)
    return error.value.kind


def test_mapping_aliases_the_array_both_ways():
    memory = GlobalMemory()
    array = np.arange(8, dtype=np.float32)
    address = memory.map(array)
    assert address % GLOBAL_ALIGNMENT_BYTES == 0
    lanes = address + 4 * np.arange(8, dtype=np.uint64)
    assert (memory.load(lanes, 4).view(np.float32)[:, 0] == array).all()
    memory.store(lanes[:2], np.array([[7.0], [9.0]], np.float32).view(np.uint8))
    assert array[:3].tolist() == [7.0, 9.0, 2.0]
    array[3] = -1
    assert memory.view(address + 12, 4).view(np.float32)[0] == -1


def test_strided_array_is_mapped_with_its_gaps():
    memory = GlobalMemory()
    base = np.arange(32, dtype=np.uint16).reshape(4, 8)
    address = memory.map(base[:, 2:4])
    assert memory.view(address + 16, 2).view(np.uint16)[0] == base[1, 2]
    memory.view(address, 26 * 2)
    with pytest.raises(Fault):
        memory.view(address, 26 * 2 + 1)
    with pytest.raises(SpecError, match="negative strides"):
        memory.map(base[::-1])


def test_lanes_may_use_several_mappings():
    memory = GlobalMemory()
    arrays = [np.full(4, i, np.uint32) for i in range(3)]
    bases = [memory.map(a) for a in arrays]
    lanes = np.array([bases[2] + 4, bases[0], bases[1] + 12], np.uint64)
    assert memory.load(lanes, 4).view(np.uint32)[:, 0].tolist() == [2, 0, 1]
    memory.store(lanes, np.array([[50], [51], [52]], np.uint32).view(np.uint8))
    assert [a.tolist() for a in arrays] == [[51, 0, 0, 0], [1, 1, 1, 52], [2, 50, 2, 2]]


def test_overlap_and_unmap():
    memory = GlobalMemory()
    memory.map(np.zeros(64, np.uint8), address=0x1000)
    for address in (0xFC1, 0x103F, 0x1000):
        with pytest.raises(SpecError, match="overlaps"):
            memory.map(np.zeros(64, np.uint8), address=address)
    memory.map(np.zeros(64, np.uint8), address=0x1040)
    memory.map(np.zeros(64, np.uint8), address=0xFC0)
    memory.view(0x1000, 64)
    memory.unmap(0x1000)
    with pytest.raises(SpecError, match="nothing is mapped"):
        memory.unmap(0x1000)
    with pytest.raises(Fault):
        memory.view(0x1000, 1)
    with pytest.raises(SpecError):
        memory.map(np.zeros(1, np.uint8), address=-8)


def test_empty_array_has_an_address_and_no_bytes():
    memory = GlobalMemory()
    address = memory.map(np.zeros((0, 4), np.float32))
    other = memory.map(np.zeros(4, np.float32))
    assert address != other
    with pytest.raises(Fault):
        memory.view(address, 1)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_global_bounds_are_exact(width: int):
    memory = GlobalMemory()
    address = memory.map(np.zeros(96, np.uint8))
    memory.load(np.array([address + 96 - width]), width)
    with pytest.raises(Fault, match="nearest mapping below") as error:
        memory.load(np.array([address, address + 96]), width)
    assert kind_of(error) == "out-of-bounds" and error.value.lane == 1
    assert error.value.address == address + 96
    with pytest.raises(Fault) as error:
        memory.store(np.array([address - width]), np.zeros((1, width), np.uint8))
    assert kind_of(error) == "out-of-bounds"


def test_misaligned_and_read_only():
    memory = GlobalMemory()
    frozen = np.zeros(16, np.uint8)
    frozen.flags.writeable = False
    address = memory.map(frozen)
    with pytest.raises(Fault) as error:
        memory.load(np.array([address, address + 2]), 4)
    assert kind_of(error) == "misaligned" and error.value.lane == 1
    with pytest.raises(Fault, match="read-only"):
        memory.store(np.array([address]), np.zeros((1, 4), np.uint8))
    with pytest.raises(Fault, match="read-only"):
        memory.view(address, 16, writing=True)


def test_mapping_at_an_odd_address_still_reads_aligned_words():
    memory = GlobalMemory()
    data = np.arange(16, dtype=np.uint8)
    memory.map(data, address=0x2003)
    got = memory.load(np.array([0x2004, 0x2008]), 4)
    assert got.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    memory.store(np.array([0x2004]), np.array([[9, 9, 9, 9]], np.uint8))
    assert data[:6].tolist() == [0, 9, 9, 9, 9, 5]


def test_shared_window_begins_at_0x400():
    shared = SharedMemory(64)
    shared.store(np.array([0x400, 0x43C]), np.array([[1], [2]], np.uint32).view(np.uint8))
    assert shared.load(np.array([0x43C, 0x400]), 4).view(np.uint32)[:, 0].tolist() == [2, 1]
    for bad in (0x3FC, 0x440):
        with pytest.raises(Fault) as error:
            shared.load(np.array([0x400, bad]), 4)
        assert kind_of(error) == "out-of-bounds" and error.value.lane == 1
    with pytest.raises(Fault) as error:
        shared.store(np.array([0x402]), np.zeros((1, 4), np.uint8))
    assert kind_of(error) == "misaligned"
    with pytest.raises(Fault):
        shared.view(0x43F, 2)
    shared.view(0x400, 64)
    with pytest.raises(SpecError, match="does not fit"):
        SharedMemory(0x40000)


def test_units_alias_the_bytes():
    shared = SharedMemory(64)
    shared.data[0x410:0x420] = np.arange(16)
    assert shared.units[0x41].view(np.uint8).tolist() == list(range(16))
    assert shared.data.ctypes.data % 64 == 0


def test_uninitialised_shared_reads_fault_when_tracked():
    shared = SharedMemory(128, track_initialised=True)
    shared.store(np.array([0x400]), np.zeros((1, 8), np.uint8))
    shared.load(np.array([0x400, 0x404]), 4)
    with pytest.raises(Fault) as error:
        shared.load(np.array([0x400, 0x408]), 4)
    assert kind_of(error) == "uninitialised" and error.value.lane == 1
    shared.view(0x408, 8, writing=True)
    shared.check_units_written(np.array([0x40]), what="x")
    with pytest.raises(Fault):
        shared.check_units_written(np.array([0x40, 0x41]), what="x")
    shared.mark_units_written(np.array([0x41]))
    shared.load(np.array([0x410]), 16)
    shared.fill(0x420, 16, 5)
    assert shared.load(np.array([0x420]), 1)[0, 0] == 5


@settings(max_examples=40, deadline=None)
@given(
    width=st.sampled_from([1, 2, 4, 8, 16]),
    slots=st.lists(st.integers(0, 7), min_size=1, max_size=32),
    seed=st.integers(0, 1000),
)
def test_store_then_load_matches_a_byte_dictionary(width: int, slots: list[int], seed: int):
    shared = SharedMemory(256)
    values = np.random.default_rng(seed).integers(0, 256, (len(slots), width), np.uint8)
    offsets = SHARED_BASE + width * np.array(slots, np.uint32)
    shared.store(offsets, values)
    expected = {slot: values[i].tolist() for i, slot in enumerate(slots)}
    for slot, row in expected.items():
        got = shared.load(np.array([SHARED_BASE + width * slot], np.uint32), width)
        assert got[0].tolist() == row
