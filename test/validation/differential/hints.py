"""What changes no value: cache hints and policies, prefetches, fences, nanosleep, launch dependences."""

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
    offsets,
    random_region,
)
from attn_mlir.validation.differential.values import draw

QUIET = [
    "fence.acq_rel.cta;", "fence.acq_rel.gpu;", "fence.acq_rel.sys;", "fence.sc.cta;",
    "fence.sc.cluster;", "fence.sc.gpu;", "fence.proxy.async;", "fence.proxy.async.global;",
    "fence.proxy.async.shared::cta;", "fence.proxy.alias;", "membar.cta;", "membar.gl;",
    "fence.mbarrier_init.release.cluster;", "fence.proxy.tensormap::generic.release.gpu;",
    "nanosleep.u32 20;", "griddepcontrol.wait;", "griddepcontrol.launch_dependents;",
    "prefetch.global.L1 [region_at];", "prefetch.global.L2 [region_at];",
    "prefetch.global.L2::evict_last [region_at];", "prefetch.global.L2::evict_normal [region_at];",
    "applypriority.global.L2::evict_normal [region_at], 128;", "prefetchu.L1 [d1];",
    "bar.warp.sync 0xffffffff;", "bar.sync 0;", "barrier.cta.sync 1;", "pmevent 1;",
]  # fmt: skip
POLICIES = [
    "createpolicy.fractional.L2::evict_first.b64 d8, 0.25;",
    "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 d8, 0.75;",
    "createpolicy.fractional.L2::evict_normal.b64 d8;",
    "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 d8, [region_at], 1024, 2048;",
    "createpolicy.cvt.L2.b64 d8, 0x10F0000000000000;",
    "mov.b64 d8, 0x12F0000000000000;",
]
LOADS = [  # without .nc: what is read is written later, by another thread of the launch
    ".L2::cache_hint", ".L1::no_allocate.L2::cache_hint", ".L1::evict_last",
    ".L1::evict_unchanged.L2::cache_hint.L2::128B", ".L1::evict_first.L2::cache_hint.L2::256B",
]  # fmt: skip
STORES = [".L2::cache_hint", ".L1::no_allocate.L2::cache_hint", ".L1::evict_first.L2::cache_hint"]


def hints(seed: int, count: int) -> Iterator[Program]:
    """Loads, stores and reductions with policies, between instructions that change nothing."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        t = Text(rng)
        quiet = list(rng.permutation(len(QUIET)))
        names: list[str] = []

        def pause(quiet: list[int] = quiet, t: Text = t) -> None:
            for _ in range(3):
                t.do(QUIET[int(quiet.pop())])

        place = address_of(t, "global", offsets(t, 32, True))
        for turn in range(3):
            pause()
            t.do(POLICIES[(number + turn) % len(POLICIES)])
            kind, n = str(rng.choice(["b32", "u32", "f32"])), int(rng.choice([1, 2, 4]))
            hint = str(rng.choice(LOADS))
            vector = f".v{n}" if n > 1 else ""
            names = [t.fresh(4) for _ in range(n)]
            policy = ", d8" if "cache_hint" in hint else ""
            here = address_of(t, "global", offsets(t, 4 * n, False))
            label = t.do(f"ld.global{hint}{vector}.{kind} {braced(names)}, [{here}]{policy};")
            for name in names:
                t.store(name, 4, label)
        t.lines.append("bar.sync 0;")  # everything that others store was read
        pause()
        words = [t.load(draw(rng, "i32", THREADS)) for _ in range(4)]
        store = str(rng.choice(STORES))
        t.do(f"st.global{store}.v4.b32 [{place}], {braced(words)}, d8;")
        pause()
        t.do(f"red.global.add.L2::cache_hint.u32 [{place}], {words[1]}, d8;")
        old = t.fresh(4)
        label = t.do(f"atom.global.max.L2::cache_hint.u32 {old}, [{place}+4], {words[2]}, d8;")
        t.store(old, 4, label)
        pause()
        yield t.program(f"hint/{number}", random_region(rng))


assert REGION >= 32 * THREADS
