"""The 128-byte CUtensorMap, decoded from its bits and checked (spec-ptx 7.4).

Only words 0..14 are read: other encoders leave garbage in the rest.

Ambiguities resolved here:
  - spec 7.4 and 16.2, bits 1 and 21 of word 2: ignored.
  - interleaved layouts and im2col maps fault as unsupported.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .faults import Fault
from .swizzle import SWIZZLES

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT_BYTES = 64

# hardware element code -> (name, bytes per element); packed 4- and 6-bit types count sixteenths
# of a group and are described by `PACKED`; spec-ptx 7.4
_ELEMENTS = {
    0: ("u8", 1),
    1: ("u16", 2),
    2: ("u32", 4),
    3: ("s32", 4),
    4: ("u64", 8),
    5: ("s64", 8),
    6: ("f16", 2),
    7: ("f32", 4),
    8: ("f32.ftz", 4),
    9: ("f64", 8),
    10: ("bf16", 2),
}
# hardware code -> (name, global bytes per 16 elements, shared bytes per 16 elements)
_PACKED = {11: ("b4x16", 8, 8), 12: ("b4x16_p64", 8, 16), 13: ("b6x16_p32", 12, 16)}
_FLOATS = ("f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz")
_SWIZZLE_NAMES = (
    "none",
    "32B",
    "64B",
    "128B",
    "128B_atom32B",
    "128B_atom32B_flip8B",
    "128B_atom64B",
)


@dataclass(frozen=True)
class TensorMap:
    """A decoded map. Dimension 0 is the fastest.

    Attributes:
      base: global address. rank: 1..5.
      dims: extents in elements. strides: bytes per step of each dimension; strides[0] is the
        element's own size (0 for packed types, which are smaller than a byte).
      box: box extents in elements. element_strides: per dimension; entry 0 is 1.
      counts: elements that one transfer moves per dimension, ceil(box / element_stride).
      element: "u8" .. "bf16", "tf32", "tf32.ftz", "b4x16", "b4x16_p64" or "b6x16_p32".
      global_row_bytes, shared_row_bytes: bytes of counts[0] elements on either side.
      swizzle: a key of `SWIZZLES`.
      oob_nan: out-of-bounds elements read as NaN instead of zero.
    """

    base: int
    rank: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    counts: tuple[int, ...]
    element: str
    element_bytes: int
    global_row_bytes: int
    shared_row_bytes: int
    swizzle: str
    oob_nan: bool

    @property
    def is_packed(self) -> bool:
        """4- or 6-bit elements, moved in groups of 16."""
        return self.element_bytes == 0

    @property
    def row_count(self) -> int:
        """Rows (everything but dimension 0) of one box."""
        rows = 1
        for n in self.counts[1:]:
            rows *= n
        return rows

    @property
    def box_bytes(self) -> int:
        """Bytes credited to the mbarrier by a full-box load, out-of-bounds elements included.

        The gaps that packed types leave in shared memory do not count: CUTLASS and quack-kernels
        expect the packed bytes alone.
        """
        return self.row_count * self.global_row_bytes

    @property
    def pitch_bytes(self) -> int:
        """Distance between rows in shared memory: the swizzle span, or the row itself."""
        span = SWIZZLES[self.swizzle].span_bytes
        return self.shared_row_bytes if self.swizzle == "none" else span


def decode(raw: bytes | npt.NDArray[np.uint8]) -> TensorMap:
    """Decode and check a tensor map.

    Raises:
      Fault: "tensor-map", naming the field, what was got and what is allowed.
    """
    data = bytes(raw)
    if len(data) != TENSOR_MAP_BYTES:
        raise Fault("tensor-map", f"a tensor map has {TENSOR_MAP_BYTES} bytes, got {len(data)}")
    return _decode(data[:60])


def _bits(value: int, low: int, high: int) -> int:
    return (value >> low) & ((1 << (high - low)) - 1)


@lru_cache(maxsize=512)
def _decode(data: bytes) -> TensorMap:
    w = [int(x) for x in np.frombuffer(data, "<u4")]
    flags = w[2]
    if flags & 1:
        raise Fault("unsupported", "im2col tensor maps are not modelled")
    if _bits(flags, 11, 13):
        raise Fault("unsupported", "interleaved tensor maps are not modelled")
    rank = _bits(flags, 4, 7) + 1
    if rank > 5:
        raise _reject(f"rank {rank}: 1..5 allowed")
    code = _bits(flags, 7, 11)
    swizzle_code = _bits(flags, 13, 15) + _bits(flags, 19, 21)
    if swizzle_code >= len(_SWIZZLE_NAMES):
        raise _reject(f"swizzle code {swizzle_code} is unknown")
    swizzle = _SWIZZLE_NAMES[swizzle_code]
    base = w[0] | w[1] << 32
    strides = tuple((w[3 + i] | _bits(w[7], 4 * i, 4 * i + 4) << 32) << 4 for i in range(rank - 1))
    dims = tuple(w[8 + i] + 1 for i in range(rank))
    box_words = [_bits(w[13], 24, 32)] + [_bits(w[14], 8 * i, 8 * i + 8) for i in range(4)]
    box = tuple(b + 1 for b in box_words[:rank])
    steps = tuple(1 if i == 0 else _bits(w[13], 3 * i, 3 * i + 3) + 1 for i in range(rank))
    counts = tuple(-(-b // s) for b, s in zip(box, steps, strict=True))
    if code in _PACKED:
        element, global_group, shared_group = _PACKED[code]
        element_bytes = 0
        if box[0] % 16:
            raise _reject(f"box[0] {box[0]} of {element} must be a multiple of 16")
        global_row_bytes = counts[0] // 16 * global_group
        shared_row_bytes = counts[0] // 16 * shared_group
    elif code in _ELEMENTS:
        element, element_bytes = _ELEMENTS[code]
        if _bits(flags, 16, 17):
            if not element.startswith("f32"):
                raise _reject(f"the tf32 flag is set on elements of type {element}")
            element = element.replace("f32", "tf32")
        global_row_bytes = shared_row_bytes = counts[0] * element_bytes
    else:
        raise _reject(f"element code {code} is unknown")
    _check(base, element, dims, strides, shared_row_bytes, swizzle)
    oob_nan = bool(_bits(flags, 15, 16))
    if oob_nan and element not in _FLOATS:
        raise _reject(f"NaN fill needs a floating-point type, got {element}")
    return TensorMap(
        base=base,
        rank=rank,
        dims=dims,
        strides=(element_bytes, *strides),
        box=box,
        element_strides=steps,
        counts=counts,
        element=element,
        element_bytes=element_bytes,
        global_row_bytes=global_row_bytes,
        shared_row_bytes=shared_row_bytes,
        swizzle=swizzle,
        oob_nan=oob_nan,
    )


def _check(
    base: int,
    element: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    shared_row_bytes: int,
    swizzle: str,
) -> None:
    """The rules of spec-ptx 7.4 that a decoded map can still break."""
    aligned_32 = element in ("b4x16_p64", "b6x16_p32")
    alignment = 32 if aligned_32 else 16
    if base % alignment:
        raise _reject(f"global address 0x{base:x} must be a multiple of {alignment}")
    for i, stride in enumerate(strides):
        if stride % alignment:
            raise _reject(f"stride {stride} B of dimension {i + 1}: a multiple of {alignment}")
    if aligned_32 and dims[0] % 128:
        raise _reject(f"dim[0] {dims[0]} of {element} must be a multiple of 128")
    if shared_row_bytes % 16:
        raise _reject(f"inner box of {shared_row_bytes} B must be a multiple of 16 B")
    span = SWIZZLES[swizzle].span_bytes
    if swizzle != "none" and shared_row_bytes > span:
        raise _reject(
            f"inner box of {shared_row_bytes} B exceeds the {span} B of swizzle {swizzle}"
        )


def _reject(why: str) -> Fault:
    return Fault("tensor-map", why)
