"""Warp collectives under full and partial masks, barriers of a CTA, and control flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attn_mlir.validation.differential.case import Program
from attn_mlir.validation.differential.chains import Builder
from attn_mlir.validation.differential.ops import opcodes_of
from attn_mlir.validation.differential.values import Rng

FULL = 0xFFFFFFFF
THREADS = 64  # two warps


class WarpBuilder(Builder):
    """A builder whose steps know the lanes that execute them.

    Attributes:
      covers: opcodes so far.
      mask: the member mask of the current region.
    """

    def __init__(self, rng: Rng):
        super().__init__(rng, THREADS)
        self.covers: list[str] = []
        self.mask = FULL
        self.labels = 0
        self.late: list[tuple[str, str, str]] = []

    def emit(self, text: str, *results: tuple[str, str]) -> None:
        """A line whose results, (register, type), are stored at the end of the program.

        Registers written under a partial mask start as a constant.
        """
        self.lines.append(text)
        self.covers += opcodes_of(text)
        for name, kind in results:
            self.late.append((name, kind, text))
            if kind == "pred":
                self.loads.append(f"setp.ne.u32 {name}, r0, r0;")
            else:
                self.loads.append(f"mov.{'b64' if kind == 'i64' else 'b32'} {name}, 0x5A5A5A5A;")

    def word(self) -> str:
        """A 32-bit operand: loaded, or few distinct values."""
        name = self.load("i32")
        keep = int(self.rng.choice([0, 1, 3, 7, 31])) if self.rng.random() < 0.5 else 0
        if keep:
            self.loads.append(f"and.b32 {name}, {name}, {keep};")
        return name

    def predicate(self) -> str:
        """A predicate that holds for some, no or all lanes."""
        name, word = self.register("pred"), self.word()
        bits = int(self.rng.choice([0, 1, 3, 0x80000000]))
        self.loads.append(f"and.b32 {word}, {word}, {bits}; setp.eq.u32 {name}, {word}, 0;")
        return name

    def finish(self, name: str) -> Program:
        """Store everything and end."""
        for register, kind, label in self.late:
            self.store(register, kind, label)
        return self.program(name, self.covers)


def lanes_of(mask: int) -> list[int]:
    """The set bits."""
    return [lane for lane in range(32) if mask >> lane & 1]


def step_shuffle(b: WarpBuilder) -> None:
    """shfl; under a partial mask only from lanes that take part."""
    rng, r, p, a = b.rng, b.register("i32"), b.register("pred"), b.word()
    members = f"0x{b.mask:08x}"
    if b.mask == FULL:
        mode = str(rng.choice(["up", "down", "bfly", "idx"]))
        segment = int(rng.choice([0, 0x10, 0x18, 0x1C, 0x1E, 0x1F]))
        clamp = 0 if mode == "up" else int(rng.choice([0x1F, 0x1F, 0, 7, 15]))
        if rng.random() < 0.2:
            clamp = int(rng.integers(0, 32))
        distance = str(int(rng.integers(0, 40))) if rng.random() < 0.5 else b.load("i32")
        b.emit(
            f"shfl.sync.{mode}.b32 {r}|{p}, {a}, {distance}, {segment << 8 | clamp}, {members};",
            (r, "i32"),
            (p, "pred"),
        )
    else:
        lane = int(rng.choice(lanes_of(b.mask)))
        b.emit(f"shfl.sync.idx.b32 {r}|{p}, {a}, {lane}, 31, {members};", (r, "i32"), (p, "pred"))


def step_vote(b: WarpBuilder) -> None:
    """vote.sync."""
    mode, p = str(b.rng.choice(["any", "all", "uni", "ballot"])), b.predicate()
    sign = "!" if b.rng.random() < 0.3 else ""
    if mode == "ballot":
        r = b.register("i32")
        b.emit(f"vote.sync.ballot.b32 {r}, {sign}{p}, 0x{b.mask:08x};", (r, "i32"))
    else:
        q = b.register("pred")
        b.emit(f"vote.sync.{mode}.pred {q}, {sign}{p}, 0x{b.mask:08x};", (q, "pred"))


def step_match(b: WarpBuilder) -> None:
    """match.sync."""
    bits = int(b.rng.choice([32, 64]))
    a = b.word()
    if bits == 64:
        wide = b.register("i64")
        b.loads.append(f"mov.b64 {wide}, {{{a}, {b.word()}}};")
        a = wide
    r = b.register("i32")
    if b.rng.random() < 0.5:
        b.emit(f"match.any.sync.b{bits} {r}, {a}, 0x{b.mask:08x};", (r, "i32"))
    else:
        p = b.register("pred")
        b.emit(f"match.all.sync.b{bits} {r}|{p}, {a}, 0x{b.mask:08x};", (r, "i32"), (p, "pred"))


def step_redux(b: WarpBuilder) -> None:
    """redux.sync of integers."""
    form = str(
        b.rng.choice(
            [
                "add.s32",
                "add.u32",
                "min.s32",
                "min.u32",
                "max.s32",
                "max.u32",
                "and.b32",
                "or.b32",
                "xor.b32",
            ]
        )
    )
    r = b.register("i32")
    b.emit(f"redux.sync.{form} {r}, {b.word()}, 0x{b.mask:08x};", (r, "i32"))


def step_elect(b: WarpBuilder) -> None:
    """elect.sync."""
    r, p = b.register("i32"), b.register("pred")
    b.emit(f"elect.sync {r}|{p}, 0x{b.mask:08x};", (r, "i32"), (p, "pred"))


def step_masks(b: WarpBuilder) -> None:
    """Special registers of lanes."""
    r = b.register("i32")
    name = str(b.rng.choice(["laneid", *(f"lanemask_{x}" for x in ("lt", "le", "gt", "ge", "eq"))]))
    b.emit(f"mov.u32 {r}, %{name};", (r, "i32"))


def step_barrier(b: WarpBuilder) -> None:
    """Warp barriers; where all threads come, reductions over the CTA."""
    if b.mask != FULL or b.rng.random() < 0.3:
        b.emit(f"bar.warp.sync 0x{b.mask:08x};")
        return
    p = b.predicate()
    which = int(b.rng.integers(0, 3))
    number = int(b.rng.integers(0, 16))
    if which == 0:
        r = b.register("i32")
        b.emit(f"bar.red.popc.u32 {r}, {number}, {p};", (r, "i32"))
    else:
        q = b.register("pred")
        b.emit(f"bar.red.{('and', 'or')[which - 1]}.pred {q}, {number}, {p};", (q, "pred"))


STEPS: list[Callable[[WarpBuilder], None]] = [
    step_shuffle, step_shuffle, step_vote, step_match, step_redux, step_elect, step_masks,
    step_barrier,
]  # fmt: skip


def split(b: WarpBuilder, depth: int) -> None:
    """if/else by lane, each side with its own members."""
    outer, label = b.mask, b.labels
    b.labels += 1
    lanes = lanes_of(outer)
    count = int(b.rng.integers(1, len(lanes)))
    inner = sum(1 << int(lane) for lane in b.rng.choice(lanes, count, replace=False))
    bit, p = b.register("i32"), b.register("pred")
    b.lines.append(
        f"mov.u32 {bit}, %lanemask_eq; and.b32 {bit}, {bit}, 0x{inner:08x}; "
        f"setp.eq.u32 {p}, {bit}, 0; @{p} bra ELSE{label};"
    )
    b.mask = inner
    region(b, 2, depth + 1)
    b.lines.append(f"bra.uni JOIN{label};\nELSE{label}:")
    b.mask = outer & ~inner
    region(b, 2, depth + 1)
    b.lines.append(f"JOIN{label}:\n  bar.warp.sync 0x{outer:08x};")
    b.mask = outer


def region(b: WarpBuilder, steps: int, depth: int) -> None:
    """Steps, some of them splits."""
    for _ in range(steps):
        if depth < 3 and len(lanes_of(b.mask)) > 1 and b.rng.random() < 0.25:
            split(b, depth)
        else:
            choice = STEPS[int(b.rng.integers(0, len(STEPS)))]
            choice(b)


def collectives(seed: int, count: int) -> Iterator[Program]:
    """Random steps, about half of them in divergent regions."""
    for number in range(count):
        b = WarpBuilder(np.random.default_rng([seed, number]))
        region(b, 5, 0)
        yield b.finish(f"warp/{number}")


# ---- control flow


def control(seed: int, count: int) -> Iterator[Program]:
    """Loops with a trip count per thread, nested branches, indirect branches."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        b = WarpBuilder(rng)
        total = b.register("i32")
        b.emit(f"mov.u32 {total}, {int(rng.integers(0, 1000))};", (total, "i32"))
        for kind in rng.permutation(3):
            (_loop, _ladder, _table)[int(kind)](b, total)
        yield b.finish(f"control/{number}")


def _loop(b: WarpBuilder, total: str) -> None:
    label, trips, i, p = b.labels, b.load("i32"), b.register("i32"), b.register("pred")
    b.labels += 1
    x, inner = b.load("i32"), b.register("i32")
    b.emit(f"and.b32 {trips}, {trips}, {int(b.rng.choice([1, 3, 7, 15]))}; mov.u32 {i}, 0;")
    b.lines.append(f"LOOP{label}:")
    b.emit(f"mad.lo.u32 {total}, {total}, 31, {x}; shf.l.wrap.b32 {x}, {x}, {x}, 7;")
    b.emit(f"and.b32 {inner}, {x}, 3;")
    b.lines.append(f"INNER{label}:")
    b.emit(f"setp.eq.u32 {p}, {inner}, 0; @{p} bra DONE{label};")
    b.emit(f"add.u32 {total}, {total}, {inner}; sub.u32 {inner}, {inner}, 1;")
    b.lines.append(f"bra INNER{label};\nDONE{label}:")
    b.emit(f"add.u32 {i}, {i}, 1; setp.le.u32 {p}, {i}, {trips}; @{p} bra LOOP{label};")


def _ladder(b: WarpBuilder, total: str) -> None:
    label, x, p = b.labels, b.load("i32"), b.register("pred")
    b.labels += 1
    for rung in range(4):
        b.emit(f"bfe.u32 r7, {x}, {5 * rung}, 2; setp.ne.u32 {p}, r7, {int(b.rng.integers(0, 4))};")
        b.lines.append(f"@{p} bra RUNG{label}_{rung};")
        b.emit(f"xor.b32 {total}, {total}, {x}; add.u32 {total}, {total}, {rung};")
        if rung == 1:
            b.lines.append(f"bra OUT{label};")
        b.lines.append(f"RUNG{label}_{rung}:")
    b.lines.append(f"OUT{label}:")


def _table(b: WarpBuilder, total: str) -> None:
    label, x = b.labels, b.load("i32")
    b.labels += 1
    names = [f"CASE{label}_{i}" for i in range(4)]
    b.lines.append(f"TABLE{label}: .branchtargets {', '.join(names)};")
    b.emit(f"and.b32 {x}, {x}, 3;")
    b.lines.append(f"brx.idx {x}, TABLE{label};")
    b.covers.append("brx.idx")
    for i, name in enumerate(names):
        b.lines.append(f"{name}:")
        b.emit(f"mad.lo.u32 {total}, {total}, {2 * i + 3}, {i};")
        if b.rng.random() < 0.7:
            b.lines.append(f"bra END{label};")
    b.lines.append(f"END{label}:")
