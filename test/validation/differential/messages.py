"""CTAs of a grid that pass words on through global memory, by flags of every order and scope that suffices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, Program
from attn_mlir.validation.differential.values import Rng

BLOCK = 64
ROW = 4 * BLOCK  # bytes of a CTA's words
FLAG = 128  # bytes from flag to flag
TRIES = 1_000_000  # of a wait, before it gives up


def _scope(rng: Rng) -> str:
    return str(rng.choice(["gpu", "sys"]))


def _fence(rng: Rng) -> str:
    return str(
        rng.choice([f"fence.acq_rel.{_scope(rng)};", "fence.sc.gpu;", "membar.gl;", "membar.sys;"])
    )


def _signal(rng: Rng, at: str) -> str:
    """One thread says that its CTA has written: a release, or a fence and a relaxed write."""
    scope = _scope(rng)
    releases = [
        f"st.release.{scope}.global.b32 {at}, 1;",
        f"atom.release.{scope}.global.exch.b32 r30, {at}, 1;",
        f"red.release.{scope}.global.add.u32 {at}, 1;",
        f"atom.acq_rel.{scope}.global.cas.b32 r30, {at}, 0, 1;",
    ]
    relaxed = [
        f"st.relaxed.{scope}.global.b32 {at}, 1;",
        f"st.volatile.global.b32 {at}, 1;",
        f"red.global.or.b32 {at}, 1;",
        f"atom.relaxed.{scope}.global.max.u32 r30, {at}, 1;",
    ]
    if rng.random() < 0.5:
        return str(rng.choice(releases))
    return f"{_fence(rng)} {rng.choice(relaxed)}"


def _await(rng: Rng, at: str, label: str) -> str:
    """One thread waits for a flag: acquires, or relaxed reads and a fence."""
    scope = _scope(rng)
    acquires = [
        f"ld.acquire.{scope}.global.b32 r31, {at};",
        f"atom.acquire.{scope}.global.or.b32 r31, {at}, 0;",
        f"atom.acq_rel.{scope}.global.add.u32 r31, {at}, 0;",
    ]
    relaxed = [
        f"ld.relaxed.{scope}.global.b32 r31, {at};",
        f"ld.volatile.global.b32 r31, {at};",
        f"atom.global.and.b32 r31, {at}, -1;",
    ]
    is_acquire = rng.random() < 0.5
    look = str(rng.choice(acquires if is_acquire else relaxed))
    return (
        f"mov.u32 r32, 0;\n{label}: add.u32 r32, r32, 1; setp.gt.u32 p4, r32, {TRIES}; @p4 trap;\n"
        f"{look}\nsetp.eq.u32 p5, r31, 0; @p5 bra {label};\n" + ("" if is_acquire else _fence(rng))
    )


def _count(rng: Rng) -> str:
    """One thread counts its CTA in, and is ordered with those that did before it."""
    if rng.random() < 0.5:
        return f"atom.acq_rel.{_scope(rng)}.global.add.u32 r33, [d6], 1;"
    return f"{_fence(rng)} atom.global.add.u32 r33, [d6], 1; {_fence(rng)}"


def _text(rng: Rng, ctas: int) -> str:
    """Each CTA turns its predecessor's words into its own; the last to finish adds all of them up."""
    distance, factor = int(rng.integers(1, BLOCK)), int(rng.integers(3, 1000)) | 1
    return f"""{HEAD}
.visible .entry kernel(.param .u64 source, .param .u64 outputs)
.reqntid {BLOCK}, 1, 1
{{
  .reg .pred p<8>; .reg .b32 r<64>; .reg .b64 d<16>;
  .shared .align 4 .b32 last;
  ld.param.u64 d0, [source]; ld.param.u64 d1, [outputs];
  mov.u32 r0, %tid.x; mov.u32 r1, %ctaid.x; setp.eq.u32 p0, r0, 0; setp.eq.u32 p1, r1, 0; mov.u32 r9, last;
  mul.lo.u32 r2, r1, {ROW}; cvt.u64.u32 d2, r2; add.u64 d3, d1, d2; mad.wide.u32 d3, r0, 4, d3;
  add.u64 d2, d0, d2; mad.wide.u32 d2, r0, 4, d2; ld.global.b32 r10, [d2];
  mul.wide.u32 d4, r1, {FLAG}; add.u64 d4, d4, d1; add.u64 d4, d4, {ROW * ctas};
  add.u64 d6, d1, {(ROW + FLAG) * ctas};
  @p1 bra FIRST;
  @!p0 bra THERE;
  {_await(rng, f"[d4+{-FLAG}]", "LOOK")}
THERE:
  bar.sync 0;
  add.u32 r3, r0, {distance}; and.b32 r3, r3, {BLOCK - 1};
  mul.wide.u32 d5, r3, 4; mad.wide.u32 d5, r1, {ROW}, d5; add.u64 d5, d5, d1;
  ld.global.b32 r11, [d5+{-ROW}]; mad.lo.u32 r10, r11, {factor}, r10;
FIRST:
  st.global.b32 [d3], r10;
  bar.sync 0;
  @!p0 bra SAID;
  {_signal(rng, "[d4]")}
  {_count(rng)}
  st.shared.b32 [r9], r33;
SAID:
  bar.sync 0;
  ld.shared.b32 r34, [r9]; setp.ne.u32 p2, r34, {ctas - 1}; @p2 bra DONE;
  mov.u32 r12, 0; mov.u32 r13, 0; mad.wide.u32 d7, r0, 4, d1;
SUM:
  ld.global.b32 r14, [d7]; xor.b32 r12, r12, r14; add.u64 d7, d7, {ROW};
  add.u32 r13, r13, 1; setp.lt.u32 p3, r13, {ctas}; @p3 bra SUM;
  mad.wide.u32 d8, r0, 4, d6; st.global.b32 [d8+{FLAG}], r12;
DONE:
  ret;
}}
"""


def messages(seed: int, count: int) -> Iterator[Program]:
    """Chains of CTAs; what they write, their flags, and the sum of the last one."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        ctas = int(rng.integers(2, 9))
        ptx = _text(rng, ctas)
        source = rng.integers(0, 256, ROW * ctas, np.uint8)
        size = (ROW + FLAG) * ctas + FLAG + ROW
        words = ("fence", "membar", "atom", "red", "ld.a", "ld.r", "ld.v", "st.r", "st.v")
        lines = [part.strip() for line in ptx.splitlines() for part in line.split(";")]
        covers = sorted({line.split()[0] for line in lines if line.startswith(words)})
        columns = [Column("what the CTAs pass on", 1, 0, size, "u1")]
        buffers = [source, np.zeros(size, np.uint8)]
        yield Program(f"message/{number}", ptx, buffers, columns, covers, grid=ctas, block=BLOCK)
