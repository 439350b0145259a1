"""Tensor maps that a kernel makes itself: tensormap.replace and tensormap.cp_fenceproxy."""

from typing import Any

import numpy as np

from ...core.state import SHARED_WINDOW, SHARED_WINDOW_END, WarpContext
from ...machine.faults import Fault
from ...machine.mapfields import FIELDS, ORDINAL_FIELDS, replaced
from ...machine.tensormap import (
    TENSOR_MAP_ALIGNMENT_BYTES,
    TENSOR_MAP_BYTES,
)
from ...ptx.ast import Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import Lanes
from ..memory.accesses import shared_target
from ..registry import instruction, runtime
from ..warp.collectives import emit_gather
from ..warp.control import active_lanes

_REPORTED_BYTES = 32  # of a map at a time, the widest access of a lane


def _map_bytes(s: WarpContext, lane: int, address: int, shared: bool, is_write: bool) -> Any:
    """uint8[128], aliasing the map at an address of shared::cta or a generic one."""
    if address % TENSOR_MAP_ALIGNMENT_BYTES:
        raise Fault("misaligned", "a tensor map is 64-byte aligned", address=address)
    if not shared and SHARED_WINDOW <= address < SHARED_WINDOW_END:
        address, shared = address - SHARED_WINDOW, True
    memory: Any = s.launch.memory
    if shared:
        cta, address = shared_target(s, address, False)
        memory = cta.shared
    if s.launch.inspector is not None:
        lanes = np.array([lane])
        for start in range(address, address + TENSOR_MAP_BYTES, _REPORTED_BYTES):
            where = np.array([start], np.uint64)
            s.launch.inspector.access(s, lanes, memory, where, _REPORTED_BYTES, is_write)
    return memory.view(address, TENSOR_MAP_BYTES, writing=is_write)


@runtime
def map_replace(
    s: WarpContext, k: Any, form: tuple[str, int, bool], address: Lanes, value: Lanes
) -> None:
    """tensormap.replace by each active lane.

    Args:
      form: (field, dimension, whether the address is in shared::cta).
    """
    field, ordinal, shared = form
    for lane in active_lanes(s, k):
        raw = _map_bytes(s, lane, int(address[lane]), shared, True)
        new = replaced(raw.tobytes(), field, ordinal, int(value[lane]))
        raw[:] = np.frombuffer(new, np.uint8)


@instruction("tensormap.replace", needs="tile")
def emit_replace(e: Emitter, i: Instruction) -> None:
    """tensormap.replace.tile.FIELD{.global,.shared::cta}.b1024.TYPE [map], {dimension,} value."""
    modifiers = [
        part for part in i.parts[2:-1] if part not in ("tile", "global", "shared::cta", "b1024")
    ]
    field = i.first_of(FIELDS) or "".join(modifiers[:1])
    if field not in FIELDS:
        raise e.error(f"tensormap.replace knows no field '{field}': {', '.join(FIELDS)}")
    if modifiers != [field]:
        unknown = next((part for part in modifiers if part != field), field)
        raise e.error(f"unknown modifier '.{unknown}' of '{i.opcode}'")
    is_wide = field in ("global_address", "global_stride")
    if i.type != ("b64" if is_wide else "b32"):
        raise e.error(f"the value of {field} is .{'b64' if is_wide else 'b32'}, got .{i.type}")
    has_ordinal = field in ORDINAL_FIELDS
    if len(i.operands) != 2 + has_ordinal:
        raise e.error(f"'{i.opcode}' takes {2 + has_ordinal} operands, got {len(i.operands)}")
    ordinal = e.immediate(i.operands[1], "the dimension") if has_ordinal else 0
    shared = i.has("shared::cta")
    address = e.address(i.operands[0], not shared)
    with e.effect():
        value = e.src(i.operands[-1], "u64" if is_wide else "u32")
        e.line(f"map_replace(s, {e.k}, {(field, ordinal, shared)!r}, {address}, {value})")


@runtime
def map_publish(s: WarpContext, k: Any, address: Lanes, source: Lanes) -> None:
    """tensormap.cp_fenceproxy: the warp copies one map from shared to global memory."""
    lane = active_lanes(s, k)[0]
    raw = _map_bytes(s, lane, int(source[lane]), True, False)
    _map_bytes(s, lane, int(address[lane]), False, True)[:] = raw


@instruction("tensormap.cp_fenceproxy", boundary=True)
def emit_publish(e: Emitter, i: Instruction) -> None:
    """tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned."""
    words = ("tensormap::generic", "release", "sync", "aligned")
    if i.spaces != ("global", "shared::cta") or not all(map(i.has, words)):
        raise e.error(f"'{i.opcode}' is not a form of tensormap.cp_fenceproxy")
    if e.immediate(i.operands[2], "the size") != TENSOR_MAP_BYTES:
        raise e.error(f"tensormap.cp_fenceproxy copies {TENSOR_MAP_BYTES} bytes")
    emit_gather(e, None)
    address, source = e.address(i.operands[0], True), e.address(i.operands[1], False)
    with e.effect():
        e.line(f"map_publish(s, {e.k}, {address}, {source})")
        e.line(f"fence(s, {e.k}, {i.opcode!r})")
