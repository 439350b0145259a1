"""Warp collectives against per-lane loops, and barriers."""

from typing import Any

import numpy as np
import pytest

from attn_mlir.runtime.emulator import DeadlockError, KernelFault
from attn_mlir.validation.emulator.ptx_bench import Array, f32, module, run_lanes, run_module

RNG = np.random.default_rng(2)
LANES = np.arange(32, dtype=np.uint32)


def _shuffled(values: Array, mode: str, b: int, c: int) -> tuple[list[int], list[int]]:
    """shfl lane by lane, from the definition in the PTX manual."""
    result, inside = [], []
    for lane in range(32):
        bound, segment = c & 0x1F, c >> 8 & 0x1F
        top = (lane & segment) | (bound & ~segment & 0x1F)
        low = lane & segment
        if mode == "up":
            source = lane - (b & 31)
            ok = source >= top
        elif mode == "down":
            source = lane + (b & 31)
            ok = source <= top
        elif mode == "bfly":
            source = lane ^ (b & 31)
            ok = source <= top
        else:
            source = low | (b & 31 & ~segment)
            ok = source <= top
        inside.append(int(ok))
        result.append(int(values[source if ok else lane]))
    return result, inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("c", [0x1F, 0x0, 0x181F, 0x1C07])
def test_shfl(mode: str, c: int) -> None:
    values = RNG.integers(0, 1 << 31, 32, dtype=np.uint32)
    for b in (0, 1, 5, 16, 31):
        body = f"shfl.sync.{mode}.b32 x|p1, a, {b}, {c}, -1; selp.b32 y, 1, 0, p1;"
        body += f"mov.u32 r1, {b}; mov.u32 r2, {c}; shfl.sync.{mode}.b32 z, a, r1, r2, 0xffffffff;"
        x, y, z = run_lanes(body, [values], [np.uint32] * 3)
        want, inside = _shuffled(values, mode, b, c)
        assert x.tolist() == want == z.tolist(), (b, c)
        assert y.tolist() == inside


def test_shfl_with_a_source_per_lane() -> None:
    values = RNG.integers(0, 1 << 31, 32, dtype=np.uint32)
    source = RNG.permutation(32).astype(np.uint32)
    (x,) = run_lanes("shfl.sync.idx.b32 x, a, b, 31, -1;", [values, source], [np.uint32])
    assert (x == values[source]).all()


def test_votes() -> None:
    body = """
    setp.lt.u32 p1, a, 5; vote.sync.ballot.b32 x, p1, -1;
    vote.sync.any.pred p2, p1, -1; vote.sync.all.pred p3, p1, -1; setp.ge.u32 p4, a, 0; vote.sync.all.pred p5, p4, -1;
    vote.sync.uni.pred p6, p1, -1;
    selp.b32 r1, 1, 0, p2; selp.b32 r2, 2, 0, p3; selp.b32 r3, 4, 0, p5; selp.b32 r4, 8, 0, p6;
    or.b32 r1, r1, r2; or.b32 r3, r3, r4; or.b32 y, r1, r3; activemask.b32 z;
    """
    x, y, z = run_lanes(body, [LANES], [np.uint32] * 3)
    assert (x == 0x1F).all() and (y == 5).all() and (z == 0xFFFFFFFF).all()


def test_match() -> None:
    values = (LANES % 3).astype(np.uint32)
    body = "match.any.sync.b32 x, a, -1; match.all.sync.b32 y|p1, a, -1; mov.u32 r1, 7; match.all.sync.b32 z|p2, r1, -1;"
    x, y, z = run_lanes(body, [values], [np.uint32] * 3)
    for lane in range(32):
        assert int(x[lane]) == sum(1 << j for j in range(32) if j % 3 == lane % 3)
    assert not y.any() and (z == 0xFFFFFFFF).all()


@pytest.mark.parametrize("op", ["add", "min", "max", "and", "or", "xor"])
def test_redux(op: str) -> None:
    values = RNG.integers(0, 1 << 32, 32, dtype=np.uint64).astype(np.uint32)
    kind = "b32" if op in ("and", "or", "xor") else "s32"
    (x,) = run_lanes(f"redux.sync.{op}.{kind} x, a, -1;", [values], [np.uint32])
    numbers = values.view(np.int32) if kind == "s32" else values
    function: Any = {
        "add": lambda v: np.add.reduce(v, dtype=np.int32),
        "min": np.min,
        "max": np.max,
        "and": np.bitwise_and.reduce,
        "or": np.bitwise_or.reduce,
        "xor": np.bitwise_xor.reduce,
    }[op]
    assert (x.view(numbers.dtype) == function(numbers)).all()


def test_redux_of_floats() -> None:
    values = f32(*RNG.standard_normal(31), np.nan)
    body = "redux.sync.max.f32 x, a, -1; redux.sync.min.abs.f32 y, a, -1; redux.sync.max.NaN.f32 z, a, -1;"
    x, y, z = run_lanes(body, [values], [np.float32] * 3)
    assert (x == np.nanmax(values)).all() and (y == np.nanmin(np.abs(values))).all()
    assert np.isnan(z).all()


def test_elect_takes_the_lowest_lane() -> None:
    body = "elect.sync x|p1, -1; selp.b32 y, 1, 0, p1; mov.u32 z, 0; setp.ge.u32 p2, a, 7; @p2 elect.sync z|p3, 0xFFFFFF80;"
    x, y, z = run_lanes(body, [LANES], [np.uint32] * 3)
    assert not x.any() and y.tolist() == [1] + [0] * 31
    assert (z == np.where(LANES >= 7, 7, 0)).all()


def test_collective_in_a_branch_uses_its_lanes() -> None:
    body = """
    mov.u32 x, 0; setp.lt.u32 p1, a, 8; @!p1 bra SKIP;
    shfl.sync.bfly.b32 x, a, 1, 0x1f, 0xff;
    setp.eq.u32 p2, a, 3; vote.sync.ballot.b32 r1, p2, 0xff; shl.b32 r1, r1, 8; or.b32 x, x, r1;
    SKIP:
    """
    (x,) = run_lanes(body, [LANES], [np.uint32])
    assert x.tolist() == [(lane ^ 1) | 0x800 if lane < 8 else 0 for lane in range(32)]


def test_collective_meets_from_two_branches() -> None:
    """Lanes come to one shfl.sync at different times: the early ones wait for the others."""
    body = """
    setp.lt.u32 p1, a, 16;
    @p1 bra LOW;
    mul.lo.u32 r1, a, 10;
    bra MEET;
    LOW:
    add.u32 r1, a, 1000;
    MEET:
    shfl.sync.bfly.b32 x, r1, 16, 0x1f, -1;
    """
    (x,) = run_lanes(body, [LANES], [np.uint32])
    other = LANES ^ 16
    assert (x == np.where(other < 16, other + 1000, other * 10)).all()


def test_collective_gathers_lanes_that_have_no_common_meeting_place() -> None:
    """One branch may leave the kernel, so its lanes are not expected anywhere; they still come."""
    body = """
    mov.u32 r60, %tid.x; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1; ld.global.b32 r9, [rd1];
    setp.lt.u32 p1, r60, 16;
    @p1 bra LOW;
    mul.lo.u32 r1, r60, 10;
    bra MEET;
    LOW:
    setp.gt.u32 p2, r9, 5000; @p2 bra GONE;
    add.u32 r1, r60, 1000;
    MEET:
    shfl.sync.bfly.b32 r2, r1, 16, 0x1f, -1;
    redux.sync.add.s32 r3, r60, -1; add.u32 r2, r2, r3;
    st.global.b32 [rd1], r2; ret;
    GONE:
    mov.u32 r2, 1; st.global.b32 [rd1], r2;
    """
    other = LANES ^ 16
    want = np.where(other < 16, other + 1000, other * 10) + 496
    for schedule, seed in (("fair", 0), ("adversarial", 1), ("adversarial", 2)):
        out = np.zeros(32, np.uint32)
        run_module(module(body, ".param .u64 out"), [out], schedule=schedule, seed=seed)
        assert (out == want).all()
    out = np.zeros(32, np.uint32)
    out[3] = 9999  # lane 3 leaves: the collectives go on without it
    run_module(module(body, ".param .u64 out"), [out])
    keep = np.delete(np.arange(32), [3, 19])
    assert out[3] == 1 and (out[keep] == want[keep] - 3).all()


def test_collective_that_some_lanes_never_reach_is_a_deadlock() -> None:
    body = """
    mov.u32 r1, %tid.x; setp.lt.u32 p1, r1, 16; @p1 bra SPIN;
    shfl.sync.bfly.b32 r2, r1, 1, 0x1f, -1;
    bra END;
    SPIN: bar.sync 3, 64;
    END:
    """
    with pytest.raises(DeadlockError, match="lanes missing"):
        run_module(module(body), [])


# ---- barriers


def test_bar_sync_orders_all_warps() -> None:
    body = """
    mov.u32 r60, %tid.x; mov.u32 r1, buffer; shl.b32 r2, r60, 2; add.u32 r3, r1, r2;
    st.shared.b32 [r3], r60; bar.sync 0;
    mov.u32 r4, 255; sub.u32 r4, r4, r60; mad.lo.u32 r5, r4, 4, r1; ld.shared.b32 r6, [r5];
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1; st.global.b32 [rd1], r6;
    """
    text = module(body, ".param .u64 out", before=".shared .align 4 .b8 buffer[1024];")
    for seed in range(4):
        out = np.zeros(256, np.uint32)
        run_module(text, [out], block=(256, 1, 1), schedule="adversarial", seed=seed)
        assert (out == 255 - np.arange(256)).all()


def test_named_barriers_hand_over_between_warps() -> None:
    body = """
    mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; mov.u32 r1, buffer;
    ld.param.u64 rd1, [out];
    setp.eq.u32 p1, r61, 0; @p1 bra CONSUMER;
    mad.lo.u32 r2, r60, 4, r1; mul.lo.u32 r3, r60, 3; st.shared.b32 [r2], r3;
    bar.arrive 5, 64; bra END;
    CONSUMER:
    bar.sync 5, 64;
    mad.lo.u32 r2, r60, 4, r1; ld.shared.b32 r3, [r2+128];
    mad.wide.u32 rd1, r60, 4, rd1; st.global.b32 [rd1], r3;
    END:
    """
    text = module(body, ".param .u64 out", before=".shared .align 4 .b8 buffer[256];")
    for seed in range(4):
        out = np.zeros(32, np.uint32)
        run_module(text, [out], block=(64, 1, 1), schedule="adversarial", seed=seed)
        assert (out == 3 * np.arange(32, 64)).all()


def test_barrier_reductions() -> None:
    body = """
    mov.u32 r60, %tid.x; setp.lt.u32 p1, r60, 40; setp.lt.u32 p2, r60, 500;
    bar.red.popc.u32 r1, 0, p1; bar.red.and.pred p3, 0, p2; bar.red.or.pred p4, 0, p1; bar.red.and.pred p5, 0, p1;
    selp.b32 r2, 1000, 0, p3; selp.b32 r3, 2000, 0, p4; selp.b32 r4, 4000, 0, p5;
    add.u32 r1, r1, r2; add.u32 r3, r3, r4; add.u32 r1, r1, r3;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1; st.global.b32 [rd1], r1;
    """
    out = np.zeros(96, np.uint32)
    run_module(module(body, ".param .u64 out"), [out], block=(96, 1, 1))
    assert (out == 3040).all()


def test_exited_warps_count_at_the_cta_barrier() -> None:
    body = """
    mov.u32 r60, %tid.x; setp.ge.u32 p1, r60, 40; @p1 exit;
    bar.sync 0;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1; st.global.b32 [rd1], 1;
    """.replace("st.global.b32 [rd1], 1", "mov.u32 r1, 1; st.global.b32 [rd1], r1")
    out = np.zeros(96, np.uint32)
    run_module(module(body, ".param .u64 out"), [out], block=(96, 1, 1))
    assert out.sum() == 40


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("bar.sync 1, 48;", "multiples of 32"),
        ("mov.u32 r1, 17; mov.u32 r2, 32; barrier.sync r1, r2;", "barrier number"),
    ],
)
def test_barrier_misuse(body: str, what: str) -> None:
    with pytest.raises(KernelFault, match=what):
        run_module(module(body), [])


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_a_named_barrier_counts_threads_and_not_who_they_are(seed: int | None) -> None:
    """Four warps wait for 160 threads: one of them arrives once more beforehand."""
    body = """
    mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1;
    mov.u32 r2, buffer; mad.lo.u32 r3, r60, 4, r2; xor.b32 r4, r3, 256;
    mov.u32 r5, 0;
    LOOP: mad.lo.u32 r6, r5, 1000, r60; st.shared.b32 [r3], r6;
    setp.eq.u32 p1, r61, 2; @p1 bar.arrive 1, 160;
    bar.sync 1, 160; ld.shared.b32 r7, [r4]; bar.sync 0;
    add.u32 r5, r5, 1; setp.lt.u32 p2, r5, 3; @p2 bra LOOP;
    st.global.b32 [rd1], r7;
    """
    out = np.zeros(128, np.uint32)
    text = module(body, ".param .u64 out", before=".shared .align 512 .b8 buffer[512];")
    schedule = {"schedule": "fair"} if seed is None else {"schedule": "adversarial", "seed": seed}
    run_module(text, [out], block=(128, 1, 1), check="all", **schedule)
    assert (out == 2000 + (np.arange(128) ^ 64)).all()


def test_arrivals_alone_complete_a_named_barrier() -> None:
    body = """
    mov.u32 r60, %tid.x; setp.lt.u32 p1, r60, 32; @p1 bra WAITS;
    bar.arrive 3, 128; bar.arrive 3, 128; bar.arrive 3, 128; bra END;
    WAITS: bar.sync 3, 128;
    END:
    """
    run_module(module(body), [], block=(64, 1, 1), check="all")
    with pytest.raises(DeadlockError, match="64 of 128 threads arrived .warps 0, 1."):
        run_module(module(body.replace("bar.arrive 3, 128; " * 2, "")), [], block=(64, 1, 1))


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_the_nth_wait_of_a_cluster_barrier_belongs_to_the_nth_arrival(seed: int | None) -> None:
    """CTA 0 arrives twice before it waits; its second wait is for what CTA 1 does in between."""
    body = """
    mov.u32 r1, %cluster_ctarank; mov.u32 r2, word; mov.u32 r3, 0; mapa.shared::cluster.u32 r4, r2, r3;
    setp.ne.u32 p1, r1, 0; @p1 bra OTHER;
    barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.wait;
    ld.shared.b32 r5, [r2]; ld.param.u64 rd1, [out]; st.global.b32 [rd1], r5; bra END;
    OTHER: barrier.cluster.arrive; barrier.cluster.wait; mov.u32 r6, 7;
    st.shared::cluster.b32 [r4], r6; barrier.cluster.arrive; barrier.cluster.wait;
    END:
    """
    out = np.zeros(1, np.uint32)
    text = module(body, ".param .u64 out", before=".shared .align 4 .b8 word[4];")
    schedule = {"schedule": "fair"} if seed is None else {"schedule": "adversarial", "seed": seed}
    run_module(text, [out], grid=(2, 1, 1), cluster=(2, 1, 1), **schedule)
    assert out[0] == 7


def test_barrier_counts_must_agree() -> None:
    body = """
    mov.u32 r60, %tid.x; setp.lt.u32 p1, r60, 32; @p1 bra A; bar.sync 1, 96; bra END;
    A: bar.sync 1, 64;
    END:
    """
    with pytest.raises(KernelFault, match="were said before in this phase"):
        run_module(module(body), [], block=(64, 1, 1))


def test_cluster_barrier_and_remote_shared_memory() -> None:
    body = """
    mov.u32 r60, %tid.x; mov.u32 r1, buffer; mov.u32 r2, %cluster_ctarank; mov.u32 r9, %cluster_nctarank;
    mad.lo.u32 r3, r2, 100, r60; mad.lo.u32 r4, r60, 4, r1; st.shared.b32 [r4], r3;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    add.u32 r5, r2, 1; rem.u32 r5, r5, r9;
    mapa.shared::cluster.u32 r6, r4, r5; ld.shared::cluster.b32 r7, [r6];
    getctarank.shared::cluster.u32 r8, r6; mad.lo.u32 r7, r8, 10000, r7;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 r10, %ctaid.x; mad.lo.u32 r11, r10, 32, r60;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r11, 4, rd1; st.global.b32 [rd1], r7;
    """
    text = module(body, ".param .u64 out", before=".shared .align 4 .b8 buffer[128];")
    for schedule in ("fair", "adversarial"):
        out = np.zeros((8, 32), np.uint32)
        run_module(text, [out], grid=(8, 1, 1), cluster=(4, 1, 1), schedule=schedule)
        peer = (np.arange(8) + 1) % 4
        assert (out == peer[:, None] * 10100 + np.arange(32)).all()


def test_generic_mapa_reaches_the_peer() -> None:
    body = """
    mov.u32 r2, %cluster_ctarank; mov.u32 r1, buffer; cvt.u64.u32 rd2, r1; cvta.shared.u64 rd3, rd2;
    xor.b32 r3, r2, 1; mapa.u64 rd4, rd3, r3; st.b32 [rd4], r2;
    barrier.cluster.arrive; barrier.cluster.wait;
    ld.shared.b32 r5, [r1]; mov.u32 r6, %ctaid.x;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r6, 4, rd1; st.global.b32 [rd1], r5;
    """
    out = np.zeros(2, np.uint32)
    text = module(body, ".param .u64 out", before=".shared .align 4 .b8 buffer[128];")
    run_module(text, [out], grid=(2, 1, 1), cluster=(2, 1, 1), block=(1, 1, 1))
    assert out.tolist() == [1, 0]
