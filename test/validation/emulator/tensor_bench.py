"""One tcgen05 instruction between operands that a test gives and tensor memory that it reads.

The kernel has four warps. Data (see `Operands`) goes to shared memory without a swizzle and to
tensor memory as columns; then one thread issues the instruction and a commit, and thread t returns
the first `columns` columns of lane t.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.runtime.emulator import Emulator
from attn_mlir.validation.emulator.ptx_bench import module, run_module, wait

ALLOC = """
    mov.u32 r19, slot; setp.ne.u32 p7, r61, 0; @p7 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r19], 256;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    ALLOCATED:
    @p1 mbarrier.init.shared::cta.b64 [r1], 1; @p1 mbarrier.init.shared::cta.b64 [r1+8], 128;
    @p1 mbarrier.init.shared::cta.b64 [r1+16], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    <alloc_after> tcgen05.fence::after_thread_sync;
    ld.shared.b32 r20, [r19]; and.b32 r21, r61, 3; shl.b32 r21, r21, 21; add.u32 r22, r20, r21;
"""


DEALLOC = """
    <free_before> tcgen05.fence::before_thread_sync;
    <free_barrier> bar.sync 0;
    @p7 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 r20, 256;
    FREED:
"""


Array = npt.NDArray[Any]
SHARED = ".shared .align 1024 .b8 data[8192];\n.shared .align 8 .b8 bar[8];\n.shared .align 4 .b8 cell[4];"
A_BYTES, B_OFFSET = 4096, 4096  # in shared memory
A_COLUMN, SIDE_COLUMN = 64, 96  # in tensor memory
SFA, SFB, METADATA = 96, 100, 104  # columns of side words 0..3, 4 and 8


def cores(rows: Array) -> bytes:
    """Rows of bytes as 8 x 16-byte core matrices: LBO 128, SBO 128 per 16 bytes of a row."""
    raw = np.ascontiguousarray(rows).view(np.uint8)
    count, width = raw.shape
    return raw.reshape(count // 8, 8, width // 16, 16).transpose(0, 2, 1, 3).tobytes()


def descriptor(row_bytes: int) -> int:
    """The shared-memory descriptor of `cores`, without its address."""
    return (128 >> 4) << 16 | (row_bytes * 8 >> 4) << 32 | 1 << 46


@dataclass
class Operands:
    """What the instruction works on.

    Attributes:
      a: [128, bytes]; in shared memory, and its first 32 bytes per row in tensor memory as well.
      b: [rows, bytes], in shared memory.
      side: uint32[128, 16], in tensor memory from SIDE_COLUMN.
      initial: what D holds before, float32 or int32.
    """

    a: Array
    b: Array
    side: Array = field(default_factory=lambda: np.zeros((128, 16), np.uint32))
    initial: Any = field(default_factory=lambda: np.float32(8))


def run(
    instruction: str,
    operands: Operands,
    columns: int = 32,
    *,
    schedule: Any = "fair",
    seed: int = 0,
    commit: str = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r4];",
    read: int = 0,
) -> Array:
    """Run one instruction; uint32[128, columns] of D, or of what starts at column `read`.

    In the instruction, r1 is D, r2 the tensor-memory base, r3 `data` in shared memory, r40 A in
    tensor memory, r41 the side columns, rd10 and rd11 the descriptors of A and B, p3 is true and
    p4 false.
    """
    a = np.ascontiguousarray(operands.a).view(np.uint8).reshape(128, -1)
    b = np.ascontiguousarray(operands.b).view(np.uint8).reshape(len(operands.b), -1)
    assert a.size <= A_BYTES and b.size <= 4096
    blob = np.zeros(8192 + 4096 + 8192, np.uint8)
    blob[: a.size] = np.frombuffer(cores(a), np.uint8)
    blob[B_OFFSET : B_OFFSET + b.size] = np.frombuffer(cores(b), np.uint8)
    in_tmem = np.zeros((128, 32), np.uint8)
    in_tmem[:, : min(32, a.shape[1])] = a[:, :32]
    blob[8192:12288] = in_tmem.reshape(-1)
    blob[12288:] = operands.side.astype(np.uint32).view(np.uint8).reshape(-1)
    fill = int(np.array([operands.initial]).view(np.uint32)[0])
    words = ", ".join(f"r{n}" for n in range(10, 10 + columns))
    text = """
    .reg .b32 w<16>;
    mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; shl.b32 r62, r61, 21;
    mov.u32 r3, data; mov.u32 r4, bar; mov.u32 r5, cell;
    ld.param.u64 rd1, [blob]; mad.wide.u32 rd2, r60, 64, rd1; mad.lo.u32 r6, r60, 64, r3;
    """
    for n in range(4):
        text += f"""
    ld.global.v4.b32 {{w0, w1, w2, w3}}, [rd2+{16 * n}]; st.shared.v4.b32 [r6+{16 * n}], {{w0, w1, w2, w3}};"""
    text += f"""
    fence.proxy.async.shared::cta;
    setp.eq.u32 p1, r60, 0; setp.eq.u32 p2, r61, 0; setp.eq.u32 p3, r60, r60; setp.ne.u32 p4, r60, r60;
    @p1 mbarrier.init.shared::cta.b64 [r4], 1;
    fence.mbarrier_init.release.cluster;
    @p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r5], 128;
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    ld.shared.b32 r2, [r5]; mov.b32 r1, r2; or.b32 r63, r2, r62;
    mov.b32 w0, {fill};
    tcgen05.st.sync.aligned.32x32b.x32.b32 [r63], {{{", ".join(["w0"] * 32)}}};
    add.u32 r40, r2, {A_COLUMN}; add.u32 r41, r2, {SIDE_COLUMN};
    mad.wide.u32 rd3, r60, 32, rd1;
    ld.global.v4.b32 {{w0, w1, w2, w3}}, [rd3+8192]; ld.global.v4.b32 {{w4, w5, w6, w7}}, [rd3+8208];
    tcgen05.st.sync.aligned.32x32b.x8.b32 [r63+{A_COLUMN}], {{w0, w1, w2, w3, w4, w5, w6, w7}};
    """
    side = ", ".join(f"w{n}" for n in range(16))
    for n in range(4):
        text += f"ld.global.v4.b32 {{w{4 * n}, w{4 * n + 1}, w{4 * n + 2}, w{4 * n + 3}}}, [rd2+{12288 + 16 * n}];\n"
    text += f"""
    tcgen05.st.sync.aligned.32x32b.x16.b32 [r63+{SIDE_COLUMN}], {{{side}}};
    tcgen05.wait::st.sync.aligned;
    shr.u32 r7, r3, 4; cvt.u64.u32 rd4, r7;
    or.b64 rd10, rd4, {descriptor(a.shape[1])}; add.u64 rd5, rd4, {B_OFFSET >> 4};
    or.b64 rd11, rd5, {descriptor(b.shape[1])};
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    @!p1 bra WAIT;
    {instruction}
    {commit}
    WAIT:
    {wait("r4", 0)}
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{words}}}, [r63+{read}];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 rd6, [out]; mad.wide.u32 rd6, r60, {4 * columns}, rd6;
    """
    text += "\n".join(f"st.global.b32 [rd6+{4 * n}], r{10 + n};" for n in range(columns))
    text += """
    bar.sync 0;
    @p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    @p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r2, 128;
    """
    out = np.zeros((128, columns), np.uint32)
    run_module(
        module(text, ".param .u64 blob, .param .u64 out", before=SHARED),
        [blob, out],
        block=(128, 1, 1),
        emulator=Emulator(schedule=schedule, seed=seed),
    )
    return out
