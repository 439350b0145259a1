"""atom and red: every operation, type, scope and state space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_mlir.validation.differential.case import Program
from attn_mlir.validation.differential.memory import (
    REGION,
    THREADS,
    Text,
    address_of,
    braced,
    fill,
    offsets,
    read_back,
    word,
)
from attn_mlir.validation.differential.values import Rng, draw

INTEGER = ["add.u32", "add.s32", "add.u64", "min.s32", "min.u32", "max.s32", "max.u32", "min.s64",
           "max.u64", "min.u64", "max.s64", "inc.u32", "dec.u32", "and.b32", "or.b32", "xor.b32", "and.b64", "or.b64",
           "xor.b64", "exch.b32", "exch.b64", "cas.b32", "cas.b64", "cas.b16"]  # fmt: skip
FLOATING = ["add.f32", "add.f64", "add.noftz.f16", "add.noftz.f16x2", "add.noftz.bf16",
            "add.noftz.bf16x2"]  # fmt: skip
VECTOR = ["add.v2.f32", "add.v4.f32", "add.noftz.v2.f16", "add.noftz.v4.f16", "add.noftz.v8.f16",
          "add.noftz.v2.bf16", "add.noftz.v4.bf16", "add.noftz.v8.bf16", "add.noftz.v2.f16x2",
          "add.noftz.v4.f16x2", "add.noftz.v2.bf16x2", "add.noftz.v4.bf16x2", "min.noftz.v2.f16x2",
          "max.noftz.v4.bf16x2", "min.noftz.v8.f16", "max.noftz.v2.bf16"]  # fmt: skip
SPACES = ["global", "shared", "shared::cta", "shared::cluster", "generic global", "generic shared"]
SCOPES = ["", ".relaxed.gpu", ".acq_rel.cta", ".acquire.cluster", ".release.sys", ".relaxed.cta"]
_COMMUTES = ("add", "min", "max", "and", "or", "xor")


def _value_width(kind: str) -> int:
    return 4 if kind.endswith("x2") else int(kind.lstrip("busf")) // 8


def _tag(kind: str) -> str:
    """The register type of `values.draw` for a PTX type."""
    return kind if "f" in kind else f"i{kind[1:]}"


def _operand(t: Text, kind: str) -> str:
    tag = _tag(kind)
    values = draw(t.rng, tag, THREADS)
    if values.itemsize == 2:
        name, half = t.load(values.astype(np.uint32)), t.fresh(2)
        t.lines.append(f"cvt.u16.u32 {half}, {name};")
        return half
    return t.load(values)


def _typed_region(rng: Rng, kind: str) -> np.ndarray:
    """A region filled with values of a type, specials included."""
    tag = _tag(kind)
    count = REGION // _value_width(kind)
    return np.ascontiguousarray(draw(rng, tag, count)).view(np.uint8)


def _compare(t: Text, kind: str, space: str, address: str) -> list[str]:
    """Operands of a cas: half of the lanes compare with what is there."""
    bits = int(kind[1:])
    there, new = t.fresh(max(2, bits // 8)), _operand(t, kind)
    t.lines.append(
        f"ld{word(space)}.b{bits} {there}, [{address}]; and.b32 r1, r0, 1; setp.eq.u32 p2, r1, 0;"
    )
    t.lines.append(f"selp.b{bits} {there}, {there}, {new}, p2;")
    return [there, new]


def atomics(seed: int, count: int) -> Iterator[Program]:
    """atom on distinct places three times over, then red; red again, several threads to a place.

    The order of several threads shows in rounded sums, so that floats have no such places.
    """
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        t = Text(rng)
        table = (INTEGER, FLOATING, INTEGER, VECTOR)[number % 4]
        full = table[(number // 4) % len(table)]
        op, kind = full.split(".")[0], full.split(".")[-1]
        vector = next((int(p[1:]) for p in full.split(".") if p in ("v2", "v4", "v8")), 1)
        space = "global" if vector > 1 else str(rng.choice(SPACES))
        width = _value_width(kind)
        fill(t, space)
        address = address_of(t, space, offsets(t, width * vector, True))
        scope = str(rng.choice(SCOPES))
        for _ in range(3):
            if op == "cas":
                names = _compare(t, kind, space, address)
            else:
                names = [_operand(t, kind) for _ in range(vector)]
            results = [t.fresh(width) for _ in range(1 if op == "cas" else vector)]
            given = ", ".join(names) if op == "cas" else braced(names)
            label = t.do(
                f"atom{scope}{word(space)}.{full} {braced(results)}, [{address}], {given};"
            )
            for name in results:
                t.store(name, width, label)
        order = "" if "acq" in scope else scope
        if op not in ("cas", "exch"):
            names = [_operand(t, kind) for _ in range(vector)]
            t.do(f"red{order}{word(space)}.{full} [{address}], {braced(names)};")
        t.lines.append("bar.sync 0;")  # what follows may touch any thread's places
        if kind[0] in "us" or kind in ("b32", "b64"):
            if op in _COMMUTES:
                slots = rng.integers(0, 8, THREADS) * width
                address = address_of(t, space, t.load(slots.astype(np.uint32)))
                t.do(f"red{order}{word(space)}.{full} [{address}], {_operand(t, kind)};")
        t.lines.append("bar.sync 0;")
        read_back(t, "shared" if "shared" in space else "global")
        yield t.program(f"atomic/{number}", _typed_region(rng, kind))


def wide_atomics(seed: int, count: int) -> Iterator[Program]:
    """exch and cas of 16 bytes, on distinct places; every second cas finds what it looks for."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        t = Text(rng)
        space = str(rng.choice(["global", "shared", "shared::cta", "generic global"]))
        scope = str(rng.choice(SCOPES))
        fill(t, space)
        address = address_of(t, space, offsets(t, 16, True))
        for turn in range(3):
            low, high = (t.load(draw(rng, "i64", THREADS)) for _ in range(2))
            t.lines.append(f"mov.b128 q1, {{{low}, {high}}};")
            if (number + turn) % 2:
                label = t.do(f"atom{scope}{word(space)}.exch.b128 q0, [{address}], q1;")
            else:
                there = [t.fresh(8), t.fresh(8)]
                t.lines.append(
                    f"ld{word(space)}.v2.b64 {braced(there)}, [{address}]; and.b32 r1, r0, 1; "
                    f"setp.eq.u32 p2, r1, {turn // 2}; @p2 add.u64 {there[turn % 2]}, {there[0]}, 1;"
                )
                t.lines.append(f"mov.b128 q2, {braced(there)};")
                label = t.do(f"atom{scope}{word(space)}.cas.b128 q0, [{address}], q2, q1;")
            old = [t.fresh(8), t.fresh(8)]
            t.lines.append(f"mov.b128 {braced(old)}, q0;")
            for name in old:
                t.store(name, 8, label)
        t.lines.append("bar.sync 0;")
        read_back(t, "shared" if "shared" in space else "global")
        yield t.program(f"atomic-wide/{number}", _typed_region(rng, "b64"))
