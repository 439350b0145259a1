"""Launches that work, for `ptx` to damage: one of each family of programs, and some for sm_100a."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

from attn_mlir.validation.differential import tensormaps
from attn_mlir.validation.differential.case import ENTRY
from attn_mlir.validation.differential.suite import FAMILIES, SEED

_HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
_PER_FAMILY = 2


@dataclass(frozen=True)
class Sample:
    """A launch.

    Attributes:
      buffers: bytes of each; their addresses are the first parameters.
      maps: further parameters: (buffer, 128 bytes of a tensor map whose address is 0).
    """

    ptx: str
    entry: str
    target: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    buffers: tuple[bytes, ...]
    maps: tuple[tuple[int, bytes], ...] = ()
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0


_FUNCTIONS = """
.extern .func (.param .b32 y) vprintf(.param .b64 form, .param .b64 buffer);
.global .align 1 .b8 form[8] = {37, 100, 32, 37, 115, 10, 0, 0};
.func (.param .b32 y) sum(.param .b32 x) {
.reg .pred p<2>; .reg .b32 r<8>; .local .align 8 .b8 mine[8];
ld.param.u32 r1, [x]; st.local.u32 [mine], r1; mov.u32 r5, 0; setp.eq.u32 p1, r1, 0; @p1 bra DONE;
sub.u32 r2, r1, 1; { .param .b32 a; .param .b32 b; st.param.b32 [a], r2; call.uni (b), sum, (a); ld.param.b32 r3, [b]; }
ld.local.u32 r4, [mine]; add.u32 r5, r3, r4;
DONE: st.param.b32 [y], r5; ret; }
"""
_CALLS = """
and.b32 r10, r0, 7; { .param .b32 a; .param .b32 b; st.param.b32 [a], r10; st.param.b32 [b], r10; @!p1 call (b), sum, (a); ld.param.b32 r11, [b]; }
@!p1 st.global.u32 [d1], r11; @!p0 bra END;
mov.u64 d2, stack; cvta.local.u64 d2, d2; mov.u64 d3, form; st.local.u32 [stack], r11; st.local.u64 [stack+8], d3;
{ .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], d3; st.param.b64 [b], d2; call.uni (c), vprintf, (a, b); }
END:
"""


@cache
def samples() -> list[Sample]:
    """All samples, always in the same order."""
    return [*_of_hopper(), *_of_blackwell()]


def _of_hopper() -> Iterator[Sample]:
    for make in FAMILIES.values():
        for program in islice(make(SEED), _PER_FAMILY):
            maps = tuple(
                (spec.buffer, tensormaps.encode(spec, spec.offset)) for spec in program.maps
            )
            yield Sample(
                program.ptx,
                ENTRY,
                "sm_90a",
                (program.grid, program.grid_y, program.grid_z),
                (program.block, 1, 1),
                tuple(buffer.tobytes() for buffer in program.buffers),
                maps,
                shared_bytes=program.shared_bytes,
            )


def _of_blackwell() -> Iterator[Sample]:
    for body, ctas in (
        (_BRANCHES, 1),
        (_TENSOR, 1),
        (_SCALED, 1),
        (_PAIR, 2),
        (_CANCEL, 1),
        (_CALLS, 1),
    ):
        cluster = f".explicitcluster .reqnctapercluster {ctas}, 1, 1" if ctas > 1 else ""
        text = f"""{_HEAD}
.global .align 4 .u32 table[4] = {{1, 2, 3, 4}};
.extern .shared .align 1024 .b8 tiles[];
{_FUNCTIONS if body is _CALLS else ""}
.visible .entry k(.param .u64 out, .param .f32 scale, .param .align 8 .b8 pack[16])
{cluster}
{{
.reg .pred p<8>; .reg .b16 h<8>; .reg .b32 r<80>; .reg .b64 d<16>; .reg .f32 f<8>; .reg .b128 q<2>;
.shared .align 8 .b8 bar[32]; .shared .align 16 .b8 slot[32]; .local .align 8 .b8 stack[32];
mov.u32 r0, %tid.x; shr.u32 r1, r0, 5; mov.u32 r2, bar; mov.u32 r3, slot; mov.u32 r4, tiles;
setp.eq.u32 p0, r0, 0; setp.ne.u32 p1, r1, 0; ld.param.u64 d0, [out]; mad.wide.u32 d1, r0, 4, d0;
{body}
ret;
}}
"""
        grid = (8 if body is _CANCEL else ctas, 1, 1)
        yield Sample(
            text, "k", "sm_100a", grid, (128, 1, 1), (bytes(8192),), (), (ctas, 1, 1), 16384
        )


_BRANCHES = """
ld.param.f32 f0, [scale]; ld.param.v2.u64 {d2, d3}, [pack]; cvta.global.u64 d4, table;
and.b32 r5, r0, 3; mad.wide.u32 d5, r5, 4, d4; ld.global.u32 r6, [d5];
mov.u64 d6, stack; st.local.v2.b32 [d6+8], {r5, r6}; ld.local.u32 r7, [d6+8];
TABLE: .branchtargets A, B, C, D;
brx.idx r5, TABLE;
A: add.u32 r8, r6, 1; bra END;
B: { .reg .b32 t; .reg .pred p; setp.lt.s32 p, r6, 2; selp.b32 t, r6, 5, p; add.u32 r8, t, 2; } bra END;
C: cvt.rn.f32.u32 f1, r6; fma.rn.f32 f1, f1, f0, 0f3F800000; mov.b32 r8, f1; bra END;
D: mov.u32 r9, 0;
LOOP: add.u32 r9, r9, 1; setp.lt.u32 p2, r9, 5; @p2 bra LOOP; shl.b32 r8, r9, 2;
END: bar.warp.sync -1; shfl.sync.bfly.b32 r10|p3, r8, 1, 31, -1; vote.sync.ballot.b32 r11, p3, -1;
redux.sync.add.u32 r12, r8, -1; match.any.sync.b32 r13, r5, -1; prmt.b32 r14, r8, r10, 0x5410;
lop3.b32 r15, r12, r13, r14, 0x96; bfe.u32 r16, r15, 4, 8; popc.b32 r17, r15; dp4a.u32.u32 r18, r14, r15, r16;
cvt.rn.bf16x2.f32 r19, f0, f0; add.rn.f32x2 d7, d2, d3; min.s32 r20, r18, r17; mov.b64 {r21, r22}, d7;
atom.global.add.u32 r23, [d1], r20; red.global.max.s32 [d1], r21; st.global.cg.u32 [d1], r19;
bar.arrive 1, 256; bar.sync 1, 256; @p0 st.volatile.shared.b32 [r3], r22; bar.red.popc.u32 r24, 0, p0;
"""

_ALLOC = """
@p1 bra ALLOCATED;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [r3], 128;
tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED: @p0 mbarrier.init.shared::cta.b64 [r2], 1; fence.mbarrier_init.release.cluster;
@p0 st.bulk.weak.shared::cta [r4], 16384, 0;
fence.proxy.async.shared::cta; tcgen05.fence::before_thread_sync; bar.sync 0; {meet}
tcgen05.fence::after_thread_sync; ld.shared.b32 r6, [r3]; shl.b32 r7, r1, 21; add.u32 r8, r6, r7;
"""
_FREE = """
tcgen05.fence::before_thread_sync; bar.sync 0; {meet} @p1 bra FREED;
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 r6, 128;
FREED:
"""
_DESCRIPTORS = """
shr.u32 r9, r4, 4; cvt.u64.u32 d2, r9; or.b64 d3, d2, 0x4000404000010000; add.u64 d4, d3, 512;
mov.b32 r10, 0x04100490;
"""
_WAIT = """
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p2, [r2], 0; @!p2 bra WAIT;
tcgen05.fence::after_thread_sync; tcgen05.ld.sync.aligned.32x32b.x4.b32 {r20, r21, r22, r23}, [r8];
tcgen05.wait::ld.sync.aligned; st.global.b32 [d1], r20;
"""
_TENSOR = (
    _ALLOC.format(group=1, meet="")
    + _DESCRIPTORS
    + """
@!p0 bra ISSUED;
tcgen05.mma.cta_group::1.kind::f16 [r6], d3, d4, r10, 0;
tcgen05.mma.cta_group::1.kind::f16.collector::a::discard [r6], d3, d4, r10, p0;
tcgen05.cp.cta_group::1.128x256b [r6+64], d3;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r2];
ISSUED:
"""
    + _WAIT
    + """
tcgen05.st.sync.aligned.16x128b.x2.b32 [r8], {r20, r21, r22, r23}; tcgen05.wait::st.sync.aligned;
"""
    + _FREE.format(group=1, meet="")
)
_SCALED = (
    _ALLOC.format(group=1, meet="")
    + _DESCRIPTORS
    + """
mov.b32 r10, 0x08840000; mov.b32 r11, 0x7f7f7f7f;
tcgen05.st.sync.aligned.32x32b.x8.b32 [r8+96], {r11, r11, r11, r11, r11, r11, r11, r11};
tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
add.u32 r12, r6, 96; add.u32 r13, r6, 100; @!p0 bra ISSUED;
tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [r6], d3, d3, r10, [r12], [r13], 0;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r2];
ISSUED:
"""
    + _WAIT
    + _FREE.format(group=1, meet="")
)
_MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
_PAIR = (
    _ALLOC.format(group=2, meet=_MEET)
    + _DESCRIPTORS
    + """
mov.b32 r10, 0x08200490; mov.u32 r11, %cluster_ctarank; setp.eq.and.u32 p3, r11, 0, p0; mov.b16 h0, 3;
@!p3 bra ISSUED;
tcgen05.mma.cta_group::2.kind::f16 [r6], d3, d3, r10, 0;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r2], h0;
ISSUED:
"""
    + _WAIT
    + _FREE.format(group=2, meet=_MEET)
)
_CANCEL = """
@p0 mbarrier.init.shared::cta.b64 [r2], 1; fence.mbarrier_init.release.cluster; bar.sync 0; @!p0 bra ASKED;
mbarrier.arrive.expect_tx.shared::cta.b64 d2, [r2], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [r3], [r2];
ASKED:
WAIT: mbarrier.try_wait.parity.shared::cta.b64 p2, [r2], 0; @!p2 bra WAIT;
ld.shared.b128 q0, [r3]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p3, q0;
@p3 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {r5, r6, r7, r8}, q0;
mad.lo.u32 r9, r0, 16, r4; mad.wide.u32 d5, r0, 16, d0;
cp.async.ca.shared.global [r9], [d5], 16; cp.async.commit_group; cp.async.wait_all;
fence.proxy.async; bar.sync 0; @!p0 bra DONE;
mov.u32 r10, %ctaid.x; mad.wide.u32 d0, r10, 64, d0;
cp.async.bulk.global.shared::cta.bulk_group [d0], [r4], 64; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
DONE:
"""
