"""Attention of few queries with keys in the rows of products in tensor memory, on the emulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.errors import SpecError
from attn_mlir.reference import attention_f64, attention_yardstick, compare, sequences
from attn_mlir.schedules.policy.tiling import KeysInRowsTile, keys_in_rows_query_tiles
from attn_mlir.validation.numerics.stored import Form

BF16 = ml_dtypes.bfloat16
SINKS = np.linspace(-1, 3, 8, dtype=np.float32)


def operands(
    sq: int,
    sk: int,
    heads: tuple[int, int],
    d: tuple[int, int],
    *,
    batch: int = 1,
    dtype: Any = BF16,
) -> Any:
    """Random q, k, v."""
    rng = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads[0], d[0]), (sk, heads[1], d[0]), (sk, heads[1], d[1]))
    return [rng.standard_normal((batch, *shape)).astype(dtype) for shape in shapes]


def device(seed: int = 0) -> am.EmulatorDevice:
    """An emulator with two multiprocessors, so that persistent CTAs take several work tiles."""
    return am.EmulatorDevice("adversarial" if seed else "fair", seed, multiprocessors=2)


def wrong(q: Any, k: Any, v: Any, seed: int = 0, **options: Any) -> str:
    """What is wrong with O and LSE of a call, or nothing."""
    o, lse = am.attention(
        q, k, v, **options, schedule="mha-swapped", return_lse=True, device=device(seed)
    )
    for name in ("num_splits", "query_tiles"):
        options.pop(name, None)
    verdict = am.reference.check_attention(q, k, v, o, lse, **options)
    return "" if verdict.ok else str(verdict)


@pytest.mark.parametrize(
    ("shape", "heads", "d", "options"),
    [
        ((1, 300), (8, 2), (128, 128), {}),
        ((4, 260), (8, 1), (64, 64), {"mask": am.causal()}),  # 32 rows, V in half of the lanes
        ((3, 261), (6, 1), (80, 72), {"mask": am.causal(), "num_splits": 2}),  # rows of nobody
        ((2, 390), (8, 2), (128, 128), {"mask": am.sliding_window(150), "sinks": SINKS}),
        (
            (5, 200),
            (8, 1),
            (192, 40),
            {"score_mod": am.mods.alibi(8, offset=195), "query_tiles": 2},
        ),
    ],
)
@pytest.mark.long("shape0-*")
def test_problems(
    shape: tuple[int, int], heads: tuple[int, int], d: tuple[int, int], options: dict[str, Any]
) -> None:
    """Late and out of order; several work tiles for each of two CTAs."""
    q, k, v = operands(*shape, heads, d, batch=2)
    assert not wrong(q, k, v, 1, **options)


def test_large_scores() -> None:
    """Maxima move by far more than they may lag, at every tile and by more than f32 has digits for."""
    q, k, v = operands(2, 500, (8, 2), (64, 64), dtype=np.float16)
    k *= np.linspace(30, 0.1, 500, dtype=np.float16)[None, :, None, None]  # the last tile is first
    for scale in (1.0, 1000.0):
        assert not wrong(q, k, v, 1, mask=am.causal(), scale=scale)


@pytest.mark.parametrize(
    ("form", "keys", "new"),
    [
        (Form(16), (300, 5, 130), (3, 3, 3)),
        (Form(padded=True, selected=True), (200, 77), (2, 0)),
    ],
)
def test_caches(form: Form, keys: tuple[int, ...], new: tuple[int, ...]) -> None:
    """NaN wherever no position lies; queries of unequal lengths too."""
    rng = np.random.default_rng(sum(keys))

    def normal(count: int, heads: int) -> Any:
        return rng.standard_normal((count, heads, 64)).astype(BF16)

    rows = [normal(n, 8) for n in new]
    told = {"cu_seqlens_q": np.cumsum([0, *new]).astype(np.int32)} if len(set(new)) > 1 else {}
    q = np.concatenate(rows) if told else np.stack(rows)
    cache = form.stored(*([normal(n, 2) for n in keys] for _ in "kv"), new, rng, 320)
    options: dict[str, Any] = {"mask": am.causal()}
    o, lse = am.attention(
        q, cache, **options, **told, schedule="mha-swapped", return_lse=True, device=device(1)
    )
    for one in sequences(q, cache, **told):
        formulas = attention_f64, attention_yardstick
        truth, yardstick = (f(one.q, one.k, one.v, **options) for f in formulas)
        verdict = compare(o[one.o][None], lse[one.lse][None], truth, yardstick)
        assert verdict.ok, f"sequence {one.batch}: {verdict}"


@pytest.mark.parametrize(
    ("sq", "d", "split"), [(2, 128, {"num_splits": 5}), (1, 72, {"split_size": 128})]
)
def test_parts_put_together_by_the_last_one(sq: int, d: int, split: dict[str, int]) -> None:
    """Of 4 key tiles, so that some are empty; sinks count once, and bits go by no order of CTAs."""
    q, k, v = operands(sq, 400, (8, 1), (d, d))
    options: dict[str, Any] = {"mask": am.causal(), "sinks": SINKS}
    found = set[bytes]()
    for seed in (0, 1):
        plan = am.plan(
            q,
            k,
            v,
            **options,
            **split,
            schedule="mha-swapped",
            return_lse=True,
            device=device(seed),
        )
        assert len(plan.steps) == 1
        o, lse = plan.run()
        verdict = am.reference.check_attention(q, k, v, o, lse, **options)
        assert verdict.ok, str(verdict)
        found |= {o.tobytes(), plan.run()[0].tobytes()}
    assert len(found) == 1


def test_query_tiles() -> None:
    """As few rows of 8 as read keys least often, with as many heads as divide their group."""
    chosen = {
        (1, 8): 1,
        (1, 4): 1,
        (4, 8): 4,
        (2, 8): 2,
        (1, 6): 1,
        (3, 6): 4,
        (1, 12): 2,
        (9, 8): 4,
    }
    assert {rows: keys_in_rows_query_tiles(*rows) for rows in chosen} == chosen
    assert KeysInRowsTile.of(6, 1) == (8, 6) and KeysInRowsTile.of(40, 4) == (32, 20)
    assert KeysInRowsTile.of(8, 4, is_padded=True).positions == 32


def test_instructions_of_a_work_tile(product_counts: list[int]) -> None:
    """A key tile takes 8 products of K = 16 for its scores and 8 for O, however many rows there are."""
    q, k, v = operands(4, 300, (8, 1), (128, 128))
    assert not wrong(q, k, v, mask=am.causal())
    assert product_counts == [3 * 16]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"query_tiles": 3}, "query_tiles must be 1, 2 or None, got 3"),
        ({"query_tiles": 4, "schedule": "mha"}, "query_tiles must be 1, 2 or None, got 4"),
        (
            {"tile_order": "clc"},
            "schedule mha-swapped has no kernel: tile_order must be .*, got clc",
        ),
        ({"split_size": 100}, "split_size must be a multiple of 128 keys or None, got 100"),
        ({"device": am.EmulatorDevice(target="sm_90a")}, "sm_90a has no schedule mha-swapped"),
    ],
)
def test_what_there_is_no_kernel_for(options: dict[str, Any], text: str) -> None:
    q, k, v = operands(1, 20, (1, 1), (64, 64))
    with pytest.raises(SpecError, match=text):
        am.attention(q, k, v, **{"schedule": "mha-swapped", "device": "emulator", **options})


def test_requests_that_have_no_kernel() -> None:
    spec = am.mha(heads=8, head_dim=128, schedule="mha-swapped")
    with pytest.raises(SpecError, match="v_head_dim must be a multiple of 8 up to 128, got 136"):
        dataclasses.replace(spec, v_head_dim=136)
    with pytest.raises(SpecError, match="q's element type must be bf16 or f16, got e4m3"):
        dataclasses.replace(spec, kv_dtype="e4m3", dtype="e4m3", out_dtype="bf16")
