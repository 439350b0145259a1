"""`ws-verify-rings`: proves that the roles of a kernel agree on its rings, before code exists.

Six things are checked; an error names the role and the operation:

1. Counts. For all sizes, in every work tile, each consumer of a ring instance waits as often as its
   slots are committed; every acquired slot is committed, and every slot waited for is released.
2. Turns. Slots are handed over in the order in which they were taken.
3. Progress. The roles form a deterministic process network, so one run per set of sizes decides
   whether it deadlocks. Runs cover sequences of no key up to two laps of the longest ring, with and
   without a last tile that is not full, and a longer one. As soon as a run comes to a state that it
   has been in before, up to what has been counted, it leaves out the turns that would only bring it
   there again, and stands for the runs of all sizes with more of these turns. Elements of
   inputs on which loops depend (lengths of sequences, say) are varied like sizes. A size that
   counts pages is varied in smaller steps; it is recognised by how the number of turns grows with
   it. Where a mask hides all keys of such short sequences, lengths start at the first one with a
   turn.
4. Products. A slot that a product into registers reads is released after the product is settled.
5. Places. Where slots of rings overlap, none is filled while another ring's slot is in use.
6. Clusters. The roles of all CTAs run in one network. A role that touches another CTA's slot, or
   signals another CTA's barrier, has heard by a handover that it may.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, TypeAlias

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.errors import SpecError
from attn_mlir.passes.analysis.protocol.agreement import check_counts
from attn_mlir.passes.analysis.protocol.integers import is_element, known_at_launch
from attn_mlir.passes.analysis.protocol.products import check_products
from attn_mlir.passes.analysis.protocol.runs import Runs
from attn_mlir.passes.analysis.protocol.simulate import Network
from attn_mlir.passes.analysis.protocol.skeleton import (
    COORDINATES,
    Node,
    Process,
    Sizes,
    Tiles,
    processes,
    step_count,
    trips,
    turning,
)
from attn_mlir.passes.analysis.protocol.trace import Trace
from attn_mlir.passes.infrastructure.analyses import analysed
from attn_mlir.passes.infrastructure.registry import register

EXTRA_LAPS = 2  # laps of the longest ring that the runs cover
TILE_STEP = 128  # positions by which sizes grow: a whole tile
MOST_LAPS = (
    4  # most turns of a loop, in laps of the longest ring; a size that makes more counts pages
)
RAGGED = 77  # positions beyond whole tiles, once: a tile that is not full
MANY_SPANS = (
    8  # how much longer than these sequences one is, whose turns runs leave out as they repeat
)
MAX_START = 1 << 22  # a loop that does not turn for any size below never turns

Bodies: TypeAlias = "list[tuple[tuple[Node, ...], int]]"  # of processes: see `turning`


@register
@dataclass(frozen=True)
class VerifyRings:
    """Refuses kernels whose roles disagree on a ring, or release slots that products still read."""

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
    """Checks one kernel; returns the traces of its runs, which the planner needs.

    Raises:
      VerifyError: as `VerifyRings`.
    """
    try:
        return _prove(kernel)
    except SpecError as error:  # an integer expression that cannot be evaluated
        raise op_error(kernel, f"has rings that cannot be proved: {error}") from None


def _prove(kernel: ws.KernelOp) -> list[Trace]:
    check_products(kernel)
    members = analysed(processes, kernel)
    check_counts(kernel, members, lambda: _calls(kernel, members))
    runs = Runs(Network(members))
    traces = (runs.make(sizes, tiles) for sizes, tiles in _calls(kernel, members))
    return [trace for trace in traces if trace is not None]


def _calls(
    kernel: ws.KernelOp, members: Sequence[Process]
) -> Iterator[tuple[Sizes, Sequence[Sizes]]]:
    """The runs to make, each by its sizes and the work tiles of a CTA; see the module for the
    sizes.
    """
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
    none: Sizes = {}  # a kernel whose sizes are all static
    for sizes in _sizes(members, loops, names, elements, laps) if names else [none]:
        corners = list(_corner_tiles(loops, sizes))
        if loops and loops[0].op.order.value in LOOPING_ORDERS:
            yield (
                sizes,
                corners * 2,
            )  # twice each: the second time rings are as the first has left them
        else:
            yield from ((sizes, [tile]) for tile in corners)


def _sizes(
    members: Sequence[Process],
    loops: Sequence[Tiles],
    names: Sequence[str],
    elements: Sequence[str],
    laps: int,
) -> Iterator[Sizes]:
    """Sizes for the runs: those on which loops depend are varied, up to `laps` tiles,
    others fixed.
    """
    used = {name for process in members for name in process.sizes}
    span = TILE_STEP * laps + RAGGED
    varied_sizes = [name for name in sorted(used) if name in names] or names[:1]

    bodies = turning(members)
    units = _units(bodies, loops, names, elements, span, MOST_LAPS * laps)

    def settings(longest: int) -> list[tuple[str, Sizes]]:
        """For each varied size, its name and sizes in which it is `longest` at most."""
        ends = {name: longest // units[name] for name in names}
        fixed = ends if elements else dict.fromkeys(names, TILE_STEP * 2)
        return [
            (varied, _most_responsive(members, bodies, loops, fixed, elements, varied, ends))
            for varied in varied_sizes
        ]

    start, found = _first_work(bodies, loops, settings, units, span)
    lengths = [0, RAGGED, *(start + TILE_STEP * n for n in range(1, laps + 1)), start + span]
    lengths.append(start + MANY_SPANS * span)
    for varied, others in found:
        for length in dict.fromkeys(length // units[varied] for length in lengths):
            yield others | {varied: length}


def _units(
    bodies: Bodies,
    loops: Sequence[Tiles],
    names: Sequence[str],
    elements: Sequence[str],
    span: int,
    most: int,
) -> dict[str, int]:
    """How many positions each size counts as one, a power of two: more than 1 if it counts pages.

    Found by trying: while some loop turns more than `most` times for sizes of `span` positions,
    those sizes are halved whose halves make loops turn less often.
    """

    def longest_loop(units: dict[str, int]) -> int:
        sizes = {name: span // unit for name, unit in units.items()}
        turns = (
            trips(body, {**chosen, **tile})
            for chosen in _corners(sizes, elements, sizes)
            for tile in _corner_tiles(loops, chosen)
            for body, _ in bodies
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
    bodies: Bodies,
    loops: Sequence[Tiles],
    settings: Callable[[int], list[tuple[str, Sizes]]],
    units: Sizes,
    span: int,
) -> tuple[int, list[tuple[str, Sizes]]]:
    """The first length to run, and the settings of sizes from there to `span` beyond.

    It is 0 unless no loop would turn up to `span`: a mask may hide all keys of short sequences, and
    runs in which no loop turns prove nothing.
    """

    def has_work(found: list[tuple[str, Sizes]], longest: int) -> bool:
        return any(
            _turns(bodies, loops, sizes | {name: longest // units[name]}) for name, sizes in found
        )

    start, idle = 0, 0
    found = plain = settings(span)
    while not has_work(found, start + span):
        idle, start = start, max(2 * start, span)
        if start > MAX_START:
            return 0, plain
        found = settings(start + span)
    while start - idle > span:  # found to within the length of a run, so that runs stay short
        middle = (start + idle) // 2 // TILE_STEP * TILE_STEP
        nearer = settings(middle + span)
        if has_work(nearer, middle + span):
            start, found = middle, nearer
        else:
            idle = middle
    return start, found


def _turns(bodies: Bodies, loops: Sequence[Tiles], sizes: Sizes) -> int:
    """How often the loops of all processes turn in the corner tiles."""
    tiles = list(_corner_tiles(loops, sizes))
    return sum(trips(body, {**sizes, **tile}) * count for tile in tiles for body, count in bodies)


def _steps(members: Sequence[Process], loops: Sequence[Tiles], sizes: Sizes) -> int:
    """How many steps all processes take in the corner tiles."""
    return sum(
        step_count(process.body, {**sizes, **process.place, **tile})
        for tile in _corner_tiles(loops, sizes)
        for process in members
    )


def _most_responsive(
    members: Sequence[Process],
    bodies: Bodies,
    loops: Sequence[Tiles],
    fixed: Sizes,
    elements: Sequence[str],
    varied: str,
    ends: Sizes,
) -> Sizes:
    """The sizes with every element 0 or at its end, chosen so that varying `varied` changes most.

    An offset array, for example: offset b has no effect while offset b + 1 is 0. The last work tile
    counts as well, as a mask may hide all keys from the first queries. Where no loop ever turns,
    what is executed counts: the first tile may be in front of a loop.
    """

    def change(sizes: Sizes) -> tuple[int, int]:
        both = [{**sizes, varied: end} for end in (0, ends[varied])]
        turns = [_turns(bodies, loops, chosen) for chosen in both]
        steps = [0, 0] if any(turns) else [_steps(members, loops, chosen) for chosen in both]
        return abs(turns[1] - turns[0]), abs(steps[1] - steps[0])

    others = [name for name in elements if name != varied]
    return max(_corners(fixed, others, ends), key=change) if others else fixed


def _corners(sizes: Sizes, elements: Sequence[str], ends: Sizes) -> Iterator[Sizes]:
    """All choices of every element as 0 or as its end, together with the sizes."""
    for values in product(*((0, ends[name]) for name in elements)):
        yield sizes | dict(zip(elements, values, strict=True))


def _corner_tiles(loops: Sequence[Tiles], sizes: Sizes) -> Iterator[Sizes]:
    """The first and the last work tile of the tile space; none if it is empty."""
    if not loops:
        yield {}
        return
    extents = [extent.of(sizes) for extent in loops[0].extents]
    corners = [[0 for _ in extents], [extent - 1 for extent in extents]]
    if min(extents) > 0:
        for corner in corners[: 1 if corners[0] == corners[1] else 2]:
            yield dict(zip(COORDINATES, corner, strict=False))
