"""Launches of kernels that FlashInfer ships as CUDA C++, compiled by nvcc; runs in the environment of the peers."""

from __future__ import annotations

from typing import Any

from .._nvcc import library
from .._recording import Recorder
from .._recording import tensor as made

CUTLASS_TYPES = {
    "bf16": "cutlass::bfloat16_t",
    "f16": "cutlass::half_t",
    "e4m3": "cutlass::float_e4m3_t",
}
TILES = 131072  # of queries that a plan has room for, as FlashInfer's own wrapper


def tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor whose values nobody reads: only where it begins on the device counts."""
    return made(shape, dtype, "cpu")


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
) -> None:
    """CUTLASS's forward for SM100 over packed sequences, planned on the device."""
    dim_v = dim_v or dim
    out = "bf16" if dtype == "e4m3" else dtype
    kernels = library(
        recorder,
        "fmha_sm100",
        HEAD_DIM_QK=dim,
        HEAD_DIM_VO=dim_v,
        IN=CUTLASS_TYPES[dtype],
        OUT=CUTLASS_TYPES[out],
        MASK="CausalMask" if is_causal else "ResidualMask",
    )
    rows, longest = sum(queries), max(queries)
    buckets = recorder.device.sm_count
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
