"""What the kernels of `programs/triton.py` have to give, where no other formula says it already."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from attn_mlir.validation.conformance.formulas import attention, products, rows
from attn_mlir.validation.conformance.formulas.base import (
    DTYPES,
    Array,
    Arrays,
    Formula,
    Precision,
    Sizes,
    normal,
    nothing,
)

_ELEMENTS = {"e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


def _histogram_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    return {
        "x": random.integers(0, sizes["bins"], sizes["count"]).astype(np.int32),
        "counts": np.zeros(sizes["bins"], np.int32),
    }


def _histogram_outputs(sizes: Sizes, arrays: Arrays, _: Precision) -> Arrays:
    return {"counts": np.bincount(arrays["x"], minlength=sizes["bins"])}


def _scan_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    shape = (sizes["rows"], sizes["columns"])
    return {
        "a": random.uniform(0.2, 0.9, shape).astype(np.float32),
        "b": normal(random, shape, "f32"),
        "y": nothing(shape, "f32"),
    }


def _scan_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    a, b = precision.wide(arrays["a"]), precision.wide(arrays["b"])
    y, state = np.empty_like(a), np.zeros(a.shape[0], precision.kind)
    for at in range(a.shape[1]):
        y[:, at] = state = a[:, at] * state + b[:, at]
    return {"y": y}


def _sort_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    shape, dtype = (sizes["rows"], sizes["columns"]), sizes.get("dtype", "f32")
    return {"x": normal(random, shape, dtype), "y": nothing(shape, dtype)}


def _sort_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    return {"y": -np.sort(-precision.wide(arrays["x"]), axis=1)}


def _gemm_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    m, n, k, dtype = sizes["m"], sizes["n"], sizes["k"], sizes.get("dtype", "bf16")
    a, b = normal(random, (m, k), dtype), normal(random, (n, k), dtype)
    if sizes.get("splits"):
        return {"a": a, "b": b, "d": np.zeros((m, n), np.float32)}
    return {"a": a, "b": b, "d": nothing((m, n), sizes.get("out_dtype") or dtype)}


def _gemm_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    return {"d": precision.wide(arrays["a"]) @ precision.wide(arrays["b"]).T}


def _scaled_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    """Elements of four bits lie in pairs, the first in the lower half."""
    block, k = sizes.get("block", 32), sizes["k"]
    result = {"d": nothing((sizes["m"], sizes["n"]), "bf16")}
    for name, form, count in zip("ab", sizes["forms"], (sizes["m"], sizes["n"]), strict=True):
        values = (2 * random.standard_normal((count, k))).astype(_ELEMENTS[form])
        codes = values.view(np.uint8)
        if form == "e2m1":
            codes = (codes[:, 0::2] & 15) | (codes[:, 1::2] << 4)
        result[name] = codes
        scales = np.exp2(random.integers(-3, 4, (count, k // block)))
        kind = ml_dtypes.float8_e8m0fnu
        if block == 16:
            scales, kind = scales * random.uniform(1, 2, scales.shape), DTYPES["e4m3"]
        result[f"{name}_scale"] = scales.astype(np.float32).astype(kind).view(np.uint8)
    return result


def _scaled_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    def whole(name: str, form: str) -> Array:
        codes = arrays[name]
        if form == "e2m1":
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)
        values = precision.wide(codes.view(_ELEMENTS[form]).astype(np.float32))
        kind = DTYPES["e4m3"] if sizes.get("block") == 16 else ml_dtypes.float8_e8m0fnu
        scales = precision.wide(arrays[f"{name}_scale"].view(kind).astype(np.float32))
        return values * np.repeat(scales, sizes.get("block", 32), axis=1)

    a, b = (whole(name, form) for name, form in zip("ab", sizes["forms"], strict=True))
    return {"d": a @ b.T}


def _turned(formula: Formula) -> Formula:
    """Attention whose operands are [heads, rows, dim] of one sequence, made from [1, rows, heads, dim]."""

    def turn(arrays: Arrays) -> Arrays:
        return {name: x.transpose(0, 2, 1, 3) if x.ndim == 4 else x for name, x in arrays.items()}

    return Formula(
        lambda sizes, random: {
            name: np.ascontiguousarray(x)
            for name, x in turn(formula.operands(sizes, random)).items()
        },
        lambda sizes, arrays, precision: turn(formula.outputs(sizes, turn(arrays), precision)),
        formula.tolerances,
    )


def _backward_sizes(sizes: Sizes) -> Sizes:
    return {"kv_heads": sizes["heads"], "sk": sizes["sq"], "dtype": "f16", **sizes}


def _forward_sizes(sizes: Sizes) -> Sizes:
    rows = [sizes["length"]]
    return {"queries": rows, "keys": rows, "kv_heads": sizes["heads"], "dtype": "f16", **sizes}


def _decode_sizes(sizes: Sizes) -> Sizes:
    return {"queries": [1] * len(sizes["keys"]), "kv_heads": 1, **sizes}


def _with(formula: Formula, more: Callable[[Sizes], Sizes]) -> Formula:
    return Formula(
        lambda sizes, random: formula.operands(more(sizes), random),
        lambda sizes, arrays, precision: formula.outputs(more(sizes), arrays, precision),
        formula.tolerances,
        formula.seen,
    )


def _zeroed(formula: Formula) -> Formula:
    """The kernel adds the gradients of the weights into zeros."""

    def operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
        given = formula.operands({**sizes, "parts": 1}, random)
        return given | {name: np.zeros_like(given[name]) for name in ("dw", "db")}

    return Formula(operands, formula.outputs, formula.tolerances, formula.seen)


FORMULAS = {
    "triton.softmax": rows.FORMULAS["quack.softmax"],
    "triton.norm": rows.FORMULAS["quack.norm"],
    "triton.norm_backward": _zeroed(rows.FORMULAS["quack.norm_backward"]),
    "triton.histogram": Formula(_histogram_operands, _histogram_outputs),
    "triton.scan": Formula(_scan_operands, _scan_outputs, {"y": 1e-5}),
    "triton.sort": Formula(_sort_operands, _sort_outputs),
    "triton.persistent_gemm": Formula(_gemm_operands, _gemm_outputs),
    "triton.grouped_gemm": products.FORMULAS["quack.grouped_gemm"],
    "triton.split_gemm": Formula(_gemm_operands, _gemm_outputs),
    "triton.scaled_gemm": Formula(_scaled_operands, _scaled_outputs),
    "triton.backward": _with(_turned(attention.FORMULAS["fa4.backward"]), _backward_sizes),
    "triton.forward": _with(_turned(attention.FORMULAS["fa4.forward"]), _forward_sizes),
    "triton.decode": _with(attention.FORMULAS["fa4.forward"], _decode_sizes),
}
