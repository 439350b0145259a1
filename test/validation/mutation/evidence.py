"""Why a mutant may change nothing: what a correct run shows about each synchronisation.

A mistake that leaves out or moves something without effect is no mistake. Which those are is not a
matter of opinion: a run of the correct kernel tells for each PTX line whether it ever ordered
anything.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_mlir.runtime.emulator import emulator
from attn_mlir.runtime.emulator.checkers import CHECKS, Checker, CheckMode
from attn_mlir.runtime.emulator.checkers.clocks import KNOWN, PROXY, TENSOR, lanes_in
from attn_mlir.runtime.emulator.checkers.report import current_line, line_number
from attn_mlir.validation.mutation.operators import Mutant, negated
from attn_mlir.validation.mutation.subjects import Outputs

NO_PHASE = -1  # what a wait looks for that passes on a fresh barrier


class Evidence(Checker):
    """A checker that also notes, by PTX line, what each synchronisation did.

    Attributes:
      waits: phases that a wait looked for.
      known_waits: lines of waits; True while their threads knew already that the phase is over, and
        all that it carries.
      arrivals: (barrier, phase) that arrivals counted in.
      inits: barriers by the line of their init.
      waited: the last phase of each barrier that somebody waited for.
      idle_fences: lines of tcgen05 fences; True while none taught its thread anything.
      unused_fences: lines of fence::after_thread_sync; True while each thread's next fence came
        before its next use of tensor memory. dealloc is none: the fence orders asynchronous
        instructions (PTX ISA, tcgen05.fence), and dealloc is synchronous as the barriers are.
      idle_waits: lines of tcgen05.wait; True while no store or load was under way.
      load_waits: line of each tcgen05.wait::ld -> what its warp did before its next one: arrivals as
        in `arrivals`, or None for another barrier or a use of tensor memory but by tcgen05.ld.
      group_waits: line of each bulk wait_group -> what its lanes did before their next one:
        arrivals as in `arrivals`, or None for an access to shared memory.
      commits: line of a bulk commit_group -> lines of the waits that follow it.
      warp_barriers: lines of bar.warp.sync; True while the warp's next access, arrival or issue is
        the arrival of all its lanes at a CTA barrier, which orders them as well.
      after_warp_barriers: line of each bar.warp.sync -> the first arrival of its warp after it, as
        in `arrivals`, or None where an access or an issue comes first.
      idle_warp_barriers: lines of bar.warp.sync; True while its lanes know the same before it, and all
        accesses of each other.
      last_barriers: lines of bar.sync and the like; True while no thread that passed one accesses,
        issues or arrives at anything after it.
    """

    def __init__(self, checks: frozenset[str], mode: CheckMode = "raise"):
        super().__init__(checks, mode)
        self.waits: dict[int, set[int]] = defaultdict(set)
        self.known_waits: dict[int, bool] = {}
        self.arrivals: dict[int, set[tuple[Any, int]]] = defaultdict(set)
        self.inits: dict[int, set[Any]] = defaultdict(set)
        self.waited: dict[Any, int] = {}
        self.idle_fences: dict[int, bool] = {}
        self.unused_fences: dict[int, bool] = {}
        self.idle_waits: dict[int, bool] = {}
        self.warp_barriers: dict[int, bool] = {}
        self.after_warp_barriers: dict[int, set[tuple[Any, int] | None]] = defaultdict(set)
        self.idle_warp_barriers: dict[int, bool] = {}
        self.last_barriers: dict[int, bool] = {}
        self.group_waits: dict[int, set[tuple[Any, int] | None]] = defaultdict(set)
        self.load_waits: dict[int, set[tuple[Any, int] | None]] = defaultdict(set)
        self.commits: dict[int, set[int]] = defaultdict(set)
        self._loads_waited_at: dict[int, int] = {}
        self._waited_at: dict[tuple[int, int], int] = {}
        self._committed_at: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._fenced: dict[tuple[int, int], int] = {}
        self._open: dict[int, tuple[int, int]] = {}
        self._barrier_before: dict[int, int] = {}

    def _line(self) -> int:
        state = next(iter(self.states.values()))
        return line_number(state.step_log.program, current_line())

    def _key(self, cta: Any, key: Any) -> Any:
        return (id(cta.cluster), *key)

    def initialised(self, s: Any, lane: int, cta: Any, offset: int) -> None:
        self.inits[self._line()].add(self._key(cta, ("mbarrier", cta.rank, offset)))
        super().initialised(s, lane, cta, offset)

    def waiting(self, s: Any, mask: int, key: Any, parity: int) -> None:
        state, warp = self.state_of(s.cta), self.warp_of(s)
        barrier = state.barriers.mbarrier(key)
        if barrier is not None:
            line = self._line()
            for group, common in warp.groups_in(mask):
                clock, done = state.actors.fit(group.clock), state.actors.fit(barrier.done)
                known = int(clock[KNOWN, barrier.actor])
                phase = barrier.intended(known, parity)
                self.waits[line].add(phase)
                news = done > clock[: done.shape[0]]
                news[:, lanes_in(common) + warp.base] = False
                idle = phase < known and not news.any()
                self.known_waits[line] = self.known_waits.get(line, True) and idle
                name = self._key(s.cta, key)
                self.waited[name] = max(self.waited.get(name, NO_PHASE), phase)
        super().waiting(s, mask, key, parity)

    def arriving(self, s: Any, mask: int, key: Any, order: Any = None) -> None:
        if key[0] == "mbarrier":
            barrier = self.state_of(s.cta).barriers.mbarrier(key)
            assert barrier is not None
            arrival = (self._key(s.cta, key), barrier.phase)
            self._close(s, arrival)
            self.arrivals[self._line()].add(arrival)
            self._after_group_wait(s, lanes_in(mask).tolist(), arrival)
            self._after_load_wait(s, arrival)
        else:
            self._after_load_wait(s, None)
            self._close(s, is_idle=key[0] == "bar")
            self._after_group_wait(s, lanes_in(mask).tolist(), None)
            if key[0] == "bar":
                line = self._line()
                self.last_barriers.setdefault(line, True)
                self._barrier_before[id(self.warp_of(s))] = line
        super().arriving(s, mask, key, order)

    def _after_load_wait(self, s: Any, arrival: tuple[Any, int] | None) -> None:
        line = self._loads_waited_at.get(id(self.warp_of(s)))
        if line is not None:
            self.load_waits[line].add(arrival)

    def _after_group_wait(self, s: Any, lanes: list[int], arrival: tuple[Any, int] | None) -> None:
        warp = id(self.warp_of(s))
        for lane in lanes:
            line = self._waited_at.get((warp, lane))
            if line is not None:
                self.group_waits[line].add(arrival)

    def access(
        self,
        s: Any,
        lanes: Any,
        memory: Any,
        addresses: Any,
        width: int,
        is_write: bool,
        values: Any = None,
        element_bytes: int = 0,
    ) -> None:
        self._close(s)
        chosen = range(32) if lanes is None else np.asarray(lanes).tolist()
        self._after_group_wait(s, list(chosen), None)
        super().access(s, lanes, memory, addresses, width, is_write, values, element_bytes)

    def group_closed(self, s: Any, lanes: list[int], kind: str) -> None:
        if kind == "bulk":
            for lane in lanes:
                self._committed_at[(id(self.warp_of(s)), lane)].append(self._line())
        super().group_closed(s, lanes, kind)

    def group_waited(
        self, s: Any, lanes: list[int], kind: str, newest: int, read_only: bool
    ) -> None:
        if kind == "bulk":
            line, warp = self._line(), id(self.warp_of(s))
            self.group_waits.setdefault(line, set())
            for lane in lanes:
                self._waited_at[(warp, lane)] = line
                for commit in self._committed_at.pop((warp, lane), []):
                    self.commits[commit].add(line)
        super().group_waited(s, lanes, kind, newest, read_only)

    def _is_idle_group_wait(self, line: int) -> bool:
        """Whether a thread's next wait for bulk groups comes before anybody relies on this one.

        The last wait of a thread is no such wait: its CTA's end relies on it.
        """
        after = self.group_waits.get(line)
        if after is None or line in self._waited_at.values():
            return False
        return not after or self._is_unheard(after)

    def _is_idle_load_wait(self, line: int) -> bool:
        """Whether a warp's next wait for loads comes before anybody relies on this one; PTX orders no
        more by it, as registers of a load may be read without (PTX ISA, register dependencies)."""
        after = self.load_waits.get(line)
        if after is None or line in self._loads_waited_at.values():
            return False
        return not after or self._is_unheard(after)

    def engine_signal(self, cta: Any, offset: int) -> None:
        ticket, key = self._ticket, ("mbarrier", cta.rank, offset)
        barrier = self.state_of(cta).barriers.mbarrier(key)
        if ticket is not None and barrier is not None and ticket.actor:
            self.arrivals[int(ticket.line)].add((self._key(cta, key), barrier.phase))
        super().engine_signal(cta, offset)

    def fence(self, s: Any, mask: int, opcode: str) -> None:
        warp = self.warp_of(s)
        if opcode.startswith("tcgen05"):
            source, target = (TENSOR, KNOWN) if "before" in opcode else (KNOWN, TENSOR)
            streams = self._tensor_streams(s)
            news = any(
                (g.clock[source, streams] > g.clock[target, streams]).any()
                for g, _ in warp.groups_in(mask)
            )
            line = self._line()
            self.idle_fences[line] = self.idle_fences.get(line, True) and not news
            if "after" in opcode:
                self.unused_fences.setdefault(line, True)
                for lane in range(32):
                    if mask >> lane & 1:
                        self._fenced[(id(warp), lane)] = line
        super().fence(s, mask, opcode)

    def _tensor_streams(self, s: Any) -> list[int]:
        """The actors that access tensor memory."""
        actors = self.state_of(s.cta).actors
        for group in self.warp_of(s).groups:
            group.clock = actors.fit(group.clock)
        kinds = ("tensor", "tmem-load", "tmem-store", "alloc")
        return [actor for actor, key in actors.engines() if key[0] in kinds]

    def _used(self, s: Any, mask: int) -> None:
        """Lanes use tensor memory: the last fence of each was of use."""
        warp = self.warp_of(s)
        for lane in range(32):
            line = self._fenced.get((id(warp), lane)) if mask >> lane & 1 else None
            if line is not None:
                self.unused_fences[line] = False

    def allocated(self, s: Any, offset: int, column: int, count: int, group: int) -> None:
        self._close(s)
        super().allocated(s, offset, column, count, group)

    def deallocating(self, s: Any, column: int, count: int) -> None:
        self._close(s)
        self._after_load_wait(s, None)
        super().deallocating(s, column, count)

    def tensor_access(self, s: Any, boxes: Any, is_write: bool) -> None:
        self._used(s, s.mask)
        if is_write:
            self._after_load_wait(s, None)
        super().tensor_access(s, boxes, is_write)

    def tensor_waited(self, s: Any, is_write: bool) -> None:
        state, warp = self.state_of(s.cta), self.warp_of(s)
        kind = "tmem-store" if is_write else "tmem-load"
        actor = state.actors.engine((kind, s.cta.rank, s.warp.index))
        known = state.actors.fit(warp.groups_in(s.mask)[0][0].clock)[TENSOR, actor]
        line = self._line()
        idle = bool(known >= state.steps.get(actor, 0))
        self.idle_waits[line] = self.idle_waits.get(line, True) and idle
        if not is_write:
            self.load_waits.setdefault(line, set())
            self._loads_waited_at[id(warp)] = line
        super().tensor_waited(s, is_write)

    def issued(self, s: Any, lanes: Any, line: int, engine: str, channel: Any) -> Any:
        self._close(s)
        if channel is not None and channel[0] == "tensor":
            self._used(s, 1 << lanes)
            self._after_load_wait(s, None)
        return super().issued(s, lanes, line, engine, channel)

    def warp_synced(self, s: Any, mask: int) -> None:
        warp, groups = self.warp_of(s), self.warp_of(s).groups_in(mask)
        lanes, clock = lanes_in(mask), groups[0][0].clock
        known = clock[KNOWN, lanes + warp.base] >= warp.tick
        fenced = clock[PROXY, lanes + warp.base] >= warp.fenced[lanes]
        idle = len(groups) == 1 and warp.copies is None and bool((known & fenced).all())
        line = self._line()
        self.idle_warp_barriers[line] = self.idle_warp_barriers.get(line, True) and idle
        self._open[id(self.warp_of(s))] = (self._line(), self.warp_of(s).tick)
        super().warp_synced(s, mask)

    def _close(
        self, s: Any, arrival: tuple[Any, int] | None = None, *, is_idle: bool = False
    ) -> None:
        """Something of the warp happens: are the barriers before it of use to that?

        Args:
          arrival: at an mbarrier, where that is what happens.
          is_idle: whether it is an arrival at a CTA barrier.
        """
        warp = self.warp_of(s)
        last = self._barrier_before.pop(id(warp), None)
        if last is not None:
            self.last_barriers[last] = False
        opened = self._open.pop(id(warp), None)
        if opened is not None:
            line, tick = opened
            idle = is_idle and warp.tick == tick
            self.warp_barriers[line] = self.warp_barriers.get(line, True) and idle
            self.after_warp_barriers[line].add(arrival)

    def _is_unheard(self, arrivals: set[tuple[Any, int]] | set[tuple[Any, int] | None]) -> bool:
        """Whether all are arrivals, each in a phase that nobody waits for."""
        return bool(arrivals) and all(
            item is not None and item[1] > self.waited.get(item[0], NO_PHASE) for item in arrivals
        )

    def reason(self, mutant: Mutant) -> str:
        """Why a mutant that nothing caught is no mistake, or ""."""
        line, operator = mutant.line, mutant.operator
        if operator == "drop-wait" and self.waits.get(line) == {NO_PHASE}:
            return "the wait only passes fresh barriers here"
        if operator == "drop-wait" and self.known_waits.get(line):
            return "the thread knows already that the phase is over"
        if operator in ("drop-arrive", "drop-commit", "wrong-barrier", "wrong-commit"):
            if self._is_unheard(self.arrivals.get(line, set())):
                return "the last phase of its barrier, which nobody waits for"
        is_wait = operator in ("drop-group-wait", "loose-group-wait")
        waits = {line} if is_wait else self.commits.get(line, set())
        if waits and all(self._is_idle_group_wait(wait) for wait in waits):
            return "the thread's next wait_group comes before anybody relies on this one"
        if operator == "drop-fence" and self.idle_fences.get(line):
            return "the fence has nothing to order here"
        if operator == "drop-fence" and self.unused_fences.get(line):
            return "no asynchronous use of tensor memory follows before each thread's next fence"
        barriers = self.inits.get(line, set())
        if barriers and all(self.waited.get(name, NO_PHASE) == NO_PHASE for name in barriers):
            return "nobody waits for a phase of this barrier"
        if operator in ("drop-wait-st", "drop-wait-ld") and self.idle_waits.get(line):
            return "nothing is under way that the wait could be for"
        if operator == "drop-wait-ld" and self._is_idle_load_wait(line):
            return "the warp's next tcgen05.wait::ld comes before anybody relies on this one"
        if operator == "drop-barrier" and self.warp_barriers.get(line):
            return "the next barrier of the warp follows without an access in between"
        if operator == "drop-barrier" and self._is_unheard(
            self.after_warp_barriers.get(line, set())
        ):
            return "it precedes an arrival in the last phase of a barrier, which nobody waits for"
        if operator == "drop-barrier" and self.idle_warp_barriers.get(line):
            return "the lanes know all of each other already"
        if operator == "drop-barrier" and self.last_barriers.get(line):
            return "its threads access, issue and arrive at nothing after it"
        return ""


def evidence_of(run: Callable[[], object]) -> Evidence:
    """What a run shows; it must make one emulator."""
    return _watched(run, Evidence)


def _watched(run: Callable[[], object], make: Callable[[frozenset[str], CheckMode], Any]) -> Any:
    """The checker of a run that makes one emulator, which gets it from `make`."""
    made: list[Any] = []

    def make_one(checks: frozenset[str], mode: CheckMode = "raise") -> Any:
        made.append(make(checks or frozenset(CHECKS), mode))
        return made[-1]

    real = emulator.Checker
    emulator.Checker = make_one  # type: ignore[assignment,misc]
    try:
        with np.errstate(all="ignore"):
            run()
    finally:
        emulator.Checker = real  # type: ignore[misc]
    return made[-1]


def unread(ptx: str, mutant: Mutant, launch: Callable[[str], Outputs]) -> str:
    """Why a product may get other operands or columns, or "": no output depends on its numbers.

    They change all of them when A is negated. If that, the mutant and the mutant with A negated
    leave every bit of the outputs as it is, then nothing is made of what the product writes,
    neither where it belongs nor where the mutant puts it (such as scores that the mask hides). What
    the mutant accesses is judged by the checkers as ever.

    Args:
      mutant: one that no checker finds. launch: launches a text; the outputs.
    """
    if mutant.operator not in (
        "shift-operand",
        "swap-descriptors",
        "swap-registers",
        "tensor-column",
    ):
        return ""
    if "tcgen05.mma" not in mutant.original and "wgmma.mma" not in mutant.original:
        return ""

    def bits(text: str) -> list[bytes]:
        outputs = launch(replace(mutant, text=text).apply(ptx))
        return [outputs[name].tobytes() for name in sorted(outputs)]

    right = bits(mutant.original)
    product = mutant.original
    others = (negated(product, product), mutant.text, negated(product, mutant.text))
    if all(bits(text) == right for text in others):
        return "no output depends on the product: with A negated every bit is the same"
    return ""


def covered(ptx: str, mutant: Mutant, launch: Callable[[str], object]) -> str:
    """Why a fence of tensor memory or of products may be left out though it has something to order,
    or "": others order the same.

    The checkers see what it orders once the others of its kind are left out too: there has to be
    something that they then find without the fence and not with it.

    Args:
      mutant: one that no checker finds. launch: launches a text.
    """
    if mutant.operator != "drop-fence":
        return ""
    if mutant.original.startswith("tcgen05.fence"):
        fence, check = re.escape(mutant.original), "unpromised"
    elif "wgmma.fence" in mutant.original:
        fence, check = r"wgmma\.fence[\w.]*\s*;", "wgmma"
    else:
        return ""
    lines = ptx.split("\n")
    alone = [re.sub(fence, "", line) for line in lines]
    alone[mutant.line - 1] = lines[mutant.line - 1]

    def found(text: str) -> set[tuple[int, int]]:
        checker = _watched(lambda: launch(text), lambda checks, _: Checker(checks, "collect"))
        findings = [f for f in checker.findings if f.check == check]
        return {(f.current.line, f.earlier.line if f.earlier else 0) for f in findings}

    if found(mutant.apply("\n".join(alone))) - found("\n".join(alone)):
        return "other fences of the same threads order the same: without them it is found"
    return ""
