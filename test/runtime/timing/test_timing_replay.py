"""Clocks of small Hopper kernels: known latencies and rates, sums that agree, and the limit."""

from __future__ import annotations

import pytest

from attn_mlir.runtime.timing import report
from attn_mlir.validation.emulator.timed_kernels import kernel, measured, replay, used

pytestmark = pytest.mark.ptxas

COPIES = 64


def _independent(text: str, count: int = COPIES, chains: int = 12) -> str:
    return "".join(text.format(n % chains) for n in range(count))


def test_dependent_multiply_adds_take_four_clocks_each() -> None:
    step = "fma.rn.f32 %f0, %f0, %f70, %f70;\n"
    few, many = (
        measured(replay(kernel("mov.f32 %f0, %f70;\n" + step * count + used(1))))
        for count in (COPIES, 2 * COPIES)
    )
    assert many - few == pytest.approx(4 * COPIES, abs=2)


@pytest.mark.parametrize(("warps", "clocks"), [(4, 8), (8, 16), (12, 24)])
def test_warps_of_a_partition_share_the_special_function_unit(warps: int, clocks: int) -> None:
    def span(count: int) -> float:
        start = "".join(f"add.f32 %f{n}, %f70, 0f{0x3F800000 + n:08X};\n" for n in range(12))
        step = _independent("ex2.approx.ftz.f32 %f{0}, %f{0};\n", count)
        replayed = replay(kernel(start + step + used(12), threads=32 * warps), threads=32 * warps)
        assert report(replayed, {}).units[0].name.startswith("XU")
        return max(one.clocks[1] for one in replayed.warps)

    assert span(4 * COPIES) - span(2 * COPIES) == pytest.approx(2 * clocks * COPIES, rel=0.03)


def _products(count: int, columns: int) -> str:
    sums = ", ".join(f"%f{n}" for n in range(columns // 2))
    zeros = "".join(f"mov.f32 %f{n}, 0f00000000;\n" for n in range(columns // 2))
    one = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{sums}}}, %d2, %d2, "
        "1, 1, 1, 0, 0;\n"
    )
    return f"""{zeros}
shr.u32 %r5, %r4, 4;
cvt.u64.u32 %d2, %r5;
or.b64 %d2, %d2, 0x4000004000010000;
wgmma.fence.sync.aligned;
{one * count}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{used(columns // 2)}"""


@pytest.mark.parametrize(("columns", "service"), [(128, 64), (64, 32)])
def test_products_take_half_their_columns_and_are_the_limit(columns: int, service: int) -> None:
    few, many = (replay(kernel(_products(count, columns)), smem_bytes=65536) for count in (16, 48))
    assert (measured(many) - measured(few)) / 32 == pytest.approx(service, rel=0.03)
    result = report(many, {})
    assert result.units[0].name == "tensor core"
    assert many.multiprocessors[0].tensor.line.busy == pytest.approx(48 * service, rel=0.03)


def test_a_result_is_there_when_the_tensor_core_is_drained() -> None:
    ptx = kernel(_products(1, 128))
    plain, slow = (measured(replay(ptx, smem_bytes=65536, tensor_drain=t)) for t in (24.0, 74.0))
    assert slow - plain == 50


PING_PONG = """
add.u32 %r5, %r4, 8;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r4], 1;
@%p1 mbarrier.init.shared.b64 [%r5], 1;
bar.sync 0;
setp.eq.u32 %p4, %r0, 0;
setp.eq.u32 %p5, %r0, 32;
mov.u32 %r12, 0;
@%p4 bra FIRST;
@%p5 bra SECOND;
bra END;
FIRST:
mbarrier.arrive.shared.b64 _, [%r4];
and.b32 %r13, %r12, 1;
WAIT_A:
mbarrier.try_wait.parity.shared.b64 %p3, [%r5], %r13;
@!%p3 bra WAIT_A;
add.u32 %r12, %r12, 1;
setp.lt.u32 %p0, %r12, ROUNDS;
@%p0 bra FIRST;
bra END;
SECOND:
and.b32 %r13, %r12, 1;
WAIT_B:
mbarrier.try_wait.parity.shared.b64 %p3, [%r4], %r13;
@!%p3 bra WAIT_B;
mbarrier.arrive.shared.b64 _, [%r5];
add.u32 %r12, %r12, 1;
setp.lt.u32 %p0, %r12, ROUNDS;
@%p0 bra SECOND;
END:
"""


def test_a_hop_between_warps_costs_what_the_constants_say() -> None:
    ptx = kernel(PING_PONG.replace("ROUNDS", "32"))
    plain, slow = replay(ptx, smem_bytes=1024), replay(ptx, smem_bytes=1024, wake_latency=133)
    assert measured(slow) - measured(plain) == pytest.approx(64 * 100, rel=0.05)
    waits = report(plain, {}).roles[0].lost
    assert any(cause.startswith("mbarrier") for cause in waits)


def test_turns_of_a_loop_are_counted() -> None:
    replayed = replay(kernel(PING_PONG.replace("ROUNDS", "32")), smem_bytes=1024)
    turns = [len(times) for one in replayed.warps[:2] for times in one.loops.values()]
    assert turns == [31, 31]


def test_issued_instructions_stalls_and_losses_are_all_of_the_time() -> None:
    chain = "fma.rn.f32 %f0, %f0, %f70, %f70;\nex2.approx.ftz.f32 %f0, %f0;\n" * 8
    body = "mov.f32 %f0, %f70;\n" + chain + "bar.sync 0;\n" + used(1)
    for warp in replay(kernel(body, threads=256), threads=256).warps:
        total = warp.issued + warp.stalls + sum(warp.lost.values())
        assert total == pytest.approx(warp.end - warp.begin)
        assert not warp.is_cut


def test_lanes_that_part_issue_both_sides() -> None:
    one = "ex2.approx.ftz.f32 %f0, %f0;\nst.volatile.shared.f32 [%r4], %f0;\n" * 12
    other = one.replace("ex2", "lg2").replace("[%r4]", "[%r4+8]")
    body = f"""
setp.lt.u32 %p1, %r0, 7;
mov.f32 %f0, %f70;
@%p1 bra SIDE;
{one}
bra MEET;
SIDE:
{other}
MEET:
bar.sync 0;
"""
    ptx = kernel(body + used(1))
    warps = replay(ptx, smem_bytes=1024).warps
    assert warps[0].issued > warps[1].issued + 20
    assert not any(one.is_stuck or one.is_cut for one in warps)


def test_fma_instructions_take_register_ports_from_products() -> None:
    """Multiply-adds of eight chains begin when the products are in the queue, which they stop."""
    work = "".join(f"fma.rn.f32 %f{n % 8}, %f{n % 8}, %f70, %f70;\n" for n in range(COPIES))
    start = "".join(f"add.f32 %f{n}, %f70, 0f{0x3F800000 + n:08X};\n" for n in range(8))
    commit = "wgmma.commit_group"
    products = _products(7, 128).replace(commit, f"bar.arrive 1, 256;\n{commit}")
    body = f"""setp.gt.u32 %p1, %r1, 3;
@%p1 bra COMPUTE;
{products}
bra END;
COMPUTE:
bar.sync 1, 256;
{start}{work * 16}{used(8)}
END:
"""
    beside = replay(kernel(body, threads=256), threads=256, smem_bytes=65536)
    alone = replay(kernel(_products(7, 128)), smem_bytes=65536)
    assert alone.multiprocessors[0].tensor.slowed == 0
    assert beside.multiprocessors[0].tensor.slowed > 400


def test_special_functions_take_turns_with_the_steps_of_a_product() -> None:
    start = "".join(f"add.f32 %f{n}, %f70, 0f{0x3F800000 + n:08X};\n" for n in range(12))
    work = "".join(f"ex2.approx.ftz.f32 %f{n % 12}, %f{n % 12};\n" for n in range(4 * COPIES))
    body = f"""setp.gt.u32 %p1, %r1, 3;
@%p1 bra COMPUTE;
{_products(64, 64)}
bra END;
COMPUTE:
{start}{work}{used(12)}
END:
"""
    lost = {
        hold: replay(kernel(body, threads=256), threads=256, smem_bytes=65536, tensor_hold=hold)
        for hold in (0.0, 3.0)
    }
    ends = {hold: max(one.end for one in run.warps[4:]) for hold, run in lost.items()}
    assert ends[3.0] - ends[0.0] > 2 * COPIES
