"""Drawn calls of `flash_attn_with_kvcache` with new keys, judged on the emulator; a failure prints its command.

    python -m attn_mlir.validation.numerics.kvcache_draws 17           one draw, by its number
    python -m attn_mlir.validation.numerics.kvcache_draws --count 100  draws 0 to 99; `make numerics`

Each draw says which of queries and new keys lie one behind the other, with how many of each sequence, whether
offsets of both are one array or two, and the scores' options. Exit code: 0 when all passed, 1 when one failed.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from attn_mlir.flash import flash_attn_with_kvcache
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.drawn_runs import DrawnRuns
from attn_mlir.validation.numerics.flash_formula import check, truth

Array = npt.NDArray[Any]
BF16: Any = ml_dtypes.bfloat16
HEADS, KV_HEADS, DIM, PAGE, COLUMNS = 4, 2, 64, 16, 4
ROOM, MOST_NEW = PAGE * COLUMNS, 9


def attempt(number: int) -> str:
    """Runs a draw; returns what it was.

    Raises:
      AssertionError: a result is wrong, or the cache holds something else than it should.
    """
    rng, numbers = random.Random(f"kvcache:{number}"), np.random.default_rng(number)
    batch = rng.randint(1, 3)
    new = _counts(rng, batch, is_ragged := rng.random() < 0.6)
    queries = new if rng.random() < 0.7 else _counts(rng, batch, rng.random() < 0.6)
    is_split = len(set(queries)) > 1 or rng.random() < 0.7
    is_ragged = is_ragged or len(set(new)) > 1
    lengths = np.array([rng.randint(0, ROOM - count) for count in new], np.int32)
    options: dict[str, Any] = {"causal": rng.random() < 0.5}
    if rng.random() < 0.6:
        options["alibi_slopes"] = numbers.uniform(0, 0.5, HEADS).astype(np.float32)
    if rng.random() < 0.3:
        options["window_size"] = (rng.randint(0, 40), rng.randint(0, 9))
    if rng.random() < 0.3:
        options["softcap"] = 3.0

    def normal(*shape: int) -> Array:
        return numbers.standard_normal(shape).astype(BF16)

    pools = [normal(batch * COLUMNS, PAGE, KV_HEADS, DIM) for _ in "kv"]
    tokens = [normal(sum(new), KV_HEADS, DIM) for _ in "kv"]
    q = normal(sum(queries), HEADS, DIM)
    table = numbers.permutation(batch * COLUMNS).reshape(batch, COLUMNS).astype(np.int32)
    given: dict[str, Any] = {"cache_seqlens": lengths, "page_table": table}
    if rng.random() < 0.4:
        pools = [pool[table].reshape(batch, ROOM, KV_HEADS, DIM) for pool in pools]
        del given["page_table"]
    before = [_rows(pool, given) for pool in pools]
    is_one = is_ragged and is_split and queries == new and rng.random() < 0.7
    ends = {name: np.cumsum([0, *x]).astype(np.int32) for name, x in (("q", queries), ("k", new))}
    if is_ragged:
        given["cu_seqlens_k_new"] = ends["k"]
    if is_split:
        given["cu_seqlens_q"] = ends["k"] if is_one else ends["q"]
    schedule = EmulatorDevice(*rng.choice([("fair",), ("adversarial", number)]), target=rng.choice(["sm_90a", "sm_100a"]))  # fmt: skip
    found = flash_attn_with_kvcache(
        q if is_split else q.reshape(batch, -1, HEADS, DIM), *pools,
        *(x if is_ragged else x.reshape(batch, -1, KV_HEADS, DIM) for x in tokens),
        **given, **options, return_softmax_lse=True, device=schedule,
    )  # fmt: skip
    sequences: list[list[Array]] = []
    for pool, rows, token in zip(pools, before, tokens, strict=True):
        for b, part in enumerate(np.split(token, ends["k"][1:-1])):
            rows[b, lengths[b] : lengths[b] + new[b]] = part
        assert (_rows(pool, given).view(np.uint16) == rows.view(np.uint16)).all(), "the cache"
        sequences.append([rows[b, : lengths[b] + new[b]] for b in range(batch)])
    check(found, truth(np.split(q, ends["q"][1:-1]), *sequences, **options))
    text = {**given, **options, "new": new, "queries": queries, "one array of offsets": is_one}
    return ", ".join(sorted(x for x, y in text.items() if y is not False))


def _counts(rng: random.Random, batch: int, is_ragged: bool) -> list[int]:
    """Tokens of each sequence: unequal, and of some none, where they lie one behind the other."""
    counts = [rng.randint(0, MOST_NEW) for _ in range(batch)]
    return counts if is_ragged and any(counts) else [rng.randint(1, MOST_NEW)] * batch


def _rows(pool: Array, given: dict[str, Any]) -> Array:
    """A copy of the positions of each sequence, [batch, ROOM, kv_heads, D]."""
    table = given.get("page_table")
    return (pool if table is None else pool[table]).reshape(-1, ROOM, *pool.shape[2:]).copy()


@dataclass(frozen=True)
class Attempt:
    """A draw."""

    number: int

    def run(self) -> str:
        """As `attempt`."""
        return attempt(self.number)


DRAWS = DrawnRuns("attn_mlir.validation.numerics.kvcache_draws", Attempt)

if __name__ == "__main__":
    sys.exit(DRAWS.command(__doc__ or ""))
