"""Tensor maps: the recipe's arithmetic and the bits of the encoding."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensormap import MapDescription, describe, encode
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.file.recipes import MapDim, TensorMapParam

L2_128B = 2 << 17  # the promotion that every map of ours asks for


def words(description: MapDescription) -> tuple[int, ...]:
    return struct.unpack("<32I", encode(description))


def small(**changes: Any) -> MapDescription:
    """f16, 16 x 16, boxes of 16 x 8: an encoding that was read off a driver."""
    fields: dict[str, Any] = {
        "dtype": "f16", "item_bytes": 2, "address": 0x7F12_3456_7800, "extents": (16, 16),
        "strides_bytes": (32,), "box": (16, 8), "swizzle": "none", **changes,
    }  # fmt: skip
    return MapDescription(**fields)


def test_encoding_of_the_driver() -> None:
    found = words(small())
    expected = [0] * 32
    expected[0], expected[1] = 0x3456_7800, 0x7F12
    expected[2] = 0x310 | L2_128B
    expected[3] = 2
    expected[8] = expected[9] = 0xF
    expected[13], expected[14] = 0x0F00_0000, 7
    expected[16], expected[18] = 0x100, 0x10
    assert found == tuple(expected)


@pytest.mark.parametrize(
    ("swizzle", "flags", "word18"),
    [("none", 0, 0x10), ("32B", 0x2000, 0x100), ("64B", 0x4000, 0x200), ("128B", 0x6000, 0x400)],
)
def test_swizzle(swizzle: str, flags: int, word18: int) -> None:
    found = words(small(swizzle=swizzle))
    assert found[2] == 0x310 | L2_128B | flags
    assert found[18] == word18


@pytest.mark.parametrize(
    ("dtype", "item", "word2"),
    [("bf16", 2, 0x510), ("f32", 4, 0x390), ("u8", 1, 0x10), ("i32", 4, 0x190)],
)
def test_element_types(dtype: str, item: int, word2: int) -> None:
    found = words(small(dtype=dtype, item_bytes=item))
    assert found[2] == word2 | L2_128B
    assert found[16] == item * 16 * 8


def test_five_dimensions_and_large_strides() -> None:
    strides = (1 << 36, 3 << 36, 16, (1 << 40) - 16)
    found = words(
        small(extents=(64, 2**32, 2, 16, 3), strides_bytes=strides, box=(64, 256, 2, 1, 1))
    )
    assert found[2] >> 4 & 7 == 4
    assert found[3:7] == (0, 0, 1, 0xFFFF_FFFF)
    assert found[7] == 0xF031
    assert found[8:13] == (63, 0xFFFF_FFFF, 1, 15, 2)
    assert found[13] == 63 << 24
    assert found[14] == 255 | 1 << 8


ATTENTION_Q = TensorMapParam(
    tensor="q",
    box=(64, 128, 2, 1, 1),
    swizzle="128B",
    dims=(MapDim(64, 3, 1), MapDim("sq", 1, 1), MapDim(2, 3, 64), MapDim(16, 2, 1),
          MapDim("batch", 0, 1)),
)  # fmt: skip


def test_recipe_of_attention() -> None:
    q = np.zeros((3, 77, 16, 128), np.float16)
    seen = view(q, "q")
    description = describe(ATTENTION_Q, seen, {"batch": 3, "sq": 77}, seen.address)
    assert description.extents == (64, 77, 2, 16, 3)
    assert description.strides_bytes == (4096, 128, 256, 77 * 4096)
    assert (description.address, description.item_bytes) == (q.ctypes.data, 2)


def test_a_base_in_front_of_the_tensor() -> None:
    """Rows of a box and rows, with one stride: row i of a box is in bounds for i below a limit."""
    dims = (
        MapDim(64, 2, 1), MapDim(128, 0, 1, first=-128), MapDim(4, 1, 1), MapDim(("add", "total", 1), 0, 1),
    )  # fmt: skip
    recipe = TensorMapParam("x", (64, 128, 1, 1), "128B", dims)
    seen = view(np.zeros((300, 4, 64), np.float16), "x")
    description = describe(recipe, seen, {"total": 300}, 1 << 32)
    assert description.address == (1 << 32) - 128 * 512
    assert description.extents == (64, 128, 4, 301)
    assert description.strides_bytes == (512, 128, 512)


def test_zero_extent_counts_as_one() -> None:
    seen = view(np.zeros((3, 0, 16, 128), np.float16), "q")
    description = describe(ATTENTION_Q, seen, {"batch": 3, "sq": 0}, 0x1000)
    assert description.extents == (64, 1, 2, 16, 3)


def test_stride_that_tma_cannot_step() -> None:
    wide = np.zeros((1, 4, 16, 132), np.float16)[..., :128]
    seen = view(wide, "q")
    with pytest.raises(SpecError, match=r"^q has a stride of 132 elements along axis 2.*264 bytes"):
        describe(ATTENTION_Q, seen, {"batch": 1, "sq": 4}, seen.address & ~15)


def test_address_that_tma_cannot_start_at() -> None:
    seen = view(np.zeros((1, 4, 16, 128), np.float16), "q")
    with pytest.raises(SpecError, match="^q starts at 0x1008: .* multiple of 16 bytes"):
        describe(ATTENTION_Q, seen, {"batch": 1, "sq": 4}, 0x1008)
