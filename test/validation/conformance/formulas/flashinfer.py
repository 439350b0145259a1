"""What FlashInfer's kernels have to give: norms, packed and paged attention, a latent cache."""

from __future__ import annotations

import math

import numpy as np

from attn_mlir.validation.conformance.formulas import attention
from attn_mlir.validation.conformance.formulas.base import (
    Array,
    Arrays,
    Formula,
    Precision,
    Sizes,
    normal,
    nothing,
)

EPSILON = 1e-6  # of the norms
LATENT = (
    512  # columns of a latent cache that are values, and keys; those behind them are keys alone
)
LSE_TOLERANCE = 1e-3  # absolute


def _dtype(sizes: Sizes) -> str:
    return sizes.get("dtype", "bf16")


def _scaled(x: Array, precision: Precision) -> Array:
    """Rows of mean square one."""
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + precision.kind(EPSILON))


def _norm_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    shape, dtype = (sizes["rows"], sizes["columns"]), _dtype(sizes)
    is_layer = sizes.get("is_layer", False)
    weight = normal(random, shape[1:], "f32" if is_layer else dtype)
    result = {"x": normal(random, shape, dtype), "y": nothing(shape, dtype), "weight": weight}
    return result | ({"bias": normal(random, shape[1:], "f32")} if is_layer else {})


def _norm_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    x, weight = precision.wide(arrays["x"]), precision.wide(arrays["weight"])
    if "bias" not in arrays:
        return {"y": _scaled(x, precision) * weight}
    centred = x - x.mean(axis=1, keepdims=True)
    return {"y": _scaled(centred, precision) * weight + precision.wide(arrays["bias"])}


def _added_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    shape, dtype = (sizes["rows"], sizes["columns"]), _dtype(sizes)
    return {
        "x": normal(random, shape, dtype),
        "residual": normal(random, shape, dtype),
        "weight": normal(random, shape[1:], dtype),
    }


def _added_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    total = precision.wide(arrays["x"]) + precision.wide(arrays["residual"])
    return {"residual": total, "x": _scaled(total, precision) * precision.wide(arrays["weight"])}


def _pages(sizes: Sizes, random: np.random.Generator) -> list[Array]:
    """Of each sequence, its pages; given, or drawn from one more than are used."""
    if "pages" in sizes:
        return [np.array(some) for some in sizes["pages"]]
    counts = [-(-length // sizes["page"]) for length in sizes["keys"]]
    drawn = random.permutation(sum(counts) + 1)
    return np.split(drawn[: sum(counts)], np.cumsum(counts)[:-1])


def _paged_operands(sizes: Sizes, random: np.random.Generator, rows: tuple[int, ...]) -> Arrays:
    """K and V in pages, and the list of all pages with each sequence's offset."""
    pages = _pages(sizes, random)
    count = max(int(some.max()) for some in pages) + 1
    if "pages" not in sizes:
        count = sum(map(len, pages)) + 1
    table = np.concatenate(pages).astype(np.int32)
    offsets = np.cumsum([0, *map(len, pages)]).astype(np.int32)
    shape = (count, sizes["page"], *rows)
    return {
        "k": normal(random, shape, _dtype(sizes)),
        "v": normal(random, shape, _dtype(sizes)),
        "page_table": table,
        "page_offsets": offsets,
    }


def _gathered(sizes: Sizes, arrays: Arrays) -> Arrays:
    """K and V without their pages, sequences behind one another."""
    parts: dict[str, list[Array]] = {"k": [], "v": []}
    for at, length in enumerate(sizes["keys"]):
        begin, end = arrays["page_offsets"][at : at + 2]
        for name, some in parts.items():
            pages = arrays[name][arrays["page_table"][begin:end]]
            some.append(pages.reshape(-1, *pages.shape[2:])[:length])
    return {name: np.concatenate(some) for name, some in parts.items()}


def _prefill_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    queries, heads, dim = sizes["queries"], sizes["heads"], sizes["dim"]
    rows = sum(queries)
    result = {
        "q": normal(random, (rows, heads, dim), _dtype(sizes)),
        "o": nothing((max(queries) + rows, heads, dim), _dtype(sizes)),
        "lse": nothing((rows, heads), "f32"),
        "q_offsets": np.cumsum([0, *queries]).astype(np.int32),
        "k_offsets": np.cumsum([0, *sizes["keys"]]).astype(np.int32),
    }
    width = (sizes["kv_heads"], dim)
    if sizes.get("page"):
        return result | _paged_operands(sizes, random, width)
    shape = (sum(sizes["keys"]), *width)
    return result | {name: normal(random, shape, _dtype(sizes)) for name in "kv"}


def _prefill_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """Nothing may be written to the rows in front of O; LSE is to the base of two."""
    given = {**arrays, **(_gathered(sizes, arrays) if sizes.get("page") else {})}
    padding = max(sizes["queries"])
    given |= {"o": arrays["o"][padding:], "lse": arrays["lse"].T}
    plain = {**sizes, "is_packed": True, "page": 0}
    right = attention.FORMULAS["fa4.forward"].outputs(plain, given, precision)
    o = np.full(arrays["o"].shape, np.nan, precision.kind)
    o[padding:] = right["o"]
    return {"o": o, "lse": right["lse"].T * precision.kind(math.log2(math.e))}


def _decode_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    batch, heads, dim = len(sizes["keys"]), sizes["heads"], sizes["dim"]
    return {
        "q": normal(random, (batch, heads, dim), _dtype(sizes)),
        "o": nothing((batch, heads, dim), _dtype(sizes)),
        "used": np.array(sizes["keys"], np.int32),
        **_paged_operands(sizes, random, (sizes["kv_heads"], dim)),
    }


def _decode_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    batch, heads = arrays["q"].shape[:2]
    given = {**arrays, **_gathered(sizes, arrays), "lse": np.zeros((heads, batch))}
    plain = {**sizes, "queries": [1] * batch, "is_packed": True, "page": 0}
    right = attention.FORMULAS["fa4.forward"].outputs(plain, given, precision)
    return {"o": right["o"]}


def _latent_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    keys, heads, dtype = sizes["keys"], sizes.get("heads", 128), _dtype(sizes)
    page = sizes.get("page", 128)
    batch, count = len(keys), -(-max(keys) // page)
    width = LATENT + 64
    out = "bf16" if dtype == "e4m3" else dtype
    table = random.permutation(batch * count + 1)[: batch * count].reshape(batch, count)
    result = {
        "q": normal(random, (batch, 1, heads, width), dtype),
        "cache": normal(random, (batch * count + 1, page, width), dtype),
        "page_table": table.astype(np.int32),
        "used": np.array(keys, np.int32),
        "o": nothing((batch, 1, heads, LATENT), out),
    }
    sink = {"sink": normal(random, (heads,), "f32") * 4}
    return result | (sink if sizes.get("sinks") else {})


def _latent_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """P is rounded to the type of the cache; the scale is that of 192 columns.

    The kernel counts a sink `sinks` times: docs/findings.md.
    """
    page = arrays["cache"].shape[1]
    o = np.empty(arrays["o"].shape, precision.kind)
    for at, length in enumerate(sizes["keys"]):
        pages = arrays["cache"][arrays["page_table"][at, : -(-length // page)]]
        cache = precision.wide(pages.reshape(-1, pages.shape[2])[:length])
        scores = precision.wide(arrays["q"][at, 0]) @ cache.T * precision.kind(192**-0.5)
        top = scores.max(axis=1, keepdims=True)
        p = np.exp(scores - top)
        total = p.sum(axis=1, keepdims=True)
        if "sink" in arrays:
            sink = np.exp(precision.wide(arrays["sink"])[:, None] - top)
            total = total + precision.kind(sizes["sinks"]) * sink
        o[at, 0] = precision.rounded(p, _dtype(sizes)) @ cache[:, :LATENT] / total
    return {"o": o}


FORMULAS = {
    "flashinfer.norm": Formula(_norm_operands, _norm_outputs),
    "flashinfer.added_norm": Formula(_added_operands, _added_outputs),
    "flashinfer.prefill": Formula(_prefill_operands, _prefill_outputs, {"lse": LSE_TOLERANCE}),
    "flashinfer.decode": Formula(_decode_operands, _decode_outputs),
    "flashinfer.latent_decode": Formula(_latent_operands, _latent_outputs),
}
