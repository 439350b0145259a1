"""The duration of instructions and requests in a trace, in steps: rates without latencies.

A step is the time in which a warp issues one instruction, about a clock. The warps of a CTA do not
compete for issue slots and the special-function unit; they share engines.
"""

import re

from ..machine.tensorcore import Mma
from ..ptx.ast import Instruction, Vec

SLOW_FUNCTIONS = frozenset("ex2 lg2 rcp rsqrt sqrt sin cos tanh".split())
SLOW_FUNCTION_STEPS = 8  # 16 lanes per clock and SM: 4 per partition; spec-ptx 12, MUFU
SHUFFLE_STEPS = 4  # 32 lanes per clock and SM; spec-ptx 12, shfl
SHARED_BYTES_PER_STEP = 128  # per SM; spec-ptx 12, smem bandwidth
TMEM_LOAD_BYTES_PER_STEP = 64  # per lane partition; spec-ptx 12, TMEM -> RF
TMEM_STORE_BYTES_PER_STEP = 128  # per lane partition; spec-ptx 12, RF -> TMEM
COPY_BYTES_PER_STEP = 75  # per SM: 20.5 TB/s over 148 SMs at 1.85 GHz; spec-ptx 12, L2 read
COPY_MIN_STEPS = 48  # TMA bulk issue distance; spec-ptx 12
REGISTER_BYTES = 4 * 32

_WGMMA_N = re.compile(r"m64n(\d+)k\d+")


def instruction_steps(instruction: Instruction) -> int:
    """Steps for which one warp is busy with an instruction."""
    head, parts = instruction.parts[0], instruction.parts
    if head in SLOW_FUNCTIONS:
        return SLOW_FUNCTION_STEPS
    if head == "shfl":
        return SHUFFLE_STEPS
    if parts[:2] == ("tcgen05", "ld"):
        return -(-_register_count(instruction, 0) * REGISTER_BYTES // TMEM_LOAD_BYTES_PER_STEP)
    if parts[:2] == ("tcgen05", "st"):
        return -(-_register_count(instruction, -1) * REGISTER_BYTES // TMEM_STORE_BYTES_PER_STEP)
    if head in ("ld", "st") and instruction.has("shared", "shared::cta", "shared::cluster"):
        value = instruction.operands[0 if head == "ld" else -1]
        count = len(value.items) if isinstance(value, Vec) else 1
        width = int(re.sub(r"\D", "", instruction.type) or 32) // 8
        return max(1, count * width * 32 // SHARED_BYTES_PER_STEP)
    return 1


def _register_count(instruction: Instruction, position: int) -> int:
    operand = instruction.operands[position]
    return len(operand.items) if isinstance(operand, Vec) else 1


def copy_steps(byte_count: int) -> int:
    """Steps for which a copy engine is busy with a request."""
    return max(COPY_MIN_STEPS, -(-byte_count // COPY_BYTES_PER_STEP))


def mma_steps(mma: Mma) -> int:
    """Steps for which the tensor core is busy with one tcgen05.mma.

    Every 32-byte K step of M=128 costs N/2; with A in shared memory, fetching the operands costs
    32 + N/4, which is more below N=128 (spec-ptx 12).
    """
    rows, columns = (mma.idesc >> 24 & 31) << 4, (mma.idesc >> 17 & 63) << 3
    product = columns // 2
    if mma.ws and rows < 128:
        product = columns * rows // 256
    fetch = columns // 4 // mma.cta_group
    return max(1, product, fetch if mma.a_in_tmem else 32 + fetch)


def wgmma_steps(opcode: str) -> int:
    """Steps of one wgmma.mma_async: N/2, or 16 + N/4 to fetch the operands (spec-ptx 12)."""
    shape = _WGMMA_N.search(opcode)
    columns = int(shape[1]) if shape else 256
    return max(columns // 2, 16 + columns // 4)
