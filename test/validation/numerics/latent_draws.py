"""Drawn problems of latent attention before absorption, judged on the emulator; a failure prints its command.

    python -m attn_mlir.validation.numerics.latent_draws 17           one draw, by its number
    python -m attn_mlir.validation.numerics.latent_draws --count 200  draws 0 to 199; `make numerics`

Exit code: 0 when all passed, 1 when one failed.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
from typing import Any

os.environ.setdefault("ATTN_MLIR_CHECK", "all")

import ml_dtypes
import numpy as np

import attn_mlir as am
from attn_mlir.dialect.attn.latent.formats import PLAIN
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.schedules.policy.tiling import has_tiling
from attn_mlir.validation.numerics.drawn_runs import DrawnRuns
from attn_mlir.validation.numerics.latent import E4M3, LatentProblem, NarrowRope, RowFactors
from attn_mlir.validation.numerics.stored import Form

TARGETS = ("sm_100a", "sm_90a")
LENGTHS = (1, 7, 64, 128, 129, 200, 300)
MASKS: tuple[am.Mask, ...] = (
    am.full(),
    am.causal(),
    am.sliding_window(100, 0),
    am.sliding_window(30, 70),
    am.chunked(150),
    am.prefix_lm(90),
)
CACHES = (
    Form(8),
    Form(16, "HND"),
    Form(32, compressed=True),
    Form(64, counts_new=False),
    Form(128),
    Form(256, compressed=True),
    Form(),
    Form(selected=True),
    Form(selected=True, padded=True, counts_new=False),
)
SIZES = ((128, 64, 128), (128, 64, 64), (64, 64, 256), (192, 64, 96))  # rope of 64: a cache fits
OTHER_SIZES = ((64, 32, 72), (128, 16, 40))
NARROW_SIZES = ((128, 64, 128), (128, 64, 64), (128, 32, 80), (128, 64, 256))
POWERS = ((0, 0, 0), (29, -29, 20), (-29, 29, -20))  # of 10: factors of q, k and v
INSIDE_SHARE = 0.3  # of draws, with tensors that are parts of larger ones
NARROW_SHARE = 0.3  # of draws for a target with tensor memory, in rope alone and in all operands
WIDE_SHARE = 0.4  # of draws of 8 bits, with rope of 16; of a cache in rows of 640 bytes
ROPES = (  # of keys, in 8 bits
    NarrowRope(),
    NarrowRope((-2, 2)),
    NarrowRope((28, 30)),
    NarrowRope((-30, -28)),
    NarrowRope((-2, 2), np.float16),
    NarrowRope((28, 30), ml_dtypes.bfloat16),
)


def drawn(seed: int, target: str = "") -> LatentProblem:
    """The problem of a seed.

    Args:
      target: the chip that it is for; drawn as well when left out.
    """
    choose = random.Random(seed)
    device: dict[str, Any] = {"target": choose.choice(TARGETS), "multiprocessors": 2}
    if choose.random() < 0.5:
        device |= {"schedule": "adversarial", "seed": seed % 1000}
    if target:
        device["target"] = target
    batch = choose.choice((1, 2, 3))
    ragged = choose.choice(("", "q", "qk", "qk"))
    sq = [choose.choice(LENGTHS)] * batch
    sk = [choose.choice((*LENGTHS, 0)) for _ in range(batch)]
    if "q" in ragged:
        sq = [choose.choice((*LENGTHS[:5], 0)) for _ in range(batch)]
    cache = choose.choice(CACHES) if choose.random() < 0.5 else None
    if cache is not None and not cache.counts_new:  # the new keys are among them
        sk = [max(pair) for pair in zip(sq, sk, strict=True)]
    orders: list[str | None] = [None, "single", "last_first", "persistent"]
    orders += ["clc"] if device["target"] == "sm_100a" else []
    orders += ["ragged"] if "q" in ragged else []
    mask = choose.choice(MASKS)
    if choose.random() < 0.3:
        other = choose.choice(MASKS)
        mask = choose.choice((mask & other, mask | other, mask & ~other))
    spare = choose.choice((0, 40)) if "k" in ragged and cache is not None else 0
    sizes = choose.choice(SIZES if cache is not None else SIZES + OTHER_SIZES)
    found = LatentProblem(
        queries=tuple(sq),
        keys=tuple(sk),
        ragged=ragged,
        cache=cache,
        spare=spare if cache is not None and cache.counts_new else 0,
        heads=choose.choice(((1, 1), (2, 2), (2, 1))),
        sizes=sizes,
        dtype=choose.choice((ml_dtypes.bfloat16, np.float16)),
        magnitude=choose.choice((1.0, 1.0, 30.0)),
        options={"mask": mask, "scale": choose.choice((192**-0.5, 0.3, 1e-3))},
        call={
            "query_tiles": choose.choice((None, 1, 2)),
            "tile_order": choose.choice(orders),
            "out_dtype": choose.choice((None, "bf16", "f32" if sizes[-1] <= 192 else "f16")),
        },
        is_inside=random.Random(f"inside {seed}").random() < INSIDE_SHARE,
        device=device,
        seed=seed,
    )
    if found.call["query_tiles"] == 2 and not _has_two_query_tiles(device["target"], sizes):
        found.call["query_tiles"] = None
    kind = choose.random()
    if kind >= 2 * NARROW_SHARE or device["target"] != "sm_100a":
        return found
    return _narrowed(found, choose) if kind < NARROW_SHARE else _in_8_bits(found, choose)


def _has_two_query_tiles(target: str, sizes: tuple[int, int, int]) -> bool:
    """Whether two have a kernel in any order, and with O in f32."""
    nope, rope, v_head_dim = sizes
    most: dict[str, Any] = {"tile_order": "persistent", "output_bits": 32}
    return target != "sm_100a" or has_tiling(
        target_named(target), nope + rope, v_head_dim, q_tiles=2, **most
    )


def _narrowed(problem: LatentProblem, choose: random.Random) -> LatentProblem:
    """The problem with rope of keys in 8 bits, as far as there is a kernel."""
    rope = choose.choice(ROPES)
    call = dict(problem.call)
    if problem.cache is None:
        rope = NarrowRope(rope.exponents)  # factors of f32
    elif problem.cache.page_size:
        apart = choose.random() < 0.5
        problem = dataclasses.replace(
            problem, cache=dataclasses.replace(problem.cache, scales_apart=apart)
        )
    if call["tile_order"] == "clc":
        call["query_tiles"] = choose.choice((None, 1))
    return dataclasses.replace(problem, rope=rope, dtype=ml_dtypes.bfloat16, call=call)


def _in_8_bits(problem: LatentProblem, choose: random.Random) -> LatentProblem:
    """The problem with all operands in 8 bits, as far as there is a kernel."""
    sizes = choose.choice([x for x in NARROW_SIZES if problem.cache is None or x[1] == 64])
    spread, per_head = choose.choice((0.0, 1.0)), choose.choice((True, False))
    factors = RowFactors(*choose.choice(POWERS), spread, per_head)
    call = {**problem.call, "out_dtype": choose.choice((None, "f16", "f32"))}
    if factors.values > 0:  # no number of f16
        call["out_dtype"] = None
    if sizes[-1] > NARROW_SIZES[0][-1]:
        call["out_dtype"] = None
    if call["tile_order"] == "clc":
        call["query_tiles"] = choose.choice((None, 1))
    magnitude = min(problem.magnitude, 10.0)
    wide_rope = random.Random(f"rope {problem.seed}").random() < WIDE_SHARE
    stored = "e4m3_rope16" if wide_rope and problem.cache is not None else PLAIN
    return dataclasses.replace(
        problem,
        sizes=sizes,
        dtype=E4M3,
        factors=factors,
        wide_rope=wide_rope,
        stored=stored,
        call=call,
        magnitude=magnitude,
    )


DRAWS = DrawnRuns("attn_mlir.validation.numerics.latent_draws", drawn)

if __name__ == "__main__":
    sys.exit(DRAWS.command(__doc__ or ""))
