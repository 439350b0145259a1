"""Copies of boxes of tensors by the copy engine: loads, stores, reductions (spec-ptx 7.2)."""

from typing import Any

from ...core.state import (
    Cta,
    WarpContext,
)
from ...machine import tensormap, tma
from ...machine.faults import Fault
from ...ptx.ast import Instruction, Mem, Operand
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes
from ..registry import instruction, runtime
from ..warp.control import active_lanes
from .posting import REDUCTIONS, destinations, post_load, post_store


def _read_map(s: WarpContext, address: int) -> tensormap.TensorMap:
    if address % 64:
        raise Fault("misaligned", "a tensor map is 64-byte aligned", address=address)
    return tensormap.decode(s.launch.memory.view(address, 128))


@runtime
def tensor_load(
    s: WarpContext,
    k: Any,
    form: tuple[bool, int, str],
    address: Lanes,
    tensor_map: Lanes,
    coordinates: tuple[Lanes, ...],
    barrier: Lanes,
    ranks: Lanes | None,
) -> None:
    """cp.async.bulk.tensor, global to shared, by each active lane.

    Args:
      form: (destination is a shared::cluster address, cta_group, "tile" or "gather4").
    """
    cluster, group, mode = form
    launch = s.launch
    engine = tma.gather4 if mode == "gather4" else tma.load_tile
    for lane in active_lanes(s, k):
        tmap = _read_map(s, int(tensor_map[lane]))
        at = [int(c[lane]) for c in coordinates]
        mask = None if ranks is None else int(ranks[lane]) & 0xFFFF
        goals = destinations(s, int(address[lane]), int(barrier[lane]), mask, cluster, group)
        launch.count("tensor_loads")

        def move(cta: Cta, offset: int, tmap: Any = tmap, at: list[int] = at) -> int:
            byte_count = engine(tmap, at, launch.memory, cta.shared, offset)
            launch.count("tensor_load_bytes", byte_count)
            return byte_count

        post_load(s, lane, goals, move)


_LOAD_MODIFIERS = (
    "1d 2d 3d 4d 5d shared::cluster shared::cta global tile tile::gather4 "
    "mbarrier::complete_tx::bytes multicast::cluster cta_group::1 cta_group::2 L2::cache_hint"
).split()


def _tensor_operand(e: Emitter, operand: Operand) -> tuple[str, str]:
    """Expressions for the map address and the coordinate tuple of `[map, {c..}]`."""
    if not isinstance(operand, Mem) or operand.coordinates is None:
        raise e.error("expected a tensor map with coordinates, [map, {c0, ..}]")
    address = e.address(operand, True)
    items = "".join(f"{e.src(item, 's32')}, " for item in operand.coordinates.items)
    return address, f"({items})"


@instruction("cp.async.bulk.tensor", boundary=True)
def emit_tensor_copy(e: Emitter, i: Instruction) -> None:
    """cp.async.bulk.tensor.Nd: loads and stores of boxes."""
    if i.spaces[:1] == ("global",):
        _emit_tensor_store(e, i, "")
        return
    e.check_modifiers(i, i.parts[4:], _LOAD_MODIFIERS)
    if not i.has("mbarrier::complete_tx::bytes"):
        raise e.error(f"'{i.opcode}' needs .mbarrier::complete_tx::bytes")
    cluster = i.has("shared::cluster")
    mode = "gather4" if i.has("tile::gather4") else "tile"
    form = (cluster, 2 if i.has("cta_group::2") else 1, mode)
    address = e.address(i.operands[0], False)
    tensor_map, coordinates = _tensor_operand(e, i.operands[1])
    barrier = e.address(i.operands[2], False)
    ranks = e.src(i.operands[3], "u16") if i.has("multicast::cluster") else "None"
    with e.effect():
        e.line(
            f"tensor_load(s, {e.k}, {form!r}, {address}, {tensor_map}, {coordinates}, "
            f"{barrier}, {ranks})"
        )


# ---- groups


@runtime
def tensor_store(
    s: WarpContext,
    k: Any,
    form: tuple[str, str],
    tensor_map: Lanes,
    coordinates: tuple[Lanes, ...],
    source: Lanes,
) -> None:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor, shared to global.

    Args:
      form: ("tile" or "scatter4", reduction or "").
    """
    mode, reduction = form
    memory = s.launch.memory
    for lane in active_lanes(s, k):
        tmap = _read_map(s, int(tensor_map[lane]))
        at = [int(c[lane]) for c in coordinates]
        s.launch.count("tensor_stores")

        def move(cta: Cta, offset: int, tmap: Any = tmap, at: list[int] = at) -> None:
            if reduction:
                tma.reduce_tile(tmap, at, memory, cta.shared, offset, reduction)
            elif mode == "scatter4":
                tma.scatter4(tmap, at, memory, cta.shared, offset)
            else:
                tma.store_tile(tmap, at, memory, cta.shared, offset)

        post_store(s, lane, int(source[lane]), tmap.box_bytes, move)


_STORE_MODIFIERS = (
    "tensor 1d 2d 3d 4d 5d global shared::cta tile tile::scatter4 bulk_group L2::cache_hint "
    "add min max inc dec and or xor"
).split()


def _emit_tensor_store(e: Emitter, i: Instruction, reduction: str) -> None:
    e.check_modifiers(i, i.parts[4:], _STORE_MODIFIERS)
    mode = "scatter4" if i.has("tile::scatter4") else "tile"
    tensor_map, coordinates = _tensor_operand(e, i.operands[0])
    source = e.address(i.operands[1], False)
    with e.effect():
        form = (mode, reduction)
        e.line(f"tensor_store(s, {e.k}, {form!r}, {tensor_map}, {coordinates}, {source})")


@instruction("cp.reduce.async.bulk.tensor", boundary=True)
def emit_tensor_reduce(e: Emitter, i: Instruction) -> None:
    """cp.reduce.async.bulk.tensor.Nd.global.shared::cta.OP."""
    _emit_tensor_store(e, i, next(part for part in i.parts if part in REDUCTIONS))
