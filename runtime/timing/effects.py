"""Effects of instructions in a replay: arrivals, waits, copies and products."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from .chips import Values
from .engines import Barrier, Cell, Multiprocessor, Product
from .join import Issue
from .record import Arrival, Conflicts, Multiplication, Request, Waiting
from .sass import Instruction
from .tensor_memory import Ports, TensorQueue
from .units import Cost
from .warps import Warp

GROUP_WARPS = 4
STEP_COLUMNS = 8

_SHAPE = re.compile(r"^(\d+)x(\d+)x(\d+)$")

Names = Callable[[tuple[object, ...]], str]


class Effects:
    """The engines of multiprocessors, on which instructions act.

    Args:
      names: gives a barrier key a name.
      stores_read: bulk groups are waited for until they have read, not until they are complete.
    """

    def __init__(
        self, sms: list[Multiprocessor], values: Values, names: Names, *, stores_read: bool
    ):
        self.sms, self.values, self.names, self.stores_read = sms, values, names, stores_read
        self.ports = [Ports(values) for _ in sms]
        self.queues = [TensorQueue(values, one.tensor.line, one.keep) for one in sms]

    def act(self, warp: Warp, issue: Issue, cost: Cost, now: float) -> Cell | None:
        """The effects of an instruction; returns when its result is there, if that is special."""
        match cost.action:
            case "product":
                self._product(warp, issue.instruction, now)
            case "group":
                warp.gate = Cell("warpgroup fence", now + self.values["group_latency"])
            case "flush":
                done = max(warp.pending_stores, default=now)
                warp.pending_stores = []
                if not self.stores_read:
                    done += self.values["store_latency"]
                return Cell("bulk stores", max(done, now))
            case "tensor load" | "tensor store":
                sm, number = warp.partition.sm, warp.partition.number
                if cost.action == "tensor load":
                    return Cell("LDTM result", self.ports[sm].load(number, now, issue.instruction))
                warp.stored = self.ports[sm].store(number, now, issue.instruction)
                return Cell("STTM", warp.stored)
            case "tensor fence":
                done = max(now, warp.stored) + self.values["fence_latency"]
                warp.gate = Cell("tensor memory fence", done)
            case "wait" | "arrive" | "bar" | "cluster" | "copy" | "shared" | "mma" | "commit":
                result: Cell | None = None
                for event in issue.slot or ():
                    result = self._event(warp, issue.instruction, event, now) or result
                return result
            case _:
                pass
        return None

    def _event(self, warp: Warp, one: Instruction, event: object, now: float) -> Cell | None:
        values = self.values
        barriers = warp.barriers
        match event:
            case Waiting(key, phase):
                if key not in barriers:
                    barriers[key] = Barrier(self.names(key), [], 0)
                over = barriers[key].over(phase)
                if one.base == "SYNCS":
                    return self._later(
                        over, now, values["try_wait_latency"], values["wake_latency"]
                    )
                extra = values["cluster_latency"]
                warp.gate = self._later(over, now, values["arrive_latency"], extra)
            case Arrival(key, count, phase):
                barrier = barriers[key]
                if key[0] == "mbarrier":
                    sync = self.sms[warp.partition.sm].sync
                    _, end = sync.take(now, values["arrive_interval"], "", False)
                    barrier.arrive(end + values["arrive_latency"], count)
                else:
                    barrier.arrive(now, count)
                if phase >= 0:
                    extra = self._bar_latency(barrier, phase)
                    warp.gate = self._later(barrier.over(phase), now - 1, 0, extra)
            case Multiplication():
                warp.times.products += 1
                first = warp.partition.sm & ~1 if event.ctas == 2 else warp.partition.sm
                ends = [self.queues[first + n].multiply(now, event) for n in range(event.ctas)]
                warp.multiplied = max(ends)
            case Request(_, signals) if one.base == "UTCBAR":
                done = max(now, warp.multiplied) + values["commit_latency"]
                for key, _ in signals:
                    barriers[key].arrive(done, 1)
            case Request(shared_bytes, signals, is_store):
                sm = self.sms[warp.partition.sm]
                if is_store:
                    warp.pending_stores.append(sm.store(now, shared_bytes, "store"))
                    return None
                ctas = len({key[1] for key, _ in signals}) or 1
                done = sm.load(now, shared_bytes / ctas, self._filled(signals))
                for key, byte_count in signals:
                    barriers[key].arrive(done, 0 if byte_count else 1, byte_count)
            case Conflicts(wavefronts):
                sm = self.sms[warp.partition.sm]
                _, end = sm.port.take(now, wavefronts, "", False)
                latency = "lds_latency" if one.base.startswith("LDS") else "sts_read"
                return Cell(result_name(one), end - 1 + values[latency])
            case _:
                pass
        return None

    def _filled(self, signals: list[tuple[tuple[object, ...], int]]) -> str:
        return self.names(signals[0][0]) if signals else "copy"

    def _bar_latency(self, barrier: Barrier, phase: int) -> float:
        warps = barrier.needs[phase].arrivals / 32 if phase < len(barrier.needs) else 1
        return self.values["bar_latency"] + self.values["bar_per_warp"] * warps

    @staticmethod
    def _later(over: Cell, now: float, least: float, extra: float) -> Cell:
        """The time at which a warp sees that a phase is over."""
        cell = Cell(over.label)

        def know() -> None:
            assert over.time is not None
            late = over.time + extra if over.time > now else now
            cell.resolve(max(late, now + least))

        if over.time is None:
            over.waiters.append(know)
        else:
            know()
        return cell

    def _product(self, warp: Warp, one: Instruction, now: float) -> None:
        group = warp.group
        assert group is not None
        number = warp.times.products
        warp.times.products += 1
        if number == len(group.products):
            label = "tensor core"
            service, steps = product_clocks(one)
            product = Product(group.number, service, steps, Cell("tensor queue"), Cell(label))
            group.products.append(product)
            made = self.sms[warp.partition.sm].made
            made.append(product)
            del made[:-64]
        product = group.products[number]
        product.parts += 1
        product.time = max(product.time, now)
        if one.operands.rstrip().endswith("gsb0"):
            warp.groups.append(product.done)
        if product.parts == GROUP_WARPS:
            self.sms[warp.partition.sm].tensor.multiply(product)


def product_clocks(one: Instruction) -> tuple[float, int]:
    """Clocks for which one warpgroup's product keeps the tensor cores, and its steps of 8 columns.

    N/2 for m64nN and 32 bytes of K; with A in shared memory at least 16 + N/4, the operands' bytes
    over 128 (Luo et al., arXiv 2501.12084, table of wgmma).
    """
    for suffix in one.suffixes:
        if shape := _SHAPE.match(suffix):
            columns = int(shape[2])
            sources = one.operands.split(",")
            shared = len(sources) > 1 and "gdesc" in sources[1]
            clocks = max(columns / 2, (16 if shared else 0) + columns / 4)
            return clocks, max(1, columns // STEP_COLUMNS)
    return 128.0, 32


def result_name(one: Instruction) -> str:
    """How the table of waits names an instruction's result."""
    return {
        "MUFU": "MUFU result", "SHFL": "shuffle result", "SYNCS": "barrier instruction",
    }.get(one.base, f"{one.base} result")  # fmt: skip


def barrier_names(names: Mapping[int, str] = MappingProxyType({}), base: int = 0) -> Names:
    """Names of barriers: those given by offset in dynamic shared memory, else kind and address.

    Args:
      base: where dynamic shared memory begins.
    """

    def name(key: tuple[object, ...]) -> str:
        kind, *where = key
        if kind == "mbarrier":
            offset = where[1]
            assert isinstance(offset, int)
            return names.get(offset - base) or f"mbarrier {offset:#x}"
        return f"barrier {where[1]}" if kind == "bar" else "cluster barrier"

    return name
