"""Caches on the emulator: every form judged, with NaN wherever no position lies and hostile tables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.reference import attention_f64, attention_yardstick, compare, sequences
from attn_mlir.validation.numerics.stored import Form

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
BF16 = ml_dtypes.bfloat16
LENGTHS = (200, 0, 77, 128, 1)
PAIR = (200, 77)


@dataclass(frozen=True)
class Case:
    """A cache and the call that reads it.

    Attributes:
      keys: positions of each sequence; `room` for each.
      queries: of each sequence; ragged where they differ.
      options: of `attention` and of the reference; `call` of the former alone.
    """

    form: Form
    keys: tuple[int, ...] = PAIR
    queries: tuple[int, ...] = ()
    room: int = 256
    heads: tuple[int, int] = (4, 2)
    head_dims: tuple[int, int] = (64, 64)
    dtype: Any = BF16
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    call: dict[str, Any] = field(default_factory=dict[str, Any])
    device: dict[str, Any] = field(default_factory=dict[str, Any])  # of `EmulatorDevice`

    def operands(self) -> tuple[Array, dict[str, Any], am.PagedKV | am.ContiguousKV]:
        """q, what tells its lengths, and the cache."""
        random = np.random.default_rng(self.room + sum(self.keys))
        new = self.queries or (3,) * len(self.keys)

        def normal(count: int, heads: int, width: int) -> Array:
            return random.standard_normal((count, heads, width)).astype(self.dtype)

        heads, kv_heads = self.heads
        rows = [normal(n, heads, self.head_dims[0]) for n in new]
        told: dict[str, Any] = {}
        if len(set(new)) > 1:
            told["cu_seqlens_q"] = np.cumsum([0, *new]).astype(np.int32)
        q = np.concatenate(rows) if told else np.stack(rows)
        sides = [[normal(n, kv_heads, width) for n in self.keys] for width in self.head_dims]
        return q, told, self.form.stored(*sides, new, random, self.room)


CASES = {
    "pages of half a tile": Case(Form(64), LENGTHS, options={"mask": am.causal()}),
    "pages of a tile": Case(Form(128), head_dims=(128, 128), options={"mask": am.causal()}),
    "pages of several tiles": Case(Form(512), room=512, keys=(200, 500)),
    "pages of an odd number of half tiles": Case(Form(192), room=384, keys=(200, 384)),
    "the smallest pages": Case(Form(8), LENGTHS, options={"mask": am.sliding_window(50, 0)}),
    "small pages, wide heads": Case(
        Form(16, "HND"), head_dims=(256, 256), heads=(1, 1), options={"mask": am.causal()}
    ),
    "heads first, values of another size": Case(Form(32, "HND"), head_dims=(72, 40)),
    "one pool": Case(Form(64, in_one_pool=True), dtype=np.float16),
    "one pool, heads first": Case(Form(16, "HND", in_one_pool=True), LENGTHS),
    "tables of their own": Case(Form(64, apart=True), LENGTHS, options={"mask": am.causal()}),
    "tables of their own in one pool": Case(Form(16, apart=True, in_one_pool=True)),
    "without the new keys": Case(
        Form(64, counts_new=False), (200, 3, 128), options={"mask": am.causal()}
    ),
    "unequal queries": Case(
        Form(16), (300, 5, 130), (140, 0, 7), 320, (2, 1), options={"mask": am.causal()}
    ),
    "compressed rows": Case(Form(32, compressed=True), LENGTHS, options={"mask": am.causal()}),
    "compressed rows of large pages": Case(Form(256, compressed=True), LENGTHS),
    "modified, with sinks": Case(
        Form(64),
        options={
            "mask": am.causal(),
            "score_mod": mods.softcap(5.0),
            "sinks": np.float32([0.5, -1.0, 2.0, 0.0]),
        },
    ),
    "parts of the keys": Case(
        Form(16), (300, 40), room=384, call={"num_splits": 3}, options={"mask": am.causal()}
    ),
    "claimed work tiles": Case(
        Form(64), (200, 40, 256), call={"tile_order": "clc"}, device={"multiprocessors": 2}
    ),
    "rows": Case(Form(), LENGTHS, options={"mask": am.causal()}),
    "selected rows": Case(Form(selected=True), options={"mask": am.causal()}),
    "padded rows": Case(Form(padded=True), (200, 0, 77), options={"mask": am.causal()}),
    "padded, selected, without the new keys": Case(
        Form(padded=True, selected=True, counts_new=False), options={"mask": am.chunked(64)}
    ),
}


SMALL = {
    "a position": Case(Form(1), LENGTHS, options={"mask": am.causal()}),
    "heads first": Case(Form(3, "HND"), head_dims=(72, 40), options={"mask": am.causal()}),
    "one pool": Case(
        Form(1, in_one_pool=True), (200, 77), options={"mask": am.sliding_window(50, 0)}
    ),
    "tables of their own": Case(Form(2, apart=True), head_dims=(128, 256), dtype=np.float16),
    "compressed rows": Case(Form(5, compressed=True), LENGTHS, options={"mask": am.causal()}),
    "no power of two": Case(Form(24), (200, 3, 128), (140, 0, 7), options={"mask": am.causal()}),
    "many queries": Case(Form(1), (130, 40), (130, 40), options={"mask": am.causal()}),
    "without the new keys": Case(Form(1, counts_new=False), options={"mask": am.causal()}),
    "parts of the keys": Case(
        Form(1), (300, 40), room=384, call={"num_splits": 3}, options={"mask": am.causal()}
    ),
    "modified, with sinks": Case(
        Form(4),
        heads=(16, 1),
        options={"score_mod": mods.softcap(5.0), "sinks": np.linspace(-2, 2, 16, dtype=np.float32)},
    ),
}


def run(case: Case) -> tuple[Array, Array]:
    """O and LSE, every element judged."""
    q, told, cache = case.operands()
    device = am.EmulatorDevice(**case.device)
    options = {**case.options, **case.call, **told}
    o, lse = am.attention(q, cache, return_lse=True, device=device, **options)
    for one in sequences(q, cache, **told):
        truth, yardstick = (
            formula(one.q, one.k, one.v, first_batch=one.batch, **case.options)
            for formula in (attention_f64, attention_yardstick)
        )
        verdict = compare(o[one.o][None], lse[one.lse][None], truth, yardstick)
        assert verdict.ok, f"sequence {one.batch}: {verdict}"
    return o, lse


@functools.cache
def fair(name: str) -> list[bytes]:
    """The bits of O and LSE of a case as it is, every element judged."""
    return [x.tobytes() for x in run(CASES[name])]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(
    "pages of several tiles",
    "pages of an odd number of half tiles",
    "small pages, wide heads",
    "one pool",
    "one pool, heads first",
    "rows",
    "selected rows",
    "tables of their own",
    "compressed rows of large pages",
    "without the new keys",  # trees are behind such a cache
    "modified, with sinks",  # are streamed below, and trees are masked
    "padded, selected, without the new keys",
    "pages of a tile",
    "claimed work tiles",
)
def test_caches(name: str) -> None:
    fair(name)


STREAMED = (
    "pages of half a tile", "pages of several tiles", "without the new keys",
    "unequal queries", "compressed rows", "tables of their own in one pool", "modified, with sinks",
    "parts of the keys", "padded rows",
)  # fmt: skip


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.long(
    "pages of several tiles",
    "tables of their own in one pool",
    "without the new keys",
    "compressed rows",
    "padded rows",
    "parts of the keys",  # threads copy these two below, by the same kernel
    "modified, with sinks",
)
def test_by_the_kernel_that_streams_keys(name: str) -> None:
    """For Hopper, which has no other; one of them under a schedule that is not fair."""
    device = {"target": "sm_90a"}
    if name == "pages of half a tile":
        device |= {"schedule": "adversarial"}
    run(dataclasses.replace(CASES[name], device=device))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ["pages of half a tile", "the smallest pages", "padded rows"])
@pytest.mark.long(but=("the smallest pages-1",))
def test_under_adversarial_schedules(name: str, seed: int) -> None:
    case = dataclasses.replace(CASES[name], device={"schedule": "adversarial", "seed": seed})
    assert [x.tobytes() for x in run(case)] == fair(name)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.long(
    "tables of their own-*", "without the new keys-*", "one pool-*", "many queries-sm_90a",
    "modified, with sinks-sm_100a", "no power of two-sm_90a", "heads first-sm_100a",
    "a position-sm_90a", "parts of the keys-sm_100a", "compressed rows-sm_90a",
)  # fmt: skip
def test_pages_that_threads_copy(name: str, target: str) -> None:
    """Of any size that no box of the copy engine goes with; late and out of order."""
    device = {"target": target, "schedule": "adversarial", "seed": 1}
    run(dataclasses.replace(SMALL[name], device=device))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.long("128")
def test_pages_give_the_bits_of_dense_tensors(head_dim: int) -> None:
    """The same tiles with the same numbers, wherever they come from."""
    results: set[bytes] = set()
    for form in (Form(), Form(16), Form(64, "HND"))[:: 2 if head_dim == 64 else 1]:
        case = Case(form, (256,), head_dims=(head_dim, head_dim))
        results.add(run(case)[0].tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.long("64", "1")
def test_streamed_boxes_give_the_bits_of_dense_tensors(page: int) -> None:
    """Rows of two lines, of which each page is a box of its own in the slot."""
    of = {"head_dims": (128, 128), "device": {"target": "sm_90a", "schedule": "adversarial"}}
    dense, paged = (run(Case(form, (150,), **of)) for form in (Form(), Form(page)))
    assert [x.tobytes() for x in dense] == [x.tobytes() for x in paged]


@pytest.mark.parametrize(
    "scales", [np.float32([0.5]), np.float32([[0.5, 2.0], [1.5, 0.25]])], ids=["one", "each"]
)
@pytest.mark.long("one")
def test_8_bits(scales: Array) -> None:
    """Q, K and V of 8 bits, with the factors that the cache has."""
    q, _, cache = Case(Form(64), dtype=ml_dtypes.float8_e4m3fn).operands()
    assert isinstance(cache, am.PagedKV)
    cache = dataclasses.replace(cache, k_scale=scales, v_scale=scales)
    factor = np.float32([1.5])
    o = am.attention(q, cache, q_descale=factor, device="emulator")
    factors = {"q_descale": factor, "k_descale": scales, "v_descale": scales}
    for one in sequences(q, cache):
        options = {"first_batch": one.batch, **factors}
        truth = attention_f64(one.q, one.k, one.v, **options)
        yardstick = attention_yardstick(one.q, one.k, one.v, out_dtype=BF16, **options)
        verdict = compare(o[one.o][None], None, truth, yardstick)
        assert verdict.ok, f"sequence {one.batch}: {verdict}"


HOSTILE = {
    "page_table": [-1, 2**31 - 1, -(2**31), 11, 10**6, 12],
    "indices": [-1, 2**31 - 1, -(2**31), 11, 10**6, 12],
    "indptr": [5, -7, 2**31 - 1],
    "last_page_len": [2**31 - 1, -(2**31)],
    "seqused": [2**31 - 1, -(2**31)],
    "batch_idx": [2**31 - 1, -(2**31)],
    "leftpad": [2**31 - 1, -(2**31)],
}


@pytest.mark.parametrize("head_dim", [64])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_array_makes_a_kernel_leave_the_cache(
    name: str, head_dim: int, as_on_a_gpu: Callable[[], None]
) -> None:
    """The emulator refuses accesses outside of an allocation; the checks of a call are left out."""
    is_paged = name not in ("batch_idx", "leftpad")
    compressed = name in ("indptr", "indices", "last_page_len")
    form = Form(64 if is_paged else 0, compressed=compressed, selected=True, padded=True)
    if is_paged:
        form = dataclasses.replace(form, selected=False, padded=False)
    q, _, cache = Case(form, head_dims=(head_dim, head_dim)).operands()
    given = getattr(cache, name)
    wrong = np.resize(np.array(HOSTILE[name], np.int64), given.shape).astype(np.int32)
    as_on_a_gpu()
    o = am.attention(q, dataclasses.replace(cache, **{name: wrong}), device="emulator")
    assert o.shape == q.shape


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.long("False-sm_100a", "True-sm_90a")
def test_sequences_without_any_page(compressed: bool, target: str) -> None:
    """A list without an entry is not read."""
    form = Form(64, compressed=compressed)
    _, _, cache = Case(form, (0, 0), room=0).operands()
    if compressed:
        cache = dataclasses.replace(cache, indices=np.zeros(0, np.int32))
    q = np.ones((2, 3, 4, 64), BF16)
    device = am.EmulatorDevice(target=target)
    o, lse = am.attention(q, cache, return_lse=True, device=device)
    assert (o == 0).all() and (lse == -np.inf).all()


def test_a_page_that_is_none_counts_as_zeros(as_on_a_gpu: Callable[[], None]) -> None:
    as_on_a_gpu()
    q, _, cache = Case(Form(64), (256, 256)).operands()
    assert isinstance(cache, am.PagedKV)
    table = np.array(cache.page_table)
    table[0, 1], table[1, 3] = -1, len(cache.k_pages)
    o = am.attention(q, dataclasses.replace(cache, page_table=table), device="emulator")
    for one in sequences(q, cache):
        begin = 64 if one.batch == 0 else 192
        k, v = one.k.copy(), one.v.copy()
        k[:, begin : begin + 64] = v[:, begin : begin + 64] = 0
        truth, yardstick = (f(one.q, k, v) for f in (attention_f64, attention_yardstick))
        assert compare(o[one.o][None], None, truth, yardstick).ok
