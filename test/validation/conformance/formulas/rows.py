"""Functions of rows: norms, softmax, cross-entropy, the largest values, rotations; forward and backward."""

from __future__ import annotations

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

CLOSE = 1e-5  # absolute; of statistics near one in float32, made with approximate square roots and logarithms
EPSILON = 1e-6  # of the norms


def _dtype(sizes: Sizes) -> str:
    return sizes.get("dtype", "bf16")


def _shape(sizes: Sizes) -> tuple[int, int]:
    return sizes["rows"], sizes["columns"]


def _norm_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    shape, dtype = _shape(sizes), _dtype(sizes)
    result = {
        "x": normal(random, shape, dtype),
        "weight": normal(random, shape[1:], "f32"),
        "bias": normal(random, shape[1:], "f32"),
        "y": nothing(shape, dtype),
        "rstd": nothing(shape[:1], "f32"),
    }
    if sizes.get("is_layer"):
        result["mean"] = nothing(shape[:1], "f32")
    if sizes.get("has_residual"):
        result |= {"residual": normal(random, shape, dtype), "total": nothing(shape, dtype)}
    return result


def _norm_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    x = precision.wide(arrays["x"])
    result: Arrays = {}
    if sizes.get("has_residual"):
        x = result["total"] = x + precision.wide(arrays["residual"])
    if sizes.get("is_layer"):
        result["mean"] = x.mean(axis=1)
        x = x - result["mean"][:, None]
    rstd = 1 / np.sqrt((x * x).mean(axis=1) + precision.kind(EPSILON))
    weight, bias = (precision.wide(arrays[name]) for name in ("weight", "bias"))
    return {**result, "rstd": rstd, "y": x * rstd[:, None] * weight + bias}


def _norm_backward_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    shape, dtype = _shape(sizes), _dtype(sizes)
    x = normal(random, shape, dtype)
    wide = x.astype(np.float64)
    mean = wide.mean(axis=1) if sizes.get("is_layer") else np.zeros(shape[0])
    rstd = 1 / np.sqrt(((wide - mean[:, None]) ** 2).mean(axis=1) + EPSILON)
    result = {
        "x": x,
        "weight": normal(random, shape[1:], "f32"),
        "dy": normal(random, shape, dtype),
        "rstd": rstd.astype(np.float32),
        "dx": nothing(shape, dtype),
        "dw": nothing((sizes["parts"], shape[1]), "f32"),
        "db": nothing((sizes["parts"], shape[1]), "f32"),
    }
    return result | ({"mean": mean.astype(np.float32)} if sizes.get("is_layer") else {})


def _norm_backward_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    x, dy, weight = (precision.wide(arrays[name]) for name in ("x", "dy", "weight"))
    rstd = precision.wide(arrays["rstd"])[:, None]
    if sizes.get("is_layer"):
        x = x - precision.wide(arrays["mean"])[:, None]
    unit, inner = x * rstd, dy * weight
    dx = inner - unit * (unit * inner).mean(axis=1, keepdims=True)
    if sizes.get("is_layer"):
        dx = dx - inner.mean(axis=1, keepdims=True)
    return {"dx": dx * rstd, "dw": (dy * unit).sum(axis=0), "db": dy.sum(axis=0)}


def _summed(_: Sizes, arrays: Arrays) -> Arrays:
    """The host adds the parts of the weights' gradients up."""
    return arrays | {name: arrays[name].sum(axis=0) for name in ("dw", "db")}


def _softmax(x: Array) -> Array:
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _softmax_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    return {
        "x": normal(random, _shape(sizes), _dtype(sizes)),
        "y": nothing(_shape(sizes), _dtype(sizes)),
    }


def _softmax_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    return {"y": _softmax(precision.wide(arrays["x"]))}


def _softmax_backward_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    shape, dtype = _shape(sizes), _dtype(sizes)
    y = _softmax(normal(random, shape, "f32")).astype(normal(random, (1,), dtype).dtype)
    return {"dy": normal(random, shape, dtype), "y": y, "dx": nothing(shape, dtype)}


def _softmax_backward_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    y, dy = precision.wide(arrays["y"]), precision.wide(arrays["dy"])
    return {"dx": y * (dy - (y * dy).sum(axis=1, keepdims=True))}


def _entropy_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    rows, columns = _shape(sizes)
    result = {
        "x": normal(random, (rows, columns), _dtype(sizes)),
        "target": random.integers(0, columns, rows).astype(np.int64),
        "loss": nothing((rows,), "f32"),
        "lse": nothing((rows,), "f32"),
    }
    gradient = {"dx": nothing((rows, columns), _dtype(sizes))}
    return result | (gradient if sizes.get("has_gradient") else {})


def _entropy_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    x, target = precision.wide(arrays["x"]), arrays["target"][:, None]
    top = x.max(axis=1)
    lse = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
    result = {"loss": lse - np.take_along_axis(x, target, axis=1)[:, 0], "lse": lse}
    if sizes.get("has_gradient"):
        result["dx"] = _softmax(x) - (np.arange(x.shape[1]) == target)
    return result


def _entropy_backward_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    result = _entropy_operands({**sizes, "has_gradient": True}, random)
    lse = _entropy_outputs(sizes, result, Precision(np.float64, is_truth=True))["lse"]
    dloss = normal(random, lse.shape, "f32")
    return {
        **{name: result[name] for name in ("x", "target", "dx")},
        "lse": lse.astype(np.float32),
        "dloss": dloss,
    }


def _entropy_backward_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    x, target = precision.wide(arrays["x"]), arrays["target"][:, None]
    p = np.exp(x - precision.wide(arrays["lse"])[:, None])
    return {
        "dx": (p - (np.arange(x.shape[1]) == target)) * precision.wide(arrays["dloss"])[:, None]
    }


def _topk_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    taken = (sizes["rows"], sizes["count"])
    return {
        "x": normal(random, _shape(sizes), _dtype(sizes)),
        "values": nothing(taken, _dtype(sizes)),
        "places": np.full(taken, -1, np.int32),
    }


def _topk_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """The values in order, what lies at the places, and that no place comes twice."""
    best = -np.sort(-precision.wide(arrays["x"]), axis=1)[:, : sizes["count"]]
    every = np.full(sizes["rows"], sizes["count"])
    return {"values": best, "there": best, "distinct": every}


def _topk_seen(_: Sizes, arrays: Arrays) -> Arrays:
    places = arrays["places"]
    safe = np.clip(places, 0, arrays["x"].shape[1] - 1)
    distinct = np.array([len(np.unique(row)) for row in places])
    there = np.take_along_axis(arrays["x"], safe, axis=1)
    return {"values": arrays["values"], "there": there, "distinct": distinct}


def _rotary_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    length, dim = sizes["length"], sizes["dim"]
    shape = (sizes["batch"], length, sizes["heads"], dim)
    angles = np.arange(length)[:, None] * 100.0 ** -(np.arange(dim // 2) / (dim // 2))
    return {
        "x": normal(random, shape, _dtype(sizes)),
        "y": nothing(shape, _dtype(sizes)),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


def _rotary_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    x = precision.wide(arrays["x"])
    cos, sin = (precision.wide(arrays[name])[:, None, :] for name in ("cos", "sin"))
    half = x.shape[-1] // 2
    if sizes.get("is_interleaved"):
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x[..., :half], x[..., half:]
    turned = first * cos - second * sin, first * sin + second * cos
    if sizes.get("is_interleaved"):
        return {"y": np.stack(turned, axis=-1).reshape(x.shape)}
    return {"y": np.concatenate(turned, axis=-1)}


def _hadamard_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    x = precision.wide(arrays["x"])
    columns = x.shape[1]
    bits = np.arange(columns)
    signs = 1 - 2 * (np.bitwise_count(bits[:, None] & bits) % 2).astype(precision.kind)
    return {"y": x @ signs * precision.kind(columns**-0.5)}


FORMULAS = {
    "quack.norm": Formula(_norm_operands, _norm_outputs, {"rstd": CLOSE, "mean": CLOSE}),
    "quack.norm_backward": Formula(
        _norm_backward_operands, _norm_backward_outputs, {"dw": CLOSE, "db": CLOSE}, _summed
    ),
    "quack.softmax": Formula(_softmax_operands, _softmax_outputs),
    "quack.softmax_backward": Formula(_softmax_backward_operands, _softmax_backward_outputs),
    "quack.cross_entropy": Formula(
        _entropy_operands, _entropy_outputs, {"loss": CLOSE, "lse": CLOSE}
    ),
    "quack.cross_entropy_backward": Formula(_entropy_backward_operands, _entropy_backward_outputs),
    "quack.topk": Formula(_topk_operands, _topk_outputs, seen=_topk_seen),
    "quack.rotary": Formula(_rotary_operands, _rotary_outputs),
    "quack.hadamard": Formula(_softmax_operands, _hadamard_outputs),
}
