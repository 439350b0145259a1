"""Every kind of finding: a minimal kernel that has it, and a near miss that has not.

A line that begins with `<wrong>` is in the first only, one with `<right>` in the second only. `docs/emulator.md`
shows the table of kinds.
"""

from __future__ import annotations

import re

from attn_mlir.validation.emulator.kinds import (
    DEADLOCK,
    POISON,
    Kind,
    spin,
)
from attn_mlir.validation.emulator.tensor_bench import ALLOC, DEALLOC

_COPY = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], {expected}; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2], [rd1], 128, [r1];"
_INIT = "@p1 mbarrier.init.shared::cta.b64 [r1], 1;"
_FENCE = "fence.mbarrier_init.release.cluster;"
_ALLOC, _FREE = (re.sub("<[a-z_]+>", "", part) for part in (ALLOC, DEALLOC))
_CLUSTER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"

KINDS = (
    Kind(
        "race of two warps in shared memory",
        "race",
        """
        @p2 st.shared.b32 [r3], r60;
        <right> bar.sync 0;
        @!p2 ld.shared.b32 r4, [r3+-128];
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "different values stored to a word",
        "race",
        """
        <wrong> st.shared.b32 [r2], r61;
        <right> st.shared.b32 [r2], 7;
        bar.sync 0;
        ld.shared.b32 r4, [r2];
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "read of a word that another warp stores the same value to",
        "race",
        """
        st.shared.b32 [r2], 7;
        <right> bar.sync 0;
        ld.shared.b32 r4, [r2];
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "another lane's cp.async over a word still read",
        "race",
        """
        ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1;
        st.shared.b32 [r3], r60; bar.warp.sync -1;
        <wrong> xor.b32 r5, r3, 4; ld.shared.b32 r4, [r5];
        <right> ld.shared.b32 r4, [r3];
        cp.async.ca.shared.global [r3], [rd1], 4;
        cp.async.commit_group; cp.async.wait_group 0;
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "read of what another lane's cp.async brought",
        "race",
        """
        ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1;
        cp.async.ca.shared.global [r3], [rd1], 4;
        cp.async.commit_group; cp.async.wait_group 0;
        <right> bar.warp.sync -1;
        xor.b32 r5, r3, 4; ld.shared.b32 r4, [r5];
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "race of two warps in global memory",
        "race",
        """
        ld.param.u64 rd1, [out];
        <wrong> st.global.b32 [rd1], r60;
        <right> mad.wide.u32 rd2, r60, 4, rd1; st.global.b32 [rd2], r60;
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "race of two CTAs of a cluster in shared memory",
        "race",
        f"""
        mov.u32 r7, %cluster_ctarank; xor.b32 r8, r7, 1; mapa.shared::cluster.u32 r9, r3, r8;
        {_CLUSTER}
        st.shared::cluster.b32 [r9], r60;
        <right> {_CLUSTER}
        <wrong> barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
        <wrong> st.shared::cluster.b32 [r9], r60;
        ld.shared.b32 r10, [r3];
        {_CLUSTER}
        """,
        "nothing orders these accesses",
        ctas=2,
    ),
    Kind(
        "race of a thread and a copy in shared memory",
        "race",
        """
        st.shared.b32 [r3], r60; fence.proxy.async.shared::cta; bar.sync 0;
        ld.param.u64 rd1, [out]; @!p1 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2], 128; cp.async.bulk.commit_group;
        <right> cp.async.bulk.wait_group.read 0;
        st.shared.b32 [r2], r60;
        <wrong> cp.async.bulk.wait_group.read 0;
        END:
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "race of a thread and a copy in global memory",
        "race",
        """
        st.shared.b32 [r3], r60; fence.proxy.async.shared::cta; bar.sync 0;
        ld.param.u64 rd1, [out]; @!p1 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2], 128; cp.async.bulk.commit_group;
        <right> cp.async.bulk.wait_group 0;
        <wrong> cp.async.bulk.wait_group.read 0;
        ld.global.b32 r4, [rd1];
        END:
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "missing proxy fence",
        "proxy",
        """
        st.shared.b32 [r3], r60;
        <right> fence.proxy.async.shared::cta;
        bar.sync 0;
        ld.param.u64 rd1, [out]; @!p1 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2], 128; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;
        END:
        """,
        "fence.proxy.async is missing",
    ),
    Kind(
        "race in tensor memory",
        "tensor",
        f"""
        {_ALLOC}
        setp.lt.u32 p4, r60, 128;
        @!p4 bra SECOND;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r60}};
        <right> tcgen05.wait::st.sync.aligned;
        tcgen05.fence::before_thread_sync;
        SECOND:
        bar.sync 0;
        @p4 bra END;
        tcgen05.fence::after_thread_sync;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r30}}, [r22]; tcgen05.wait::ld.sync.aligned;
        END:
        {_FREE}
        """,
        "nothing orders these accesses to tensor memory",
        threads=256,
    ),
    Kind(
        "register read before wgmma.wait_group",
        POISON,
        """
        shl.b32 r4, r60, 4; add.u32 r4, r4, r2; mov.u32 r5, 0;
        st.shared.v4.b32 [r4], {r5, r5, r5, r5}; st.shared.v4.b32 [r4+2048], {r5, r5, r5, r5};
        fence.proxy.async.shared::cta; bar.sync 0;
        shr.u32 r6, r2, 4; cvt.u64.u32 rd5, r6; or.b64 rd5, rd5, 0x0000001000080000;
        mov.u32 r10, r5; mov.u32 r11, r5; mov.u32 r12, r5; mov.u32 r13, r5; setp.ne.u32 p3, r60, r60;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {r10, r11, r12, r13}, rd5, rd5, p3, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned;
        <right> wgmma.wait_group.sync.aligned 0;
        add.u32 r31, r10, 1;
        <wrong> wgmma.wait_group.sync.aligned 0;
        """,
        "add.u32 r31, r10, 1",
        threads=128,
        one_sided=True,
        target="sm_90a",
    ),
    Kind(
        "mbarrier without init",
        "mbarrier",
        f"""
        <right> {_INIT}
        bar.sync 0; @p1 mbarrier.arrive.shared::cta.b64 _, [r1];
        """,
        "no initialised mbarrier",
        one_sided=True,
    ),
    Kind(
        "mbarrier used before its init is known",
        "mbarrier",
        f"""
        {_INIT}
        <right> bar.sync 0;
        setp.eq.u32 p3, r60, 32; @p3 nanosleep.u32 1; @p3 nanosleep.u32 1;
        @p3 mbarrier.arrive.shared::cta.b64 _, [r1];
        """,
        "before its init is known here",
    ),
    Kind(
        "mbarrier used by a copy without fence.mbarrier_init",
        "mbarrier",
        f"""
        {_INIT}
        <right> {_FENCE}
        bar.sync 0; ld.param.u64 rd1, [out];
        @!p1 bra END;
        {_COPY.format(expected=128)}
        {spin("r1", 0)}
        END:
        """,
        "fence.mbarrier_init",
    ),
    Kind(
        "init of an mbarrier in use",
        "mbarrier",
        """
        @!p1 bra END;
        mbarrier.init.shared::cta.b64 [r1], 2; mbarrier.arrive.shared::cta.b64 _, [r1];
        <right> mbarrier.inval.shared::cta.b64 [r1];
        mbarrier.init.shared::cta.b64 [r1], 2;
        END:
        """,
        "init of a live mbarrier",
        one_sided=True,
    ),
    Kind(
        "more arrivals than the phase takes",
        "mbarrier",
        """
        @!p1 bra END;
        mbarrier.init.shared::cta.b64 [r1], 2;
        <right> mbarrier.arrive.shared::cta.b64 _, [r1], 2;
        <wrong> mbarrier.arrive.shared::cta.b64 _, [r1], 3;
        END:
        """,
        "arrivals too many",
        one_sided=True,
    ),
    Kind(
        "a barrier that ran ahead of who waits for it",
        "mbarrier",
        f"""
        {_INIT}
        bar.sync 0;
        setp.eq.u32 p3, r60, 32;
        @p3 mbarrier.arrive.shared::cta.b64 _, [r1];
        <wrong> @p3 mbarrier.arrive.shared::cta.b64 _, [r1];
        <wrong> @p3 mbarrier.arrive.shared::cta.b64 _, [r1];
        bar.sync 1;
        {spin("r1", 0)}
        """,
        "3 phases are complete",
        one_sided=True,
    ),
    Kind(
        "wait for the wrong parity",
        "race",
        f"""
        {_INIT}
        st.shared.b32 [r3], r60; bar.sync 0;
        @!p2 bra READ;
        @p1 st.shared.b32 [r2], r60; @p1 mbarrier.arrive.shared::cta.b64 _, [r1];
        bra END;
        READ:
        <right> {spin("r1", 0)}
        <wrong> {spin("r1", 1)}
        nanosleep.u32 1; ld.shared.b32 r4, [r2];
        END:
        """,
        "nothing orders these accesses",
    ),
    Kind(
        "more bytes than an mbarrier counts",
        "mbarrier",
        f"""
        {_INIT}
        @!p1 bra END;
        <right> mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r1], 1048575;
        <wrong> mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r1], 1048576;
        END:
        """,
        "tx-count",
        one_sided=True,
    ),
    Kind(
        "more bytes than were announced",
        "mbarrier",
        f"""
        {_INIT}
        {_FENCE}
        bar.sync 0; ld.param.u64 rd1, [out];
        @!p1 bra END;
        <right> {_COPY.format(expected=128)}
        <right> {spin("r1", 0)}
        <wrong> {_COPY.format(expected=112)}
        <wrong> nanosleep.u32 1; nanosleep.u32 1;
        END:
        """,
        "16 bytes more than expect_tx announced",
        one_sided=True,
    ),
    Kind(
        "fewer bytes than were announced",
        DEADLOCK,
        f"""
        {_INIT}
        {_FENCE}
        bar.sync 0; ld.param.u64 rd1, [out];
        @!p1 bra END;
        <right> {_COPY.format(expected=128)}
        <wrong> {_COPY.format(expected=144)}
        {spin("r1", 0)}
        END:
        """,
        "16 B pending",
        one_sided=True,
    ),
    Kind(
        "tensor memory outside the allocation",
        "tmem",
        f"""
        {_ALLOC}
        <right> add.u32 r22, r22, 255;
        <wrong> add.u32 r22, r22, 256;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r60}}; tcgen05.wait::st.sync.aligned;
        {_FREE}
        """,
        "uses columns 256..256",
        threads=128,
        one_sided=True,
    ),
    Kind(
        "tensor memory that is not deallocated",
        "tmem",
        f"""
        {_ALLOC}
        <wrong> exit;
        {_FREE}
        """,
        "not deallocated",
        threads=128,
        one_sided=True,
    ),
    Kind(
        "tensor memory freed while it is used",
        "tensor",
        f"""
        {_ALLOC}
        tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r60}};
        <right> tcgen05.wait::st.sync.aligned;
        {_FREE}
        """,
        "tensor memory",
        threads=128,
    ),
    Kind(
        "shared memory out of bounds",
        "out-of-bounds",
        """
        <right> st.shared.b32 [r3], r60;
        <wrong> st.shared.b32 [r3+1000000], r60;
        """,
        one_sided=True,
    ),
    Kind(
        "global memory out of bounds",
        "out-of-bounds",
        """
        ld.param.u64 rd1, [out]; @!p1 bra END;
        <right> st.global.b32 [rd1+4092], r60;
        <wrong> st.global.b32 [rd1+4096], r60;
        END:
        """,
        one_sided=True,
    ),
    Kind(
        "misaligned access of shared memory",
        "misaligned",
        """
        <right> st.shared.v2.b32 [r2+8], {r60, r60}; bar.sync 0;
        <wrong> st.shared.v2.b32 [r2+4], {r60, r60}; bar.sync 0;
        """,
        threads=1,
        one_sided=True,
    ),
    Kind(
        "misaligned access of global memory",
        "misaligned",
        """
        ld.param.u64 rd1, [out];
        <right> st.global.b64 [rd1+8], rd1;
        <wrong> st.global.b64 [rd1+4], rd1;
        """,
        threads=1,
        one_sided=True,
    ),
    Kind(
        "read of shared memory never written",
        "uninitialised",
        """
        <right> st.shared.b32 [r3], r60;
        ld.shared.b32 r4, [r3];
        """,
        "read before any write",
        one_sided=True,
    ),
    Kind(
        "read of tensor memory never written",
        "uninitialised",
        f"""
        {_ALLOC}
        <right> tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r60}}; tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r30}}, [r22]; tcgen05.wait::ld.sync.aligned;
        {_FREE}
        """,
        "never written",
        threads=128,
        one_sided=True,
    ),
    Kind(
        "an .aligned instruction that some lanes never reach",
        DEADLOCK,
        f"""
        {_INIT}
        setp.lt.u32 p3, r60, 16;
        <wrong> @p3 bra HANG;
        bar.sync 0; bra END;
        HANG: {spin("r1", 0)}
        END:
        """,
        "lanes 16-31",
        threads=32,
        one_sided=True,
    ),
    Kind(
        "an .aligned instruction whose guard differs within the warp",
        "divergent",
        """
        <wrong> setp.eq.u32 p4, r60, 3;
        <right> setp.eq.u32 p4, r60, r60;
        @p4 mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {r4, r5, r6, r7}, {r60, r60}, {r60}, {r60, r60, r60, r60};
        """,
        "executed by lanes 3 of a warp with lanes 0-31",
        threads=32,
        one_sided=True,
    ),
    Kind(
        "deadlock",
        DEADLOCK,
        f"""
        {_INIT}
        bar.sync 0;
        <right> @p1 mbarrier.arrive.shared::cta.b64 _, [r1];
        {spin("r1", 0)}
        """,
        r"(?s)warp 0.*of mbarrier 0x.*warp 1.*1 of 1 arrivals pending",
        one_sided=True,
    ),
    Kind(
        "copy and bulk reduction of two CTAs into one place",
        "race",
        f"""
        mov.u32 r7, %cluster_ctarank; setp.eq.u32 p4, r7, 0; ld.param.u64 rd1, [out];
        st.shared.b32 [r3], r60; fence.proxy.async.shared::cta; bar.sync 0; and.pred p5, p1, p4; not.pred p4, p4; and.pred p6, p1, p4;
        @p5 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [rd1], [r2], 64;
        <wrong> @p6 cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2], 64;
        <right> @p6 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [rd1+32], [r2], 64;
        @p1 cp.async.bulk.commit_group; @p1 cp.async.bulk.wait_group 0;
        {_CLUSTER}
        """,
        "nothing orders these accesses",
        ctas=2,
    ),
    Kind(
        "bulk reduction and read that it is not ordered with",
        "race",
        f"""
        mov.u32 r7, %cluster_ctarank; ld.param.u64 rd1, [out];
        st.shared.b32 [r3], r60; fence.proxy.async.shared::cta; bar.sync 0;
        @p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [rd1], [r2], 64;
        @p1 cp.async.bulk.commit_group; @p1 cp.async.bulk.wait_group 0;
        <right> fence.proxy.async; {_CLUSTER}
        @p1 ld.global.b32 r8, [rd1];
        """,
        "nothing orders these accesses",
        ctas=2,
    ),
    Kind(
        "second arrival on the cluster's barrier before the wait",
        "barrier",
        """
        barrier.cluster.arrive;
        <right> barrier.cluster.wait; barrier.cluster.arrive; barrier.cluster.wait;
        <wrong> barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.wait;
        """,
        "barrier.cluster.wait is missing before it",
        ctas=2,
        one_sided=True,
    ),
    Kind(
        "wait at the cluster's barrier without an arrival",
        "barrier",
        """
        <right> barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        """,
        "barrier.cluster.arrive is missing",
        ctas=2,
        one_sided=True,
    ),
    Kind(
        "end of a CTA before its copy",
        "exit",
        """
        st.shared.b32 [r3], r60; fence.proxy.async.shared::cta; bar.sync 0;
        ld.param.u64 rd1, [out]; @!p1 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2], 128; cp.async.bulk.commit_group;
        <right> cp.async.bulk.wait_group.read 0;
        <wrong> nanosleep.u32 1; nanosleep.u32 1;
        END:
        """,
        "does not wait for its bulk store",
        one_sided=True,
    ),
)
