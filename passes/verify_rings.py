"""`ws-verify-rings`: proves that the roles of a kernel agree on its rings, before code exists.

Six findings, each with the role and the operation:

1. Counts. For all sizes, in every work tile, a ring way is committed as often as each of its
   consumers waits for it, what is acquired is committed, and what is waited for is released.
2. Turns. Slots are handed over in the order in which they were taken.
3. Progress. The roles form a deterministic process network, so one run per set of sizes decides
   whether it can stop short. Runs cover key counts of 0 to two laps of the longest ring, whole
   and ragged, after which the pattern of the ring indices repeats. Where elements of inputs decide
   as well (lengths of sequences, say), they are varied like sizes; sizes that count pages grow by
   less, as found by what they do. Where a mask hides all keys at
   such counts, they are counted from the first size at which a loop turns.
4. Products. A slot that a product into registers reads is released after it is settled.
5. Places. Where two rings share one, no slot is filled while the other ring's is in use.
6. Clusters. The roles of all CTAs run in one network, and where they touch each other's slots or
   signal each other's barriers, somebody has said that they may.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.errors import SpecError
from attn_mlir.passes.analysis.protocol.agreement import check_counts
from attn_mlir.passes.analysis.protocol.integers import is_element, known_at_launch
from attn_mlir.passes.analysis.protocol.places import check_places
from attn_mlir.passes.analysis.protocol.products import check_products
from attn_mlir.passes.analysis.protocol.simulate import Network, Trace
from attn_mlir.passes.analysis.protocol.skeleton import (
    COORDINATES,
    Process,
    Sizes,
    Tiles,
    decisions,
    processes,
    trips,
)
from attn_mlir.passes.infrastructure.analyses import analysed
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.infrastructure.registry import register

EXTRA_LAPS = 2  # laps of the longest ring that the runs cover
TILE_STEP = 128  # sizes grow by whole tiles
MOST_LAPS = 4  # turns of a loop, in laps of the longest ring; more say that a size counts pages
RAGGED = 77  # and once by less than one
MAX_START = 1 << 22  # nothing is done for any smaller size: then never


@register
@dataclass(frozen=True)
class VerifyRings:
    """Refuses a kernel whose roles disagree on a ring, or whose products read what is gone."""

    name: ClassVar[str] = "ws-verify-rings"
    is_analysis: ClassVar[bool] = True

    def run(self, module: Any) -> None:
        """Checks every kernel of the module.

        Raises:
          VerifyError: with the role, the ring and the operation.
        """
        for kernel in ir.get_ops_of_type(module, ws.KernelOp):
            analysed(prove, kernel)


def prove(kernel: ws.KernelOp) -> list[Trace]:
    """Checks one kernel; returns what happened in the runs, for the planner.

    Raises:
      VerifyError: as `VerifyRings`.
    """
    try:
        return _prove(kernel)
    except SpecError as error:  # of an expression
        raise op_error(kernel, f"has rings that cannot be proved: {error}") from None


def _prove(kernel: ws.KernelOp) -> list[Trace]:
    check_products(kernel)
    members = processes(kernel)
    check_counts(kernel, members, lambda: _calls(kernel, members))
    check_places(members)
    runs: dict[Any, Network] = {}
    for sizes, tiles in _calls(kernel, members):
        outcome = tuple(
            decisions(process.body, {**sizes, **tile, **process.place})
            for tile in tiles
            for process in members
        )
        if outcome not in runs:
            runs[outcome] = Network(members, sizes, tiles)
    return [network.run() for network in runs.values()]


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
    loops = [node for process in members for node in process.body if isinstance(node, Tiles)]
    none: Sizes = {}  # what is known of sizes that are all static
    for sizes in _sizes(members, loops, names, elements, laps) if names else [none]:
        corners = list(_corner_tiles(loops, sizes))
        if loops and loops[0].op.order.value in LOOPING_ORDERS:
            yield sizes, corners * 2  # twice each: the second meets what the first has left
        else:
            yield from ((sizes, [tile]) for tile in corners)


def _sizes(
    members: Sequence[Process],
    loops: Sequence[Tiles],
    names: Sequence[str],
    elements: Sequence[str],
    laps: int,
) -> Iterator[Sizes]:
    """Every size that matters in steps, up to loops of so many laps, the others fixed."""
    used = {name for process in members for name in process.sizes}
    span = TILE_STEP * laps + RAGGED
    varied_sizes = [name for name in sorted(used) if name in names] or names[:1]

    units = _units(members, loops, names, elements, span, MOST_LAPS * laps)

    def settings(longest: int) -> list[tuple[str, Sizes]]:
        """Each varied size with the others, up to `longest`."""
        ends = {name: longest // units[name] for name in names}
        fixed = ends if elements else dict.fromkeys(names, TILE_STEP * 2)
        return [
            (varied, _most_responsive(members, loops, fixed, elements, varied, ends))
            for varied in varied_sizes
        ]

    start, found = _first_work(members, loops, settings, units, span)
    lengths = [0, RAGGED, *(start + TILE_STEP * n for n in range(1, laps + 1)), start + span]
    for varied, others in found:
        for length in dict.fromkeys(length // units[varied] for length in lengths):
            yield others | {varied: length}


def _units(
    members: Sequence[Process],
    loops: Sequence[Tiles],
    names: Sequence[str],
    elements: Sequence[str],
    span: int,
    most: int,
) -> dict[str, int]:
    """How many positions sizes count in one, powers of two: a page is worth as many as it holds.

    Found by what sizes do: those whose halves make loops turn less often, as long as some loop
    turns more than `most` times for sizes of `span` positions.
    """

    def longest_loop(units: dict[str, int]) -> int:
        sizes = {name: span // unit for name, unit in units.items()}
        turns = (
            trips(process.body, {**chosen, **tile})
            for chosen in _corners(sizes, elements, sizes)
            for tile in _corner_tiles(loops, chosen)
            for process in members
        )
        return max(turns, default=0)

    units = dict.fromkeys(names, 1)
    for name in names:
        while units[name] < span and (turns := longest_loop(units)) > most:
            halved = units | {name: 2 * units[name]}
            if longest_loop(halved) == turns:
                break
            units = halved
    return units


def _first_work(
    members: Sequence[Process],
    loops: Sequence[Tiles],
    settings: Callable[[int], list[tuple[str, Sizes]]],
    units: Sizes,
    span: int,
) -> tuple[int, list[tuple[str, Sizes]]]:
    """What lengths are counted from, and the settings of sizes up to `span` beyond it.

    0, unless nothing would happen: a mask may hide all keys until sizes exceed those of its terms,
    and runs in which no loop turns prove nothing.
    """

    def has_work(found: list[tuple[str, Sizes]], longest: int) -> bool:
        return any(
            _turns(members, loops, sizes | {name: longest // units[name]}) for name, sizes in found
        )

    start, idle = 0, 0
    found = plain = settings(span)
    while not has_work(found, start + span):
        idle, start = start, max(2 * start, span)
        if start > MAX_START:
            return 0, plain
        found = settings(start + span)
    while start - idle > span:  # as near to it as one run is long, so that runs stay short
        middle = (start + idle) // 2 // TILE_STEP * TILE_STEP
        nearer = settings(middle + span)
        if has_work(nearer, middle + span):
            start, found = middle, nearer
        else:
            idle = middle
    return start, found


def _turns(members: Sequence[Process], loops: Sequence[Tiles], sizes: Sizes) -> int:
    """How often the loops of all processes run in the corner tiles."""
    tiles = list(_corner_tiles(loops, sizes))
    return sum(trips(process.body, {**sizes, **tile}) for tile in tiles for process in members)


def _most_responsive(
    members: Sequence[Process],
    loops: Sequence[Tiles],
    fixed: Sizes,
    elements: Sequence[str],
    varied: str,
    ends: Sizes,
) -> Sizes:
    """The sizes with each element 0 or at its end, so that varying one changes most.

    An offset decides over nothing where the next one is 0; this finds where it does. The last
    tile counts as well: a mask may hide all keys from the first queries.
    """

    def change(sizes: Sizes) -> int:
        low, high = (_turns(members, loops, {**sizes, varied: end}) for end in (0, ends[varied]))
        return abs(high - low)

    others = [name for name in elements if name != varied]
    return max(_corners(fixed, others, ends), key=change) if others else fixed


def _corners(sizes: Sizes, elements: Sequence[str], ends: Sizes) -> Iterator[Sizes]:
    """The sizes with each element 0 or at its end."""
    for values in product(*((0, ends[name]) for name in elements)):
        yield sizes | dict(zip(elements, values, strict=True))


def _corner_tiles(loops: Sequence[Tiles], sizes: Sizes) -> Iterator[Sizes]:
    """The first and the last work tile, if there is one."""
    if not loops:
        yield {}
        return
    extents = [extent.of(sizes) for extent in loops[0].extents]
    corners = [[0 for _ in extents], [extent - 1 for extent in extents]]
    if min(extents) > 0:
        for corner in corners[: 1 if corners[0] == corners[1] else 2]:
            yield dict(zip(COORDINATES, corner, strict=False))
