"""Pairs about tensor memory: what is wrong on silicon, and what only PTX does not promise."""

from __future__ import annotations

from attn_mlir.validation.emulator import rules
from attn_mlir.validation.emulator.kinds import Kind, spin
from attn_mlir.validation.emulator.pairs_registers import ALLOC_FENCED, FREE_FENCED
from attn_mlir.validation.emulator.tensor_bench import ALLOC

BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
WAIT = "tcgen05.wait::ld.sync.aligned;"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [r22], {r60}; tcgen05.wait::st.sync.aligned;"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r30}, [r22];"


def _hand_over(
    before: str = BEFORE, after: str = AFTER, alloc: str = ALLOC_FENCED, free: str = FREE_FENCED
) -> str:
    """Warps 0 to 3 store, warps 4 to 7 load."""
    return f"""
        {alloc}
        setp.lt.u32 p4, r60, 128; @!p4 bra SECOND;
        {STORE}
        {before}
        SECOND:
        bar.sync 0;
        @p4 bra END;
        {after}
        {LOAD} {WAIT}
        END:
        {free}
    """


def _issued(operation: str) -> str:
    """Warp 1 issues an operation on columns that warp 0 has allocated, with a barrier between the two.

    Args:
      operation: rd3 describes 128 rows of 16 zeros in shared memory, r25 a product of 128 by 16 of them.
    """
    return f"""
        shl.b32 r4, r60, 5; add.u32 r4, r4, r2; mov.u32 r5, 0; setp.ne.u32 p3, r60, r60; setp.eq.u32 p4, r60, 32;
        st.shared.v4.b32 [r4], {{r5, r5, r5, r5}}; st.shared.v4.b32 [r4+16], {{r5, r5, r5, r5}};
        shr.u32 r24, r2, 4; cvt.u64.u32 rd2, r24; or.b64 rd3, rd2, {8 << 16 | 16 << 32 | 1 << 46};
        mov.b32 r25, {1 << 4 | 1 << 7 | 1 << 10 | 16 >> 3 << 17 | 128 >> 4 << 24};
        fence.proxy.async.shared::cta;
        {ALLOC_FENCED}
        @!p4 bra ISSUED;
        {operation}
        tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
        {spin("r1", 0)}
        ISSUED: {FREE_FENCED.replace("<right>", "")}
    """


# Fences that only the right kernel has; the wrong one's accesses are in order on silicon.
FENCES = {
    "none at all": _hand_over(f"<right> {BEFORE}", f"<right> {AFTER}"),
    "none but the one behind the allocation": _hand_over(
        f"<right> {BEFORE}", f"<right> {AFTER}", ALLOC.replace("<alloc_after>", "")
    ),
    "none but the one in front of dealloc": _hand_over(
        f"<right> {BEFORE}",
        f"<right> {AFTER}",
        free=FREE_FENCED.replace(f"<right> {BEFORE}", BEFORE),
    ),
    "in front of the arrival": _hand_over(before=f"<right> {BEFORE}"),
    "behind the wait": _hand_over(after=f"<right> {AFTER}"),
    "in front of dealloc": _hand_over(alloc=ALLOC.replace("<alloc_after>", "")),
    "of an allocation that a barrier alone hands on": f"""
        {ALLOC_FENCED}
        setp.lt.u32 p4, r60, 128; @!p4 bra END;
        {STORE}
        END: {FREE_FENCED.replace("<right>", "")}
    """,
    "of an allocation that a barrier alone hands to a product": _issued(
        "tcgen05.mma.cta_group::1.kind::f16 [r20], rd3, rd3, r25, p3;"
    ),
    "of an allocation that a barrier alone hands to a copy": _issued(
        "tcgen05.cp.cta_group::1.32x128b.warpx4 [r20], rd3;"
    ),
}


def _overwritten(use: str) -> str:
    """Warps 0 to 3 load and arrive; warps 4 to 7 wait for them and store to the same columns.

    Args:
      use: what stands between the load and the arrival.
    """
    return f"""
        {ALLOC_FENCED}
        setp.lt.u32 p4, r60, 128; @!p4 bra SECOND;
        {STORE} {LOAD}
        {use}
        {BEFORE}
        mbarrier.arrive.shared::cta.b64 _, [r1+8];
        add.u32 r31, r30, 1; st.shared.b32 [r3], r31;
        bra END;
        SECOND:
        {spin("r1+8", 0)}
        {AFTER} {STORE}
        END:
        {FREE_FENCED.replace("<right>", "")}
    """


# What is done with a load's data before its thread arrives; without more the load may still be under way.
PENDING = {
    "nothing": f"<right> {WAIT}",
    "arithmetic, which the assembler may move": f"add.u32 r31, r30, 1;\n<right> {WAIT}",
    "a store on one path": f"setp.eq.u32 p5, r61, 9; @p5 bra SKIP; st.shared.b32 [r3], r30;\nSKIP:\n<right> {WAIT}",
    "a wait on one path": f"setp.eq.u32 p5, r61, 0;\n<wrong> @p5 bra SKIP;\n{WAIT}\nSKIP:",
}
# An instruction that stays in front of the arrival needs the data: the load is over, and PTX does not say so.
USED = {
    "a store": f"st.shared.b32 [r3], r30;\n<right> {WAIT}",
    "a store of what was computed from it": f"add.u32 r31, r30, 1; st.shared.b32 [r3], r31;\n<right> {WAIT}",
    "a branch": f"setp.eq.u32 p5, r30, 7; @p5 bra SKIP; add.u32 r31, r61, 1;\nSKIP:\n<right> {WAIT}",
    "a wait on one path, a store on the other": f"setp.eq.u32 p5, r61, 0;\n<wrong> @p5 bra SKIP;\n{WAIT}\nSKIP: st.shared.b32 [r3], r30;",
}

# Addresses of warp w, of which the right one is lane 32 w; `32x32b` but for the last.
LANES = {
    "lane 0 in all warps": (f"<wrong> mov.u32 r22, r20;\n{STORE}", "names lane 0"),
    "lanes of a second CTA of a pair": (
        f"<wrong> add.u32 r22, r22, {128 << 16};\n{STORE}",
        "names lane 224",
    ),
    "lane 16 in all warps, of a load of 16 lanes": (
        f"{STORE} add.u32 r22, r22, {16 << 16};\n<wrong> add.u32 r22, r20, {16 << 16};\n"
        f"tcgen05.ld.sync.aligned.16x64b.x1.b32 {{r30}}, [r22]; {WAIT}",
        "names lane 16",
    ),
}


def _scaled(store: str) -> str:
    """A product with block scales; warp w has rows 32 w and up of A, whose scales are column w of four.

    Args:
      store: of the scales of A, by every warp; r23 is the first column in its own lanes.
    """
    return f"""
        {ALLOC_FENCED.replace("<right>", "")}
        shl.b32 r4, r60, 5; add.u32 r4, r4, r2; mov.u32 r5, 0; mov.u32 r6, 0x7f7f7f7f; setp.ne.u32 p3, r60, r60;
        st.shared.v4.b32 [r4], {{r5, r5, r5, r5}}; st.shared.v4.b32 [r4+16], {{r5, r5, r5, r5}};
        add.u32 r24, r20, 64; add.u32 r25, r20, 72; add.u32 r23, r22, 64; add.u32 r26, r22, 72; add.u32 r27, r23, r61;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [r26], {{r6}};
        {store}
        tcgen05.wait::st.sync.aligned; fence.proxy.async.shared::cta; {BEFORE} bar.sync 0; {AFTER}
        @!p1 bra ISSUED;
        shr.u32 r7, r2, 4; cvt.u64.u32 rd2, r7; or.b64 rd3, rd2, {8 << 16 | 16 << 32 | 1 << 46};
        mov.b32 r8, {16 >> 3 << 17 | 128 >> 4 << 24 | 1 << 23};
        tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [r20], rd3, rd3, r8, [r24], [r25], p3;
        tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
        {spin("r1", 0)}
        ISSUED: {FREE_FENCED.replace("<right>", "")}
    """


_EVERYWHERE = "tcgen05.st.sync.aligned.32x32b.x4.b32 [r23], {r6, r6, r6, r6};"
_OWN = "tcgen05.st.sync.aligned.32x32b.x1.b32 [r27], {r6};"

PAIRS = (
    Kind(
        "block scales of A in the quarter of their rows alone",
        "unpromised",
        _scaled(f"<right> {_EVERYWHERE}\n<wrong> {_OWN}"),
        "the scales of A are not in every quarter of the lanes, which PTX asks for",
        threads=128,
        one_sided=True,
        rule=rules.SCALES,
    ),
    Kind(
        "read of tensor memory never written",
        "uninitialised",
        _scaled(f"{_OWN}\n<right> {_EVERYWHERE}\n<wrong> mov.u32 r28, r27;").replace(
            _OWN, f"setp.eq.u32 p5, r61, 2; @p5 bra SKIP; {_OWN} SKIP:", 1
        ),
        "scales of A reads",
        "block scales of some rows of A",
        threads=128,
        one_sided=True,
    ),
    *(
        Kind(
            "tensor memory handed over without tcgen05.fence",
            "unpromised",
            body,
            "which PTX asks for",
            case,
            threads=256,
            rule=rules.ALLOC_SYNCHRONOUS if "a barrier alone" in case else rules.FENCES,
        )
        for case, body in FENCES.items()
    ),
    *(
        Kind(
            "tensor memory overwritten while a tcgen05.ld may be under way",
            "tensor",
            _overwritten(use),
            "nothing orders these accesses to tensor memory",
            case,
            threads=256,
            rule=rules.REGISTER_DEPENDENCY,
        )
        for case, use in PENDING.items()
    ),
    *(
        Kind(
            "tensor memory overwritten behind a tcgen05.ld that is over, without tcgen05.wait::ld",
            "unpromised",
            _overwritten(use),
            "the earlier one is over",
            case,
            threads=256,
            rule=rules.REGISTER_DEPENDENCY,
        )
        for case, use in USED.items()
    ),
    *(
        Kind(
            "tensor memory of another warp's lanes",
            "unpromised",
            f"{ALLOC_FENCED} {body}\n{FREE_FENCED}".replace("<right>", ""),
            says,
            case,
            threads=128,
            one_sided=True,
            rule=rules.LANES,
        )
        for case, (body, says) in LANES.items()
    ),
)
