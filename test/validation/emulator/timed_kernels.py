"""Hopper PTX for tests of the cycle model, and a replay of it."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.errors import TargetError
from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.timing import (
    H200,
    Recorder,
    Replay,
    Replayed,
    assemble_with_lines,
    barrier_names,
    join,
    machine_code,
)
from attn_mlir.tools import find_ptxas, find_tool

CLOCK = "mov.u32 %t{0}, %clock;\n"
_HEAD = """.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 pool[];
.visible .entry kernel(.param .u64 out)
.maxntid {threads}
{{
.reg .pred %p<8>;
.reg .b32 %r<32>;
.reg .b32 %t<3>;
.reg .b64 %d<8>;
.reg .f32 %f<80>;
mov.u32 %r0, %tid.x;
shr.u32 %r1, %r0, 5;
mov.u32 %r4, pool;
ld.param.u64 %d0, [out];
cvt.rn.f32.u32 %f70, %r0;
"""
_TAIL = """
sub.u32 %t0, %t1, %t0;
mul.wide.u32 %d1, %r0, 4;
add.u64 %d1, %d0, %d1;
st.global.u32 [%d1], %t0;
ret;
}
"""


def kernel(body: str, *, threads: int = 128, timed: bool = True) -> str:
    """The PTX of an entry `kernel`, whose body is between two readings of the clock."""
    inner = CLOCK.format(0) + body + CLOCK.format(1) if timed else "mov.u32 %t0, 0;\n" + body
    return _HEAD.format(threads=threads) + inner + _TAIL.replace("%t1", "%t1" if timed else "%t0")


def used(count: int) -> str:
    """Uses the registers %f0.. under a test that does not hold, so that they are computed."""
    sums = "".join(f"add.f32 %f71, %f71, %f{n};\n" for n in range(count))
    return f"mov.f32 %f71, %f70;\n{sums}setp.eq.f32 %p7, %f71, 0f42F6E979;\n@%p7 st.global.f32 [%d0], %f71;\n"


def needs_tools() -> None:
    """Skips a test where the assembler or the disassembler is missing."""
    try:
        find_ptxas()
        find_tool("nvdisasm", "nvidia-cuda-nvdisasm")
    except TargetError as error:
        pytest.skip(str(error))


def replay(
    ptx: str, *, threads: int = 128, smem_bytes: int = 0, keep: bool = False, **constants: float
) -> Replayed:
    """Runs a kernel on the emulator and replays its only CTA."""
    needs_tools()
    recorder = Recorder()
    emulator = Emulator(target="sm_90a", recording=recorder)
    out = np.zeros(4 * threads, np.uint8)
    emulator.launch(
        ptx, "kernel", grid=(1, 1, 1), block=(threads, 1, 1), shared_bytes=smem_bytes,
        params=[emulator.map(out)],
    )  # fmt: skip
    functions = machine_code(assemble_with_lines(ptx, "sm_90a").cubin)
    joined = join(functions["kernel"], recorder.program)
    values = H200.at("nominal", constants)
    record = recorder.clusters[0]
    return Replay(joined, record, values, names=barrier_names(), keep=keep).run()


def measured(replayed: Replayed) -> float:
    """Clocks between the first two readings of the slowest warp."""
    return max(one.clocks[1] - one.clocks[0] for one in replayed.warps)
