"""Pairs about clusters: CTA pairs that multiply as one, copies into other CTAs, barriers of other CTAs."""

from __future__ import annotations

from attn_mlir.validation.emulator import rules
from attn_mlir.validation.emulator.kinds import DEADLOCK, Kind, spin

RACE = "nothing orders these accesses"
TENSOR = "nothing orders these accesses to tensor memory"
_MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
_MEET_RELAXED = _MEET.replace("release", "relaxed")

# r7 is the rank, p4 true in the even CTA and p5 in its first thread; r8 the other rank, r9 and r10 its buffer and barriers
_RANKS = (
    "mov.u32 r7, %cluster_ctarank; xor.b32 r8, r7, 1; mapa.shared::cluster.u32 r9, r2, r8; mapa.shared::cluster.u32 r10, r1, r8;"
    " setp.eq.u32 p4, r7, 0; and.pred p5, p1, p4; mov.u16 h1, 3; mov.u32 r5, 0; ld.param.u64 rd1, [out];"
)

# ---- tcgen05.mma.cta_group::2: M and N of 256, K of 16; of A and B each CTA has 128 rows of 32 bytes, the same in both

_ALLOC = """
    mov.u32 r19, slot; setp.ne.u32 p7, r61, 0; @p7 bra ALLOCATED;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [r19], 256;
    tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
    ALLOCATED: @p1 mbarrier.init.shared::cta.b64 [r1], 1; @p1 mbarrier.init.shared::cta.b64 [r1+8], COUNT;
    fence.mbarrier_init.release.cluster;
"""
_MEET_FENCED = f"tcgen05.fence::before_thread_sync; {_MEET} tcgen05.fence::after_thread_sync;"
_ADDRESS = (
    "ld.shared.b32 r20, [r19]; and.b32 r21, r61, 3; shl.b32 r21, r21, 21; add.u32 r22, r20, r21;"
)
_ZERO = "shl.b32 r4, r60, 5; add.u32 r4, r4, r2; st.shared.v4.b32 [r4], {r5, r5, r5, r5}; st.shared.v4.b32 [r4+16], {r5, r5, r5, r5};"
_PROXY = "fence.proxy.async.shared::cta;"
_SET = f"""
    shr.u32 r24, r2, 4; cvt.u64.u32 rd2, r24; or.b64 rd3, rd2, {8 << 16 | 16 << 32 | 1 << 46};
    mov.b32 r25, {1 << 4 | 1 << 7 | 1 << 10 | 256 >> 3 << 17 | 256 >> 4 << 24}; setp.ne.u32 p3, r60, r60;
"""
_MMA = "tcgen05.mma.cta_group::2.kind::f16 [r20], rd3, rd3, r25, p3;"
_COMMIT = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r1], h1;"
_LOAD = "tcgen05.fence::after_thread_sync; tcgen05.ld.sync.aligned.32x32b.x1.b32 {r30}, [r22]; tcgen05.wait::ld.sync.aligned;"
_FREE = f"""
    {_MEET_FENCED}
    @p7 bra FREED;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 r20, 256;
    FREED:
"""


def _pair(
    fill: str = f"{_ZERO} {_PROXY} {_MEET_FENCED}",
    store: str = "",
    multiply: str = f"{_MMA} {_COMMIT}",
    use: str = f"{spin('r1', 0)} {_LOAD}",
    count: int = 1,
) -> str:
    """A product of a CTA pair, issued by the first thread of the even CTA.

    Args:
      fill: the operands. store: into tensor memory. use: of the result, by all threads. count: of the barrier at r1 + 8.
    """
    return (
        f"{_RANKS} {_ALLOC.replace('COUNT', str(count))} {_SET}\n{fill}\n{_ADDRESS}\n{store}\n@!p5 bra ISSUED;\n"
        f"{multiply}\n"
        f"ISSUED: bar.warp.sync -1;\n{use}\n{_FREE}"
    )


_AGAIN = (
    f"{spin('r1', 0)} {_LOAD} tcgen05.fence::before_thread_sync; mapa.shared::cluster.u32 r11, r1, 0;\n"
    "<right> mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r11+8];\n"
    "<wrong> mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [r11+8];\n"
    f"@!p5 bra LAST; {spin('r1+8', 0)} tcgen05.fence::after_thread_sync; {_MMA} {_COMMIT} LAST: bar.warp.sync -1; {spin('r1', 1)}"
)
_STORED = (
    "add.u32 r26, r22, 128; tcgen05.st.sync.aligned.32x32b.x8.b32 [r26], {r5, r5, r5, r5, r5, r5, r5, r5};"
    " tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;"
)  # A in columns 128 to 135 of both CTAs; N is 128
_MMA_OF_TENSORS = (
    f"mov.b32 r25, {1 << 4 | 1 << 7 | 1 << 10 | 128 >> 3 << 17 | 256 >> 4 << 24}; add.u32 r27, r20, 128;"
    f" tcgen05.mma.cta_group::2.kind::f16 [r20], [r27], rd3, r25, p3; {_COMMIT}"
)
_EARLY = "use of the shared memory of a CTA that may not have begun"
# title, case -> (found, part of the message, body)
PAIR: dict[tuple[str, str], tuple[str, str, str]] = {
    ("race of two CTAs of a cluster in shared memory", "operands of a product of both"): (
        "race",
        RACE,
        _pair(
            fill=f"{_MEET_FENCED} {_ZERO} {_PROXY} tcgen05.fence::before_thread_sync;\n<right> {_MEET}\n<wrong> bar.sync 0;\n"
            "tcgen05.fence::after_thread_sync;"
        ),
    ),
    ("missing proxy fence", "stores of the other CTA of a product of both"): (
        "proxy",
        "fence.proxy.async is missing",
        _pair(fill=f"{_ZERO}\n<right> {_PROXY}\n<wrong> @p4 {_PROXY}\n{_MEET_FENCED}"),
    ),
    ("race in tensor memory", "a product of two CTAs that one of them does not wait for"): (
        "tensor",
        TENSOR,
        _pair(
            use=f"<wrong> @!p4 bra LOAD;\n{spin('r1', 0)}\n<wrong> LOAD:\n{_LOAD}\n<wrong> {spin('r1', 0)}"
        ),
    ),
    ("race in tensor memory", "the next product of two CTAs before the other has loaded"): (
        "tensor",
        TENSOR,
        _pair(use=_AGAIN, count=256),
    ),
    ("race in tensor memory", "A of a product of two CTAs, stored by the other"): (
        "tensor",
        TENSOR,
        _pair(
            store=f"{_STORED}\n<right> {_MEET}\n<wrong> bar.sync 0;\ntcgen05.fence::after_thread_sync;",
            multiply=_MMA_OF_TENSORS,
        ),
    ),
    ("deadlock", "a commit whose mask leaves out a CTA"): (
        DEADLOCK,
        "mbarrier",
        _pair(multiply=f"<wrong> mov.u16 h1, 1;\n{_MMA} {_COMMIT}"),
    ),
}

# ---- copies into other CTAs

_READY = (
    "@p1 mbarrier.init.shared::cta.b64 [r1], 1; @p1 mbarrier.init.shared::cta.b64 [r1+8], 1;"
    " fence.mbarrier_init.release.cluster; st.shared.b32 [r3], r60; fence.proxy.async.shared::cta;"
)
_INIT = "@p1 mbarrier.init.shared::cta.b64 [r1], 1;"
_EXPECT = "@p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 256;"
_MULTICAST = "@p5 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r2], [rd1], 256, [r1], h1;"
_SEND = "@p5 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r9], [r2], 256, [r10];"
_ADD = "@p5 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [r9], [r2], 256, [r10];"
_STORE = (
    "shl.b32 r12, r60, 2; add.u32 r12, r12, r9;"
    " @p4 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [r12], r60, [r10];"
)
_SUM = _STORE.replace("st.async.weak", "red.async.relaxed.cluster").replace(".b32 [", ".add.u32 [")
_WAIT = spin("r1", 0)
_GOT = f"@p4 bra SENT; {_WAIT}"  # by all threads of the odd CTA, which ends up at SENT
# what the odd CTA tells the even one: by the barrier at 8
_TELL = "bar.sync 1, 64; @p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r10+8];"
_TOLD = spin("r1+8", 0)
_NEXT = "@p5 mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [r10];"
COPIES: dict[tuple[str, str], tuple[str, str, str]] = {
    ("race of a thread and a copy in shared memory", "multicast into a CTA that still reads"): (
        "race",
        RACE,
        f"{_READY} {_MEET} {_EXPECT} ld.shared.b32 r11, [r3]; {_PROXY}\n<right> {_MEET}\n{_MULTICAST} {_WAIT}\n{_MEET}",
    ),
    ("race of a thread and a copy in shared memory", "multicast that one CTA does not wait for"): (
        "race",
        RACE,
        f"{_READY} {_EXPECT} {_MEET} {_MULTICAST}\n<wrong> @!p4 bra READ;\n{_WAIT}\n<wrong> READ:\nld.shared.b32 r11, [r3];\n"
        f"<wrong> {_WAIT}\n{_MEET}",
    ),
    ("race of a thread and a copy in shared memory", "source of a copy to another CTA"): (
        "race",
        RACE,
        f"{_READY} {_EXPECT} {_MEET} {_SEND} {_GOT} {_TELL} SENT: @!p4 bra END;\n<right> {_TOLD}\n@p1 st.shared.b32 [r2], r5;\n"
        f"<wrong> {_TOLD}\nEND: bar.warp.sync -1; {_MEET}",
    ),
    ("race of a thread and a copy in shared memory", "a sum from another CTA is not waited for"): (
        "race",
        RACE,
        f"{_READY} {_EXPECT} {_MEET} {_ADD} @p4 bra SENT;\n<right> {_WAIT}\nld.shared.b32 r11, [r3];\n<wrong> {_WAIT}\n"
        f"SENT: bar.warp.sync -1; {_MEET}",
    ),
    ("race of a thread and a copy in shared memory", "st.async that is not waited for"): (
        "race",
        RACE,
        f"{_READY} {_EXPECT} {_MEET} {_STORE} @p4 bra SENT;\n<right> {_WAIT}\nld.shared.b32 r11, [r3];\n<wrong> {_WAIT}\n"
        f"SENT: bar.warp.sync -1; {_MEET}",
    ),
    ("race of a thread and a copy in shared memory", "red.async over what is still read"): (
        "race",
        RACE,
        f"{_READY} {_EXPECT} {_MEET} @!p4 ld.shared.b32 r11, [r3];\n<right> {_MEET}\n{_SUM} @p4 bra SENT; {_WAIT}\n"
        f"SENT: bar.warp.sync -1; {_MEET}",
    ),
    ("missing proxy fence", "stores before a copy to another CTA"): (
        "proxy",
        "fence.proxy.async is missing",
        f"{_READY} {_EXPECT} st.shared.b32 [r3], r61;\n<right> {_PROXY}\n{_MEET} {_SEND} {_GOT} SENT: bar.warp.sync -1; {_MEET}",
    ),
    ("memory order", "a remote arrival frees a slot for the next copy"): (
        "race",
        RACE,
        f"{_READY} {_EXPECT} {_MEET} {_SEND} {_GOT} ld.shared.b32 r11, [r3]; {_PROXY} {_EXPECT}\n<right> {_TELL}\n"
        f"<wrong> {_TELL.replace('release', 'relaxed')}\n{spin('r1', 1)} SENT: @!p4 bra END; {_TOLD} {_SEND}\n"
        f"END: bar.warp.sync -1; {_MEET}",
    ),
    ("memory order", "a remote arrival in the scope of its own CTA"): (
        "race",
        RACE,
        f"{_READY} {_EXPECT} {_MEET} {_SEND} {_GOT} ld.shared.b32 r11, [r3]; {_PROXY} {_EXPECT}\n<right> {_TELL}\n"
        f"<wrong> {_TELL.replace('release.cluster', 'release.cta')}\n{spin('r1', 1)} SENT: @!p4 bra END; {_TOLD} {_SEND}\n"
        f"END: bar.warp.sync -1; {_MEET}",
    ),
    ("fewer bytes than were announced", "multicast that leaves out a CTA"): (
        DEADLOCK,
        "mbarrier",
        f"{_READY} {_EXPECT} {_MEET}\n<wrong> mov.u16 h1, 1;\n{_MULTICAST} {_WAIT}\n{_MEET}",
    ),
    ("mbarrier used before its init is known", "by an arrival of another CTA"): (
        "mbarrier",
        "before its init is known here",
        f"{_INIT}\n<right> {_MEET}\n<wrong> {_MEET_RELAXED}\n"
        f"@p5 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r10]; {_GOT} SENT: bar.warp.sync -1; {_MEET}",
    ),
    ("mbarrier used before its init is known", "by bytes that another CTA announces"): (
        "mbarrier",
        "before its init is known here",
        f"{_INIT}\n<right> {_MEET}\n<wrong> {_MEET_RELAXED}\n"
        "@p5 mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [r10], 0;"
        f" @p5 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r10]; {_GOT} SENT: bar.warp.sync -1; {_MEET}",
    ),
    ("mbarrier used before its init is known", "by a commit to several CTAs"): (
        "mbarrier",
        "before its init is known here",
        f"{_INIT}\n<right> {_MEET}\n<wrong> {_MEET_RELAXED}\n"
        "@p5 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r1], h1;"
        f" {_WAIT} {_MEET}",
    ),
    ("mbarrier used by a copy without fence.mbarrier_init", "from another CTA"): (
        "mbarrier",
        "fence.mbarrier_init",
        f"st.shared.b32 [r3], r60; {_PROXY} {_INIT}\n<right> fence.mbarrier_init.release.cluster;\n"
        f"{_EXPECT} {_MEET} {_SEND} {_GOT} SENT: bar.warp.sync -1; {_MEET}",
    ),
    ("mbarrier used by a copy without fence.mbarrier_init", "by a store with a signal"): (
        "mbarrier",
        "fence.mbarrier_init",
        f"{_INIT}\n<right> fence.mbarrier_init.release.cluster;\n"
        f"{_EXPECT} {_MEET} {_STORE} {_GOT} SENT: bar.warp.sync -1; {_MEET}",
    ),
    (_EARLY, "a store"): (
        "start",
        "cta (1,0,0) may not have begun",
        f"\n<right> {_MEET}\n@p5 st.shared::cluster.b32 [r9], r5; {_MEET}",
    ),
    (_EARLY, "a strong store behind arrivals that carry nothing else"): (
        "start",
        "cta (1,0,0) may not have begun",
        "\n<right> barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;\n"
        f"@p5 st.relaxed.cluster.shared::cluster.b32 [r9], r5; {_MEET}",
    ),
    (_EARLY, "a barrier of its own CTA alone"): (
        "start",
        "may not have begun",
        f"\n<right> {_MEET}\n<wrong> bar.sync 0;\n@!p2 st.shared::cluster.b32 [r9], r5; {_MEET}",
    ),
    ("end of a CTA before others are done with its memory", "an arrival in its own scope"): (
        "exit",
        "",
        f"{_INIT} {_MEET} @p5 mbarrier.arrive.expect_tx.release.cta.shared::cluster.b64 _, [r10], 0;\n"
        f"<right> {_GOT} SENT: bar.warp.sync -1;",
    ),
    ("end of a CTA before others are done with its memory", "a relaxed arrival of a later phase"): (
        "exit",
        "",
        f"{_INIT} @p1 mbarrier.init.shared::cta.b64 [r1+8], 1; {_MEET} {_NEXT} {_GOT} {_TELL}"
        f" SENT: @!p4 bra LAST; {_TOLD} {_NEXT} bra END; LAST:\n<right> {spin('r1', 1)}\nEND: bar.warp.sync -1;",
    ),
    ("end of a CTA before others are done with its memory", "a store, told in its own scope"): (
        "exit",
        "nothing makes cta (1,0,0) stay until this is done",
        f"{_INIT} {_MEET} @p5 st.shared::cluster.b32 [r9], r5;\n"
        "<right> @p5 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r10];\n"
        "<wrong> @p5 mbarrier.arrive.release.cta.shared::cluster.b64 _, [r10];\n"
        f"{_GOT} SENT: bar.warp.sync -1;",
    ),
    ("end of a CTA before others are done with its memory", "a copy from another CTA"): (
        "exit",
        "",
        f"{_READY} {_EXPECT} {_MEET} {_SEND}\n<right> @p4 bra SENT; {_WAIT} SENT: bar.warp.sync -1;\n{_MEET}",
    ),
}

RULES = {  # by title
    "mbarrier used before its init is known": rules.INIT_ORDER,
    "mbarrier used by a copy without fence.mbarrier_init": rules.INIT_PROXY,
}
RULES_OF_CASES = dict.fromkeys(
    (
        "an arrival in its own scope",
        "a relaxed arrival of a later phase",
        "a store, told in its own scope",
    ),
    rules.PHASE_COMPLETE,
)

PAIRS = (
    *(
        Kind(title, found, body, says, case, threads=128, ctas=2)
        for (title, case), (found, says, body) in PAIR.items()
    ),
    *(
        Kind(
            title,
            found,
            f"{_RANKS} {body}",
            says,
            case,
            ctas=2,
            one_sided=found in ("start", "exit"),
            rule=RULES_OF_CASES.get(case) or RULES.get(title, ""),
        )
        for (title, case), (found, says, body) in COPIES.items()
    ),
)
