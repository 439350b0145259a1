"""Tensor memory and the tensor core end to end, against numpy products."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.runtime.emulator import DeadlockError, Emulator, KernelFault
from attn_mlir.validation.emulator.ptx_bench import module, run_module, tensor_map_bytes, wait

RNG = np.random.default_rng(4)
SHARED = ".shared .align 8 .b8 bar[64];\n.shared .align 4 .b8 slot[16];\n.extern .shared .align 1024 .b8 tiles[];"
SCHEDULES = [("fair", 0), *(("adversarial", seed) for seed in range(1, 5))]


def alloc(columns: int, group: int = 1) -> str:
    """Warp 0 allocates; r20 is the address in all threads."""
    return f"""
    mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; mov.u32 r19, slot; mov.u32 r1, bar; setp.eq.u32 p1, r60, 0;
    setp.ne.u32 p7, r61, 0; @p7 bra ALLOCATED;
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [r19], {columns};
    tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
    ALLOCATED:
    @p1 mbarrier.init.shared::cta.b64 [r1], 1; @p1 mbarrier.init.shared::cta.b64 [r1+8], 1;
    fence.mbarrier_init.release.cluster;
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    ld.shared.b32 r20, [r19];
    """


def dealloc(columns: int, group: int = 1) -> str:
    return f"""
    bar.sync 0; @p7 bra FREED;
    tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 r20, {columns};
    FREED:
    """


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_store_and_load_tensor_memory(schedule: str, seed: int) -> None:
    out = np.zeros((128, 8), np.uint32)
    body = f"""
    {alloc(32)}
    shl.b32 r21, r61, 21; add.u32 r22, r20, r21;
    mul.lo.u32 r2, r60, 10; add.u32 r3, r2, 1; add.u32 r4, r2, 2; add.u32 r5, r2, 3;
    tcgen05.st.sync.aligned.32x32b.x4.b32 [r22], {{r2, r3, r4, r5}};
    tcgen05.st.sync.aligned.32x32b.x2.b32 [r22+4], {{r5, r4}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {{r30, r31, r32, r33}}, [r22];
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r34}}, [r22+4];
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r35}}, [r22+5];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 32, rd1;
    st.global.v4.b32 [rd1], {{r30, r31, r32, r33}}; st.global.v2.b32 [rd1+16], {{r34, r35}};
    {dealloc(32)}
    """
    text = module(body, ".param .u64 out", before=SHARED)
    run_module(text, [out], block=(128, 1, 1), shared_bytes=1024, schedule=schedule, seed=seed)
    t = 10 * np.arange(128)
    assert (out[:, :6] == np.stack([t, t + 1, t + 2, t + 3, t + 3, t + 2], axis=1)).all()


LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r3}, [r20];"
OTHER = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r5}, [r20];"
USE = "add.u32 r4, r3, 1;"
WAIT = "tcgen05.wait::ld.sync.aligned;"


@pytest.mark.parametrize(
    "body",
    [
        f"{LOAD} {WAIT} {USE}",
        f"{LOAD} {USE}",
        f"{LOAD} {USE} {WAIT}",
        f"{LOAD} {OTHER} {USE} {WAIT}",
        f"{LOAD} setp.eq.u32 p4, r60, 99; @p4 bra L; {USE} L: {WAIT}",
        f"{LOAD} setp.eq.u32 p4, r60, 99; @p4 bra L; {WAIT} L: {USE}",
        f"{LOAD} setp.ne.u32 p4, r60, 99; @p4 bra L; {WAIT} L: {USE}",
        f"{OTHER} {WAIT} {LOAD} {USE}",
        f"{LOAD} {USE} setp.ne.u32 p4, r60, 99; @p4 bra L; {OTHER} L: {WAIT}",
    ],
)
@pytest.mark.parametrize(
    ("schedule", "seed"), [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
)
def test_a_register_dependency_is_respected_without_the_wait(
    body: str, schedule: str, seed: int
) -> None:
    text = module(
        f"""
        ld.param.u64 rd1, [out]; mov.u32 r60, %tid.x; mad.wide.u32 rd1, r60, 4, rd1;
        {alloc(32)}
        tcgen05.st.sync.aligned.32x32b.x1.b32 [r20], {{r60}}; tcgen05.wait::st.sync.aligned;
        {body}
        {dealloc(32)}
        st.global.b32 [rd1], r4;
        """,
        ".param .u64 out",
        before=SHARED,
    )
    out = np.zeros(32, np.uint32)
    run_module(text, [out], shared_bytes=1024, schedule=schedule, seed=seed)
    assert (out == np.arange(1, 33)).all()


def test_instructions_of_one_line_keep_their_registers() -> None:
    body = f"""
    ld.param.u64 rd1, [out]; {alloc(32)} mad.wide.u32 rd1, r60, 8, rd1; mov.u32 r2, 7;
    tcgen05.st.sync.aligned.32x32b.x2.b32 [r20], {{r60, r2}}; tcgen05.wait::st.sync.aligned; add.u32 r21, r20, 1;
    {LOAD} {OTHER.replace("r20", "r21")} {WAIT} st.global.v2.b32 [rd1], {{r3, r5}}; {dealloc(32)}
    """
    out = np.zeros((32, 2), np.uint32)
    for _ in range(2):  # in the second launch everything has been translated before it runs
        out[:] = 0
        run_module(module(body, ".param .u64 out", before=SHARED), [out], shared_bytes=1024)
        assert (out[:, 0] == np.arange(32)).all() and (out[:, 1] == 7).all()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("add.u32 r4, r20, 40; tcgen05.st.sync.aligned.32x32b.x1.b32 [r4], {r3};", "tmem"),
        ("mov.u32 r4, %laneid; add.u32 r4, r4, r20; tcgen05.st.sync.aligned.32x32b.x1.b32 [r4], {r3};", "differs"),
        ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 r20, 64;", "tmem"),
        ("exit;", "not deallocated"),
    ],
)  # fmt: skip
def test_misuse_of_tensor_memory(body: str, what: str) -> None:
    with pytest.raises(KernelFault, match=what):
        run_module(
            module(f"{alloc(32)}\n{body}\n{dealloc(32)}", before=SHARED), [], shared_bytes=1024
        )


def test_allocation_that_never_fits_is_a_deadlock() -> None:
    body = alloc(512).replace(
        "tcgen05.relinquish_alloc_permit",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r19+4], 32;\n    tcgen05.relinquish_alloc_permit",
    )
    with pytest.raises(DeadlockError, match="32 columns of tensor memory"):
        run_module(module(body, before=SHARED), [], shared_bytes=1024)


def _gemm(k: int, m: int, n: int, *, b_mn_major: bool) -> str:
    """One CTA: D[m, n] = A[m, k] B, 128B swizzle, one TMA box per 64 columns."""
    a_bytes, b_bytes = m * 128, (64 * n * 2 if b_mn_major else n * 128)
    idesc = 0x10 | 0x480 | (n >> 3) << 17 | (m >> 4) << 24 | (b_mn_major << 16)
    issue = []
    for chunk in range(k // 64):
        offset = chunk * (a_bytes + b_bytes)
        issue.append(f"mov.u32 r3, {64 * chunk}; mov.u32 r4, 0;")
        issue.append(
            f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r2+{offset}], [rd21, {{r3, r4}}], [r1];"
        )
        if b_mn_major:
            issue += [
                f"mov.u32 r5, {64 * group}; cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                f"[r2+{offset + a_bytes + group * 8192}], [rd23, {{r5, r3}}], [r1];"
                for group in range(n // 64)
            ]
        else:
            issue.append(
                f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r2+{offset + a_bytes}], [rd23, {{r3, r4}}], [r1];"
            )
    mma = []
    lbo = 8192 >> 4 if b_mn_major else 1
    for chunk in range(k // 64):
        offset = chunk * (a_bytes + b_bytes)
        for step in range(4):
            b_step = step * (2048 if b_mn_major else 32)
            mma.append(
                f"add.u32 r6, r2, {offset + step * 32}; shr.u32 r6, r6, 4; cvt.u64.u32 rd5, r6; or.b64 rd5, rd5, 0x4000404000010000;"
                f"add.u32 r7, r2, {offset + a_bytes + b_step}; shr.u32 r7, r7, 4; cvt.u64.u32 rd6, r7; or.b64 rd6, rd6, {0x4000404000000000 | lbo << 16:#x};"
                f"setp.ne.u32 p3, r6, r6; {'setp.eq.u32 p3, r6, r6;' if chunk or step else ''}"
                f"tcgen05.mma.cta_group::1.kind::f16 [r20], rd5, rd6, r8, p3;"
            )
    total = (k // 64) * (a_bytes + b_bytes)
    load = "".join(
        f"""
        tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{", ".join(f"r{30 + i}" for i in range(16))}}}, [r22+{column}];
        tcgen05.wait::ld.sync.aligned;
        {"".join(f"st.global.v4.b32 [rd1+{4 * (column + i)}], {{r{30 + i}, r{31 + i}, r{32 + i}, r{33 + i}}};" for i in (0, 4, 8, 12))}
        """
        for column in range(0, n, 16)
    )
    return f"""
    {alloc(256)}
    mov.u32 r2, tiles; mov.u64 rd20, mapa; cvta.param.u64 rd21, rd20; mov.u64 rd22, mapb; cvta.param.u64 rd23, rd22;
    @p7 bra EPILOGUE;
    elect.sync r9|p2, -1; @!p2 bra EPILOGUE;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], {total};
    {chr(10).join(issue)}
    {wait("r1", 0)}
    mov.u32 r8, {idesc};
    {chr(10).join(mma)}
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1+8];
    EPILOGUE:
    {wait("r1+8", 0)}
    tcgen05.fence::after_thread_sync;
    shl.b32 r21, r61, 21; add.u32 r22, r20, r21; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, {4 * n}, rd1;
    {load}
    {dealloc(256)}
    """


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("b_mn_major", [False, True])
def test_gemm_of_one_cta(schedule: str, seed: int, b_mn_major: bool) -> None:
    m, n, k = 128, 128, 128
    a = RNG.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    b = RNG.standard_normal((n, k)).astype(ml_dtypes.bfloat16)
    stored = np.ascontiguousarray(b.T) if b_mn_major else b
    out = np.full((m, n), np.nan, np.float32)
    emulator = Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    map_a = tensor_map_bytes(emulator.map(a), (k, m), (2 * k,), (64, m), swizzle=3)
    rows = stored.shape
    box = (64, 64) if b_mn_major else (64, n)
    map_b = tensor_map_bytes(
        emulator.map(stored), (rows[1], rows[0]), (2 * rows[1],), box, swizzle=3
    )
    params = ".param .align 64 .b8 mapa[128], .param .align 64 .b8 mapb[128], .param .u64 out"
    text = module(_gemm(k, m, n, b_mn_major=b_mn_major), params, before=SHARED)
    stats = run_module(
        text, [map_a, map_b, out], block=(128, 1, 1), shared_bytes=68 * 1024, emulator=emulator
    )
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(out - want).max() < 1e-4
    assert stats.mma_count == 8


def test_product_with_a_in_tensor_memory() -> None:
    """P (registers, packed bf16) to tensor memory, then P V with V in shared memory, MN-major."""
    p = RNG.standard_normal((128, 16)).astype(ml_dtypes.bfloat16)
    v = RNG.standard_normal((16, 64)).astype(ml_dtypes.bfloat16)
    out = np.full((128, 64), np.nan, np.float32)
    idesc = 0x10 | 0x480 | (64 >> 3) << 17 | (128 >> 4) << 24 | 1 << 16
    descriptor = 0x4000404000000000 | (8192 >> 4) << 16
    registers = ", ".join(f"r{30 + i}" for i in range(8))
    body = f"""
    {alloc(128)}
    mov.u32 r2, tiles; mov.u64 rd20, mapv; cvta.param.u64 rd21, rd20;
    @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 2048; mov.u32 r3, 0;
    @p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [r2], [rd21, {{r3, r3}}], [r1];
    ld.param.u64 rd1, [p]; mad.wide.u32 rd1, r60, 32, rd1;
    ld.global.v4.b32 {{r30, r31, r32, r33}}, [rd1]; ld.global.v4.b32 {{r34, r35, r36, r37}}, [rd1+16];
    shl.b32 r21, r61, 21; add.u32 r22, r20, r21;
    tcgen05.st.sync.aligned.32x32b.x8.b32 [r22+64], {{{registers}}};
    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0;
    @!p1 bra DONE;
    {wait("r1", 0)}
    tcgen05.fence::after_thread_sync;
    shr.u32 r6, r2, 4; cvt.u64.u32 rd6, r6; or.b64 rd6, rd6, {descriptor:#x}; mov.u32 r8, {idesc};
    tcgen05.mma.cta_group::1.kind::f16 [r20], [r20+64], rd6, r8, 0;
    tcgen05.mma.cta_group::1.kind::f16 [r20], [r20+64], rd6, r8, 1;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1+8];
    DONE:
    {wait("r1+8", 0)}
    tcgen05.fence::after_thread_sync; ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r60, 256, rd2;
    """
    for column in range(0, 64, 8):
        body += f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{registers}}}, [r22+{column}]; tcgen05.wait::ld.sync.aligned;"
        body += f"st.global.v8.b32 [rd2+{4 * column}], {{{registers}}};"
    body += dealloc(128)
    params = ".param .align 64 .b8 mapv[128], .param .u64 p, .param .u64 out"
    text = module(body, params, before=SHARED)
    for schedule, seed in SCHEDULES:
        emulator = Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]
        tmap = tensor_map_bytes(emulator.map(v), (64, 16), (128,), (64, 16), swizzle=3)
        out[:] = np.nan
        run_module(text, [tmap, p, out], block=(128, 1, 1), shared_bytes=4096, emulator=emulator)
        want = 2 * (p.astype(np.float64) @ v.astype(np.float64))
        assert np.abs(out - want).max() < 1e-4


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_product_of_a_cta_pair(schedule: str, seed: int) -> None:
    """Section 15.3 with K = 64: each CTA loads its half, the even one multiplies for both."""
    m = n = 256
    a = RNG.standard_normal((m, 64)).astype(ml_dtypes.bfloat16)
    b = RNG.standard_normal((n, 64)).astype(ml_dtypes.bfloat16)
    out = np.full((m, n), np.nan, np.float32)
    registers = ", ".join(f"r{30 + i}" for i in range(8))
    steps = "\n".join(
        f"add.u32 r6, r2, {32 * step}; shr.u32 r6, r6, 4; and.b32 r6, r6, 0x3FFF; cvt.u64.u32 rd5, r6; or.b64 rd5, rd5, 0x4000404000010000;"
        f"add.u32 r7, r2, {16384 + 32 * step}; shr.u32 r7, r7, 4; and.b32 r7, r7, 0x3FFF; cvt.u64.u32 rd6, r7; or.b64 rd6, rd6, 0x4000404000010000;"
        f"tcgen05.mma.cta_group::2.kind::f16 [r20], rd5, rd6, r8, {int(step > 0)};"
        for step in range(4)
    )
    body = f"""
    {alloc(256, 2)}
    mov.u32 r25, %cluster_ctarank; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 r2, tiles; mov.u64 rd20, mapa; cvta.param.u64 rd21, rd20; mov.u64 rd22, mapb; cvta.param.u64 rd23, rd22;
    setp.eq.u32 p2, r25, 0; and.pred p3, p1, p2;
    @!p1 bra LOADED;
    @p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 65536;
    mov.u32 r3, 0; shl.b32 r4, r25, 7; and.b32 r5, r1, 0xFEFFFFFF; add.u32 r24, r2, 16384;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [r2], [rd21, {{r3, r4}}], [r5];
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [r24], [rd23, {{r3, r4}}], [r5];
    @!p3 bra LOADED;
    {wait("r1", 0)}
    mov.u32 r8, 0x10400490;
    {steps}
    mov.u16 h1, 3;
    tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r1+8], h1;
    LOADED:
    {wait("r1+8", 0)}
    tcgen05.fence::after_thread_sync;
    shl.b32 r21, r61, 21; add.u32 r22, r20, r21; mad.lo.u32 r26, r25, 128, r60;
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r26, 1024, rd2;
    """
    for column in range(0, 256, 8):
        body += f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{registers}}}, [r22+{column}]; tcgen05.wait::ld.sync.aligned;"
        body += f"st.global.v8.b32 [rd2+{4 * column}], {{{registers}}};\n"
    body += "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" + dealloc(256, 2)
    params = ".param .align 64 .b8 mapa[128], .param .align 64 .b8 mapb[128], .param .u64 out"
    text = module(
        body, params, before=SHARED, directives=".explicitcluster .reqnctapercluster 2, 1, 1"
    )
    emulator = Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    maps = [
        tensor_map_bytes(emulator.map(x), (64, 256), (128,), (64, 128), swizzle=3) for x in (a, b)
    ]
    run_module(
        text, [*maps, out], grid=(2, 1, 1), block=(128, 1, 1), shared_bytes=40960, emulator=emulator
    )
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(out - want).max() < 1e-4


PAIR = ".explicitcluster .reqnctapercluster 2, 1, 1"


def free_pair(group: int = 2, **options: Any) -> None:
    """Both CTAs of a pair allocate and deallocate twice, the first time with `group`."""
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    again = "@p7 bra AGAIN; tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [r19], 32;"
    body = f"""
    mov.u32 r25, %cluster_ctarank;
    {alloc(32, 2).replace("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;", "")}
    {meet} {dealloc(32, group)} {meet}
    {again} AGAIN: bar.sync 0; ld.shared.b32 r20, [r19];
    {meet} {dealloc(32, 2).replace("FREED", "FREED2")}
    """
    text = module(body, before=SHARED, directives=PAIR)
    run_module(text, [], grid=(2, 1, 1), block=(64, 1, 1), shared_bytes=1024, **options)


@pytest.mark.parametrize("seed", range(6))
def test_a_pair_deallocates_together(seed: int) -> None:
    free_pair(schedule="adversarial", seed=seed)
    free_pair()


def test_dealloc_may_wait_for_the_pair() -> None:
    """CTA 1 comes to its dealloc only when CTA 0 is through: right only where dealloc does not wait."""
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = f"""
    mov.u32 r25, %cluster_ctarank; setp.eq.u32 p5, r25, 1;
    {alloc(32, 2)} {meet} @p5 bra LATER; {dealloc(32, 2)} {meet} bra.uni END;
    LATER: {meet} {dealloc(32, 2).replace("FREED", "FREED2")}
    END:
    """
    text = module(body, before=SHARED, directives=PAIR)
    ends: list[bool] = []
    for seed in range(8):
        try:
            run_module(
                text, [], grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1), shared_bytes=1024,
                schedule="adversarial", seed=seed,
            )  # fmt: skip
        except DeadlockError as error:
            assert "waits for its pair to deallocate columns 0+32" in str(error)
            ends.append(False)
        else:
            ends.append(True)
    assert set(ends) == {True, False}


def test_dealloc_of_another_cta_group() -> None:
    with pytest.raises(KernelFault, match=r"cta_group::1 of columns that cta_group::2 allocated"):
        free_pair(group=1)


def test_copy_from_shared_to_tensor_memory() -> None:
    out = np.zeros((128, 4), np.uint32)
    body = f"""
    {alloc(32)}
    mov.u32 r2, tiles; mad.lo.u32 r3, r60, 16, r2; mul.lo.u32 r4, r60, 4;
    add.u32 r5, r4, 1; add.u32 r6, r4, 2; add.u32 r7, r4, 3; st.shared.v4.b32 [r3], {{r4, r5, r6, r7}};
    fence.proxy.async.shared::cta; bar.sync 0;
    @!p1 bra COPIED;
    shr.u32 r8, r2, 4; cvt.u64.u32 rd5, r8; or.b64 rd5, rd5, 0x0000400800010000;
    tcgen05.cp.cta_group::1.128x128b [r20], rd5;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    COPIED:
    {wait("r1", 0)}
    tcgen05.fence::after_thread_sync;
    shl.b32 r21, r61, 21; add.u32 r22, r20, r21;
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {{r30, r31, r32, r33}}, [r22]; tcgen05.wait::ld.sync.aligned;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 16, rd1; st.global.v4.b32 [rd1], {{r30, r31, r32, r33}};
    {dealloc(32)}
    """
    text = module(body, ".param .u64 out", before=SHARED)
    run_module(text, [out], block=(128, 1, 1), shared_bytes=4096)
    assert (out.reshape(-1) == np.arange(512)).all()


def test_a_product_that_is_not_awaited_is_seen_missing() -> None:
    """Without the commit's wait, some schedule reads D before the product has been formed."""
    body = f"""
    {alloc(32)}
    mov.u32 r2, tiles; mov.u32 r9, 0; mad.lo.u32 r3, r60, 16, r2;
    mov.b32 r10, 0x3F803F80; st.shared.v4.b32 [r3], {{r10, r10, r10, r10}}; st.shared.v4.b32 [r3+2048], {{r10, r10, r10, r10}};
    st.shared.v4.b32 [r3+4096], {{r10, r10, r10, r10}}; st.shared.v4.b32 [r3+6144], {{r10, r10, r10, r10}};
    shl.b32 r21, r61, 21; add.u32 r22, r20, r21; mov.u32 r23, 0;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r23}}; tcgen05.wait::st.sync.aligned;
    fence.proxy.async.shared::cta; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    shr.u32 r8, r2, 4; cvt.u64.u32 rd5, r8; or.b64 rd5, rd5, 0x0000401000800000; mov.u32 r11, 0x08020490;
    @p1 tcgen05.mma.cta_group::1.kind::f16 [r20], rd5, rd5, r11, 0;
    @p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    bar.sync 0;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r30}}, [r22]; tcgen05.wait::ld.sync.aligned;
    {wait("r1", 0)}
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1; st.global.b32 [rd1], r30;
    {dealloc(32)}
    """
    text = module(body, ".param .u64 out", before=SHARED)
    seen = set()
    for seed in range(10):
        out = np.zeros(128, np.float32)
        run_module(
            text, [out], block=(128, 1, 1), shared_bytes=8192, schedule="adversarial", seed=seed
        )
        seen |= set(out.tolist())
    assert seen == {0.0, 16.0}
