"""The loop over the work tiles of a CTA (tile scheduler).

With cluster launch control (order `clc`), responses of `try_cancel` arrive in a ring:

```
tile = blockIdx
do {
  ... the role's work ...
  wait for the response; read it: cancelled?, ctaid.x, .y, .z; release
} while (a CTA was cancelled), tile = its ctaid
```

With the order `counter` the loop is the same; a thread of this CTA writes the slot: whether there
is a tile, and its coordinates, computed from its number (`_numbered`).

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
from attn_mlir.dialect.ws.tiles import RESPONSE_BYTES, RESPONSE_WORDS

from ..access.inline_ptx import opaque
from ..rings.clusters import cluster_number, cluster_total
from ..rings.rings import announce
from ..state.checks import OpContext, check_one_thread, legality_check
from ..state.handles import NextTile
from ..state.lowering import Lowering, element_pointer, load_input, lowers, uniform
from ..state.parameters import Symbol
from .control import lower_iteration

Value = Any


@lowers(ws.TilesOp)
def _tiles(low: Lowering, op: ws.TilesOp) -> None:
    match op.order.value:
        case "persistent":
            _persistent(low, op)
        case "clc":
            _by_launch_control(low, op)
        case "counter":
            _by_counter(low, op)
        case "ragged":
            _ragged(low, op)
            low.lower_block(_single_tile_body(low, op))
        case _:
            _bind(low, op, _tile_index(low, op))
            low.lower_block(_single_tile_body(low, op))


def _operand_slice(op: ws.TilesOp) -> list[Any]:
    """The operations of the enclosing block that compute a tile loop's operands, in order."""
    needed = set(op.operation.operands)
    operations: list[Any] = []
    for other in reversed(list(op.operation.block.operations)):
        if needed.intersection(other.operation.results):
            needed.update(other.operation.operands)
            operations.append(other)
    return operations[::-1]


def _block_index(op: ws.TilesOp) -> list[Value]:
    """Coordinates of this CTA in the grid."""
    readers = (nvvm.BlockIdXOp, nvvm.BlockIdYOp, nvvm.BlockIdZOp)
    return [reader(results=[i32()]).result for reader in readers[: len(op.extents)]]


def _tile_index(low: Lowering, op: ws.TilesOp) -> list[Value]:
    """Coordinates of the work tile of this CTA or cluster; a cluster's CTAs are adjacent in x."""
    first, *others = _block_index(op)
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

    x, head, part = _block_index(op)
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
    """The last number below `count` for which `holds`, which must be monotonic; 0 if none."""
    kinds = [i32(), i32()]
    search = scf.WhileOp(kinds, [constant(0), count])
    before = search.before.blocks.append(*kinds)
    after = search.after.blocks.append(*kinds)
    with ir.InsertionPoint(before):
        low, high = before.arguments
        scf.ConditionOp(compare("sgt", INT.sub(high, low), 1), [low, high])
    with ir.InsertionPoint(after):
        low, high = after.arguments
        middle = arith.ShRUIOp(INT.add(low, high), constant(1)).result
        is_below = holds(middle)
        scf.YieldOp([select(is_below, middle, low), select(is_below, high, middle)])
    return search.results[0]


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
    tiles = scf.ForOp(first, total, step)
    with ir.InsertionPoint(tiles.body):
        remaining = tiles.induction_variable
        for argument, extent in zip(block.arguments, extents, strict=True):
            low[argument] = arith.RemUIOp(remaining, extent).result
            remaining = arith.DivUIOp(remaining, extent).result
        has_accumulators = any(isinstance(other, ws.SettleOp) for other in ws.inside(op))
        if has_accumulators:
            with _recomputed_per_tile(low):
                lower_iteration(low, op, list(block.operations))
        else:
            with _thread_index_restored(low):
                lower_iteration(low, op, _with_recomputed_epilogue(low, list(block.operations)))
        scf.YieldOp([])


def _by_launch_control(low: Lowering, op: ws.TilesOp) -> None:
    """Emits the loop over the CTA's first work tile and those that `try_cancel` returns."""
    first = _block_index(op)
    kinds = [i32()] * len(first)
    tiles = scf.WhileOp(kinds, first)
    before = tiles.before.blocks.append(*kinds)
    after = tiles.after.blocks.append(*kinds)
    with ir.InsertionPoint(before):
        _bind(low, op, list(before.arguments))
        lower_iteration(low, op, list(op.body.blocks[0].operations))
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

    Worked: extents [2, 3], sections of 2 columns: tiles 0 .. 5 are [1, 0] [1, 1] [0, 0] [0, 1] in
    the first section, [1, 2] [0, 2] in the second.
    """
    blocks, *others, section = (low[x] for x in (*op.extents, *op.packing))
    columns = functools.reduce(INT.mul, others, constant(1))
    tiles = INT.mul(section, blocks)
    first = INT.mul(_divided(number, tiles), section)
    within = arith.RemUIOp(number, tiles).result
    # at least 1: beyond the last tile nothing remains, and 0 would be divided by
    remaining = INT.max(INT.sub(columns, first), 1)
    width = INT.min(section, remaining)
    column = INT.add(first, arith.RemUIOp(within, width).result)
    coords = [INT.sub(INT.sub(blocks, 1), _divided(within, width))]
    for extent in others:
        coords.append(arith.RemUIOp(column, extent).result)
        column = _divided(column, extent)
    return coords


def _divided(number: Value, by: Value) -> Value:
    """The quotient of numbers that are not negative, rounded down."""
    return arith.DivUIOp(number, by).result


def _by_counter(low: Lowering, op: ws.TilesOp) -> None:
    """Emits the loop over the CTA's first tile, by its number, and those fetched from a counter."""
    first = nvvm.BlockIdXOp(results=[i32()]).result
    exists = compare("slt", first, _tile_count(low, op))
    coords = _numbered(low, op, first)
    kinds = [i1(), *[i32()] * len(coords)]
    tiles = scf.WhileOp(kinds[1:], [exists, *coords])
    before = tiles.before.blocks.append(*kinds)
    after = tiles.after.blocks.append(*kinds[1:])
    with ir.InsertionPoint(before):
        continues, *arguments = before.arguments
        scf.ConditionOp(continues, arguments)
    with ir.InsertionPoint(after):
        with _recomputed_per_tile(low):
            _bind(low, op, list(after.arguments))
            lower_iteration(low, op, list(op.body.blocks[0].operations))
        following = low.active.next_tile
        assert following is not None
        scf.YieldOp([following.exists, *following.coords[: len(coords)]])


@contextmanager
def _recomputed_per_tile(low: Lowering) -> Generator[None]:
    """Recomputes values of the thread's index and of sizes in each iteration of a tile loop.

    Hoisted, the epilogue's addresses and the tests of the last keys take registers in the loop over
    keys, which holds accumulators: 12 words spilled of 160 at head size 128, 27 of 232 with 8 bits
    at 192 (ptxas 13.5).
    """
    with _thread_index_restored(low), _recomputed_sizes(low):
        _hide_thread_index(low)
        yield


def _with_recomputed_epilogue(low: Lowering, operations: Sequence[Any]) -> Iterator[Any]:
    """The body of a tile loop without accumulators in registers, which can keep most invariants.

    Values of the thread's index are recomputed after the last inner loop, and before a branch that
    has a loop. Kept, they spill 8 to 40 bytes of 208 and of 88 registers at head sizes 144 to 256
    of `mha-streaming`; recomputed in the whole body, they spill more.
    """
    last = max((n for n, op in enumerate(operations) if isinstance(op, scf.ForOp)), default=None)
    for number, op in enumerate(operations):
        if isinstance(op, scf.IfOp) and any(isinstance(x, scf.ForOp) for x in ws.inside(op)):
            _hide_thread_index(low)
        yield op
        if number == last:
            _hide_thread_index(low)


def _modifies_scores_in_registers(op: ws.TilesOp) -> bool:
    """Whether threads that hold accumulators modify scores, or load from tensors per score."""
    operations = list(ws.inside(op))
    maps = [x for x in operations if isinstance(x, ws.MapOp)]
    reads = any(isinstance(y, ws.ElementOp) for x in maps for y in ws.inside(x))
    modifies = reads or any(x.in_turn for x in maps)
    return modifies and any(isinstance(x, ws.SettleOp) for x in operations)


def _single_tile_body(low: Lowering, op: ws.TilesOp) -> Iterator[Any]:
    """The body of a CTA's only work tile.

    If its threads are short of registers, values of the thread's index are recomputed before it and
    after the branch with the loop over keys. Kept for the epilogue, they spill 28 bytes of 240
    registers at head size 256 with a relative bias (ptxas 13.5).
    """
    has_few = _modifies_scores_in_registers(op)
    with _thread_index_restored(low):
        if has_few:
            _hide_thread_index(low)
        for inner in list(op.body.blocks[0].operations):
            yield inner
            has_loop = any(isinstance(x, scf.ForOp) for x in ws.inside(inner))
            if has_few and isinstance(inner, scf.IfOp) and has_loop:
                _hide_thread_index(low)


def _hide_thread_index(low: Lowering) -> None:
    """Makes the indices of this thread and its group opaque: LLVM recomputes values of them."""
    role = low.active
    role.thread = opaque(role.thread)
    if role.op.group_count > 1:
        role.group = opaque(role.group)
        low[role.op.body.blocks[0].arguments[0]] = role.group


@contextmanager
def _thread_index_restored(low: Lowering) -> Generator[None]:
    """Undoes `_hide_thread_index` of the body at its end."""
    role = low.active
    thread, group = role.thread, role.group
    yield
    role.thread, role.group = thread, group
    if role.op.group_count > 1:
        low[role.op.body.blocks[0].arguments[0]] = group


@contextmanager
def _recomputed_sizes(low: Lowering) -> Generator[None]:
    """Recomputes values of sizes inside: hoisted reciprocals of divisors would take registers."""
    before = dict(low.arguments)
    parameters = zip(low.signature.parameters, low.entry.operation.block.arguments, strict=True)
    for parameter, argument in parameters:
        if isinstance(parameter, Symbol):
            low.arguments[parameter] = opaque(argument)
    yield
    low.arguments.update(before)


@lowers(ws.DrawOp)
def _draw(low: Lowering, op: ws.DrawOp) -> None:
    """Fetches a tile number from the counter and writes the tile's coordinates to the slot.

    Numbers below the count of CTAs are their first tiles; `atom.inc` turns count - 1 into 0.
    """
    loop = op.loop
    with _recomputed_sizes(low):
        low.lower_block(_operand_slice(loop))
    count = _tile_count(low, loop)
    fetched = llvm.AtomicRMWOp(
        llvm.AtomicBinOp.uinc_wrap,
        element_pointer(low, op.counter, [constant(0)]),
        INT.sub(count, 1),
        llvm.AtomicOrdering.monotonic,
        syncscope="device",
    ).res
    number = INT.add(fetched, opaque(nvvm.GridDimXOp(results=[i32()]).result))
    exists = arith.ExtUIOp(i32(), compare("slt", number, count)).result
    coords = _numbered(low, loop, number)
    words = [exists, *coords, *[constant(0)] * (RESPONSE_WORDS - 1 - len(coords))]
    words_vector = vector.FromElementsOp(ir.VectorType.get([RESPONSE_WORDS], i32()), words).result
    pointer = low.shared_pointer(low.slot(op.slot).tile.start())
    llvm.StoreOp(words_vector, pointer, alignment=RESPONSE_BYTES)


@legality_check(ws.DrawOp)
def _check_draw(context: OpContext, op: ws.DrawOp) -> None:
    check_one_thread(context, op)
    context.check_inout(op, op.counter)


@lowers(ws.ClaimOp)
def _claim(low: Lowering, op: ws.ClaimOp) -> None:
    slot = low.slot(op.slot)
    announce(low, slot, op)
    response = low.shared_pointer(slot.tile.start())
    nvvm.ClusterLaunchControlTryCancelOp(response, slot.ring.full.address(slot.index))


@lowers(ws.NextTileOp)
def _next_tile(low: Lowering, op: ws.NextTileOp) -> None:
    loop = op.operation.parent.opview
    exists, coords = (
        _read_counted(low, op) if loop.order.value == "counter" else _read_cancelled(low, op)
    )
    if low.active.op.lane_count > 1:  # all lanes have read the same
        flag = uniform(arith.ExtUIOp(i32(), exists).result)
        exists = arith.TruncIOp(i1(), flag).result
        coords = [uniform(coord) for coord in coords]
    low.active.next_tile = NextTile(exists, tuple(coords))


def _read_counted(low: Lowering, op: ws.NextTileOp) -> tuple[Value, list[Value]]:
    """Reads from a slot whether there is a next tile, and its coordinates; see `_draw`."""
    kind = ir.VectorType.get([RESPONSE_WORDS], i32())
    pointer = low.shared_pointer(low.slot(op.slot).tile.start())
    words = llvm.LoadOp(kind, pointer, alignment=RESPONSE_BYTES).result
    exists, *coords = vector.ToElementsOp(words).results
    return compare("ne", exists, 0), coords


def _read_cancelled(low: Lowering, op: ws.NextTileOp) -> tuple[Value, list[Value]]:
    """Reads from a slot whether a CTA was cancelled, and its coordinates in the grid."""
    i128 = ir.IntegerType.get_signless(128)
    response = llvm.LoadOp(i128, low.shared_pointer(low.slot(op.slot).tile.start())).result

    def query(name: str, result: Any) -> Value:
        which = nvvm.ClusterLaunchControlQueryType[name]
        return nvvm.ClusterLaunchControlQueryCancelOp(which, response, results=[result]).result

    exists = query("IS_CANCELED", i1())
    return exists, [query(f"GET_FIRST_CTA_ID_{axis}", i32()) for axis in "XYZ"]
