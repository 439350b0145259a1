"""Drawn problems of latent attention after absorption, judged on the emulator; a failure prints its command.

    python -m attn_mlir.validation.numerics.decode_draws 17           one draw, by its number
    python -m attn_mlir.validation.numerics.decode_draws --count 100  draws 0 to 99; `make numerics`

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
from attn_mlir.validation.numerics.decode import SCALE, DecodeProblem
from attn_mlir.validation.numerics.drawn_runs import DrawnRuns
from attn_mlir.validation.numerics.latent_draws import CACHES
from attn_mlir.validation.numerics.stored import Form

TARGETS = ("sm_90a", "sm_100a")
LISTED_HEADS = {"sm_90a": 16, "sm_100a": 8}  # of which queries with lists have a multiple
PAIR_SHARE = 0.2
RARER_SHARE = 0.5
LENGTHS = (0, 1, 31, 64, 65, 130, 200)
MASKS: tuple[am.Mask, ...] = (
    am.full(),
    am.causal(),
    am.causal(),
    am.sliding_window(70, 0),
    am.chunked(64),
)
PAGES = (1, 2, 16, 61, 64)  # of caches of which lists name rows


def drawn(seed: int, target: str = "") -> DecodeProblem:
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
    queries = choose.choice((1, 1, 2, 3, 4))
    keys = [choose.choice(LENGTHS) for _ in range(choose.choice((1, 2)))]
    cache = choose.choice(CACHES)
    if not cache.counts_new:  # the new keys are among them
        keys = [max(queries, count) for count in keys]
    options: dict[str, Any] = {"scale": choose.choice((SCALE, 0.3, 1e-3))}
    mask = choose.choice(MASKS)
    topk, has_lengths = 0, False
    heads = choose.choice((8, 16, 24, 32, 64))
    if device["target"] == "sm_100a" and random.Random(f"pair {seed}").random() < PAIR_SHARE:
        heads = 128  # the work of two CTAs
    if heads % LISTED_HEADS[device["target"]] == 0 and choose.random() < 0.4:
        topk, has_lengths = choose.choice((1, 50, 64, 130)), choose.random() < 0.5
        keys = [max(count, 1) for count in keys]
        cache = Form(choose.choice(PAGES), choose.choice(("NHD", "HND")))
    else:
        options["mask"] = mask
    found = DecodeProblem(
        queries=queries,
        keys=tuple(keys),
        cache=cache,
        heads=heads,
        columns=choose.choice((576, 576, 512)),
        dtype=choose.choice((ml_dtypes.bfloat16, np.float16)),
        topk=topk,
        has_lengths=has_lengths,
        sinks=choose.choice(("", "finite", "infinite")),
        magnitude=choose.choice((1.0, 1.0, 30.0)),
        options=options,
        call={"num_splits": choose.choice((0, 1, 2, 3))},
        device=device,
        seed=seed,
    )
    more = random.Random(f"more {seed}")
    return _rarer(found, more) if more.random() < RARER_SHARE else found


def _rarer(problem: DecodeProblem, choose: random.Random) -> DecodeProblem:
    """The problem with what calls seldom have."""
    options = dict(problem.options)
    options["scale"] = choose.choice((options["scale"], options["scale"], 1e-30, 1e30))
    return dataclasses.replace(
        problem,
        queries=choose.choice((problem.queries,) * 4 + (0,)),
        share=choose.choice((0.0, 0.1, 0.8, 1.0)),
        distinct=choose.choice((0, 1, 2, 5, 16)),
        is_inside=choose.choice((False, True)),
        sinks=choose.choice((problem.sinks, "inf", "-inf")),
        options=options,
    )


DRAWS = DrawnRuns("attn_mlir.validation.numerics.decode_draws", drawn)

if __name__ == "__main__":
    sys.exit(DRAWS.command(__doc__ or ""))
