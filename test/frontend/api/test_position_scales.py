"""Scales of positions that do not fit their cache are refused, by the name the caller gave."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.operations import request_of
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.scale import ScaleBlock
from attn_mlir.errors import SpecError

pytestmark = pytest.mark.usefixtures("no_compiler")

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
TABLE = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
USED = np.array([40, 17], np.int32)


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def paged(**changes: Any) -> am.PagedKV:
    pool, scale = ones(6, 16, 2, 64, dtype=E4M3), ones(6, 16, 2, 2)
    given: dict[str, Any] = {"k_pages": pool, "v_pages": pool, "page_table": TABLE, "seqused": USED}
    return am.PagedKV(**{**given, "k_scale": scale, "v_scale": scale, **changes})


def rows(**changes: Any) -> am.ContiguousKV:
    both, scale = ones(2, 48, 2, 64, dtype=E4M3), ones(2, 48, 2, 1)
    given: dict[str, Any] = {
        "k": both,
        "v": both,
        "seqused": USED,
        "k_scale": scale,
        "v_scale": scale,
    }
    return am.ContiguousKV(**{**given, **changes})


def planned(cache: Any, **options: Any) -> am.Plan:
    return am.plan(ones(2, 5, 4, 64, dtype=BF16), cache, device="emulator", **options)


WRONG = {
    "dtype": (paged(k_scale=ones(6, 16, 2, 2, dtype=np.float64)),
              r"^k_scale must be \[pages, page, heads, groups\] of f32, f16, bf16, got \[6, 16, 2, 2\] of f64"),
    "two dtypes": (paged(v_scale=ones(6, 16, 2, 2, dtype=np.float16)),
                   "^v_scale is f16, k_scale is f32: both must be the same"),
    "rank": (paged(k_scale=ones(6, 16, 2, 2, 1)), r"^k_scale must be \[pages, page, heads, groups\], got"),
    "of keys alone": (paged(v_scale=None), "^v_scale is missing: keys and values both have scales"),
    "a table beside it": (paged(v_scale=ones(2, 2)), r"^v_scale must be \[pages, page, heads, groups\], got"),
    "pages of another size": (paged(k_scale=ones(6, 5, 2, 2)), "^k_scale has pages of 5 positions, k has pages of 16"),
    "pages of more": (paged(k_scale=ones(6, 32, 2, 2)), "^k_scale has pages of 32 positions, k has pages of 16"),
    "other blocks": (
        paged(k_scale=ones(6, 8, 2, 2)),
        "^v_scale is of 1 neighbouring positions, k_scale of 2: both must be of as many",
    ),
    "rows of more": (rows(k_scale=ones(2, 24, 2, 1)), "^v_scale is of 1 neighbouring positions, k_scale of 2"),
    "padding before blocks": (
        rows(k_scale=ones(2, 24, 2, 1), v_scale=ones(2, 24, 2, 1), leftpad=np.zeros(2, np.int32)),
        "^leftpad is for scales of each position, k_scale is of 2 neighbouring ones",
    ),
    "other pages": (paged(v_scale=ones(7, 16, 2, 2)), r"^v_scale has 7 pages, v has 6 \(pass scale_table\?\)"),
    "heads": (paged(v_scale=ones(6, 16, 1, 2)), "^v_scale has 1 heads, v has 2"),
    "the other layout": (paged(layout="HND", k_pages=ones(6, 2, 16, 64, dtype=E4M3),
                               v_pages=ones(6, 2, 16, 64, dtype=E4M3)), "^k_scale has 16 heads, k has 2"),
    "groups of 16": (paged(k_scale=ones(6, 16, 2, 4)), "^k_scale has 4 groups of 64 columns: groups are one to a row"),
    "groups that do not divide": (paged(k_scale=ones(6, 16, 2, 3)), "^k_scale has 3 groups of 64 columns"),
    "groups apart": (paged(k_scale=ones(6, 16, 2, 4)[..., ::2]), "^k_scale has strides .*: its groups must be dense"),
    "backwards": (paged(k_scale=ones(6, 16, 2, 2)[::-1]), "^k_scale has strides .*: .* no stride below 0"),
    "no pages": (paged(k_scale=ones(0, 16, 2, 2), v_scale=ones(0, 16, 2, 2), scale_table=TABLE),
                 "^k_scale has no element"),
    "elements of 16 bits": (paged(k_pages=ones(6, 16, 2, 64, dtype=BF16), v_pages=ones(6, 16, 2, 64, dtype=BF16)),
                            "^k_scale is for keys and values of 8 bits, got bf16"),
    "dtype of the table": (paged(scale_table=TABLE.astype(np.int64)),
                           r"^scale_table must be \[batch, columns\] of i32, got \[2, 3\] of i64"),
    "batch of the table": (paged(scale_table=TABLE[:1]), r"^scale_table must be \[2, 3 or more\], got \[1, 3\]"),
    "columns of the table": (paged(scale_table=TABLE[:, :2]), r"^scale_table must be \[2, 3 or more\]"),
    "a page that is none": (paged(scale_table=TABLE + 1, seqused=np.array([40, 48], np.int32)),
                            r"^scale_table\[1, 2\] is 6: k_scale and v_scale have pages 0 to 5"),
    "a table of tables": (paged(k_scale=ones(1), v_scale=ones(1), scale_table=TABLE),
                          "^scale_table is for scales of positions"),
    "rows": (rows(k_scale=ones(3, 48, 2, 1)), "^k_scale has 3 rows of 48 positions, k has 2 of 48"),
    "in one array": (paged(k_pages=ones(6, 2, 16, 2, 64, dtype=E4M3), v_pages=None, v_scale=None),
                     r"^k_scale must be \[pages, 2, page, heads, groups\] without v_scale, got"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    cache, message = WRONG[name]
    with pytest.raises(SpecError, match=message):
        planned(cache)


def test_the_other_kernel_is_refused() -> None:
    with pytest.raises(
        SpecError, match="^schedule mha has no kernel: k's element type must be bf16, got e4m3"
    ):
        planned(paged(), schedule="mha")


@pytest.mark.parametrize("cache", [paged(), rows(), paged(scale_table=np.repeat(TABLE, 2, 1))])
def test_what_is_planned(cache: Any) -> None:
    """One launch, of a kernel that streams on a target that has another, and is what its bundle says."""
    plan = planned(cache)
    (step,) = plan.steps
    assert "_stream_" in step.request.kernel_name
    assert request_of(step.request.fields()) == step.request


def test_blocks_of_positions_that_no_kernel_writes_or_reads() -> None:
    cache = paged(k_scale=ones(6, 1, 2, 2), v_scale=ones(6, 1, 2, 2))
    (step,) = planned(cache).steps
    assert step.request.facts.scales.k == ScaleBlock(16, 32)
    assert step.request.fields()["cache"]["scale_rows"] == 16
    assert request_of(step.request.fields()) == step.request
    new = ones(2, 1, 2, 64, dtype=BF16)
    with pytest.raises(
        SpecError,
        match="^scales of a cache must be of single positions for new tokens, got those of 16",
    ):
        am.append_kv(cache, new, new)
    pool = ones(6, 192, 2, 64, dtype=E4M3)
    given = {"k_scale": ones(6, 64, 2, 2), "v_scale": ones(6, 64, 2, 2)}
    wide = paged(k_pages=pool, v_pages=pool, **given)
    with pytest.raises(SpecError, match="positions that share a scale must be 1, 2, .* 128, got 3"):
        planned(wide)


def test_layouts_are_strides() -> None:
    """Arrays by head, and of K and V in one: the same kernel reads them."""
    both = {"k_pages": ones(6, 2, 2, 16, 64, dtype=E4M3), "k_scale": ones(6, 2, 2, 16, 2)}
    cache = paged(layout="HND", v_pages=None, v_scale=None, **both)
    (plain,), (found,) = planned(paged()).steps, planned(cache).steps
    assert found.request == plain.request
    view: Any = found.arguments["v_descale"]
    assert (view.shape, view.strides) == ((6, 16, 2, 2), (128, 2, 32, 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale_dtype": "f64", "k_groups": 1, "v_groups": 1}, "^scale_dtype of a cache must be one of f32"),
        ({"own_scale_table": True}, "^scale_table of a cache is for scales of positions"),
        ({"scale_dtype": "f32", "k_groups": 1, "v_groups": 3}, "^v_groups 3 has no kernel for v_head_dim 64"),
        (
            {"scale_dtype": "f32", "k_groups": 1, "v_groups": 1, "scale_rows": 3},
            "^scale_rows of a cache must divide its pages, .* got 3 for page_size 16",
        ),
        ({"scale_rows": 4}, "^scale_rows of a cache must divide its pages"),
        ({"scale_dtype": "f32"}, "^k_groups 0 has no kernel for head_dim 64"),
    ],
)  # fmt: skip
def test_requests(fields: dict[str, Any], message: str) -> None:
    cache = dataclasses.replace(Cache(page_size=16, pages="table"), **fields)
    with pytest.raises(SpecError, match=message):
        am.mha(heads=2, head_dim=64, kv_dtype="e4m3", cache=cache)
