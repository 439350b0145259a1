"""Pairs about who sees which memory: matrix and bulk instructions, mbarriers that are overwritten, CTAs that end."""

from __future__ import annotations

from attn_mlir.validation.emulator.kinds import Kind, spin

RACE = "nothing orders these accesses"
PROXY = "fence.proxy.async is missing"

# ---- matrices and st.bulk

_ROW = "and.b32 r4, r60, 31; shl.b32 r4, r4, 4; add.u32 r4, r4, r2; mov.u32 r5, 0;"  # lane's 16 B
_FILL = f"{_ROW} @p2 st.shared.v4.b32 [r4], {{r5, r5, r5, r5}};"
_LDM = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r10, r11, r12, r13}, [r4];"
_STM = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [r4], {r5, r5, r5, r5};"
_OUT = "ld.param.u64 rd1, [out]; @!p1 bra END;"
_STORE = (
    f"{_OUT} cp.async.bulk.global.shared::cta.bulk_group [rd1], [r2], 512; cp.async.bulk.commit_group; "
    "cp.async.bulk.wait_group.read 0; END:"
)
_BULK = "mov.u64 rd5, 512; @p1 st.bulk.weak.shared::cta [r2], rd5, 0;"
_COPY_IN = "ld.param.u64 rd1, [out]; and.b32 r6, r60, 31; mad.wide.u32 rd2, r6, 16, rd1;"
_COPY_ONE = (
    "cp.async.cg.shared.global [r2], [rd2], 16; cp.async.commit_group; cp.async.wait_group 0;"
)
# name -> (body, threads)
MATRICES = {
    "ldmatrix of another warp's stores": (f"{_FILL}\n<right> bar.sync 0;\n@!p2 {_LDM}", 64),
    "ldmatrix of another warp's stmatrix": (
        f"{_ROW} @p2 {_STM}\n<right> bar.sync 0;\n@!p2 {_LDM}",
        64,
    ),
    "load of another warp's stmatrix": (
        f"{_ROW} @p2 {_STM}\n<right> bar.sync 0;\n@!p2 ld.shared.b32 r6, [r4];",
        64,
    ),
    "load of another lane's row of stmatrix": (
        f"{_ROW} {_STM}\n<right> bar.warp.sync -1;\nxor.b32 r4, r4, 16; ld.shared.b32 r6, [r4];",
        32,
    ),
    "stmatrix over what another warp reads": (
        f"{_FILL} bar.sync 0; @p2 ld.shared.b32 r6, [r4];\n<right> bar.sync 0;\n@!p2 {_STM}",
        64,
    ),
    "store over what ldmatrix of another warp reads": (
        f"{_FILL} bar.sync 0; @p2 {_LDM}\n<right> bar.sync 0;\n@!p2 st.shared.b32 [r4], r5;",
        64,
    ),
    "two warps' stmatrix of one tile": (
        f"{_ROW}\n<right> @!p2 add.u32 r4, r4, 1024;\n{_STM}\n<wrong> mov.u32 r6, r5;",
        64,
    ),
    "ldmatrix of other lanes' cp.async": (
        f"{_ROW} {_COPY_IN} cp.async.cg.shared.global [r4], [rd2], 16; cp.async.commit_group;\n"
        f"cp.async.wait_group 0;\n<right> bar.sync 0;\n<wrong> xor.b32 r4, r4, 16;\n{_LDM}",
        32,
    ),
    "ldmatrix of what cp.async has not brought": (
        f"{_ROW} bar.warp.sync -1; @p2 st.shared.v4.b32 [r4], {{r5, r5, r5, r5}}; bar.sync 0; {_COPY_IN} "
        "cp.async.cg.shared.global [r4], [rd2], 16; cp.async.commit_group;\n<right> cp.async.wait_group 0;\n"
        f"bar.sync 0; {_LDM}\n<wrong> cp.async.wait_group 0;",
        32,
    ),
    "cp.async of two lanes into one place": (
        f"{_ROW} {_COPY_IN} st.global.b32 [rd2], r60;\n<wrong> and.b32 r4, r4, 0xffffffef;\n"
        "cp.async.cg.shared.global [r4], [rd2], 16; cp.async.commit_group; cp.async.wait_group 0;",
        32,
    ),
    "cp.async of all lanes into one place, of other bytes in one": (
        f"{_COPY_IN} setp.eq.u32 p3, r60, 7;\n<wrong> @p3 st.global.b32 [rd2], r60;\n{_COPY_ONE}\n"
        "bar.warp.sync -1; ld.shared.b32 r6, [r2];",
        32,
    ),
    "cp.async of all lanes into one place, read without those of the others": (
        f"{_COPY_IN} {_COPY_ONE}\n<right> bar.warp.sync -1;\nld.shared.b32 r6, [r2];",
        32,
    ),
    "cp.async of all lanes into one place that another warp still reads": (
        f"{_COPY_IN} @p1 st.shared.b32 [r2], r60; bar.sync 0; @!p2 ld.shared.b32 r6, [r2];\n<right> bar.sync 0;\n@p2 {_COPY_ONE.replace('; ', '; @p2 ')}",
        64,
    ),
    "store over another lane's cp.async, each of them waited for": (
        f"{_ROW} {_COPY_IN} cp.async.cg.shared.global [r4], [rd2], 16; cp.async.commit_group; cp.async.wait_group 0;\n"
        "<wrong> xor.b32 r4, r4, 16;\nst.shared.v4.b32 [r4], {r5, r5, r5, r5};",
        32,
    ),
    "ldmatrix before the copy's mbarrier": (
        f"{_FILL} fence.proxy.async; @p1 mbarrier.init.shared::cta.b64 [r1], 1; fence.mbarrier_init.release.cluster;"
        " bar.sync 0; ld.param.u64 rd1, [out]; @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 512;"
        " @p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2], [rd1], 512, [r1];\n"
        f"<right> {spin('r1', 0)}\nbar.warp.sync -1; {_LDM}\n<wrong> {spin('r1', 0)}",
        32,
    ),
    "load of another warp's st.bulk": (
        f"{_BULK}\n<right> bar.sync 0;\n@!p2 ld.shared.b32 r6, [r2+8];",
        64,
    ),
    "st.bulk over what another warp stores": (
        f"@!p2 st.shared.b32 [r3], r60;\n<right> bar.sync 0;\n{_BULK}",
        64,
    ),
    "st.bulk over what ldmatrix of another warp reads": (
        f"{_FILL} bar.sync 0; @!p2 {_LDM}\n<right> bar.sync 0;\n{_BULK}",
        64,
    ),
    "atomic on what st.bulk of another warp clears": (
        f"{_BULK}\n<right> bar.sync 0;\n@!p2 red.shared.add.u32 [r2], 1;",
        64,
    ),
}
PROXIES = {
    "stmatrix before a bulk store": (
        f"{_ROW} {_STM}\n<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_STORE}",
        32,
    ),
    "st.bulk before a bulk store": (
        f"{_BULK}\n<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_STORE}",
        32,
    ),
    "atomics before a bulk store": (
        f"{_BULK} fence.proxy.async; bar.sync 0; red.shared.add.u32 [r3], 1;\n"
        f"<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_STORE}",
        32,
    ),
    "a fence of global memory's proxy for none": (
        f"{_ROW} {_STM}\n<right> fence.proxy.async;\n<wrong> fence.acq_rel.cta;\nbar.sync 0; {_STORE}",
        32,
    ),
    "a fence before the stores": (
        f"{_ROW}\n<wrong> fence.proxy.async;\n{_STM}\n<right> fence.proxy.async;\nbar.sync 0; {_STORE}",
        32,
    ),
}

# cp.async writes through the generic proxy, so it needs the fence of a store, behind the wait for its completion
_BRING = f"{_ROW} {_COPY_IN} cp.async.cg.shared.global [r4], [rd2], 16; cp.async.commit_group;"
_ARRIVING = (
    f"@p1 mbarrier.init.shared::cta.b64 [r1], 32; bar.sync 0; {_ROW} {_COPY_IN} @!p2 bra OTHER;"
    " cp.async.cg.shared.global [r4], [rd2], 16; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r1];"
)
_STORE_OF_OTHER = _STORE.replace("@!p1 bra END", "setp.eq.u32 p3, r60, 32; @!p3 bra END")
_FLAG = "ld.param.u64 rd1, [out]; @p1 st.release.cta.global.b32 [rd1+2048], 1;"
_SEEN = "SEEN: ld.acquire.cta.global.b32 r7, [rd1+2048]; setp.eq.u32 p3, r7, 0; @p3 bra SEEN;"
COPIED = {
    "cp.async before a bulk store": (
        f"{_BRING} cp.async.wait_group 0;\n<right> fence.proxy.async.shared::cta;\nbar.sync 0; {_STORE}",
        32,
    ),
    "cp.async before a bulk store, the fence behind the barrier": (
        f"{_BRING} cp.async.wait_group 0; bar.sync 0;\n<right> fence.proxy.async.shared::cta;\n{_STORE}",
        32,
    ),
    "cp.async before a bulk store, a fence of another proxy": (
        f"{_BRING} cp.async.wait_group 0;\n<wrong> fence.proxy.alias;\n<right> fence.proxy.async;\nbar.sync 0; {_STORE}",
        32,
    ),
    "cp.async before a bulk store, fenced before it is complete": (
        f"{_BRING}\n<wrong> fence.proxy.async;\ncp.async.wait_group 0;\n<right> fence.proxy.async;\nbar.sync 0; {_STORE}",
        32,
    ),
    "cp.async that arrives on an mbarrier, before a bulk store": (
        f"{_ARRIVING}\n<wrong> fence.proxy.async;\nbra END; OTHER: {spin('r1', 0)}\n"
        f"<right> fence.proxy.async;\n{_STORE_OF_OTHER}",
        64,
    ),
    "cp.async before a bulk store, by way of a flag": (
        f"@!p2 bra OTHER; {_BRING} cp.async.wait_group 0;\n<right> fence.proxy.async;\nbar.warp.sync -1; {_FLAG} bra END;\n"
        f"OTHER: ld.param.u64 rd1, [out]; {_SEEN} {_STORE_OF_OTHER}",
        64,
    ),
    "a copy over what cp.async brought": (
        f"{_BRING} cp.async.wait_group 0; @p1 mbarrier.init.shared::cta.b64 [r1], 1; fence.mbarrier_init.release.cluster;"
        f"\n<right> fence.proxy.async;\nbar.sync 0; {_OUT} mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 512;"
        " cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2], [rd1], 512, [r1];"
        f" {spin('r1', 0)} END:",
        32,
    ),
}

# ---- mbarriers whose bytes are used

_INIT = "@p1 mbarrier.init.shared::cta.b64 [r1], 1; @p1 mbarrier.init.shared::cta.b64 [r2], 1; fence.mbarrier_init.release.cluster; bar.sync 0;"
_LIVE = "these bytes are a live mbarrier"
_HERE = "<wrong> mov.u32 r6, r2;\n<right> add.u32 r6, r2, 1024;\n"
LIVE = {
    "by a store": f"{_INIT}\n{_HERE}@p1 st.shared.b32 [r6+4], r60;",
    "by half of a vector store": f"{_INIT} mov.u64 rd9, 0;\n<wrong> mov.u32 r6, r1;\n"
    "<right> add.u32 r6, r1, 16;\n@p1 mbarrier.init.shared::cta.b64 [r1+8], 1; @p1 st.shared.v2.b64 [r6], {rd9, rd9};",
    "by stmatrix": f"{_INIT} {_ROW}\n<right> add.u32 r4, r4, 1024;\n@p2 {_STM}",
    "by st.bulk": f"{_INIT} mov.u64 rd5, 64;\n{_HERE}@p1 st.bulk.weak.shared::cta [r6], rd5, 0;",
    "by cp.async": f"{_INIT}\n{_HERE}ld.param.u64 rd1, [out]; @p1 cp.async.ca.shared.global [r6], [rd1], 8;"
    " cp.async.commit_group; cp.async.wait_group 0;",
    "by an atomic": f"{_INIT} mov.u32 r5, 0; @p1 st.shared.b32 [r2+1024], r5;\n{_HERE}@p1 red.shared.add.u32 [r6], 1;",
    "by a load": f"{_INIT} mov.u32 r5, 0; @p1 st.shared.b32 [r2+1024], r5;\n{_HERE}@p1 ld.shared.b32 r7, [r6];",
    "by a bulk copy": f"{_INIT} ld.param.u64 rd1, [out]; @!p1 bra END;\n{_HERE}"
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 64;\n"
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r6], [rd1], 64, [r1];\n"
    f"{spin('r1', 0)}\nEND:",
    "before its inval": f"{_INIT}\n<right> @p1 mbarrier.inval.shared::cta.b64 [r2];\n@p1 st.shared.b32 [r2], r60;\n"
    "<wrong> @p1 mbarrier.inval.shared::cta.b64 [r2];",
}
REUSED = {
    "after another warp's inval": f"{_INIT} @p1 mbarrier.inval.shared::cta.b64 [r2];\n<right> bar.sync 0;\n"
    "@!p2 st.shared.b32 [r3+-128], r60;",
    "before another warp's init": "@!p2 st.shared.b32 [r3+-128], r60;\n<right> bar.sync 0;\n"
    "@p1 mbarrier.init.shared::cta.b64 [r2], 1;",
}

# ---- CTAs that end

_PEER = (
    "mov.u32 r7, %cluster_ctarank; xor.b32 r8, r7, 1; mapa.shared::cluster.u32 r9, r3, r8;"
    "mapa.shared::cluster.u32 r10, r1, r8; setp.eq.u32 p4, r7, 0; mov.u32 r5, 0;"
    "@p1 mbarrier.init.shared::cta.b64 [r1], 2; st.shared.b32 [r3], r60; fence.mbarrier_init.release.cluster;"
)
_MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
_GONE = "barrier.cluster.wait before the end are missing"
ENDS = {
    "remote store": "@p4 st.shared::cluster.b32 [r9], r60;",
    "remote load": "@p4 ld.shared::cluster.b32 r11, [r9];",
    "remote atomic": "@p4 red.relaxed.cluster.shared::cluster.add.u32 [r9], 1;",
    "remote arrival": "@p4 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r10], 1;",
    "store long after": "@p4 nanosleep.u32 1; @p4 nanosleep.u32 1; @p4 nanosleep.u32 1; @p4 st.shared::cluster.b32 [r9], r60;",
}


def _ends(case: str, use: str) -> Kind:
    threads = 1 if case == "remote arrival" else 64
    body = f"{_PEER} {_MEET} {use}\n<right> {_MEET}"
    return Kind(
        "end of a CTA before others are done with its memory",
        "exit",
        body,
        _GONE,
        case,
        threads=threads,
        ctas=2,
        one_sided=True,
    )


# ---- loads that use some of their bytes

_SOME = '.pragma "used_bytes_mask 0xfff";'
_ALL = '.pragma "used_bytes_mask 0xffff";'
_V4 = "{r10, r11, r12, r13}"
USED_BYTES = {  # body, who finds it
    "another warp writes the rest": (
        f"{_FILL} bar.sync 0; @!p2 st.shared.b32 [r4+12], r60;\n<wrong> {_ALL}\n<right> {_SOME}\n"
        f"@p2 ld.shared.v4.b32 {_V4}, [r4];",
        "race",
    ),
    "the rest of global memory": (
        f"{_ROW} ld.param.u64 rd1, [out]; cvt.u64.u32 rd2, r4; and.b64 rd2, rd2, 511; add.u64 rd1, rd1, rd2; "
        f"@!p2 st.global.b32 [rd1+12], r60;\n<right> {_SOME}\n@p2 ld.global.v4.b32 {_V4}, [rd1];",
        "race",
    ),
    "nothing wrote the rest": (
        f"{_ROW} st.shared.v2.b32 [r4], {{r5, r5}}; st.shared.b32 [r4+8], r5;\n<wrong> {_ALL}\n<right> {_SOME}\n"
        f"ld.shared.v4.b32 {_V4}, [r4];",
        "uninitialised",
    ),
    "of half a word": (
        f'{_ROW} mov.u16 h1, 1; st.shared.b16 [r4], h1;\n<right> .pragma "used_bytes_mask 3";\nld.shared.b32 r6, [r4];',
        "uninitialised",
    ),
    "nothing wrote the rest of local memory": (
        ".local .align 16 .b8 frame[16]; mov.u32 r40, frame; mov.u32 r41, 7; st.local.v2.b32 [r40], {r41, r41}; "
        f"st.local.b32 [r40+8], r41;\n<right> {_SOME}\nld.local.v4.b32 {_V4}, [r40];",
        "uninitialised",
    ),
    "the pragma is another instruction's": (
        f"{_ROW} st.shared.v2.b32 [r4], {{r5, r5}}; st.shared.b32 [r4+8], r5; {_SOME}\n<wrong> mov.u32 r6, r5;\n"
        f"ld.shared.v4.b32 {_V4}, [r4];",
        "uninitialised",
    ),
}

_BY_ONE = "@p1 mbarrier.init.shared::cta.b64 [r1], {count};\n<right> bar.warp.sync -1;\n"
# by all lanes of the warp of which one has initialised it
USED = {
    "an arrival of every lane": _BY_ONE.format(count=32)
    + "@p2 mbarrier.arrive.shared::cta.b64 _, [r1];",
    "a wait of every lane": (
        _BY_ONE.format(count=1)
        + f"@!p2 bra END; @p1 mbarrier.arrive.shared::cta.b64 _, [r1]; {spin('r1', 0)} END:"
    ),
    "an announcement of every lane": (
        _BY_ONE.format(count=1) + "@p2 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r1], 0;"
    ),
}

_WORD = "<wrong> st.shared.b32 [r2], r60;\n<right> st.shared.b32 [r2], 7;\n"
# by lanes of one instruction
STORED = {
    "by lanes of one instruction": _WORD,
    "by lanes of which one knows more": (
        "@p1 mbarrier.init.shared::cta.b64 [r1], 1; @!p1 bra MEET; "
        f"mbarrier.arrive.shared::cta.b64 _, [r1]; {spin('r1', 0)} MEET:\n{_WORD}"
    ),
}


# ---- memory that may not be written

_WORD = "ld.param.u64 rd1, [out]; mad.wide.u32 rd2, r60, 4, rd1;"
_SET = (
    "@p2 st.shared.v4.b32 [r4], {r5, r5, r5, r5}; fence.proxy.async.shared::cta; bar.warp.sync -1;"
)
_LOADS = "\n<wrong> ld.global.nc.b32 r6, [rd2];\n<right> ld.global.b32 r6, [rd2];\n"
CONSTANT_READS = {
    "by a store before it": f"{_WORD} st.global.b32 [rd2], r60;{_LOADS}",
    "by a store after it, in order": f"{_WORD}{_LOADS}bar.sync 0; xor.b32 r7, r60, 1; mad.wide.u32 rd2, r7, 4, rd1;\n"
    "st.global.b32 [rd2], r6;",
    "by an atomic": f"{_WORD}{_LOADS}bar.sync 0;\nred.relaxed.gpu.global.add.u32 [rd2], r60;",
    "by a bulk copy": f"{_ROW} {_WORD} {_SET}{_LOADS}bar.warp.sync -1;\n{_STORE}",
}
READ_ONLY = {
    "a parameter": "mov.b64 rd1, out; cvta.param.u64 rd2, rd1;\n<wrong> st.b32 [rd2], r60;\n<right> ld.b32 r4, [rd2];",
}

PAIRS = (
    *(
        Kind("different values stored to a word", "race", body, RACE, case, threads=32)
        for case, body in STORED.items()
    ),
    *(
        Kind(
            "matrix and bulk instructions without a barrier",
            "race",
            body,
            RACE,
            case,
            threads=threads,
        )
        for case, (body, threads) in MATRICES.items()
    ),
    *(
        Kind("missing proxy fence", "proxy", body, PROXY, case, threads=threads)
        for case, (body, threads) in (PROXIES | COPIED).items()
    ),
    *(
        Kind("live mbarrier used as memory", "mbarrier", body, _LIVE, case)
        for case, body in LIVE.items()
    ),
    Kind(
        "live mbarrier used as memory",
        "mbarrier",
        f"{_PEER} {_MEET}\n<wrong> @p1 st.shared::cluster.b32 [r10], r5;\n"
        f"<right> @p1 st.shared::cluster.b32 [r10+16], r5;\n{_MEET}",
        _LIVE,
        "of another CTA",
        ctas=2,
    ),
    *(
        Kind(
            "mbarrier used before its init is known", "mbarrier", body, "a barrier is missing", case
        )
        for case, body in USED.items()
    ),
    *(
        Kind("mbarrier's bytes used without a barrier", "race", body, RACE, case)
        for case, body in REUSED.items()
    ),
    *(
        Kind(
            "bytes of a load that its pragma calls used",
            found,
            body,
            case=case,
            threads=64 if found == "race" else 32,
            one_sided=found == "uninitialised",
        )
        for case, (body, found) in USED_BYTES.items()
    ),
    *(_ends(case, use) for case, use in ENDS.items()),
    Kind(
        "wait at the cluster's barrier without an arrival",
        "barrier",
        f"{_MEET}\n<right> barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        "barrier.cluster.arrive is missing",
        "a second one",
        ctas=2,
        one_sided=True,
    ),
    *(
        Kind(
            "a write of what ld.global.nc reads",
            "race",
            body,
            "ld.global.nc promises",
            case,
            threads=32,
        )
        for case, body in CONSTANT_READS.items()
    ),
    *(
        Kind(
            "a write of memory that is read-only",
            "out-of-bounds",
            body,
            "memory that is read-only",
            case,
            one_sided=True,
        )
        for case, body in READ_ONLY.items()
    ),
)
