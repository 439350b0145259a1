"""Whole small kernels, launch checks, divergence."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import LaunchError, SpecError
from attn_mlir.runtime.emulator import (
    DeadlockError,
    Emulator,
    InstructionLimitError,
    KernelFault,
)
from attn_mlir.runtime.emulator.core.state import Unstarted
from attn_mlir.validation.emulator.ptx_bench import module, run_lanes, run_module

RNG = np.random.default_rng(6)

VECTOR_ADD = """
    mov.u32 r1, %ctaid.x; mov.u32 r2, %ntid.x; mov.u32 r3, %tid.x; mad.lo.u32 r4, r1, r2, r3;
    ld.param.u32 r5, [n]; setp.ge.u32 p1, r4, r5; @p1 ret;
    ld.param.u64 rd1, [a]; ld.param.u64 rd2, [b]; ld.param.u64 rd3, [c];
    mul.wide.u32 rd4, r4, 4; add.u64 rd1, rd1, rd4; add.u64 rd2, rd2, rd4; add.u64 rd3, rd3, rd4;
    ld.global.f32 r6, [rd1]; ld.global.f32 r7, [rd2]; add.f32 r8, r6, r7; st.global.f32 [rd3], r8;
"""
VECTOR_PARAMS = ".param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n"


@pytest.mark.parametrize(("count", "block"), [(1, 32), (100, 32), (1000, 128), (333, 77), (0, 32)])
def test_vector_add(count: int, block: int) -> None:
    a, b = RNG.standard_normal((2, max(count, 1))).astype(np.float32)
    c = np.zeros(max(count, 1), np.float32)
    stats = run_module(
        module(VECTOR_ADD, VECTOR_PARAMS),
        [a, b, c, count],
        grid=(-(-count // block),),
        block=(block,),
    )
    assert (c == (a + b if count else 0)).all()
    assert (stats.warp_instructions > 0) == (count > 0)


def test_reduction_with_shuffles() -> None:
    values = RNG.integers(0, 1000, 256).astype(np.uint32)
    out = np.zeros(1, np.uint32)
    steps = "".join(
        f"shfl.sync.bfly.b32 r5, r4, {offset}, 31, -1; add.u32 r4, r4, r5;"
        for offset in (16, 8, 4, 2, 1)
    )
    body = f"""
    mov.u32 r1, %tid.x; ld.param.u64 rd1, [a]; mad.wide.u32 rd2, r1, 4, rd1; ld.global.b32 r4, [rd2];
    {steps}
    and.b32 r6, r1, 31; shr.u32 r7, r1, 5; mov.u32 r8, partial; mad.lo.u32 r9, r7, 4, r8;
    setp.eq.u32 p1, r6, 0; @p1 st.shared.b32 [r9], r4;
    bar.sync 0; setp.ge.u32 p2, r1, 32; @p2 ret;
    mov.u32 r4, 0; setp.lt.u32 p3, r6, 8; mad.lo.u32 r9, r6, 4, r8; @p3 ld.shared.b32 r4, [r9];
    {steps}
    ld.param.u64 rd3, [out]; @p1 st.global.b32 [rd3], r4;
    """
    text = module(
        body, ".param .u64 a, .param .u64 out", before=".shared .align 4 .b8 partial[32];"
    )
    run_module(text, [values, out], block=(256, 1, 1), track_initialised=True)
    assert out[0] == values.sum()


# ---- divergence


def test_nested_branches() -> None:
    a = np.arange(64, dtype=np.uint32)
    body = """
    mov.u32 x, 0; and.b32 r1, a, 1; setp.eq.u32 p1, r1, 0; and.b32 r2, a, 2; setp.eq.u32 p2, r2, 0;
    @p1 bra EVEN;
    @p2 bra ODD_LOW; add.u32 x, x, 1000; bra ODD_END; ODD_LOW: add.u32 x, x, 2000;
    ODD_END: add.u32 x, x, 1; bra JOIN;
    EVEN: @!p2 bra EVEN_HIGH; add.u32 x, x, 3000; bra JOIN;
    EVEN_HIGH: add.u32 x, x, 4000;
    JOIN: add.u32 x, x, 7; activemask.b32 y;
    """
    x, y = run_lanes(body, [a], [np.uint32] * 2)
    for lane in range(64):
        odd, high = lane & 1, lane & 2
        want = (1001 if high else 2001) if odd else (4000 if high else 3000)
        assert x[lane] == want + 7
    assert (y == 0xFFFFFFFF).all()


@pytest.mark.parametrize(("schedule", "seed"), [("fair", 0), ("adversarial", 3)])
def test_loops_of_different_lengths(schedule: str, seed: int) -> None:
    a = RNG.integers(0, 20, 96).astype(np.uint32)
    body = """
    mov.u32 r1, 0; mov.u32 r2, 0;
    OUTER: setp.ge.u32 p1, r1, a; @p1 bra OUT;
    mov.u32 r3, 0;
    INNER: setp.ge.u32 p2, r3, r1; @p2 bra INNER_END; add.u32 r2, r2, r3; add.u32 r3, r3, 1; bra INNER;
    INNER_END: add.u32 r1, r1, 1; bra OUTER;
    OUT: mov.u32 x, r2; activemask.b32 y;
    """
    x, y = run_lanes(body, [a], [np.uint32] * 2, schedule=schedule, seed=seed)
    assert x.tolist() == [sum(j for i in range(n) for j in range(i)) for n in a.tolist()]
    assert (y == 0xFFFFFFFF).all()


def test_early_returns_leave_the_others_going() -> None:
    a = np.arange(32, dtype=np.uint32)
    out = np.zeros(32, np.uint32)
    body = """
    mov.u32 r1, %tid.x; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r1, 4, rd1;
    setp.lt.u32 p1, r1, 5; @p1 bra SMALL;
    setp.gt.u32 p2, r1, 20; @p2 ret;
    mov.u32 r2, 2; bra STORE;
    SMALL: setp.eq.u32 p3, r1, 3; @p3 exit; mov.u32 r2, 1;
    STORE: activemask.b32 r3; add.u32 r2, r2, r3; st.global.b32 [rd1], r2;
    """
    run_module(module(body, ".param .u64 out"), [out])
    alive = sum(1 << lane for lane in range(21) if lane != 3)
    want = np.where(a < 5, alive + 1, alive + 2)
    assert (out == np.where((a == 3) | (a > 20), 0, want)).all()


def test_indexed_branch() -> None:
    a = RNG.integers(0, 3, 64).astype(np.uint32)
    body = """
    TABLE: .branchtargets ZERO, ONE, TWO;
    brx.idx a, TABLE;
    ZERO: mov.u32 x, 100; bra END; ONE: mov.u32 x, 200; bra END; TWO: mov.u32 x, 300;
    END: activemask.b32 y;
    """
    x, y = run_lanes(body, [a], [np.uint32] * 2)
    assert (x == 100 * (a + 1)).all() and (y == 0xFFFFFFFF).all()


def test_registers_keep_inactive_lanes() -> None:
    a = np.arange(32, dtype=np.uint32)
    body = """
    mov.b64 rd1, {a, a}; mov.b64 rd2, rd1; mov.u32 x, 5; setp.lt.u32 p1, a, 9; mov.b32 r5, 0f3F800000; mov.b64 rd3, {r5, r5};
    @!p1 bra SKIP;
    add.u64 rd2, rd2, 1; mov.u32 x, a; add.rn.f32x2 rd3, rd3, rd3; setp.ge.u32 p1, a, 3;
    SKIP: selp.b32 r1, 1, 0, p1; mad.lo.u32 x, x, 10, r1; mov.b64 y, rd2; mov.b64 {z, r9}, rd3;
    """
    x, y, z = run_lanes(body, [a], [np.uint32, np.uint64, np.float32])
    inside = a < 9
    flag = inside & (a >= 3)
    assert (x == np.where(inside, a, 5) * 10 + flag).all()
    assert (y == a.astype(np.uint64) * 0x1_0000_0001 + inside).all()
    assert (z == np.where(inside, 2.0, 1.0)).all()


@pytest.mark.parametrize("access", ["st.global.u32 [rd1], r1;", "ld.global.u32 r1, [rd1];"])
def test_a_guarded_access_names_the_lane_of_the_warp(access: str) -> None:
    body = f"mov.u32 r1, %tid.x;\n mov.u64 rd1, 4;\n setp.gt.u32 p1, r1, 29;\n @p1 {access}"
    with pytest.raises(KernelFault, match=r"\(lane 30\)"):
        run_module(module(body), [], block=(32, 1, 1))


def test_trap_says_where() -> None:
    body = "mov.u32 r1, %tid.x;\n setp.eq.u32 p1, r1, 40;\n @p1 trap;"
    with pytest.raises(KernelFault, match="trap") as raised:
        run_module(module(body), [], block=(64, 1, 1))
    assert raised.value.kind == "trap" and raised.value.where.endswith("warp 1 lanes 8")


# ---- launch checks


CALLED = """
    .shared .align 16 .b8 u[16]; .shared .align 16 .b8 s[16];
    .func g(.param .b32 x) { .reg .b32 r1; .shared .b8 own[16]; mov.u32 r1, s; mov.u32 r1, own; ret; }
    .func f(.param .b32 x) { .reg .b32 r1; call g, (1); call f, (1); ret; }
"""


def _launch(**changes: Any) -> None:
    arguments: dict[str, Any] = {
        "entry": "k",
        "grid": (2, 1, 1),
        "block": (64, 1, 1),
        "params": [1, 2.5, bytes(128)],
    }
    directives = changes.pop("directives", "")
    before = changes.pop("before", "")
    body = changes.pop("body", "")
    arguments.update(changes)
    entry = arguments.pop("entry")
    params = ".param .u32 a, .param .f32 b, .param .align 64 .b8 c[128]"
    text = module(body, params, directives=directives, before=before)
    Emulator().launch(text, entry, **arguments)


def test_a_plain_launch_is_accepted() -> None:
    _launch()
    _launch(cluster=(2, 1, 1))
    _launch(shared_bytes=232448)
    _launch(params=[np.uint32(7), np.float32(1), np.zeros(32, np.uint32)])
    _launch(params=[-1, 3, bytearray(128)], directives=".reqntid 64, 1, 1")


def test_shared_variables_count_where_they_are_reached() -> None:
    """PTX ISA, shared state space: memory of the CTA that executes; what neither an entry nor its callees name it has not."""
    _launch(
        shared_bytes=232448, before=".shared .b8 s[200000]; .extern .shared .align 1024 .b8 d[];"
    )
    _launch(shared_bytes=232448, before=CALLED)
    _launch(shared_bytes=232448, body=".shared .b8 s[200000];")


def test_shared_variables_that_are_reached_lie_apart() -> None:
    shared = ".shared .b32 first; .shared .b32 idle[8]; .shared .b32 last;"
    body = "mov.u32 r1, first; mov.u32 r2, last; sub.u32 r3, r2, r1; ld.param.u64 rd1, [a]; st.global.u32 [rd1], r3;"
    apart = np.zeros(1, np.uint32)
    run_module(module(body, ".param .u64 a", before=shared), [apart], block=(1,))
    assert apart[0] == 4


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"entry": "q"}, "no entry 'q'; it has: k"),
        ({"params": [1, 2.0]}, "has 3 parameters, got 2"),
        ({"params": [1, 2.0, bytes(64)]}, "parameter 2 of 'k' has 128 bytes, got 64"),
        ({"params": [1, 2.0, 3]}, "is an aggregate of 128 bytes"),
        ({"params": [1.5, 2.0, bytes(128)]}, "type .u32: got 1.5"),
        ({"params": [1 << 32, 2.0, bytes(128)]}, "does not fit"),
        ({"block": (512, 3, 1)}, "1536 threads, 1024 are allowed"),
        ({"block": (0, 1, 1)}, r"block must be 1 to 1024 in x, got \(0, 1, 1\)"),
        ({"block": (1, 1, 65)}, "block must be 1 to 64 in z"),
        ({"block": 64}, "block must be one to three integers, got 64"),
        ({"block": (64.0,)}, "each number of block must be an integer, got 64.0"),
        ({"grid": (1, 65536)}, "grid must be 0 to 65535 in y"),
        ({"grid": None}, "grid must be one to three integers, got None"),
        ({"grid": (1, 1, 1, 1)}, "grid must be one to three integers, got 4 of them"),
        ({"shared_bytes": "16"}, "shared_bytes must be an integer, got '16'"),
        ({"shared_bytes": 10**5000}, "shared_bytes must be an integer"),
        ({"params": 7}, "params must be a sequence of parameters, got 7"),
        ({"params": ["1", 2.0, bytes(128)]}, "type .u32: got '1'"),
        ({"params": [1, None, bytes(128)]}, "type .f32: got None"),
        ({"params": [1, 1e300, bytes(128)]}, "type .f32: 1e[+]300 does not fit"),
        ({"params": [1, 2.0, np.array([None] * 16)]}, "an array of Python objects"),
        ({"entry": None}, "entry must be a str, got NoneType"),
        ({"sources": 3}, "sources must be a mapping, got int"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "does not divide the grid"),
        ({"grid": (32, 1, 1), "cluster": (32, 1, 1)}, "32 CTAs, 16 are allowed"),
        ({"shared_bytes": 232449}, "sm_100a gives 232448 B"),
        (
            {"shared_bytes": 232448, "before": ".shared .b8 s[16];", "body": "mov.u32 r1, s;"},
            "16 B static",
        ),
        (
            {"shared_bytes": 232448, "before": CALLED, "body": "call f, (1);"},
            "32 B static",
        ),
        ({"directives": ".reqntid 32, 1, 1"}, "requires a block of"),
        ({"directives": ".maxntid 32"}, "allows blocks up to"),
        (
            {"directives": ".reqnctapercluster 2, 1, 1", "cluster": (1, 1, 2), "grid": (2, 1, 2)},
            "requires clusters of",
        ),
    ],
)
def test_requests_that_do_not_fit_are_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(LaunchError, match=what):
        _launch(**changes)


def test_the_text_is_a_text() -> None:
    with pytest.raises(LaunchError, match="the PTX must be a str, got NoneType"):
        Emulator().launch(None, "k", grid=(1,), block=(32,))  # type: ignore[arg-type]


def test_cluster_from_the_kernels_directive() -> None:
    out = np.zeros(4, np.uint32)
    body = """
    mov.u32 r1, %cluster_nctarank; mov.u32 r2, %cluster_ctarank; mad.lo.u32 r3, r1, 10, r2; mov.u32 r4, %ctaid.x;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r4, 4, rd1; st.global.b32 [rd1], r3;
    """
    text = module(body, ".param .u64 out", directives=".explicitcluster .reqnctapercluster 2, 1, 1")
    run_module(text, [out], grid=(4, 1, 1), block=(1, 1, 1))
    assert out.tolist() == [20, 21, 20, 21]


def test_unknown_options_are_refused() -> None:
    with pytest.raises(SpecError, match="sm_100a or sm_103a or sm_90a"):
        Emulator(target="sm_80")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="fair or adversarial"):
        Emulator(schedule="random")  # type: ignore[arg-type]
    odd: list[tuple[dict[str, Any], str]] = [
        ({"numeric": "exact"}, "numeric 'exact' is unknown: float32 or fused"),
        ({"check_mode": None}, "check_mode None is unknown: raise or collect"),
        ({"check": 5}, "check must be a str or several, got int"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"resident": 0}, "resident must be at least 1, got 0"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"instruction_limit": 0}, "instruction_limit must be at least 1, got 0"),
    ]
    for options, what in odd:
        with pytest.raises(SpecError, match=what):
            Emulator(**options)


def test_parsing_is_done_once_per_text() -> None:
    text = module("mov.u32 r1, 0;")
    from attn_mlir.runtime.emulator.emulator import translated

    assert translated(text, "k", native=True) is translated(str(text), "k", native=True)


# ---- the limit of instructions


def test_a_loop_without_an_end_is_given_up_and_shown() -> None:
    text = module("setp.eq.u32 p1, %tid.x, 3; @p1 bra DONE;\nL: bra L;\nDONE:")
    with pytest.raises(InstructionLimitError) as raised:
        run_module(text, [], block=(64, 1, 1), grid=(5, 1, 1), instruction_limit=5000)
    message = str(raised.value)
    assert "5,000 warp-instructions" in message and "4 clusters have not started" in message
    assert "warp 0 lanes 0-2,4-31 at PTX line" in message and "L: bra L;" in message
    assert "warp 1 lanes 0-31" in message


def test_what_polls_in_vain_says_so_at_the_limit() -> None:
    body = """
    ld.param.u64 rd1, [flag];
    L: ld.relaxed.gpu.global.b32 r1, [rd1]; setp.eq.u32 p1, r1, 0; @p1 bra L;
    """
    with pytest.raises(DeadlockError, match="polling"):
        run_module(module(body, ".param .u64 flag"), [np.zeros(1, np.uint32)])


def test_a_limit_does_not_touch_what_ends_before_it() -> None:
    text = module("mov.u32 r1, 0; L: add.u32 r1, r1, 1; setp.lt.u32 p1, r1, 100; @p1 bra L;")
    needed = run_module(text, []).warp_instructions
    run_module(text, [], instruction_limit=needed)
    with pytest.raises(InstructionLimitError):
        run_module(text, [], instruction_limit=50)


def test_every_process_of_a_launch_has_the_limit() -> None:
    with pytest.raises(InstructionLimitError, match="L: bra L"):
        run_module(module("L: bra L;"), [], grid=(4, 1, 1), jobs=2, instruction_limit=5000)


def test_a_large_grid_takes_no_memory_before_it_starts() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InstructionLimitError):
            run_module(module(""), [], grid=(2**31 - 1, 65535, 65535), instruction_limit=9)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_clusters_start_in_order_and_jobs_share_all_of_them() -> None:
    every = [
        (2 * x, y, 3 * z) for z in range(2) for y in range(5) for x in range(4)
    ]  # of a grid of (8, 5, 6) in clusters of (2, 1, 3)
    taken = Unstarted((8, 5, 6), (2, 1, 3))
    assert [taken.take() for _ in range(taken.count)] == every and not taken.count
    shares = [Unstarted((8, 5, 6), (2, 1, 3)).share(part, 3) for part in range(3)]
    assert [[share.take() for _ in range(share.count)] for share in shares] == [
        every[part::3] for part in range(3)
    ]


def test_a_function_may_have_global_variables_of_its_own() -> None:
    """They hide those of the module, as any name of an inner scope does."""
    body = """
    .global .align 4 .u32 mine[2] = {30, 40};
    ld.param.u64 rd1, [out]; mov.u64 rd2, mine; ld.global.u32 r1, [rd2+4]; st.global.u32 [rd1], r1;
    """
    before = ".global .align 4 .u32 mine[2] = {1, 2};\n"
    out = np.zeros(1, np.uint32)
    run_module(module(body, ".param .u64 out", before=before), [out], block=(1, 1, 1))
    assert out[0] == 40


def test_a_kernel_without_instructions_ends() -> None:
    text = module("").replace("ret;", "")
    assert run_module(text, [], block=(64, 1, 1)).warp_instructions == 2
