"""Index arrays of u32, as some callers have tables and lengths: kernels get the same words as i32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api.appending import append_kv
from attn_mlir.api.latent.mla_decode import plan as plan_decode
from attn_mlir.api.plan import Plan
from attn_mlir.api.planners import only_planned
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import host_array, view

plan_append = only_planned(append_kv)
BF16 = ml_dtypes.bfloat16
Array = np.ndarray[Any, Any]


def u32(*numbers: Any) -> Array:
    return np.array(numbers, np.uint32)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, BF16)


def paged(**changed: Any) -> am.PagedKV:
    pools = {"k_pages": zeros(6, 16, 1, 64), "v_pages": zeros(6, 16, 1, 64)}
    return am.PagedKV(**{**pools, "page_table": u32([0, 1], [3, 5]), **changed})


CALLS: dict[str, Callable[[], Plan]] = {
    "ragged": lambda: am.plan(
        zeros(9, 1, 64), zeros(7, 1, 64), zeros(7, 1, 64), cu_seqlens_q=u32(0, 5, 9),
        cu_seqlens_k=u32(0, 3, 7), max_seqlen_q=5, seqused_k=u32(1, 2),
    ),
    "pages": lambda: am.plan(zeros(2, 1, 1, 64), paged(seqused=u32(17, 9))),
    "compressed rows": lambda: am.plan(
        zeros(1, 1, 1, 64),
        paged(page_table=None, indptr=u32(0, 1), indices=u32(3), last_page_len=u32(9)),
    ),
    "rows of a tensor": lambda: am.plan(
        zeros(1, 1, 1, 64),
        am.ContiguousKV(*[zeros(2, 16, 1, 64)] * 2, u32(9), batch_idx=u32(1), leftpad=u32(2)),
    ),
    "tables of scales": lambda: am.plan(
        np.zeros((2, 1, 8, 64), BF16),
        am.PagedKV(
            np.zeros((6, 16, 1, 64), ml_dtypes.float8_e4m3fn),
            np.zeros((6, 16, 1, 64), ml_dtypes.float8_e4m3fn), u32([0, 1], [3, 5]),
            k_scale=np.ones((6, 16, 1, 1), np.float32), v_scale=np.ones((6, 16, 1, 1), np.float32),
            scale_table=u32([1, 2], [0, 4]),
        ),
    ),
    "lists": lambda: plan_decode(
        zeros(1, 1, 16, 512), am.ContiguousKV(zeros(2, 16, 1, 512), None, None), scale=1.0,
        indices=u32([[3, 2**32 - 1]]), topk_length=u32([2]), num_splits=1,
    ),
    "slots": lambda: plan_append(
        paged(), zeros(2, 1, 64), zeros(2, 1, 64), slot_mapping=u32(3, 2**32 - 1)
    ),
    "positions": lambda: plan_append(
        paged(), zeros(2, 1, 64), zeros(2, 1, 64), positions=u32(3, 4), batch_indices=u32(0, 1)
    ),
    "lengths before new tokens": lambda: plan_append(
        paged(seqused=u32(3, 4), counts_new=False), zeros(2, 1, 1, 64), zeros(2, 1, 1, 64)
    ),
}  # fmt: skip
COUNTS = {
    "ragged": 3,
    "compressed rows": 3,
    "rows of a tensor": 3,
    "tables of scales": 2,
    "lists": 2,
    "slots": 1,
}


@pytest.mark.parametrize("name", CALLS)
def test_kernels_get_the_words_as_i32(name: str) -> None:
    (step,) = CALLS[name]().steps
    arrays = {
        operand.name: view(step.arguments[operand.name], operand.name)
        for operand in step.request.tensors
        if operand.dtype == "i32"
    }
    assert len(arrays) >= COUNTS.get(name, 2)
    assert {found.dtype for found in arrays.values()} == {"i32"}


def test_what_is_no_number_of_i32_is_below_0() -> None:
    (step,) = CALLS["lists"]().steps
    assert host_array(view(step.arguments["indices"], "indices")).tolist() == [[[3, -1]]]


def test_lengths_that_i32_does_not_hold_are_refused_as_they_are() -> None:
    far = 2**31 + 1
    allowed = f"is {far}, allowed are 0 to {2**31 - 1}$"
    with pytest.raises(SpecError, match=rf"^seqused.1. {allowed}"):
        am.plan(zeros(2, 1, 1, 64), paged(seqused=u32(17, far)))
    with pytest.raises(SpecError, match=rf"^seqused.1. {allowed}"):
        plan_append(paged(seqused=u32(17, far)), zeros(2, 1, 1, 64), zeros(2, 1, 1, 64))
    with pytest.raises(SpecError, match=rf"^cu_seqlens_q.1. {allowed}"):
        am.plan(zeros(9, 1, 64), *[zeros(1, 7, 1, 64)] * 2, cu_seqlens_q=u32(0, far))
    for name in ("batch_idx", "leftpad"):
        cache = am.ContiguousKV(*[zeros(2, 16, 1, 64)] * 2, None, **{name: u32(0, far)})
        with pytest.raises(SpecError, match=rf"^{name}.1. {allowed}"):
            am.plan(zeros(2, 1, 1, 64), cache)


def test_words_of_pytorch_stay_its_tensors() -> None:
    """Which a GPU's contents are read by, where that is asked for."""
    torch: Any = pytest.importorskip("torch")
    used = torch.tensor([17, 9], dtype=torch.uint32)
    (step,) = am.plan(zeros(2, 1, 1, 64), paged(seqused=used)).steps
    found: Any = step.arguments["seqused_k"]
    assert isinstance(found, torch.Tensor) and found.data_ptr() == used.data_ptr()
