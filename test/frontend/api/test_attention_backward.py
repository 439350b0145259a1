"""`attention_backward`: the plan of a call, what it refuses by name, and its formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api.attention_backward import attention_backward
from attn_mlir.api.plan import Plan
from attn_mlir.api.planners import only_planned
from attn_mlir.errors import SpecError
from attn_mlir.reference import attention_backward_f64, attention_f64
from attn_mlir.validation.numerics.operands import i32

BF16: Any = ml_dtypes.bfloat16
ON = {"device": am.EmulatorDevice(target="sm_90a")}
planned = only_planned(attention_backward)


def normal(*shape: int, dtype: Any = BF16, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def given(sq: int = 5, sk: int = 7, head_dim: int = 64, v_head_dim: int = 64) -> dict[str, Any]:
    return {
        "q": normal(2, sq, 4, head_dim),
        "k": normal(2, sk, 2, head_dim),
        "v": normal(2, sk, 2, v_head_dim),
        "o": normal(2, sq, 4, v_head_dim),
        "lse": normal(2, 4, sq, dtype=np.float32),
        "do": normal(2, sq, 4, v_head_dim, seed=1),
    }


def ragged() -> dict[str, Any]:
    dense = {name: x.reshape(-1, *x.shape[2:]) for name, x in given().items() if name != "lse"}
    lengths = {"cu_seqlens_q": i32(0, 3, 10), "cu_seqlens_k": i32(0, 7, 14)}
    return {**dense, "lse": normal(4, 10, dtype=np.float32), **lengths}


def test_a_call_is_four_launches() -> None:
    plan = planned(**given(), mask=am.causal(), dlse=given()["lse"].copy(), **ON)
    assert str(plan).splitlines() == [
        "4 kernels for sm_90a, 10432 bytes of workspace",
        "  1. attn_delta_dlse_bf16_h4_d64(o, do, lse, dlse, delta)",
        "  2. attn_zero_rows_h4_d64(accum=dq_accum)",
        "  3. attn_gradients_causal_bf16_h4k2_d64_in_turn"
        "(q, k, v, do, lse, delta, dk, dv, dq_accum, turns)",
        "  4. attn_round_rows_bf16_h4_d64(accum=dq_accum, rounded=dq)",
        "  result     dq           bf16 [2, 5, 4, 64]            5120 bytes",
        "  result     dk           bf16 [2, 7, 2, 64]            3584 bytes",
        "  result     dv           bf16 [2, 7, 2, 64]            3584 bytes",
        "  workspace  delta        f32  [2, 4, 5]                160 bytes",
        "  workspace  dq_accum     f32  [2, 5, 4, 64]            10240 bytes",
        "  workspace  turns        i32  [2, 4, 1]                32 bytes",
    ]


@pytest.mark.parametrize(
    ("sizes", "changed", "is_fused"),
    [
        ((64, 64), {}, True),
        ((96, 96), {}, True),
        ((128, 64), {}, True),
        ((120, 128), {}, True),
        ((112, 112), {}, False),
        ((192, 128), {}, False),
        ((64, 64), {"deterministic": True}, True),
        ((64, 64), {"device": am.EmulatorDevice(target="sm_100a")}, False),
        ((64, 64), {"score_mod": am.mods.softcap(5.0)}, False),
        ((64, 64), {"mask_mod": lambda b, h, q, k: q != k}, False),
        ((64, 64), {"sinks": normal(4, dtype=np.float32)}, True),
        ((64, 64), {"sinks": normal(4, dtype=np.float32), "dlse": normal(2, 4, 5, dtype=np.float32)}, False),
    ],
)  # fmt: skip
def test_which_calls_one_kernel_takes(
    sizes: tuple[int, int], changed: dict[str, Any], is_fused: bool
) -> None:
    options = {**ON, "deterministic": False, **changed}
    plan = planned(**given(5, 7, *sizes), **options)
    names = [type(step.request).__name__ for step in plan.steps]
    gradients = [x for x in names if x.endswith("GradientsSpec")]
    fused = ["ZeroRowsSpec", "GradientsSpec", "RoundRowsSpec"]
    assert names[1:4] == fused if is_fused else "ZeroRowsSpec" not in names
    if is_fused:
        assert plan.steps[2].request.in_turn is options["deterministic"]
    assert gradients == (["GradientsSpec"] if is_fused else ["KvGradientsSpec", "QGradientsSpec"])


def test_rows_of_a_ragged_batch_are_one_sequence_for_delta() -> None:
    first, *others = planned(**ragged(), **ON).steps
    views = {name: first.arguments[name] for name in ("o", "do", "lse", "delta")}
    shapes: dict[str, Any] = {name: x.shape for name, x in views.items()}  # type: ignore[attr-defined]
    assert shapes["o"] == shapes["do"] == (1, 10, 4, 64)
    assert shapes["lse"] == shapes["delta"] == (1, 4, 10)
    assert others[1].arguments["max_seqlen_q"] == 7


@pytest.mark.parametrize(("given_target", "target"), [(None, "sm_100a"), ("sm_90a", "sm_90a")])
def test_every_target_has_kernels(given_target: str | None, target: str) -> None:
    """The emulator runs code for every chip, and takes the default one where none is named."""
    plan = planned(**given(), device=am.EmulatorDevice(target=given_target))
    assert plan.target == target


def function(*_: Any) -> Any:
    """A modifier."""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"score_mod": function}, "function returns nothing"),
        ({"mask_mod": lambda b, h, q, k: q}, "returns an integer, a mask_mod returns a"),
        ({"block_mask": am.block_mask(lambda b, h, q, k: q >= k, 2, 4, 6, 7)}, "block_mask is for sq"),
        ({"sinks": np.ones(3, np.float32)}, r"sinks must be \[4\] of f32, bf16 or f16"),
        ({"deterministic": 1}, "deterministic must be"),
        ({"dq_dtype": "f32"}, "dq_dtype 'f32' has no kernel: supported are bf16"),
        ({"k": am.ContiguousKV(normal(2, 7, 2, 64), normal(2, 7, 2, 64), None)}, "k of a Contig"),
        ({"q": normal(2, 5, 4, 64, dtype=np.float32)}, "q has dtype f32"),
        ({"q": normal(2, 5, 4, 64, dtype=ml_dtypes.float8_e4m3fn)}, "k is bf16, q is e4m3"),
        ({"k": normal(2, 7, 2, 64).astype(ml_dtypes.float8_e4m3fn)}, "v is bf16, k is e4m3"),
        ({"o": normal(2, 5, 4, 32)}, r"o must be \[2, 5, 4, 64\] of bf16 beside this q, got"),
        ({"do": normal(2, 5, 4, 64, dtype=np.float16)}, "do must be .* of bf16 .*, got .* of f16"),
        ({"lse": normal(2, 5, 4, dtype=np.float32)}, r"lse must be \[2, 4, 5\] of f32 beside this"),
        ({"dlse": normal(2, 4, 5)}, "dlse must be .* of f32 beside this q, got .* of bf16"),
        ({"lse": None}, "lse must be a numpy array or"),
        ({"do": normal(2, 4, 5, 64).transpose(0, 2, 1, 3)[..., ::-1]}, "do has strides"),
        ({"mask": 3}, "mask 3 has no kernel"),
        ({"scale": -1.0}, "scale must be"),
        ({"device": "tpu"}, "tpu"),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_refused_by_name(changed: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(**{**given(), **ON, **changed})


def test_heads_of_the_table_have_kernels() -> None:
    for sizes in ((136, 64), (64, 136), (192, 128), (200, 120), (256, 256)):
        planned(**given(5, 7, *sizes), **ON)


def test_large_heads_are_refused_by_the_policy() -> None:
    on_tensor_memory = {"device": am.EmulatorDevice(target="sm_100a")}
    with pytest.raises(SpecError, match="head_dim must be at most 384 with v_head_dim, got 200"):
        planned(**given(5, 7, 200, 192), **on_tensor_memory)


def test_a_plan_runs_and_a_call_has_names() -> None:
    """Of operands in f16 as well, whose gradients are of it, and of torch's tensors."""
    torch = pytest.importorskip("torch")
    arrays = {n: x if n == "lse" else x.astype(np.float16) for n, x in given().items()}
    found = am.attention_backward(**arrays, **ON)
    assert isinstance(found, am.Gradients) and found[3:] == (None, {})
    assert [x.dtype for x in found[:3]] == [np.float16] * 3
    plan = planned(**arrays, **ON)
    assert isinstance(plan, Plan)
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    for others in (plan.run(), am.attention_backward(**tensors, **ON)[:3]):
        for one, other in zip(found[:3], others, strict=True):
            assert np.array_equal(one, np.asarray(other))


@pytest.mark.parametrize(("sq", "sk"), [(0, 3), (3, 0)])
def test_sequences_without_queries_or_keys(sq: int, sk: int) -> None:
    arrays = {**given(sq, sk), "lse": np.full((2, 4, sq), -np.inf, np.float32)}
    found = am.attention_backward(**arrays, **ON)
    assert not any(np.asarray(x, np.float32).any() for x in found[:3])


BIAS, TABLE = normal(2, 4, 3, dtype=np.float64), normal(5, dtype=np.float64)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "modified": {
        "score_mod": lambda s, b, h, q, k: np.tanh(s * TABLE[q - k]) * BIAS[h, q, k],
        "mask_mod": lambda b, h, q, k: q + k != 3,
    },
    "sinks": {"sinks": normal(2, dtype=np.float64)},
}


@pytest.mark.parametrize("named", OPTIONS)
def test_the_formula_is_the_derivative(named: str) -> None:
    """Against central differences, with queries that see no key and a gradient of the LSE."""
    shapes = {"q": (1, 4, 2, 3), "k": (1, 3, 1, 3), "v": (1, 3, 1, 2)}
    operands = {name: normal(*shape, dtype=np.float64) for name, shape in shapes.items()}
    do, dlse = normal(1, 4, 2, 2, dtype=np.float64), normal(1, 2, 4, dtype=np.float64)
    options: dict[str, Any] = {"mask": am.causal(), "scale": 0.7, **OPTIONS[named]}

    def loss() -> float:
        made = attention_f64(**operands, **options)
        return float(
            (made.o * do).sum() + dlse[np.isfinite(made.lse)] @ made.lse[np.isfinite(made.lse)]
        )

    made = attention_f64(**operands, **options)
    assert np.isinf(made.lse).any()
    captured = {"BIAS": BIAS, "TABLE": TABLE} if named == "modified" else {}
    results = {"o": made.o, "lse": made.lse, "do": do, "dlse": dlse}
    found = attention_backward_f64(**operands, **results, **options, captured=list(captured))
    gradients = {**dict(zip(operands, found, strict=False)), **found.captured}
    gradients |= {"sinks": found.dsinks} if "sinks" in options else {}
    inputs = {**operands, **captured, **{x: options[x] for x in gradients if x == "sinks"}}
    step = 1e-6
    for name, x in inputs.items():
        for place in np.ndindex(x.shape):
            values, kept = list[float](), x[place]
            for by in (step, -step):
                x[place] = kept + by  # the array that the modifier captures
                values.append(loss())
            x[place] = kept
            slope = (values[0] - values[1]) / (2 * step)
            assert slope == pytest.approx(gradients[name][place], abs=1e-8), name


def test_the_formula_refuses_what_does_not_belong() -> None:
    arrays = given()
    with pytest.raises(SpecError, match=r"lse must be \[2, 4, 5\], got \[2, 5, 4\]"):
        attention_backward_f64(**{**arrays, "lse": arrays["lse"].transpose(0, 2, 1)})
