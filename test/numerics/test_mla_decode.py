"""Latent attention after absorption by single warps: every element judged, NaN wherever nothing lies.

Tests with a number provoke the trap of that number in the specification of latent attention.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.compiler import compile
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import VerifyError
from attn_mlir.schedules.policy.registry import choose
from attn_mlir.validation.numerics.decode import OUTSIDE, DecodeProblem
from attn_mlir.validation.numerics.stored import Form

pytestmark = pytest.mark.slow

STREAMED = "mla-decode-streaming"
HOPPER: dict[str, Any] = {"target": "sm_90a", "multiprocessors": 2}
ADVERSARIAL = {**HOPPER, "schedule": "adversarial", "seed": 3}
PAGED = DecodeProblem(
    queries=2,
    keys=(70, 0),
    heads=8,
    sinks="finite",
    options={"mask": am.causal()},
    call={"num_splits": 2},
    device=HOPPER,
)
ROWS = DecodeProblem(
    keys=(40,),
    cache=Form(),
    heads=24,
    columns=512,
    dtype=np.float16,
    call={"num_splits": 1},
    device=ADVERSARIAL,
)
POSITIONS = DecodeProblem(
    queries=2,
    keys=(70, 3),
    cache=Form(1),
    options={"mask": am.causal()},
    call={"num_splits": 2},
    device=ADVERSARIAL,
)

LISTED = DecodeProblem(
    queries=3,
    keys=(61,),
    cache=Form(61, "HND"),
    topk=70,
    has_lengths=True,
    call={"num_splits": 2},
    device=ADVERSARIAL,
    seed=1,
)


@functools.cache
def results(problem: str) -> tuple[Any, Any]:
    """O and LSE of a problem above, every element judged."""
    problems = {"pages, in parts": PAGED, "rows, f16": ROWS, "pages of a position": POSITIONS}
    return problems[problem].run()


@pytest.fixture(autouse=True)
def streamed() -> Iterator[None]:
    """Calls are computed by the schedule, also where it is not the one that sequences get."""
    with mock.patch("attn_mlir.compiling.routes.choose", functools.partial(choose, asked=STREAMED)):
        yield


@pytest.mark.parametrize("problem", ["pages, in parts", "rows, f16", "pages of a position"])
@pytest.mark.long("rows, f16")
def test_mla_decode(problem: str) -> None:
    results(problem)


def test_the_order_of_a_batch_and_of_pages_does_not_change_bits() -> None:
    """Nor does a second run, and another order of events."""
    problem = dataclasses.replace(PAGED, keys=(70, 20), device=ADVERSARIAL)
    made = problem.made()
    o, lse = problem.launched(made, am.EmulatorDevice(**HOPPER))
    assert isinstance(made.cache, am.PagedKV)
    moved = np.random.default_rng(1).permutation(len(made.cache.k_pages))
    pool = np.full_like(made.cache.k_pages, np.nan)
    pool[moved] = made.cache.k_pages
    table = made.cache.page_table[::-1]
    table = np.where(
        (table >= 0) & (table < len(moved)), moved[np.clip(table, 0, len(moved) - 1)], -1
    )
    other = made._replace(
        q=made.q[::-1].copy(),
        cache=dataclasses.replace(
            made.cache,
            k_pages=pool,
            page_table=table.astype(np.int32),
            seqused=made.cache.seqused[::-1].copy(),
        ),
    )
    again = problem.launched(other, am.EmulatorDevice(**problem.device))
    assert [x[::-1].tobytes() for x in again] == [o.tobytes(), lse.tobytes()]


@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_nothing_of_something(empty: str) -> None:
    """No batch and no queries give no rows, no keys rows of zeros."""
    batch, sq, sk = {"batch": (0, 1, 40), "queries": (1, 0, 40), "keys": (1, 1, 0)}[empty]
    q = np.zeros((batch, sq, 24, 512), np.float16)
    rows = np.full((batch, sk, 1, 512), np.nan, np.float16)
    device = am.EmulatorDevice(**HOPPER)
    cache = am.ContiguousKV(rows, None, np.full(batch, sk, np.int32))
    o, lse = am.mla_decode(q, cache, scale=0.1, device=device)
    assert o.shape == (batch, sq, 24, 512) and lse.shape == (batch, 24, sq)
    assert not o.astype(np.float32).any() and (lse == -np.inf).all()


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    problem = dataclasses.replace(PAGED, keys=(20,), queries=1)
    made = problem.made()
    assert isinstance(made.cache, am.PagedKV)

    def tensor(array: Any) -> Any:
        if array.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    fields = ("k_pages", "page_table", "seqused")
    cache = am.PagedKV(**{name: tensor(getattr(made.cache, name)) for name in fields})
    of_torch = made._replace(q=tensor(made.q), cache=cache, sinks=tensor(made.sinks))
    found: Any = problem.launched(of_torch, am.EmulatorDevice(**HOPPER))
    assert all(isinstance(x, torch.Tensor) for x in found)
    o = found[0].view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    assert not (wrong := problem.wrong(made, o, found[1].numpy())), wrong


def test_t10_a_query_whose_first_key_tile_is_hidden_altogether() -> None:
    """Query 0 of two sees no key of a sequence of one, and nothing of the part behind 64 keys."""
    problem = dataclasses.replace(PAGED, keys=(1, 65), device=ADVERSARIAL)
    o, lse = problem.run()
    assert not o[0, 0].astype(np.float32).any() and (lse[0, :, 0] == -np.inf).all()


def test_t12_rows_behind_a_sequence_that_hold_nan() -> None:
    """In its last page and in pages that its table still names; their weights are 0."""
    made = PAGED.made()
    assert isinstance(made.cache, am.PagedKV)
    pool, table = made.cache.k_pages, made.cache.page_table
    assert np.isnan(pool[table[0, 4], 6:].astype(np.float32)).all()
    o, _ = results("pages, in parts")
    assert np.isfinite(o.astype(np.float32)).all()


def test_t12_and_t26_entries_that_do_not_count_are_not_read() -> None:
    """Numbers that are no rows, and entries behind a list's length, which name rows of NaN; a query of
    which none counts has O of 0, and an LSE of -inf."""
    made = LISTED.made()
    indices, lengths, pool = made.lists["indices"], made.lists["topk_length"], made.rows[0]
    live = np.arange(LISTED.topk) < lengths[..., None]
    assert np.isin([*OUTSIDE, len(pool)], indices[live]).all()
    behind = indices[~live]
    named = pool[behind[(behind >= 0) & (behind < len(pool))]]
    assert np.isnan(named.astype(np.float32)).any()
    o, lse = LISTED.run()
    nothing = lengths <= 0
    assert nothing.any() and not o[nothing].astype(np.float32).any()
    assert (np.isneginf(lse).all(1) == nothing).all()


def test_arrays_that_are_parts_of_larger_ones() -> None:
    """q, lists that name two rows again and again, and the cache, between NaN; the bits are those without room."""
    problem = dataclasses.replace(LISTED, queries=2, distinct=2, share=1.0)
    inside = dataclasses.replace(problem, is_inside=True)
    made = inside.made()
    assert isinstance(made.cache, am.PagedKV)
    for array in (made.q, made.cache.k_pages, made.lists["indices"]):
        assert not array.flags.c_contiguous
    assert [x.tobytes() for x in inside.run()] == [x.tobytes() for x in problem.run()]
    o, lse = dataclasses.replace(inside, queries=0).run()
    assert o.shape == (1, 0, 16, 512) and lse.shape == (1, 16, 0)


def test_lengths_that_a_list_cannot_have_on_a_gpu(as_on_a_gpu: Callable[[], None]) -> None:
    """Where no host reads them, one below 0 is 0, and one past the end is the whole list."""
    made = LISTED.made()
    lengths = made.lists["topk_length"]
    assert 0 in lengths and LISTED.topk in lengths
    wanted = LISTED.run()
    lengths[lengths == LISTED.topk], lengths[lengths == 0] = 2**31 - 1, -(2**31)
    as_on_a_gpu()
    found = LISTED.launched(made, am.EmulatorDevice(**LISTED.device))
    assert all((x == y).all() for x, y in zip(found, wanted, strict=True))


def test_t21_sinks_of_any_size_do_not_enter_the_lse() -> None:
    """One of +inf leaves O of 0; one of -inf changes nothing; a sequence without keys keeps -inf."""
    problem = dataclasses.replace(PAGED, sinks="infinite", keys=(0, 33), heads=8, seed=4)
    made = problem.made()
    assert (
        made.sinks is not None and np.isposinf(made.sinks).any() and np.isneginf(made.sinks).any()
    )
    o, lse = problem.run()
    assert (lse[0] == -np.inf).all() and np.isfinite(lse[1]).all()
    assert not o[1][:, np.isposinf(made.sinks)].astype(np.float32).any()


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "options",
    [
        {
            "heads": 8,
            "mask": am.causal(),
            "sinks": True,
            "cache": Cache(page_size=16, pages="table"),
            "lengths": Lengths(used_k=True),
        },
        {"heads": 16, "indices": True, "topk_length": True},
    ],
    ids=["pages", "lists"],
)
@pytest.mark.long("lists")
def test_nothing_is_spilled(options: dict[str, Any]) -> None:
    """Of the kernels of PAGED and LISTED."""
    spec = MlaDecodeSpec(**options, schedule=STREAMED, joined=True)
    assert compile(spec, target="sm_90a").report["spill_bytes"] == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"indices": True, "heads": 24},
            "mla-decode-streaming: heads must be a multiple of 16, got 24",
        ),
        (
            {"partial": True, "schedule": STREAMED},
            "mla-decode-streaming: results for parts of the keys must be left out",
        ),
    ],
)
def test_what_has_no_kernel(options: dict[str, Any], told: str) -> None:
    with pytest.raises(VerifyError, match=told):
        compile(MlaDecodeSpec(**{"heads": 16, **options}), target="sm_90a")
