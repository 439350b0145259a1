"""Formulas of the kernels with programs: right numbers pass, wrong ones fail, gradients are differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from attn_mlir.validation.conformance.cases import case_named
from attn_mlir.validation.conformance.formulas import FORMULAS, TRUTH, Array, Arrays, Sizes
from attn_mlir.validation.conformance.judging import judge, operands
from attn_mlir.validation.conformance.kernels import KERNELS, Kernel

STEP = 1e-5  # of a difference quotient in float64

FIRST = {kernel.program: kernel for kernel in reversed(KERNELS)} | {
    kernel.program: kernel
    for kernel in KERNELS
    if kernel.name
    in ("fa4-mla-decode", "fa4-backward-d64", "fi-prefill-paged", "triton-sm90-attention-backward")
}  # one kernel per program, the smallest of those that take time
PLACES = {"quack.norm_backward": ("dw", "db"), "triton.norm_backward": ("dw", "db")}


def test_every_program_has_a_formula_and_every_formula_a_kernel() -> None:
    assert FIRST.keys() == FORMULAS.keys()


def solved(kernel: Kernel) -> Arrays:
    """Operands with the right outputs."""
    arrays = operands(kernel)
    right = FORMULAS[kernel.program].outputs(kernel.sizes, operands(kernel), TRUTH)
    if kernel.program == "quack.topk":
        arrays["places"][:] = np.argsort(
            -arrays["x"].astype(np.float64), axis=1, kind="stable"
        )[:, : kernel.sizes["count"]]  # fmt: skip
        arrays["values"][:] = right["values"]
        return arrays
    for name, value in right.items():
        whole = arrays[name]
        if name in PLACES.get(kernel.program, ()):
            whole[:] = 0
            whole[0] = value
        else:
            kept = np.isnan(value) if value.dtype.kind == "f" else np.zeros(value.shape, np.bool_)
            whole[~kept] = value[~kept].astype(whole.dtype)
    return arrays


@pytest.mark.parametrize("program", FIRST)
def test_right_numbers_pass_and_a_wrong_element_fails(program: str) -> None:
    kernel = FIRST[program]
    arrays = solved(kernel)
    verdicts = judge(kernel, arrays)
    assert all(verdict.ok for verdict in verdicts), [str(v) for v in verdicts]
    assert not all(verdict.ok for verdict in judge(kernel, operands(kernel)))
    names = FORMULAS[program].outputs(kernel.sizes, operands(kernel), TRUTH).keys()
    for name in names & arrays.keys():
        whole = arrays[name]
        place = tuple(np.random.default_rng(1).integers(n) for n in whole.shape)
        kept = whole[place]
        top = np.nanmax(np.abs(whole.astype(np.float64)))
        whole[place] = 0.5 if np.isnan(float(kept)) else float(kept) + top + 1
        assert sum(verdict.wrong for verdict in judge(kernel, arrays)) > 0, name
        whole[place] = kept


def test_rows_that_nothing_may_touch() -> None:
    kernel = case_named("fi-prefill")
    assert isinstance(kernel, Kernel)
    arrays = solved(kernel)
    padding = max(kernel.sizes["queries"])
    assert np.isnan(arrays["o"][:padding].astype(np.float32)).all()
    arrays["o"][padding - 1, 0, 0] = 0
    assert [verdict.wrong for verdict in judge(kernel, arrays)] == [1, 0]


def attention_by_row(
    q: Array, k: Array, v: Array, row: int, *, is_causal: bool, scale: float
) -> tuple[Array, float]:
    """One query row and head of [rows, dim] operands."""
    last = row + len(k) - len(q) if is_causal else len(k) - 1
    scores = k[: last + 1] @ q[row] * scale
    lse = float(np.logaddexp.reduce(scores))
    return np.exp(scores - lse) @ v[: last + 1], lse


@pytest.mark.parametrize("form", ["packed", "paged", "latent"])
def test_attention_of_sequences_by_row(form: str) -> None:
    queries, keys = [3, 1, 5], [4, 9, 7]
    sizes: Sizes = {
        "queries": queries if form == "packed" else [3] * 3,
        "keys": keys,
        "heads": 4,
        "kv_heads": 2,
        "dim": 8,
        "is_causal": True,
        "is_packed": form == "packed",
        "page": {"paged": 2, "latent": 4}.get(form, 0),
        "latent": 16 if form == "latent" else 0,
    }
    formula = FORMULAS["fa4.forward"]
    given = formula.operands(sizes, np.random.default_rng(2))
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    right = formula.outputs(sizes, given, TRUTH)
    starts = np.cumsum([0, *queries]), np.cumsum([0, *keys])
    for at, (sq, sk) in enumerate(zip(sizes["queries"], keys, strict=True)):
        if form == "packed":
            q, o = (x[starts[0][at] :][:sq] for x in (wide["q"], right["o"]))
            lse = right["lse"][:, starts[0][at] :][:, :sq]
            k, v = (wide[name][starts[1][at] :][:sk] for name in "kv")
        else:
            q, o = wide["q"][at], right["o"][at]
            lse = right["lse"][at].T if form == "latent" else right["lse"][at]
            k, v = (
                np.concatenate([wide[name][page] for page in given["page_table"][at]])[:sk]
                for name in "kv"
            )
        scale = 8**-0.5
        values = v
        if form == "latent":
            q, k = (np.concatenate(pair, axis=2) for pair in ((q, wide["qv"][at]), (k, v)))
            scale = 24**-0.5
        for head in range(4):
            for row in range(sq):
                expected, total = attention_by_row(
                    q[:, head], k[:, head // 2], values[:, head // 2], row, is_causal=True, scale=scale
                )  # fmt: skip
                np.testing.assert_allclose(o[row, head], expected, atol=1e-12)
                np.testing.assert_allclose(lse[head, row], total, atol=1e-12)


def slopes(function: Callable[[Array], float], x: Array) -> Array:
    """Difference quotients of a function at x, one per element."""
    result = np.empty_like(x)
    for place in np.ndindex(x.shape):
        ends: list[float] = []
        for step in (STEP, -STEP):
            moved = x.copy()
            moved[place] += step
            ends.append(function(moved))
        result[place] = (ends[0] - ends[1]) / (2 * STEP)
    return result


def test_the_backward_of_attention_is_its_slope() -> None:
    sizes: Sizes = {"sq": 4, "sk": 5, "dim": 6, "dim_v": 3, "kv_heads": 1, "is_causal": True}
    backward, forward = FORMULAS["fa4.backward"], FORMULAS["fa4.forward"]
    given = backward.operands(sizes, np.random.default_rng(3))
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    plain = {**sizes, "queries": [4], "keys": [5], "heads": 2}
    made = forward.outputs(plain, wide, TRUTH)
    right = backward.outputs(sizes, {**wide, **made}, TRUTH)
    for name in "qkv":
        numeric = slopes(
            lambda x, name=name: float(
                (forward.outputs(plain, {**wide, name: x}, TRUTH)["o"] * wide["do"]).sum()
            ),
            wide[name],
        )
        np.testing.assert_allclose(right[f"d{name}"], numeric, atol=1e-7)


@pytest.mark.parametrize("is_layer", [False, True])
def test_the_backward_of_a_norm_is_its_slope(is_layer: bool) -> None:
    sizes: Sizes = {"rows": 3, "columns": 5, "parts": 1, "is_layer": is_layer}
    backward, forward = FORMULAS["quack.norm_backward"], FORMULAS["quack.norm"]
    given = backward.operands(sizes, np.random.default_rng(4))
    wide = {name: x.astype(np.float64) for name, x in given.items()} | {"bias": np.zeros(5)}
    made = forward.outputs(sizes, wide, TRUTH)
    right = backward.outputs(sizes, {**wide, **made}, TRUTH)
    for name, made_name in (("x", "dx"), ("weight", "dw"), ("bias", "db")):
        numeric = slopes(
            lambda x, name=name: float(
                (forward.outputs(sizes, {**wide, name: x}, TRUTH)["y"] * wide["dy"]).sum()
            ),
            wide[name],
        )
        np.testing.assert_allclose(right[made_name], numeric, atol=1e-6)


def test_the_backward_of_softmax_and_cross_entropy_are_their_slopes() -> None:
    random = np.random.default_rng(5)
    x, dy = random.standard_normal((3, 6)), random.standard_normal((3, 6))
    softmax = FORMULAS["quack.softmax"]
    y = softmax.outputs({}, {"x": x}, TRUTH)["y"]
    right = FORMULAS["quack.softmax_backward"].outputs({}, {"y": y, "dy": dy}, TRUTH)["dx"]
    numeric = slopes(lambda x: float((softmax.outputs({}, {"x": x}, TRUTH)["y"] * dy).sum()), x)
    np.testing.assert_allclose(right, numeric, atol=1e-8)
    entropy = FORMULAS["quack.cross_entropy"]
    target, dloss = np.array([1, 5, 0]), random.standard_normal(3)

    def loss(x: Array) -> Array:
        return entropy.outputs({}, {"x": x, "target": target}, TRUTH)["loss"]

    lse = np.logaddexp.reduce(x, axis=1)
    arrays = {"x": x, "target": target, "lse": lse, "dloss": dloss}
    right = FORMULAS["quack.cross_entropy_backward"].outputs({}, arrays, TRUTH)["dx"]
    np.testing.assert_allclose(right, slopes(lambda x: float(loss(x) @ dloss), x), atol=1e-8)


def test_a_place_twice_is_not_the_largest_values() -> None:
    kernel = FIRST["quack.topk"]
    arrays = solved(kernel)
    arrays["places"][2, 1] = arrays["places"][2, 0]
    verdicts = {verdict.output: verdict.wrong for verdict in judge(kernel, arrays)}
    assert verdicts["DISTINCT"] == 1


def test_what_a_kernel_leaves_undone_in_place_is_seen() -> None:
    kernel = replace(FIRST["flashinfer.added_norm"])
    assert not any(verdict.ok for verdict in judge(kernel, operands(kernel)))
