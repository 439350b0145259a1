"""Tensor maps decoded from bits that are written here field by field."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.runtime.call.tensormap import MapDescription, encode
from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.tensormap import decode


def words(**fields: int) -> npt.NDArray[np.uint32]:
    """uint32[32] with w<index> set."""
    w = np.zeros(32, np.uint32)
    for name, value in fields.items():
        w[int(name[1:])] = value
    return w


def worked(w2: int = 0x310) -> npt.NDArray[np.uint32]:
    """f16, rank 2, dim {16, 16}, stride 32, box {16, 8}."""
    return words(
        w0=0x1000, w1=0x10, w2=w2, w3=2, w8=0xF, w9=0xF, w13=0x0F000000, w14=7, w16=0x100, w18=0x10
    )


def raw(w: npt.NDArray[np.uint32]) -> bytes:
    return w.tobytes()


def test_worked_map():
    tmap = decode(raw(worked()))
    assert (tmap.base, tmap.rank, tmap.element, tmap.element_bytes) == (0x10_0000_1000, 2, "f16", 2)
    assert (tmap.dims, tmap.strides, tmap.box) == ((16, 16), (2, 32), (16, 8))
    assert (tmap.counts, tmap.element_strides) == ((16, 8), (1, 1))
    assert (tmap.swizzle, tmap.oob_nan, tmap.box_bytes) == ("none", False, 256)
    assert decode(raw(worked(0x6310))).swizzle == "128B"
    assert decode(raw(worked(0x510))).element == "bf16"
    assert decode(raw(worked(0x246312))) == decode(raw(worked(0x6310)))


def test_words_after_14_are_not_read():
    w = worked()
    w[15:] = 0xFFFFFFFF
    assert decode(raw(w)) == decode(raw(worked()))
    assert decode(np.frombuffer(raw(w), np.uint8)) == decode(raw(w))


@pytest.mark.parametrize(
    ("code", "flag", "name", "size"),
    [
        (0, 0, "u8", 1),
        (1, 0, "u16", 2),
        (2, 0, "u32", 4),
        (3, 0, "s32", 4),
        (4, 0, "u64", 8),
        (5, 0, "s64", 8),
        (6, 0, "f16", 2),
        (7, 0, "f32", 4),
        (8, 0, "f32.ftz", 4),
        (9, 0, "f64", 8),
        (10, 0, "bf16", 2),
        (7, 1, "tf32", 4),
        (8, 1, "tf32.ftz", 4),
    ],
)
def test_element_codes(code: int, flag: int, name: str, size: int):
    tmap = decode(raw(worked(1 << 4 | code << 7 | flag << 16)))
    assert (tmap.element, tmap.element_bytes, tmap.box_bytes) == (name, size, 128 * size)


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (0, 0, "none"),
        (1, 0, "32B"),
        (2, 0, "64B"),
        (3, 0, "128B"),
        (3, 1, "128B_atom32B"),
        (3, 2, "128B_atom32B_flip8B"),
        (3, 3, "128B_atom64B"),
    ],
)
def test_swizzle_codes(low: int, high: int, name: str):
    assert decode(raw(worked(0x310 | low << 13 | high << 19))).swizzle == name


def test_rank_5_with_all_fields():
    w = words(
        w0=0x40, w2=4 << 4 | 10 << 7 | 1 << 15,
        w3=1, w4=2, w5=3, w6=0xFFFFFFFF, w7=0xF000 | 0x5,
        w8=63, w9=0xFFFFFFFF, w10=1, w11=15, w12=2,
        w13=63 << 24 | 1 << 3 | 2 << 6 | 7 << 12, w14=127 | 1 << 8 | 4 << 24,
    )  # fmt: skip
    tmap = decode(raw(w))
    assert tmap.dims == (64, 1 << 32, 2, 16, 3)
    assert tmap.strides == (2, 16 | 5 << 36, 32, 48, (1 << 40) - 16)
    assert tmap.box == (64, 128, 2, 1, 5)
    assert tmap.element_strides == (1, 2, 3, 1, 8)
    assert tmap.counts == (64, 64, 1, 1, 1)
    assert tmap.oob_nan and tmap.box_bytes == 64 * 64 * 2


@pytest.mark.parametrize(
    ("code", "name", "global_bytes", "shared_bytes"),
    [(11, "b4x16", 64, 64), (12, "b4x16_p64", 64, 128), (13, "b6x16_p32", 96, 128)],
)
def test_packed_types(code: int, name: str, global_bytes: int, shared_bytes: int):
    w = words(w0=0x40, w2=1 << 4 | code << 7, w3=4, w8=127, w9=7, w13=127 << 24, w14=7)
    tmap = decode(raw(w))
    assert (tmap.element, tmap.is_packed) == (name, True)
    assert (tmap.global_row_bytes, tmap.shared_row_bytes) == (global_bytes, shared_bytes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"w2": 0x311}, "im2col"),
        ({"w2": 0xB10}, "interleaved"),
        ({"w2": 0x350}, "rank 6"),
        ({"w2": 0x790}, "element code 15"),
        ({"w2": 0x10310}, "tf32 flag"),
        ({"w0": 0x1008}, "global address"),
        ({"w13": 0x0E000000}, "multiple of 16 B"),
        ({"w13": 0x47000000, "w2": 0x6310}, "144 B exceeds the 128 B"),
        ({"w13": 0x17000000, "w2": 0x2310}, "48 B exceeds the 32 B"),
        ({"w2": 0x8010}, "NaN fill"),
        ({"w2": 0x610, "w8": 127, "w13": 0x0F000000}, "stride 16 B|32"),
        ({"w2": 0x610, "w8": 15}, r"dim\[0\] 16"),
    ],
)
def test_illegal_maps(changes: dict[str, int], text: str):
    w = worked()
    if "stride" in text:
        w[3] = 1
    for name, value in changes.items():
        w[int(name[1:])] = value
    with pytest.raises(Fault, match=text):
        decode(raw(w))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_decodes_what_the_runtime_encodes(data: st.DataObject):
    """The runtime writes maps by its own code; both sides must mean the same bits."""
    rank = data.draw(st.integers(1, 5))
    dtype, size = data.draw(st.sampled_from([("bf16", 2), ("f16", 2), ("f32", 4), ("i32", 4)]))
    swizzle, span = data.draw(
        st.sampled_from([("none", 256), ("32B", 32), ("64B", 64), ("128B", 128)])
    )
    inner = data.draw(st.integers(1, span // 16)) * 16 // size
    box = (inner, *(data.draw(st.integers(1, 256 if k == 0 else 31)) for k in range(rank - 1)))
    extents = tuple(data.draw(st.integers(1, 1 << 32)) for _ in range(rank))
    strides = tuple(data.draw(st.integers(0, (1 << 36) - 1)) * 16 for _ in range(rank - 1))
    address = data.draw(st.integers(1, 1 << 44)) * 16
    bits = encode(MapDescription(dtype, size, address, extents, strides, box, swizzle))
    tmap = decode(bits)
    assert (tmap.base, tmap.dims, tmap.box) == (address, extents, box)
    assert (tmap.strides, tmap.swizzle) == ((size, *strides), swizzle)
    assert tmap.element == {"i32": "s32"}.get(dtype, dtype) and not tmap.oob_nan


def test_length_is_checked():
    with pytest.raises(Fault, match="128 bytes, got 64"):
        decode(bytes(64))
