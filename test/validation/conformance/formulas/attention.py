"""Attention by rows of sequences: packed, paged, latent, with sinks and caps, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

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

LSE_TOLERANCE = 1e-3  # absolute


def _visible(rows: int, keys: int, is_causal: bool) -> Array:
    """Whether a query sees a key; the last query sees the last key."""
    every = np.ones((rows, keys), np.bool_)
    return np.tril(every, keys - rows) if is_causal else every


def _offsets(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths]).astype(np.int32)


def _forward_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    queries, keys = sizes["queries"], sizes["keys"]
    heads, kv_heads, dim = sizes.get("heads", 2), sizes.get("kv_heads", 1), sizes.get("dim", 128)
    latent, page = sizes.get("latent", 0), sizes.get("page", 0)
    dim_v, dtype = sizes.get("dim_v", 0) or latent or dim, sizes.get("dtype", "bf16")
    batch = len(queries)
    result: Arrays = {}
    if sizes.get("is_packed"):
        rows, k_rows = (sum(queries),), (sum(keys),)
        result |= {"q_offsets": _offsets(queries), "k_offsets": _offsets(keys)}
        lse = (heads, *rows)
    else:
        rows, k_rows = (batch, max(queries)), (batch, max(keys))
        lse = (batch, heads, rows[1])
    if page:
        count = -(-max(keys) // page)
        table = random.permutation(batch * count + 1)[: batch * count].reshape(batch, count)
        result |= {"page_table": table.astype(np.int32), "used": np.array(keys, np.int32)}
        k_rows = (batch * count + 1, page)
    result |= {
        "q": normal(random, (*rows, heads, dim), dtype),
        "k": normal(random, (*k_rows, kv_heads, dim), dtype),
        "v": normal(random, (*k_rows, kv_heads, dim_v), dtype),
        "o": nothing((*rows, heads, dim_v), dtype),
        "lse": nothing(lse, "f32"),
    }
    if latent:
        result["lse"] = nothing((batch, rows[1], heads), "f32")
        result["qv"] = normal(random, (*rows, heads, latent), dtype)
    if sizes.get("has_sink"):
        result["sink"] = normal(random, (heads,), dtype)
    return result


def _sequences(sizes: Sizes, arrays: Arrays) -> Iterator[tuple[Any, Arrays]]:
    """Per sequence: the place of its queries, and its rows of q, qv, k and v as [rows, heads, dim]."""
    start_q = start_k = 0
    for at, (sq, sk) in enumerate(zip(sizes["queries"], sizes["keys"], strict=True)):
        if sizes.get("is_packed"):
            place, source = (slice(start_q, start_q + sq),), slice(start_k, start_k + sk)
            rows = {name: arrays[name][source] for name in "kv"}
        elif page := sizes.get("page", 0):
            place = (at, slice(0, sq))
            pages = arrays["page_table"][at, : -(-sk // page)]
            rows = {
                name: arrays[name][pages].reshape(-1, *arrays[name].shape[2:])[:sk] for name in "kv"
            }
        else:
            place = (at, slice(0, sq))
            rows = {name: arrays[name][at, :sk] for name in "kv"}
        rows |= {name: arrays[name][place] for name in ("q", "qv") if name in arrays}
        yield place, rows
        start_q, start_k = start_q + sq, start_k + sk


def _forward_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """Softmax in float32; P is rounded to the operands' type before the second product."""
    dtype = sizes.get("dtype", "bf16")
    group = arrays["q"].shape[-2] // arrays["k"].shape[-2]
    scale = (arrays["q"].shape[-1] + sizes.get("latent", 0)) ** -0.5
    o = np.full(arrays["o"].shape, np.nan, precision.kind)
    lse = np.full(arrays["lse"].shape, np.nan, precision.kind)
    for place, rows in _sequences(sizes, arrays):
        turned = {name: precision.wide(x).swapaxes(0, 1) for name, x in rows.items()}
        k, v = (np.repeat(turned[name], group, axis=0) for name in "kv")
        scores = turned["q"] @ k.swapaxes(1, 2)
        if "qv" in turned:
            scores = scores + turned["qv"] @ v.swapaxes(1, 2)
        scores = scores * precision.kind(scale)
        if cap := sizes.get("softcap", 0):
            scores = precision.kind(cap) * np.tanh(scores / precision.kind(cap))
        seen = _visible(*scores.shape[1:], sizes.get("is_causal", False))
        scores = np.where(seen, scores, precision.kind(-np.inf))
        top = scores.max(axis=2, keepdims=True)
        p = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = p.sum(axis=2, keepdims=True)
        if "sink" in arrays:
            total = total + np.exp(precision.wide(arrays["sink"])[:, None, None] - top)
        o[place] = (precision.rounded(p, dtype) @ v / np.where(total == 0, 1, total)).swapaxes(0, 1)
        with np.errstate(divide="ignore"):
            value = (top + np.log(total))[..., 0]
        if sizes.get("is_packed"):
            lse[:, place[0]] = value
        elif "qv" in turned:
            lse[place] = value.T
        else:
            lse[place[0], :, place[1]] = value
    return {"o": o, "lse": lse}


def _backward_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    batch, heads, kv_heads = sizes.get("batch", 1), sizes.get("heads", 2), sizes.get("kv_heads", 2)
    sq, sk, dim = sizes["sq"], sizes["sk"], sizes["dim"]
    dim_v, dtype = sizes.get("dim_v", 0) or dim, sizes.get("dtype", "bf16")
    shapes = {
        "q": (batch, sq, heads, dim),
        "k": (batch, sk, kv_heads, dim),
        "v": (batch, sk, kv_heads, dim_v),
        "do": (batch, sq, heads, dim_v),
    }
    result = {name: normal(random, shape, dtype) for name, shape in shapes.items()}
    result |= {f"d{name}": nothing(shapes[name], dtype) for name in "qkv"}
    q, k, v = (result[name].astype(np.float64).transpose(0, 2, 1, 3) for name in "qkv")
    k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * dim**-0.5
    scores = np.where(_visible(sq, sk, sizes.get("is_causal", False)), scores, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=3)
    o = np.exp(scores - lse[..., None]) @ v
    result["o"] = o.transpose(0, 2, 1, 3).astype(DTYPES[dtype])
    result["lse"] = lse.astype(np.float32)
    return result


def _backward_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """From O and LSE as given; P and dS are rounded to the operands' type before the products with them."""
    dtype, dim = sizes.get("dtype", "bf16"), sizes["dim"]
    q, k, v, o, do = (
        precision.wide(arrays[name]).transpose(0, 2, 1, 3) for name in ("q", "k", "v", "o", "do")
    )
    group = q.shape[1] // k.shape[1]
    k_wide, v_wide = (np.repeat(x, group, axis=1) for x in (k, v))
    scale = precision.kind(dim**-0.5)
    seen = _visible(q.shape[2], k.shape[2], sizes.get("is_causal", False))
    lse = precision.wide(arrays["lse"])[..., None]
    p = np.where(seen, np.exp(q @ k_wide.swapaxes(2, 3) * scale - lse), 0)
    delta = (o * do).sum(axis=3, keepdims=True)
    ds = precision.rounded(p * (do @ v_wide.swapaxes(2, 3) - delta), dtype)
    p = precision.rounded(p, dtype)

    def grouped(x: Array) -> Array:
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2)

    result = {
        "dq": ds @ k_wide * scale,
        "dk": grouped(ds.swapaxes(2, 3) @ q) * scale,
        "dv": grouped(p.swapaxes(2, 3) @ do),
    }
    return {name: x.transpose(0, 2, 1, 3) for name, x in result.items()}


FORMULAS = {
    "fa4.forward": Formula(_forward_operands, _forward_outputs, {"lse": LSE_TOLERANCE}),
    "fa4.backward": Formula(_backward_operands, _backward_outputs),
}
