"""Batches of unequal lengths: contradictions and wrong arrays are refused before anything is compiled."""

from __future__ import annotations

import types
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import arrays, env
from attn_mlir.api import array_checks, lengths
from attn_mlir.api.lengths import sequence_lengths
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import view
from attn_mlir.validation.numerics.operands import i32

pytestmark = pytest.mark.usefixtures("no_compiler")

BF16 = ml_dtypes.bfloat16


RAGGED_Q = {"q": np.zeros((9, 4, 64), BF16), "cu_seqlens_q": i32(0, 5, 9)}
RAGGED_K = {
    "k": np.zeros((9, 2, 64), BF16),
    "v": np.zeros((9, 2, 64), BF16),
    "cu_seqlens_k": i32(0, 5, 9),
}


def arguments(changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "q": np.zeros((2, 5, 4, 64), BF16),
        "k": np.zeros((2, 7, 2, 64), BF16),
        "v": np.zeros((2, 7, 2, 64), BF16),
        **changes,
    }


def told(changes: dict[str, Any]) -> lengths.Told:
    given = arguments(changes)
    operands = {name: view(given.pop(name), name) for name in ("q", "k", "v")}
    return sequence_lengths(operands, lengths.LengthArguments(**given))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cu_seqlens_q": i32(0, 5, 9)},
            r"^q must be \[total, heads, head_dim\] with cu_seqlens_q",
        ),
        (
            {"cu_seqlens_k": i32(0, 5, 9)},
            r"^k must be \[total, heads, head_dim\] with cu_seqlens_k",
        ),
        (
            {"q": np.zeros((9, 4, 64), BF16)},
            r"^q must be \[batch, sequence, heads, head_dim\], .* \(pass cu_seqlens_q\?\)",
        ),
        (
            {"seqused_k": i32(1, 2), "cache_seqlens": i32(1, 2)},
            "^seqused_k and cache_seqlens both tell how many keys count: pass one",
        ),
        ({"cache_counts_new": True}, "^cache_counts_new says what cache_seqlens counts"),
        ({"max_seqlen_q": 5}, "^max_seqlen_q is for sequences that cu_seqlens_q tells"),
        ({"max_seqlen_k": 5}, "^max_seqlen_k is for sequences that cu_seqlens_k tells"),
        (
            {**RAGGED_Q, "max_seqlen_q": 5.0},
            "^max_seqlen_q must be an integer from 0 to .*, got 5.0",
        ),
        (
            {**RAGGED_Q, "max_seqlen_q": True},
            "^max_seqlen_q must be an integer from 0 to .*, got True",
        ),
        ({**RAGGED_Q, "max_seqlen_q": -1}, "^max_seqlen_q must be an integer from 0 to .*, got -1"),
        (
            {**RAGGED_Q, "max_seqlen_q": 4},
            "^max_seqlen_q is 4, but sequence 0 of q has 5",
        ),
        (
            {**RAGGED_Q, "cu_seqlens_q": np.array([0, 5, 9])},
            r"^cu_seqlens_q must be \[batch \+ 1\] of i32, got \[3\] of i64",
        ),
        ({**RAGGED_Q, "cu_seqlens_q": i32()}, r"^cu_seqlens_q must have batch \+ 1 entries"),
        (
            {"seqused_k": np.zeros((2, 1), np.int32)},
            r"^seqused_k must be \[batch\] of i32, got \[2, 1\]",
        ),
        ({"seqused_k": i32(1, 2, 3)}, "^seqused_k has batch 3, q has 2"),
        ({**RAGGED_Q, "cu_seqlens_q": i32(0, 9)}, "^cu_seqlens_q has batch 1, k has 2"),
        (
            {**RAGGED_Q, **RAGGED_K, "cu_seqlens_k": i32(0, 1, 2, 9)},
            "^cu_seqlens_k has batch 3, cu_seqlens_q has 2",
        ),
        (
            {**RAGGED_Q, **RAGGED_K, "cu_seqlens_k": i32(0, 9, 5)},
            "^cu_seqlens_k must not decrease: entry 1 is 9, entry 2 is 5",
        ),
        (
            {**RAGGED_Q, "cu_seqlens_q": i32(0, 5, 10)},
            "^cu_seqlens_q goes from 0 to 10: q has rows 0 to 9",
        ),
        (
            {**RAGGED_Q, "cu_seqlens_q": i32(-1, 5, 9)},
            "^cu_seqlens_q goes from -1 to 9: q has rows 0 to 9",
        ),
        (
            {**RAGGED_Q, **RAGGED_K, "cu_seqlens_k": i32(0, 20, 9)},
            "^max_seqlen_k is 20|^cu_seqlens_k must not decrease",
        ),
        ({"seqused_k": i32(7, 8)}, r"^seqused_k\[1\] is 8: sequence 1 of k has 7"),
        ({"seqused_k": i32(-1, 7)}, r"^seqused_k\[0\] is -1: sequence 0 of k has 7"),
        ({"seqused_q": i32(5, 6)}, r"^seqused_q\[1\] is 6: sequence 1 of q has 5"),
        (
            {"cache_seqlens": i32(2, 3)},
            r"^cache_seqlens\[1\] is 3, 8 with the new tokens: sequence 1 of k has 7",
        ),
        (
            {**RAGGED_Q, **RAGGED_K, "seqused_k": i32(5, 5)},
            r"^seqused_k\[1\] is 5: sequence 1 of k has 4",
        ),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    given = arguments(changes)
    with pytest.raises(SpecError, match=message):
        am.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def test_what_is_told() -> None:
    found = told({**RAGGED_Q, **RAGGED_K, "cu_seqlens_k": i32(1, 4, 4), "seqused_k": i32(2, 0)})
    assert found.kinds == Lengths(ragged_q=True, ragged_k=True, used_k=True)
    assert list(found.arrays) == ["cu_seqlens_q", "cu_seqlens_k", "seqused_k"]
    assert found.scalars == {"max_seqlen_q": 5, "max_seqlen_k": 3}
    assert found.sizes == {"batch": 2, "sq": 5, "sk": 3}


@pytest.mark.parametrize(("side", "ragged"), [("q", RAGGED_Q), ("k", RAGGED_K)])
def test_bounds_are_of_the_positions_that_exist(side: str, ragged: dict[str, Any]) -> None:
    """Padding between packed sequences is no position of one."""
    bound = {f"max_seqlen_{side}": 4}
    with pytest.raises(SpecError, match=f"^max_seqlen_{side} is 4, but sequence 0 of {side} has 5"):
        told({**ragged, **bound})
    found = told({**ragged, **bound, f"seqused_{side}": i32(4, 1)})
    assert found.scalars == bound and found.sizes[f"s{side}"] == 4
    with pytest.raises(SpecError, match=f"^max_seqlen_{side} is 3, but sequence 0 of {side} has 4"):
        told({**ragged, f"max_seqlen_{side}": 3, f"seqused_{side}": i32(4, 1)})


def test_bounds_pass() -> None:
    assert told({"seqused_q": i32(0, 5), "seqused_k": i32(7, 0)}).kinds.tensors == (
        "seqused_q",
        "seqused_k",
    )
    assert told({"cache_seqlens": i32(0, 2)}).kinds == Lengths(cached_k=True)
    counted = told({"cache_seqlens": i32(0, 7), "cache_counts_new": True})
    assert counted.kinds == Lengths(used_k=True) and list(counted.arrays) == ["seqused_k"]
    assert told({}).kinds == Lengths() and told({}).sizes == {"batch": 2, "sq": 5, "sk": 7}


@pytest.mark.parametrize(
    "changes",
    [
        {"seqused_q": i32(5, 0)[::-1], "seqused_k": i32(7, 9, 0, 9)[::2]},
        {"cache_seqlens": i32(2, 9, 9, 0)[::-3]},
        {**RAGGED_Q, **RAGGED_K, "cu_seqlens_q": i32(9, 5, 0)[::-1]},
        {**RAGGED_Q, **RAGGED_K, "cu_seqlens_k": np.repeat(i32(0, 5, 9), 3)[::3]},
        {"seqused_k": np.broadcast_to(i32(3), (2,))},
    ],
)
def test_index_arrays_of_any_strides(changes: dict[str, Any]) -> None:
    found = told(changes)
    for name, array in found.arrays.items():
        assert view(array, name).strides == (1,)
        assert np.array_equal(np.asarray(array), changes[name])
    same = {**changes, **{name: np.array(changes[name]) for name in found.arrays}}
    assert (found.kinds, found.scalars, found.sizes) == (
        told(same).kinds, told(same).scalars, told(same).sizes
    )  # fmt: skip


def test_reversed_arrays_are_checked_as_they_are() -> None:
    with pytest.raises(SpecError, match=r"^seqused_k\[1\] is 8: sequence 1 of k has 7"):
        told({"seqused_k": i32(8, 7)[::-1]})
    with pytest.raises(
        SpecError, match="^cu_seqlens_q must not decrease: entry 0 is 9, entry 1 is 5"
    ):
        told({**RAGGED_Q, **RAGGED_K, "cu_seqlens_q": i32(0, 5, 9)[::-1]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {**RAGGED_Q, "max_seqlen_q": 2**31},
            "^max_seqlen_q must be an integer from 0 to 2147483647",
        ),
        ({**RAGGED_Q, "max_seqlen_q": "5"}, "^max_seqlen_q must be an integer .*, got '5'"),
        (
            {**RAGGED_Q, "max_seqlen_q": np.ones(1, int)},
            "^max_seqlen_q must be an integer .* array",
        ),
        (
            {"cache_seqlens": i32(1, 1), "cache_counts_new": 1},
            "^cache_counts_new must be True or Fa",
        ),
        ({"cache_seqlens": 3}, "^cache_seqlens must be a numpy array or have"),
        ({"seqused_k": np.ma.array([1, 2], np.int32)}, "^seqused_k (is a masked array|.* dtype)"),
        ({"seqused_k": [1, 2]}, "^seqused_k must be a numpy array or have"),
        (
            {"seqused_k": np.ones(2, np.float32)},
            r"^seqused_k must be \[batch\] of i32, got .* of f32",
        ),
        ({"seqused_k": np.ones(2, bool)}, r"^seqused_k must be \[batch\] of i32, got .* of bool"),
    ],
)
def test_numbers_that_are_none(changes: dict[str, Any], message: str) -> None:
    test_refused(changes, message)


@pytest.mark.parametrize("longest", [5, np.int64(5), np.array(5), np.uint8(5)])
def test_bounds_of_any_library(longest: Any) -> None:
    assert told({**RAGGED_Q, **RAGGED_K, "max_seqlen_q": longest}).scalars["max_seqlen_q"] == 5


class OnGpu:
    """Stands for an array on a GPU: its contents are read by `cpu()` only."""

    def __init__(self, numbers: npt.NDArray[np.int32]):
        self.numbers = numbers

    def cpu(self) -> npt.NDArray[np.int32]:
        return self.numbers


def test_arrays_on_a_gpu_are_read_in_debug_mode_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(value: Any, name: str) -> Any:
        if not isinstance(value, OnGpu):
            return view(value, name)
        host = view(value.numbers, name)
        there = {"device": "cuda", "has_memory": True}
        return types.SimpleNamespace(dtype=host.dtype, shape=host.shape, **there)

    def with_settings(**changes: Any) -> None:
        settings = env.read({f"ATTN_MLIR_{key.upper()}": value for key, value in changes.items()})
        monkeypatch.setattr(env, "settings", lambda: settings)

    for module in (array_checks, lengths, arrays):
        monkeypatch.setattr(module, "view", seen)
    wrong = {**RAGGED_Q, "cu_seqlens_q": OnGpu(i32(0, 50, 9))}
    with_settings()
    assert told({**wrong, "max_seqlen_q": 50}).scalars == {"max_seqlen_q": 50}
    with pytest.raises(SpecError, match="^max_seqlen_q must be given where cu_seqlens_q is on a"):
        told(wrong)
    with_settings(check_lengths="1")
    with pytest.raises(SpecError, match="^cu_seqlens_q must not decrease"):
        told({**wrong, "max_seqlen_q": 50})
