"""The tile-scheduler loop: which work tiles a CTA takes, one after the other.

Cluster launch control, turn by turn. The answers' barriers are those of any ring; the slot is
written by the asynchronous proxy after threads have read the answer before, hence the fence.

```
tile = blockIdx
do {
  ... the role's work ...
  wait for the answer; read it: cancelled?, ctaid.x, .y, .z; fence.proxy.async; release
} while (a CTA was cancelled), tile = its ctaid
```
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, scf
from attn_mlir.dialect.scalars import INT, i1, i32
from attn_mlir.dialect.ws.tiles import FROM_THE_END

from .context import Lowering, NextTile, lowers, uniform
from .control import lower_turn

Value = Any


@lowers(ws.TilesOp)
def _tiles(low: Lowering, op: ws.TilesOp) -> None:
    match op.order.value:
        case "persistent":
            _persistent(low, op)
        case "clc":
            _claimed(low, op)
        case _:
            _bind(low, op, _own_block(op))
            low.lower_block(op.body.blocks[0].operations)


def _own_block(op: ws.TilesOp) -> list[Value]:
    """Coordinates of this CTA in the grid."""
    readers = (nvvm.BlockIdXOp, nvvm.BlockIdYOp, nvvm.BlockIdZOp)
    return [reader(results=[i32()]).result for reader in readers[: len(op.extents)]]


def _bind(low: Lowering, op: ws.TilesOp, coords: list[Value]) -> None:
    """Makes a place in the grid the coordinates of the work tile."""
    first, *others = coords
    if op.order.value in FROM_THE_END:
        first = INT.sub(INT.sub(low[op.extents[0]], 1), first)
    for argument, coord in zip(op.body.blocks[0].arguments, [first, *others], strict=True):
        low[argument] = coord


def _persistent(low: Lowering, op: ws.TilesOp) -> None:
    """CTA c of n takes the tiles c, c + n, c + 2 n, ... of the tile space."""
    block = op.body.blocks[0]
    extents = [low[extent] for extent in op.extents]
    total = extents[0]
    for extent in extents[1:]:
        total = INT.mul(total, extent)
    first = nvvm.BlockIdXOp(results=[i32()]).result
    step = nvvm.GridDimXOp(results=[i32()]).result
    made = scf.ForOp(first, total, step)
    with ir.InsertionPoint(made.body):
        rest = made.induction_variable
        for argument, extent in zip(block.arguments, extents, strict=True):
            low[argument] = arith.RemUIOp(rest, extent).result
            rest = arith.DivUIOp(rest, extent).result
        lower_turn(low, list(block.operations))
        scf.YieldOp([])


def _claimed(low: Lowering, op: ws.TilesOp) -> None:
    """The CTA's own tile, then those that the answers name."""
    first = _own_block(op)
    kinds = [i32()] * len(first)
    made = scf.WhileOp(kinds, first)
    before = made.before.blocks.append(*kinds)
    after = made.after.blocks.append(*kinds)
    with ir.InsertionPoint(before):
        _bind(low, op, list(before.arguments))
        lower_turn(low, list(op.body.blocks[0].operations))
        following = low.active.next_tile
        assert following is not None
        scf.ConditionOp(following.exists, following.coords[: len(first)])
    with ir.InsertionPoint(after):
        scf.YieldOp(list(after.arguments))


@lowers(ws.ClaimOp)
def _claim(low: Lowering, op: ws.ClaimOp) -> None:
    slot = low.slot(op.slot)
    answer = low.shared_pointer(slot.tile.start())
    nvvm.ClusterLaunchControlTryCancelOp(answer, slot.ring.full.address(slot.index))


@lowers(ws.NextTileOp)
def _next_tile(low: Lowering, op: ws.NextTileOp) -> None:
    i128 = ir.IntegerType.get_signless(128)
    answer = llvm.LoadOp(i128, low.shared_pointer(low.slot(op.slot).tile.start())).result
    kind = ir.Attribute.parse("#nvvm.proxy_kind<async.shared>")
    nvvm.FenceProxyOp(kind, space=ir.Attribute.parse("#nvvm.shared_space<cta>"))

    def query(name: str, result: Any) -> Value:
        which = nvvm.ClusterLaunchControlQueryType[name]
        return nvvm.ClusterLaunchControlQueryCancelOp(which, answer, results=[result]).result

    exists = query("IS_CANCELED", i1())
    coords = [query(f"GET_FIRST_CTA_ID_{axis}", i32()) for axis in "XYZ"]
    if low.active.op.lane_count > 1:  # all lanes have read the same
        flag = uniform(arith.ExtUIOp(i32(), exists).result)
        exists = arith.TruncIOp(i1(), flag).result
        coords = [uniform(coord) for coord in coords]
    low.active.next_tile = NextTile(exists, tuple(coords))
