"""`attention`: bad operands are refused before anything is compiled, results come in q's kind."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api import plan as plans
from attn_mlir.arrays import output_like
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import bytes_at, view
from attn_mlir.schedules.policy.tiling import query_tiles_for
from attn_mlir.validation.numerics.operands import Foreign

pytestmark = pytest.mark.usefixtures("no_compiler")

BF16 = ml_dtypes.bfloat16


def call(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "q": np.zeros((2, 5, 4, 64), BF16),
        "k": np.zeros((2, 7, 2, 64), BF16),
        "v": np.zeros((2, 7, 2, 64), BF16),
    }
    arguments.update(changes)
    q, k, v = (arguments.pop(name) for name in "qkv")
    return am.attention(q, k, v, **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": np.zeros((5, 4, 64), BF16)}, r"^q must be \[batch, sequence, heads, head_dim\]"),
        (
            {"q": np.zeros((2, 5, 4, 64), np.float32)},
            "^q has dtype f32, allowed are bf16, f16, e4m3, e5m2",
        ),
        ({"k": np.zeros((2, 7, 2, 64), np.float16)}, "^k is f16, q is bf16"),
        ({"k": np.zeros((3, 7, 2, 64), BF16)}, "^k has batch 3, q has 2"),
        ({"num_splits": -1}, r"^num_splits must be an integer from 0 to 256 .*got -1"),
        ({"num_splits": 257}, "^num_splits must be an integer from 0 to 256 .*got 257"),
        ({"num_splits": 2.0}, "^num_splits must be an integer from 0 to 256 .*got 2.0"),
        ({"num_splits": True}, "^num_splits must be an integer from 0 to 256 .*got True"),
        (
            {"num_splits": 2, "v": np.zeros((2, 7, 2, 200), BF16)},
            "^num_splits 2 needs v_head_dim of at most 192, got 200",
        ),
        ({"k": np.zeros((2, 7, 2, 128), BF16)}, "^k has head_dim 128, q has 64"),
        ({"v": np.zeros((2, 8, 2, 64), BF16)}, "^k and v must agree but for head_dim"),
        ({"v": np.zeros((2, 7, 1, 64), BF16)}, "^k and v must agree but for head_dim"),
        (
            {"k": np.zeros((2, 7, 3, 64), BF16), "v": np.zeros((2, 7, 3, 64), BF16)},
            "^kv_heads must divide heads, got heads = 4 and kv_heads = 3",
        ),
        ({"q": np.zeros((2, 5, 0, 64), BF16)}, r"^q has 0 heads: shape \[2, 5, 0, 64\]"),
        (
            {"q": np.zeros((2, 5, 4, 0), BF16), "k": np.zeros((2, 7, 2, 0), BF16)},
            "^q has 0 elements",
        ),
        (
            {"k": np.zeros((2, 7, 0, 64), BF16), "v": np.zeros((2, 7, 0, 64), BF16)},
            r"^k has 0 heads: shape \[2, 7, 0, 64\]",
        ),
        (
            {name: np.zeros((2, 7, 2, 84), BF16) for name in "qkv"},
            r"^head_dim 84 has no kernel: supported are multiples of 8 .* \(pad to 88\?\)",
        ),
        ({"v": None}, "^v is missing: only a cache in the place of k holds the values as well"),
        ({"mask": "causal"}, "^mask 'causal' has no kernel"),
        (
            {"scale": 0.0},
            r"^scale must be finite and greater than 0, .* from 1.175e-38 to 2e\+38, got 0.0",
        ),
        *(
            ({"scale": scale}, "^scale must be (a number|finite)")
            for scale in (
                10**400,
                "1",
                b"1",
                True,
                np.True_,
                1j,
                np.ones(1),
                1e-38,
                2.1e38,
                object(),
            )
        ),
        *(
            ({name: value}, f"^{name} must be")
            for name in (
                "query_tiles",
                "num_splits",
                "tile_order",
                "return_lse",
                "cache_counts_new",
            )
            for value in (1.0, "1", [], (1,), np.ones(2), 2 + 0j, b"1", object())
        ),
        ({"query_tiles": True}, "^query_tiles must be 1, 2 or None, got True"),
        (
            {"out": np.zeros((2, 5, 4, 64), np.float64)},
            "^out has dtype f64, allowed are bf16, f16, f32",
        ),
        ({"out": np.zeros((2, 5, 4, 72), BF16)}, r"^out must have shape \[2, 5, 4, 64\], got"),
        (
            {"out": np.zeros((2, 5, 64, 4), BF16).transpose(0, 1, 3, 2)},
            "^out .*axis 3 must be dense",
        ),
        ({"out": np.zeros((2, 5, 4, 64), BF16), "out_dtype": "f32"}, "^out must be f32, got bf16"),
        (
            {"out": np.broadcast_to(np.zeros(64, BF16), (2, 5, 4, 64))},
            "^out is an output, but its .* read-only",
        ),
        ({"out": [0]}, "^out must be a numpy array or have"),
        ({"out": np.zeros((5, 4, 64), BF16), "num_splits": 2}, "^out must have shape"),
        ({"scale": -1.0}, "^scale must be finite and greater than 0"),
        ({"scale": float("nan")}, "^scale must be finite"),
        ({"scale": float("inf")}, "^scale must be finite"),
        ({"scale": "1/8 of it"}, "^scale must be a number"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call(**changes)


def reads(array: Any) -> Any:
    """A score modifier that captures an array [2, n]."""
    return lambda score, b, h, q, k: score + array[h, q]


@pytest.mark.parametrize("shape", [(2, 0), (0, 4), (0, 0)])
def test_captured_arrays_without_elements(shape: tuple[int, int]) -> None:
    """An index cannot be moved into an array that has no element."""
    with pytest.raises(SpecError, match=r"^array is captured and indexed, but has no element: sh"):
        call(score_mod=reads(np.zeros(shape, np.float32)))


class OnGpu:
    """Says where it is; nobody may read it."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "<f4"):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (0x1000, False),
            "version": 3,
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("array", {"score_mod": reads(OnGpu((2, 9)))}),
        ("sinks", {"sinks": OnGpu((4,))}),
        ("seqused_k", {"seqused_k": OnGpu((2,), "<i4")}),
        ("cache_seqlens", {"cache_seqlens": OnGpu((2,), "<i4")}),
    ],
)
def test_arrays_of_another_device(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found when the kernel is bound, so after it was compiled."""
    monkeypatch.setattr(plans, "compile", am.compile)
    with pytest.raises(SpecError, match=rf"on one device, got q on cpu, .*{name} on cuda:0"):
        call(**options, device="emulator")


@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_output_in_numpy(dtype: Any) -> None:
    q = np.zeros((2, 5, 4, 64), dtype)
    seen = view(q, "q")
    o = output_like(q, seen, (2, 5, 4, 64), seen.dtype).finish()
    lse = output_like(q, seen, (2, 4, 5), "f32").finish()
    assert (type(o), o.dtype, o.shape) == (np.ndarray, np.dtype(dtype), (2, 5, 4, 64))
    assert (lse.dtype, lse.shape) == (np.float32, (2, 4, 5))


def test_output_through_dlpack() -> None:
    q = Foreign(np.zeros((2, 5, 4, 64), np.float16))
    made = output_like(q, view(q, "q"), (2, 4, 5), "f32")
    seen = view(made.tensor, "lse")
    bytes_at(seen.address, seen.span_bytes).view(np.float32)[:] = 3.0
    lse = made.finish()
    assert lse.shape == (2, 4, 5) and lse.dtype == np.float32 and (lse == 3.0).all()


def test_library_that_takes_no_dlpack() -> None:
    class Silent(Foreign):
        __array_namespace__ = None  # type: ignore[assignment]

    q = Silent(np.zeros((2, 5, 4, 64), np.float16))
    with pytest.raises(SpecError, match="no from_dlpack"):
        output_like(q, view(q, "q"), (2, 4, 5), "f32")


@pytest.mark.parametrize(
    ("sq", "group", "tiles"),
    [
        (1, 1, 1), (128, 1, 1), (129, 1, None),
        (16, 8, 1), (17, 8, None), (1, 128, 1), (2, 128, None),
        (128, 3, 1), (129, 3, None), (1, 256, 1),  # heads that share no tile
    ],
)  # fmt: skip
def test_short_queries_take_one_query_tile(sq: int, group: int, tiles: int | None) -> None:
    assert query_tiles_for(target_named("sm_100a"), sq, group) == tiles


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_tiles": 3}, "^query_tiles must be 1, 2 or None, got 3"),
        (
            {"tile_order": "zigzag"},
            "^tile_order must be one of single, .*counter or None, got 'zigzag'",
        ),
    ],
)
def test_tiles_that_there_are_not(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call(**changes)
