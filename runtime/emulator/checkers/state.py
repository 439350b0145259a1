"""What the checkers know about a cluster that runs, and the parts that all of them use."""

from collections.abc import Hashable

from ..machine.memory import ByteRange, GlobalMemory
from ..ptx.kinds import WARP_LANES
from ..state import Cluster, Cta, Launch, Strand
from .barriers import Barriers
from .clocks import EARLIER, FIRST_THREAD, NEVER, NOBODY, Actors, Clock, WarpClocks
from .report import Chronicle, Reporter
from .spaces import ByteSpace, TensorSpace

REMEMBERED_MOMENTS = 256  # instructions whose lanes' equal copies count once
KEPT_CLUSTERS = 4  # that are over: their stores to global memory may still be under way


class CtaState:
    """A CTA's clocks and shadows."""

    def __init__(self, cta: Cta, warps: list[WarpClocks]):
        self.cta = cta
        self.warps = warps
        self.shared = ByteSpace(cta.shared.data.size)
        self.tmem = TensorSpace()


class ClusterState:
    """A cluster's actors, barriers and CTAs.

    Attributes:
      number: clusters of the launch that began before it.
      steps: pieces of work so far, by engine actor.
      groups: step at the end of each closed group, by (actor, lane, kind).
      parts: what the warps know that issued a part of an unfinished wgmma, by channel.
      pairs: (actor, step) of a CTA pair's allocation, until the second CTA has it too.
      meetings: what those know who made strong writes, by memory and address.
    """

    def __init__(self, cluster: Cluster, number: int):
        self.cluster = cluster
        self.number = number
        per_cta = len(cluster.ctas[0].warps) * WARP_LANES
        self.actors = Actors(per_cta * len(cluster.ctas))
        self.chronicle = Chronicle(cluster.launch.program, self.actors, per_cta)
        self.barriers = Barriers(self.actors)
        self.steps: dict[int, int] = {}
        self.groups: dict[Hashable, list[int]] = {}
        self.parts: dict[Hashable, Clock] = {}
        self.meetings: dict[Hashable, Clock] = {}
        self.pairs: dict[Hashable, tuple[int, int]] = {}
        self._recent: dict[tuple[int, ...], set[Hashable]] = {}
        self.ctas: list[CtaState] = []
        for cta in cluster.ctas:
            warps = [
                WarpClocks(
                    self.actors,
                    FIRST_THREAD + cta.rank * per_cta + warp.index * WARP_LANES,
                    f"{cta.where()} warp {warp.index}",
                )
                for warp in cta.warps
            ]
            self.chronicle.warps.append(warps)
            self.ctas.append(CtaState(cta, warps))

    def is_repeated(self, moment: tuple[int, ...], what: Hashable) -> bool:
        """Whether another lane of the same instruction did exactly this already."""
        known = self._recent.setdefault(moment, set())
        if len(self._recent) > REMEMBERED_MOMENTS:
            del self._recent[next(iter(self._recent))]
        if what in known:
            return True
        known.add(what)
        return False

    def next_step(self, actor: int) -> int:
        """The number of an engine's next piece of work."""
        self.steps[actor] = self.steps.get(actor, 0) + 1
        return self.steps[actor]


class GlobalSpaces:
    """The shadows of the mapped arrays that a kernel may write.

    Args:
      crosses: what other clusters did is ordered by means that are not followed (atomics).
    """

    def __init__(self, memory: GlobalMemory, crosses: bool):
        self.memory = memory
        self.crosses = crosses
        self._spaces: dict[int, tuple[ByteSpace, ClusterState]] = {}

    def at(self, address: int, byte_count: int, state: ClusterState) -> ByteSpace | None:
        """The shadow of a range, or None when it is in no mapping or in one that is read-only."""
        found: ByteRange = self.memory.find(address, byte_count)
        if not found.data.flags.writeable:
            return None
        known = self._spaces.get(found.base)
        if known is None:
            space = ByteSpace(found.data.size, found.base)
        elif known[1] is state:
            return known[0]
        elif known[1].number > state.number:
            return None  # a late store of a cluster that is over
        else:
            space = known[0]
            self._age(space)
        self._spaces[found.base] = (space, state)
        return space

    def _age(self, space: ByteSpace) -> None:
        """Another cluster begins: what was done so far, others did."""
        who, step = (NOBODY, 0) if self.crosses else (EARLIER, NEVER)
        space.shadow.replace_all(who, step)


class CheckBase:
    """What the checkers share.

    Args:
      checks: names of `findings.CHECKS`.
    """

    def __init__(self, reporter: Reporter):
        self.reporter = reporter
        self.strict_fences = True
        self.strict_loads = True
        self.states: dict[int, ClusterState] = {}
        self._started = 0
        self.globals: GlobalSpaces | None = None

    def launched(self, launch: Launch) -> None:
        """Kernels that use tcgen05.fence (or wait::ld) at all are held to it everywhere."""
        code = launch.program.kernel.instructions
        self.strict_fences = any(
            i.parts[0] == "tcgen05" and i.parts[1].startswith("fence") for i in code
        )
        self.strict_loads = launch.strict_loads
        crosses = any(
            i.parts[0] in ("atom", "red") or i.has("acquire", "release", "volatile")
            for i in code
            if i.parts[0] in ("atom", "red", "ld", "st") and not i.has("shared", "shared::cta")
        )
        self.globals = GlobalSpaces(launch.memory, crosses)

    def started(self, cluster: Cluster) -> None:
        """Begin with a cluster of which nobody knows anything."""
        self.states[id(cluster)] = ClusterState(cluster, self._started)
        self._started += 1
        for key in list(self.states)[:-KEPT_CLUSTERS]:
            if not self.states[key].cluster.live_ctas:
                del self.states[key]

    def state_of(self, cta: Cta) -> ClusterState:
        """The state of a CTA's cluster."""
        return self.states[id(cta.cluster)]

    def warp_of(self, s: Strand) -> WarpClocks:
        """The clocks of a strand's warp."""
        return self.state_of(s.cta).ctas[s.cta.rank].warps[s.warp.index]
