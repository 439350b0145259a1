"""Warps with different tasks: named barriers, registers that move between warpgroups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from differential.case import HEAD, Column, Program
from differential.values import Rng, draw


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


def roles(seed: int, count: int) -> Iterator[Program]:
    """Rounds in which every warp may write, read or stay away.

    Every third program has two warpgroups, one of which gives registers to the other.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        moves = number % 3 == 0
        warps = 8 if moves else int(rng.choice([2, 3, 4, 8]))
        covers: set[str] = set()
        lines: list[str] = []
        if moves:
            less, more = 8 * int(rng.integers(3, 17)), 8 * int(rng.integers(17, 30))
            first = bool(rng.integers(0, 2))
            covers |= {"setmaxnreg.dec.sync.aligned.u32", "setmaxnreg.inc.sync.aligned.u32"}
            lines += [
                f"setp.{'lt' if first else 'ge'}.u32 p1, r2, 128; @p1 bra MORE;",
                f"setmaxnreg.dec.sync.aligned.u32 {less}; bra.uni BOTH;",
                f"MORE: setmaxnreg.inc.sync.aligned.u32 {more};",
                "BOTH:",
            ]
        for turn in range(int(rng.integers(2, 6))):
            lines += _round(rng, turn, warps, covers)
        body = "\n".join(f"  {line}" for line in lines)
        bound = ".maxnreg 128" if moves else ""
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
.reqntid {32 * warps}, 1, 1
{bound}
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
        columns = [
            Column(name, 1, 128 * warps * i, 32 * warps, "u4") for i, name in enumerate(names)
        ]
        inputs = draw(rng, "i32", 32 * warps).view(np.uint8)
        covers.add("activemask.b32")
        yield Program(
            f"roles/{number}", ptx, [inputs, np.zeros(3 * 128 * warps, np.uint8)], columns,
            sorted(covers), block=32 * warps,
        )  # fmt: skip
