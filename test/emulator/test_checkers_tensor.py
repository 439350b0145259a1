"""The checkers on tensor memory and the tensor core: each kernel is correct, and wrong with one line less."""

from __future__ import annotations

import pytest

from attn_mlir.runtime.emulator import DeadlockError, KernelFault
from attn_mlir.validation.emulator.checked import findings_of, names_in, program, wait
from attn_mlir.validation.emulator.tensor_bench import ALLOC, DEALLOC

SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2)]

# Warps 0 to 3 store, warps 4 to 7 load the same lanes.
HAND_OVER = f"""
    {ALLOC}
    setp.lt.u32 p4, r60, 128; @!p4 bra SECOND;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r60}};
    <store_wait> tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r31}}, [r22];
    tcgen05.wait::ld.sync.aligned;
    <before> tcgen05.fence::before_thread_sync;
    SECOND:
    <barrier> bar.sync 0;
    @p4 bra END;
    <after> tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r30}}, [r22];
    <load_wait> tcgen05.wait::ld.sync.aligned;
    END:
    {DEALLOC}
"""

# One thread multiplies, four warps load the result and let it multiply again.
MULTIPLY = f"""
    {ALLOC}
    mov.u32 r8, {0x10 | 0x480 | 16 << 17 | 8 << 24};
    shr.u32 r6, r2, 4; cvt.u64.u32 rd5, r6; or.b64 rd5, rd5, 0x4000404000010000; mov.u64 rd6, rd5;
    mov.u32 r5, 0; shl.b32 r4, r60, 4; add.u32 r4, r4, r2;
    st.shared.v4.b32 [r4], {{r5, r5, r5, r5}}; st.shared.v4.b32 [r4+2048], {{r5, r5, r5, r5}};
    st.shared.v4.b32 [r4+4096], {{r5, r5, r5, r5}}; st.shared.v4.b32 [r4+6144], {{r5, r5, r5, r5}};
    st.shared.v4.b32 [r4+8192], {{r5, r5, r5, r5}}; st.shared.v4.b32 [r4+10240], {{r5, r5, r5, r5}};
    st.shared.v4.b32 [r4+12288], {{r5, r5, r5, r5}}; st.shared.v4.b32 [r4+14336], {{r5, r5, r5, r5}};
    <proxy> fence.proxy.async.shared::cta;
    <filled> bar.sync 0;
    setp.ne.u32 p3, r60, r60; setp.eq.u32 p5, r60, r60;
    setp.eq.u32 p6, r60, 32; @!p6 bra RESULT;
    tcgen05.mma.cta_group::1.kind::f16 [r20], rd5, rd6, r8, p3;
    tcgen05.mma.cta_group::1.kind::f16 [r20], rd5, rd6, r8, p5;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    RESULT:
    <result> {wait("r1", 0).replace(chr(10), " ")}
    <result_after> tcgen05.fence::after_thread_sync;
    bar.warp.sync -1;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r30}}, [r22];
    <loaded> tcgen05.wait::ld.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r31}}, [r22+1];
    <loaded2> tcgen05.wait::ld.sync.aligned;
    <loaded_before> tcgen05.fence::before_thread_sync;
    mbarrier.arrive.shared::cta.b64 _, [r1+8];
    @!p6 bra LAST;
    <again> {wait("r1+8", 0).replace(chr(10), " ")}
    <again_after> tcgen05.fence::after_thread_sync;
    tcgen05.mma.cta_group::1.kind::f16 [r20], rd5, rd6, r8, p3;
    <commit> tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1+16];
    <finished> {wait("r1+16", 0).replace(chr(10), " ")}
    LAST:
    bar.warp.sync -1;
    setp.eq.u32 p4, r61, 1; @p4 st.shared.b32 [r4], r5;
    {DEALLOC}
"""
BIG = (
    ".shared .align 8 .b8 bar[64];\n.shared .align 4 .b8 slot[16];\n"
    ".shared .align 1024 .b8 buffer[16384];"
)
KERNELS = {"hand_over": (HAND_OVER, 256), "multiply": (MULTIPLY, 128)}
OTHER = {
    ("hand_over", "barrier"): {"uninitialised", "tensor"},
    ("hand_over", "load_wait"): {"tensor"},
    ("hand_over", "store_wait"): {"tensor"},
    ("multiply", "proxy"): {"proxy"},
    ("multiply", "filled"): {"race"},
    ("multiply", "commit"): {"deadlock"},
    ("multiply", "finished"): {"tensor", "race"},
    ("multiply", "result"): {"tensor", "uninitialised"},
}
UNPROMISED = (
    "alloc_after",
    "before",
    "after",
    "free_before",
    "result_after",
    "loaded_before",
    "again_after",
)
HARMLESS = {
    ("multiply", "free_before"),  # the commit already carries all that is left
    ("multiply", "loaded"),  # the second wait covers both loads
}
CUTS = [(name, cut) for name, (body, _) in KERNELS.items() for cut in names_in(body)]


def _checks(name: str, cut: str = "", **options: object) -> set[str]:
    body, threads = KERNELS[name]
    text = program(body, cut, shared=BIG)
    try:
        return {f.check for f in findings_of(text, block=(threads, 1, 1), **options)}
    except KernelFault as fault:
        return {fault.kind}
    except DeadlockError:
        return {"deadlock"}


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_have_no_findings(name: str, schedule: str, seed: int) -> None:
    assert _checks(name, schedule=schedule, seed=seed) == set()


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_a_missing_line_is_found(name: str, cut: str) -> None:
    found = _checks(name, cut)
    if (name, cut) in HARMLESS:
        assert found == set()
    else:
        usual = {"unpromised"} if cut in UNPROMISED else {"tensor"}
        assert found & OTHER.get((name, cut), usual), found


def test_sums_with_tensor_memory_never_written_count_when_they_are_read() -> None:
    for columns, expected in ((8, 0), (16, 1)):
        found = findings_of(_added_columns(columns), block=(128, 1, 1), check="uninitialised")
        assert len(found) == expected, found
    assert "tcgen05.ld" in found[0].message and "columns 8..15" in found[0].place


def _added_columns(read: int) -> str:
    """Half of an accumulator of 16 columns is written, all are added to, some are read."""
    words = "{" + ", ".join(f"r{30 + n}" for n in range(8)) + "}"
    zeros = "{" + ", ".join(["r29"] * 8) + "}"
    loads = "".join(
        f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {words}, [r22+{column}];\n"
        for column in range(0, read, 8)
    )
    return program(f"""
    {ALLOC}
    @p1 st.bulk.weak.shared::cta [r2], 8192, 0; mov.u32 r29, 0;
    tcgen05.st.sync.aligned.32x32b.x8.b32 [r22], {zeros}; tcgen05.wait::st.sync.aligned;
    fence.proxy.async.shared::cta; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    shr.u32 r24, r2, 4; cvt.u64.u32 rd2, r24; or.b64 rd3, rd2, {8 << 16 | 16 << 32 | 1 << 46};
    mov.b32 r25, {1 << 4 | 1 << 7 | 1 << 10 | 16 >> 3 << 17 | 128 >> 4 << 24};
    @!p1 bra ISSUED;
    tcgen05.mma.cta_group::1.kind::f16 [r20], rd3, rd3, r25, p1;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    {wait("r1", 0)}
    ISSUED: tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    {loads} tcgen05.wait::ld.sync.aligned;
    {DEALLOC}
    """)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_commits_of_a_thread_complete_in_order_and_it_knows(schedule: str, seed: int) -> None:
    """The wait for the second commit tells of the first, whose own wait is left out."""
    body = f"""
    {ALLOC}
    @!p1 bra SKIP;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1+16];
    {wait("r1+16", 0)}
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    {wait("r1", 1)}

    SKIP: {DEALLOC}
    """
    text = program(body)
    assert findings_of(text, block=(128, 1, 1), schedule=schedule, seed=seed) == []
    unknown = text.replace(wait("r1+16", 0), "nanosleep.u32 1;\n" * 8)
    unknown = unknown.replace(wait("r1", 1), "nanosleep.u32 1;\n" * 8 + wait("r1", 1))
    found = findings_of(unknown, block=(128, 1, 1), check="mbarrier")
    assert [f.check for f in found] == ["mbarrier"]


def test_a_commit_arrives_in_its_own_cta_without_a_fence_of_the_init() -> None:
    """It goes through the generic proxy, and the barrier orders the init before it."""
    body = f"""
    {ALLOC.replace("fence.mbarrier_init.release.cluster;", "")}
    @!p1 bra SKIP;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    {wait("r1", 0)}
    SKIP: {DEALLOC}
    """
    assert findings_of(program(body), block=(128, 1, 1)) == []


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("data", ["r31", "r29"])
def test_what_was_loaded_may_be_stored_again_without_a_wait(
    data: str, schedule: str, seed: int
) -> None:
    """A store needs the registers of the load of its own columns, and another store lies between
    them; of a store that needs none of them nothing says that the load is over.

    PTX ISA, memory consistency of tcgen05: a register dependency on tcgen05.ld is respected.
    """
    text = program(f"""
    {ALLOC}
    mov.u32 r29, 7;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r29}};
    tcgen05.st.sync.aligned.32x32b.x1.b32 [r22+1], {{r29}}; tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r31}}, [r22+1];
    tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {{r29}};
    add.u32 r31, r31, 1;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [r22+1], {{{data}}};
    tcgen05.wait::ld.sync.aligned; tcgen05.wait::st.sync.aligned;
    {DEALLOC}
    """)
    found = findings_of(text, block=(128, 1, 1), schedule=schedule, seed=seed)
    assert {one.check for one in found} == {"unpromised" if data == "r31" else "tensor"}
