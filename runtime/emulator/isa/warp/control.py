"""Control flow of contexts, and the names that all generated code uses."""

from typing import Any

import numpy as np

from ...core.launch_errors import KernelFault
from ...core.state import (
    Join,
    WarpContext,
    call_of,
    lanes_of_mask,
    mask_of_lanes,
)
from ...machine.faults import Fault
from ...ptx.ast import Instruction
from ...ptx.emit import FINISHED, Emitter
from ...ptx.kinds import (
    WARP_LANES,
    Lanes,
    bits_to_pair,
    pack_pair,
    pack_words,
    pair_to_bits,
)
from ...ptx.program import NO_SEGMENT
from ..registry import RUNTIME, instruction, runtime

RUNTIME.update(
    where=np.where,
    minimum=np.minimum,
    maximum=np.maximum,
    ALL_BYTES=b"\x01" * WARP_LANES,
    NO_BYTES=b"\x00" * WARP_LANES,
    pack_pair=pack_pair,
    pack_words=pack_words,
    pair_to_bits=pair_to_bits,
    bits_to_pair=bits_to_pair,
    FULL=np.ones(WARP_LANES, np.bool_),
    bool_=np.bool_,
)
for _dtype in (
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
):
    RUNTIME[_dtype] = getattr(np, _dtype)


@runtime
def any_lane(lanes: Any) -> bool:
    """Whether a bool[32] holds a True."""
    return b"\x01" in lanes.tobytes()


def active_lanes(s: WarpContext, k: Any) -> list[int]:
    """Lane numbers of an effect's active lanes, ascending."""
    lanes = s.lanes if k is None else k
    return np.flatnonzero(lanes).tolist()


def active_mask(s: WarpContext, k: Any) -> int:
    """The active lanes as a bit mask."""
    return s.mask if k is None else mask_of_lanes(k)


@runtime
def pack_many(kind: str, *values: Lanes) -> Any:
    """Values of 1-, 2-, 4- or 8-byte lanes side by side, first lowest, as one wider lane."""
    width = np.dtype(f"u{int(kind[1:]) // 8}")
    rows = np.stack([value.view(width) for value in values], axis=1)
    total = rows.shape[1] * rows.itemsize
    if total == 16:
        return np.ascontiguousarray(rows.view(np.uint64).reshape(WARP_LANES, 2).T)
    return rows.view(np.dtype(f"u{total}")).reshape(WARP_LANES)


@runtime
def unpack_many(value: Lanes, dtype: Any, count: int) -> Any:
    """The inverse of `pack_many`: [count, 32]."""
    if value.ndim == 2:
        value = np.ascontiguousarray(value.T)
    flat = np.ascontiguousarray(value).view(dtype).reshape(WARP_LANES, count)
    return np.ascontiguousarray(flat.T)


@runtime
def diverge(s: WarpContext, taken: Any, goal: int, other: int, meet: int) -> int:
    """Split a context at a branch on which its lanes disagree.

    Args:
      taken: bool[32], the lanes that go to segment `goal`; the others go to `other`.
      meet: the segment where they meet, or NO_SEGMENT.
    """
    mask = mask_of_lanes(taken)
    scheduler = s.launch.scheduler
    if goal == NO_SEGMENT:
        exit_lanes(s, taken)
        return other
    if other == NO_SEGMENT:
        exit_lanes(s, lanes_of_mask(s.mask & ~mask))
        return goal
    join = s.join
    if meet != NO_SEGMENT and meet != s.join_segment:
        join = Join(meet, s.mask, 0, s.join, s.local_base)
    branch = WarpContext(s.warp, mask, goal, join)
    s.set_mask(s.mask & ~mask)
    s.set_join(join)
    scheduler.enqueue(branch)
    return other


@runtime
def branch_indexed(
    s: WarpContext, k: Any, index: Lanes, targets: tuple[int, ...], after: int, meet: int
) -> int:
    """brx.idx: lanes go to targets[index]; lanes whose guard is false go on to `after`."""
    lanes = s.lanes if k is None else k
    chosen = index[lanes].astype(np.int64)
    beyond = np.flatnonzero(chosen >= len(targets))
    if beyond.size:
        lane = int(np.flatnonzero(lanes)[beyond[0]])
        raise Fault(
            "out-of-bounds",
            f"lane {lane} branches to number {int(index[lane])} of a list of {len(targets)} labels",
        )
    goals = np.full(WARP_LANES, after)
    goals[lanes] = np.array(targets)[chosen]
    present = np.unique(goals[s.lanes]).tolist()
    for goal in present[1:]:
        diverge(s, (goals == goal) & s.lanes, goal, present[0], meet)
    return present[0]


@runtime
def exit_lanes(s: WarpContext, k: Any) -> int:
    """Lanes leave the kernel. FINISHED when the context has none left, else 0."""
    mask = s.mask if k is None else mask_of_lanes(k)
    scheduler = s.launch.scheduler
    remaining = s.mask & ~mask
    if remaining:
        s.set_mask(remaining)
    else:
        s.warp.contexts.remove(s)
    scheduler.exited(s, mask)
    return 0 if remaining else FINISHED


@runtime
def trap(s: WarpContext, k: Any, line: int) -> int:
    """The trap instruction: the kernel gives up, by the lanes k, or all if that is None."""
    mask = s.mask if k is None else mask_of_lanes(k)
    raise KernelFault(
        "the kernel executed a trap",
        kind="trap",
        line=line,
        text=s.launch.program.line_text(line),
        where=s.where(mask),
        origin=s.launch.program.origin(line),
    )


@instruction("bra", "brx", "ret", "exit", "trap")
def emit_jump(e: Emitter, i: Instruction) -> None:
    """Jumps end a segment; `isa.translate` writes them."""
    raise AssertionError(i.opcode)


def converged(s: WarpContext, members: int) -> bool:
    """Converge the lanes `members` of the warp at this instruction.

    Lanes that exited do not count. False: the context was blocked until the others come; when they
    have, this context goes on with all of them.
    """
    warp = s.warp
    members &= warp.alive
    if s.mask & members == members:
        s.sync = None
        return True
    call = call_of(s.join)
    here = [
        o
        for o in warp.contexts
        if o is not s and o.pc == s.pc and o.sync == "converge" and call_of(o.join) is call
    ]
    union = s.mask
    for other in here:
        union |= other.mask
    scheduler = s.launch.scheduler
    if union & members != members:
        s.sync = "converge"
        missing = members & ~union
        scheduler.block(
            s,
            ("converge", id(warp)),
            lambda: "waits for its warp to converge; lanes missing: " + bin(missing),
        )
        return False
    scheduler.merge(s, here)
    s.sync = None
    return True
