"""Launches of kernels that FlashInfer ships as CUDA C++, compiled by nvcc; runs in the environment of the peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .._nvcc import Library, data, library
from .._recording import Recorder
from .._recording import tensor as allocated
from ..cases import FORMATS

CUTLASS_TYPES = {
    "bf16": "cutlass::bfloat16_t",
    "f16": "cutlass::half_t",
    "e4m3": "cutlass::float_e4m3_t",
}
CUDA_TYPES = {"bf16": "nv_bfloat16", "f16": "half"}
TILES = 131072  # of queries that a plan has room for, as FlashInfer's own wrapper


def tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor whose values nobody reads: only where it begins on the device counts."""
    return allocated(shape, dtype, "cpu")


def forward(
    recorder: Recorder,
    *,
    queries: list[int],
    keys: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dim_v: int = 0,
    dtype: str = "bf16",
    is_causal: bool = False,
    multiprocessors: int = 0,
) -> None:
    """CUTLASS's forward for SM100 over packed sequences, planned on the device."""
    dim_v = dim_v or dim
    out = "bf16" if dtype == "e4m3" else dtype
    made = library(
        recorder,
        "fmha_sm100",
        HEAD_DIM_QK=dim,
        HEAD_DIM_VO=dim_v,
        IN=CUTLASS_TYPES[dtype],
        OUT=CUTLASS_TYPES[out],
        MASK="CausalMask" if is_causal else "ResidualMask",
    )
    kernels = replace(made, multiprocessors=multiprocessors)
    rows, longest = sum(queries), max(queries)
    buckets = multiprocessors or recorder.device.sm_count
    q = tensor((rows, heads, dim), dtype)
    k, v = tensor((sum(keys), kv_heads, dim), dtype), tensor((sum(keys), kv_heads, dim_v), dtype)
    o, lse = tensor((longest + rows, heads, dim_v), out), tensor((rows, heads), "f32")
    offsets = [tensor((len(queries) + 1,), "i32") for _ in range(2)]
    plan = [tensor((size,), "i32") for size in (buckets + 1, TILES, TILES, TILES)]
    recorder.name(q=q, k=k, v=v, o=o, lse=lse, q_offsets=offsets[0], k_offsets=offsets[1])
    kernels.call(
        "fmha_sm100", q, k, v, o[longest:], lse, *offsets, *plan, tensor((1 << 20,), "u8"),
        rows, sum(keys), heads, kv_heads, len(queries), longest, buckets,
    )  # fmt: skip


def latent_decode(
    recorder: Recorder, *, keys: list[int], page: int = 128, dtype: str = "bf16"
) -> None:
    """CUTLASS's latent decode for SM100: 128 heads, 512 columns of values and keys, 64 of keys alone."""
    kernels = library(recorder, "mla_sm100", IN=CUTLASS_TYPES[dtype], OUT=CUTLASS_TYPES[dtype])
    batch, per_sequence = len(keys), -(-max(keys) // page)
    count = batch * per_sequence + 1
    q, cache = tensor((batch, 1, 128, 576), dtype), tensor((count, page, 576), dtype)
    o, lse = tensor((batch, 1, 128, 512), dtype), tensor((batch, 128), "f32")
    table, used = tensor((batch, per_sequence), "i32"), tensor((batch,), "i32")
    recorder.name(q=q, cache=cache, page_table=table, used=used, o=o)
    workspace = tensor((1 << 25,), "u8")
    kernels.call(
        "mla_sm100", workspace, o, lse, q, cache, used, table, batch, per_sequence, count, page
    )


def hopper_latent_decode(
    recorder: Recorder,
    *,
    keys: list[int],
    page: int = 64,
    heads: int = 128,
    dtype: str = "bf16",
    multiprocessors: int = 4,
) -> None:
    """FlashInfer's latent decode for Hopper, planned on the host for these multiprocessors."""
    made = library(recorder, "mla_sm90", TYPE=CUDA_TYPES[dtype])
    batch, per_sequence = len(keys), -(-max(keys) // page)
    count = batch * per_sequence + 1
    rows = {"q_nope": (batch, heads, 512), "q_pe": (batch, heads, 64)}
    rows |= {"ckv": (count, page, 512), "kpe": (count, page, 64), "o": (batch, heads, 512)}
    given = {name: tensor(shape, dtype) for name, shape in rows.items()}
    given["lse"], table = tensor((batch, heads), "f32"), tensor((batch, per_sequence), "i32")
    recorder.name(**given, page_table=table)
    workspaces = tensor((1 << 21,), "u8"), tensor((1 << 21,), "u8")
    pages = [at * per_sequence for at in range(batch + 1)]
    replace(made, multiprocessors=multiprocessors).call(
        "mla_sm90", *given.values(), *workspaces, table, list(range(batch + 1)), pages, keys, batch,
        heads, page,
    )  # fmt: skip


def hopper_prefill(
    recorder: Recorder,
    *,
    queries: list[int],
    keys: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: str = "bf16",
    is_causal: bool = False,
) -> None:
    """FlashInfer's prefill for Hopper of one sequence."""
    mask = "kCausal" if is_causal else "kNone"
    kernels = library(
        recorder,
        "prefill_sm90",
        HEAD_DIM=dim,
        TYPE=CUTLASS_TYPES[dtype],
        MASK=f"flashinfer::MaskMode::{mask}",
    )
    (rows,), (length,) = queries, keys
    q, o = (tensor((rows, heads, dim), dtype) for _ in range(2))
    k, v = (tensor((length, kv_heads, dim), dtype) for _ in range(2))
    lse = tensor((rows, heads), "f32")
    recorder.name(q=q, k=k, v=v, o=o, lse=lse)
    kernels.call("prefill_sm90", q, k, v, o, lse, rows, length, heads, kv_heads)


def decode(
    recorder: Recorder, *, length: int, heads: int, kv_heads: int, dim: int, dtype: str = "bf16"
) -> None:
    """FlashInfer's decode of one sequence as written for Ampere."""
    kernels = library(recorder, "decode", HEAD_DIM=dim, TYPE=CUDA_TYPES[dtype])
    q, o = (tensor((heads, dim), dtype) for _ in range(2))
    k, v = (tensor((length, kv_heads, dim), dtype) for _ in range(2))
    recorder.name(q=q, k=k, v=v, o=o)
    kernels.call("decode", q, k, v, o, tensor((1 << 22,), dtype), length, heads, kv_heads)


def rotate(
    recorder: Recorder,
    *,
    positions: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: str = "bf16",
) -> None:
    """Positions turned into Q and K, halves of a row together."""
    kernels = library(recorder, "rows", TYPE=CUDA_TYPES[dtype])
    rows = len(positions)
    q, q_out = (tensor((rows, heads, dim), dtype) for _ in range(2))
    k, k_out = (tensor((rows, kv_heads, dim), dtype) for _ in range(2))
    at = tensor((rows,), "i32")
    recorder.name(q=q, k=k, q_out=q_out, k_out=k_out, positions=at)
    kernels.call("rotate", q, k, q_out, k_out, at, rows, heads, kv_heads, dim)


def append(
    recorder: Recorder,
    *,
    before: list[int],
    added: list[int],
    heads: int,
    dim: int,
    page: int,
    dtype: str = "bf16",
) -> None:
    """New keys and values appended to the pages of their sequences."""
    kernels = library(recorder, "rows", TYPE=CUDA_TYPES[dtype])
    batch, count = len(before), sum(added)
    pages = sum(-(-(old + new) // page) for old, new in zip(before, added, strict=True))
    k, v = (tensor((pages + 1, page, heads, dim), dtype) for _ in range(2))
    new_k, new_v = (tensor((count, heads, dim), dtype) for _ in range(2))
    names = ("page_table", "page_offsets", "last", "sequences", "positions")
    indices = [tensor((size,), "i32") for size in (pages, batch + 1, batch, count, count)]
    recorder.name(k=k, v=v, new_k=new_k, new_v=new_v, **dict(zip(names, indices, strict=True)))
    kernels.call("append", k, v, new_k, new_v, *indices, count, batch, page, heads, dim)


def fp8_product(recorder: Recorder, *, m: int, n: int, k: int, ctas: int = 1) -> None:
    """D = A B^T in e4m3 with a float scale per 1x128 of A and per 128x128 of B."""
    kernels = library(recorder, "gemm_fp8_sm100", CTAS=ctas, OUT=CUTLASS_TYPES["bf16"])
    a, b, d = tensor((m, k), "e4m3"), tensor((n, k), "e4m3"), tensor((m, n), "bf16")
    scales = tensor((k // 128, m), "f32"), tensor((k // 128, n // 128), "f32")
    recorder.name(a=a, b=b, d=d, a_scale=scales[0], b_scale=scales[1])
    kernels.call("product", tensor((1 << 24,), "u8"), a, b, *scales, d, m, n, k)


def fp8_grouped(recorder: Recorder, *, rows: list[int], n: int, k: int, ctas: int = 1) -> None:
    """The same product of groups of rows, each with a B of its own.

    The scales of A have room behind them, since the kernel reads past their end.
    """
    kernels = library(
        recorder, "gemm_fp8_sm100", CTAS=ctas, OUT=CUTLASS_TYPES["bf16"], IS_GROUPED=1
    )
    m, groups = sum(rows), len(rows)
    a, b, d = tensor((m, k), "e4m3"), tensor((groups, n, k), "e4m3"), tensor((m, n), "bf16")
    scales = tensor((k // 128 + 1, m), "f32"), tensor((groups, k // 128, n // 128), "f32")
    offsets = tensor((groups + 1,), "i32")
    recorder.name(a=a, b=b, d=d, a_scale=scales[0], b_scale=scales[1], offsets=offsets)
    buffers = tensor((1 << 20,), "u8"), tensor((1 << 24,), "u8")
    kernels.call("grouped", *buffers, a, b, *scales, d, offsets, m, n, k, groups)


def scaled_product(
    recorder: Recorder,
    *,
    m: int,
    n: int,
    k: int,
    form: str,
    tile: tuple[int, int, int],
    cluster: tuple[int, int] = (1, 1),
) -> None:
    """D = A B^T in a block-scaled format; a cluster of two CTAs along m pairs them."""
    kernels = library(
        recorder,
        "gemm_scaled_sm100",
        **dict(zip(("TILE_M", "TILE_N", "TILE_K"), tile, strict=True)),
        CLUSTER_M=cluster[0],
        CLUSTER_N=cluster[1],
        CTAS="_2SM" if cluster[0] == 2 else "_1SM",
        **({"IS_NVFP4": 1} if form == "nvfp4" else {}),
    )
    bits, block = FORMATS[form].bits, FORMATS[form].block
    a, b = (tensor((1, rows, k * bits // 8), "u8") for rows in (m, n))
    scales = [tensor((1, -(-rows // 128), -(-k // (4 * block)), 32, 4, 4), "u8") for rows in (m, n)]
    d, alpha = tensor((m, n), "f16"), tensor((1,), "f32")
    recorder.name(a=a, b=b, a_scale=scales[0], b_scale=scales[1], d=d, alpha=alpha)
    workspace = tensor((1 << 24,), "u8")
    kernels.call("scaled", d, a, b, *scales, alpha, workspace, m, n, k)


def _generated(recorder: Recorder, component: str, body: str, **macros: object) -> Library:
    """A generated attention kernel for sm_100a with the host code that comes with it."""
    folder = data() / "csrc" / "cake_fmha"
    sources = (
        folder / "cuda" / component / body,
        folder / "bindings" / f"cake_fmha_{component}_binding.cu",
        folder / "jit" / f"cake_fmha_{component}_jit_binding.cu",
    )
    options = (f"-I{folder}", *(f"-D{name}={value}" for name, value in macros.items()))
    return library(recorder, *sources, options=options)


def _paged(
    recorder: Recorder, keys: list[int], kv_heads: int, dim: int, page: int, dtype: str
) -> dict[str, Any]:
    """K and V [pages, kv_heads, page, dim], the page table and the lengths."""
    batch, per_sequence = len(keys), -(-max(keys) // page)
    k, v = (tensor((batch * per_sequence + 1, kv_heads, page, dim), dtype) for _ in range(2))
    result = {"k": k, "v": v}
    result |= {"page_table": tensor((batch, per_sequence), "i32"), "used": tensor((batch,), "i32")}
    recorder.name(**result)
    return result


def generated_decode(
    recorder: Recorder, *, keys: list[int], heads: int, kv_heads: int, queries: int = 1
) -> None:
    """The generated decode in bf16, pages of 16."""
    batch, dim = len(keys), 128
    kernels = _generated(
        recorder,
        "decode_native_bf16",
        "has_sink0_has_window0_retain_kv_l20_use_scale_ptr0.cu",
        BATCH_SIZE=batch,
        Q_LEN=queries,
        NUM_Q_HEADS=heads,
        NUM_KV_HEADS=kv_heads,
        CAKE_FMHA_HAS_SINK=0,
        CAKE_FMHA_HAS_WINDOW=0,
        CAKE_FMHA_USE_SCALE_PTR=0,
        CAKE_FMHA_RETAIN_KV_L2=0,
    )
    given = _paged(recorder, keys, kv_heads, dim, 16, "bf16")
    q, o = (tensor((batch * queries, heads, dim), "bf16") for _ in range(2))
    lse = tensor((batch * queries, heads), "f32")
    recorder.name(q=q, o=o, lse=lse)
    workspace, counters = tensor((1 << 22,), "u8"), tensor((1 << 16,), "u8")
    kernels.call_packed(
        "cake_paged_attention_decode", o, None, q, given["k"], given["v"], workspace, counters,
        given["page_table"], given["used"], queries, max(keys), dim**-0.5, 1.0, -1.0, -1, 0,
        batch, -1, 0, recorder.device.sm_count, False, 1 << 22, None, None, None, None, None, None,
        lse, heads, 1, False, None,
    )  # fmt: skip


def nvfp4_decode(recorder: Recorder, *, keys: list[int], heads: int, kv_heads: int) -> None:
    """The generated decode in e4m3 over NVFP4 pages of 16; the host code reads the lengths."""
    batch, dim, page, form = len(keys), 128, 16, FORMATS["nvfp4"]
    folder = data() / "csrc" / "cake_fmha"
    parts = (("decode_quant_nvfp4", "page_size16"), ("decode_quant_fp8_reduce", "default"))
    sources = [folder / "jit" / "cake_fmha_decode_quant_fp8_jit_binding.cu"]
    for component, body in parts:
        sources.append(folder / "cuda" / component / f"{body}.cu")
        sources.append(folder / "bindings" / f"cake_fmha_{component}_binding.cu")
    macros = {"BATCH_SIZE": batch, "NUM_Q_HEADS": heads, "NUM_KV_HEADS": kv_heads}
    macros |= {
        f"CAKE_FMHA_{name}": value
        for name, value in (("PAGE_SIZE", page), ("FULL_BLOCKS", 0), ("NVFP4", 1))
    }
    options = (f"-I{folder}", *(f"-D{name}={value}" for name, value in macros.items()))
    count, per_sequence = -(-max(keys) // page) * batch + 1, -(-max(keys) // page)
    k, v = (tensor((count, kv_heads, page, dim // 2), "u8") for _ in range(2))
    scales = [tensor((count, kv_heads, page, dim // form.block), "e4m3") for _ in range(2)]
    q, o = (tensor((batch, heads, dim), "e4m3") for _ in range(2))
    table, used = tensor((batch, per_sequence), "i32"), tensor((batch,), "i32")
    recorder.name(
        q=q, k=k, v=v, k_scale=scales[0], v_scale=scales[1], o=o, page_table=table, used=used
    )
    workspace, counters = tensor((1 << 22,), "u8"), tensor((1 << 16,), "u8")
    library(recorder, *sources, options=options).call_packed(
        "cake_paged_attention_decode", o, None, q, k, v, workspace, counters, table, used, 1, max(keys),
        dim**-0.5, 1.0, -1.0, -1, 0, batch, -1, 0, recorder.device.sm_count, False, 1 << 22, None, None,
        *scales, None, None, None, 0, 0, False, None, known=[(used, keys)],
    )  # fmt: skip


def generated_context(
    recorder: Recorder,
    *,
    queries: list[int],
    keys: list[int],
    heads: int,
    kv_heads: int,
    page: int,
    dtype: str = "bf16",
    is_causal: bool = True,
    multiprocessors: int = 0,
) -> None:
    """The generated context attention over K and V in pages.

    Args:
      multiprocessors: told to the host code, so that few CTAs get several work tiles.
    """
    dim, group = 128, heads // kv_heads
    rows, tokens = sum(queries), 128 // group
    folder = "sm_100a/" if dtype == "bf16" else ""
    kernels = _generated(
        recorder,
        "context_bf16" if dtype == "bf16" else "context_fp8",
        f"{folder}enable_sink0_is_causal{int(is_causal)}_return_lse1.cu",
        NUM_M_BLOCKS=-(-max(queries) // (2 * tokens)),
        NUM_Q_HEADS=heads,
        HEADS_PER_GROUP=group,
        PACK_G=group,
        TOK_PER_STAGE=tokens,
        L2_SWIZZLE=1,
        PAGE_SIZE=page,
        CAKE_FMHA_CONTEXT_IS_CAUSAL=int(is_causal),
        CAKE_FMHA_CONTEXT_RETURN_LSE=1,
        CAKE_FMHA_CONTEXT_ENABLE_SINK=0,
    )
    given = _paged(recorder, keys, kv_heads, dim, page, dtype)
    q, o, lse = *(tensor((rows, heads, dim), dtype) for _ in range(2)), tensor((rows, heads), "f32")
    offsets = [tensor((len(queries) + 1,), "i32") for _ in range(2)]
    recorder.name(q=q, o=o, lse=lse, q_offsets=offsets[0], k_offsets=offsets[1])
    workspace, counters = tensor((1 << 22,), "u8"), tensor((1 << 16,), "u8")
    recorder.zeroed.add(counters.untyped_storage()._cdata)
    kernels.call_packed(
        "cake_paged_attention_context", o, None, q, given["k"], given["v"], workspace, counters,
        given["page_table"], given["used"], max(queries), max(keys), dim**-0.5, 1.0, -1.0, -1, 0,
        len(keys), -1, *offsets, multiprocessors or recorder.device.sm_count, False, 1 << 22,
        None, None, None, None, None, None, None, is_causal, lse, heads, 1,
    )  # fmt: skip
