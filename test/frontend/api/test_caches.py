"""Caches as operands: what contradicts itself or does not fit is refused, by the name the caller gave."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import env, mods
from attn_mlir.api.descales import table_of
from attn_mlir.compiling.operations import request_of
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import SpecError
from attn_mlir.validation.numerics.operands import i32

pytestmark = pytest.mark.usefixtures("no_compiler")

Array = npt.NDArray[Any]
BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn


def pool(*shape: int, dtype: Any = BF16) -> Array:
    return np.zeros(shape or (6, 16, 2, 64), dtype)


TABLE = i32([0, 1, 2], [3, 4, 5])
USED = i32(40, 17)
CSR = {
    "page_table": None,
    "seqused": None,
    "indptr": i32(0, 3, 5),
    "indices": i32(0, 1, 2, 3, 4),
    "last_page_len": i32(8, 1),
}


def paged(**changes: Any) -> am.PagedKV:
    given = {"k_pages": pool(), "v_pages": pool(), "page_table": TABLE, "seqused": USED}
    return am.PagedKV(**{**given, **changes})


def rows(**changes: Any) -> am.ContiguousKV:
    return am.ContiguousKV(
        **{"k": pool(2, 48, 2, 64), "v": pool(2, 48, 2, 64), "seqused": USED, **changes}
    )


def planned(cache: Any, **options: Any) -> am.Plan:
    q = options.pop("q", pool(2, 5, 4, 64))
    return am.plan(q, cache, **options)


def strided(array: Array, *strides: int) -> Array:
    """An array of the same shape with other strides, in elements."""
    steps = [stride * array.itemsize for stride in strides]
    room = np.zeros(sum(n * s for n, s in zip(array.shape, strides, strict=True)), array.dtype)
    return np.lib.stride_tricks.as_strided(room, array.shape, steps)


def misaligned() -> Array:
    room = np.zeros(6 * 16 * 2 * 64 + 8, BF16)
    begin = next(i for i in range(1, 8) if (room.ctypes.data + 2 * i) % 16)
    return room[begin : begin + 6 * 16 * 2 * 64].reshape(6, 16, 2, 64)


WRONG_PAGES = {
    "a layout that there is not": ({"layout": "NDH"}, "^layout must be NHD or HND, got 'NDH'"),
    "no list of pages": ({"page_table": None, "seqused": None}, "^page_table is missing: pages are"),
    "two lists of pages": ({"indptr": i32(0, 1)}, "^page_table and indptr both list the pages"),
    "half of compressed rows": (CSR | {"indices": None}, "^indices is missing: pages are listed"),
    "lengths twice": (CSR | {"seqused": USED}, "^seqused and last_page_len both tell the lengths"),
    "the last page without the new tokens": (
        CSR | {"counts_new": False}, "^counts_new must be True with last_page_len"),
    "what is not counted": (
        {"seqused": None, "counts_new": False}, "^counts_new says what seqused counts"),
    "no flag": ({"counts_new": 1}, "^counts_new must be True or False, got 1"),
    "a table of no scales": ({"scale_table": TABLE}, "^scale_table is for scales of positions"),
    "no array": ({"k_pages": "pages"}, "^k_pages must be a numpy array or have"),
    "rank of the pool": ({"k_pages": pool(6, 16, 128)}, r"^k_pages must be \[pages, page, heads, D\]"),
    "rank of the pool of values": (
        {"v_pages": pool(6, 16, 128), "layout": "HND"},
        r"^v_pages must be \[pages, heads, page, D\], got shape \[6, 16, 128\]"),
    "one pool of three": (
        {"k_pages": pool(6, 3, 16, 2, 64), "v_pages": None},
        r"^k_pages must be \[pages, 2, page, heads, D\] without v_pages, got shape"),
    "pools of other pages": (
        {"v_pages": pool(7, 16, 2, 64)}, "^v_pages must agree with k_pages but for head_dim"),
    "pools of other heads": (
        {"v_pages": pool(6, 16, 1, 64)}, "^v_pages must agree with k_pages but for head_dim"),
    "dtype of the pool": (
        {"k_pages": pool(dtype=np.float32), "v_pages": pool(dtype=np.float32)},
        "^k_pages has dtype f32, allowed are"),
    "another dtype than q": (
        {"k_pages": pool(dtype=np.float16), "v_pages": pool(dtype=np.float16)},
        "^k_pages is f16, q is bf16"),
    "values of another dtype": ({"v_pages": pool(dtype=np.float16)}, "^v_pages is f16, q is bf16"),
    "heads": ({"k_pages": pool(6, 16, 3, 64), "v_pages": pool(6, 16, 3, 64)}, "^kv_heads must divide"),
    "head size": ({"k_pages": pool(6, 16, 2, 32)}, "^k_pages has head_dim 32, q has 64"),
    "pages of none": (
        {"k_pages": pool(6, 0, 2, 64), "v_pages": pool(6, 0, 2, 64)},
        "^the page size of k_pages must be an integer from 1 to"),
    "columns that are apart": (
        {"k_pages": pool(6, 16, 2, 128)[..., ::2]}, "^k_pages has strides .*: its last axis must be dense"),
    "rows of odd bytes": (
        {"v_pages": strided(pool(), 16 * 140, 140, 70, 1)},
        "^v_pages has strides .*: copies need strides of a multiple of 16 bytes"),
    "pages backwards": ({"v_pages": pool()[::-1]}, "^v_pages has strides .*: copies need strides"),
    "an odd address": ({"k_pages": misaligned()}, "^k_pages starts at 0x"),
    "dtype of the table": (
        {"page_table": TABLE.astype(np.int64)},
        r"^page_table must be \[batch, columns\] or \[batch, 2, columns\] of i32, got \[2, 3\] of i64"),
    "rank of the table": (
        {"page_table": TABLE[0]}, r"^page_table must be .* of i32, got \[3\] of i32"),
    "three tables": ({"page_table": np.stack([TABLE] * 3, 1)}, r"^page_table must be .*, got \[2, 3, 3\]"),
    "a page of values that is none": (
        {"page_table": np.stack([TABLE, TABLE + 1], 1), "seqused": i32(40, 40)},
        r"^page_table\[1, 2\] is 6: k_pages has pages 0 to 5"),
    "columns of the table": (
        {"page_table": np.repeat(TABLE, 2, 1)[:, ::2]},
        "^page_table has strides .*: its rows must be dense"),
    "rows of the table": ({"page_table": TABLE[::-1]}, "^page_table has strides .*: its rows must"),
    "batch of the table": ({"page_table": TABLE[:1]}, "^page_table has batch 1, q has 2"),
    "dtype of lengths": (
        {"seqused": USED.astype(np.int64)}, r"^seqused must be \[batch\] of i32, got \[2\] of i64"),
    "batch of lengths": ({"seqused": i32(1, 2, 3)}, "^seqused has batch 3, q has 2"),
    "a negative length": ({"seqused": i32(4, -1)}, r"^seqused\[1\] is -1: sequence 1 of k_pages has 48"),
    "beyond the table": ({"seqused": i32(4, 49)}, r"^seqused\[1\] is 49: sequence 1 of k_pages has 48"),
    "beyond the table with the new tokens": (
        {"seqused": i32(4, 44), "counts_new": False},
        r"^seqused\[1\] is 44, 49 with the new tokens: sequence 1 of k_pages has 48"),
    "a page that is none": (
        {"page_table": i32([0, 6, 9], [3, 4, 5]), "seqused": i32(17, 17)},
        r"^page_table\[0, 1\] is 6: k_pages has pages 0 to 5"),
    "a negative page": (
        {"page_table": i32([0, 1, 2], [3, -1, 5])},
        r"^page_table\[1, 1\] is -1: k_pages has pages 0 to 5"),
    "compressed rows backwards": (CSR | {"indptr": i32(0, 3, 2)}, "^indptr must rise from 0"),
    "compressed rows beyond": (CSR | {"indptr": i32(0, 3, 6)}, "^indptr must rise from 0 .* 5, the entries"),
    "compressed rows of nobody": (CSR | {"indptr": i32()}, "^indptr must have batch . 1 entries, got none"),
    "a listed page that is none": (
        CSR | {"indices": i32(0, 1, 2, 3, 6)}, r"^indices\[4\] is 6: k_pages has pages 0 to 5"),
    "positions of the last page": (
        CSR | {"last_page_len": i32(8, 17)}, r"^last_page_len\[1\] is 17: pages have 16 positions"),
    "an empty last page": (
        CSR | {"last_page_len": i32(0, 1)}, r"^last_page_len\[0\] is 0: pages have 16 positions"),
    "batch of the last pages": (CSR | {"last_page_len": i32(8)}, "^last_page_len has batch 1, indptr has 2"),
    "scales of 16 bits": ({"k_scale": np.float32([1])}, "^k_scale is for q, k and v of 8 bits"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_PAGES)
def test_pages_that_are_refused(name: str) -> None:
    changes, message = WRONG_PAGES[name]
    with pytest.raises(SpecError, match=message):
        planned(paged(**changes))


WRONG_ROWS = {
    "rank": ({"k": pool(48, 2, 64)}, r"^k must be \[rows, positions, heads, head_dim\], got shape"),
    "rows that differ": ({"v": pool(3, 48, 2, 64)}, "^v has batch 3|^k and v must agree"),
    "batch": ({"k": pool(3, 48, 2, 64), "v": pool(3, 48, 2, 64)}, "^k has batch 3, q has 2"),
    "a length": ({"seqused": i32(49, 1)}, r"^seqused\[0\] is 49: sequence 0 of k has 48"),
    "dtype of indices": (
        {"batch_idx": np.int64([0, 1])}, r"^batch_idx must be \[batch\] of i32, got \[2\] of i64"),
    "a row that is none": ({"batch_idx": i32(0, 2)}, r"^batch_idx\[1\] is 2: k has rows 0 to 1"),
    "a negative row": ({"batch_idx": i32(0, -1)}, r"^batch_idx\[1\] is -1: k has rows 0 to 1"),
    "batch of indices": ({"batch_idx": i32(0, 1, 1)}, "^batch_idx has batch 3, q has 2"),
    "more padding than there is": ({"leftpad": i32(41, 0)}, r"^leftpad\[0\] is 41: sequence 0 has 40"),
    "negative padding": ({"leftpad": i32(0, -1)}, r"^leftpad\[1\] is -1: sequence 1 has 17"),
    "batch of padding": ({"leftpad": i32(0)}, "^leftpad has batch 1, k has 2"),
    "what is not counted": ({"seqused": None, "counts_new": False}, "^counts_new says what seqused"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_rows_that_are_refused(name: str) -> None:
    changes, message = WRONG_ROWS[name]
    with pytest.raises(SpecError, match=message):
        planned(rows(**changes))


WRONG_CALLS = {
    "v": pool(2, 48, 2, 64),
    "cu_seqlens_k": i32(0, 40, 57),
    "max_seqlen_k": 40,
    "seqused_k": USED,
    "cache_seqlens": USED,
    "cache_counts_new": True,
    "k_descale": np.float32([1]),
    "v_descale": np.float32([1]),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_arguments_that_a_cache_stands_for(name: str) -> None:
    with pytest.raises(SpecError, match=f"^{name} is for k and v as tensors: the cache has"):
        planned(paged(), **{name: WRONG_CALLS[name]})


def test_values_are_not_forgotten() -> None:
    with pytest.raises(SpecError, match="^v is missing: only a cache"):
        am.plan(pool(2, 5, 4, 64), pool(2, 48, 2, 64))


def test_lists_of_blocks_are_refused() -> None:
    blocks = am.block_mask(None, 2, 4, 5, 48, mask=am.causal())
    with pytest.raises(SpecError, match="^block_mask is for sequences of one length, got a cache"):
        planned(paged(), block_mask=blocks)


def test_a_bias_has_the_room_of_the_table() -> None:
    with pytest.raises(SpecError, match=r"^bias has shape \[5, 40\], .* sk = 48"):
        planned(paged(), score_mod=mods.bias(np.zeros((5, 40), np.float32)))
    planned(paged(), score_mod=mods.bias(np.zeros((5, 48), np.float32)))


@pytest.mark.parametrize(
    ("cache", "names"),
    [
        (paged(), "page_table, seqused_k"),
        (paged(counts_new=False), "page_table, cache_seqlens"),
        (paged(seqused=None), "page_table"),
        (paged(page_table=np.stack([TABLE, TABLE[::-1]], 1)), "page_table, v_page_table, seqused_k"),
        (paged(**CSR), "indptr, indices, last_page_len"),
        (paged(k_pages=pool(6, 2, 16, 2, 64), v_pages=None), "page_table, seqused_k"),
        (paged(page_table=np.tile(TABLE, 2)[:, :3]), "page_table, seqused_k"),
        (paged(page_table=i32([0, 1, 2], [3, 4, 99]), seqused=i32(48, 32)), "page_table, seqused_k"),
        (rows(batch_idx=i32(1, 0), leftpad=i32(3, 17)), "batch_idx, leftpad, seqused_k"),
        (rows(seqused=None), ""),
    ],
)  # fmt: skip
def test_what_a_kernel_is_given(cache: Any, names: str) -> None:
    (step,) = planned(cache).steps
    given = [x.name for x in step.request.tensors if x.role == "in"]
    assert ", ".join(given[3:]) == names
    request = step.request
    assert request_of(json.loads(request.canonical_json())) == request


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("in_one_pool", [False, True])
def test_pools_are_the_same_tensors_with_other_strides(layout: Any, in_one_pool: bool) -> None:
    """No element is moved, whatever the layout; the kernel is the same one."""
    inner = (16, 2) if layout == "NHD" else (2, 16)
    whole = np.zeros((6, 2, *inner, 64), BF16)
    given = (whole, None) if in_one_pool else (pool(6, *inner, 64), pool(6, *inner, 64))
    (step,) = planned(am.PagedKV(*given, TABLE, USED, layout=layout)).steps
    k, v = (step.arguments[name] for name in "kv")
    assert k.shape == v.shape == (6, 16, 2, 64)  # pyright: ignore
    page = 2048 * (2 if in_one_pool else 1)
    assert k.strides == (page, *((128, 64) if layout == "NHD" else (64, 1024)), 1)  # pyright: ignore
    if in_one_pool:
        assert k.address == whole.ctypes.data and v.address == k.address + 4096  # pyright: ignore
    assert step.request.kernel_name == "attn_mha_null_p16_uk_bf16_h4k2_d64"


def test_tables_on_a_gpu_are_not_waited_for(as_on_a_gpu: Callable[[], None]) -> None:
    """What cannot be read is not checked; a kernel moves it into range."""
    as_on_a_gpu()
    assert not env.settings().check_lengths
    planned(paged(page_table=TABLE + 100, seqused=i32(9999, -1)))
    plan = planned(paged(**CSR | {"indptr": i32(9, -3, 2**31 - 1)}))
    assert plan.steps[0].request.operand("indptr") is not None


def test_8_bits_need_the_factors_of_the_cache() -> None:
    q, pages = pool(2, 5, 4, 64, dtype=E4M3), pool(dtype=E4M3)
    cache = paged(k_pages=pages, v_pages=pages.copy())
    factors = np.float32([0.5])
    with pytest.raises(SpecError, match="^k_scale is missing: e4m3 operands need"):
        planned(cache, q=q, q_descale=factors)
    whole = dataclasses.replace(cache, k_scale=factors, v_scale=factors)
    planned(whole, q=q, q_descale=factors)
    with pytest.raises(SpecError, match=r"^v_scale must be f32 of one element, \[2\] or \[2, 2\]"):
        planned(dataclasses.replace(whole, v_scale=np.ones(3, np.float32)), q=q, q_descale=factors)
    planned(
        rows(k=pool(2, 48, 2, 64, dtype=E4M3), v=pool(2, 48, 2, 64, dtype=E4M3)),
        q=q, q_descale=factors, k_descale=factors, v_descale=factors,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (5, "^cache must be a Cache"),
        (Cache(page_size=-8, pages="table"), "^page_size must be an integer from 1 to"),
        (Cache(page_size=16), "^cache with a page_size, .* by one of table, tables, csr"),
        (
            Cache(page_size=16, pages="list"),
            "^cache with a page_size, and no other, must list pages",
        ),
        (Cache(pages="csr"), "^cache with a page_size, and no other, must list pages"),
        (Cache(page_size=16, pages="csr", padded=True), "^a cache with pages has neither"),
        (Cache(page_size=16, pages="csr", selected=True), "^a cache with pages has neither"),
    ],
)
def test_requests_that_are_refused(cache: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        am.mha(heads=2, head_dim=64, cache=cache)


def test_caches_and_other_options_of_a_request() -> None:
    cache = Cache(page_size=64, pages="table")
    with pytest.raises(SpecError, match="^cu_seqlens_k is for keys in rows of one tensor"):
        am.mha(heads=2, head_dim=64, cache=cache, lengths=Lengths(ragged_k=True))
    with pytest.raises(SpecError, match="^lists of blocks are .*, got a cache"):
        am.mha(heads=2, head_dim=64, cache=cache, block=(128, 1, 128))


def test_factors_of_heads_are_a_table() -> None:
    found = table_of(np.ones(3, np.float32), "k_descale", "e4m3", 2, 3)
    assert (found.shape, found.strides[1]) == ((1, 3), 1)
