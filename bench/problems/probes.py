"""PTX of the microbenchmarks that `bench/calibrate.py` measures constants of the cycle model with.

Each probe is one kernel `probe(out, data)`. Every warp writes three readings of its multiprocessor's
clock to out[CTA, warp, 3]: before, between (where the probe has two parts) and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

COPIES = 128  # of an instruction in a row: they bury the two clock reads
HEADER = """.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 pool[];
.visible .entry probe(.param .u64 out, .param .u64 data)
.maxntid {threads}
{{
.reg .pred %p<8>;
.reg .b32 %r<64>;
.reg .b64 %d<40>;
.reg .f32 %f<96>;
.reg .f32 %c<140>;
.reg .b32 %t<4>;
mov.u32 %r0, %tid.x;
shr.u32 %r1, %r0, 5;
and.b32 %r2, %r0, 31;
shr.u32 %r3, %r0, 7;
mov.u32 %r4, pool;
ld.param.u64 %d0, [out];
ld.param.u64 %d1, [data];
mov.u32 %t0, 0; mov.u32 %t1, 0; mov.u32 %t2, 0;
"""
FOOTER = """
mov.u32 %r10, %ctaid.x;
mad.lo.u32 %r10, %r10, {warps}, %r1;
mul.lo.u32 %r10, %r10, 12;
cvt.u64.u32 %d10, %r10;
add.u64 %d10, %d10, %d0;
setp.eq.u32 %p7, %r2, 0;
@%p7 st.global.u32 [%d10], %t0;
@%p7 st.global.u32 [%d10+4], %t1;
@%p7 st.global.u32 [%d10+8], %t2;
ret;
}}
"""
CLOCK = "mov.u32 %t{0}, %clock;\n"
BARRIER = "bar.sync 0;\n"


@dataclass(frozen=True)
class Probe:
    """A kernel and what it measures.

    Attributes:
      about: facts that the reader of the result needs, such as the number of copies.
    """

    name: str
    ptx: str
    threads: int
    smem_bytes: int = 0
    about: dict[str, int | str] = field(default_factory=dict[str, int | str])


def _probe(name: str, body: str, warps: int, *, smem_bytes: int = 0, **about: int | str) -> Probe:
    text = HEADER.format(threads=32 * warps) + body + FOOTER.format(warps=warps)
    return Probe(name, text, 32 * warps, smem_bytes, {"warps": warps, **about})


def _init(count: int) -> str:
    lines = ["cvt.rn.f32.u32 %f90, %r2;", "add.f32 %f91, %f90, 0f3F800000;"]
    lines += [f"add.f32 %f{n}, %f90, 0f{0x3F000000 + n:08X};" for n in range(count)]
    lines += [f"add.u32 %r{20 + n}, %r2, {n};" for n in range(min(count, 16))]
    return "\n".join(lines) + "\n"


def _keep(count: int) -> str:
    """Uses results under a test that never holds."""
    lines = ["mov.f32 %f92, %f0;", "mov.u32 %r50, %r20;"]
    lines += [f"add.f32 %f92, %f92, %f{n};" for n in range(1, count)]
    lines += [f"xor.b32 %r50, %r50, %r{20 + n};" for n in range(1, min(count, 16))]
    lines += [
        "mov.b32 %r51, %f92;", "xor.b32 %r51, %r51, %r50;", "setp.eq.u32 %p6, %r51, 0x12345677;",
        "@%p6 st.global.u32 [%d0], %r51;",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


OPCODES = {
    "ffma": "fma.rn.ftz.f32 %f{0}, %f{0}, %f91, %f90;",
    "fadd": "add.ftz.f32 %f{0}, %f{0}, %f91;",
    "fmul": "mul.ftz.f32 %f{0}, %f{0}, %f91;",
    "fmnmx": "max.ftz.f32 %f{0}, %f{0}, %f{1};",
    "imad": "mad.lo.s32 %r{2}, %r{2}, %r2, %r0;",
    "lop3": "lop3.b32 %r{2}, %r{2}, %r{3}, %r2, 0xE8;",
    "f2fp": "{{ .reg .b32 q; cvt.rn.bf16x2.f32 q, %f{0}, %f{1}; mov.b32 %f{0}, q; }}",
    "mufu": "ex2.approx.ftz.f32 %f{0}, %f{0};",
    "f2i": "{{ .reg .b32 q; cvt.rni.s32.f32 q, %f{0}; mov.b32 %f{0}, q; }}",
    "shfl": "shfl.sync.bfly.b32 %r{2}, %r{2}, 1, 31, -1;",
}
MIXES = {
    "mufu+2ffma": ("mufu", "ffma", "ffma"),
    "mufu+4ffma": ("mufu", "ffma", "ffma", "ffma", "ffma"),
    "mufu+fmnmx+ffma": ("mufu", "fmnmx", "ffma", "fmnmx"),
    "ffma+fmnmx": ("ffma", "fmnmx"),
    "ffma+f2fp": ("ffma", "f2fp"),
    "imad+ffma": ("imad", "ffma"),
    "mufu+f2fp+fadd": ("mufu", "mufu", "f2fp", "fadd", "fadd"),
}


def _op(name: str, number: int, chains: int) -> str:
    at, next_one = number % chains, (number + 1) % chains
    return OPCODES[name].format(at, next_one, 20 + at % 16, 20 + next_one % 16)


def arithmetic() -> list[Probe]:
    """Latency of each opcode, and throughput of it and of mixes for 1, 2 and 3 warps a partition."""
    probes: list[Probe] = []
    for name in OPCODES:
        if name != "fmnmx":  # the assembler folds a chain of it
            body = (
                _init(2) + CLOCK.format(0) + "".join(_op(name, 0, 1) + "\n" for _ in range(COPIES))
            )
            body += CLOCK.format(2) + _keep(2)
            probes.append(_probe(f"latency {name}", body, 4, copies=COPIES))
        for warps in (4, 8, 12):
            probes.append(_repeated(f"rate {name} x{warps // 4}", (name,), warps))
    for name, pattern in MIXES.items():
        for warps in (4, 12):
            probes.append(_repeated(f"mix {name} x{warps // 4}", pattern, warps))
    three = "".join(
        f"fma.rn.f32 %f{n % 16}, %f{16 + n % 13}, %f{32 + n % 11}, %f{n % 16};\n"
        for n in range(COPIES * 4)
    )
    for warps in (4, 12):
        body = _init(60) + BARRIER + CLOCK.format(0) + three + CLOCK.format(2) + _keep(16)
        probes.append(_probe(f"rate ffma 3 operands x{warps // 4}", body, warps, copies=COPIES * 4))
    return probes


def _repeated(name: str, pattern: Sequence[str], warps: int) -> Probe:
    count = COPIES * 4 // len(pattern)
    lines = [_op(op, n, 12) for n in range(count) for op in pattern]
    body = _init(12) + BARRIER + CLOCK.format(0) + "\n".join(lines) + "\n" + CLOCK.format(2)
    return _probe(name, body + _keep(12), warps, copies=count * len(pattern), rounds=count)


def _descriptors() -> str:
    """%d2: A, %d3: B, of tiles of 128 bytes a row with the 128-byte swizzle."""
    return """
shr.u32 %r5, %r4, 4;
shl.b32 %r6, %r3, 10;
add.u32 %r6, %r6, %r5;
cvt.u64.u32 %d2, %r6;
or.b64 %d2, %d2, 0x4000004000010000;
add.u32 %r7, %r5, 4096;
cvt.u64.u32 %d3, %r7;
or.b64 %d3, %d3, 0x4000004000010000;
mov.u32 %r30, 0; mov.u32 %r31, 0; mov.u32 %r32, 0; mov.u32 %r33, 0;
"""


def _zeros(columns: int) -> str:
    return "".join(f"mov.f32 %c{n}, 0f00000000;\n" for n in range(columns // 2))


def product(columns: int, form: str) -> str:
    """One wgmma.mma_async of 64 x columns x 16."""
    sums = ", ".join(f"%c{n}" for n in range(columns // 2))
    head = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{sums}}}, "
    if form == "rs":
        return head + "{%r30, %r31, %r32, %r33}, %d3, 1, 1, 1, 0;\n"
    return head + "%d2, %d3, 1, 1, 1, 0, 0;\n"


def _used(columns: int) -> str:
    lines = ["mov.f32 %f92, %c0;"] + [f"add.f32 %f92, %f92, %c{n};" for n in range(1, columns // 2)]
    lines += ["setp.eq.f32 %p6, %f92, 0f42F60000;", "@%p6 st.global.f32 [%d0], %f92;"]
    return "\n".join(lines) + "\n"


FENCE = "wgmma.fence.sync.aligned;\n"
DONE = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
TILES_BYTES = 200 << 10  # of shared memory for operands: one CTA on a multiprocessor


def tensor() -> list[Probe]:
    """Products in a row: when they are issued and when they are done, for 1 to 3 warpgroups."""
    probes: list[Probe] = []
    for form, columns, counts, groups in (
        ("ss", 64, (1, 4, 16, 32), (1, 3)), ("ss", 128, (1, 2, 4, 8, 16, 32), (1, 2, 3)),
        ("ss", 80, (1, 8, 32), (1, 3)), ("ss", 256, (1, 4, 16), (1,)),
        ("rs", 64, (1, 4, 16, 32), (1, 3)), ("rs", 128, (1, 2, 4, 5, 8, 16, 32), (1, 2, 3)),
        ("rs", 256, (1, 4, 16), (1,)),
    ):  # fmt: skip
        for count in counts:
            for group in groups:
                body = _descriptors() + _zeros(columns) + BARRIER + CLOCK.format(0) + FENCE
                body += product(columns, form) * count + "wgmma.commit_group.sync.aligned;\n"
                body += CLOCK.format(1) + "wgmma.wait_group.sync.aligned 0;\n" + CLOCK.format(2)
                probes.append(
                    _probe(
                        f"product {form} n{columns} x{count} groups {group}",
                        body + _used(columns),
                        4 * group,
                        smem_bytes=TILES_BYTES,
                        columns=columns,
                        form=form,
                        count=count,
                        groups=group,
                    )
                )
    return probes


BESIDE: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("ffma", "fadd", "fmul", "imad", "fmnmx", "mufu", "f2fp", "lop3")},
    **{name: MIXES[name] for name in ("mufu+2ffma", "mufu+4ffma", "ffma+fmnmx", "ffma+f2fp")},
    "mufu+fmnmx+ffma": MIXES["mufu+fmnmx+ffma"],
    "softmax": ("fmnmx", "ffma", "mufu", "fadd", "fmul", "ffma", "mufu", "fadd", "f2fp", "fmul"),
}


def together() -> list[Probe]:
    """The youngest warpgroup multiplies while older ones compute: how much each slows the other down.

    Products follow one another without a pause, for longer than the others compute.
    """
    probes: list[Probe] = []
    forms = [("none", 128), ("ss", 128), ("rs", 128), ("ss", 80), ("ss", 256), ("rs", 64)]
    for form, columns in forms:
        for groups in (1, 2):
            for name, pattern in BESIDE.items():
                probes.append(_beside(form, columns, groups, name, pattern))
    return probes


def _beside(form: str, columns: int, groups: int, name: str, pattern: tuple[str, ...]) -> Probe:
    rounds = 512 // len(pattern)
    lines = [_op(op, n, 12) for n in range(rounds) for op in pattern]
    count = 8 * 128 // columns
    multiply = FENCE + product(columns, form) * count + "wgmma.commit_group.sync.aligned;\n"
    body = f"""{_descriptors()}{_zeros(columns)}{_init(12)}{BARRIER}
setp.lt.u32 %p1, %r3, {groups};
{CLOCK.format(0)}
@%p1 bra COMPUTE;
mov.u32 %r12, 0;
sub.u32 %r16, 24, %r3;
add.u32 %r16, %r16, {groups};
MULTIPLY:
.pragma "nounroll";
{multiply if form != "none" else ""}
add.u32 %r12, %r12, 1;
setp.lt.u32 %p2, %r12, %r16;
@%p2 bra MULTIPLY;
wgmma.wait_group.sync.aligned 0;
{CLOCK.format(2)}
{_used(columns)}
bra END;
COMPUTE:
{chr(10).join(lines)}
{CLOCK.format(2)}
{_keep(12)}
END:
"""
    return _probe(
        f"beside {form} n{columns} {name} x{groups}", body, 4 * groups + 4, smem_bytes=TILES_BYTES,
        form=form, columns=columns, copies=rounds * len(pattern), groups=groups,
        products=24 * count if form != "none" else 0,
    )  # fmt: skip


def _wait(barrier: str, parity: str, label: str) -> str:
    return f"""{label}:
mbarrier.try_wait.parity.shared.b64 %p3, [{barrier}], {parity};
@!%p3 bra {label};
"""


def barriers() -> list[Probe]:
    """Barriers: bar.sync by warps, mbarriers between two warps of one or of two partitions."""
    probes: list[Probe] = []
    for warps in (1, 4, 8, 12, 16):
        body = BARRIER + CLOCK.format(0) + BARRIER * 64 + CLOCK.format(2)
        probes.append(_probe(f"bar.sync {warps}", body, warps, copies=64))
    init = """
add.u32 %r5, %r4, 8;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r4], 1;
@%p1 mbarrier.init.shared.b64 [%r5], 1;
@%p1 mbarrier.init.shared.b64 [%r4+16], 1000000;
bar.sync 0;
setp.eq.u32 %p2, %r2, 0;
"""
    for partner in (1, 4):
        body = f"""{init}
setp.eq.u32 %p4, %r1, 0;
setp.eq.u32 %p5, %r1, {partner};
mov.u32 %r12, 0;
{CLOCK.format(0)}
@%p4 bra FIRST;
@%p5 bra SECOND;
bra END;
FIRST:
@%p2 mbarrier.arrive.shared.b64 _, [%r4];
and.b32 %r13, %r12, 1;
{_wait("%r5", "%r13", "WAIT_A")}
add.u32 %r12, %r12, 1;
setp.lt.u32 %p0, %r12, 256;
@%p0 bra FIRST;
bra END;
SECOND:
and.b32 %r13, %r12, 1;
{_wait("%r4", "%r13", "WAIT_B")}
@%p2 mbarrier.arrive.shared.b64 _, [%r5];
add.u32 %r12, %r12, 1;
setp.lt.u32 %p0, %r12, 256;
@%p0 bra SECOND;
END:
{CLOCK.format(2)}
"""
        probes.append(_probe(f"mbarrier hop warp {partner}", body, 8, smem_bytes=1024, copies=512))
    body = init + CLOCK.format(0) + "@%p2 mbarrier.arrive.shared.b64 _, [%r4+16];\n" * 64
    probes.append(_probe("mbarrier arrive", body + CLOCK.format(2), 4, smem_bytes=1024, copies=64))
    waits = "".join(_wait("%r4", "1", f"W{n}") for n in range(64))
    body = init + CLOCK.format(0) + waits + CLOCK.format(2)
    probes.append(_probe("mbarrier ready", body, 4, smem_bytes=1024, copies=64))
    fences = "fence.proxy.async.shared::cta;\n" * 32
    body = init + CLOCK.format(0) + fences + CLOCK.format(2)
    probes.append(_probe("fence.proxy.async", body, 4, smem_bytes=1024, copies=32))
    return probes


def memory() -> list[Probe]:
    """Loads in a chain from shared memory, the nearest cache and L2; bulk copies by size and number."""
    probes: list[Probe] = []
    chain = "ld.shared.u32 %r8, [%r8];\n" * COPIES
    body = f"mov.u32 %r8, %r4;\nst.shared.u32 [%r4], %r4;\n{BARRIER}{CLOCK.format(0)}{chain}"
    body += CLOCK.format(2) + "setp.eq.u32 %p6, %r8, 1;\n@%p6 st.global.u32 [%d0], %r8;\n"
    probes.append(_probe("latency lds", body, 1, smem_bytes=1024, copies=COPIES))
    for name in ("ca", "cg"):
        chain = f"ld.global.{name}.u64 %d4, [%d4];\n" * 64
        body = f"st.global.u64 [%d1], %d1;\nmov.u64 %d4, %d1;\nld.global.{name}.u64 %d4, [%d4];\n"
        body += f"{CLOCK.format(0)}{chain}{CLOCK.format(2)}"
        body += "cvt.u32.u64 %r8, %d4;\nsetp.eq.u32 %p6, %r8, 1;\n@%p6 st.global.u32 [%d0], %r8;\n"
        probes.append(_probe(f"latency ldg.{name}", body, 1, copies=64))
    for size in (512, 4096, 16384, 32768):
        for count in (1, 4):
            if size * count > 131072:
                continue
            probes.append(_bulk(size, count))
    return probes


def _bulk(size: int, count: int) -> Probe:
    copies = "".join(
        f"""add.u32 %r8, %r14, {1024 + n * size};
add.u64 %d5, %d4, {n * size};
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r8], [%d5], {size}, [%r4];
"""
        for n in range(count)
    )
    body = f"""
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r4], 1;
bar.sync 0;
mov.u32 %r14, %r4;
mov.u32 %r15, %ctaid.x;
mul.wide.u32 %d4, %r15, {size * count};
add.u64 %d4, %d4, %d1;
mov.u32 %r12, 0;
AGAIN:
setp.eq.u32 %p2, %r12, 4;
@!%p2 bra GO;
{CLOCK.format(0)}
GO:
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {size * count};
{copies}
and.b32 %r13, %r12, 1;
{_wait("%r4", "%r13", "WAIT")}
add.u32 %r12, %r12, 1;
setp.lt.u32 %p0, %r12, 20;
@%p0 bra AGAIN;
{CLOCK.format(2)}
"""
    return _probe(
        f"bulk {size} x{count}", body, 1, smem_bytes=TILES_BYTES, copies=16, bytes=size * count
    )


def queue() -> list[Probe]:
    """Products of two shapes and forms in one queue, as attention with heads of 64 columns has them.

    A warpgroup issues four products of 128 columns from shared memory, then eight of 64 columns with
    A in registers, to other registers. The reading between is made when all of them are issued.
    """
    probes: list[Probe] = []
    later = product(64, "rs")
    for column in reversed(range(32)):
        later = later.replace(f"%c{column},", f"%c{64 + column},").replace(
            f"%c{column}}}", f"%c{64 + column}}}"
        )
    for groups in (1, 2, 3):
        for turns in (1, 4):
            issue = FENCE + product(128, "ss") * 4 + later * 8
            turn = issue + "wgmma.commit_group.sync.aligned;\n"
            zeros = _zeros(128) + "".join(f"mov.f32 %c{64 + n}, 0f00000000;\n" for n in range(32))
            body = _descriptors() + zeros + BARRIER + CLOCK.format(0) + turn * turns
            body += CLOCK.format(1) + "wgmma.wait_group.sync.aligned 0;\n" + CLOCK.format(2)
            probes.append(
                _probe(
                    f"queue 4 ss n128 8 rs n64 x{turns} groups {groups}",
                    body + _used(192), 4 * groups,
                    smem_bytes=TILES_BYTES, turns=turns, groups=groups,
                )
            )  # fmt: skip
    return probes


def all_probes() -> list[Probe]:
    """Every probe."""
    return [*arithmetic(), *tensor(), *together(), *barriers(), *memory(), *queue()]
