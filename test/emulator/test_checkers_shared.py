"""Races and proxies in shared and global memory: each kernel is correct, and wrong with one line less."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.emulator import DeadlockError, Emulator, KernelFault
from attn_mlir.runtime.emulator.checkers import CheckError, Finding
from attn_mlir.validation.emulator.checked import findings_of, line_of, names_in, program, wait
from attn_mlir.validation.emulator.ptx_bench import run_module

SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
INIT = """
    @p1 mbarrier.init.shared::cta.b64 [r1], {count}; @p1 mbarrier.init.shared::cta.b64 [r1+8], 1;
    <init_fence> fence.mbarrier_init.release.cluster;
    <init_barrier> bar.sync 0;
"""

WARPS = """
    @!p2 bra READ;
    st.shared.b32 [r3], r60;
    READ:
    <barrier> bar.sync 0;
    @p2 bra END;
    ld.shared.b32 r4, [r3+-128];
    <again> bar.sync 1, 32;
    xor.b32 r5, r3, 4; st.shared.b32 [r5+-128], r4;
    END:
"""
LANES = """
    st.shared.b32 [r3], r60;
    <sync> bar.warp.sync -1;
    xor.b32 r5, r3, 4; ld.shared.b32 r4, [r5];
"""
MBARRIER = f"""
    {INIT.format(count=32)}
    @!p2 bra READ;
    st.shared.b32 [r3], r60;
    mbarrier.arrive.shared::cta.b64 _, [r1];
    bra END;
    READ:
    <wait> {wait("r1", 0).replace(chr(10), " ")}
    ld.shared.b32 r4, [r3+-128];
    END:
"""
STORE = """
    st.shared.b32 [r3], r60;
    <fence> fence.proxy.async.shared::cta;
    <sync> bar.warp.sync -1;
    ld.param.u64 rd1, [out];
    @!p1 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2], 128;
    <commit> cp.async.bulk.commit_group;
    <wait> cp.async.bulk.wait_group.read 0;
    st.shared.b32 [r2], r60;
    END:
"""
LOAD = f"""
    {INIT.format(count=1)}
    ld.param.u64 rd1, [out];
    @!p1 bra READ;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 128;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2], [rd1], 128, [r1];
    READ:
    <wait> {wait("r1", 0).replace(chr(10), " ")}
    @p2 ld.shared.b32 r4, [r3];
    <fence> fence.proxy.async.shared::cta;
    <before> bar.sync 0;
    @!p1 bra END;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1+8], 128;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2], [rd1], 128, [r1+8];
    <end> {wait("r1+8", 0).replace(chr(10), " ")}
    END:
"""
COPY = """
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1;
    @!p2 bra READ;
    cp.async.ca.shared.global [r3], [rd1], 4;
    cp.async.commit_group;
    <wait> cp.async.wait_group 0;
    READ:
    <barrier> bar.sync 0;
    @p2 bra END;
    ld.shared.b32 r4, [r3+-128];
    END:
"""
GLOBAL = """
    ld.param.u64 rd1, [out]; mad.wide.u32 rd2, r60, 4, rd1;
    @!p2 bra READ;
    st.global.b32 [rd2], r60;
    READ:
    <barrier> bar.sync 0;
    @p2 bra END;
    ld.global.b32 r4, [rd2+-128];
    END:
"""
BROADCAST = """
    @p1 st.shared.b32 [r2], r60;
    <first> bar.sync 0;
    ld.shared.b32 r4, [r2];
    <second> bar.sync 0;
    @p1 st.shared.b32 [r2], r4;
"""
KERNELS = {
    "warps": (WARPS, "race"),
    "lanes": (LANES, "race"),
    "mbarrier": (MBARRIER, "race"),
    "store": (STORE, "race"),
    "load": (LOAD, "race"),
    "copy": (COPY, "race"),
    "global": (GLOBAL, "race"),
    "broadcast": (BROADCAST, "race"),
}
OTHER = {
    ("store", "fence"): "proxy",
    ("load", "fence"): "proxy",
    ("load", "end"): "exit",
    ("load", "init_fence"): "mbarrier",
    ("load", "init_barrier"): "mbarrier",
    ("mbarrier", "init_barrier"): "mbarrier",
}
HARMLESS = {("mbarrier", "init_fence")}  # threads of the own CTA need no fence
CUTS = [(name, cut) for name, (body, _) in KERNELS.items() for cut in names_in(body)]


def _run(name: str, cut: str = "", **options: object) -> tuple[str, list[Finding]]:
    text = program(KERNELS[name][0], cut, ".param .u64 out")
    block = 32 if name in ("lanes", "store") else 64
    out = np.zeros(4096, np.uint8)
    return text, findings_of(text, [out], block=(block, 1, 1), **options)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_have_no_findings(name: str, schedule: str, seed: int) -> None:
    assert _run(name, schedule=schedule, seed=seed)[1] == []


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_a_missing_line_is_found(name: str, cut: str) -> None:
    found = _run(name, cut, check="race proxy mbarrier exit")[1]
    if (name, cut) in HARMLESS:
        assert found == []
        return
    expected = OTHER.get((name, cut), KERNELS[name][1])
    assert expected in {finding.check for finding in found}


def test_a_finding_names_lines_threads_and_bytes() -> None:
    text, found = _run("warps", "barrier")
    finding = found[0]
    assert finding.earlier is not None
    assert finding.check == "race" and "shared memory of cta (0,0,0)" in finding.place
    assert finding.current.line == line_of(text, "ld.shared.b32 r4, [r3+-128]")
    assert finding.earlier.line == line_of(text, "st.shared.b32 [r3], r60")
    assert "warp 1 lane" in finding.current.who and "warp 0 lane" in finding.earlier.who
    assert 0x400 <= finding.address < 0x400 + 8192 + 2048 and finding.byte_count == 128


def test_the_first_finding_ends_the_launch_unless_collected() -> None:
    text = program(WARPS, "barrier")
    emulator = Emulator(check="race")
    with pytest.raises(CheckError, match="race") as raised:
        emulator.launch(text, "k", grid=(1,), block=(64,))
    assert raised.value.kind == "race" and raised.value.findings == tuple(emulator.findings)
    assert raised.value.line == line_of(text, "ld.shared.b32 r4, [r3+-128]")


@pytest.mark.parametrize(
    ("check", "count"), [("none", 0), ("proxy", 0), ("race", 1), (["mbarrier", "race"], 1)]
)
def test_checks_are_chosen_by_name(check: object, count: int) -> None:
    text = program(GLOBAL, "barrier", ".param .u64 out")
    out = np.zeros(64, np.uint32)
    assert len(findings_of(text, [out], block=(64, 1, 1), check=check)) == count  # type: ignore[arg-type]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SpecError, match="check 'races' is unknown: all, none, race"):
        Emulator(check="races")
    with pytest.raises(SpecError, match="check_mode 'log' is unknown"):
        Emulator(check_mode="log")  # type: ignore[arg-type]


def test_bytes_of_one_word_belong_to_different_threads() -> None:
    body = "add.u32 r3, r2, r60; cvt.u16.u32 h1, r60; st.shared.b8 [r3], h1; bar.warp.sync -1; ld.shared.b8 h2, [r3];"
    assert findings_of(program(body), block=(32, 1, 1)) == []
    overlap = body.replace("add.u32 r3, r2, r60;", "shr.u32 r3, r60, 5; add.u32 r3, r3, r2;")
    found = findings_of(program(overlap.replace("bar.warp.sync -1;", "")), block=(64, 1, 1))
    assert found and found[0].check == "race"


def test_a_granule_keeps_its_history_when_accesses_get_smaller() -> None:
    body = """
    mov.u32 r4, 0; add.u32 r5, r2, 4;
    @p1 st.shared.v4.b32 [r2], {r4, r4, r4, r4};
    <barrier> bar.sync 0;
    @!p2 ld.shared.b32 r6, [r5];
    """
    assert findings_of(program(body), block=(64, 1, 1)) == []
    found = findings_of(program(body, "barrier"), block=(64, 1, 1))
    assert [f.check for f in found] == ["race"]


def test_strong_accesses_are_no_races_and_order_as_they_say() -> None:
    flag = """
    @!p2 bra READ;
    st.shared.b32 [r3], r60;
    bar.warp.sync -1;
    @p1 {store}
    bra END;
    READ:
    {load} setp.eq.u32 p3, r5, 0; @p3 bra READ;
    ld.shared.b32 r6, [r3+-128];
    END:
    """
    head = "mov.u32 r4, 1; mov.u32 r5, 0; @p1 st.shared.b32 [r2+1024], r5; bar.sync 0;\n"
    strong = (
        "st.release.cta.shared.b32 [r2+1024], r4;",
        "ld.acquire.cta.shared.b32 r5, [r2+1024];",
    )
    atomic = (
        "red.release.cta.shared.add.u32 [r2+1024], r4;",
        "atom.acquire.cta.shared.add.u32 r5, [r2+1024], 0;",
    )
    for store, load in (strong, atomic):
        text = program(head + flag.format(store=store, load=load))
        assert findings_of(text, block=(64, 1, 1)) == []
    relaxed = ("red.shared.add.u32 [r2+1024], r4;", "atom.shared.add.u32 r5, [r2+1024], 0;")
    found = findings_of(
        program(head + flag.format(store=relaxed[0], load=relaxed[1])), block=(64, 1, 1)
    )
    assert [f.check for f in found] == ["race"] and "ld.shared.b32 r6" in found[0].current.text
    weak = flag.format(store="st.shared.b32 [r2+1024], r4;", load="ld.shared.b32 r5, [r2+1024];")
    assert {f.check for f in findings_of(program(head + weak), block=(64, 1, 1))} == {"race"}


CLUSTER = """
    mov.u32 r7, %cluster_ctarank; xor.b32 r8, r7, 1; mapa.shared::cluster.u32 r9, r3, r8;
    barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
    st.shared::cluster.b32 [r9], r60;
    <barrier> barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    ld.shared.b32 r10, [r3];
    <last> barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""


def test_a_cluster_barrier_orders_remote_stores() -> None:
    shape = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
    assert findings_of(program(CLUSTER), **shape) == []
    found = findings_of(program(CLUSTER, "barrier"), check="race", **shape)
    assert {f.check for f in found} == {"race"}
    assert {found[0].current.who[:11], found[0].earlier.who[:11]} == {"cta (0,0,0)", "cta (1,0,0)"}  # type: ignore[union-attr]


def test_ctas_that_write_the_same_global_word() -> None:
    body = "ld.param.u64 rd1, [out]; mov.u32 r8, %ctaid.x; {where} st.global.b32 [rd1], {what};"
    own = "mov.u32 r7, %ctaid.x; mad.wide.u32 rd1, r7, 4, rd1;"
    shape = {"grid": (3, 1, 1), "block": (1, 1, 1)}
    out = np.zeros(64, np.uint32)
    for right in ({"where": own, "what": "r8"}, {"where": "", "what": "7"}):
        fine = program(body.format(**right), params=".param .u64 out")
        assert findings_of(fine, [out], **shape) == []
    wrong = program(body.format(where="", what="r8"), params=".param .u64 out")
    clash = findings_of(wrong, [out], **shape)
    assert [f.check for f in clash] == ["race"]
    assert "another cluster" in clash[0].earlier.who  # type: ignore[union-attr]


OVERRUN = f"""
    @p1 mbarrier.init.shared::cta.b64 [r1], 1;
    bar.sync 0;
    @p2 bra WAIT;
    setp.eq.u32 p3, r60, 32;
    @p3 mbarrier.arrive.shared::cta.b64 _, [r1];
    <second> @p3 mbarrier.arrive.shared::cta.b64 _, [r1];
    <second> @p3 mbarrier.arrive.shared::cta.b64 _, [r1];
    bra END;
    WAIT:
    nanosleep.u32 1; nanosleep.u32 1; nanosleep.u32 1; nanosleep.u32 1;
    {wait("r1", 0)}
    END:
"""


def test_a_barrier_that_runs_ahead_of_who_waits_by_parity() -> None:
    assert findings_of(program(OVERRUN, "second"), block=(64, 1, 1)) == []
    found = findings_of(program(OVERRUN), block=(64, 1, 1))
    assert [f.check for f in found] == ["mbarrier"]
    assert "waits for phase 0 by its parity, but 3 phases are complete" in found[0].message


def test_reads_of_shared_memory_never_written() -> None:
    body = "<store> st.shared.b32 [r3], r60;\nld.shared.b32 r4, [r3];"
    assert findings_of(program(body)) == []
    (found,) = findings_of(program(body, "store"))
    assert found.check == "uninitialised" and "read before any write" in found.message
    assert found.current.text == "ld.shared.b32 r4, [r3];" and found.byte_count == 4
    assert "warp 0 lanes 0-31" in found.current.who
    assert findings_of(program(body, "store"), check="race") == []
    with pytest.raises(KernelFault, match="read before any write") as raised:
        run_module(program(body, "store"), [], check="all")
    assert raised.value.kind == "uninitialised"


def test_collecting_goes_on_after_reads_of_what_nothing_wrote() -> None:
    """Each line of the PTX once, with what came after it."""
    body = """
    ld.shared.b32 r4, [r3]; add.u32 r4, r4, 1; st.shared.b32 [r3], r4;
    ld.shared.b32 r5, [r3];
    ld.shared.b32 r6, [r3+256];
    mov.u32 r7, 0; LOOP: ld.shared.b32 r8, [r3+512]; add.u32 r7, r7, 1; setp.lt.u32 p3, r7, 4; @p3 bra LOOP;
    @p1 cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2+1024], 128;
    @p1 cp.async.bulk.commit_group; @p1 cp.async.bulk.wait_group 0;
    """
    text = program(f"ld.param.u64 rd1, [out];{body}", params=".param .u64 out")
    found = findings_of(text, [np.zeros(32, np.uint32)], check="uninitialised")
    assert [f.current.line for f in found] == [
        line_of(text, part) for part in ("[r3]; add", "[r3+256]", "[r3+512]", "[r2+1024]")
    ]
    assert "bulk store" in found[-1].current.who and "0xd00" not in found[0].place


def test_an_aligned_instruction_that_not_all_lanes_reach() -> None:
    body = (
        "setp.lt.u32 p3, r60, 16;\n<split> @p3 bra HANG;\nbar.sync 0; bra END;\nHANG:\n{loop}\nEND:"
    )
    hang = f"mbarrier.init.shared::cta.b64 [r1], 1; {wait('r1', 0)}"
    with pytest.raises(DeadlockError, match="lanes 16-31"):
        findings_of(program(body.format(loop=hang)))
    assert findings_of(program(body.format(loop=hang), "split")) == []


@pytest.mark.parametrize(
    ("access", "kind"),
    [
        ("st.shared.b32 [r3+100000000], r60;", "out-of-bounds"),
        ("st.shared.b32 [r3+2], r60;", "misaligned"),
        ("ld.param.u64 rd1, [out]; st.global.b32 [rd1+1000000], r60;", "out-of-bounds"),
        ("ld.param.u64 rd1, [out]; st.global.b32 [rd1+1], r60;", "misaligned"),
    ],
)
def test_what_the_machine_refuses_is_its_fault_with_checkers_too(access: str, kind: str) -> None:
    text = program(access, params=".param .u64 out")
    with pytest.raises(KernelFault) as raised:
        findings_of(text, [np.zeros(64, np.uint8)])
    assert raised.value.kind == kind and raised.value.line == line_of(text, access)


def test_a_proxy_fence_of_who_uses_an_mbarrier_covers_its_init() -> None:
    """The init is another thread's, ordered by a barrier; the fence stands between the two."""
    text = f"""
        @p1 mbarrier.init.shared::cta.b64 [r1], 1; bar.sync 0;
        setp.ne.u32 p3, r60, 32; @p3 bra END;
        <after> fence.proxy.async.shared::cta;
        ld.param.u64 rd1, [out];
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 128;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2], [rd1], 128, [r1];
        {wait("r1", 0).replace(chr(10), " ")}
        END:
    """
    data = np.zeros(64, np.uint32)
    for cut, wanted in (("", []), ("after", ["mbarrier"])):
        found = findings_of(program(text, cut, ".param .u64 out"), [data], block=(64, 1, 1))
        assert [f.check for f in found] == wanted


AGREE = {
    "equal": ("st.shared.b32 [r2], 7;", 0),
    "twice": ("st.shared.b32 [r2], 7; st.shared.b32 [r2], 7;", 0),
    "vector of the same elements": (
        "@p2 st.shared.b32 [r2], 7; @!p2 st.shared.v2.b32 [r2], {7, 8};",
        0,
    ),
    "another size": ("@p2 st.shared.b32 [r2], 7; @!p2 st.shared.b16 [r2], 7;", 1),
    "after another value": ("@p2 st.shared.b32 [r2], 8; st.shared.b32 [r2], 7;", 1),
    "after a read": ("@p2 ld.shared.b32 r4, [r2]; bar.warp.sync -1; st.shared.b32 [r2], 7;", 1),
}


@pytest.mark.parametrize("name", AGREE)
def test_weak_stores_that_agree(name: str) -> None:
    """A barrier, then two warps store to a word: all that came before the first such store counts."""
    body, count = AGREE[name]
    start = "mov.b32 r9, 0; @p1 st.shared.v2.b32 [r2], {0, 8}; mov.b32 r8, 7; bar.sync 0;"
    found = findings_of(
        program(f"{start} {body} bar.sync 0; ld.shared.b32 r5, [r2];"), block=(64, 1, 1)
    )
    assert [f.check for f in found][:1] == ["race"] * count, found


def test_all_who_stored_the_same_value_have_to_be_known() -> None:
    """Three warps store 7 to a word; the fourth meets two of them only."""
    text = """
        setp.eq.u32 p3, r61, 3; setp.eq.u32 p4, r61, {stranger};
        @!p3 st.shared.b32 [r2], 7;
        @p4 bra END;
        bar.sync 1, {threads};
        @p3 ld.shared.b32 r4, [r2];
        END:
    """
    for stranger in (0, 1, 2):
        wrong = findings_of(program(text.format(stranger=stranger, threads=96)), block=(128, 1, 1))
        assert [f.check for f in wrong] == ["race"]
    assert findings_of(program(text.format(stranger=9, threads=128)), block=(128, 1, 1)) == []


def test_many_findings_of_one_check_hide_none_of_another() -> None:
    races = "\n".join(f"st.shared.b32 [r2+{4 * n}], r60;" for n in range(120))
    findings = findings_of(program(f"{races}\nld.shared.b32 r5, [r2+4096];"), block=(64, 1, 1))
    kinds = [finding.check for finding in findings]
    assert kinds.count("race") == 100 and kinds.count("uninitialised") == 1
