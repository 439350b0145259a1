"""mbarrier instructions: phases, tokens, transactions, misuse."""

import numpy as np
import pytest

from attn_mlir.runtime.emulator import DeadlockError, KernelFault, PtxError
from attn_mlir.validation.emulator.ptx_bench import (
    BARRIER,
    PRODUCER_CONSUMER,
    module,
    run_module,
    wait,
)


def run_text(body: str, count: int, threads: int = 32, **options: object) -> np.ndarray:
    """Run with one output array `out` of uint32 (rd1 holds its address)."""
    out = np.zeros(count, np.uint32)
    text = module("ld.param.u64 rd1, [out];\n" + body, ".param .u64 out", before=BARRIER)
    run_module(text, [out], block=(threads, 1, 1), **options)  # type: ignore[arg-type]
    return out


def test_parity_on_a_fresh_barrier() -> None:
    body = """
    mov.u32 r1, bar; mbarrier.init.shared::cta.b64 [r1], 1;
    mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], 1; selp.b32 r2, 1, 0, p1;
    mbarrier.test_wait.parity.shared::cta.b64 p2, [r1], 0; selp.b32 r3, 1, 0, p2;
    mbarrier.arrive.shared::cta.b64 rd2, [r1];
    mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], 0; selp.b32 r4, 1, 0, p1;
    mbarrier.test_wait.parity.shared::cta.b64 p2, [r1], 1; selp.b32 r5, 1, 0, p2;
    mbarrier.test_wait.shared::cta.b64 p3, [r1], rd2; selp.b32 r6, 1, 0, p3;
    st.global.v4.b32 [rd1], {r2, r3, r4, r5}; st.global.b32 [rd1+16], r6;
    """
    assert run_text(body, 5, threads=1).tolist() == [1, 0, 1, 0, 1]


def test_tokens_and_pending_counts() -> None:
    body = """
    mov.u32 r1, bar; mbarrier.init.shared::cta.b64 [r1], 5;
    mbarrier.arrive.shared::cta.b64 rd2, [r1], 2; mbarrier.pending_count.b64 r2, rd2;
    mbarrier.arrive.noComplete.shared::cta.b64 rd3, [r1], 1; mbarrier.pending_count.b64 r3, rd3;
    mbarrier.arrive_drop.shared::cta.b64 rd4, [r1]; mbarrier.pending_count.b64 r4, rd4;
    mbarrier.test_wait.shared::cta.b64 p1, [r1], rd2; selp.b32 r5, 1, 0, p1;
    mbarrier.arrive.shared::cta.b64 _, [r1];
    mbarrier.test_wait.shared::cta.b64 p1, [r1], rd2; selp.b32 r6, 1, 0, p1;
    mbarrier.arrive.shared::cta.b64 rd5, [r1]; mbarrier.pending_count.b64 r7, rd5;
    st.global.v4.b32 [rd1], {r2, r3, r4, r5}; st.global.v2.b32 [rd1+16], {r6, r7};
    """
    assert run_text(body, 6, threads=1).tolist() == [5, 3, 2, 0, 1, 4]


def test_initial_bits_follow_the_encoding() -> None:
    body = """
    mov.u32 r1, bar; mbarrier.init.shared::cta.b64 [r1], 1;
    mbarrier.arrive.shared::cta.b64 rd2, [r1]; st.global.b64 [rd1], rd2;
    """
    out = run_text(body, 2, threads=1)
    assert out.view(np.uint64)[0] == 0x7FFFF800001FFFFE


def test_transactions_keep_a_phase_open() -> None:
    body = """
    mov.u32 r1, bar; mbarrier.init.shared::cta.b64 [r1], 1;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r1], 64;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 96;
    mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], 0; selp.b32 r2, 1, 0, p1;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r1], 8;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r1], 40;
    mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], 0; selp.b32 r3, 1, 0, p1;
    st.global.v2.b32 [rd1], {r2, r3};
    """
    assert run_text(body, 2, threads=1).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_ring_of_one_slot(seed: int) -> None:
    out = run_text(PRODUCER_CONSUMER, 32, threads=64, schedule="adversarial", seed=seed)
    assert (out == 2100 + 7 * (np.arange(32) ^ 1)).all()


def test_ring_of_one_slot_runs_without_polling() -> None:
    out = np.zeros(32, np.uint32)
    text = module(
        "ld.param.u64 rd1, [out];\n" + PRODUCER_CONSUMER, ".param .u64 out", before=BARRIER
    )
    stats = run_module(text, [out], block=(64, 1, 1))
    assert (out == 2100 + 7 * (np.arange(32) ^ 1)).all()
    # A blocked wait is not executed again and again: every loop turn costs the same.
    assert stats.warp_instructions < 2 * 60 * 7


def test_remote_arrival() -> None:
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r2, %cluster_ctarank; mov.u32 r1, bar;
    setp.eq.u32 p1, r60, 0; @p1 mbarrier.init.shared::cta.b64 [r1], 32;
    fence.mbarrier_init.release.cluster; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 r3, r2, 1; mapa.shared::cluster.u32 r4, r1, r3;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r4];
    {wait("r1", "0")}
    mov.u32 r5, 1; mov.u32 r6, %ctaid.x; mad.lo.u32 r6, r6, 32, r60; mad.wide.u32 rd2, r6, 4, rd1; st.global.b32 [rd2], r5;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    out = run_text(body, 64, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert out.all()


def test_deadlock_report_names_each_warp_and_its_barrier() -> None:
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r1, bar;
    setp.eq.u32 p1, r60, 0; @p1 mbarrier.init.shared::cta.b64 [r1+16], 3;
    bar.sync 0; setp.ge.u32 p2, r60, 32; @p2 bra OTHER;
    @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1+16], 128;
    {wait("r1+16", "0")}
    bra END;
    OTHER: bar.sync 7, 64;
    END:
    """
    with pytest.raises(DeadlockError) as raised:
        run_text(body, 1, threads=64)
    text = str(raised.value)
    assert len(raised.value.waiting) == 2
    assert "warp 0" in text and "parity 0 of mbarrier 0x410" in text
    assert "phase 0 (parity 0), 2 of 3 arrivals pending, 128 B pending" in text
    assert "mbarrier.try_wait.parity.shared::cta.b64 P1, [r1+16], 0;" in text
    assert "warp 1" in text and "named barrier 7: 32 of 64 threads arrived (warps 1)" in text


def test_a_peek_that_fails_lets_the_thread_go_on() -> None:
    """try_wait may give up: the thread must then be able to do what completes the phase."""
    body = f"""
    mov.u32 r1, bar; mbarrier.init.shared::cta.b64 [r1], 1;
    mbarrier.try_wait.parity.shared::cta.b64 p1, [r1], 0;
    @!p1 mbarrier.arrive.shared::cta.b64 _, [r1];
    {wait("r1", "0")}
    selp.b32 r2, 1, 2, p1; st.global.b32 [rd1], r2;
    """
    assert run_text(body, 1, threads=1).tolist() == [2]


def test_polling_a_barrier_that_nobody_completes_is_a_deadlock() -> None:
    body = """
    mov.u32 r1, bar; mbarrier.init.shared::cta.b64 [r1], 1;
    AGAIN: mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], 0; @!p1 bra AGAIN;
    """
    with pytest.raises(DeadlockError):
        run_text(body, 1, threads=1)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("mbarrier.arrive.shared::cta.b64 _, [r1];", "no initialised mbarrier"),
        ("mbarrier.init.shared::cta.b64 [r1+4], 1;", "misaligned"),
        ("mbarrier.init.shared::cta.b64 [r1], 0;", "init count"),
        (
            "mbarrier.init.shared::cta.b64 [r1], 1; mbarrier.arrive.shared::cta.b64 _, [r1], 2;",
            "arrivals too many",
        ),
        (
            "mbarrier.init.shared::cta.b64 [r1], 1; mbarrier.inval.shared::cta.b64 [r1];"
            "mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], 0;",
            "no initialised mbarrier",
        ),
        (
            "mbarrier.init.shared::cta.b64 [r1], 1;"
            "mbarrier.arrive.noComplete.shared::cta.b64 rd2, [r1], 1;",
            "would end the phase",
        ),
    ],
)
def test_misuse(body: str, what: str) -> None:
    with pytest.raises(KernelFault, match=what):
        run_text("mov.u32 r1, bar; " + body, 1, threads=1)


def test_a_parity_is_zero_or_one() -> None:
    with pytest.raises(PtxError, match="parity is 0 or 1"):
        run_text("mov.u32 r1, bar; mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], 2;", 1)
