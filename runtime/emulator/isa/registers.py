"""setmaxnreg: the registers of a CTA, which its warps give back and take (spec-ptx 11)."""

from dataclasses import dataclass, field

from ..ptx.ast import Instruction
from ..ptx.emit import BLOCKED, Emitter
from ..state import Strand
from .barriers import immediate
from .collectives import emit_gather
from .registry import instruction, runtime

STEP = 8  # registers of a thread come in eights; PTX ISA, setmaxnreg
RANGE = (24, 256)  # PTX ISA, setmaxnreg


@dataclass(slots=True)
class Pool:
    """What the warps of a CTA hold, in registers of each thread.

    Attributes:
      initial: of every warp at the entry. free: given back and not taken. held: by warp, once changed.
    """

    initial: int
    free: int = 0
    held: dict[int, int] = field(default_factory=dict[int, int])


@runtime
def set_registers(s: Strand, count: int) -> bool:
    """setmaxnreg.{inc,dec}: change what this warp holds. False when it waits for others to give.

    Counted where `.maxnreg` fixes the registers at the entry.

    An H200 neither lends registers that nobody gave back nor fails: a CTA whose warps want more
    than it has hangs (test/differential/roles.py).
    """
    cta = s.cta
    entry = s.launch.program.kernel.directives.get("maxnreg")
    if not entry:
        return True
    if cta.register_pool is None:
        cta.register_pool = Pool(int(entry[0]))
    pool: Pool = cta.register_pool
    more = count - pool.held.get(s.warp.index, pool.initial)
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
    pool.held[s.warp.index] = count
    if more < 0:
        s.launch.scheduler.wake(key)
    return True


@instruction("setmaxnreg", modifiers="inc dec sync aligned", boundary=True)
def emit_setmaxnreg(e: Emitter, i: Instruction) -> None:
    """setmaxnreg.{inc,dec}.sync.aligned.u32 count."""
    count = immediate(e, i.operands[0], "the register count")
    if count % STEP or not RANGE[0] <= count <= RANGE[1]:
        raise e.error(f"setmaxnreg takes a multiple of 8 in 24..256, got {count}")
    emit_gather(e, None)
    with e.effect():
        e.line(f"if not set_registers(s, {count}): return {BLOCKED}")
