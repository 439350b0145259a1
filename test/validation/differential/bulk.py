"""Bulk copies and reductions without tensor maps, and the older cp.async."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_mlir.validation.differential.case import Column, Program
from attn_mlir.validation.differential.tma import SHARED_BYTES, WAIT, WINDOW, contents, kernel
from attn_mlir.validation.differential.values import Rng

EXTENTS = (512, 1024, 4096)  # bytes of the global buffers
_ELEMENT = {
    "u32": 2,
    "s32": 3,
    "u64": 4,
    "s64": 5,
    "b32": 2,
    "b64": 4,
    "f16": 6,
    "bf16": 9,
    "f32": 7,
    "f64": 8,
}
GLOBAL_REDUCTIONS = [
    *(f"{op}.{t}" for op in ("add", "min", "max") for t in ("u32", "s32", "u64")),
    *("min.s64", "max.s64", "inc.u32", "dec.u32", "add.f32", "add.f64"),
    *(f"{op}.{t}" for op in ("and", "or", "xor") for t in ("b32", "b64")),
    *("add.noftz.f16", "min.f16", "max.f16", "add.noftz.bf16", "min.bf16", "max.bf16"),
]


def _finish(
    name: str, body: list[str], source: np.ndarray, target: np.ndarray, covers: list[str]
) -> Program:
    text = kernel("\n".join(body), 0)
    columns = [
        Column("the window", 1, 0, WINDOW, "u1"),
        Column("the target", 2, 0, target.size, "u1"),
    ]
    buffers = [source, np.zeros(WINDOW, np.uint8), target]
    return Program(name, text, buffers, columns, covers, block=128, shared_bytes=SHARED_BYTES)


def _piece(rng: Rng, limit: int) -> tuple[int, int, int]:
    """(offset in one place, offset in the other, bytes), multiples of 16."""
    size = 16 * int(rng.integers(1, limit // 32 + 1))
    return (
        16 * int(rng.integers(0, (limit - size) // 16 + 1)),
        16 * int(rng.integers(0, (limit - size) // 16 + 1)),
        size,
    )


def copies(seed: int, count: int) -> Iterator[Program]:
    """Global to shared, then shared to global, with and without a reduction."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        body: list[str] = []
        covers: list[str] = []
        form = "copy" if number % 4 == 0 else GLOBAL_REDUCTIONS[number % len(GLOBAL_REDUCTIONS)]
        kind = form.split(".")[-1]
        special = bool(rng.integers(0, 2))
        extent = int(rng.choice(EXTENTS))
        source = contents(rng, _ELEMENT.get(kind, 0), extent, special)
        target = contents(rng, _ELEMENT.get(kind, 0), extent, special)
        (a, b, size), (c, d, size2) = _piece(rng, extent), _piece(rng, extent)
        # a slice of each global buffer comes in, into halves of the window
        word = str(rng.choice(["shared::cluster", "shared::cta"]))
        hint, policy = ("", "") if rng.random() < 0.7 else (".L2::cache_hint", ", d9")
        load = f"cp.async.bulk.{word}.global.mbarrier::complete_tx::bytes{hint}"
        covers += [
            load,
            "createpolicy.fractional.L2::evict_first.b64",
            "cp.async.bulk.prefetch.L2.global",
        ]
        body.append(f"  {covers[-2]} d9, 0.5; {covers[-1]} [d0], {extent};")
        body.append(f"  mbarrier.arrive.expect_tx.shared::cta.b64 _, [r10], {size + size2};")
        body.append(
            f"  add.u32 r9, r2, {b}; add.u64 d5, d0, {a}; {load} [r9], [d5], {size}, [r10]{policy};"
        )
        body.append(
            f"  add.u32 r9, r2, {extent + d}; add.u64 d5, d2, {c}; {load} [r9], [d5], {size2}, [r10]{policy};"
        )
        body.append(WAIT.format(n=0, parity=0))
        x, y, size3 = _piece(rng, extent)
        op = "cp.async.bulk" if form == "copy" else "cp.reduce.async.bulk"
        tail = "" if form == "copy" else f".{form}"
        text = f"{op}.global.shared::cta.bulk_group{tail}"
        body.append(f"  add.u32 r9, r2, {x}; add.u64 d5, d2, {y};")
        body.append(f"  {text} [d5], [r9], {size3};")
        body.append("  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;")
        covers += [text, "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"]
        yield _finish(f"bulk/{number}", body, source, target, covers)


def small_copies(seed: int, count: int) -> Iterator[Program]:
    """cp.async of 4, 8 and 16 bytes with zero fill, groups and mbarriers."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        body: list[str] = []
        covers: list[str] = [
            "cp.async.wait_all" if number % 3 == 0 else "cp.async.wait_group",
            "cp.async.commit_group",
        ]
        extent = int(rng.choice(EXTENTS))
        body.append("  createpolicy.fractional.L2::evict_last.b64 d9;")
        for turn in range(6):
            size = int(rng.choice([4, 8, 16]))
            cache = str(rng.choice(["ca", "cg"])) if size == 16 else "ca"
            near = size * int(rng.integers(0, 256 // size)) + 256 * turn
            far = size * int(rng.integers(0, extent // size))
            tail = ""
            if rng.random() < 0.4:
                tail = f", {int(rng.integers(0, size + 1))}"
            hint = str(rng.choice(["", ".L2::64B", ".L2::128B", ".L2::256B", ".L2::cache_hint"]))
            if hint == ".L2::cache_hint":
                tail += ", d9"
            text = f"cp.async.{cache}.{rng.choice(['shared', 'shared::cta'])}.global{hint}"
            covers.append(text)
            body.append(
                f"  add.u32 r9, r2, {near}; add.u64 d5, d0, {far}; {text} [r9], [d5], {size}{tail};"
            )
            if rng.random() < 0.5:
                body.append("  cp.async.commit_group;")
        if number % 3 == 0:
            body.append("  cp.async.wait_all;")
        elif number % 3 == 1:
            body.append("  cp.async.commit_group; cp.async.wait_group 0;")
        else:
            form = str(rng.choice([".noinc", ""]))
            covers.append(f"cp.async.mbarrier.arrive{form}.shared::cta.b64")
            body.append(f"  {covers[-1]} [r10];")
            if not form:
                body.append("  mbarrier.arrive.shared::cta.b64 _, [r10];")
            body.append(WAIT.format(n=0, parity=0))
        source = contents(rng, 0, extent, False)
        yield _finish(f"cp-async/{number}", body, source, np.zeros(16, np.uint8), covers)
