"""Pairs about the order of memory accesses: flags, fences, scopes, atomics, barriers that carry or do not."""

from __future__ import annotations

from attn_mlir.validation.emulator.kinds import Kind

RACE = "nothing orders these accesses"


def _either(right: str, wrong: str) -> str:
    return f"\n<right> {right}\n<wrong> {wrong}\n"


# ---- one CTA writes data and a flag, the other reads the flag and the data

_GLOBAL = """
    ld.param.u64 rd1, [out]; mov.u32 r8, %ctaid.x; setp.ne.u32 p3, r8, 0; mov.u32 r4, 1; mov.u32 r5, 0;
    @p3 bra READ;
    st.global.b32 [rd1], r4;
    {write}
    bra END;
    READ:
    {read}
    setp.eq.u32 p4, r5, 0; @p4 bra READ;
    {after}
    ld.global.b32 r6, [rd1];
    END:
"""
_ST, _LD = "st.relaxed.gpu.global.b32 [rd1+128], r4;", "ld.relaxed.gpu.global.b32 r5, [rd1+128];"
_REL, _ACQ = "st.release.gpu.global.b32 [rd1+128], r4;", "ld.acquire.gpu.global.b32 r5, [rd1+128];"
_FENCE = "fence.acq_rel.gpu;"
FLAGS = {
    "a relaxed store as release": (_either(_REL, _ST), _ACQ, ""),
    "a relaxed load as acquire": (_REL, _either(_ACQ, _LD), ""),
    "no fence before the flag's store": (f"<right> {_FENCE}\n{_ST}", _LD, _FENCE),
    "no fence after the flag's load": (f"{_FENCE} {_ST}", _LD, f"<right> {_FENCE}"),
    "the fence after the flag's store": (_either(f"{_FENCE} {_ST}", f"{_ST} {_FENCE}"), _ACQ, ""),
    "the writer's fence reaches the CTA only": (
        _either(_FENCE, "fence.acq_rel.cta;") + f"\n{_ST}",
        _LD,
        _FENCE,
    ),
    "the reader's fence reaches the cluster only": (
        f"{_FENCE} {_ST}",
        _LD,
        _either(_FENCE, "fence.acq_rel.cluster;"),
    ),
    "membar.cta for membar.gl": (_either("membar.gl;", "membar.cta;") + f"\n{_ST}", _ACQ, ""),
    "fence.sc of the CTA": (
        _either("fence.sc.gpu;", "fence.sc.cta;") + f"\n{_ST}",
        _LD,
        "fence.sc.sys;",
    ),
    "a proxy fence for a fence": (
        _either(_FENCE, "fence.proxy.async;") + f"\n{_ST}",
        _ACQ,
        "",
    ),
    "an acquiring fence for a releasing one": (
        _either("fence.release.gpu;", "fence.acquire.gpu;") + f"\n{_ST}",
        _LD,
        "fence.acquire.gpu;",
    ),
    "release of the CTA": (_either(_REL, _REL.replace("gpu", "cta")), _ACQ, ""),
    "release of the cluster": (_either(_REL, _REL.replace("gpu", "cluster")), _ACQ, ""),
    "acquire of the CTA": (_REL, _either(_ACQ, _ACQ.replace("gpu", "cta")), ""),
    "volatile accesses without fences": (
        "<right> membar.gl;\nst.volatile.global.b32 [rd1+128], r4;",
        "ld.volatile.global.b32 r5, [rd1+128];",
        "<right> membar.gl;",
    ),
    "volatile store, fence at the reader only": (
        "<right> membar.sys;\nst.volatile.global.b32 [rd1+128], r4;",
        "ld.volatile.global.b32 r5, [rd1+128];",
        "membar.sys;",
    ),
    "a relaxed exchange": (
        _either(
            "atom.release.gpu.global.exch.b32 r7, [rd1+128], r4;",
            "atom.global.exch.b32 r7, [rd1+128], r4;",
        ),
        _ACQ,
        "",
    ),
    "a relaxed reduction": (
        _either(
            "red.release.gpu.global.add.u32 [rd1+128], r4;", "red.global.add.u32 [rd1+128], r4;"
        ),
        _ACQ,
        "",
    ),
    "a relaxed atomic as load": (
        _REL,
        _either(
            "atom.acquire.gpu.global.or.b32 r5, [rd1+128], 0;",
            "atom.global.or.b32 r5, [rd1+128], 0;",
        ),
        "",
    ),
    "acq_rel on one side": (
        _either(
            "atom.acq_rel.gpu.global.add.u32 r7, [rd1+128], r4;",
            "atom.relaxed.gpu.global.add.u32 r7, [rd1+128], r4;",
        ),
        "atom.acq_rel.gpu.global.add.u32 r5, [rd1+128], 0;",
        "",
    ),
    "a weak store of the flag": (_either(_REL, "st.global.b32 [rd1+128], r4;"), _ACQ, ""),
    "a weak load of the flag": (_REL, _either(_ACQ, "ld.global.b32 r5, [rd1+128];"), ""),
    "a flag in other bytes than the release": (
        _REL + _either("", "st.relaxed.gpu.global.b32 [rd1+256], r4;"),
        _either(_ACQ, _ACQ.replace("128", "256")),
        "",
    ),
}

# ---- longer ways

_CHAIN = """
    ld.param.u64 rd1, [out]; mov.u32 r8, %ctaid.x; mov.u32 r4, 1; mov.u32 r5, 0; mov.u32 r9, 2;
    setp.eq.u32 p3, r8, 1; setp.eq.u32 p4, r8, 2; @p3 bra SECOND; @p4 bra THIRD;
    st.global.b32 [rd1], r4; st.release.gpu.global.b32 [rd1+128], r4; bra END;
    SECOND:
    {second}
    bra END;
    THIRD:
    {third}
    ld.global.b32 r6, [rd1];
    END:
"""
_WAIT_1 = "SPIN1: {load} setp.ne.u32 p5, r5, 1; @p5 bra SPIN1;"
_WAIT_2 = "SPIN2: ld.acquire.gpu.global.b32 r5, [rd1+{at}]; setp.ne.u32 p5, r5, 2; @p5 bra SPIN2;"
CHAINS = {
    "a store after an atomic that went on with another's release": (
        _WAIT_1.format(load=_LD)
        + "\natom.release.gpu.global.add.u32 r7, [rd1+128], 1; mov.u32 r9, 3;\n"
        + _either(
            "atom.relaxed.gpu.global.exch.b32 r7, [rd1+128], r9;",
            "st.relaxed.gpu.global.b32 [rd1+128], r9;",
        ),
        "SPIN3: ld.acquire.gpu.global.b32 r5, [rd1+128]; setp.ne.u32 p5, r5, 3; @p5 bra SPIN3;",
    ),
    "the one between does not acquire": (
        _either(_WAIT_1.format(load=_ACQ), _WAIT_1.format(load=_LD))
        + "\nst.release.gpu.global.b32 [rd1+256], r9;",
        _WAIT_2.format(at=256),
    ),
    "the one between does not release": (
        _WAIT_1.format(load=_ACQ)
        + _either(
            "st.release.gpu.global.b32 [rd1+256], r9;", "st.relaxed.gpu.global.b32 [rd1+256], r9;"
        ),
        _WAIT_2.format(at=256),
    ),
    "the one between fences for its CTA": (
        _WAIT_1.format(load=_LD)
        + _either("fence.acq_rel.gpu;", "fence.acq_rel.cta;")
        + "\nst.relaxed.gpu.global.b32 [rd1+256], r9;",
        _WAIT_2.format(at=256),
    ),
    "a store breaks what an atomic continues": (
        _WAIT_1.format(load=_LD)
        + _either("red.global.add.u32 [rd1+128], 1;", "st.relaxed.gpu.global.b32 [rd1+128], r9;"),
        _WAIT_2.format(at=128),
    ),
    "an atomic of the CTA breaks what one of the GPU continues": (
        _WAIT_1.format(load=_LD)
        + _either(
            "red.relaxed.gpu.global.add.u32 [rd1+128], 1;",
            "red.relaxed.cta.global.add.u32 [rd1+128], 1;",
        ),
        _WAIT_2.format(at=128),
    ),
}

# ---- the last block adds up

_LAST = """
    ld.param.u64 rd1, [out]; mov.u32 r8, %ctaid.x; shl.b32 r9, r8, 6; add.u32 r9, r9, r60;
    mad.wide.u32 rd2, r9, 4, rd1; st.global.b32 [rd2+256], r60;
    {meet}
    @!p1 bra COUNTED;
    {count}
    {after}
    st.shared.b32 [r2], r5;
    COUNTED:
    {spread}
    ld.shared.b32 r5, [r2]; setp.ne.u32 p4, r5, 2; @p4 bra END;
    mad.wide.u32 rd3, r60, 4, rd1; ld.global.b32 r10, [rd3+256]; ld.global.b32 r11, [rd3+512];
    ld.global.b32 r12, [rd3+768];
    END:
"""
_COUNT = "atom.global.add.u32 r5, [rd1], 1;"
_ALL = {
    "meet": "bar.sync 0;",
    "count": f"{_FENCE} {_COUNT}",
    "after": _FENCE,
    "spread": "bar.sync 0;",
}
LAST = {
    "no fence before the count": {"count": f"<right> {_FENCE}\n{_COUNT}"},
    "no fence after the count": {"after": f"<right> {_FENCE}"},
    "one thread counts before the others have written": {"meet": "<right> bar.sync 0;"},
    "the threads' fences come before their barrier": {
        "meet": _either(f"bar.sync 0; {_FENCE}", f"{_FENCE} bar.sync 0;"),
        "count": _COUNT,
    },
    "a relaxed count": {
        "count": _either(_COUNT.replace("atom", "atom.acq_rel.gpu"), _COUNT),
        "after": "",
    },
    "a count that releases only": {
        "count": _either(
            _COUNT.replace("atom", "atom.acq_rel.gpu"), _COUNT.replace("atom", "atom.release.gpu")
        ),
        "after": "",
    },
}

# ---- in one CTA and in one cluster

_SHARED = """
    @p1 mbarrier.init.shared::cta.b64 [r1], {count}; mov.u32 r4, 1; mov.u32 r5, 0;
    @p1 st.shared.b32 [r2+1024], r5; bar.sync 0;
    @!p2 bra READ;
    st.shared.b32 [r3], r60;
    {write}
    bra END;
    READ:
    {read}
    ld.shared.b32 r6, [r3+-128];
    END:
"""
_POLL = "POLL: {load} setp.eq.u32 p4, r5, 0; @p4 bra POLL; {after}"
_SREL = "st.release.cta.shared.b32 [r2+1024], r4;"
_SACQ = "ld.acquire.cta.shared.b32 r5, [r2+1024];"


def _try(words: str, loop: str = "TRY") -> str:
    return f"{loop}: mbarrier.try_wait.parity{words}.shared::cta.b64 p5, [r1], 0; @!p5 bra {loop};"


_ARRIVE = "mbarrier.arrive{words}.shared::cta.b64 _, [r1];"
WITHIN = {
    "a relaxed flag in shared memory": (
        f"bar.warp.sync -1; @p1 {_SREL}",
        _either(
            _POLL.format(load=_SACQ, after=""),
            _POLL.format(load=_SACQ.replace("acquire", "relaxed"), after=""),
        ),
    ),
    "a fence between other lanes' stores and the flag": (
        f"<right> bar.warp.sync -1;\n@p1 fence.acq_rel.cta; @p1 {_SREL.replace('release', 'relaxed')}",
        _POLL.format(load=_SACQ, after=""),
    ),
    "a releasing store of one lane, no bar.warp.sync before": (
        f"<right> bar.warp.sync -1;\n@p1 {_SREL}",
        _POLL.format(load=_SACQ, after=""),
    ),
    "a relaxed atomic in shared memory": (
        "bar.warp.sync -1;\n"
        + _either(
            "@p1 red.release.cta.shared.add.u32 [r2+1024], r4;",
            "@p1 red.shared.add.u32 [r2+1024], r4;",
        ),
        _POLL.format(load=_SACQ, after=""),
    ),
    "a volatile flag in shared memory": (
        "bar.warp.sync -1;\n<right> membar.cta;\n@p1 st.volatile.shared.b32 [r2+1024], r4;",
        _POLL.format(load="ld.volatile.shared.b32 r5, [r2+1024];", after="membar.cta;"),
    ),
    "a relaxed arrival": (
        _either(_ARRIVE.format(words=""), _ARRIVE.format(words=".relaxed.cta")),
        _try(""),
    ),
    "a relaxed arrival without its fence": (
        "<right> fence.acq_rel.cta;\n" + _ARRIVE.format(words=".relaxed.cta"),
        _try(""),
    ),
    "a relaxed wait": (
        _ARRIVE.format(words=".release.cta"),
        _either(_try(".acquire.cta"), _try(".relaxed.cta")),
    ),
    "a relaxed wait without its fence": (
        _ARRIVE.format(words=".release.cta"),
        _try(".relaxed.cta") + "\n<right> fence.acq_rel.cta;",
    ),
}

_PEERS = """
    mov.u32 r7, %cluster_ctarank; xor.b32 r8, r7, 1; mapa.shared::cluster.u32 r9, r3, r8;
    mapa.shared::cluster.u32 r10, r1, r8; mapa.shared::cluster.u32 r11, r2, r8; mov.u32 r4, 1; mov.u32 r5, 0;
    @p1 mbarrier.init.shared::cta.b64 [r1], 64; @p1 st.shared.b32 [r2+1024], r5;
    fence.mbarrier_init.release.cluster; bar.sync 0;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    st.shared::cluster.b32 [r9], r60;
    {meet}
    ld.shared.b32 r12, [r3];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
_MEET = "barrier.cluster.arrive{words}.aligned; barrier.cluster.wait.acquire.aligned;"
_FAR = "mbarrier.arrive{words}.shared::cluster.b64 _, [r10];"
_FLAG = (
    "bar.sync 0; @p1 st.release.{scope}.shared::cluster.b32 [r11+1024], r4; "
    "POLL: ld.acquire.cluster.shared.b32 r5, [r2+1024]; setp.eq.u32 p4, r5, 0; @p4 bra POLL;"
)
PEERS = {
    "a relaxed arrival on the cluster's barrier": _either(
        _MEET.format(words=".release"), _MEET.format(words=".relaxed")
    ),
    "a relaxed arrival on the cluster's barrier without its fence": (
        "<right> fence.acq_rel.cluster;\n" + _MEET.format(words=".relaxed")
    ),
    "a fence of the CTA before a relaxed arrival on the cluster's barrier": (
        _either("fence.acq_rel.cluster;", "fence.acq_rel.cta;")
        + "\n"
        + _MEET.format(words=".relaxed")
    ),
    "a relaxed arrival at another CTA": (
        _either(_FAR.format(words=".release.cluster"), _FAR.format(words=".relaxed.cluster"))
        + "\n"
        + _try(".acquire.cluster")
    ),
    "an arrival of the CTA's scope at another CTA": (
        _either(_FAR.format(words=".release.cluster"), _FAR.format(words=".release.cta"))
        + "\n"
        + _try(".acquire.cluster")
    ),
    "a flag of the CTA's scope in another CTA": _either(
        _FLAG.format(scope="cluster"), _FLAG.format(scope="cta")
    ),
}

# ---- what a relaxed arrival on the cluster's barrier carries of mbarrier inits

_INIT = "@p1 mbarrier.init.shared::cta.b64 [r1], 1;"
_FENCE_INIT = "fence.mbarrier_init.release.cluster;"
_USED = """
    barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
    setp.eq.u32 p4, r60, 32; @p4 mbarrier.arrive.shared::cta.b64 _, [r1];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
INITS = {
    "no fence": f"{_INIT}\n<right> {_FENCE_INIT}\n",
    "the fence is another thread's": f"{_INIT}\n{_either(f'@p1 {_FENCE_INIT}', f'@!p1 {_FENCE_INIT}')}",
    "the fence is too early": f"<wrong> {_FENCE_INIT}\n{_INIT}\n<right> {_FENCE_INIT}",
}

# ---- atomics and plain accesses

_TWO = "ld.param.u64 rd1, [out]; mov.u32 r8, %ctaid.x; setp.ne.u32 p3, r8, 0; mov.u32 r4, 1; mad.wide.u32 rd2, r8, 4, rd1;"
_LOCK = """
    ld.param.u64 rd1, [out]; mov.u32 r4, 1; mov.u32 r5, 0;
    LOCK: {lock} setp.ne.u32 p4, r7, 0; @p4 bra LOCK;
    ld.global.b32 r6, [rd1+128]; add.u32 r6, r6, 1; st.global.b32 [rd1+128], r6;
    {unlock}
"""
_CAS = "atom.{words}.global.cas.b32 r7, [rd1], 0, 1;"
_EXCH = "atom.{words}.global.exch.b32 r7, [rd1], 0;"
# name -> (body, threads, CTAs)
ATOMICS = {
    "a plain load of what another CTA adds to": (
        f"{_TWO} @!p3 red.global.add.u32 [rd1], 1;"
        + _either("@p3 ld.relaxed.gpu.global.b32 r5, [rd1];", "@p3 ld.global.b32 r5, [rd1];"),
        1,
        2,
    ),
    "a plain store to what another CTA adds to": (
        f"{_TWO}\n<wrong> @p3 st.global.b32 [rd1], r4;\n<right> @p3 st.relaxed.gpu.global.b32 [rd1], r4;\n"
        "@!p3 red.global.add.u32 [rd1], 1;",
        1,
        2,
    ),
    "a plain load after another warp's atomic": (
        "mov.u32 r4, 0; @p1 st.shared.b32 [r2], r4; bar.sync 0; @p2 red.shared.add.u32 [r2], 1;\n"
        "<right> bar.sync 0;\n@!p2 ld.shared.b32 r5, [r2];",
        64,
        1,
    ),
    "a plain load of the half that another warp exchanges": (
        "mov.u32 r4, 0; @p1 st.shared.b32 [r2], r4; bar.sync 0; { .reg .b16 x, y; mov.b16 x, 0; mov.b16 y, 1;\n"
        "@p2 atom.shared.cas.b16 x, [r2], x, y;\n"
        "<right> @!p2 ld.shared.b16 x, [r2+2];\n<wrong> @!p2 ld.shared.b16 x, [r2];\n}",
        64,
        1,
    ),
    "an atomic on what another warp sets to zero": (
        "mov.u32 r4, 0; @p1 st.shared.b32 [r2], r4;\n<right> bar.sync 0;\n@!p2 red.shared.add.u32 [r2], 1;",
        64,
        1,
    ),
    "an atomic over what another warp still reads": (
        "mov.u32 r4, 0; @p1 st.shared.b32 [r2], r4; bar.sync 0; @p2 ld.shared.b32 r5, [r2];\n"
        "<right> bar.sync 0;\n@!p2 red.shared.add.u32 [r2], 1;",
        64,
        1,
    ),
    "a plain store over what another warp adds to": (
        "mov.u32 r4, 0; @p1 st.shared.b32 [r2], r4; bar.sync 0; @p2 red.shared.add.u32 [r2], 1;\n"
        "<right> bar.sync 0;\nsetp.eq.u32 p3, r60, 32; @p3 st.shared.b32 [r2], r60;",
        64,
        1,
    ),
    "a volatile store against a plain load": (
        "mov.u32 r4, 0; @p1 st.shared.b32 [r2], r4; bar.sync 0; @p1 st.volatile.shared.b32 [r2], r60;\n"
        "<right> @!p2 ld.volatile.shared.b32 r5, [r2];\n<wrong> @!p2 ld.shared.b32 r5, [r2];",
        64,
        1,
    ),
    "atomics of the CTA's scope from two CTAs": (
        f"{_TWO}\n<right> red.relaxed.gpu.global.add.u32 [rd1], 1;\n<wrong> red.relaxed.cta.global.add.u32 [rd1], 1;",
        1,
        2,
    ),
    "one of two CTAs adds for its cluster only": (
        f"{_TWO}\n<right> @p3 red.relaxed.gpu.global.add.u32 [rd1], 1;\n"
        "<wrong> @p3 red.relaxed.cluster.global.add.u32 [rd1], 1;\n@!p3 red.relaxed.gpu.global.add.u32 [rd1], 1;",
        1,
        2,
    ),
    "a plain race beside an atomic": (
        f"{_TWO} red.global.add.u32 [rd1+512], 1;\n<right> st.global.b32 [rd2], r8;\n<wrong> st.global.b32 [rd1], r8;",
        1,
        3,
    ),
    "a plain race beside a volatile access": (
        f"{_TWO} ld.volatile.global.b32 r5, [rd1+512];\n<right> st.global.b32 [rd2], r8;\n"
        "<wrong> st.global.b32 [rd1], r8;",
        1,
        3,
    ),
    "tiles counted out by an atomic that overlap": (
        "ld.param.u64 rd1, [out]; atom.global.add.u32 r5, [rd1], 1;\n<wrong> shr.u32 r5, r5, 1;\n"
        "mad.wide.u32 rd2, r5, 4, rd1; st.global.b32 [rd2+128], r5; mov.u32 r8, %ctaid.x; st.global.b32 [rd2+256], r8;",
        1,
        3,
    ),
    "a lock that is let go relaxed": (
        _LOCK.format(
            lock=_CAS.format(words="acquire.gpu"),
            unlock=_either(_EXCH.format(words="release.gpu"), _EXCH.format(words="relaxed.gpu")),
        ),
        1,
        3,
    ),
    "a lock that is taken relaxed": (
        _LOCK.format(
            lock=_CAS.format(words="relaxed.gpu") + "\n<right> fence.acq_rel.gpu;\n",
            unlock=_EXCH.format(words="release.gpu"),
        ),
        1,
        3,
    ),
    "a lock without its fence": (
        _LOCK.format(
            lock=_CAS.format(words="acquire.gpu"),
            unlock="<right> fence.acq_rel.gpu;\nst.relaxed.gpu.global.b32 [rd1], r5;",
        ),
        1,
        3,
    ),
    "what another CTA reads, overwritten": (
        f"{_TWO} red.global.add.u32 [rd1+512], 1;\n<wrong> @!p3 ld.global.b32 r5, [rd1+4];\n"
        "<right> @!p3 ld.global.b32 r5, [rd1];\n@p3 st.global.b32 [rd2], r8;",
        1,
        2,
    ),
}


def _message(case: str, parts: tuple[str, str, str]) -> Kind:
    write, read, after = parts
    body = _GLOBAL.format(write=write, read=read, after=after)
    return Kind("memory order", "race", body, RACE, case, threads=1, clusters=2)


PAIRS = (
    *(_message(case, parts) for case, parts in FLAGS.items()),
    *(
        Kind(
            "memory order",
            "race",
            _CHAIN.format(second=second, third=third),
            RACE,
            case,
            threads=1,
            clusters=3,
        )
        for case, (second, third) in CHAINS.items()
    ),
    *(
        Kind("memory order", "race", _LAST.format(**{**_ALL, **parts}), RACE, case, clusters=3)
        for case, parts in LAST.items()
    ),
    *(
        Kind(
            "memory order",
            "race",
            _SHARED.format(write=write, read=read, count=32),
            RACE,
            case,
        )
        for case, (write, read) in WITHIN.items()
    ),
    *(
        Kind("memory order", "race", _PEERS.format(meet=meet), RACE, case, ctas=2)
        for case, meet in PEERS.items()
    ),
    *(
        Kind(
            "mbarrier used before its init is known",
            "mbarrier",
            f"{body}\n{_USED}",
            "a barrier is missing",
            f"{case}, relaxed arrival on the cluster's barrier",
            ctas=2,
        )
        for case, body in INITS.items()
    ),
    *(
        Kind("atomic and plain accesses", "race", body, RACE, case, threads=threads, clusters=ctas)
        for case, (body, threads, ctas) in ATOMICS.items()
    ),
)
