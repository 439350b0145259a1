"""`mla_backward`: the plan of a call, refused arguments, and the formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api.latent.mla_backward import mla_backward
from attn_mlir.api.planners import only_planned
from attn_mlir.errors import SpecError
from attn_mlir.reference import mla_backward_f64, mla_f64
from attn_mlir.validation.numerics.operands import i32

BF16: Any = ml_dtypes.bfloat16
ON: dict[str, Any] = {"device": am.EmulatorDevice(target="sm_90a"), "scale": 0.1}
planned = only_planned(mla_backward)


def normal(*shape: int, dtype: Any = BF16, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def given(sq: int = 5, sk: int = 7) -> dict[str, Any]:
    return {
        "q_nope": normal(2, sq, 4, 64),
        "q_rope": normal(2, sq, 4, 16),
        "k_nope": normal(2, sk, 2, 64),
        "k_rope": normal(2, sk, 1, 16),
        "v": normal(2, sk, 2, 40),
        "o": normal(2, sq, 4, 40),
        "lse": normal(2, 4, sq, dtype=np.float32),
        "do": normal(2, sq, 4, 40, seed=1),
    }


def test_a_call_is_four_launches() -> None:
    """The parts of dk_rope are stored head by head, so that the first axis is summed."""
    plan = planned(**given(), mask=am.causal(), **ON)
    assert [" ".join(line.split()) for line in str(plan).splitlines()] == [
        "4 kernels for sm_90a, 1952 bytes of workspace",
        "1. attn_delta_bf16_h4_d40(o, do, lse, delta)",
        "2. attn_mla_kv_gradients_causal_bf16_h4k2_d64r16v40"
        "(q_nope, q_rope, k_nope, k_rope, v, do, lse, delta, dk_nope, dk_rope_parts, dv)",
        "3. attn_mla_q_gradients_causal_bf16_h4k2_d64r16v40"
        "(q_nope, q_rope, k_nope, k_rope, v, do, lse, delta, dq_nope, dq_rope)",
        "4. attn_sum_parts_bf16(parts=dk_rope_parts, sums=dk_rope)",
        "result dq_nope bf16 [2, 5, 4, 64] 5120 bytes",
        "result dq_rope bf16 [2, 5, 4, 16] 1280 bytes",
        "result dk_nope bf16 [2, 7, 2, 64] 3584 bytes",
        "result dk_rope bf16 [2, 7, 1, 16] 448 bytes",
        "result dv bf16 [2, 7, 2, 40] 2240 bytes",
        "workspace delta f32 [2, 4, 5] 160 bytes",
        "workspace dk_rope_parts f32 [2, 2, 7, 16] 1792 bytes",
    ]


def test_parts_of_rows_of_no_sequence_are_0() -> None:
    plan = planned(**given(), seqused_k=i32(3, 7), wanted=["k_rope"], **ON)
    assert [x.request.operation for x in plan.steps] == [
        "delta",
        "zero_rows",
        "mla_kv_gradients",
        "sum_parts",
    ]
    assert [x.name for x in plan.results] == ["dk_rope"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k_rope": am.ContiguousKV(normal(2, 7, 1, 576), None, None)}, "k_rope of a ContiguousKV has no kernel"),
        ({"q_nope": normal(2, 5, 4, 64, dtype=np.float32)}, "q_nope has dtype f32"),
        ({"v": normal(2, 7, 2, 40, dtype=np.float16)}, "v is f16, q_nope is bf16: all must be the same"),
        ({"q_rope": normal(2, 5, 4, 32)}, r"k_rope must be \[2, 7, 1, 32\]"),
        ({"q_rope": normal(2, 5, 4, 24), "k_rope": normal(2, 7, 1, 24)}, "rope_dim 24"),
        ({"o": normal(2, 5, 4, 64)}, r"o must be \[2, 5, 4, 40\] of bf16 beside this q_nope, got"),
        ({"lse": normal(2, 5, 4, dtype=np.float32)}, r"lse must be \[2, 4, 5\] of f32"),
        ({"do": normal(2, 5, 4, 80)[..., ::2]}, "do has strides"),
        ({"scale": None}, "scale must be a number"),
        ({"mask": 3}, "mask 3"),
        ({"wanted": ["q"]}, "wanted must be a tuple of some of q_nope, q_rope, k_nope, k_rope, v"),
        ({"wanted": []}, "wanted names nothing"),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_refused_by_name(changed: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(**{**given(), **ON, **changed})


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_heads_of_models_have_kernels(target: str) -> None:
    operands = {
        **dict.fromkeys(("q_nope", "k_nope", "v", "o", "do"), normal(1, 5, 2, 128)),
        "q_rope": normal(1, 5, 2, 64),
        "k_rope": normal(1, 5, 1, 64),
        "lse": normal(1, 2, 5, dtype=np.float32),
    }
    options = {**ON, "device": am.EmulatorDevice(target=target)}
    assert planned(**operands, **options).target == target
    wide = {**operands, **dict.fromkeys(("v", "o", "do"), normal(1, 5, 2, 256))}
    with pytest.raises(
        SpecError, match=r"nope_dim \+ rope_dim must be at most 3.. with v_head_dim"
    ):
        planned(**wide, **options)


@pytest.mark.parametrize(("sq", "sk"), [(0, 3), (3, 0)])
def test_sequences_without_queries_or_keys(sq: int, sk: int) -> None:
    arrays = {**given(sq, sk), "lse": np.full((2, 4, sq), -np.inf, np.float32)}
    found = am.mla_backward(**arrays, **ON)
    assert isinstance(found, am.MlaGradients)
    assert not any(np.asarray(x, np.float32).any() for x in found)


def test_the_formula_is_the_derivative() -> None:
    """Against central differences, with queries that see no key and a gradient of the LSE."""
    shapes = {
        "q_nope": (1, 4, 2, 2),
        "q_rope": (1, 4, 2, 1),
        "k_nope": (1, 3, 2, 2),
        "k_rope": (1, 3, 1, 1),
    }
    operands = {
        name: normal(*x, dtype=np.float64) for name, x in {**shapes, "v": (1, 3, 2, 2)}.items()
    }
    do, dlse = normal(1, 4, 2, 2, dtype=np.float64), normal(1, 2, 4, dtype=np.float64)
    options: dict[str, Any] = {"mask": am.causal(), "scale": 0.7}

    def loss() -> float:
        made = mla_f64(*operands.values(), **options)
        seen = np.isfinite(made.lse)
        return float((made.o * do).sum() + dlse[seen] @ made.lse[seen])

    made = mla_f64(*operands.values(), **options)
    found = mla_backward_f64(*operands.values(), made.o, made.lse, do, dlse=dlse, **options)
    for array, gradient in zip(operands.values(), found, strict=True):
        for place in np.ndindex(array.shape):
            value = array[place]
            ends: list[float] = []
            for step in (1e-6, -1e-6):
                array[place] = value + step
                ends.append(loss())
            array[place] = value
            assert abs((ends[0] - ends[1]) / 2e-6 - gradient[place]) < 1e-7
