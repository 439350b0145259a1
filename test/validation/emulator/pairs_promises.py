"""Pairs about tensor memory: what is wrong on silicon, and what only PTX does not promise."""

from __future__ import annotations

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

PAIRS = (
    *(
        Kind(
            "tensor memory handed over without tcgen05.fence",
            "unpromised",
            body,
            "which PTX asks for",
            case,
            threads=256,
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
        )
        for case, use in USED.items()
    ),
    *(
        Kind(
            "tensor memory of another warp's lanes",
            "unpromised",
            f"{ALLOC_FENCED} {body}\n{FREE_FENCED.replace('<right>', '')}",
            says,
            case,
            threads=128,
            one_sided=True,
        )
        for case, (body, says) in LANES.items()
    ),
)
