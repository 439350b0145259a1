"""Global and shared memory: bytes with an address window, read and written a warp at a time.

Lane accesses are vectorised: `load` and `store` take one address per lane and a width in bytes.
Every access is checked for bounds and natural alignment (`Fault` kinds "out-of-bounds" and
"misaligned"); shared memory can also track which bytes were ever written ("uninitialised").
"""

from bisect import bisect_right
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import SpecError

from .faults import Fault
from .watch import GlobalWatch, MemoryWatch, Unwritten, refuse_unwritten

Bytes = npt.NDArray[np.uint8]
Addresses = npt.NDArray[np.integer[Any]]
Parts = tuple[tuple[int, int], ...]  # of an access: first byte and count, a power of two

GLOBAL_FIRST_ADDRESS = 0x10_0000_0000  # above 4 GiB, so that a truncated pointer faults
GLOBAL_ALIGNMENT_BYTES = 256  # what cudaMalloc guarantees
GLOBAL_GUARD_BYTES = 4096  # unmapped bytes between two mappings
SHARED_BASE = 0x400  # first user byte of a CTA's window on sm_90 and later; spec-ptx 8
SHARED_WINDOW_BYTES = 0x40000  # 18-bit addresses in matrix descriptors; spec-ptx 2.4
ACCESS_WIDTHS = (1, 2, 4, 8, 16, 32)  # bytes per lane; 32 is the 256-bit global access of sm_100


class ByteRange:
    """Consecutive bytes that start at address `base`.

    Attributes:
      base: address of `data[0]`.
      data: the bytes, aliased.
    """

    def __init__(self, base: int, data: Bytes):
        self.base = base
        self.data = data
        self._rows: dict[int, Bytes] = {
            width: data[: data.size // width * width].reshape(-1, width)
            for width in ACCESS_WIDTHS
            if base % width == 0
        }

    @property
    def end(self) -> int:
        """Address just after the last byte."""
        return self.base + self.data.size

    def rows(self, width: int) -> Bytes | None:
        """The bytes as uint8[count, width], or None when `base` is not aligned to `width`."""
        return self._rows.get(width)


def _contiguous_bytes(array: npt.NDArray[Any]) -> Bytes:
    """The memory from the first to the last byte of `array`, aliased, as uint8[n].

    Raises:
      SpecError: a stride is negative, so the first element is not the lowest address.
    """
    if array.size == 0:
        return np.zeros(0, np.uint8)
    if any(s < 0 for s in array.strides):
        raise SpecError(f"cannot map an array with negative strides, got strides {array.strides}")
    extent = array.itemsize + sum(
        (n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)
    )
    first = np.lib.stride_tricks.as_strided(array, shape=(1,), strides=(array.itemsize,))
    flat = first.view(np.uint8)
    writeable = array.flags.writeable
    return np.lib.stride_tricks.as_strided(flat, shape=(extent,), strides=(1,), writeable=writeable)


def reach_of(addresses: Addresses, width: int) -> tuple[int, int]:
    """The lowest address, and the end of the access of `width` bytes with the highest."""
    return int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses)) + width


def _check_aligned(addresses: Addresses, width: int) -> None:
    if int(np.bitwise_or.reduce(addresses)) & (width - 1):
        lane = int(np.flatnonzero(addresses & (width - 1))[0])
        raise Fault(
            "misaligned",
            f"a {width}-byte access needs a multiple of {width}",
            address=int(addresses[lane]),
            byte_count=width,
            lane=lane,
        )


def _check_width(width: int) -> None:
    assert width in ACCESS_WIDTHS, f"access width {width} is not one of {ACCESS_WIDTHS}"


class GlobalMemory:
    """The device's memory: numpy arrays mapped at addresses, with unmapped gaps between them.

    Attributes:
      watch: is told of what engines access, or None.
    """

    def __init__(self) -> None:
        self._ranges: list[ByteRange] = []
        self._bases: list[int] = []
        self._last: ByteRange | None = None
        self.watch: GlobalWatch | None = None
        self._next = GLOBAL_FIRST_ADDRESS

    def map(self, array: npt.NDArray[Any], address: int | None = None) -> int:
        """Make `array` visible to the device and return the address of its first element.

        Args:
          array: aliased, never copied; a strided array is mapped with the bytes between its
            elements. An empty array gets an address with no accessible byte.
          address: where to put it; None picks a 256-byte aligned address after all others.

        Raises:
          SpecError: the range overlaps an earlier mapping, or strides are negative.
        """
        data = _contiguous_bytes(array)
        if address is None:
            address = self._next
        elif address <= 0:
            raise SpecError(f"cannot map at address {address}: it must be positive")
        end = address + data.size
        at = bisect_right(self._bases, address)
        for other in self._ranges[max(at - 1, 0) : at + 1]:
            if address < other.end and other.base < end:
                raise SpecError(
                    f"cannot map 0x{address:x}..0x{end:x}: it overlaps the mapping "
                    f"0x{other.base:x}..0x{other.end:x}"
                )
        self._ranges.insert(at, ByteRange(address, data))
        self._bases.insert(at, address)
        after = end + GLOBAL_GUARD_BYTES
        self._next = max(self._next, -(-after // GLOBAL_ALIGNMENT_BYTES) * GLOBAL_ALIGNMENT_BYTES)
        return address

    def unmap(self, address: int) -> None:
        """Remove the mapping that starts at `address`; its addresses are not used again.

        Raises:
          SpecError: no mapping starts there.
        """
        if address not in self._bases:
            raise SpecError(f"nothing is mapped at 0x{address:x}")
        at = self._bases.index(address)
        del self._ranges[at], self._bases[at]
        self._last = None

    @property
    def ranges(self) -> list[ByteRange]:
        """The mappings by address; others for the same addresses may be put in their place."""
        return list(self._ranges)

    @ranges.setter
    def ranges(self, ranges: list[ByteRange]) -> None:
        assert [mapped.base for mapped in ranges] == self._bases
        self._ranges = list(ranges)
        self._last = None

    def find(self, address: int, byte_count: int) -> ByteRange:
        """The mapping that holds all of [address, address + byte_count).

        Raises:
          Fault: "out-of-bounds"; the message names the nearest mapping below.
        """
        last = self._last
        if last is not None and last.base <= address and address + byte_count <= last.end:
            return last
        at = bisect_right(self._bases, address) - 1
        if at >= 0:
            mapped = self._ranges[at]
            if address + byte_count <= mapped.end:
                self._last = mapped
                return mapped
            nearest = f"the nearest mapping below is 0x{mapped.base:x}..0x{mapped.end:x}"
        else:
            nearest = "no mapping lies below it"
        raise Fault(
            "out-of-bounds",
            f"not in global memory; {nearest}",
            address=address,
            byte_count=byte_count,
        )

    def view(self, address: int, byte_count: int, *, writing: bool = False) -> Bytes:
        """uint8[byte_count], aliasing the device's bytes at `address`.

        Args:
          writing: the caller will write it; faults if the mapped array is read-only.
        """
        mapped = self.find(address, byte_count)
        if writing and not mapped.data.flags.writeable:
            raise _read_only(address, byte_count)
        start = address - mapped.base
        return mapped.data[start : start + byte_count]

    def load(self, addresses: Addresses, width: int, used: Parts | None = None) -> Bytes:
        """Read `width` bytes at each address, used or not: uint8[len(addresses), width]."""
        _check_width(width)
        if addresses.size == 0:
            return np.zeros((0, width), np.uint8)
        mapped = self._common_range(addresses, width)
        if mapped is not None:
            rows = mapped.rows(width)
            assert rows is not None
            return rows.take((addresses - mapped.base) // width, axis=0)
        return np.stack([self._lane_view(addresses, lane, width) for lane in range(addresses.size)])

    def store(self, addresses: Addresses, values: Bytes) -> None:
        """Write values[i] (uint8[n, width]) at addresses[i]; of equal addresses the last wins.

        Raises:
          Fault: also "out-of-bounds" when the mapped array is read-only.
        """
        width = values.shape[1]
        _check_width(width)
        if addresses.size == 0:
            return
        mapped = self._common_range(addresses, width)
        if mapped is not None:
            if not mapped.data.flags.writeable:
                raise _read_only(int(addresses[0]), width)
            rows = mapped.rows(width)
            assert rows is not None
            rows[(addresses - mapped.base) // width] = values
            return
        views = [self._lane_view(addresses, lane, width) for lane in range(addresses.size)]
        for lane, view in enumerate(views):
            if not view.flags.writeable:
                raise _read_only(int(addresses[lane]), width)
            view[:] = values[lane]

    def _common_range(self, addresses: Addresses, width: int) -> ByteRange | None:
        """The mapping that holds every access, if there is one and it allows the fast path."""
        if width > 1:
            _check_aligned(addresses, width)
        low, high = reach_of(addresses, width)
        last = self._last
        if last is None or low < last.base or last.end < high:
            at = bisect_right(self._bases, low) - 1
            if at < 0 or self._ranges[at].end < high:
                return None
            self._last = last = self._ranges[at]
        return None if last.rows(width) is None else last

    def _lane_view(self, addresses: Addresses, lane: int, width: int) -> Bytes:
        try:
            return self.view(int(addresses[lane]), width)
        except Fault as fault:
            raise Fault(
                fault.kind,
                fault.message,
                address=fault.address,
                byte_count=width,
                lane=lane,
            ) from None


def _read_only(address: int, width: int) -> Fault:
    return Fault(
        "out-of-bounds",
        "a store to memory that is read-only: an input, .const or a parameter",
        address=address,
        byte_count=width,
    )


_ALL_WRITTEN = np.uint64(0x0101_0101_0101_0101)  # eight bytes of `initialised`


def _aligned_zeros(byte_count: int) -> Bytes:
    """uint8[byte_count] of zeros whose first byte is 64-byte aligned on the host."""
    raw = np.zeros(byte_count + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + byte_count]


class SharedMemory:
    """One CTA's shared memory, addressed by 24-bit offsets; user bytes begin at 0x400.

    Attributes:
      data: uint8[...], indexed by the offset itself (the reserved first KiB is present, unused).
      units: the same bytes as uint64[n, 2], indexed by offset // 16: what matrix descriptors and
        TMA boxes move. Bulk accesses through `units` are checked by `check_units`.
      initialised: bool per byte, or None when not tracked.
      unwritten: is told of reads of bytes never written, when those are tracked.
      watch: is told of what engines access, or None.
    """

    def __init__(self, byte_count: int, track_initialised: bool = False):
        if byte_count < 0 or SHARED_BASE + byte_count > SHARED_WINDOW_BYTES:
            raise SpecError(
                f"shared memory of {byte_count} B does not fit: the window has "
                f"{SHARED_WINDOW_BYTES - SHARED_BASE} B"
            )
        self.watch: MemoryWatch | None = None
        self.unwritten: Unwritten = refuse_unwritten
        self.byte_count = byte_count
        self.end = SHARED_BASE + byte_count
        self.data = _aligned_zeros(-(-self.end // 32) * 32)
        self.units = cast(npt.NDArray[np.uint64], self.data.view(np.uint64).reshape(-1, 2))
        self._rows = {width: self.data.reshape(-1, width) for width in ACCESS_WIDTHS}
        self.initialised: npt.NDArray[np.bool_] | None = (
            np.zeros(self.data.size, np.bool_) if track_initialised else None
        )

    def view(self, offset: int, byte_count: int, *, writing: bool = False) -> Bytes:
        """uint8[byte_count], aliasing the bytes at `offset`.

        Args:
          writing: the caller will overwrite all of it; otherwise it is checked as a read.
        """
        if offset < SHARED_BASE or offset + byte_count > self.end:
            raise self._out_of_bounds(offset, byte_count, None)
        if self.watch is not None:
            self.watch.span(offset, byte_count, writing)
        if self.initialised is not None:
            if writing:
                self.initialised[offset : offset + byte_count] = True
            else:
                self._check_written(np.array([offset]), byte_count)
        return self.data[offset : offset + byte_count]

    def load(self, offsets: Addresses, width: int, used: Parts | None = None) -> Bytes:
        """Read `width` bytes at each offset: uint8[len(offsets), width].

        Args:
          used: the parts of them that somebody wrote, if they are to be used; None: all.
        """
        self._check(offsets, width)
        at = offsets // width
        if self.initialised is not None:
            if used is not None:
                for start, size in used:
                    self._check_written(offsets + start, size)
            else:
                written = self.initialised.reshape(-1, width).take(at, axis=0)
                if np.count_nonzero(written) < written.size:
                    self._check_written(offsets, width)
        return self._rows[width].take(at, axis=0)

    def store(self, offsets: Addresses, values: Bytes) -> None:
        """Write values[i] (uint8[n, width]) at offsets[i]; of equal offsets the last wins."""
        width = values.shape[1]
        self._check(offsets, width)
        at = offsets // width
        self._rows[width][at] = values
        if self.initialised is not None:
            self.initialised.reshape(-1, width)[at] = True

    def fill(self, offset: int, byte_count: int, value: int = 0) -> None:
        """Set bytes to one value (st.bulk, poisoning)."""
        self.view(offset, byte_count, writing=True)[:] = value

    def check_units(self, low: int, high: int, *, what: str) -> None:
        """Fault unless all 16-byte units in [low, high) lie in the window.

        Args:
          low: lowest unit index (offset // 16). high: one past the highest.
          what: for the message, such as "operand A".
        """
        if low * 16 < SHARED_BASE or high * 16 > self.end:
            raise Fault(
                "out-of-bounds",
                f"{what} leaves shared memory 0x{SHARED_BASE:x}..0x{self.end:x}",
                address=low * 16,
                byte_count=(high - low) * 16,
            )

    def check_units_written(
        self,
        units: npt.NDArray[np.intp],
        *,
        what: str,
        used: npt.NDArray[np.bool_] | None = None,
        quarters: int | None = None,
        bytes_per_unit: int = 16,
    ) -> None:
        """Fault if tracking is on and some byte of the given 16-byte units was never written.

        `used` says which units' values go anywhere; all of them when absent. `quarters`: as
        `MemoryWatch.units`. The first `bytes_per_unit` of each unit are read.
        """
        if self.watch is not None:
            self.watch.units(units, False, quarters)
        if self.initialised is None:
            return
        units = units if used is None else units[used]
        if bytes_per_unit == 16:
            halves = self.initialised.view(np.uint64).reshape(-1, 2)[units] == _ALL_WRITTEN
            if np.count_nonzero(halves) == halves.size:
                return
        written = self.initialised.reshape(-1, 16)[units, :bytes_per_unit].all(axis=-1)
        if not written.all():
            first = int(units[~written].min()) * 16
            message = f"{what} reads bytes never written"
            self.unwritten(Fault("uninitialised", message, address=first, byte_count=16), 16)

    def mark_units_written(self, units: npt.NDArray[np.intp]) -> None:
        """Record a bulk write through `units`."""
        if self.watch is not None:
            self.watch.units(units, True)
        if self.initialised is not None:
            self.initialised.reshape(-1, 16)[units] = True

    def _check(self, offsets: Addresses, width: int) -> None:
        _check_width(width)
        if offsets.size == 0:
            return
        low, high = reach_of(offsets, width)
        if low < SHARED_BASE or high > self.end:
            bad = (offsets < SHARED_BASE) | (offsets.astype(np.int64) + width > self.end)
            lane = int(np.flatnonzero(bad)[0])
            raise self._out_of_bounds(int(offsets[lane]), width, lane)
        if width > 1:
            _check_aligned(offsets, width)

    def _check_written(self, offsets: Addresses, width: int) -> None:
        assert self.initialised is not None
        bytes_of = offsets.astype(np.int64)[:, None] + np.arange(width)
        written = self.initialised[bytes_of]
        if np.count_nonzero(written) < written.size:
            written = written.all(axis=1)
            lane = int(np.flatnonzero(~written)[0])
            fault = Fault(
                "uninitialised",
                "shared memory read before any write",
                address=int(offsets[lane]),
                byte_count=width,
                lane=lane,
            )
            self.unwritten(fault, width)

    def _out_of_bounds(self, offset: int, byte_count: int, lane: int | None) -> Fault:
        return Fault(
            "out-of-bounds",
            f"not in shared memory 0x{SHARED_BASE:x}..0x{self.end:x}",
            address=offset,
            byte_count=byte_count,
            lane=lane,
        )
