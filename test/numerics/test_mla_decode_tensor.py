"""Latent attention after absorption where sums are in tensor memory: every element, and what it takes.

Tests named after a trap of latent attention have its number.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.latent.formats import FORMATS
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.reference import check_mla_decode
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import TensorMapParam
from attn_mlir.validation.numerics.decode import DecodeProblem
from attn_mlir.validation.numerics.sparse_cases import poison
from attn_mlir.validation.numerics.stored import Form

FAIR: dict[str, Any] = {"target": "sm_100a", "check": "all"}
LATE: dict[str, Any] = {**FAIR, "schedule": "adversarial", "seed": 3}
CAUSAL = {"mask": am.causal()}
BLOCK = 64  # keys of a tile, and rows of queries

PAGED = DecodeProblem(
    queries=2,
    keys=(150, 70),
    cache=Form(64),
    heads=32,
    sinks="infinite",
    options=CAUSAL,
    device=FAIR,
)
LISTED = DecodeProblem(
    queries=2,
    keys=(90,),
    cache=Form(61),
    heads=24,
    topk=100,
    has_lengths=True,
    sinks="finite",
    device=FAIR,
)


def in_parts(problem: DecodeProblem, count: int) -> DecodeProblem:
    return dataclasses.replace(problem, call={"num_splits": count})


def late(problem: DecodeProblem) -> DecodeProblem:
    return dataclasses.replace(problem, device=LATE)


@pytest.mark.parametrize(
    "problem",
    [
        in_parts(DecodeProblem(keys=(0, 65), heads=96, columns=512, device=FAIR), 2),
        dataclasses.replace(in_parts(LISTED, 3), queries=1),  # more parts than a list has blocks
        DecodeProblem(
            queries=3,
            keys=(70,),
            heads=24,
            columns=512,
            dtype=np.float16,
            options=CAUSAL,
            device=FAIR,
        ),
    ],
    ids=["two tiles of heads in parts", "lists in parts", "rows left over"],
)
def test_every_element(problem: DecodeProblem) -> None:
    problem.run()


@pytest.mark.parametrize("problem", [PAGED, LISTED], ids=["pages", "lists"])
def test_every_element_late_and_out_of_order(problem: DecodeProblem) -> None:
    """The bits of the fair schedule; of pages, two queries are in a tile."""
    for fair, found in zip(problem.run(), late(problem).run(), strict=True):
        assert fair.tobytes() == found.tobytes()


def test_same_bits_from_any_storage_and_in_any_order() -> None:
    """Pages and one tensor, sequences in turn, repeated calls."""
    random = np.random.default_rng(7)
    keys, columns, batch = 80, 512, 2
    q, rows = (
        (random.standard_normal((batch, n, h, columns)) / 4).astype("bfloat16")
        for n, h in ((1, 64), (keys, 1))
    )
    pool = rows.reshape(batch * keys // 16, 16, 1, columns)
    table = np.arange(len(pool), dtype=np.int32).reshape(batch, -1)
    lengths = np.array([keys, 70], np.int32)
    caches = (
        am.ContiguousKV(rows, None, lengths),
        am.PagedKV(pool, None, table, lengths),
        am.PagedKV(pool, None, np.ascontiguousarray(table[::-1]), lengths[::-1].copy()),
    )
    options: dict[str, Any] = {"scale": 0.1, "device": am.EmulatorDevice(target="sm_100a")}
    one, other = (am.mla_decode(q, cache, **options) for cache in caches[:2])
    turned = am.mla_decode(np.ascontiguousarray(q[::-1]), caches[2], **options)
    for first, second, third in zip(one, other, turned, strict=True):
        assert first.tobytes() == second.tobytes() == np.ascontiguousarray(third[::-1]).tobytes()


def test_products_and_bytes_are_those_of_the_formula(launches: list[Stats]) -> None:
    """Each key is read once and multiplied twice, whatever the parts, and no others."""
    columns, tile = 512, BLOCK * 512 * 2  # bytes of a tile of Q or of keys
    products = columns // 16 + 2 * (BLOCK // 16)  # of a block: S, and O by halves of its columns
    dense = DecodeProblem(
        keys=(65, 0, 64),
        cache=Form(64),
        heads=64,
        columns=columns,
        device=FAIR,
        call={"num_splits": 1},
    )
    dense.run()
    blocks, tiles = 2 + 0 + 1, 3
    assert launches[-1].mma_count == blocks * products
    assert launches[-1].counters["tensor_load_bytes"] == (blocks + tiles) * tile
    in_parts(dense, 2).run()
    assert launches[-2].mma_count == blocks * products
    assert launches[-2].counters["tensor_load_bytes"] == (blocks + 2 * tiles) * tile
    listed = dataclasses.replace(
        LISTED, heads=64, columns=columns, queries=1, keys=(300,), topk=256, has_lengths=False
    )
    made = listed.made()
    made.lists["indices"][..., 64:128] = made.lists["indices"][..., 192:] = -1
    o, lse = listed.launched(made, am.EmulatorDevice(**FAIR))
    assert not listed.wrong(made, o, lse)
    assert launches[-1].mma_count == 2 * products
    assert launches[-1].counters["tensor_load_bytes"] == (2 + 1) * tile


@pytest.fixture(scope="module")
def paged() -> Bundle:
    """The kernel of pages of 64."""
    spec = MlaDecodeSpec(
        heads=24,
        mask=am.causal(),
        cache=Cache(page_size=64, pages="table"),
        lengths=Lengths(used_k=True),
    )
    return am.compile(spec, target="sm_100a")


def boxes(bundle: Bundle) -> dict[str, set[tuple[int, ...]]]:
    """What the copy engine moves at once, by tensor."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for parameter in bundle.manifest.params:
        if isinstance(parameter, TensorMapParam):
            found.setdefault(parameter.tensor, set()).add(tuple(parameter.box))
    return found


@pytest.mark.parametrize(("kv_format", "group"), [("model1", None), ("e4m3", 128)])
@pytest.mark.long("model1-None")
def test_rows_of_8_bits(kv_format: str, group: int | None) -> None:
    """In parts, of which some have no entry, and with NaN in rows that nothing names."""
    random, columns = np.random.default_rng(3), 512 if kv_format == "model1" else 576
    rows = (random.standard_normal((5, 8, 1, columns)) / 4).astype("bfloat16")
    q = (random.standard_normal((2, 1, 16, columns)) / 4).astype("bfloat16")
    indices = random.integers(-2, 42, (2, 1, 100)).astype(np.int32)
    indices[indices == 7] = -1
    lengths = np.array([[90], [0]], np.int32)
    pool, scale = am.pack_latent(rows, kv_format, group=group)
    truth = am.unpack_latent(pool, kv_format, kv_scale=scale).reshape(40, columns)
    poison(pool, FORMATS[kv_format], np.array([7]))
    options: dict[str, Any] = {"scale": 0.3, "indices": indices, "topk_length": lengths}
    o, lse = am.mla_decode(
        q,
        am.PagedKV(pool, None, np.zeros((1, 1), np.int32)),
        num_splits=3,
        kv_format=kv_format,
        kv_scale=scale,
        device=am.EmulatorDevice(**LATE),
        **options,
    )
    verdict = check_mla_decode(q, truth, o, lse, **options)
    assert verdict.ok, verdict


def rising(**options: Any) -> DecodeProblem:
    return DecodeProblem(
        keys=(4 * BLOCK,), heads=64, columns=512, cache=Form(64), device=FAIR, **options
    )


@pytest.mark.parametrize("device", [FAIR, LATE], ids=["fair", "late"])
@pytest.mark.long("fair")
def test_t9_t11_heads_of_a_warp_rescale_and_others_do_not(device: dict[str, Any]) -> None:
    """Maxima of every other head rise from block to block as they are visited, from the last one down."""
    problem = dataclasses.replace(rising(), device=device, options={"scale": 0.25})
    made = problem.made()
    sign = np.where(np.arange(64) % 2, 1, -1)[None, None, :, None]
    q = np.broadcast_to(sign / 4, made.q.shape).astype(made.q.dtype)
    steps = np.repeat(np.arange(4)[::-1], BLOCK)[:, None, None] / 2
    rows = (made.rows[0].astype(np.float32) / 8 + steps).astype(made.q.dtype)
    cache = am.ContiguousKV(rows[None], None, np.array([4 * BLOCK], np.int32))
    made = made._replace(q=q, rows=[rows], cache=cache)
    assert not problem.wrong(made, *problem.launched(made, am.EmulatorDevice(**device)))


def test_t10_t21_queries_without_a_key() -> None:
    """Of three queries at the end of one key two see none; a list may be empty, beside any sink."""
    few = DecodeProblem(
        queries=3, keys=(1,), heads=24, columns=512, cache=Form(0), options=CAUSAL, device=FAIR
    )
    o, lse = few.run()
    assert not o[:, :2].any() and np.isneginf(lse[..., :2]).all()
    made = LISTED.made()
    made.lists["topk_length"][:] = 0
    assert made.sinks is not None
    made.sinks[:2] = np.inf, -np.inf
    o, lse = LISTED.launched(made, am.EmulatorDevice(**FAIR))
    assert not o.any() and np.isneginf(lse).all()


def test_t12_rows_of_nan_behind_sequences_and_lists() -> None:
    """They are in the pages of `PAGED` and behind the lengths of `LISTED`."""
    for problem in (PAGED, LISTED):
        made = problem.made()
        rows: Any = made.cache.k_pages if isinstance(made.cache, am.PagedKV) else made.cache.k
        assert np.isnan(rows.astype(np.float32)).any()


def test_t15_boxes_end_with_the_heads(paged: Bundle) -> None:
    """Two positions of 24 heads, and 16 more rows to fill the tile."""
    found = boxes(paged)
    assert found["q"] == {(64, 24, 2, 1, 1), (64, 16, 1, 1, 1)}
    assert found["o"] == {(64, 24, 2, 1, 1)}


def test_t24_the_result_is_staged_where_keys_were(paged: Bundle) -> None:
    regions: Any = paged.report["memory_map"]
    places = {x["what"]: (x["begin"], x["end"]) for x in regions if x["space"] == "shared"}
    assert places["keys"][0] <= places["out"][0] < places["out"][1] <= places["keys"][1]
