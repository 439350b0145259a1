"""Warps with different tasks: named barriers, registers that move between warpgroups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, Program
from attn_mlir.validation.differential.values import Rng, draw


def _lists(rng: Rng, warps: int) -> tuple[list[int], list[int]]:
    """Warps that only arrive, and warps that wait."""
    order = [int(w) for w in rng.permutation(warps)]
    cut = int(rng.integers(1, warps))
    stop = int(rng.integers(cut + 1, warps + 1))
    return order[:cut], order[cut:stop]


def _in(warps: list[int], label: str) -> str:
    """Skip to a label unless this warp is in a list; r1 is the warp's bit."""
    mask = sum(1 << w for w in warps)
    return f"and.b32 r9, r1, {mask}; setp.eq.u32 p1, r9, 0; @p1 bra {label};"


def _round(rng: Rng, number: int, warps: int, covers: set[str]) -> list[str]:
    """Some warps write and arrive; others wait, and read what one of the writers wrote."""
    writers, readers = _lists(rng, warps)
    count = 32 * (len(writers) + len(readers))
    barrier = int(rng.integers(1, 16))
    name = str(int(barrier)) if rng.random() < 0.5 else "r10"
    arrive = str(rng.choice(["bar.arrive", "barrier.cta.arrive.aligned", "barrier.cta.arrive"]))
    sync = str(rng.choice(["bar.sync", "barrier.cta.sync.aligned", "barrier.cta.sync"]))
    covers |= {arrive, sync}
    lines = [f"mov.u32 r10, {barrier};", _in(writers, f"READ{number}")]
    lines += [f"mad.lo.u32 r6, r6, 5, {number}; st.shared.b32 [r4], r6;"]
    lines += [f"{arrive} {name}, {count};", f"READ{number}:", _in(readers, f"NEXT{number}")]
    lines += [f"{sync} {name}, {count};"]
    source = 128 * int(rng.choice(writers)) + 4 * int(rng.integers(0, 32))
    lines += [
        f"and.b32 r11, r2, 31; shl.b32 r11, r11, 2; add.u32 r11, r11, {source}; and.b32 r11, r11, 127;",
        f"add.u32 r11, r11, {source // 128 * 128}; add.u32 r11, r11, r3; ld.shared.b32 r12, [r11];",
        "shf.l.wrap.b32 r6, r6, r6, 9; xor.b32 r6, r6, r12;",
        f"NEXT{number}:",
    ]
    which = int(rng.integers(0, 4))
    covers.add(("bar.sync", "bar.red.popc.u32", "bar.red.or.pred", "bar.red.and.pred")[which])
    lines.append(
        (
            "bar.sync 0;",
            "and.b32 r13, r6, 1; setp.eq.u32 p2, r13, 1; bar.red.popc.u32 r13, 0, p2; add.u32 r6, r6, r13;",
            "setp.lt.u32 p2, r6, 0x1000000; bar.red.or.pred p3, 0, p2; @p3 add.u32 r6, r6, 77;",
            "setp.gt.u32 p2, r6, 0x1000000; bar.red.and.pred p3, 0, !p2; @!p3 add.u32 r6, r6, 99;",
        )[which]
    )
    return lines


@dataclass(frozen=True)
class Budget:
    """How the registers of a CTA are fixed at the entry, and what its warpgroups ask for."""

    directives: str
    entry: int
    counts: tuple[int, ...]

    def text(self) -> list[str]:
        """Each warpgroup's setmaxnreg."""
        lines: list[str] = []
        for i, count in enumerate(self.counts):
            way = "dec" if count < self.entry else "inc"
            lines += [
                f"and.b32 r9, r1, {0xF << 4 * i}; setp.eq.u32 p1, r9, 0; @p1 bra GROUP{i};",
                f"setmaxnreg.{way}.sync.aligned.u32 {count};",
                f"GROUP{i}:",
            ]
        return lines


def _budget(rng: Rng, directives: str, entry: int, groups: int) -> Budget:
    """Counts of warpgroups whose sum is what the CTA has, or less."""
    while True:
        counts = [8 * int(rng.integers(3, 29)) for _ in range(groups - 1)]
        last = groups * entry - sum(counts)
        if rng.random() < 0.5:
            last -= 8 * int(rng.integers(0, 5))
        if 24 <= last <= 232:
            counts.insert(int(rng.integers(0, groups)), last)
            return Budget(directives, entry, tuple(counts))


def _program(name: str, rng: Rng, warps: int, budget: Budget | None) -> Program:
    covers = {"activemask.b32"}
    lines: list[str] = []
    if budget is not None:
        covers |= {"setmaxnreg.dec.sync.aligned.u32", "setmaxnreg.inc.sync.aligned.u32"}
        lines += budget.text()
    for turn in range(int(rng.integers(2, 6))):
        lines += _round(rng, turn, warps, covers)
    body = "\n".join(f"  {line}" for line in lines)
    ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
.reqntid {32 * warps}, 1, 1
{budget.directives if budget else ""}
{{
  .reg .b32 r<20>; .reg .b64 d<8>; .reg .pred p<8>;
  .shared .align 16 .b32 words[{32 * warps}];
  ld.param.u64 d0, [inputs];
  ld.param.u64 d1, [outputs];
  mov.u32 r2, %tid.x;
  shr.u32 r1, r2, 5; mov.u32 r5, 1; shl.b32 r1, r5, r1;
  mov.u32 r3, words;
  mad.lo.u32 r4, r2, 4, r3;
  mad.wide.u32 d2, r2, 4, d0;
  mad.wide.u32 d3, r2, 4, d1;
  ld.global.b32 r6, [d2];
  activemask.b32 r7;
  st.shared.b32 [r4], r6;
{body}
  ld.shared.b32 r8, [r4];
  st.global.b32 [d3], r6;
  st.global.b32 [d3+{128 * warps}], r7;
  st.global.b32 [d3+{256 * warps}], r8;
  ret;
}}
"""
    names = ("what a thread read", "activemask", "what a thread wrote")
    columns = [Column(name, 1, 128 * warps * i, 32 * warps, "u4") for i, name in enumerate(names)]
    inputs = draw(rng, "i32", 32 * warps).view(np.uint8)
    outputs = np.zeros(3 * 128 * warps, np.uint8)
    return Program(name, ptx, [inputs, outputs], columns, sorted(covers), block=32 * warps)


def roles(seed: int, count: int) -> Iterator[Program]:
    """Rounds in which every warp may write, read or stay away.

    In every other program warpgroups give registers to others, within what the CTA has.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        budget = None
        if number % 4 == 0:
            budget = _budget(rng, ".maxnreg 128", 128, 2)
        elif number % 4 == 2:  # the share of an SM for 384 threads
            budget = _budget(rng, ".minnctapersm 1", 168, 3)
        warps = 4 * len(budget.counts) if budget else int(rng.choice([2, 3, 4, 8]))
        yield _program(f"roles/{number}", rng, warps, budget)


def starved(seed: int, count: int) -> Iterator[Program]:
    """Warpgroups that ask for more registers than others give back: nobody goes on."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        less = 8 * int(rng.integers(3, 16))
        budget = Budget(".maxnreg 128", 128, (less, 256 - less + 8 * (1 + number)))
        yield _program(f"roles-starved/{number}", rng, 8, budget)
