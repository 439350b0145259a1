"""Barriers and sums with many participants: warps that arrive several times, threads that arrive
ahead of their waits, CTAs that add into one place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, Program
from attn_mlir.validation.differential.values import Rng, draw


def _on(mask: int, label: str, text: str) -> list[str]:
    """A line for the warps (or CTAs) of a mask alone; r1 is the own bit."""
    return [f"and.b32 r9, r1, {mask}; setp.eq.u32 p1, r9, 0; @p1 bra {label};", text, f"{label}:"]


def _turn(rng: Rng, number: int, warps: int, covers: set[str]) -> list[str]:
    """All write; some warps arrive once or twice before their wait, some arrive only."""
    waits = [bool(rng.random() < 0.7) for _ in range(warps)]
    waits[int(rng.integers(0, warps))] = True
    ahead = [int(rng.integers(0 if waiting else 1, 3)) for waiting in waits]
    count = 32 * (sum(ahead) + sum(waits))
    barrier = int(rng.integers(1, 16))
    arrive = str(rng.choice(["bar.arrive", "barrier.cta.arrive.aligned", "barrier.cta.arrive"]))
    sync = str(rng.choice(["bar.sync", "barrier.cta.sync.aligned", "barrier.cta.sync"]))
    covers |= {arrive, sync}
    lines = [f"mad.lo.u32 r6, r6, 5, {number}; st.shared.b32 [r4], r6;"]
    for times in (1, 2):
        mask = sum(1 << warp for warp, n in enumerate(ahead) if n >= times)
        if mask:
            lines += _on(mask, f"AHEAD{number}_{times}", f"{arrive} {barrier}, {count};")
    mask = sum(1 << warp for warp, waiting in enumerate(waits) if waiting)
    shift = 4 * int(rng.integers(1, 32 * warps))
    read = f"""{sync} {barrier}, {count};
    mad.lo.u32 r11, r2, 4, {shift}; rem.u32 r11, r11, {128 * warps}; add.u32 r11, r11, r3; ld.shared.b32 r12, [r11];
    shf.l.wrap.b32 r6, r6, r6, 9; xor.b32 r6, r6, r12;"""
    return [*lines, *_on(mask, f"WAIT{number}", read), "bar.sync 0;"]


def crowds(seed: int, count: int) -> Iterator[Program]:
    """Named barriers that complete by arrivals of warps that came before in the same phase."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        warps = int(rng.choice([1, 2, 3, 4, 8]))
        covers: set[str] = set()
        body: list[str] = []
        for turn in range(int(rng.integers(2, 6))):
            body += _turn(rng, turn, warps, covers)
        text = "\n  ".join(body)
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
.reqntid {32 * warps}, 1, 1
{{
  .reg .b32 r<20>; .reg .b64 d<8>; .reg .pred p<4>;
  .shared .align 16 .b32 words[{32 * warps}];
  ld.param.u64 d0, [inputs]; ld.param.u64 d1, [outputs];
  mov.u32 r2, %tid.x; shr.u32 r1, r2, 5; mov.u32 r5, 1; shl.b32 r1, r5, r1;
  mov.u32 r3, words; mad.lo.u32 r4, r2, 4, r3;
  mad.wide.u32 d2, r2, 4, d0; mad.wide.u32 d3, r2, 4, d1;
  ld.global.b32 r6, [d2];
  {text}
  st.global.b32 [d3], r6;
  ret;
}}
"""
        inputs = draw(rng, "i32", 32 * warps).view(np.uint8)
        columns = [Column("what a thread read", 1, 0, 32 * warps, "u4")]
        yield Program(
            f"crowd/{number}", ptx, [inputs, np.zeros_like(inputs)], columns, sorted(covers),
            block=32 * warps,
        )  # fmt: skip


def ahead(seed: int, count: int) -> Iterator[Program]:
    """CTAs that arrive on the cluster's barrier twice and then wait twice.

    Each wait is for what the other CTAs stored before their arrival of the same number.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        ctas = int(rng.choice([2, 4, 8]))
        hurried = int(rng.integers(1, (1 << ctas) - 1))
        turns = 2 * int(rng.integers(1, 4))
        arrive = str(rng.choice(["", ".release", ".aligned", ".release.aligned"]))
        wait = str(rng.choice(["", ".acquire"])) + (".aligned" if "aligned" in arrive else "")
        arrive, wait = f"barrier.cluster.arrive{arrive};", f"barrier.cluster.wait{wait};"
        calm: list[str] = []
        fast: list[str] = []
        for turn in range(turns):
            goal = int(rng.integers(1, ctas))
            calm += [
                f"add.u32 r7, r2, {goal}; rem.u32 r7, r7, {ctas}; mapa.shared::cluster.u32 r8, r4, r7;",
                f"mad.lo.u32 r6, r6, 5, {turn + 1}; st.shared::cluster.b32 [r8+{256 * turn}], r6;",
                f"{arrive} {wait}",
                f"ld.shared.b32 r12, [r4+{256 * turn}]; xor.b32 r6, r6, r12;",
            ]
            fast += [
                f"{arrive} {arrive}" if turn % 2 == 0 else "",
                f"{wait} ld.shared.b32 r12, [r4+{256 * turn}]; mad.lo.u32 r6, r6, 3, r12;",
            ]
        line = "\n  "
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
.reqntid 64, 1, 1
.explicitcluster
.reqnctapercluster {ctas}, 1, 1
{{
  .reg .b32 r<20>; .reg .b64 d<8>; .reg .pred p<4>;
  .shared .align 16 .b8 words[{256 * turns}];
  ld.param.u64 d0, [inputs]; ld.param.u64 d1, [outputs];
  mov.u32 r0, %tid.x; mov.u32 r2, %cluster_ctarank; mov.u32 r5, 1; shl.b32 r1, r5, r2;
  mov.u32 r3, words; mad.lo.u32 r4, r0, 4, r3; mad.lo.u32 r10, r2, 64, r0;
  mad.wide.u32 d2, r10, 4, d0; mad.wide.u32 d3, r10, 4, d1;
  ld.global.b32 r6, [d2]; mov.u32 r11, 0;
  {line.join(f"st.shared.b32 [r4+{256 * turn}], r11;" for turn in range(turns))}
  barrier.cluster.arrive; barrier.cluster.wait;
  and.b32 r9, r1, {hurried}; setp.eq.u32 p1, r9, 0; @p1 bra CALM;
  {line.join(fast)}
  bra.uni MET;
CALM:
  {line.join(calm)}
MET:
  barrier.cluster.arrive; barrier.cluster.wait;
  st.global.b32 [d3], r6;
  ret;
}}
"""
        inputs = draw(rng, "i32", 64 * ctas).view(np.uint8)
        columns = [Column("what a thread read", 1, 0, 64 * ctas, "u4")]
        yield Program(
            f"cluster-ahead/{number}", ptx, [inputs, np.zeros_like(inputs)], columns,
            [arrive.rstrip(";"), wait.rstrip(";")], grid=ctas, block=64,
        )  # fmt: skip


# Operations whose result does not depend on who comes first.
_COMMUTING = [
    *("add.u32", "add.s32", "add.u64", "min.u32", "max.s32", "min.s64", "max.u64", "inc.u32"),
    *("and.b32", "or.b32", "xor.b32", "and.b64", "or.b64", "xor.b64"),
    *("min.f16", "max.bf16", "add.noftz.f16", "add.f32", "add.f64"),
]
_SMALL = {"add.noftz.f16": np.float16, "add.f32": np.float32, "add.f64": np.float64}


def sums(seed: int, count: int) -> Iterator[Program]:
    """Several CTAs reduce their shared memory into the same bytes of global memory, in any order.

    Sums of floats are of small whole numbers, which every order sums exactly.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        op = _COMMUTING[number % len(_COMMUTING)]
        ctas = int(rng.choice([2, 3, 8, 16]))
        size, at = 16 * int(rng.integers(1, 33)), 16 * int(rng.integers(0, 32))
        opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}"
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 target)
.reqntid 128, 1, 1
{{
  .reg .b32 r<20>; .reg .b64 d<8>; .reg .pred p<4>;
  .shared .align 128 .b8 words[512];
  ld.param.u64 d0, [inputs]; ld.param.u64 d1, [target];
  mov.u32 r0, %tid.x; mov.u32 r1, %ctaid.x; mad.lo.u32 r2, r1, 128, r0; mad.wide.u32 d2, r2, 4, d0;
  mov.u32 r3, words; mad.lo.u32 r4, r0, 4, r3; ld.global.b32 r6, [d2]; st.shared.b32 [r4], r6;
  fence.proxy.async.shared::cta; bar.sync 0;
  setp.ne.u32 p1, r0, 0; @p1 bra DONE;
  {opcode} [d1+{at}], [r3], {size};
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
DONE:
  ret;
}}
"""
        kind = _SMALL.get(op)
        if kind is not None:
            values = rng.integers(-8, 9, 512 * ctas // np.dtype(kind).itemsize).astype(kind)
            before = rng.integers(-8, 9, 1024 // np.dtype(kind).itemsize).astype(kind)
        elif op.endswith("f16"):  # no NaN
            values, before = (
                rng.integers(0, 0x7C00, n // 2, np.uint16) for n in (512 * ctas, 1024)
            )
        else:
            values, before = (draw(rng, "i32", n // 4) for n in (512 * ctas, 1024))
        if op == "inc.u32":  # below the smallest bound nobody wraps
            values = rng.integers(1 << 20, 1 << 30, 128 * ctas, np.uint32)
            before = rng.integers(0, 1 << 19, 256, np.uint32)
        buffers = [values.view(np.uint8).copy(), before.view(np.uint8).copy()]
        columns = [Column("the target", 1, 0, 1024, "u1")]
        yield Program(f"sum/{number}", ptx, buffers, columns, [opcode], grid=ctas, block=128)
