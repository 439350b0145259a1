"""The shadows of memories: from addresses to granules, and from accesses to conflicts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.observer import StrongKind
from ..core.order import Scope
from ..machine.memory import reach_of
from ..native import Machine
from .shadow import Agreement, Alias, Conflict, Shadow, Steps
from .strong import Strong, StrongWords

UNIT_BYTES = 16  # bytes of a new shadow's granule, the unit of engines
WORD_BYTES = 4  # bytes of a granule after the first access to parts of units
# element size that stands for bulk reductions of any element
SUMS = Agreement(-1, lambda: np.ones((), np.bool_))
_COUNT = np.arange(256)
LANES_PER_GRANULE = 16  # lanes of a granule of tensor memory: half of a warp's partition
TMEM_HALVES, TMEM_COLUMNS = 8, 512


@dataclass(slots=True)
class Accessor:
    """An accessor of memory, and its knowledge.

    Attributes:
      actor: its number, or int64[lanes, 1].
      step: its step.
      writes, reads: steps by actor that it knows, of writes and reads; a row for each lane if lanes
        differ.
      ordered: steps of reads that are ordered before it, where `reads` asks for more.
      alias: another actor whose steps up to some number are its own: a thread's own copies, as far
        as it has waited for them.
      is_recorded: whether the access is recorded in the shadow, or only checked.
      strong: place and scope of a strong access; None for a weak one.
      adds: whether it is a bulk reduction, which needs no order among reductions of the same bytes.
    """

    actor: Any
    step: int
    writes: Steps
    reads: Steps
    is_recorded: bool = True
    strong: Strong | None = None
    adds: bool = False
    alias: Alias = None
    ordered: Steps | None = None


@dataclass(slots=True)
class Stored:
    """The data of a weak store, before it takes effect.

    Attributes:
      element_bytes: size of an element of the vector, or of the scalar.
      values: uint8[lanes, width], the bytes to be stored.
      present: the bytes in memory before.
    """

    element_bytes: int
    values: npt.NDArray[np.uint8]
    present: Callable[[], npt.NDArray[np.uint8]]


class ByteSpace:
    """The shadow of bytes [base, base + byte_count).

    Args:
      machine: records usual accesses natively; None: all in Python.
      data: uint8[byte_count], the bytes themselves, which stay where they are; None if unknown.

    Attributes:
      strong: the strong accesses, if any; the shadow itself has the weak ones.
    """

    def __init__(
        self,
        byte_count: int,
        base: int = 0,
        machine: Machine | None = None,
        data: npt.NDArray[np.uint8] | None = None,
    ):
        self._machine = machine
        self._recorder: Callable[..., bool] | None = None
        self._host = 0 if data is None else data.ctypes.data - base
        self.base = base
        self.byte_count = byte_count
        self.granule = UNIT_BYTES
        self.shadow = Shadow((-(-byte_count // UNIT_BYTES),))
        self.strong: StrongWords | None = None

    def strong_lanes(
        self,
        addresses: npt.NDArray[Any],
        width: int,
        accessor: Accessor,
        strong: Strong,
        kind: StrongKind,
    ) -> Conflict | None:
        """Strong accesses of lanes; arguments as `lanes`."""
        offsets = addresses.astype(np.int64) - self.base
        low, high = reach_of(offsets, width)
        if low < 0 or high > self.byte_count or int(np.bitwise_or.reduce(offsets)) & (width - 1):
            return None
        writes = kind != "load"
        look = replace(accessor, is_recorded=False, strong=strong, adds=True)
        conflict = self.lanes(addresses, width, look, writes)
        if accessor.is_recorded:
            if self.strong is None:
                self.strong = StrongWords(self.byte_count)
            self.strong.record(offsets, width, accessor.actor, accessor.step, strong, kind)
        return conflict

    def records(
        self,
        addresses: npt.NDArray[Any],
        width: int,
        lanes: npt.NDArray[Any],
        first_actor: int,
        step: int,
        known: Steps,
        stored: tuple[Any, ...],
    ) -> bool:
        """Records a weak access of lanes if native code can and it has no conflict.

        Args:
          lanes: numbers of the lanes, whose actors are `first_actor + lanes`.
          known: steps by actor that the lanes know.
          stored: bytes of a store, uint8[lanes, width], and its element size; empty for a load.

        Returns:
          Whether it is recorded; otherwise nothing has changed, and `lanes` has to do it.
        """
        if self._machine is None or self.strong is not None or width < self.granule:
            return False
        if self._recorder is None:
            arrays = self.shadow.arrays
            self._recorder = self._machine.recorder(arrays, self._host, self.base, self.granule)
        return self._recorder(addresses, lanes, known, first_actor, step, width, *stored)

    def lanes(
        self,
        addresses: npt.NDArray[Any],
        width: int,
        accessor: Accessor,
        is_write: bool,
        stored: Stored | None = None,
    ) -> Conflict | None:
        """One access of `width` bytes per lane; the machine refuses invalid ones.

        Args:
          stored: the data of a weak store; else None.
        """
        if width < self.granule:
            self._refine(width)
        first = addresses.astype(np.int64)
        if self.base:
            first -= self.base
        first >>= self.granule.bit_length() - 1
        at = first[:, None]
        count = width // self.granule
        if count > 1:
            at = at + _COUNT[:count]
        if np.count_nonzero(first > self.shadow.shape[0] - count):
            return None
        if np.count_nonzero(addresses & addresses.dtype.type(width - 1)):
            return None
        if stored is None:
            return self._access(at, accessor, is_write, SUMS if accessor.adds else None)

        def is_there() -> npt.NDArray[np.bool_]:
            same: npt.NDArray[np.bool_] = stored.present() == stored.values
            return np.all(same.reshape(*at.shape, self.granule), axis=-1, keepdims=True)[..., 0]

        return self._access(at, accessor, is_write, Agreement(stored.element_bytes, is_there))

    def units(
        self, units: npt.NDArray[np.intp], accessor: Accessor, is_write: bool
    ) -> Conflict | None:
        """16-byte units by index, of a space with base 0."""
        return self._access(self._of_units(units), accessor, is_write)

    def span(
        self, address: int, byte_count: int, accessor: Accessor, is_write: bool
    ) -> Conflict | None:
        """Consecutive bytes."""
        if (address | byte_count) % self.granule:
            self._refine(WORD_BYTES if (address | byte_count) % WORD_BYTES == 0 else 1)
        first = (address - self.base) // self.granule
        return self._access(slice(first, first + byte_count // self.granule), accessor, is_write)

    def rows(self, starts: Any, width: int, accessor: Accessor, is_write: bool) -> Conflict | None:
        """Rows of `width` bytes at several addresses."""
        bits = int(np.bitwise_or.reduce(starts)) | width
        if bits % self.granule:
            self._refine(WORD_BYTES if bits % WORD_BYTES == 0 else 1)
        first = (starts - self.base) // self.granule
        at = np.add.outer(first, np.arange(width // self.granule)).reshape(-1)
        return self._access(at, accessor, is_write, SUMS if accessor.adds else None)

    def range_of(self, conflict: Conflict) -> tuple[int, int]:
        """Address and size of the range from a conflict's first to its last byte."""
        return self._bytes_of(conflict.low, conflict.high)

    def touched_by(self, actor: int, step: int, is_write: bool) -> tuple[int, int]:
        """Address and size of the range that an actor was the last to write (or read) from a step
        on.

        The size is 0 if there is none.
        """
        granules = self.shadow.touched_by(actor, step, is_write)
        return (0, 0) if granules is None else self._bytes_of(*granules)

    def _bytes_of(self, low: int, high: int) -> tuple[int, int]:
        return self.base + low * self.granule, (high - low + 1) * self.granule

    def _access(
        self, at: Any, accessor: Accessor, is_write: bool, agreement: Agreement | None = None
    ) -> Conflict | None:
        shadow, knows = self.shadow, (accessor.writes, accessor.reads)
        if not accessor.is_recorded:
            conflict = shadow.look(
                at,
                accessor.actor,
                *knows,
                is_write=is_write,
                agreement=agreement,
                alias=accessor.alias,
            )
        elif is_write:
            conflict = shadow.write(
                at,
                accessor.actor,
                accessor.step,
                *knows,
                agreement,
                accessor.alias,
                ordered=accessor.ordered,
            )
        else:
            conflict = shadow.read(at, accessor.actor, accessor.step, *knows, accessor.alias)
        return (
            conflict
            if self.strong is None
            else conflict or self._strong_conflict(at, accessor, is_write)
        )

    def _strong_conflict(self, at: Any, accessor: Accessor, is_write: bool) -> Conflict | None:
        """The first conflict of a weak access with strong ones, which a write replaces."""
        assert self.strong is not None
        if (
            accessor.strong is not None
            and accessor.strong.scope >= Scope.GPU
            and not self.strong.has_narrow_scope
        ):
            return None
        granules: Any = np.r_[at] if isinstance(at, slice) else at
        shape = granules.shape
        positions = np.flatnonzero(self.strong.any(granules * self.granule // UNIT_BYTES))
        if not positions.size:
            return None

        def at_positions(part: Any) -> npt.NDArray[Any]:
            return np.broadcast_to(part, shape).ravel()[positions][:, None]

        offsets = granules.ravel()[positions].astype(np.int64) * self.granule
        known = (
            accessor.writes if accessor.writes.ndim == 1 else accessor.writes[positions // shape[1]]
        )
        alias = (
            None
            if accessor.alias is None
            else (at_positions(accessor.alias[0]), at_positions(accessor.alias[1]))
        )
        conflict = self.strong.first_conflict(
            offsets,
            self.granule,
            at_positions(accessor.actor),
            known,
            alias,
            is_write=is_write,
            strong=accessor.strong,
        )
        if conflict is not None:
            granule = int(offsets[conflict.position]) // self.granule
            position = int(positions[conflict.position])
            race = (conflict.actor, conflict.step, conflict.wrote)
            return Conflict(granule, *race, position, 1, granule, granule)
        if is_write and accessor.is_recorded:
            self.strong.forget(offsets, self.granule)
        return None

    def _refine(self, width: int) -> None:
        goal = WORD_BYTES if width >= WORD_BYTES else 1
        if goal < self.granule:
            self.shadow.refine(self.granule // goal)
            self._recorder = None
            self.granule = goal

    def _of_units(self, units: npt.NDArray[np.intp]) -> Any:
        return granules_of_units(_Key(units), UNIT_BYTES // self.granule)


class _Key:
    """An array as a cache key by identity; keeping it alive keeps the identity unique."""

    __slots__ = ("array",)

    def __init__(self, array: npt.NDArray[np.intp]):
        self.array = array

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.array is self.array


@lru_cache(maxsize=1024)
def granules_of_units(key: _Key, per_unit: int) -> Any:
    """Granules of 16-byte units: a slice if they are consecutive, else an array."""
    units = np.unique(key.array)
    low, high = int(units[0]), int(units[-1]) + 1
    if high - low == units.size:
        return slice(low * per_unit, high * per_unit)
    return (units[:, None] * per_unit + np.arange(per_unit)).ravel()


@lru_cache(maxsize=1024)
def _reach(key: _Key) -> tuple[int, int]:
    return int(key.array.min()), int(key.array.max()) + 1


def reach_of_units(units: npt.NDArray[np.intp]) -> tuple[int, int]:
    """The lowest of an array of units, and the end of the highest."""
    return _reach(_Key(units))


@lru_cache(maxsize=1024)
def _quarters(key: _Key, axis: int) -> tuple[npt.NDArray[np.intp], ...]:
    return tuple(np.split(key.array, 4, axis))


def quarters_of(units: npt.NDArray[np.intp], axis: int) -> tuple[npt.NDArray[np.intp], ...]:
    """The four quarters of an array of units, the same arrays each time."""
    return _quarters(_Key(units), axis)


class TensorSpace:
    """The shadow of a CTA's tensor memory: granules of 16 lanes by one column."""

    def __init__(self) -> None:
        self.shadow = Shadow((TMEM_HALVES, TMEM_COLUMNS))

    def box(
        self, lane: int, lanes: int, column: int, columns: int, accessor: Accessor, is_write: bool
    ) -> Conflict | None:
        """An access to lanes by columns; 64 lanes from 0 or 16 are halves of four partitions."""
        at = self._granules(lane, lanes, column, columns)
        do = self.shadow.write if is_write else self.shadow.read
        return do(at, accessor.actor, accessor.step, accessor.writes, accessor.reads)

    def look(
        self, lane: int, lanes: int, column: int, columns: int, accessor: Accessor, is_write: bool
    ) -> Conflict | None:
        """The conflict that `box` would find; records nothing."""
        at = self._granules(lane, lanes, column, columns)
        return self.shadow.look(
            at, accessor.actor, accessor.writes, accessor.reads, is_write=is_write
        )

    @staticmethod
    def _granules(lane: int, lanes: int, column: int, columns: int) -> tuple[slice, slice]:
        first = lane // LANES_PER_GRANULE
        rows = slice(first, first + max(1, lanes // LANES_PER_GRANULE))
        return rows, slice(column, column + columns)
