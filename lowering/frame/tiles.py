"""The loop over work tiles: which ones a CTA computes, one after the other.

With cluster launch control (order `clc`), answers arrive in a ring like any other:

```
tile = blockIdx
do {
  ... the role's work ...
  wait for the answer; read it: cancelled?, ctaid.x, .y, .z; release
} while (a CTA was cancelled), tile = its ctaid
```

With the order `counter` the loop is the same, and a thread has written the answer: whether there is
a tile, and its coordinates, which follow from its number (`_numbered`).

With the order `ragged`, a CTA finds its sequence by bisection over the ends, a load per step.
"""

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, scf, vector
from attn_mlir.dialect.orders import FROM_THE_END
from attn_mlir.dialect.scalars import INT, compare, constant, i1, i32, select
from attn_mlir.dialect.ws.tiles import ANSWER_BYTES, ANSWER_WORDS

from ..access.inline_ptx import opaque
from ..rings.clusters import cluster_number, cluster_total
from ..rings.rings import announce
from ..state.checks import Site, check_one_thread, covers
from ..state.handles import NextTile
from ..state.lowering import Lowering, element_pointer, load_input, lowers, uniform
from ..state.parameters import Symbol
from .control import lower_turn

Value = Any


@lowers(ws.TilesOp)
def _tiles(low: Lowering, op: ws.TilesOp) -> None:
    match op.order.value:
        case "persistent":
            _persistent(low, op)
        case "clc":
            _claimed(low, op)
        case "counter":
            _drawn(low, op)
        case "ragged":
            _ragged(low, op)
            low.lower_block(_of_only_turn(low, op))
        case _:
            _bind(low, op, _own_tile(low, op))
            low.lower_block(_of_only_turn(low, op))


def _behind(op: ws.TilesOp) -> list[Any]:
    """The operations in the block of a loop over tiles that its operands are computed by,
    in order.
    """
    needed = set(op.operation.operands)
    found: list[Any] = []
    for other in reversed(list(op.operation.block.operations)):
        if needed.intersection(other.operation.results):
            needed.update(other.operation.operands)
            found.append(other)
    return found[::-1]


def _own_block(op: ws.TilesOp) -> list[Value]:
    """Coordinates of this CTA in the grid."""
    readers = (nvvm.BlockIdXOp, nvvm.BlockIdYOp, nvvm.BlockIdZOp)
    return [reader(results=[i32()]).result for reader in readers[: len(op.extents)]]


def _own_tile(low: Lowering, op: ws.TilesOp) -> list[Value]:
    """Coordinates of the work tile of this CTA or its cluster,
    whose CTAs are neighbours along x.
    """
    first, *others = _own_block(op)
    return [first if low.cta_count == 1 else cluster_number(), *others]


def _bind(low: Lowering, op: ws.TilesOp, coords: list[Value]) -> None:
    """Sets the coordinates of the work tile, given those in the grid."""
    first, *others = coords
    if op.order.value in FROM_THE_END:
        first = INT.sub(INT.sub(low[op.extents[0]], 1), first)
    for argument, coord in zip(op.body.blocks[0].arguments, [first, *others], strict=True):
        low[argument] = coord


def _ragged(low: Lowering, op: ws.TilesOp) -> None:
    """The coordinates for the order `ragged`: the block and the sequence of this CTA's number."""
    count, rows, size = (low[number] for number in op.packing)

    def first_number(sequence: Value) -> Value:
        end = load_input(low, op.ends[0], [sequence])
        row = INT.min(INT.max(end, 0), rows)
        return INT.add(arith.DivUIOp(row, size).result, sequence)

    x, head, part = _own_block(op)
    numbers = INT.add(arith.DivUIOp(rows, size).result, count)
    number = INT.sub(INT.sub(numbers, 1), x)
    sequence = _bisect(count, lambda middle: compare("sle", first_number(middle), number))
    block = INT.sub(number, first_number(sequence))
    block = select(
        compare("slt", block, 0), numbers, block
    )  # past any end, as rows before the first sequence belong to none
    coords = [block, head, INT.add(INT.mul(part, count), sequence)]
    for argument, coord in zip(op.body.blocks[0].arguments, coords, strict=True):
        low[argument] = coord


def _bisect(count: Value, holds: Callable[[Value], Value]) -> Value:
    """The last number below `count` for which `holds`; 0 if none.
    `holds` must not turn true again.
    """
    kinds = [i32(), i32()]
    made = scf.WhileOp(kinds, [constant(0), count])
    before = made.before.blocks.append(*kinds)
    after = made.after.blocks.append(*kinds)
    with ir.InsertionPoint(before):
        low, high = before.arguments
        scf.ConditionOp(compare("sgt", INT.sub(high, low), 1), [low, high])
    with ir.InsertionPoint(after):
        low, high = after.arguments
        middle = arith.ShRUIOp(INT.add(low, high), constant(1)).result
        taken = holds(middle)
        scf.YieldOp([select(taken, middle, low), select(taken, high, middle)])
    return made.results[0]


def _persistent(low: Lowering, op: ws.TilesOp) -> None:
    """Emits the loop in which CTA or cluster c of n takes work tiles c, c + n, c + 2 n, ..."""
    block = op.body.blocks[0]
    extents = [low[extent] for extent in op.extents]
    total = extents[0]
    for extent in extents[1:]:
        total = INT.mul(total, extent)
    if low.cta_count == 1:
        first = nvvm.BlockIdXOp(results=[i32()]).result
        step = nvvm.GridDimXOp(results=[i32()]).result
    else:
        first, step = cluster_number(), cluster_total()
    made = scf.ForOp(first, total, step)
    with ir.InsertionPoint(made.body):
        rest = made.induction_variable
        for argument, extent in zip(block.arguments, extents, strict=True):
            low[argument] = arith.RemUIOp(rest, extent).result
            rest = arith.DivUIOp(rest, extent).result
        holds_sums = any(isinstance(other, ws.SettleOp) for other in ws.inside(op))
        if holds_sums:
            with _anew(low):
                lower_turn(low, op, list(block.operations))
        else:
            with _who_kept(low):
                lower_turn(low, op, _with_ends_anew(low, list(block.operations)))
        scf.YieldOp([])


def _claimed(low: Lowering, op: ws.TilesOp) -> None:
    """Emits the loop over the CTA's own work tile and those that it claims."""
    first = _own_block(op)
    kinds = [i32()] * len(first)
    made = scf.WhileOp(kinds, first)
    before = made.before.blocks.append(*kinds)
    after = made.after.blocks.append(*kinds)
    with ir.InsertionPoint(before):
        _bind(low, op, list(before.arguments))
        lower_turn(low, op, list(op.body.blocks[0].operations))
        following = low.active.next_tile
        assert following is not None
        scf.ConditionOp(following.exists, following.coords[: len(first)])
    with ir.InsertionPoint(after):
        scf.YieldOp(list(after.arguments))


def _tile_count(low: Lowering, op: ws.TilesOp) -> Value:
    """Tiles of the tile space."""
    return functools.reduce(INT.mul, (low[extent] for extent in op.extents))


def _numbered(low: Lowering, op: ws.TilesOp, number: Value) -> list[Value]:
    """The coordinates of a tile by its number in the order `counter`.

    Worked: extents [2, 3], sections of 2 places: tiles 0 .. 5 are [1, 0] [1, 1] [0, 0] [0, 1] in
    the first section, [1, 2] [0, 2] in the second.
    """
    blocks, *others, section = (low[x] for x in (*op.extents, *op.packing))
    places = functools.reduce(INT.mul, others, constant(1))
    tiles = INT.mul(section, blocks)
    first = INT.mul(_divided(number, tiles), section)
    within = arith.RemUIOp(number, tiles).result
    left = INT.max(INT.sub(places, first), 1)  # nothing behind the last tile, and no division by 0
    width = INT.min(section, left)
    place = INT.add(first, arith.RemUIOp(within, width).result)
    coords = [INT.sub(INT.sub(blocks, 1), _divided(within, width))]
    for extent in others:
        coords.append(arith.RemUIOp(place, extent).result)
        place = _divided(place, extent)
    return coords


def _divided(number: Value, by: Value) -> Value:
    """Of numbers that are not negative, rounded down."""
    return arith.DivUIOp(number, by).result


def _drawn(low: Lowering, op: ws.TilesOp) -> None:
    """The tile of the CTA's own number, then those that the answers name."""
    own = nvvm.BlockIdXOp(results=[i32()]).result
    exists = compare("slt", own, _tile_count(low, op))
    coords = _numbered(low, op, own)
    kinds = [i1(), *[i32()] * len(coords)]
    made = scf.WhileOp(kinds[1:], [exists, *coords])
    before = made.before.blocks.append(*kinds)
    after = made.after.blocks.append(*kinds[1:])
    with ir.InsertionPoint(before):
        goes_on, *place = before.arguments
        scf.ConditionOp(goes_on, place)
    with ir.InsertionPoint(after):
        with _anew(low):
            _bind(low, op, list(after.arguments))
            lower_turn(low, op, list(op.body.blocks[0].operations))
        following = low.active.next_tile
        assert following is not None
        scf.YieldOp([following.exists, *following.coords[: len(coords)]])


@contextmanager
def _anew(low: Lowering) -> Generator[None]:
    """In a loop over tiles: what follows from the number of a thread and from sizes inside is
    computed in the turn that needs it.

    Moved out of the loop, addresses of the epilogue and tests of the last keys take registers of
    the loop over keys inside it, where products leave their sums: 12 words spilled of 160 at head
    size 128, 27 of 232 with 8 bits at 192 (ptxas 13.5).
    """
    with _who_kept(low), _sizes_anew(low):
        _hide_who(low)
        yield


def _with_ends_anew(low: Lowering, operations: Sequence[Any]) -> Iterator[Any]:
    """The operations of a turn of a role without such sums, which has registers for most of what
    stays the same: what follows from the number of a thread is computed anew behind the last loop,
    and for a branch that has a loop. 8 to 40 bytes spilled of 208 and of 88 registers at head sizes
    144 to 256 of `mha-streaming`; more if all of the turn computed it anew.
    """
    last = max((n for n, op in enumerate(operations) if isinstance(op, scf.ForOp)), default=None)
    for number, op in enumerate(operations):
        if isinstance(op, scf.IfOp) and any(isinstance(x, scf.ForOp) for x in ws.inside(op)):
            _hide_who(low)
        yield op
        if number == last:
            _hide_who(low)


def _reads_beside_sums(op: ws.TilesOp) -> bool:
    """Whether threads that hold sums of products modify scores,
    or read tensors for each of them.
    """
    found = list(ws.inside(op))
    maps = [x for x in found if isinstance(x, ws.MapOp)]
    reads = any(isinstance(y, ws.ElementOp) for x in maps for y in ws.inside(x))
    modifies = reads or any(x.in_turn for x in maps)
    return modifies and any(isinstance(x, ws.SettleOp) for x in found)


def _of_only_turn(low: Lowering, op: ws.TilesOp) -> Iterator[Any]:
    """The operations of a CTA's only work tile. Where its threads have no register to spare, what
    follows from their number is computed anew for it and behind the branch with the loop over keys:
    it would be kept for the epilogue, 28 bytes spilled of 240 registers at head size 256 with a
    relative bias (ptxas 13.5).
    """
    has_few = _reads_beside_sums(op)
    with _who_kept(low):
        if has_few:
            _hide_who(low)
        for inner in list(op.body.blocks[0].operations):
            yield inner
            has_loop = any(isinstance(x, scf.ForOp) for x in ws.inside(inner))
            if has_few and isinstance(inner, scf.IfOp) and has_loop:
                _hide_who(low)


def _hide_who(low: Lowering) -> None:
    """Makes the number of this thread, and of its group, another value for the optimiser."""
    role = low.active
    role.thread = opaque(role.thread)
    if role.op.group_count > 1:
        role.group = opaque(role.group)
        low[role.op.body.blocks[0].arguments[0]] = role.group


@contextmanager
def _who_kept(low: Lowering) -> Generator[None]:
    """Takes back what `_hide_who` does inside."""
    role = low.active
    thread, group = role.thread, role.group
    yield
    role.thread, role.group = thread, group
    if role.op.group_count > 1:
        low[role.op.body.blocks[0].arguments[0]] = group


@contextmanager
def _sizes_anew(low: Lowering) -> Generator[None]:
    """What follows from sizes inside is computed there: reciprocals of divisors moved out of the
    loop over tiles would take registers of a thread that has few."""
    before = dict(low.arguments)
    parameters = zip(low.signature.parameters, low.entry.operation.block.arguments, strict=True)
    for parameter, argument in parameters:
        if isinstance(parameter, Symbol):
            low.arguments[parameter] = opaque(argument)
    yield
    low.arguments.update(before)


@lowers(ws.DrawOp)
def _draw(low: Lowering, op: ws.DrawOp) -> None:
    """Numbers below that of CTAs are theirs from the start; `atom.inc` makes count - 1 into 0."""
    loop = op.loop
    with _sizes_anew(low):
        low.lower_block(_behind(loop))
    count = _tile_count(low, loop)
    drawn = llvm.AtomicRMWOp(
        llvm.AtomicBinOp.uinc_wrap,
        element_pointer(low, op.counter, [constant(0)]),
        INT.sub(count, 1),
        llvm.AtomicOrdering.monotonic,
        syncscope="device",
    ).res
    number = INT.add(drawn, opaque(nvvm.GridDimXOp(results=[i32()]).result))
    exists = arith.ExtUIOp(i32(), compare("slt", number, count)).result
    coords = _numbered(low, loop, number)
    words = [exists, *coords, *[constant(0)] * (ANSWER_WORDS - 1 - len(coords))]
    answer = vector.FromElementsOp(ir.VectorType.get([ANSWER_WORDS], i32()), words).result
    place = low.shared_pointer(low.slot(op.slot).tile.start())
    llvm.StoreOp(answer, place, alignment=ANSWER_BYTES)


@covers(ws.DrawOp)
def _check_draw(site: Site, op: ws.DrawOp) -> None:
    check_one_thread(site, op)
    site.check_inout(op, op.counter)


@lowers(ws.ClaimOp)
def _claim(low: Lowering, op: ws.ClaimOp) -> None:
    slot = low.slot(op.slot)
    announce(low, slot, op)
    answer = low.shared_pointer(slot.tile.start())
    nvvm.ClusterLaunchControlTryCancelOp(answer, slot.ring.full.address(slot.index))


@lowers(ws.NextTileOp)
def _next_tile(low: Lowering, op: ws.NextTileOp) -> None:
    loop = op.operation.parent.opview
    exists, coords = (
        _read_drawn(low, op) if loop.order.value == "counter" else _read_claimed(low, op)
    )
    if low.active.op.lane_count > 1:  # all lanes have read the same
        flag = uniform(arith.ExtUIOp(i32(), exists).result)
        exists = arith.TruncIOp(i1(), flag).result
        coords = [uniform(coord) for coord in coords]
    low.active.next_tile = NextTile(exists, tuple(coords))


def _read_drawn(low: Lowering, op: ws.NextTileOp) -> tuple[Value, list[Value]]:
    """Whether there is a next tile, and its coordinates, as `_draw` has written them."""
    kind = ir.VectorType.get([ANSWER_WORDS], i32())
    place = low.shared_pointer(low.slot(op.slot).tile.start())
    answer = llvm.LoadOp(kind, place, alignment=ANSWER_BYTES).result
    exists, *coords = vector.ToElementsOp(answer).results
    return compare("ne", exists, 0), coords


def _read_claimed(low: Lowering, op: ws.NextTileOp) -> tuple[Value, list[Value]]:
    """Whether a CTA was cancelled, and its place in the grid."""
    i128 = ir.IntegerType.get_signless(128)
    answer = llvm.LoadOp(i128, low.shared_pointer(low.slot(op.slot).tile.start())).result

    def query(name: str, result: Any) -> Value:
        which = nvvm.ClusterLaunchControlQueryType[name]
        return nvvm.ClusterLaunchControlQueryCancelOp(which, answer, results=[result]).result

    exists = query("IS_CANCELED", i1())
    return exists, [query(f"GET_FIRST_CTA_ID_{axis}", i32()) for axis in "XYZ"]
