"""What the kernels have to give that FlashInfer ships as CUDA C++."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from attn_mlir.validation.conformance.cases import FORMATS
from attn_mlir.validation.conformance.formats import dequantised, random_operand, unscaled
from attn_mlir.validation.conformance.formulas import attention, flashinfer
from attn_mlir.validation.conformance.formulas.base import (
    Array,
    Arrays,
    Formula,
    Precision,
    Sizes,
    normal,
    nothing,
)

GROUP = 128  # elements of k, and rows of B, that share a float scale


def _forward_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    """Those of a packed prefill, with values of `dim_v` columns where that is given."""
    result = flashinfer.FORMULAS["flashinfer.prefill"].operands(sizes, random)
    if dim_v := sizes.get("dim_v", 0):
        dtype = sizes.get("dtype", "bf16")
        result["v"] = normal(random, (*result["v"].shape[:2], dim_v), dtype)
        result["o"] = nothing((*result["o"].shape[:2], dim_v), dtype)
    return result


def _hopper_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    """Those of a packed prefill of one sequence, without rows in front of O."""
    result = flashinfer.FORMULAS["flashinfer.prefill"].operands(sizes, random)
    result["o"] = result["o"][max(sizes["queries"]) :]
    return {name: result[name] for name in ("q", "k", "v", "o", "lse")}


def _hopper_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    padding = np.full_like(arrays["o"], np.nan)
    given = {**arrays, "o": np.concatenate([padding, arrays["o"]])}
    right = flashinfer.FORMULAS["flashinfer.prefill"].outputs(sizes, given, precision)
    return {**right, "o": right["o"][len(padding) :]}


def _hopper_latent_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    """Those of a latent decode, the 512 columns that are values as well apart from the other 64."""
    whole = flashinfer.FORMULAS["flashinfer.latent_decode"].operands(sizes, random)
    result = {"page_table": whole["page_table"], "o": whole["o"][:, 0]}
    for name, parts in (("q", ("q_nope", "q_pe")), ("cache", ("ckv", "kpe"))):
        rows = whole[name][:, 0] if name == "q" else whole[name]
        left, right = np.split(rows, [flashinfer.LATENT], axis=-1)
        result |= {parts[0]: np.ascontiguousarray(left), parts[1]: np.ascontiguousarray(right)}
    return result | {"lse": nothing(whole["q"].shape[::2][:2], "f32")}


def _hopper_latent_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """O as of a latent decode; LSE is to the base of two."""
    given = {**arrays, "o": arrays["o"][:, None]}
    given["q"] = np.concatenate([arrays["q_nope"], arrays["q_pe"]], axis=-1)[:, None]
    given["cache"] = np.concatenate([arrays["ckv"], arrays["kpe"]], axis=-1)
    o = flashinfer.FORMULAS["flashinfer.latent_decode"].outputs(sizes, given, precision)["o"]
    lse = np.empty(arrays["lse"].shape, precision.kind)
    for at, length in enumerate(sizes["keys"]):
        pages = given["cache"][arrays["page_table"][at]]
        keys = precision.wide(pages.reshape(-1, pages.shape[-1])[:length])
        scores = precision.wide(given["q"][at, 0]) @ keys.T * precision.kind(192**-0.5)
        top = scores.max(axis=1)
        lse[at] = np.log2(np.exp(scores - top[:, None]).sum(axis=1)) + top * np.log2(np.e)
    return {"o": o[:, 0], "lse": lse}


def _decode_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    dtype = sizes.get("dtype", "bf16")
    rows = (sizes["heads"], sizes["dim"])
    keys = (sizes["length"], sizes["kv_heads"], sizes["dim"])
    result = {"q": normal(random, rows, dtype), "o": nothing(rows, dtype)}
    return result | {name: normal(random, keys, dtype) for name in "kv"}


def _decode_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """P is rounded to the type of V: the bound of a kernel that has it in float32 is not narrower."""
    given = {**arrays, "q": arrays["q"][None], "o": arrays["o"][None]}
    given["lse"] = np.zeros((sizes["heads"], 1))
    plain = {**sizes, "queries": [1], "keys": [sizes["length"]], "is_packed": True}
    right = attention.FORMULAS["fa4.forward"].outputs(plain, given, precision)
    return {"o": right["o"][0]}


def _append_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    before, added, page = (sizes[name] for name in ("before", "added", "page"))
    counts = [-(-(old + new) // page) for old, new in zip(before, added, strict=True)]
    rows = (sizes["heads"], sizes["dim"])
    cache, new = (sum(counts) + 1, page, *rows), (sum(added), *rows)
    last = [old + new - (n - 1) * page for old, new, n in zip(before, added, counts, strict=True)]
    result = {name: normal(random, cache, "bf16") for name in "kv"}
    result |= {f"new_{name}": normal(random, new, "bf16") for name in "kv"}
    indices = {
        "page_table": random.permutation(sum(counts) + 1)[: sum(counts)],
        "page_offsets": np.cumsum([0, *counts]),
        "last": np.array(last),
        "sequences": np.repeat(np.arange(len(added)), added),
        "positions": np.concatenate(
            [np.arange(old, old + new) for old, new in zip(before, added, strict=True)]
        ),
    }
    return result | {name: value.astype(np.int32) for name, value in indices.items()}


def _append_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    page = sizes["page"]
    result = {name: precision.wide(arrays[name]).copy() for name in "kv"}
    for row, (sequence, position) in enumerate(
        zip(arrays["sequences"], arrays["positions"], strict=True)
    ):
        at = arrays["page_table"][arrays["page_offsets"][sequence] + position // page]
        for name in "kv":
            result[name][at, position % page] = precision.wide(arrays[f"new_{name}"][row])
    return result


def _rotate_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    rows, dim = len(sizes["positions"]), sizes["dim"]
    result: Arrays = {"positions": np.array(sizes["positions"], np.int32)}
    for name, heads in (("q", sizes["heads"]), ("k", sizes["kv_heads"])):
        result[name] = normal(random, (rows, heads, dim), "bf16")
        result[f"{name}_out"] = nothing((rows, heads, dim), "bf16")
    return result


def _rotate_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """Column i and that dim / 2 behind it are turned by position / 10000^(2 i / dim)."""
    half = sizes["dim"] // 2
    frequencies = precision.kind(1e4) ** (-np.arange(half, dtype=precision.kind) / half)
    angles = precision.wide(arrays["positions"])[:, None, None] * frequencies
    cosine, sine = np.cos(angles), np.sin(angles)
    result: Arrays = {}
    for name in "qk":
        x = precision.wide(arrays[name])
        first, second = x[..., :half], x[..., half:]
        turned = [first * cosine - second * sine, second * cosine + first * sine]
        result[f"{name}_out"] = np.concatenate(turned, axis=-1)
    return result


def _float_scales(random: np.random.Generator, *shape: int) -> Array:
    return random.uniform(0.5, 2.0, shape).astype(np.float32)


def _fp8_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    return {
        "a": normal(random, (m, k), "e4m3"),
        "b": normal(random, (n, k), "e4m3"),
        "d": nothing((m, n), "bf16"),
        "a_scale": _float_scales(random, k // GROUP, m),
        "b_scale": _float_scales(random, k // GROUP, n // GROUP),
    }


def _fp8_product(a: Array, b: Array, a_scale: Array, b_scale: Array, precision: Precision) -> Array:
    """A [m, k] by B [n, k], with scales [k / 128, m] and [k / 128, n / 128]."""
    parts = np.zeros((len(a), len(b)), precision.kind)
    for at in range(a.shape[1] // GROUP):
        columns = slice(at * GROUP, (at + 1) * GROUP)
        scale = a_scale[at][:, None] * np.repeat(b_scale[at], GROUP)[None]
        parts += precision.wide(a[:, columns]) @ precision.wide(b[:, columns]).T * scale
    return parts


def _fp8_outputs(_: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    a, b = arrays["a"], arrays["b"]
    scales = (precision.wide(arrays[name]) for name in ("a_scale", "b_scale"))
    return {"d": _fp8_product(a, b, *scales, precision)}


def _grouped_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    rows, n, k = sizes["rows"], sizes["n"], sizes["k"]
    m, groups = sum(rows), len(rows)
    return {
        "a": normal(random, (m, k), "e4m3"),
        "b": normal(random, (groups, n, k), "e4m3"),
        "d": nothing((m, n), "bf16"),
        "a_scale": _float_scales(random, k // GROUP, m),
        "b_scale": _float_scales(random, groups, k // GROUP, n // GROUP),
        "offsets": np.cumsum([0, *rows]).astype(np.int32),
    }


def _grouped_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    parts: list[Array] = []
    for at in range(len(sizes["rows"])):
        rows = slice(*arrays["offsets"][at : at + 2])
        scales = precision.wide(arrays["a_scale"])[:, rows], precision.wide(arrays["b_scale"])[at]
        parts.append(_fp8_product(arrays["a"][rows], arrays["b"][at], *scales, precision))
    return {"d": np.concatenate(parts)}


def _scaled_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    result = {"d": nothing((sizes["m"], sizes["n"]), "f16"), "alpha": np.ones(1, np.float32)}
    for name, rows in zip("ab", (sizes["m"], sizes["n"]), strict=True):
        form, shape = FORMATS[sizes["form"]], (1, rows, sizes["k"])
        result[name], result[f"{name}_scale"] = random_operand(random, form, shape)
    return result


def _scaled_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    form = FORMATS[sizes["form"]]
    a, b = (
        precision.wide(dequantised(arrays[name], arrays[f"{name}_scale"], form, sizes["k"])[0])
        for name in "ab"
    )
    return {"d": a @ b.T}


def _queries(sizes: Sizes) -> list[int]:
    """Of each sequence."""
    queries = sizes.get("queries", 1)
    return [queries] * len(sizes["keys"]) if isinstance(queries, int) else queries


def _paged_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    """Packed queries; K and V in pages [pages, kv_heads, page, dim], no page used twice."""
    dtype, heads, kv_heads = sizes.get("dtype", "bf16"), sizes["heads"], sizes["kv_heads"]
    keys, page, dim = sizes["keys"], sizes.get("page", 16), 128
    queries, batch, count = _queries(sizes), len(sizes["keys"]), -(-max(keys) // page)
    rows, pages = (sum(queries), heads), (batch * count + 1, kv_heads, page, dim)
    table = random.permutation(pages[0])[: batch * count].reshape(batch, count)
    result = {"page_table": table.astype(np.int32), "used": np.array(keys, np.int32)}
    result |= {"q": normal(random, (*rows, dim), dtype), "o": nothing((*rows, dim), dtype)}
    result |= {"lse": nothing(rows, "f32")}
    result |= {name: normal(random, pages, dtype) for name in "kv"}
    if "queries" in sizes and not isinstance(sizes["queries"], int):
        offsets = {"q_offsets": queries, "k_offsets": keys}
        result |= {name: np.cumsum([0, *some]).astype(np.int32) for name, some in offsets.items()}
    return result


def _paged_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """As packed attention; LSE is to the base of two."""
    given = {"q": arrays["q"], "o": arrays["o"], "lse": arrays["lse"].T}
    for name in "kv":
        parts = [
            arrays[name][table].swapaxes(1, 2).reshape(-1, sizes["kv_heads"], 128)[:length]
            for table, length in zip(arrays["page_table"], sizes["keys"], strict=True)
        ]
        given[name] = np.concatenate(parts)
    plain = {"is_causal": True, **sizes, "queries": _queries(sizes), "is_packed": True, "page": 0}
    right = attention.FORMULAS["fa4.forward"].outputs(plain, given, precision)
    return {"o": right["o"], "lse": right["lse"].T * precision.kind(np.log2(np.e))}


def _nvfp4_operands(sizes: Sizes, random: np.random.Generator) -> Arrays:
    """Those of a paged decode, K and V in NVFP4 with plain scales [pages, kv_heads, page, 8]."""
    result = _paged_operands({**sizes, "dtype": "e4m3"}, random)
    del result["lse"]
    for name in "kv":
        shape = result[name].shape
        form, rows = FORMATS["nvfp4"], (1, int(np.prod(shape[:-1])), shape[-1])
        packed, _ = random_operand(random, form, rows)
        result[name] = packed.reshape(*shape[:-1], shape[-1] // 2)
        scale = random.uniform(0.25, 1.0, (*shape[:-1], shape[-1] // form.block))
        result[f"{name}_scale"] = scale.astype(ml_dtypes.float8_e4m3fn)
    return result


def _nvfp4_outputs(sizes: Sizes, arrays: Arrays, precision: Precision) -> Arrays:
    """K and V become e4m3 before they are multiplied. Scales of V lie [token / 4, column, token % 4]."""
    given = {**arrays, "lse": np.zeros(arrays["q"].shape[:2])}
    for name in "kv":
        scale = arrays[f"{name}_scale"]
        if name == "v":
            tiles = scale.reshape(-1, 4, 8, 4).transpose(0, 1, 3, 2)
            scale = tiles.reshape(scale.shape)
        exact = unscaled(arrays[name], FORMATS["nvfp4"]) * np.repeat(
            scale.astype(np.float32), FORMATS["nvfp4"].block, axis=-1
        )
        given[name] = exact.astype(ml_dtypes.float8_e4m3fn)
    return {"o": _paged_outputs({**sizes, "dtype": "e4m3"}, given, precision)["o"]}


_LSE = {"lse": flashinfer.LSE_TOLERANCE}
FORMULAS = {
    "nvcc.forward": Formula(
        _forward_operands, flashinfer.FORMULAS["flashinfer.prefill"].outputs, _LSE
    ),
    "nvcc.latent_decode": flashinfer.FORMULAS["flashinfer.latent_decode"],
    "nvcc.hopper_latent_decode": Formula(_hopper_latent_operands, _hopper_latent_outputs, _LSE),
    "nvcc.hopper_prefill": Formula(_hopper_operands, _hopper_outputs, _LSE),
    "nvcc.decode": Formula(_decode_operands, _decode_outputs),
    "nvcc.generated_context": Formula(_paged_operands, _paged_outputs, _LSE),
    "nvcc.generated_decode": Formula(_paged_operands, _paged_outputs, _LSE),
    "nvcc.nvfp4_decode": Formula(_nvfp4_operands, _nvfp4_outputs),
    "nvcc.rotate": Formula(_rotate_operands, _rotate_outputs),
    "nvcc.append": Formula(_append_operands, _append_outputs),
    "nvcc.fp8_product": Formula(_fp8_operands, _fp8_outputs),
    "nvcc.fp8_grouped": Formula(_grouped_operands, _grouped_outputs),
    "nvcc.scaled_product": Formula(_scaled_operands, _scaled_outputs),
}
