"""The copy engine: boxes of tensors, and gathered rows, between global and shared memory.

Every function does its copy when called and returns the bytes that a load credits to its mbarrier.
Multicast is the caller's loop over destination CTAs. Rows of a box are laid out at the swizzle
span's pitch and swizzled by absolute shared offsets (spec-ptx 7.2, 7.5).

Measured on an H200 (sm_90, driver 580.159, 2026-11; redo with the tests
test/emulator/test_hopper_*.py), where the description is silent:
  - the first coordinate must be a multiple of 16 bytes: anything else is an illegal instruction.
  - a store or reduction whose start has a negative coordinate is an illegal instruction.
  - stores and reductions act on whole 16-byte chunks of a row: where the tensor's row ends inside
    a chunk, the bytes after it are written too (loads fill such elements one by one).
  - a load of which nothing lies inside the tensor touches the map's base: where no memory is mapped
    there, it is an illegal address (make gpu, `an_empty_box_needs_memory_at_the_base`). A load with
    an element inside does not, wherever the base lies, and neither does a store.

Ambiguities resolved here:
  - spec 7.2, TFLOAT32 maps: in-bounds values are rounded to nearest even on load, NaN becomes
    0x7FFFE000; stores write the bits as they are.
  - spec 7.2, an inner box shorter than the swizzle span leaves the rest of each row untouched.
  - spec 7.4, packed 4- and 6-bit types: the first coordinate is a multiple of 16 elements.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .bulk import BULK_GRANULE_BYTES
from .faults import Fault
from .memory import Bytes, GlobalMemory, SharedMemory
from .reductions import as_bytes, reduce_values, storage_type
from .swizzle import SWIZZLES, xor_addresses
from .tensormap import TensorMap

_OOB_NAN = 0x7FF7  # every 16-bit piece of an out-of-bounds element; spec-ptx 7.2
_ADDRESSES = 1 << 64  # coordinates times strides may move a box back by wrapping round


class _Window:
    """The in-bounds part of a box: which of its elements exist in global memory.

    Attributes:
      inside: slices into the box as [counts[-1], .., counts[1], row bytes].
      target: view of global memory with the same shape as box[inside], or None if it is empty.
      is_whole: every element of the box is in bounds.
    """

    def __init__(
        self,
        tmap: TensorMap,
        coords: Sequence[int],
        memory: GlobalMemory,
        *,
        writing: bool,
        adds: bool = False,
    ):
        if len(coords) != tmap.rank:
            raise Fault("tensor-map", f"{len(coords)} coordinates for a map of rank {tmap.rank}")
        if coords[0] * tmap.element_bytes % BULK_GRANULE_BYTES:
            raise Fault(
                "tensor-map",
                f"coordinate 0 is {coords[0]} elements of {tmap.element_bytes} B: it must be a "
                "multiple of 16 B",
            )
        first, slices, shape, strides = 0, list[slice](), list[int](), list[int]()
        self.is_whole = True
        for k in range(tmap.rank - 1, -1, -1):
            step, count = tmap.element_strides[k], tmap.counts[k]
            low = max(0, -(coords[k] // step))
            high = max(low, min(count, -(-(tmap.dims[k] - coords[k]) // step)))
            self.is_whole &= low == 0 and high == count
            if k == 0:
                low, high = _row_bytes(tmap, low), _row_bytes(tmap, high)
                if writing and high > low:
                    high = min(-(-high // 16) * 16, tmap.global_row_bytes)
                first += _row_bytes(tmap, coords[0]) + low
                strides.append(1)
            else:
                first += (coords[k] + low * step) * tmap.strides[k]
                strides.append(step * tmap.strides[k])
            slices.append(slice(low, high))
            shape.append(high - low)
        self.inside = tuple(slices)
        self.target: Bytes | None = None
        if all(shape):
            address = (tmap.base + first) % _ADDRESSES
            extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            data = memory.view(address, extent, writing=writing)
            if memory.watch is not None:
                memory.watch.box(address, shape, strides, writing, adds)
            self.target = np.lib.stride_tricks.as_strided(data, shape, strides)


def _require_base(tmap: TensorMap, memory: GlobalMemory, *windows: _Window) -> None:
    """Fault if nothing of a load lies inside the tensor and nothing is mapped at the map's base."""
    if any(window.target is not None for window in windows):
        return
    try:
        memory.find(tmap.base, 1)
    except Fault as fault:
        raise Fault(
            fault.kind,
            "nothing of the box lies inside the tensor: such a load touches the base of its tensor "
            f"map, which is {fault.message}",
            address=tmap.base,
        ) from None


def _row_bytes(tmap: TensorMap, elements: int) -> int:
    """Global bytes of `elements` elements along dimension 0."""
    if tmap.is_packed:
        if elements % 16:
            raise Fault("tensor-map", f"{tmap.element} moves 16 elements at once, got {elements}")
        return elements // 16 * (12 if tmap.element == "b6x16_p32" else 8)
    return elements * tmap.element_bytes


@lru_cache(maxsize=1024)
def _row_units(
    address: int, rows: int, row_bytes: int, pitch: int, swizzle: str
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_] | None, int, int]:
    """Where the 16-byte units of a box go in shared memory.

    Returns:
      Unit indices [rows * units per row]; which units have their 8-byte halves swapped, or None;
      the lowest index, and one past the highest.
    """
    linear = address + np.arange(rows)[:, None] * pitch + np.arange(0, row_bytes, 16)[None, :]
    placed = xor_addresses(linear.reshape(-1), swizzle)
    units = (placed >> 4).astype(np.intp)
    flipped = placed & 8 != 0 if SWIZZLES[swizzle].flips_8_bytes else None
    return units, flipped, int(units.min()), int(units.max()) + 1


def _check_shared_address(tmap: TensorMap, address: int) -> None:
    alignment = 16 if tmap.swizzle == "none" else 128
    if address % alignment:
        raise Fault(
            "misaligned",
            f"a box with swizzle {tmap.swizzle} needs a multiple of {alignment} in shared memory",
            address=address,
        )


def _write_rows(shared: SharedMemory, tmap: TensorMap, address: int, rows: Bytes) -> None:
    """Place rows uint8[n, shared_row_bytes] in shared memory."""
    _check_shared_address(tmap, address)
    units, flipped, low, high = _row_units(
        address, rows.shape[0], rows.shape[1], tmap.pitch_bytes, tmap.swizzle
    )
    shared.check_units(low, high, what="the box in shared memory")
    values = rows.view(np.uint64).reshape(-1, 2)
    if flipped is not None:
        values = np.where(flipped[:, None], values[:, ::-1], values)
    shared.units[units] = values
    shared.mark_units_written(units)


def _read_rows(
    shared: SharedMemory,
    tmap: TensorMap,
    address: int,
    row_count: int,
    used: npt.NDArray[np.bool_] | None = None,
) -> Bytes:
    """The inverse of `_write_rows`: uint8[row_count, shared_row_bytes].

    `used` says for each 16-byte unit, in order, whether it is written anywhere.
    """
    _check_shared_address(tmap, address)
    if tmap.swizzle == "128B_atom32B_flip8B":
        raise Fault("tensor-map", f"swizzle {tmap.swizzle} is for loads only")
    units, _, low, high = _row_units(
        address, row_count, tmap.shared_row_bytes, tmap.pitch_bytes, tmap.swizzle
    )
    shared.check_units(low, high, what="the box in shared memory")
    shared.check_units_written(units, what="the copy engine", used=used)
    return shared.units.take(units, axis=0).view(np.uint8).reshape(row_count, -1)


def _fetch(tmap: TensorMap, window: _Window) -> Bytes:
    """One box from global memory as rows uint8[rows, shared_row_bytes], filled and converted."""
    shape = (*reversed(tmap.counts[1:]), tmap.global_row_bytes)
    if window.is_whole:
        assert window.target is not None
        box = np.ascontiguousarray(window.target)
    else:
        box = np.zeros(shape, np.uint8)
        if window.target is not None:
            box[window.inside] = window.target
    if tmap.element.startswith("tf32"):
        box = _round_to_tf32(box.view(np.uint32)).view(np.uint8)
    if tmap.oob_nan and not window.is_whole:
        filled = np.full((*shape[:-1], shape[-1] // 2), _OOB_NAN, np.uint16).view(np.uint8)
        if window.target is not None:
            filled[window.inside] = box[window.inside]
        box = filled
    rows = box.reshape(tmap.row_count, tmap.global_row_bytes)
    if tmap.is_packed and tmap.global_row_bytes != tmap.shared_row_bytes:
        groups = tmap.shared_row_bytes // 16
        padded = np.zeros((tmap.row_count, groups, 16), np.uint8)
        padded[..., : tmap.global_row_bytes // groups] = rows.reshape(tmap.row_count, groups, -1)
        rows = padded.reshape(tmap.row_count, -1)
    return rows


def _round_to_tf32(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """float32 bits to the nearest tf32, ties to even."""
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    rounded = (bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)
    return np.where(nan, np.uint32(0x7FFFE000), rounded)


def _to_global_rows(tmap: TensorMap, rows: Bytes) -> Bytes:
    """Shared rows as a box [counts[-1], .., counts[1], global_row_bytes]."""
    if tmap.element == "b4x16_p64":
        raise Fault("tensor-map", f"{tmap.element} is for loads only")
    if tmap.is_packed and tmap.global_row_bytes != tmap.shared_row_bytes:
        groups = tmap.shared_row_bytes // 16
        used = tmap.global_row_bytes // groups
        rows = np.ascontiguousarray(rows.reshape(-1, groups, 16)[..., :used])
    return rows.reshape(*reversed(tmap.counts[1:]), tmap.global_row_bytes)


def load_tile(
    tmap: TensorMap,
    coords: Sequence[int],
    memory: GlobalMemory,
    shared: SharedMemory,
    address: int,
) -> int:
    """cp.async.bulk.tensor, global to shared.

    Args:
      coords: signed element indices, fastest dimension first.
      address: destination offset in `shared`.

    Returns:
      Bytes credited to the mbarrier: the full box, out-of-bounds elements included.

    Raises:
      Fault: rank, alignment, shared window, in-bounds elements that are not mapped, or no element
        in bounds and nothing mapped at the map's base.
    """
    window = _Window(tmap, coords, memory, writing=False)
    _require_base(tmap, memory, window)
    _write_rows(shared, tmap, address, _fetch(tmap, window))
    return tmap.box_bytes


def store_tile(
    tmap: TensorMap,
    coords: Sequence[int],
    memory: GlobalMemory,
    shared: SharedMemory,
    address: int,
) -> int:
    """cp.async.bulk.tensor, shared to global; 16-byte chunks out of bounds are not written.

    Returns:
      Bytes of the full box.
    """
    window = _store_window(tmap, coords, memory)
    used = _used_units(tmap, window)
    box = _to_global_rows(tmap, _read_rows(shared, tmap, address, tmap.row_count, used))
    if window.target is not None:
        window.target[...] = box[window.inside]
    return tmap.box_bytes


def reduce_tile(
    tmap: TensorMap,
    coords: Sequence[int],
    memory: GlobalMemory,
    shared: SharedMemory,
    address: int,
    operation: str,
) -> int:
    """cp.reduce.async.bulk.tensor: global = operation(global, shared) on in-bounds 16-byte chunks.

    Args:
      operation: add, min, max, inc, dec, and, or, xor; the type is the map's element type.
    """
    storage = storage_type(tmap.element)
    window = _store_window(tmap, coords, memory, adds=True)
    used = _used_units(tmap, window)
    box = _to_global_rows(tmap, _read_rows(shared, tmap, address, tmap.row_count, used))
    if window.target is not None:
        new = np.ascontiguousarray(box[window.inside]).view(storage)
        old = np.ascontiguousarray(window.target).view(storage)
        window.target[...] = as_bytes(reduce_values(operation, tmap.element, old, new))
    return tmap.box_bytes


def _used_units(tmap: TensorMap, window: _Window) -> npt.NDArray[np.bool_] | None:
    """Which 16-byte units of a box in shared memory lie in bounds; None where it is all of them."""
    if window.is_whole:
        return None
    *outer, row = window.inside
    units = tmap.shared_row_bytes // 16
    unit_bytes = tmap.global_row_bytes // units  # fewer than 16 where packed elements are spread
    used = np.zeros((*reversed(tmap.counts[1:]), units), np.bool_)
    used[(*outer, slice(row.start // unit_bytes, -(-row.stop // unit_bytes)))] = True
    return used.reshape(-1)


def _store_window(
    tmap: TensorMap, coords: Sequence[int], memory: GlobalMemory, *, adds: bool = False
) -> _Window:
    if any(c < 0 for c in coords):
        raise Fault("tensor-map", f"a store needs coordinates of at least 0, got {tuple(coords)}")
    return _Window(tmap, coords, memory, writing=True, adds=adds)


def _check_gather(tmap: TensorMap, coords: Sequence[int]) -> None:
    if tmap.rank != 2 or tmap.counts[1] != 1:
        raise Fault(
            "tensor-map",
            f"gather4/scatter4 needs a map of rank 2 with box[1] = 1, got rank {tmap.rank} and "
            f"box {tmap.box}",
        )
    if len(coords) != 5:
        raise Fault("tensor-map", f"gather4/scatter4 takes 5 coordinates, got {len(coords)}")


def gather4(
    tmap: TensorMap,
    coords: Sequence[int],
    memory: GlobalMemory,
    shared: SharedMemory,
    address: int,
) -> int:
    """.tile::gather4: rows coords[1..4] from column coords[0], laid out as a box of 4 rows."""
    _check_gather(tmap, coords)
    windows = [_Window(tmap, (coords[0], row), memory, writing=False) for row in coords[1:]]
    _require_base(tmap, memory, *windows)
    rows = [_fetch(tmap, window) for window in windows]
    _write_rows(shared, tmap, address, np.concatenate(rows))
    return 4 * tmap.box_bytes


def scatter4(
    tmap: TensorMap,
    coords: Sequence[int],
    memory: GlobalMemory,
    shared: SharedMemory,
    address: int,
) -> int:
    """.tile::scatter4: the store counterpart of `gather4`."""
    _check_gather(tmap, coords)
    windows = [_store_window(tmap, (coords[0], row), memory) for row in coords[1:]]
    units = np.ones(tmap.shared_row_bytes // 16, np.bool_)
    used = [_used_units(tmap, window) for window in windows]
    read = np.concatenate([units if part is None else part for part in used])
    rows = _read_rows(shared, tmap, address, 4, read)
    for row, window in zip(rows, windows, strict=True):
        if window.target is not None:
            window.target[...] = _to_global_rows(tmap, row[None])[window.inside]
    return 4 * tmap.box_bytes
