"""Pairs about registers: those of wgmma, those that lanes share, and what is read that nothing wrote."""

from __future__ import annotations

import re

from attn_mlir.validation.emulator import rules
from attn_mlir.validation.emulator.kinds import Kind, spin
from attn_mlir.validation.emulator.tensor_bench import ALLOC, DEALLOC

# ---- wgmma: m64n8k16, A and B in shared memory (or A in registers), D in r10..r13

_ZERO = (
    "mov.u32 r5, 0; shl.b32 r4, r60, 4; add.u32 r4, r4, r2; st.shared.v4.b32 [r4], {r5, r5, r5, r5};"
    " st.shared.v4.b32 [r4+2048], {r5, r5, r5, r5};"
)
_FILL = f"{_ZERO} fence.proxy.async.shared::cta; bar.sync 0;"
_DESC = "shr.u32 r6, r2, 4; cvt.u64.u32 rd5, r6; or.b64 rd5, rd5, 0x0000001000080000; add.u64 rd6, rd5, 128;"
_SET = "mov.u32 r10, 0; mov.u32 r11, 0; mov.u32 r12, 0; mov.u32 r13, 0; setp.ne.u32 p3, r60, r60; setp.eq.u32 p4, r60, r60;"
_SET_A = "mov.u32 r20, 0; mov.u32 r21, 0; mov.u32 r22, 0; mov.u32 r23, 0;"
_MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{r10, r11, r12, r13}}, {a}, rd6, {p}, 1, 1, {flags};"
_SS = _MMA.format(a="rd5", p="p3", flags="0, 0")
_MORE = _MMA.format(a="rd5", p="p4", flags="0, 0")
_RS = _MMA.format(a="{r20, r21, r22, r23}", p="p3", flags="0")
_FENCE = "wgmma.fence.sync.aligned;"
_DONE = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
_BEFORE = "wgmma.fence is missing"
_UNTIL = "belong to wgmma.mma_async until wgmma.wait_group"
_START = f"{_FILL} {_DESC} {_SET}"
# name -> (body, part of the message, whether there is a second line)
WGMMA = {
    "no fence at all": (f"{_START}\n<right> {_FENCE}\n{_SS} {_DONE}", _BEFORE),
    "accumulators set after the fence": (
        f"{_START} {_FENCE}\n<wrong> mov.u32 r11, r5;\n{_SS} {_DONE}",
        _BEFORE,
    ),
    "A set after the fence": (
        f"{_START} {_SET_A} {_FENCE}\n<wrong> mov.u32 r22, r5;\n{_RS} {_DONE}",
        _BEFORE,
    ),
    "accumulators changed between two products": (
        f"{_START} {_FENCE} {_SS} {_DONE} add.u32 r10, r10, 1;\n<right> {_FENCE}\n{_MORE} {_DONE}",
        _BEFORE,
    ),
    "accumulators read between two products": (
        f"{_START} {_FENCE} {_SS} {_DONE} add.u32 r31, r12, 1;\n<right> {_FENCE}\n{_MORE} {_DONE}",
        _BEFORE,
    ),
    "the fence on one path only": (
        f"{_START} setp.eq.u32 p5, r61, 9;\n<right> {_FENCE}\n@p5 bra SKIP;\n<wrong> @!p5 bra SKIP;\n{_FENCE}\nSKIP:\n{_SS} {_DONE}",
        _BEFORE,
    ),
    "the next turn of a loop": (
        f"{_START} mov.u32 r30, 0; {_FENCE}\nLOOP:\n{_MORE} {_DONE} add.u32 r13, r13, 1;\n<right> {_FENCE}\n"
        "add.u32 r30, r30, 1; setp.lt.u32 p5, r30, 2; @p5 bra LOOP;",
        _BEFORE,
    ),
    "A changed before the wait": (
        f"{_START} {_SET_A} {_FENCE} {_RS} wgmma.commit_group.sync.aligned;\n<wrong> add.u32 r21, r21, 1;\n"
        "wgmma.wait_group.sync.aligned 0;\n<right> add.u32 r21, r21, 1;",
        _UNTIL,
    ),
    "A changed before the wait for its group": (
        f"{_START} {_SET_A} {_FENCE} {_SS} wgmma.commit_group.sync.aligned; {_RS} wgmma.commit_group.sync.aligned;\n"
        "wgmma.wait_group.sync.aligned 1;\n<wrong> mov.u32 r20, 7;\nwgmma.wait_group.sync.aligned 0;",
        _UNTIL,
    ),
    "accumulators set before the wait": (
        f"{_START} {_FENCE} {_SS} wgmma.commit_group.sync.aligned;\n<wrong> mov.u32 r10, r5;\n"
        "wgmma.wait_group.sync.aligned 0;\n<right> mov.u32 r10, r5;",
        _UNTIL,
    ),
}
_GO = f"{_DESC} {_SET} {_FENCE}"
_ZEROED = f"{_FILL} {_GO}"
# name -> (body, check)
OPERANDS = {
    "warps' stores without a barrier": (
        f"{_ZERO} fence.proxy.async.shared::cta;\n<right> bar.sync 0;\n{_GO} {_SS} {_DONE}",
        "race",
    ),
    "stores of one warp, the others do not wait": (
        f"{_FILL} setp.eq.u32 p5, r61, 3; @p5 st.shared.b32 [r2+2048], r5; fence.proxy.async.shared::cta;\n"
        f"<right> bar.sync 0;\n{_GO} {_SS} {_DONE}",
        "race",
    ),
    "A's rows of another warp": (  # a warp needs no barrier for its own rows, 512 bytes
        f"{_FILL} shl.b32 r7, r61, 9; and.b32 r8, r60, 31; shl.b32 r8, r8, 2; add.u32 r7, r7, r8; add.u32 r7, r7, r2;\n"
        f"<wrong> xor.b32 r7, r7, 512;\nst.shared.b32 [r7], r5; fence.proxy.async.shared::cta; bar.warp.sync -1; {_GO} {_SS} {_DONE}",
        "race",
    ),
    "stores before the product has read": (
        f"{_ZEROED} {_SS} wgmma.commit_group.sync.aligned;\n<right> wgmma.wait_group.sync.aligned 0;\n"
        "st.shared.b32 [r2+2048], r5;\n<wrong> wgmma.wait_group.sync.aligned 0;".replace(
            "st.shared.b32 [r2+2048]", "setp.eq.u32 p5, r60, 0; @p5 st.shared.b32 [r2+2048]"
        ),
        "race",
    ),
    "no proxy fence": (
        f"{_ZERO}\n<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_GO} {_SS} {_DONE}",
        "proxy",
    ),
    "the proxy fence before the stores": (
        f"<wrong> fence.proxy.async.shared::cta;\n{_ZERO}\n<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_GO} {_SS} {_DONE}",
        "proxy",
    ),
    "cp.async without a proxy fence": (
        "ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 32, rd1; shl.b32 r4, r60, 5; add.u32 r4, r4, r2; mov.u32 r5, 0;"
        " cp.async.cg.shared.global [r4], [rd1], 16; cp.async.cg.shared.global [r4+16], [rd1+16], 16; cp.async.wait_all;\n"
        f"<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_GO} {_SS} {_DONE}",
        "proxy",
    ),
    "stmatrix without a proxy fence": (
        f"{_FILL} and.b32 r7, r60, 31; shl.b32 r7, r7, 4; add.u32 r7, r7, r2;\n"
        "setp.eq.u32 p5, r61, 0; @p5 stmatrix.sync.aligned.m8n8.x4.shared.b16 [r7], {r5, r5, r5, r5};\n"
        f"<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_GO} {_SS} {_DONE}",
        "proxy",
    ),
}

# ---- member masks

_LOW = "setp.lt.u32 p3, r60, 16; mov.u32 r4, 0xffff; mov.u32 r5, 1;"
MEMBERS = {
    "shfl by lanes outside the mask": "\n<wrong> shfl.sync.bfly.b32 r6, r60, 1, 31, 0xffff;\n"
    "<right> @p3 shfl.sync.bfly.b32 r6, r60, 1, 31, 0xffff;",
    "shfl with a mask in a register": "\n<wrong> shfl.sync.idx.b32 r6, r60, 0, 31, r4;\n"
    "<right> @p3 shfl.sync.idx.b32 r6, r60, 0, 31, r4;",
    "shfl from a lane outside the mask": "\n<wrong> @p3 shfl.sync.bfly.b32 r6, r60, 16, 31, 0xffff;\n"
    "<right> @p3 shfl.sync.bfly.b32 r6, r60, 8, 31, 0xffff;",
    "shfl whose guard leaves members out": "\n<wrong> @p3 shfl.sync.bfly.b32 r6, r60, 1, 31, -1;\n"
    "<right> shfl.sync.bfly.b32 r6, r60, 1, 31, -1;",
    "shfl.up from a lane outside the mask": "setp.ge.u32 p4, r60, 16;\n"
    "<wrong> @p4 shfl.sync.up.b32 r6, r60, 1, 0, 0xffff0000;\n<right> @p4 shfl.sync.up.b32 r6, r60, 1, 0x1000, 0xffff0000;",
    "vote whose guard leaves members out": "\n<wrong> @p3 vote.sync.ballot.b32 r6, p1, -1;\n"
    "<right> vote.sync.ballot.b32 r6, p1, -1;",
    "vote by lanes outside the mask": "\n<wrong> vote.sync.any.pred p5, p1, 0xffff;\n"
    "<right> @p3 vote.sync.any.pred p5, p1, 0xffff;",
    "match by lanes outside the mask": "\n<wrong> match.any.sync.b32 r6, r60, 0xffff;\n"
    "<right> @p3 match.any.sync.b32 r6, r60, 0xffff;",
    "redux by lanes outside the mask": "\n<wrong> redux.sync.add.u32 r6, r60, 0xffff;\n"
    "<right> @p3 redux.sync.add.u32 r6, r60, 0xffff;",
    "elect by lanes outside the mask": "\n<wrong> elect.sync r6|p5, 0xffff;\n<right> @p3 elect.sync r6|p5, 0xffff;",
    "bar.warp.sync by lanes outside the mask": "\n<wrong> bar.warp.sync 0xffff;\n<right> @p3 bar.warp.sync 0xffff;",
    "two halves with one mask": "@p3 bra LOW;\n<right> shfl.sync.bfly.b32 r6, r60, 1, 31, 0xffff0000; bra MEET;\n"
    "<wrong> shfl.sync.bfly.b32 r6, r60, 1, 31, 0xffff; bra MEET;\n"
    "LOW: shfl.sync.bfly.b32 r6, r60, 1, 31, 0xffff;\nMEET:",
}

# ---- what nothing wrote

_USE = "ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1;"
UNWRITTEN = {
    "a register": f"{_USE}\n<right> mov.u32 r40, 1;\nadd.u32 r4, r40, 1; st.global.b32 [rd1], r4;",
    "a stored register": f"{_USE}\n<right> mov.u32 r40, 1;\nst.global.b32 [rd1], r40;",
    "a copy of one": f"{_USE}\n<right> mov.u32 r41, 1;\nmov.u32 r40, r41; st.global.b32 [rd1], r40;",
    "an element of a vector": f"{_USE}\n<right> mov.u32 r40, 1;\nst.shared.v2.b32 [r2], {{r40, r40}};",
    "an address": f"{_USE}\n<wrong> st.global.b32 [rd20], r60;\n<right> st.global.b32 [rd1], r60;",
    "a guard": f"{_USE}\n<right> setp.ne.u32 p6, r60, 3;\n@p6 st.global.b32 [rd1], r60;",
    "a negated guard": f"{_USE}\n<right> setp.ne.u32 p6, r60, 3;\n@!p6 st.global.b32 [rd1], r60;",
    "a branch's predicate": f"{_USE}\n<right> setp.ne.u32 p6, r60, 3;\n@p6 bra END; st.global.b32 [rd1], r60; END:",
    "a selecting predicate": f"{_USE}\n<right> setp.ne.u32 p6, r60, 3;\nselp.b32 r4, 1, 2, p6; st.global.b32 [rd1], r4;",
    "a register written later": f"{_USE}\n<right> mov.u32 r40, 1;\nadd.u32 r4, r40, 1; mov.u32 r40, 1; st.global.b32 [rd1], r4;",
    "a register written on the other path": f"{_USE} setp.lt.u32 p3, r60, 16; @p3 bra LOW;\n"
    "mov.u32 r40, 1; bra MEET;\nLOW:\n<right> mov.u32 r40, 2;\nadd.u32 r4, r40, 1; st.global.b32 [rd1], r4;\nMEET:",
    "a half of a register pair": f"{_USE}\n<right> mov.b64 rd8, 1;\nmov.b64 {{r40, r41}}, rd8; add.u32 r4, r40, r41;",
}
_LOCAL = ".local .align 8 .b8 frame[64]; mov.u32 r40, frame; mov.u32 r41, 7;"
LOCAL = {
    "a word": f"{_LOCAL}\n<right> st.local.b32 [r40+8], r41;\nld.local.b32 r4, [r40+8];",
    "half of a word": f"{_LOCAL} st.local.b16 [r40], h1;\n<right> st.local.b16 [r40+2], h1;\nld.local.b32 r4, [r40];",
    "in some lanes": f"{_LOCAL}\n<wrong> @p1 st.local.b32 [r40], r41;\n<right> st.local.b32 [r40], r41;\nld.local.b32 r4, [r40];",
    "half of a vector": f"{_LOCAL} st.local.b32 [r40], r41;\n<right> st.local.b32 [r40+4], r41;\nld.local.v2.b32 {{r4, r5}}, [r40];",
}
LOCAL = {
    case: body.replace("st.local.b16 [r40], h1", "mov.u16 h1, 1; st.local.b16 [r40], h1")
    for case, body in LOCAL.items()
}

_TWO = ".local .align 16 .b8 first[16]; .local .align 8 .b8 second[16]; mov.u32 r40, first; mov.u32 r42, second; mov.u32 r41, 7;"
_TWO_SET = "st.local.v2.b32 [r40], {r41, r41}; st.local.v2.b32 [r40+8], {r41, r41}; st.local.v2.b32 [r42], {r41, r41};"
PAST = {
    "a store into the next one": f"{_TWO}\n<wrong> st.local.b32 [r40+16], r41;\n<right> st.local.b32 [r40+12], r41;",
    "a load of the next one": f"{_TWO} {_TWO_SET}\n<wrong> ld.local.b32 r4, [r40+16];\n<right> ld.local.b32 r4, [r40+12];",
    "a vector that only begins inside": f"{_TWO}\n<wrong> add.u32 r40, r40, 8;\n<right> add.u32 r40, r40, 0;\n"
    "st.local.v4.b32 [r40], {r41, r41, r41, r41};",
    "in one lane, by its index": f"{_TWO} mov.u32 r43, 3;\n<wrong> @p1 mov.u32 r43, 4;\n"
    "shl.b32 r43, r43, 2; add.u32 r43, r43, r40; st.local.b32 [r43], r41;",
    "before the second one": f"{_TWO}\n<wrong> sub.u32 r42, r42, 4;\nst.local.b32 [r42], r41;",
}

# ---- tensor memory without any fence

ALLOC_FENCED = ALLOC.replace("<alloc_after>", "<right>")
FREE_FENCED = re.sub("<free_before>", "<right>", DEALLOC).replace("<free_barrier>", "")


# ---- the address that tcgen05.alloc writes to shared memory

_ADDRESS = """
    mov.u32 r19, slot; setp.ne.u32 p7, r61, 0; @p1 st.shared.b32 [r19], r60; bar.sync 0;
    {before}
    @p7 bra OTHER;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r19], 32;
    ld.shared.b32 r20, [r19];
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 r20, 32;
    OTHER:
    {after}
"""
ADDRESSES = {
    "read by another warp": ("", "<right> bar.sync 0;\n@p7 ld.shared.b32 r21, [r19];"),
    "written over what another warp reads": (
        "ld.shared.b32 r21, [r19];\n<right> bar.sync 0;",
        "<wrong> bar.sync 0;",
    ),
    "written over what its own warp reads": (
        "<right> @!p7 ld.shared.b32 r21, [r19];\n<wrong> @p7 ld.shared.b32 r21, [r19];",
        "",
    ),
    "another place that one lane writes": (
        "",
        "@p1 st.shared.b32 [r19+4], r60;\n<right> bar.warp.sync -1;\n@!p7 ld.shared.b32 r21, [r19+4];",
    ),
    "a place that one lane has written before": (
        "@p1 st.shared.b32 [r19+4], r60;\n<right> bar.warp.sync -1;",
        "@!p7 ld.shared.b32 r21, [r19+4];",
    ),
}

# ---- tcgen05.mma: A and B in shared memory are the same 128 rows of 16

_PRODUCT = f"""
    {ALLOC_FENCED}
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 32, rd1; shl.b32 r4, r60, 5; add.u32 r4, r4, r2; setp.ne.u32 p3, r60, r60;
    shr.u32 r24, r2, 4; cvt.u64.u32 rd2, r24; or.b64 rd3, rd2, {8 << 16 | 16 << 32 | 1 << 46};
    mov.b32 r25, {1 << 4 | 1 << 7 | 1 << 10 | 16 >> 3 << 17 | 128 >> 4 << 24};
    FILL
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    @!p1 bra ISSUED;
    tcgen05.mma.cta_group::1.kind::f16 [r20], rd3, rd3, r25, p3;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1];
    {spin("r1", 0)}
    ISSUED: {FREE_FENCED}
"""
TENSOR_OPERANDS = {
    "stores before tcgen05.mma": "st.shared.v4.b32 [r4], {r20, r20, r20, r20}; st.shared.v4.b32 [r4+16], {r20, r20, r20, r20};\n"
    "<right> fence.proxy.async.shared::cta;",
    "cp.async before tcgen05.mma": "cp.async.cg.shared.global [r4], [rd1], 16; cp.async.cg.shared.global [r4+16], [rd1+16], 16;\n"
    "<wrong> fence.proxy.async.shared::cta;\ncp.async.wait_all;\n<right> fence.proxy.async.shared::cta;",
}

PAIRS = (
    *(
        Kind(
            "missing proxy fence",
            "proxy",
            _PRODUCT.replace("FILL", fill),
            "fence.proxy.async is missing",
            case,
            threads=128,
        )
        for case, fill in TENSOR_OPERANDS.items()
    ),
    *(
        Kind(
            "race of two warps in shared memory",
            "race",
            _ADDRESS.format(before=before, after=after),
            "nothing orders these accesses",
            f"the address of an allocation, {case}",
            rule=rules.ALLOC_ADDRESS,
        )
        for case, (before, after) in ADDRESSES.items()
    ),
    *(
        Kind(
            "registers of wgmma",
            "wgmma",
            body,
            says,
            case,
            threads=128,
            one_sided=True,
            target="sm_90a",
        )
        for case, (body, says) in WGMMA.items()
    ),
    *(
        Kind(
            "operands of wgmma in shared memory",
            check,
            body,
            "",
            case,
            threads=128,
            target="sm_90a",
        )
        for case, (body, check) in OPERANDS.items()
    ),
    *(
        Kind(
            "lanes and member mask disagree",
            "warp",
            _LOW + body,
            "lane",
            case,
            threads=32,
            one_sided=True,
        )
        for case, body in MEMBERS.items()
    ),
    *(
        Kind(
            "read of a register that nothing wrote",
            "uninitialised",
            body,
            "nothing before that writes them",
            case,
            threads=32,
            one_sided=True,
        )
        for case, body in UNWRITTEN.items()
    ),
    *(
        Kind(
            "read of local memory never written",
            "uninitialised",
            body,
            "local memory read before any write",
            case,
            threads=32,
            one_sided=True,
        )
        for case, body in LOCAL.items()
    ),
    *(
        Kind(
            "access past the end of a local variable",
            "out-of-bounds",
            body,
            "past the end of a local variable",
            case,
            threads=32,
            one_sided=True,
        )
        for case, body in PAST.items()
    ),
)
