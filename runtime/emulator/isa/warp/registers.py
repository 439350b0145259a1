"""setmaxnreg: the registers of a CTA, which its warps give back and take (spec-ptx 11)."""

import math
from dataclasses import dataclass, field

from ...core.state import WarpContext
from ...ptx.ast import Instruction, Kernel
from ...ptx.emit import BLOCKED, Emitter
from ..registry import instruction, runtime
from .collectives import emit_gather

SM_REGISTERS = 65536  # 32-bit registers of an SM; CUDA C++ Programming Guide, compute capabilities
STEP = 8  # registers of a thread come in eights; PTX ISA, setmaxnreg
RANGE = (24, 256)  # PTX ISA, setmaxnreg


@dataclass(slots=True)
class Pool:
    """The register budget of a CTA's warps, in registers of each thread.

    Attributes:
      initial: of every warp at the entry. free: given back and not taken. by_warp: by warp, once
        changed.
    """

    initial: int
    free: int = 0
    by_warp: dict[int, int] = field(default_factory=dict[int, int])


def registers_at_entry(kernel: Kernel, threads: int) -> int | None:
    """Registers of a thread that the directives fix; None where ptxas would ignore setmaxnreg.

    They are `.maxnreg`, or what `.minnctapersm` leaves of the SM for a block of `threads`.
    """
    fixed = kernel.directives.get("maxnreg")
    if fixed:
        return int(fixed[0])
    ctas = kernel.directives.get("minnctapersm")
    if not ctas:
        return None
    share = SM_REGISTERS // (math.prod(ctas) * threads)
    return min(share // STEP * STEP, RANGE[1])


@runtime
def set_registers(s: WarpContext, count: int) -> bool:
    """setmaxnreg.{inc,dec}: change what this warp holds. False when it waits for others to give.

    An H200 neither lends registers that nobody gave back nor fails: a CTA whose warps want more
    than it has hangs (test/validation/differential/roles.py).
    """
    cta = s.cta
    if cta.register_pool is None:
        cta.register_pool = Pool(registers_at_entry(s.launch.program.kernel, cta.thread_count) or 0)
    pool: Pool = cta.register_pool
    if not pool.initial:
        return True
    more = count - pool.by_warp.get(s.warp.index, pool.initial)
    key = ("registers", cta.where_rank)
    if more > pool.free:
        free = pool.free
        s.launch.scheduler.block(
            s,
            key,
            lambda: f"waits for {more} more registers of each thread; {free} are free in its CTA",
        )
        return False
    pool.free -= more
    pool.by_warp[s.warp.index] = count
    if more < 0:
        s.launch.scheduler.wake(key)
    return True


@instruction("setmaxnreg", modifiers="inc dec sync aligned", boundary=True)
def emit_setmaxnreg(e: Emitter, i: Instruction) -> None:
    """setmaxnreg.{inc,dec}.sync.aligned.u32 count."""
    count = e.immediate(i.operands[0], "the register count")
    if count % STEP or not RANGE[0] <= count <= RANGE[1]:
        raise e.error(f"setmaxnreg takes a multiple of 8 in 24..256, got {count}")
    emit_gather(e, None)
    with e.effect():
        e.line(f"if not set_registers(s, {count}): return {BLOCKED}")
