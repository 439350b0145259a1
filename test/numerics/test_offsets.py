"""Shards of longer sequences: masks and modifiers see positions, and what no query sees is skipped.

A case is drawn by its number. The truth knows positions by adding offsets to arrays of indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir.masks.text import parse_mask
from attn_mlir.reference import attention_f64, attention_yardstick, compare, sequences
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.mha_check import poisoned

Array = npt.NDArray[Any]

BF16 = np.dtype(ml_dtypes.bfloat16)
TARGETS = ("sm_90a", "sm_100a")
HEAD_DIM, BATCH, HEADS, KV_HEADS = 64, 3, 4, 2
MASKS = (
    "causal", "full", "window:70", "window:30,40", "window:inf,20", "window:90,inf", "chunked:96",
    "causal&chunked:200", "prefix:150", "chunked:64|window:40", "~causal", "~window:50,20",
    "~chunked:100&causal",
)  # fmt: skip
STORAGE = ("dense", "ragged", "ragged_q", "used", "contiguous", "pages")
PLACES = ("zero", "first", "inside", "behind", "before", "apart", "each")
PAGE = 64


def by_distance(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score - (h + 1) * 0.01 * abs(q - k)


def by_position(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (q % 7) * 0.1 - (k % 5) * 0.2 + b * 0.3


def parity(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + k + h) % 3 != 0


@dataclass(frozen=True)
class Case:
    """One drawn call.

    Attributes:
      queries, keys: lengths of the sequences.
      offsets: arguments of the call and of the formula.
      options: further ones of both; `schedule` and `num_splits` of the call alone.
    """

    storage: str
    queries: list[int]
    keys: list[int]
    offsets: dict[str, Any]
    options: dict[str, Any]
    launch: dict[str, Any]


def drawn(number: int, target: str) -> Case:
    """Case `number`, in which every axis comes up in turn with others drawn beside it."""
    rng = np.random.default_rng([number, 33])
    storage = STORAGE[number % len(STORAGE)]
    place = PLACES[number % len(PLACES)]
    most_q = int(rng.choice([1, 5, 40, 130, 300]))
    is_dense = storage == "dense"
    queries = [most_q] * BATCH if is_dense else rng.integers(0, most_q + 1, BATCH).tolist()
    keys = [int(rng.integers(1, 500))] * BATCH if is_dense else rng.integers(0, 400, BATCH).tolist()
    keys = [max(m, n) if storage == "ragged" else m for m, n in zip(keys, queries, strict=True)]
    offsets = offsets_at(place, max(keys), rng)
    if rng.integers(3) == 0:
        offsets["head_offset"] = int(rng.integers(1, 20))
    options: dict[str, Any] = {"mask": parse_mask(MASKS[number % len(MASKS)])}
    match int(rng.integers(4)):
        case 0:
            options["score_mod"] = by_distance
        case 1:
            options["score_mod"], options["mask_mod"] = by_position, parity
        case 2:
            options["mask_mod"] = parity
        case _:
            pass
    if rng.integers(3) == 0:
        options["sinks"] = rng.standard_normal(HEADS).astype(np.float32)
    launch: dict[str, Any] = {}
    few = most_q <= 5
    if few:
        launch["schedule"] = str(rng.choice(["mha-streaming", "mha-swapped"]))
        if launch["schedule"] == "mha-swapped" and target == "sm_90a":
            del launch["schedule"]
    if is_dense or few:
        launch["num_splits"] = int(rng.integers(1, 4))
    return Case(storage, queries, keys, offsets, options, launch)


def offsets_at(place: str, keys: int, rng: np.random.Generator) -> dict[str, Any]:
    """Offsets of queries relative to the keys of a shard."""
    k = int(rng.integers(0, 300))
    match place:
        case "zero":
            return {"q_offset": 0, "k_offset": 0}
        case "first":
            return {"q_offset": int(rng.integers(0, 2 * keys + 2))}
        case "inside":
            return {"q_offset": k + int(rng.integers(0, keys + 1)), "k_offset": k}
        case "behind":
            return {"q_offset": k + keys + int(rng.integers(0, 200)), "k_offset": k}
        case "before":
            return {"q_offset": k - int(rng.integers(0, 200)), "k_offset": k}
        case "apart":
            return {"q_offset": -int(rng.integers(1, 60)), "k_offset": 2**29 - int(k)}
        case _:
            each = rng.integers(0, 500, BATCH).astype(np.int32)
            near = (each + rng.integers(-300, 300, BATCH)).astype(np.int32)
            one = {"k_offset": each} if rng.integers(2) else {"k_offset": k}
            return {"q_offset": near, **one}


def stored(case: Case, rng: np.random.Generator) -> tuple[Array, Any, Any, dict[str, Any]]:
    """Operands of the case, and what tells their lengths; nothing else is any number."""

    def rows(lengths: list[int], heads: int, most: int | None) -> Array:
        if most is None:
            return rng.standard_normal((sum(lengths), heads, HEAD_DIM)).astype(BF16)
        found = np.full((len(lengths), most, heads, HEAD_DIM), np.nan, BF16)
        for b, n in enumerate(lengths):
            found[b, :n] = rng.standard_normal((n, heads, HEAD_DIM))
        return found

    def ends(lengths: list[int]) -> Array:
        return np.cumsum([0, *lengths]).astype(np.int32)

    is_ragged_q = case.storage in ("ragged", "ragged_q")
    told: dict[str, Any] = {"cu_seqlens_q": ends(case.queries)} if is_ragged_q else {}
    most_q = None if is_ragged_q else max(*case.queries, 1)
    if not is_ragged_q and case.storage != "dense":
        told["seqused_q"] = np.array(case.queries, np.int32)
    q = rows(case.queries, HEADS, most_q)
    used = np.array(case.keys, np.int32)
    if case.storage == "ragged":
        told["cu_seqlens_k"] = ends(case.keys)
    most_k = None if case.storage == "ragged" else max(*case.keys, 1)
    if case.storage in ("used", "ragged_q"):
        told["seqused_k"] = used
    if case.storage == "pages":
        most_k = -(-max(*case.keys, 1) // PAGE) * PAGE
    k, v = (rows(case.keys, KV_HEADS, most_k) for _ in range(2))
    if case.storage == "contiguous":
        return q, am.ContiguousKV(k, v, seqused=used), None, told
    if case.storage == "pages":
        assert most_k is not None
        order = rng.permutation(BATCH * most_k // PAGE).astype(np.int32)
        pools = [np.empty((len(order), PAGE, *x.shape[2:]), BF16) for x in (k, v)]
        for pool, x in zip(pools, (k, v), strict=True):
            pool[order] = x.reshape(len(order), PAGE, *x.shape[2:])
        table = order.reshape(BATCH, -1)
        return q, am.PagedKV(pools[0], pools[1], page_table=table, seqused=used), None, told
    return q, k, v, told


def judge(case: Case, device: EmulatorDevice, seed: int) -> None:
    """Runs a case and compares every sequence with the formula."""
    q, k, v, told = stored(case, np.random.default_rng(seed))
    out = poisoned(q.shape, BF16)
    o, lse = am.attention(
        q, k, v, **told, **case.offsets, **case.options, **case.launch, return_lse=True, out=out,
        device=device,
    )  # fmt: skip
    of_cache = ("seqused_k",) if v is None else ()
    lengths = {name: x for name, x in told.items() if name not in of_cache}
    for one in sequences(q, k, v, **lengths):
        operands, options = (one.q, one.k, one.v), {**case.options, **case.offsets}
        options["first_batch"] = one.batch
        truth = attention_f64(*operands, **options)
        yardstick = attention_yardstick(*operands, out_dtype=BF16, **options)
        verdict = compare(o[one.o][None], lse[one.lse][None], truth, yardstick)
        assert verdict.ok, f"sequence {one.batch}: {verdict}"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", range(84))
@pytest.mark.long(but=tuple(f"{number}-{TARGETS[1 - number // 2 % 2]}" for number in range(8)))
def test_drawn_shards(number: int, target: str) -> None:
    device = EmulatorDevice(
        target=target,
        check="all",
        schedule="fair" if number % 2 else "adversarial",
        seed=number,
        multiprocessors=3,
    )
    judge(drawn(number, target), device, number)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.long("sm_100a")
def test_parts_of_a_causal_sequence_are_the_whole(target: str) -> None:
    rng = np.random.default_rng(5)
    n, shard = 300, 100
    q, k, v = (rng.standard_normal((1, n, 2, HEAD_DIM)).astype(BF16) for _ in range(3))
    device = EmulatorDevice(target=target)
    whole = attention_f64(q, k, v, mask=am.causal(), score_mod=by_distance)
    for begin in range(0, n, shard):
        sums, weights = np.zeros((1, shard, 2, HEAD_DIM)), np.zeros((1, shard, 2, 1))
        for first in range(0, n, shard):
            o, lse = am.attention(
                q[:, begin : begin + shard], k[:, first : first + shard], v[:, first : first + shard],
                mask=am.causal(), score_mod=by_distance, q_offset=begin, k_offset=first,
                return_lse=True, out_dtype="f32", device=device,
            )  # fmt: skip
            weight = np.exp(lse.astype(np.float64)).transpose(0, 2, 1)[..., None]
            assert bool((lse == -np.inf).all()) == (first > begin)  # pyright: ignore
            sums, weights = sums + weight * o, weights + weight
        np.testing.assert_allclose(sums / weights, whole.o[:, begin : begin + shard], atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "rows"), [("sm_90a", 64), ("sm_100a", 128)])
def test_tiles_that_no_query_sees_take_no_product(
    target: str, rows: int, product_counts: list[int]
) -> None:
    """A work tile of one query tile computes 12 products for each visited tile of 128 keys."""
    q, k = (np.zeros((1, n, 1, HEAD_DIM), BF16) for n in (128, 640))
    device = EmulatorDevice(target=target)
    column = np.arange(640)[None]
    cases = [(am.causal(), -1, 256, at) for at in (127, 128, 256, 257, 511, 639, 640, 5000)]
    window = am.sliding_window(100)
    cases += [(window, 100, 64, at) for at in (0, 64, 164, 192, 704, 804, 805, 2**29)]
    counts: list[int] = []
    for mask, left, k_offset, at in cases:
        p, j = np.arange(128)[:, None] + at, column + k_offset
        seen = (j <= p) & ((left < 0) | (j >= p - left))
        tiles = [
            seen[r : r + rows, c : c + 128] for r in range(0, 128, rows) for c in range(0, 640, 128)
        ]
        counts.append(12 * sum(bool(tile.any()) for tile in tiles))
        am.attention(
            q, k, k, mask=mask, q_offset=at, k_offset=k_offset, device=device, query_tiles=1
        )
    assert product_counts == counts
    assert counts[:2] == [0, 0] == counts[-2:] and max(counts) == 5 * 12 * 128 // rows


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("q_offset", [-40, 0, 100, 700])
@pytest.mark.long(but=("-40-sm_100a", "100-sm_90a"))
def test_block_masks_are_made_at_their_offsets(target: str, q_offset: int) -> None:
    rng = np.random.default_rng(7)
    q = rng.standard_normal((2, 200, 2, HEAD_DIM)).astype(BF16)
    k, v = (rng.standard_normal((2, 300, 2, HEAD_DIM)).astype(BF16) for _ in range(2))
    offsets: dict[str, Any] = {"q_offset": q_offset, "k_offset": 50, "head_offset": 1}
    blocks = am.block_mask(parity, None, 2, 200, 300, mask=am.causal(), **offsets)
    device = EmulatorDevice(target=target)
    o, lse = am.attention(q, k, v, block_mask=blocks, return_lse=True, device=device)
    options: dict[str, Any] = {"mask": am.causal(), "mask_mod": parity, **offsets}
    verdict = am.reference.check_attention(q, k, v, o, lse, **options)
    assert verdict.ok, str(verdict)
    by_predicate = am.attention(
        q,
        k,
        v,
        mask=am.causal(),
        mask_mod=blocks.as_mask_mod(),
        return_lse=True,
        device=device,
        **offsets,
    )
    verdict = am.reference.check_attention(q, k, v, *by_predicate, **options)
    assert verdict.ok, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kinds", ["e4m3", "e4m3-keys", "each-position"])
@pytest.mark.long("e4m3-sm_90a", "e4m3-keys-sm_100a", "each-position-sm_90a")
def test_shards_of_8_bits(target: str, kinds: str) -> None:
    rng = np.random.default_rng(8)
    e4m3 = np.dtype(ml_dtypes.float8_e4m3fn)
    q = rng.standard_normal((2, 3 if "-" in kinds else 150, 4, HEAD_DIM))
    k, v = (rng.standard_normal((2, 256, 2, HEAD_DIM)).astype(e4m3) for _ in range(2))
    q = q.astype(e4m3 if kinds == "e4m3" else BF16)
    scales = {f"{name}_descale": np.full(1, 0.5, np.float32) for name in "qkv"}
    offsets: dict[str, Any] = {"q_offset": np.array([100, 350], np.int32), "k_offset": 40}
    options: dict[str, Any] = {"mask": am.sliding_window(120), "score_mod": by_distance, **offsets}
    device = EmulatorDevice(target=target)
    if kinds == "each-position":
        factors = [rng.uniform(0.5, 2, (2, 256, 2, 1)).astype(np.float32) for _ in range(2)]
        used = np.array([256, 200], np.int32)
        cache = am.ContiguousKV(k, v, used, k_scale=factors[0], v_scale=factors[1])
        o, lse = am.attention(q, cache, **options, return_lse=True, device=device)
        found = sequences(q, cache)
    else:
        scales = scales if kinds == "e4m3" else {x: y for x, y in scales.items() if x[0] != "q"}
        options |= scales
        o, lse = am.attention(q, k, v, **options, return_lse=True, device=device)
        found = sequences(q, k, v)
    for one in found:
        operands = (one.q, one.k, one.v)
        truth = attention_f64(*operands, **options, first_batch=one.batch)
        yardstick = attention_yardstick(
            *operands, **options, first_batch=one.batch, out_dtype=o.dtype
        )
        verdict = compare(o[one.o][None], lse[one.lse][None], truth, yardstick)
        assert verdict.ok, f"sequence {one.batch}: {verdict}"
