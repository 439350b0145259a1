"""Functions that emit kernels: roles, work tiles, rings, and order of CTAs and launches."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.scalars import (
    constant,
    i32,
)

from .memory import coordinates, i64_attr

Value = Any


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel.

    Attributes:
      name: by which the caller passes it.
      role: `in`, `out` or `scalar`.
      kind: a memref type, or the scalar's type.
      dims: for a tensor the name of each dimension's run-time size, "" where it is static.
    """

    name: str
    role: str
    kind: Any
    dims: Sequence[str]


def declare_kernel(name: str, arguments: Sequence[Argument], *, cluster: int = 1) -> ws.KernelOp:
    """A `ws.kernel` with its arguments and an empty body; `cluster` is the CTAs of a cluster."""

    def strings(items: Iterable[str]) -> Any:
        return ir.ArrayAttr.get([ir.StringAttr.get(item) for item in items])

    kernel = ws.KernelOp(
        ir.StringAttr.get(name),
        strings(argument.name for argument in arguments),
        strings(argument.role for argument in arguments),
        ir.ArrayAttr.get([strings(argument.dims) for argument in arguments]),
    )
    if cluster > 1:
        kernel.operation.attributes["cluster"] = i64_attr(cluster)
    kernel.body.blocks.append(*[argument.kind for argument in arguments])
    return kernel


@contextmanager
def role(
    name: str,
    *,
    first: int,
    warps: int,
    registers: int = 0,
    groups: int = 1,
    lanes: int = 32,
    ranks: Sequence[int] | None = None,
) -> Generator[Value]:
    """A `ws.role`, in the CTAs of a cluster with these ranks, or in all; yields the group."""
    i64 = ir.IntegerType.get_signless(64)
    op = ws.RoleOp(
        ir.StringAttr.get(name),
        ir.DenseI32ArrayAttr.get([first, warps]),
        *(ir.IntegerAttr.get(i64, value) for value in (groups, lanes, registers)),
    )
    if ranks is not None:
        op.operation.attributes["ranks"] = ir.DenseI32ArrayAttr.get(list(ranks))
    block = op.body.blocks.append(i32())
    with ir.InsertionPoint(block):
        yield block.arguments[0]


@contextmanager
def tiles(
    extents: Sequence[Value],
    order: str,
    *,
    ends: Sequence[Value] = (),
    packing: Sequence[Value] = (),
    claimed: "Ring | None" = None,
) -> Generator[Sequence[Value]]:
    """A `ws.tiles`; yields the coordinates of the work tile.

    With the orders `clc` and `counter`, the coordinates of the next work tile are read from the
    ring `claimed`, which `try_cancel` or `fetch_tile` fills. The order `ragged` needs `ends` and
    `packing`, `counter` the second.
    """
    op = ws.TilesOp(list(extents), list(ends), list(packing), ir.StringAttr.get(order))
    block = op.body.blocks.append(*[i32() for _ in extents])
    with ir.InsertionPoint(block):
        yield list(block.arguments)
        if claimed is not None:
            slot = claimed.wait()
            ws.NextTileOp(slot)
            release(slot, "threads")


def try_cancel(claimed: "Ring") -> None:
    """Claims the work tile of a CTA that has not started (CLC); the response fills a slot."""
    slot = claimed.acquire()
    ws.ClaimOp(slot)
    commit(slot, "copy_engine")


def fetch_tile(claimed: "Ring", counter: Value) -> None:
    """Fetches the next work tile from a counter [1] in global memory."""
    slot = claimed.acquire()
    ws.DrawOp(slot, counter)
    commit(slot, "threads")


class Ring:
    """A declared ring, whose slots hold a tile each, or nothing in a ring of tokens.

    It may lie in the slots of another ring, `inside`, from an `offset` of bytes or columns on. With
    `known_empty` other rings signal producers that its slots are empty. `producers` are the agents
    of roles that fill a slot together. `instances` are rings with the same name, one per query
    tile, say. `commit` and `release` signal a slot's barriers.
    """

    def __init__(
        self,
        name: str,
        tile: ws.TileType | None,
        *,
        stages: int = 1,
        instances: int = 1,
        full_at: Sequence[Sequence[int]] | None = None,
        empty_at: Sequence[Sequence[int]] | None = None,
        inside: "Ring | None" = None,
        offset: int = 0,
        producers: Sequence[str] = (),
        known_empty: bool = False,
    ):
        self.tile = ir.NoneType.get() if tile is None else tile
        kind = ws.ring_type(tile, stages=stages, instances=instances)
        label = ir.StringAttr.get(name)
        if inside is None:
            op = ws.AllocRingOp(label, kind)
        else:
            op = ws.AllocInsideOp(label, kind, inside.value)
            if offset:
                op.operation.attributes[ws.OFFSET] = i64_attr(offset)
        if producers:
            agents = [ir.StringAttr.get(agent) for agent in producers]
            op.operation.attributes["producers"] = ir.ArrayAttr.get(agents)
        if known_empty:
            op.operation.attributes[ws.KNOWN_EMPTY] = ir.UnitAttr.get()
        for edge, lists in (("full_at", full_at), ("empty_at", empty_at)):
            if lists is not None:
                op.operation.attributes[edge] = ws.targets_attribute(lists)
        self.value = op.ring

    @staticmethod
    def _instance(instance: Value | int) -> Value:
        return constant(instance) if isinstance(instance, int) else instance

    def acquire(self, instance: Value | int = 0) -> Value:
        """Producer: blocks until a slot is empty and returns it."""
        return ws.AcquireOp(self.value, self._instance(instance), self.tile).slot

    def wait(self, instance: Value | int = 0) -> Value:
        """Consumer: blocks until a slot is full and returns it."""
        return ws.WaitOp(self.value, self._instance(instance), self.tile).slot


def commit(slot: Value, by: str) -> None:
    """Producer: an agent arrives at the full barrier of a slot."""
    ws.CommitOp(slot, ir.StringAttr.get(by))


def release(slot: Value, by: str) -> None:
    """Consumer: an agent arrives at the empty barrier of a slot."""
    ws.ReleaseOp(slot, ir.StringAttr.get(by))


def after(rows: Value, slot: Value) -> Value:
    """A fragment [rows] of f32 that is computed after the threads' commit or release of a slot."""
    return ws.BehindOp(rows, slot, rows.type).behind


class Buffer:
    """Declared tiles without barriers."""

    def __init__(self, name: str, tile: ws.TileType, *, instances: int = 1):
        self.tile = tile
        kind = ws.buffer_type(tile, instances=instances)
        self.value = ws.AllocBufferOp(ir.StringAttr.get(name), kind).buffer

    def at(self, instance: Value | int = 0) -> Value:
        """The tile of one instance."""
        instance = constant(instance) if isinstance(instance, int) else instance
        return ws.AtOp(self.value, instance, self.tile).tile


def arrive_last(counter: Value, coords: Sequence[Value | int], count: Value) -> Value:
    """Arrives at a counter in global memory; i1: whether this was the last of `count` arrivals."""
    return ws.ArriveLastOp(counter, coordinates(coords), count).is_last


def await_turn(cell: Value, coords: Sequence[Value | int], turn: Value) -> None:
    """Waits until a cell in global memory holds a number. One thread."""
    ws.AwaitTurnOp(cell, coordinates(coords), turn)


def set_turn(cell: Value, coords: Sequence[Value | int], turn: Value) -> None:
    """Sets a cell in global memory when the copies of this thread are complete. One thread."""
    ws.SetTurnOp(cell, coordinates(coords), turn)


def grid_dependency_wait() -> None:
    """Waits until the kernels before this one in the stream are done, if launches overlap."""
    ws.GridDependencyWaitOp()


def launch_dependents() -> None:
    """Lets the next kernel in the stream start early, if launches overlap."""
    ws.LaunchDependentsOp()


def cta() -> Value:
    """The number of this CTA along the grid's first dimension."""
    return ws.CtaOp().number


def rank() -> Value:
    """The number of this CTA in its cluster."""
    return ws.RankOp().rank


def barrier() -> None:
    """A barrier of all threads of the group."""
    ws.BarrierOp()
