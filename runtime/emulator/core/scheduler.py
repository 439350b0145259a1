"""Which context or asynchronous engine runs next.

Asynchronous work is posted to *channels*. Work of one channel runs in the order in which it was
posted; channels are independent. The fair schedule runs everything soon and in order. The
adversarial schedule follows a `Strategy` that its seed chooses: contexts run only a little at a
time, picked evenly or by changing priorities; asynchronous work is delayed, sometimes until nothing
else can run, and done in an odd order, sometimes with one engine slower than all others.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np

from attn_mlir.errors import LaunchError

from ..machine.faults import Fault
from ..ptx.emit import BLOCKED
from ..ptx.program import NO_SEGMENT
from .launch_errors import DeadlockError, InstructionLimitError, KernelFault
from .state import Cluster, Cta, Engine, Join, Launch, Wait, Warp, WarpContext

Schedule = Literal["fair", "adversarial"]
FAIR_QUANTUM = 256  # segments a context may run before the next one's turn
IDLE_ROUNDS_PER_CONTEXT = 400  # rounds of polling, while nothing changes, that count as stuck


@dataclass(slots=True)
class Job:
    """Asynchronous work: `run` does it all at once, when it is the engine's turn.

    Attributes:
      merge_key: jobs next to each other in a channel with equal keys (not None) may be done
        together: `run` is then called with all their payloads.
      ticket: what the inspector gave at the issue.
    """

    run: Callable[[list[Any]], None]
    payload: Any
    line: int
    where: str
    merge_key: Any = None
    ticket: Any = None


@dataclass(slots=True)
class Channel:
    """Jobs that stay in order; `age` numbers channels by their first job."""

    engine: Engine
    age: int
    priority: float
    jobs: deque[Job]


@dataclass(frozen=True, slots=True)
class Strategy:
    """How an adversarial run is unfair. Neighbouring seeds differ in every respect.

    Attributes:
      laziness: chance that an engine does something although a context could run.
      order: which channel goes first: the newest, the oldest, the one of highest (random) priority
        or any.
      slow: the engine that works only when the others have nothing to do, or None.
      by_priority: contexts have changing priorities, so that one gets far ahead of the others.
    """

    laziness: float
    order: Literal["newest", "any", "priority", "oldest"]
    slow: Engine | None
    by_priority: bool

    @staticmethod
    def of_seed(seed: int) -> Strategy:
        """The strategy of a seed; 16 in a row cover all pairs of order and slow engine."""
        orders = ("newest", "any", "priority", "oldest")
        engines = ("load", "tensor", None, "store")
        return Strategy(
            laziness=(0.0, 0.02, 0.0, 0.3)[(seed + seed // 2) % 4],
            order=orders[seed % 4],
            slow=engines[(seed + seed // 4) % 4],
            by_priority=seed % 3 == 1,
        )


def _has_poison(warp: Warp) -> bool:
    """Whether a register has no value yet: None, or objects where selp chose such lanes."""
    return any(
        value is None or getattr(value, "dtype", None) == np.object_ for value in warp.registers
    )


def _join_chain(join: Join | None) -> list[Join]:
    chain: list[Join] = []
    while join is not None:
        chain.append(join)
        join = join.parent
    return chain


def _unforeseen(error: Exception) -> tuple[str, str]:
    """Kind and message of an exception that no rule of the machine raised.

    The kernel's operands brought it about, so it has their line; the exception stays its cause.
    """
    return "internal", (
        f"the emulator cannot execute this: {type(error).__name__}: {error} (a mistake of the "
        "emulator, which should say what is wrong with the operands)"
    )


class Scheduler:
    """Runs one launch to its end.

    Args:
      seed: of the adversarial schedule; the same seed gives the same run.
      resident: clusters that run at the same time.

    Attributes:
      running: the context that runs, or ran last.
    """

    def __init__(
        self, launch: Launch, schedule: Schedule = "fair", seed: int = 0, resident: int = 1
    ):
        self.launch = launch
        self.adversarial = schedule == "adversarial"
        self.random = random.Random(seed)
        self.strategy = Strategy.of_seed(seed)
        self.priorities: dict[WarpContext, float] = {}
        self.resident = resident
        self.ready: deque[WarpContext] = deque()
        self.waiting: dict[tuple[Any, ...], list[WarpContext]] = {}
        self.clusters: list[Cluster] = []
        self.channels: dict[Any, Channel] = {}
        self.ages = count()
        self.fifo: deque[Job] = deque()
        self.progress = 0
        self.expired_at = -1
        self.idle_rounds = 0
        self.warp_instructions = 0
        self.running: WarpContext | None = None
        launch.scheduler = self

    # ---- for the instructions

    def post(
        self,
        channel: Any,
        run: Callable[[list[Any]], None],
        payload: Any,
        context: WarpContext,
        merge_key: Any = None,
        *,
        engine: Engine = "load",
        lane: Any = None,
    ) -> None:
        """Hand work to an engine; arguments as in `Scheduling.post`."""
        inspector, line = self.launch.inspector, context.segment.line
        ticket: Any = None
        if inspector is not None:
            ticket = inspector.issued(context, lane, line, engine, channel)
            if merge_key is not None:
                merge_key = (merge_key, inspector.version(context))
        job = Job(
            run, payload, line, context.where() if self.adversarial else "", merge_key, ticket
        )
        if not self.adversarial:
            job.where = f"{context.cta.where()} warp {context.warp.index}"
            self.fifo.append(job)
            return
        key = object() if channel is None else channel
        queue = self.channels.get(key)
        if queue is None:
            priority = self.random.random()
            queue = self.channels[key] = Channel(engine, next(self.ages), priority, deque())
        queue.jobs.append(job)

    def block(
        self,
        context: WarpContext,
        key: tuple[Any, ...],
        describe: Callable[[], str],
        may_expire: bool = False,
    ) -> None:
        """Take a context out of the ready ones until `wake(key)`."""
        context.wait = Wait(key, describe, may_expire)
        self.waiting.setdefault(key, []).append(context)

    def wake(self, key: tuple[Any, ...]) -> None:
        """Makes the contexts that wait on `key` ready: its state changed."""
        self.progress += 1
        contexts = self.waiting.pop(key, None)
        if contexts:
            for context in contexts:
                context.wait = None
                self.ready.append(context)

    def add(self, context: WarpContext) -> None:
        """A new context of a warp that already runs."""
        context.warp.contexts.append(context)
        self.ready.append(context)

    def spurious(self) -> bool:
        """Whether a try_wait that could wait returns false instead (adversarial only)."""
        return self.adversarial and self.random.random() < 0.1

    def late(self) -> bool:
        """Whether to do something at the last moment instead of now, by chance."""
        return self.adversarial and self.random.random() < 0.5

    # ---- contexts

    def arrive(self, context: WarpContext) -> bool:
        """The context reached its join. True when it goes on, with all lanes of the join."""
        join = context.join
        assert join is not None
        join.arrived |= context.mask
        if join.arrived != join.pending:
            context.warp.contexts.remove(context)
            return False
        context.set_mask(join.arrived)
        context.pc = join.segment
        context.set_join(join.parent)
        return True

    def leave_joins(self, join: Join | None, mask: int, warp: Warp, until: Join | None) -> None:
        """Lanes will not come to these joins; those that were only waiting for them go on."""
        while join is not None and join is not until:
            join.pending &= ~mask
            if join.arrived and join.arrived == join.pending:
                context = WarpContext(warp, join.arrived, join.segment, join.parent)
                join.arrived = join.pending = 0
                self.enqueue(context)
            join = join.parent

    def enqueue(self, context: WarpContext) -> None:
        """Add a context that starts at a segment which may itself be its next join."""
        context.warp.contexts.append(context)
        while context.pc == context.join_segment and context.pc != NO_SEGMENT:
            if not self.arrive(context):
                return
        self.ready.append(context)

    def merge(self, context: WarpContext, others: list[WarpContext]) -> None:
        """Make one context of several that stand at the same instruction and wait to converge.

        The united context keeps only the joins that all of them have; the inner ones go on without
        these lanes.
        """
        warp = context.warp
        joins = [_join_chain(s.join) for s in (context, *others)]
        common = next((j for j in joins[0] if all(j in chain for chain in joins[1:])), None)
        mask = context.mask
        for other in others:
            mask |= other.mask
            warp.contexts.remove(other)
            assert other.wait is not None or other in self.ready
            if other.wait is not None:
                queue = self.waiting[other.wait.key]
                queue.remove(other)
                if not queue:
                    del self.waiting[other.wait.key]
            else:
                self.ready.remove(other)
        for one in (context, *others):
            self.leave_joins(one.join, one.mask, warp, common)
        context.set_mask(mask)
        context.set_join(common)

    def exited(self, context: WarpContext, mask: int) -> None:
        """Lanes of a context left the kernel."""
        warp = context.warp
        warp.alive &= ~mask
        self.leave_joins(context.join, mask, warp, None)
        if not warp.alive:
            self._warp_done(warp)
        for key in [k for k in self.waiting if k[0] in ("bar", "cluster", "converge")]:
            self.wake(key)

    def _warp_done(self, warp: Warp) -> None:
        cta = warp.cta
        cta.live_warps -= 1
        self.progress += 1
        if cta.live_warps == 0:
            self._check_cta_end(cta)
            if self.launch.inspector is not None:
                self.launch.inspector.ended(cta)
            cta.cluster.live_ctas -= 1
            if cta.cluster.live_ctas == 0:
                self.clusters.remove(cta.cluster)

    def _check_cta_end(self, cta: Cta) -> None:
        left = cta.tmem.allocations
        if left:
            spans = ", ".join(f"columns {c}..{c + n}" for c, n in left.items())
            raise KernelFault(
                f"tensor memory was not deallocated before the end of the kernel: {spans}",
                kind="tmem",
                line=0,
                text="",
                where=cta.where(),
            )

    # ---- the loop

    def run(self) -> None:
        """Run all clusters of the launch.

        Raises:
          KernelFault: the kernel did something wrong.
          DeadlockError: nothing can run any more.
          InstructionLimitError: it does not come to its end.
        """
        limit = self.launch.instruction_limit
        while True:
            while len(self.clusters) < self.resident and self._start_cluster():
                pass
            if self.ready:
                self._run_context(self._pick())
                if self.warp_instructions > limit:
                    waiting = self.launch.remaining.count
                    raise InstructionLimitError(
                        limit, [*self._report(), f"  {waiting} clusters have not started"]
                    )
                if self.adversarial:
                    if self.channels and self.random.random() < self.strategy.laziness:
                        self._run_random_job()
                elif self.fifo:
                    self._drain()
                if self.idle_rounds and self.idle_rounds % (2 * len(self.ready) + 2) == 0:
                    self._check_polling()
            elif self.channels:
                self._run_random_job()
            elif self.fifo:
                self._drain()
            elif not self.clusters and not self.launch.remaining.count:
                return
            elif not self._resolve_stall():
                raise DeadlockError(self._report())

    def _start_cluster(self) -> bool:
        remaining = self.launch.remaining
        if not remaining.count:
            return False
        cluster = Cluster(self.launch, remaining.take())
        self.clusters.append(cluster)
        if self.launch.inspector is not None:
            self.launch.inspector.started(cluster)
        for cta in cluster.ctas:
            for warp in cta.warps:
                self.ready.extend(warp.contexts)
        self.progress += 1
        self.idle_rounds = 0
        return True

    def _pick(self) -> WarpContext:
        if not self.adversarial:
            return self.ready.popleft()
        chosen = self.random.randrange(len(self.ready))
        if self.strategy.by_priority:
            chosen = self._first_by_priority()
        self.ready.rotate(-chosen)
        return self.ready.popleft()

    def _first_by_priority(self) -> int:
        """Position of the ready context with the highest priority.

        Priorities are random and change now and then, and fall when a context polls in vain: one
        warp gets far ahead of the others, which even choices would hardly ever show.
        """
        priorities = self.priorities
        best, position = -1.0, 0
        for at, context in enumerate(self.ready):
            priority = priorities.get(context)
            if priority is None or self.random.random() < 1 / 256:
                priority = priorities[context] = self.random.random()
            if context.polled == self.progress:
                priority /= 16
            if priority > best:
                best, position = priority, at
        return position

    def _run_context(self, context: WarpContext) -> None:
        program = self.launch.program
        counts = program.counts
        registers = context.warp.registers
        quantum = self.random.randint(1, 6) if self.adversarial else FAIR_QUANTUM
        before = self.progress
        executed = 0
        at = context.pc
        self.running = context
        try:
            for _ in range(quantum):
                at = context.pc
                function = context.table[at]
                if function is None:
                    function = program.function(at, context.table is program.masked)
                next_segment = function(context, registers)
                if next_segment < 0:
                    if next_segment != BLOCKED:
                        executed += counts[at]
                    break
                executed += counts[at]
                context.pc = next_segment
                while context.pc == context.join_segment:
                    if not self.arrive(context):
                        return
                if context.yielding:
                    context.yielding = False
                    self.ready.append(context)
                    break
            else:
                self.ready.append(context)
        except Exception as error:
            raise self._explain(error, context) from error
        finally:
            self.warp_instructions += executed
            self.idle_rounds = self.idle_rounds + 1 if self.progress == before else 0

    # ---- asynchronous work

    def _drain(self) -> None:
        fifo = self.fifo
        while fifo:
            self._run_from(fifo)

    def _run_random_job(self) -> None:
        strategy = self.strategy
        choices = [(k, c) for k, c in self.channels.items() if c.engine != strategy.slow]
        choices = choices or list(self.channels.items())
        if strategy.order == "any":
            key, channel = choices[self.random.randrange(len(choices))]
        elif strategy.order == "priority":
            key, channel = max(choices, key=lambda item: item[1].priority)
        else:
            pick = max if strategy.order == "newest" else min
            key, channel = pick(choices, key=lambda item: item[1].age)
        self._run_from(channel.jobs)
        if not channel.jobs:
            self.channels.pop(key, None)

    def _run_from(self, queue: deque[Job]) -> None:
        job = queue.popleft()
        payloads = [job.payload]
        if job.merge_key is not None:
            while queue and queue[0].merge_key == job.merge_key:
                payloads.append(queue.popleft().payload)
        self.progress += 1
        self.idle_rounds = 0
        inspector = self.launch.inspector
        try:
            if inspector is not None:
                inspector.began(job.ticket)
            job.run(payloads)
            if inspector is not None:
                inspector.finished()
        except KernelFault:
            raise
        except Exception as error:
            kind, message = (
                (error.kind, str(error)) if isinstance(error, Fault) else _unforeseen(error)
            )
            raise KernelFault(
                message,
                kind=kind,
                line=job.line,
                text=self.launch.program.line_text(job.line),
                where=f"{job.where} (asynchronous)",
                origin=self.launch.program.origin(job.line),
            ) from error

    # ---- when nothing runs

    def _resolve_stall(self) -> bool:
        """Let something run that the architecture allows to run. False: a deadlock."""
        if self._release_joins():
            return True
        if self.progress != self.expired_at:
            self.expired_at = self.progress
            expired = [s for s in self._blocked() if s.wait is not None and s.wait.may_expire]
            for context in expired:
                assert context.wait is not None
                self.waiting[context.wait.key].remove(context)
                if not self.waiting[context.wait.key]:
                    del self.waiting[context.wait.key]
                context.wait = None
                context.sync = "expired"
                self.ready.append(context)
            if expired:
                return True
        return self._start_cluster()

    def _release_joins(self) -> bool:
        """Lanes that wait at a join for others of their warp that are blocked go on alone."""
        released = False
        for warp in self._warps():
            for context in list(warp.contexts):
                join = context.join
                while join is not None:
                    if join.arrived and join.segment != NO_SEGMENT:
                        alone = WarpContext(warp, join.arrived, join.segment, join.parent)
                        join.pending &= ~join.arrived
                        join.arrived = 0
                        self.enqueue(alone)
                        released = True
                    join = join.parent
        return released

    def _check_polling(self) -> None:
        """If every ready context only polls, runs asynchronous work, or releases joins.

        Polling goes on for a while before it counts as a deadlock, as code may give up by itself.
        """
        if any(context.polled != self.progress for context in self.ready):
            return
        if self.channels:
            self._run_random_job()
        elif self._release_joins() or self._start_cluster():
            self.idle_rounds = 0
        elif self.idle_rounds > IDLE_ROUNDS_PER_CONTEXT * (len(self.ready) + 1):
            raise DeadlockError(self._report())

    def _warps(self) -> Iterator[Warp]:
        for cluster in self.clusters:
            for cta in cluster.ctas:
                yield from cta.warps

    def _blocked(self) -> list[WarpContext]:
        return [context for contexts in self.waiting.values() for context in contexts]

    def _report(self) -> list[str]:
        program = self.launch.program
        lines: list[str] = []
        for warp in self._warps():
            for context in warp.contexts:
                line = program.segments[context.pc].line
                why = "polling" if context.polled == self.progress else "runs"
                why = context.wait.describe() if context.wait else why
                origin = program.origin(line)
                at = f"{context.where()} at PTX line {line}: {program.line_text(line)}"
                below = f"\n      {origin}" if origin else ""
                lines.append(f"  {at}\n      {why}{below}")
        return lines

    def _explain(self, error: Exception, context: WarpContext) -> Exception:
        """The error of a segment with its PTX line."""
        if isinstance(error, LaunchError) and not isinstance(error, Fault):
            return error
        program = self.launch.program
        line = 0
        trace = error.__traceback__
        while trace is not None:
            ptx_line = program.ptx_line(trace.tb_frame.f_code, trace.tb_lineno)
            line = ptx_line or line
            trace = trace.tb_next
        if isinstance(error, Fault):
            kind, message = error.kind, str(error)
        elif isinstance(error, TypeError | AttributeError | ValueError) and _has_poison(
            context.warp
        ):
            kind = "poison"
            message = (
                "a register is read before the wait (tcgen05.wait::ld, wgmma.wait_group) that "
                "delivers it"
            )
        else:
            kind, message = _unforeseen(error)
        return KernelFault(
            message,
            kind=kind,
            line=line,
            text=program.line_text(line),
            where=context.where(),
            origin=program.origin(line),
        )
