"""Checks of what threads do with tensor memory: tcgen05.ld, st, their waits, and allocations."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.state import Cta, Launch, WarpContext
from ..ptx.loads import awaited_loads, stored_loads
from ..ptx.program import Program
from .clocks import KNOWN, TENSOR, Clock, WarpClocks, lanes_in
from .findings import Finding
from .report import current_line
from .shadow import Conflict
from .spaces import LANES_PER_GRANULE, TMEM_COLUMNS, Accessor, Steps
from .threads import ThreadChecks

ADDRESS_BYTES = 4  # of the result of tcgen05.alloc
Box = tuple[int, int, int, int]  # first lane, lanes, first column, columns
Work = tuple[int, int]  # an actor, and its step
Orders = tuple[Steps, Steps | None]  # of `TensorWork.orders`


def tensor_place(cta: Cta, conflict: Conflict) -> tuple[str, int, int]:
    """Name, first column and number of columns of a conflict in tensor memory."""
    first, last = conflict.low // TMEM_COLUMNS, conflict.high // TMEM_COLUMNS
    low, high = sorted((conflict.low % TMEM_COLUMNS, conflict.high % TMEM_COLUMNS))
    lanes = f"lanes {first * LANES_PER_GRANULE}..{(last + 1) * LANES_PER_GRANULE - 1}"
    name = f"tensor memory of {cta.where()}, {lanes}, columns {low}..{high}"
    return name, low, high - low + 1


@lru_cache(maxsize=64)
def _awaited(program: Program) -> frozenset[int]:
    return awaited_loads(program.kernel, program.graph)


@lru_cache(maxsize=64)
def _stored(program: Program) -> dict[int, frozenset[int]]:
    return stored_loads(program.kernel, program.graph)


class TensorChecks(ThreadChecks):
    """Follows what each warp does with tensor memory."""

    _awaited_loads: frozenset[int] = frozenset()
    _stored_loads: Mapping[int, frozenset[int]] = {}

    def launched(self, launch: Launch) -> None:
        """Finds the loads whose data every thread awaits before it signals others, and those whose
        data is stored to tensor memory again.
        """
        super().launched(launch)
        self._awaited_loads, self._stored_loads = _awaited(launch.program), _stored(launch.program)

    # ---- ld, st and their waits

    def tensor_access(self, s: WarpContext, boxes: list[Box], is_write: bool) -> None:
        """tcgen05.ld and st of a warp."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        line = current_line()
        key = self._tensor_key(s, is_write)
        end = state.tensor.end_of(key)
        work = self._tensor_step(s, key, line)
        current = (warp.where, line, is_write)
        if is_write:
            self._learn_stored_loads(s, warp)
        else:
            warp.tensor_loads[s.segment.first] = work[1]
        for group, _ in warp.groups_in(s.mask):
            group.clock = state.actors.fit(group.clock)
            orders = state.tensor.orders(group.clock)
            for box in boxes:
                self.tensor_cells(s.cta, box, work, orders, current, group.clock)
        if not is_write and s.segment.first in self._awaited_loads:
            warp.learn(s.mask, ((KNOWN, end),), work[1])

    def _learn_stored_loads(self, s: WarpContext, warp: WarpClocks) -> None:
        """A store begins when the loads are over whose data it needs."""
        loads = self._stored_loads.get(s.segment.first, frozenset())
        steps = [warp.tensor_loads[load] for load in loads if load in warp.tensor_loads]
        if steps:
            end = self.state_of(s.cta).tensor.end_of(self._tensor_key(s, is_write=False))
            warp.learn(s.mask, ((KNOWN, end),), max(steps))

    def named_foreign_lane(self, s: WarpContext, address: int, taken: int) -> None:
        """The address of tcgen05.ld or st names a lane of another warp's quarter."""
        step_log = self.state_of(s.cta).step_log
        first = 32 * (s.warp.index % 4)
        message = (
            f"the address names lane {address >> 16}, and the warp may access lanes "
            f"{first}..{first + 31}: silicon counts lanes within the warp's own quarter, and PTX "
            "does not say what such an address means"
        )
        place = f"tensor memory of {s.cta.where()}, lane {taken >> 16}, column {taken & 0xFFFF}"
        current = step_log.describe(self.warp_of(s).where, "accesses", current_line())
        self.reporter.add(Finding("unpromised", message, place, taken & 0xFFFF, 1, current))

    def tensor_waited(self, s: WarpContext, is_write: bool) -> None:
        """tcgen05.wait: the warp's loads or stores are complete."""
        state = self.state_of(s.cta)
        key = self._tensor_key(s, is_write)
        actor, end = state.actors.engine(key), state.tensor.end_of(key)
        self.warp_of(s).learn(s.mask, ((TENSOR, actor), (KNOWN, end)), state.steps.get(actor, 0))

    @staticmethod
    def _tensor_key(s: WarpContext, is_write: bool) -> tuple[Any, ...]:
        return ("tmem-store" if is_write else "tmem-load", s.cta.rank, s.warp.index)

    def _tensor_step(self, s: WarpContext, key: tuple[Any, ...], line: Any) -> Work:
        state = self.state_of(s.cta)
        actor = state.actors.engine(key)
        step = state.next_step(actor)
        state.step_log.note(actor, step, line, self.warp_of(s).where)
        return actor, step

    def tensor_cells(
        self,
        cta: Cta,
        box: Box,
        work: Work,
        orders: Orders,
        current: tuple[str, Any, bool],
        known: Clock,
    ) -> None:
        """Checks and records an access of tensor memory.

        Args:
          work: what accesses it. current: who, line, whether it writes.
          known: the accessor's clock.
        """
        space, is_write = self.state_of(cta).ctas[cta.rank].tmem, current[2]
        over, promised = orders
        unpromised: Conflict | None = None
        if promised is not None and "unpromised" in self.reporter.checks:
            unpromised = space.look(*box, Accessor(*work, promised, promised), is_write)
        conflict = space.box(*box, Accessor(*work, over, over), is_write)
        reported = conflict or unpromised
        if reported is not None:
            step_log = self.state_of(cta).step_log
            is_over = conflict is None
            place = tensor_place(cta, reported)
            self.reporter.tensor_conflict(
                step_log, reported, place, current, known, is_over=is_over
            )

    # ---- allocation

    def allocated(self, s: WarpContext, offset: int, column: int, count: int, group: int) -> None:
        """tcgen05.alloc: counts as a write of the columns by the warp; once for a CTA pair.

        It is complete when its warp goes on, so that no tcgen05.fence::before_thread_sync is
        needed behind it: that orders asynchronous instructions.
        """
        self._write_address(s, offset)
        state, warp = self.state_of(s.cta), self.warp_of(s)
        first = s.cta.rank & ~1 if group == 2 else s.cta.rank
        pair = (first, column)
        made = state.pairs.pop(pair, None)
        if made is None:
            key = ("alloc", s.cta.rank, s.warp.index)
            actor, step = made = self._tensor_step(s, key, current_line())
            if group == 2:
                state.pairs[pair] = made
            clocks = [state.actors.fit(g.clock).max(axis=0) for g, _ in warp.groups_in(s.mask)]
            accessor = Accessor(actor, step, clocks[0], clocks[0])
            for cta in state.ctas[first : first + group]:
                cta.tmem.box(0, 128, column, count, accessor, True)
        actor, step = made
        warp.learn(s.mask, ((KNOWN, actor), (TENSOR, actor)), step)

    def _write_address(self, s: WarpContext, offset: int) -> None:
        """tcgen05.alloc writes its result to shared memory, in order with what each thread of the
        warp does there.

        All threads of the warp execute it (.sync.aligned), so that it lies in the program order of
        each.
        """
        state, warp = self.state_of(s.cta), self.warp_of(s)
        line, address = current_line(), np.array([offset])
        tick = warp.step(line)
        self.watch_owner(
            s, lanes_in(s.mask)[:1], s.cta, address, ADDRESS_BYTES, tick, "writes", line
        )
        actor = state.actors.generic_engine(("alloc-address", s.cta.rank, s.warp.index))
        step = state.next_step(actor)
        state.step_log.note(actor, step, line, warp.where)
        clock = warp.release(state.actors.zeros(2), s.mask)
        space = state.ctas[s.cta.rank].shared
        accessor = Accessor(actor, step, clock[KNOWN], clock[KNOWN])
        conflict = space.lanes(address, ADDRESS_BYTES, accessor, True)
        if conflict is not None:
            self.report_access(state, space, s.cta, conflict, (warp.where, line, True), clock)
        warp.learn(s.mask, ((KNOWN, actor),), step)

    def deallocating(self, s: WarpContext, column: int, count: int) -> None:
        """tcgen05.dealloc: the warp must know that all accesses to these columns are complete."""
        state, warp = self.state_of(s.cta), self.warp_of(s)
        group = warp.groups_in(s.mask)[0][0]
        group.clock = clock = state.actors.fit(group.clock)
        fenced = clock.copy()  # it is synchronous: fence::after_thread_sync orders it with nothing
        np.maximum(fenced[TENSOR], fenced[KNOWN], out=fenced[TENSOR])
        line = current_line()
        work = (warp.base + int(lanes_in(s.mask)[0]), warp.step(line))
        current = (warp.where, line, True)
        box = (0, 128, column, count)
        self.tensor_cells(s.cta, box, work, state.tensor.orders(fenced), current, clock)
