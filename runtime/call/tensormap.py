"""Tensor maps: the 128 bytes that tell the TMA engine where a tensor lies and how to cut boxes.

`describe` turns a bundle's recipe and a tensor into numbers and checks them against the rules of
`cuTensorMapEncodeTiled`; `encode` writes the bytes without a driver, by the bit layout below, for
devices that have none. On a GPU the driver encodes the same description.

Little-endian 32-bit words; what is not listed is 0:

| word | content |
| --- | --- |
| 0, 1 | global address |
| 2 | bits 4-6 rank - 1, 7-10 element code, 13-14 swizzle, 17-18 L2 promotion |
| 3-6 | strides of dimensions 1-4, bytes / 16, low 32 bits |
| 7 | bits 36-39 of the same strides, one nibble each |
| 8-12 | extents - 1 |
| 13 | bits 0-14 element strides - 1, 3 bits each; bits 24-31 box of dimension 0, - 1 |
| 14 | boxes of dimensions 1-4, - 1, one byte each |
| 16 | bytes of one box |
| 18 | 0x10 without swizzle, 0x100, 0x200, 0x400 for 32, 64 and 128 bytes |
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.element_types import ELEMENT_TYPES
from attn_mlir.errors import SpecError
from attn_mlir.expr import evaluate
from attn_mlir.runtime.call.tensors import TensorView
from attn_mlir.runtime.file.fields import DTYPE_BYTES
from attn_mlir.runtime.file.recipes import L2_PROMOTIONS, MAP_BYTES, Merged, TensorMapParam

STRIDE_MULTIPLE_BYTES = 16  # cuda.h, cuTensorMapEncodeTiled: globalStrides
STRIDE_LIMIT_BYTES = 1 << 40  # cuda.h, cuTensorMapEncodeTiled: globalStrides
EXTENT_LIMIT = 1 << 32  # cuda.h, cuTensorMapEncodeTiled: globalDim
COORDINATE_LIMIT = 1 << 31  # PTX ISA, cp.async.bulk.tensor: coordinates are s32
ADDRESS_ALIGNMENT_BYTES = 16  # cuda.h, cuTensorMapEncodeTiled: globalAddress

# the hardware's, word 2, by names of cuda.h, CUtensorMapDataType
ELEMENT_CODES = {"UINT8": 0, "INT32": 3, "INT64": 5, "FLOAT16": 6, "FLOAT32": 7, "BFLOAT16": 10}
SWIZZLE_CODES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
_SWIZZLE_FLAGS = {"none": 0x10, "32B": 0x100, "64B": 0x200, "128B": 0x400}  # word 18


@dataclass(frozen=True)
class MapDescription:
    """One tensor map in numbers, innermost dimension first.

    Attributes:
      address: of element 0 on the device.
      extents: elements per dimension, at least 1.
      strides_bytes: of dimensions 1 and up; dimension 0 is dense.
      box: elements per dimension of what one instruction moves.
      l2: one of `L2_PROMOTIONS`.
    """

    dtype: str
    item_bytes: int
    address: int
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    l2: str = "128B"

    @property
    def copied_as(self) -> str:
        """The type that the map's elements are copied as, by its name in cuda.h."""
        return ELEMENT_TYPES[self.dtype].tensor_map


@dataclass(frozen=True)
class _Axes:
    """A tensor as its map sees it.

    Attributes:
      sizes: elements along each axis; 1 along one that is merged with another.
      strides_bytes: from element to element.
      symbols: sizes by name, for the extents of the map.
    """

    sizes: list[int]
    strides_bytes: list[int]
    symbols: Mapping[str, int]


def describe(
    param: TensorMapParam, tensor: TensorView, symbols: Mapping[str, int], address: int
) -> MapDescription:
    """Apply a recipe to a tensor.

    Args:
      param: the recipe; a run-time extent of 0 counts as 1, since the engine knows no empty tensor.
      tensor: whose strides count.
      symbols: run-time sizes.
      address: on the device that will launch.

    Raises:
      SpecError: the layout cannot be described; the message names the tensor and the axis.
    """
    name, dtype = param.tensor, param.dtype or tensor.dtype
    axes = _axes(param, tensor, DTYPE_BYTES[dtype], symbols)
    strides: list[int] = []
    for dim in param.dims[1:]:
        stride = axes.strides_bytes[dim.axis] * dim.step
        if stride % STRIDE_MULTIPLE_BYTES or not 0 <= stride < STRIDE_LIMIT_BYTES:
            raise SpecError(
                f"{name} has a stride of {tensor.strides[dim.axis]} elements along axis "
                f"{dim.axis}: TMA needs a multiple of {STRIDE_MULTIPLE_BYTES} bytes from 0 to "
                f"2^40, got {stride} bytes; copy {name} into a dense tensor"
            )
        strides.append(stride)
    address += sum(dim.first * axes.strides_bytes[dim.axis] for dim in param.dims)
    if address % ADDRESS_ALIGNMENT_BYTES:
        raise SpecError(
            f"{name} starts at {address:#x}: TMA needs an address that is a multiple of "
            f"{ADDRESS_ALIGNMENT_BYTES} bytes"
        )
    extents = tuple(max(evaluate(dim.extent, axes.symbols), 1) for dim in param.dims)
    _check_reach(param, axes, extents)
    if max(extents) > EXTENT_LIMIT:
        raise SpecError(f"{name} has an extent of {max(extents)}: TMA allows up to 2^32")
    return MapDescription(
        dtype=dtype,
        item_bytes=DTYPE_BYTES[dtype],
        address=address,
        extents=extents,
        strides_bytes=tuple(strides),
        box=param.box,
        swizzle=param.swizzle,
        l2=param.l2,
    )


def _axes(
    param: TensorMapParam, tensor: TensorView, item_bytes: int, symbols: Mapping[str, int]
) -> _Axes:
    """How a map of elements of `item_bytes` sees a tensor.

    Raises:
      SpecError: rows that are no whole number of such elements, or axes that cannot be merged.
    """
    sizes = list(tensor.shape)
    strides = [stride * tensor.item_bytes for stride in tensor.strides]
    if item_bytes != tensor.item_bytes:
        dense = param.dims[0].axis
        row_bytes = sizes[dense] * tensor.item_bytes
        if row_bytes % item_bytes:
            raise SpecError(
                f"{param.tensor} has rows of {row_bytes} bytes, its tensor map takes elements of "
                f"{item_bytes}: pad the rows to a multiple"
            )
        sizes[dense], strides[dense] = row_bytes // item_bytes, item_bytes
    if param.merged is None:
        return _Axes(sizes, strides, symbols)
    outer, inner = param.merged.outer, param.merged.inner
    sizes[inner] = _merged_size(param.tensor, param.merged, sizes, strides)
    sizes[outer] = 1
    return _Axes(sizes, strides, {**symbols, param.merged.extent: sizes[inner]})


def _merged_size(name: str, merged: Merged, sizes: list[int], strides: list[int]) -> int:
    """Elements from the first to the last of two axes, in steps along the inner one."""
    outer, inner = merged.outer, merged.inner
    if not sizes[outer] or not sizes[inner]:
        return 0
    count, pitch = sizes[inner], 0
    if sizes[outer] > 1:
        pitch, remainder = divmod(strides[outer], strides[inner]) if strides[inner] else (0, 1)
        if remainder:
            raise SpecError(
                f"{name} has strides of {strides[outer]} and {strides[inner]} bytes along the axes "
                f"{outer} and {inner}, which its tensor map walks as one: the first must be a "
                f"multiple of the second; copy {name} into a dense tensor"
            )
        count += (sizes[outer] - 1) * pitch
    if pitch % merged.multiple or count % merged.multiple:
        raise SpecError(
            f"{name} has {sizes[inner]} steps along axis {inner} and {pitch} to the next of axis "
            f"{outer}: its tensor map takes multiples of {merged.multiple}"
        )
    if count >= COORDINATE_LIMIT:
        raise SpecError(
            f"{name} has {count} steps along the axes {outer} and {inner}: coordinates of TMA "
            "have 32 bits; split the tensor"
        )
    return count


def _check_reach(param: TensorMapParam, axes: _Axes, extents: tuple[int, ...]) -> None:
    """Refuse a map that ends elsewhere along some axis than its recipe says.

    Raises:
      SpecError: names the tensor and the axis.
    """
    last = [0] * len(axes.sizes)  # the last element that the recipe knows of along each axis
    for dim, extent in zip(param.dims, extents, strict=True):
        last[dim.axis] += dim.first + (extent - 1) * dim.step + dim.rest
    for axis, (end, size) in enumerate(zip(last, axes.sizes, strict=True)):
        if size and end != size - 1:
            raise SpecError(
                f"bundle.json: the tensor map of {param.tensor} ends with element {end} along "
                f"axis {axis}, the tensor with {size - 1}: compile the bundle again"
            )


def encode(description: MapDescription) -> bytes:
    """The 128 bytes of a tensor map, as the driver writes them for the same arguments."""
    rank = len(description.extents)
    words = [0] * (MAP_BYTES // 4)
    words[0] = description.address & 0xFFFFFFFF
    words[1] = description.address >> 32
    words[2] = (
        (rank - 1) << 4
        | ELEMENT_CODES[description.copied_as] << 7
        | SWIZZLE_CODES[description.swizzle] << 13
        | L2_PROMOTIONS.index(description.l2) << 17
    )
    for index, stride in enumerate(description.strides_bytes):
        words[3 + index] = (stride >> 4) & 0xFFFFFFFF
        words[7] |= (stride >> 36) << (4 * index)
    for index, extent in enumerate(description.extents):
        words[8 + index] = extent - 1
    words[13] = (description.box[0] - 1) << 24  # element strides of 1: their fields are 0
    for index, box in enumerate(description.box[1:]):
        words[14] |= (box - 1) << (8 * index)
    words[16] = description.item_bytes * math.prod(description.box)
    words[18] = _SWIZZLE_FLAGS[description.swizzle]
    return struct.pack("<32I", *words)
