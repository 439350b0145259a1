"""`ws-verify-rings`: proves that the roles of a kernel agree on its rings, before code exists.

Three findings, each with the role and the operation:

1. Counts. For all sizes, in every work tile, a ring way is committed as often as each of its
   consumers waits for it, what is acquired is committed, and what is waited for is released.
2. Turns. Slots are handed over in the order in which they were taken.
3. Progress. The roles form a deterministic process network, so one run per set of sizes decides
   whether it can stop short. Runs cover key counts of 0 to two laps of the longest ring, whole
   and ragged, after which the pattern of the ring indices repeats. Where elements of inputs decide
   as well (lengths of sequences, say), they are varied like sizes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.passes.diagnostics import op_error
from attn_mlir.passes.registry import register

from .protocol.atoms import is_element, known_at_launch
from .protocol.counts import Counting, Sum, text
from .protocol.simulate import Network, Trace
from .protocol.skeleton import GROUP, Process, Sizes, Tiles, decisions, processes, trips

EXTRA_LAPS = 2  # laps of the longest ring that the runs cover
TILE_STEP = 128  # sizes grow by whole tiles
RAGGED = 77  # and once by less than one


@register
@dataclass(frozen=True)
class VerifyRings:
    """Refuses a kernel whose roles disagree on counts, turns or progress of a ring."""

    name: ClassVar[str] = "ws-verify-rings"
    is_analysis: ClassVar[bool] = True

    def run(self, module: Any) -> None:
        """Checks every kernel of the module.

        Raises:
          VerifyError: with the role, the ring and the operation.
        """
        for kernel in ir.get_ops_of_type(module, ws.KernelOp):
            prove(kernel)


def prove(kernel: ws.KernelOp) -> list[Trace]:
    """Checks one kernel; returns what happened in the runs, for the planner.

    Raises:
      VerifyError: as `VerifyRings`.
    """
    members = processes(kernel)
    _check_counts(kernel, members)
    runs: dict[Any, Network] = {}
    for sizes, tiles in _calls(kernel, members):
        outcome = tuple(
            decisions(process.body, {**sizes, **tile, GROUP: process.group})
            for tile in tiles
            for process in members
        )
        if outcome not in runs:
            runs[outcome] = Network(members, sizes, tiles)
    return [network.run() for network in runs.values()]


def _check_counts(kernel: ws.KernelOp, members: Sequence[Process]) -> None:
    """Compares the formulas of all processes, per ring way."""
    counts = [(process, Counting(kernel, process).steps()) for process in members]
    ways: dict[tuple[Any, int], None] = {}
    for _, steps in counts:
        ways.update({(ring, way): None for ring, way, _ in steps})
    for ring, way in ways:

        def of(kind: str, key: tuple[Any, int] = (ring, way)) -> list[tuple[str, Sum]]:
            return [(p.label, s[*key, kind]) for p, s in counts if (*key, kind) in s]

        _check_ways(ring, way)
        acquired, committed = of("acquire"), of("commit")
        waited, released = of("wait"), of("release")
        label = f"{ring.owner.label}[{way}]"
        if len(committed) != 1:
            names = ", ".join(name for name, _ in committed) or "none"
            raise op_error(ring.owner, f"expects one role that fills ring {label}, got {names}")
        if not waited:
            raise op_error(ring.owner, f"expects a role that reads ring {label}, got none")
        ((producer, filled),) = committed
        for verb, pairs in (("acquires", acquired), ("waits for", waited), ("releases", released)):
            for name, total in pairs:
                if total != filled:
                    raise op_error(
                        ring.owner,
                        f"ring {label}: role {name} {verb} {text(total)} slots, "
                        f"role {producer} commits {text(filled)}",
                    )
        if [name for name, _ in acquired] != [producer]:
            raise op_error(ring.owner, f"ring {label}: role {producer} commits without acquiring")
        if {name for name, _ in waited} != {name for name, _ in released}:
            raise op_error(ring.owner, f"ring {label}: a role waits without releasing")


def _check_ways(ring: Any, way: int) -> None:
    ways = ws.RingType(ring.type).ways
    if not 0 <= way < ways:
        label = ring.owner.label
        raise op_error(ring.owner, f"ring {label} has ways 0..{ways - 1}, a role uses {way}")


def _calls(
    kernel: ws.KernelOp, members: Sequence[Process]
) -> Iterator[tuple[Sizes, Sequence[Sizes]]]:
    """Sizes and a CTA's work tiles to run: every size that matters in steps, the others fixed."""
    used = sorted({name for process in members for name in process.sizes})
    elements = [name for name in used if is_element(name)]
    names = sorted(known_at_launch(kernel)) + elements
    stages = [
        ws.RingType(op.ring.type).stages
        for op in kernel.body.blocks[0].operations
        if isinstance(op, ws.AllocRingOp)
    ]
    laps = EXTRA_LAPS * max(stages, default=1) + 1
    longest = TILE_STEP * laps + RAGGED
    lengths = [0, RAGGED, *(TILE_STEP * n for n in range(1, laps + 1)), longest]
    loops = [node for process in members for node in process.body if isinstance(node, Tiles)]
    fixed = dict.fromkeys(names, longest if elements else TILE_STEP * 2)
    for varied in [name for name in used if name in names] or names[:1]:
        others = _most_responsive(members, loops, fixed, elements, varied, longest)
        for length in lengths:
            sizes = others | {varied: length}
            corners = list(_corner_tiles(loops, sizes))
            if loops and loops[0].op.order.value in LOOPING_ORDERS:
                yield sizes, corners * 2  # twice each: the second meets what the first has left
            else:
                yield from ((sizes, [tile]) for tile in corners)


def _most_responsive(
    members: Sequence[Process],
    loops: Sequence[Tiles],
    fixed: Sizes,
    elements: Sequence[str],
    varied: str,
    longest: int,
) -> Sizes:
    """The sizes with each element 0 or `longest`, so that varying one changes most.

    An offset decides over nothing where the next one is 0; this finds where it does. The first and
    the last work tile count together, since a mask may hide everything from one of them.
    """

    def work(sizes: Sizes) -> int:
        tiles = _corner_tiles(loops, sizes)
        return sum(trips(p.body, {**sizes, **tile}) for tile in tiles for p in members)

    def change(sizes: Sizes) -> int:
        return abs(work({**sizes, varied: longest}) - work({**sizes, varied: 0}))

    others = [name for name in elements if name != varied]
    settings = product((0, longest), repeat=len(others))
    candidates = (fixed | dict(zip(others, values, strict=True)) for values in settings)
    return max(candidates, key=change) if others else fixed


def _corner_tiles(loops: Sequence[Tiles], sizes: Sizes) -> Iterator[Sizes]:
    """The first and the last work tile, if there is one."""
    if not loops:
        yield {}
        return
    extents = [extent(sizes) for extent in loops[0].extents]
    corners = [[0 for _ in extents], [extent - 1 for extent in extents]]
    if all(extents):
        for corner in corners[: 1 if corners[0] == corners[1] else 2]:
            yield {f"tile{number}": value for number, value in enumerate(corner)}
