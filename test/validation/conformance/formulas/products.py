"""Products: of groups of unequal sizes, with an activation behind them, of a matrix with itself."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from attn_mlir.validation.conformance.formulas.base import (
    Array,
    Arrays,
    Formula,
    Precision,
    Sizes,
    normal,
    nothing,
)


def _dtype(sizes: Sizes) -> str:
    return sizes.get("dtype", "bf16")


def _grouped_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    lengths, dtype = sizes["lengths"], _dtype(sizes)
    total, n, k = sum(lengths), sizes["n"], sizes["k"]
    result = {"offsets": np.cumsum([0, *lengths]).astype(np.int32)}
    if sizes["along"] == "k":
        m = sizes["m"]
        return result | {
            "a": normal(random, (total, m), dtype),
            "b": normal(random, (total, n), dtype),
            "d": nothing((len(lengths), m, n), dtype),
        }
    if sizes.get("is_gathered"):
        result["rows"] = random.permutation(2 * total)[:total].astype(np.int32)
    return result | {
        "a": normal(random, (2 * total if "rows" in result else total, k), dtype),
        "b": normal(random, (len(lengths), n, k), dtype),
        "d": nothing((total, n), dtype),
    }


def _grouped_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    a, b = precision.wide(arrays["a"]), precision.wide(arrays["b"])
    if "rows" in arrays:
        a = a[arrays["rows"]]
    offsets = arrays["offsets"]
    d = np.zeros(arrays["d"].shape, precision.kind)
    for group, (begin, end) in enumerate(pairwise(offsets)):
        if sizes["along"] == "k":
            d[group] = a[begin:end].T @ b[begin:end]
        else:
            d[begin:end] = a[begin:end] @ b[group].T
    return {"d": d}


def _plain_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    m, n, k, dtype = sizes["m"], sizes["n"], sizes["k"], _dtype(sizes)
    return {
        "a": normal(random, (m, k), dtype),
        "b": normal(random, (n, k), dtype),
        "d": nothing((m, n), dtype),
    }


def _plain_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    return {"d": precision.wide(arrays["a"]) @ precision.wide(arrays["b"]).T}


def _activated_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    m, n, k, dtype = sizes["m"], sizes["n"], sizes["k"], _dtype(sizes)
    return {
        "a": normal(random, (m, k), dtype),
        "b": (random.standard_normal((k, n)) * k**-0.5).astype(normal(random, (1,), dtype).dtype),
        "bias": normal(random, (n,), dtype),
        "before": nothing((m, n), dtype),
        "after": nothing((m, n // 2 if sizes.get("is_gated") else n), dtype),
    }


def _gelu(x: Array) -> Array:
    inner = x * (0.7978845608028654 + 0.7978845608028654 * 0.044715 * x * x)
    return x * (1 + np.tanh(inner)) / 2


def _activated_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    a, b, bias = (precision.wide(arrays[name]) for name in ("a", "b", "bias"))
    before = a @ b + bias
    if sizes["activation"] == "swiglu":
        gate, up = before[:, 0::2], before[:, 1::2]
        after = gate / (1 + np.exp(-gate)) * up
    elif sizes["activation"] == "relu":
        after = np.maximum(before, 0)
    else:
        after = _gelu(before)
    return {"before": before, "after": after}


def _symmetric_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    m, dtype = sizes["m"], _dtype(sizes)
    return {"a": normal(random, (m, sizes["k"]), dtype), "d": nothing((m, m), dtype)}


def _symmetric_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    a = precision.wide(arrays["a"])
    return {"d": a @ a.T}


FORMULAS = {
    "quack.grouped_gemm": Formula(_grouped_operands, _grouped_outputs),
    "quack.hopper_gemm": Formula(_plain_operands, _plain_outputs),
    "quack.activated_gemm": Formula(_activated_operands, _activated_outputs),
    "quack.symmetric_gemm": Formula(_symmetric_operands, _symmetric_outputs),
}
