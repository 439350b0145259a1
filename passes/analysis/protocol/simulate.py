"""Runs the process network of a kernel for given sizes: order, deadlock, and what precedes what.

All processes (`runner`) of all CTAs of a cluster go on as far as they can, in turn, until all have
ended or none can go on. A run leaves out turns in which they would only do again what they have
just done (`recurrence`).
"""

from collections import defaultdict
from collections.abc import Sequence

from attn_mlir.dialect.diagnostics import op_error

from .clocks import Clocks
from .ports import Ports
from .program import Program, program
from .recurrence import Recurrence, Skip
from .runner import Runner
from .skeleton import Process, Sizes, named_sizes
from .trace import Trace


class Network:
    """All processes of a kernel.

    Attributes:
      ports: their steps.
      clocks: what is computed with their clocks.
    """

    def __init__(self, members: Sequence[Process]):
        self._members = members
        self.ports = Ports(members)
        self.clocks = Clocks(self.ports.component_count)
        self._counts = [0] * self.ports.component_count
        given = self.ports, self.clocks, self._counts
        self._runners = [Runner(process, *given) for process in members]
        self._programs: dict[object, Program] = {}

    def programs(self, sizes: Sizes, tiles: Sequence[Sizes] = ({},)) -> tuple[Program, ...]:
        """The steps of each process, for given sizes and work tiles of a CTA (`tile0`, ...
        of each).
        """
        return tuple(self._program(process, sizes, tiles) for process in self._members)

    def _program(self, process: Process, sizes: Sizes, tiles: Sequence[Sizes]) -> Program:
        known = {**sizes, **process.place}
        values = [known, *({**known, **tile} for tile in tiles)]
        read = (tuple(at.get(name) for name in sorted(process.sizes)) for at in values)
        key = (id(process.body), process.group, process.rank, *read)
        if key not in self._programs:
            self._programs[key] = program(process.body, known, tiles)
        return self._programs[key]

    def run(
        self, sizes: Sizes, tiles: Sequence[Sizes] = ({},), *, skips: list[Skip] | None = None
    ) -> Trace:
        """Runs to the end.

        Args:
          sizes, tiles: as of `programs`.
          skips: the turns that were left out are added here; without it, none are.

        Raises:
          VerifyError: processes wait for one another, or hand slots over out of turn.
        """
        for instance in self.ports.instances.values():
            instance.begin()
        self._counts[:] = [0] * self.ports.component_count
        for runner, body in zip(self._runners, self.programs(sizes, tiles), strict=True):
            runner.begin(body)
        recurrence = Recurrence(self.clocks, self._runners)
        while sum(runner.run() for runner in self._runners) > 0:
            if skips is not None and (skip := recurrence.skip()):
                skips.append(skip)
        stuck = [runner for runner in self._runners if runner.blocked_on is not None]
        if stuck:
            raise self._deadlock(stuck, [{**sizes, **tile} for tile in tiles])
        happened = {
            key: instance.events
            for key, instance in self.ports.instances.items()
            if instance.events
        }
        return Trace(defaultdict(list, happened), self.clocks)

    def _deadlock(self, stuck: Sequence[Runner], call: Sequence[Sizes]) -> Exception:
        first = stuck[0].blocked_on
        assert first is not None
        where = " and ".join(filter(None, (named_sizes(self._members, sizes) for sizes in call)))
        place = f" with {where}" if where else ""
        lines = "; ".join(_explain(runner) for runner in stuck)
        return op_error(first.step.op, f"never returns{place}: {lines}")


def _explain(runner: Runner) -> str:
    """The slot that a role waits for, and its producers."""
    port = runner.blocked_on
    assert port is not None
    need, verb = ("an empty", "releases") if port.step.kind == "acquire" else ("a full", "commits")
    who = " and ".join(side.who for side in port.heard) or "nobody"
    label = f"{port.step.ring.owner.label}[{port.at.key[1]}]"
    return f"role {runner.process.label} needs {need} slot of ring {label}, which {who} {verb}"
