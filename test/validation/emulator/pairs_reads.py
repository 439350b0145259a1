"""Pairs about slots that are read through the generic proxy and refilled by an engine."""

from __future__ import annotations

from attn_mlir.validation.emulator.kinds import Kind, spin

TITLE = "a slot refilled without a proxy fence behind its reads"
READ = "the bytes were read through the generic proxy"
WRITTEN = "the bytes were written through the generic proxy"
PENDING = "nothing before the reader's next arrival"
AWAITED = "a store or a branch before the reader's next arrival"
FENCE = "fence.proxy.async.shared::cta;"
_COPY = (
    "@p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 512;"
    " @p3 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2], [rd1], 512, [r1];"
)
# Warp 1 fills 512 bytes, warp 0 reads them, 16 bytes in each lane; full barrier at r1, empty barrier at r1 + 8
_BEGIN = f"""
    @p1 mbarrier.init.shared::cta.b64 [r1], 1; @p1 mbarrier.init.shared::cta.b64 [r1+8], 32; fence.mbarrier_init.release.cluster;
    bar.sync 0; ld.param.u64 rd1, [out]; and.b32 r4, r60, 31; shl.b32 r4, r4, 4; add.u32 r4, r4, r2; mov.u32 r5, 0;
    setp.eq.u32 p3, r60, 32; {_COPY} {spin("r1", 0)} @!p2 bra FILL;
"""
_ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [r1+8];"
LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r10, r11, r12, r13}, [r4];"
_MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {r14, r15, r16, r17},"
    " {r10, r11, r12, r13}, {r10, r11}, {r14, r15, r16, r17};"
)
_ZERO = "mov.u32 r14, 0; mov.u32 r15, 0; mov.u32 r16, 0; mov.u32 r17, 0;"
_STORE = (
    "@p3 cp.async.bulk.global.shared::cta.bulk_group [rd1+1024], [r2], 512; cp.async.bulk.commit_group;"
    " cp.async.bulk.wait_group.read 0;"
)
_ASK = (
    "@p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 16;"
    " @p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [r2], [r1];"
)


def _either(right: str, wrong: str) -> str:
    return f"\n<right> {right}\n<wrong> {wrong}\n"


def slot(use: str, before: str = "", after: str = "") -> str:
    """A slot that is filled, used and filled again.

    Args:
      use: what warp 0 does with it before it arrives. before, after: what warp 1 does before and after it waits for that.
    """
    return (
        f"{_BEGIN}\n{use}\n{_ARRIVE} bra END; FILL:\n{before}\n{spin('r1+8', 0)}\n{after}\n{_COPY}\n"
        f"END: {spin('r1', 1)}"
    )


# case -> (body, what the finding says)
READS = {
    "ldmatrix": (slot(f"{LDMATRIX}\n<right> {FENCE}"), PENDING),
    "ldmatrix, and its product before the arrival": (
        slot(f"{_ZERO} {LDMATRIX} {_MMA}\n<right> {FENCE}"),
        PENDING,
    ),
    "ldmatrix, and stores of its product before the arrival": (
        slot(f"{_ZERO} {LDMATRIX} {_MMA} st.global.b32 [rd1+2048], r14;\n<right> {FENCE}"),
        AWAITED,
    ),
    "ld.shared": (
        slot(f"ld.shared.v4.b32 {{r10, r11, r12, r13}}, [r4];\n<right> {FENCE}"),
        PENDING,
    ),
    "ld.shared by some lanes": (slot(f"@p1 ld.shared.b32 r10, [r2+16];\n<right> {FENCE}"), PENDING),
    "ld.shared, and a branch on it": (
        slot(
            "ld.shared.b32 r10, [r4]; setp.eq.u32 p5, r10, 99; @p5 bra BACK; add.u32 r10, r10, 1; BACK:"
            f"\n<right> {FENCE}"
        ),
        AWAITED,
    ),
    "a fence of memory": (slot(LDMATRIX + _either(FENCE, "fence.acq_rel.cta;")), READ),
    "the fence before the read": (
        slot(f"<wrong> {FENCE}\n{LDMATRIX}\n<right> {FENCE}"),
        READ,
    ),
    "the fence between two reads": (
        slot(f"{LDMATRIX}\n<wrong> {FENCE}\nld.shared.b32 r14, [r4+4];\n<right> {FENCE}"),
        READ,
    ),
    "the fence in who refills": (slot(LDMATRIX, f"<wrong> {FENCE}", f"<right> {FENCE}"), READ),
    "the fence in one of the lanes": (slot(LDMATRIX + _either(FENCE, f"@p1 {FENCE}")), READ),
    "the fence in one lane for all that it knows of": (
        slot(f"{LDMATRIX} bar.warp.sync -1;\n<right> @p1 {FENCE}\nbar.warp.sync -1;"),
        READ,
    ),
    "a store behind the fence": (
        slot(f"{LDMATRIX}\n<wrong> {FENCE}\nst.shared.b32 [r4], r5;\n<right> {FENCE}"),
        WRITTEN,
    ),
    "an engine reads it as well": (slot(f"{LDMATRIX}\n<right> {FENCE}", "", _STORE), READ),
    "by the thread that has read it": (
        f"{_BEGIN} FILL: bar.sync 0; @p3 ld.shared.b32 r10, [r2];\n<right> {FENCE}\n{_COPY} {spin('r1', 1)}",
        PENDING,
    ),
}
_ANSWERS = (
    f"@p1 mbarrier.init.shared::cta.b64 [r1], 1; fence.mbarrier_init.release.cluster; bar.sync 0; {_ASK} {spin('r1', 0)}"
    f" ld.shared.v2.b64 {{rd5, rd6}}, [r2];\n<right> {FENCE}\nbar.sync 0; {_ASK} {spin('r1', 1)}"
)
PAIRS = (
    *(Kind(TITLE, "proxy", body, says, case) for case, (body, says) in READS.items()),
    # Of three CTAs the first gets the other two; a question after an answer that says no is not defined.
    Kind(TITLE, "proxy", _ANSWERS, PENDING, "an answer of cluster launch control", clusters=3),
)
