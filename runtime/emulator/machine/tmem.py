"""Tensor memory: 128 lanes x 512 columns of 32-bit cells, its allocator, and its data movement.

Covers spec-ptx 1 (allocation), 4.2 (tcgen05.ld/st register maps), 4.3 (cp) and 4.4 (shift). An
address is `lane << 16 | column`.

Ambiguities resolved here:
  - spec 1 and 16.9, placement of an allocation: the lowest free range that starts at a multiple of
    its own size.
  - spec 1, "successive allocations must not grow": enforced against the most recent allocation.
  - spec 1 and 16.4, a lane field in ld/st that names another warp's partition: the lane counts
    within the warp's own one (`own_address`); PTX says which lanes a warp may access, and not what
    such an address means.
  - spec 4.2, st.unpack::16b: the upper half of both cells becomes 0.
  - spec 4.4 and 16.5, shift: per 32-lane partition, the last lane keeps its value.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .descriptors import decode_smem, k_major_units
from .faults import Fault
from .formats import unpack_4_bit, unpack_6_bit
from .memory import SharedMemory
from .watch import MemoryWatch, Unwritten, refuse_unwritten

Cells = npt.NDArray[np.uint32]

TMEM_LANES = 128  # spec-ptx 1
TMEM_COLUMNS = 512  # spec-ptx 1
TMEM_GRANULE_COLUMNS = 32  # unit of allocation; spec-ptx 1
POISON = 0xFFC0DEAD  # a quiet NaN in every cell that was never written

# shape -> (registers per xN, columns per xN, lanes, largest N); spec-ptx 4.2
_SHAPES = {
    "32x32b": (1, 1, 32, 128),
    "16x64b": (1, 2, 16, 128),
    "16x128b": (2, 4, 16, 64),
    "16x256b": (4, 8, 16, 32),
    "16x32bx2": (1, 1, 16, 128),
}

# cp shape and multicast -> (rows, bytes per row, first lane of each copy of row r)
_COPY_ROWS = {
    ("128x256b", ""): (128, 32),
    ("128x128b", ""): (128, 16),
    ("4x256b", ""): (4, 32),
    ("64x128b", "warpx2::02_13"): (64, 16),
    ("64x128b", "warpx2::01_23"): (64, 16),
    ("32x128b", "warpx4"): (32, 16),
}


def register_count(shape: str, count: int) -> int:
    """32-bit registers that `tcgen05.{ld,st}.SHAPE.x<count>` moves.

    Raises:
      Fault: "tmem", for an unknown shape or a count that the shape does not have.
    """
    if shape not in _SHAPES:
        raise Fault("tmem", f"shape {shape} is not one of {', '.join(_SHAPES)}")
    per_count, _, _, largest = _SHAPES[shape]
    if count < 1 or count > largest or count & (count - 1):
        raise Fault("tmem", f"{shape}.x{count}: the count is a power of two up to {largest}")
    return per_count * count


def own_address(address: int, warp_rank: int) -> int:
    """The address moved to the own quarter of a warp, where its tcgen05.ld and .st begin."""
    lane = 32 * (warp_rank % 4) + (address >> 16) % 32
    return lane << 16 | address & 0xFFFF


@lru_cache(maxsize=256)
def _cell_map(
    shape: str, count: int, half_offset: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(lane, column) of register r of thread t, each [registers, 32], relative to the address."""
    r = np.arange(register_count(shape, count))[:, None]
    t = np.arange(32)[None, :]
    if shape == "32x32b":
        lane, column = t + 0 * r, r + 0 * t
    elif shape == "16x64b":
        lane, column = t // 4 + 8 * (t & 1) + 0 * r, 2 * r + ((t >> 1) & 1)
    elif shape == "16x128b":
        lane, column = t // 4 + 8 * (r & 1), 4 * (r >> 1) + (t & 3)
    elif shape == "16x256b":
        lane, column = t // 4 + 8 * ((r >> 1) & 1), 8 * (r >> 2) + 2 * (t & 3) + (r & 1)
    else:
        lane, column = t % 16 + 0 * r, r + t // 16 * half_offset
    return lane.astype(np.intp), column.astype(np.intp)


class TensorMemory:
    """One CTA's tensor memory.

    A cell that was never written since its allocation holds `POISON`. A sum with one is undefined
    too, so that the cell counts as unwritten until a product without an input or a store: kernels
    leave accumulators that they do not use as they were. A tcgen05.ld may read more than was
    written (32x32b of an accumulator with 16 lanes per partition, more columns than N).

    Args:
      track_initialised: reads of cells never written are told to `unwritten`: operands and scales
        of the tensor core, and a tcgen05.ld that reads nothing else.

    Attributes:
      unwritten: is told of reads of cells never written.
      cells: uint32[128, 512].
      written: bool[128, 512].
      allocations: first column -> column count of each live allocation.
      watch: is told of what engines access, or None.
    """

    def __init__(self, track_initialised: bool = False) -> None:
        self.track_initialised = track_initialised
        self.watch: MemoryWatch | None = None
        self.unwritten: Unwritten = refuse_unwritten
        self.cells: Cells = np.full((TMEM_LANES, TMEM_COLUMNS), POISON, np.uint32)
        self.written: npt.NDArray[np.bool_] = np.zeros((TMEM_LANES, TMEM_COLUMNS), np.bool_)
        self.allocations: dict[int, int] = {}
        self._groups: dict[int, int] = {}
        self._owned = np.zeros(TMEM_COLUMNS, np.bool_)
        self._relinquished = False
        self._last_count = TMEM_COLUMNS

    # -- allocation -------------------------------------------------------------------------

    def alloc(self, column_count: int, group: int = 1) -> int | None:
        """tcgen05.alloc: the base address, or None while the columns are not free (retry later).

        Raises:
          Fault: the count is not a power of two in 32..512, it grew since the last allocation, or
            the CTA gave up its permit.
        """
        if column_count not in (32, 64, 128, 256, 512):
            raise Fault("tmem", f"alloc of {column_count} columns: 32, 64, 128, 256 or 512 allowed")
        if self._relinquished:
            raise Fault("tmem", "alloc after relinquish_alloc_permit")
        if column_count > self._last_count:
            raise Fault(
                "tmem",
                f"alloc of {column_count} columns after one of {self._last_count}: successive "
                "allocations must not grow",
            )
        for base in range(0, TMEM_COLUMNS, column_count):
            if not self._owned[base : base + column_count].any():
                break
        else:
            return None
        self._last_count = column_count
        self.allocations[base] = column_count
        self._groups[base] = group
        self._owned[base : base + column_count] = True
        self.cells[:, base : base + column_count] = POISON
        self.written[:, base : base + column_count] = False
        return base

    def dealloc(self, address: int, column_count: int, group: int = 1) -> None:
        """tcgen05.dealloc.

        Raises:
          Fault: `address` is not the base of a live allocation of this size and cta_group.
        """
        if self.allocations.get(address) != column_count:
            live = ", ".join(f"{c}+{n}" for c, n in sorted(self.allocations.items())) or "none"
            raise Fault(
                "tmem",
                f"dealloc of {column_count} columns: no such allocation; live: {live}",
                address=address,
            )
        if self._groups[address] != group:
            raise Fault(
                "tmem",
                f"dealloc with cta_group::{group} of columns that cta_group::"
                f"{self._groups[address]} allocated",
                address=address,
            )
        del self.allocations[address], self._groups[address]
        self._owned[address : address + column_count] = False

    def relinquish(self) -> None:
        """tcgen05.relinquish_alloc_permit."""
        self._relinquished = True

    # -- checks used by every access -----------------------------------------------------------

    def check_columns(self, column: int, count: int, *, what: str) -> None:
        """Fault unless columns [column, column + count) are all allocated."""
        if (
            column < 0
            or count < 1
            or column + count > TMEM_COLUMNS
            or not self._owned[column : column + count].all()
        ):
            live = ", ".join(f"{c}+{n}" for c, n in sorted(self.allocations.items())) or "none"
            raise Fault(
                "tmem",
                f"{what} uses columns {column}..{column + count - 1}; allocated (first+count): "
                f"{live}",
                address=column,
            )

    def check_written(
        self, written: npt.NDArray[np.bool_], address: int, columns: int, *, what: str
    ) -> None:
        """Judge a read of cells with these flags.

        Args:
          columns: that it reads from the column of `address` on.
        """
        if self.track_initialised and not written.all():
            message = f"{what} reads {int((~written).sum())} tensor-memory cells never written"
            self.unwritten(Fault("uninitialised", message, address=address), columns)

    def _check_read(self, written: npt.NDArray[np.bool_], address: int) -> None:
        """Judge a tcgen05.ld whose registers come from cells with these flags, [registers, 32]."""
        if self.track_initialised and not written.any():
            message = (
                f"tcgen05.ld reads {written.size} tensor-memory cells, all of them never written"
            )
            self.unwritten(Fault("uninitialised", message, address=address), written.shape[0])

    # -- ld and st -----------------------------------------------------------------------------

    def load(
        self,
        shape: str,
        count: int,
        address: int,
        warp_rank: int,
        pack16: bool = False,
        half_offset: int = 0,
    ) -> Cells:
        """tcgen05.ld: uint32[registers, 32].

        Args:
          shape: "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2"; `count` is N of xN.
          address: the same in all lanes; its lane field counts within the warp's partition.
          warp_rank: warp index in the CTA; warp w touches lanes 32 * (w % 4) + 0..31.
          pack16: .pack::16b, two physical columns per register.
          half_offset: the immediate of 16x32bx2, in physical columns.
        """
        lane0, column0 = self._locate(shape, count, address, warp_rank, pack16, half_offset, "ld")
        if shape == "32x32b" and not pack16:
            window = np.s_[lane0 : lane0 + 32, column0 : column0 + count]
            self._check_read(self.written[window].T, address)
            return np.ascontiguousarray(self.cells[window].T)
        lanes, columns = self._cells_of(shape, count, lane0, column0, pack16, half_offset)
        self._check_read(self.written[lanes, columns], address)
        if not pack16:
            return self.cells[lanes, columns]
        self._check_read(self.written[lanes, columns + 1], address)
        low = self.cells[lanes, columns] & np.uint32(0xFFFF)
        return low | self.cells[lanes, columns + 1] << np.uint32(16)

    def store(
        self,
        shape: str,
        count: int,
        address: int,
        warp_rank: int,
        values: Cells,
        unpack16: bool = False,
        half_offset: int = 0,
    ) -> None:
        """tcgen05.st of uint32[registers, 32]; arguments as `load`."""
        lane0, column0 = self._locate(shape, count, address, warp_rank, unpack16, half_offset, "st")
        expected = (register_count(shape, count), 32)
        assert values.shape == expected, f"st.{shape}.x{count}: {values.shape} is not {expected}"
        if shape == "32x32b" and not unpack16:
            window = np.s_[lane0 : lane0 + 32, column0 : column0 + count]
            self.cells[window] = values.T
            self.written[window] = True
            return
        lanes, columns = self._cells_of(shape, count, lane0, column0, unpack16, half_offset)
        if not unpack16:
            self.cells[lanes, columns] = values
            self.written[lanes, columns] = True
            return
        self.cells[lanes, columns] = values & np.uint32(0xFFFF)
        self.cells[lanes, columns + 1] = values >> np.uint32(16)
        self.written[lanes, columns] = True
        self.written[lanes, columns + 1] = True

    @staticmethod
    def footprint(
        shape: str, count: int, address: int, packed: bool, half_offset: int
    ) -> list[tuple[int, int, int, int]]:
        """The cells of an ld or st: boxes of (first lane, lanes, first column, columns)."""
        _, columns_per_count, lanes, _ = _SHAPES[shape]
        width = columns_per_count * count * (2 if packed else 1)
        starts = [address & 0xFFFF]
        if shape == "16x32bx2":
            starts.append(starts[0] + half_offset)
        return [(address >> 16, lanes, start, width) for start in starts]

    def _locate(
        self,
        shape: str,
        count: int,
        address: int,
        warp_rank: int,
        packed: bool,
        half_offset: int,
        what: str,
    ) -> tuple[int, int]:
        """Check an ld/st and return its first lane and column."""
        register_count(shape, count)
        _, columns_per_count, lanes, _ = _SHAPES[shape]
        own = own_address(address, warp_rank)
        lane0, column0 = own >> 16, own & 0xFFFF
        if lane0 % lanes:
            first = 32 * (warp_rank % 4)
            allowed = (first,) if lanes == 32 else (first, first + 16)
            raise Fault(
                "tmem",
                f"tcgen05.{what}.{shape} of warp {warp_rank} has lane {address >> 16} in its "
                f"address; allowed: {' or '.join(map(str, allowed))}",
                address=address,
            )
        scale = 2 if packed else 1
        width = columns_per_count * count * scale
        self.check_columns(column0, width, what=f"tcgen05.{what}")
        if shape == "16x32bx2":
            self.check_columns(column0 + half_offset, width, what=f"tcgen05.{what} (second half)")
        return lane0, column0

    @staticmethod
    def _cells_of(
        shape: str, count: int, lane0: int, column0: int, packed: bool, half_offset: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Absolute lanes and columns; with packing, the column of each pair's low half."""
        if not packed:
            lanes, columns = _cell_map(shape, count, half_offset)
            return lanes + lane0, columns + column0
        lanes, columns = _cell_map(shape, count, 0)
        columns = columns * 2 + column0
        if shape == "16x32bx2":
            # the half offset counts physical columns and is not doubled
            columns = columns + np.arange(32)[None, :] // 16 * half_offset
        return lanes + lane0, columns

    # -- cp and shift ------------------------------------------------------------------------

    def copy(
        self,
        shared: SharedMemory,
        address: int,
        descriptor: int,
        shape: str,
        multicast: str = "",
        source_format: str = "",
    ) -> None:
        """tcgen05.cp from this CTA's shared memory.

        Args:
          address: destination; its lane field must be 0.
          shape, multicast: such as "32x128b" with "warpx4".
          source_format: "" or "b6x16_p32" / "b4x16_p64" (decompression to one byte per element).
        """
        if (shape, multicast) not in _COPY_ROWS:
            shapes_text = ", ".join(f"{s}{'.' + m if m else ''}" for s, m in _COPY_ROWS)
            raise Fault("tmem", f"tcgen05.cp.{shape}.{multicast} is not one of {shapes_text}")
        rows, row_bytes = _COPY_ROWS[(shape, multicast)]
        columns = row_bytes // 4
        lane0, column0 = address >> 16, address & 0xFFFF
        if lane0 != 0:
            raise Fault("tmem", f"tcgen05.cp needs lane 0, got {lane0}", address=address)
        self.check_columns(column0, columns, what="tcgen05.cp")
        units = k_major_units(decode_smem(descriptor), rows, row_bytes)
        shared.check_units(int(units.min()), int(units.max()) + 1, what="tcgen05.cp")
        shared.check_units_written(units, what="tcgen05.cp")
        data = shared.units[units].view(np.uint8).reshape(rows, row_bytes // 16, 16)
        if source_format == "b6x16_p32":
            data = unpack_6_bit(data)
        elif source_format == "b4x16_p64":
            data = unpack_4_bit(data[..., :8]) << np.uint8(2)
        elif source_format:
            raise Fault("tmem", f"tcgen05.cp source format {source_format} is unknown")
        words = np.ascontiguousarray(data).view(np.uint32).reshape(rows, columns)
        row = np.arange(rows)
        if shape == "4x256b":
            copies = [32 * row]
        elif multicast == "warpx2::02_13":
            copies = [row, row + 64]
        elif multicast == "warpx2::01_23":
            first = 64 * (row // 32) + row % 32
            copies = [first, first + 32]
        elif multicast == "warpx4":
            copies = [row + 32 * q for q in range(4)]
        else:
            copies = [row]
        if self.watch is not None:
            self.watch.cells(0, 128, column0, columns, True)
        for lanes in copies:
            self.cells[lanes, column0 : column0 + columns] = words
            self.written[lanes, column0 : column0 + columns] = True

    def shift(self, address: int) -> None:
        """tcgen05.shift.down: 8 columns of one 32-lane partition move down by one lane."""
        lane0, column0 = address >> 16, address & 0xFFFF
        if lane0 % 32 or lane0 >= TMEM_LANES:
            raise Fault("tmem", f"tcgen05.shift needs lane 0, 32, 64 or 96, got {lane0}")
        self.check_columns(column0, 8, what="tcgen05.shift")
        if self.watch is not None:
            self.watch.cells(lane0, 32, column0, 8, True)
        window = np.s_[lane0 : lane0 + 31, column0 : column0 + 8]
        source = np.s_[lane0 + 1 : lane0 + 32, column0 : column0 + 8]
        self.cells[window] = self.cells[source].copy()
        self.written[window] = self.written[source].copy()
