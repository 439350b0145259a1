"""Kernels that a program launches and a formula judges, as plain data; nothing but the standard library is imported here."""

from __future__ import annotations

from .kernel import Kernel, Known, kernel
from .nvcc_kernels import NVCC

_UNWAITED = (
    Known("exit", "cp.async.bulk.tensor.4d.global.shared::cta"),
    Known("exit", "cp.reduce.async.bulk.global.shared::cta"),
)
_LATENT = (
    Known("barrier", "barrier.cluster.arrive"),
    Known("race", "cp.async.bulk.tensor.4d.shared::cluster.global"),
    Known("race", "cp.async.cg.shared.global"),
)
_UNFENCED_COPIES = Known("proxy", "tcgen05.mma")
_ROWS_PAST_THE_END = Known("uninitialised", "ld.shared")
_UNFENCED_INIT = Known("mbarrier", "cp.async.bulk.tensor")
_DECODE = (
    Known("race", "ld.shared.v4.b32"),
    _UNFENCED_INIT,
    Known("uninitialised", "tcgen05.mma.cta_group::1.kind::f16"),
    Known("exit", "cp.async.bulk.tensor.5d.global.shared::cta"),
)
_SPLIT = (*_DECODE, Known("exit", "cp.async.bulk.tensor.5d.global.shared::cta"))

FLASH_ATTENTION = (
    kernel(
        "fa4-packed", "fa4.forward",
        "forward D=128 causal, H=4 on 2, lengths 100x100, 1x70 and 300x500 packed, bf16",
        queries=[100, 1, 300], keys=[100, 70, 500], heads=4, kv_heads=2, is_packed=True, is_causal=True,
    ),
    kernel(
        "fa4-paged-tma", "fa4.forward",
        "forward D=128 causal, H=4 on 2, 64 queries, 300 and 77 keys in pages of 128, bf16",
        queries=[64, 64], keys=[300, 77], heads=4, kv_heads=2, page=128, is_causal=True,
    ),
    kernel(
        "fa4-paged-copies", "fa4.forward",
        "forward D=128 causal, H=8 on 2, 4 queries, 300 and 77 keys in pages of 16, bf16",
        _UNFENCED_COPIES, queries=[4, 4], keys=[300, 77], heads=8, kv_heads=2, page=16, is_causal=True,
    ),
    kernel(
        "fa4-sink", "fa4.forward", "forward D=128 causal, S=128x256, learnable sink, bf16",
        queries=[128], keys=[256], kv_heads=2, has_sink=True, is_causal=True,
    ),
    kernel(
        "fa4-softcap", "fa4.forward", "forward D=128 causal, S=128x256, soft cap 15, bf16",
        queries=[128], keys=[256], kv_heads=2, softcap=15.0, is_causal=True,
    ),
    kernel(
        "fa4-d256", "fa4.forward", "forward D=256 causal, H=1 S=256, bf16, CTA pairs",
        queries=[256], keys=[256], heads=1, kv_heads=1, dim=256, is_causal=True,
    ),
    kernel(
        "fa4-mla", "fa4.forward", "latent attention D=64+512 causal, H=16 on 1, S=64x192, bf16",
        *_LATENT, queries=[64], keys=[192], heads=16, dim=64, latent=512, is_causal=True,
    ),
    kernel(
        "fa4-mla-decode", "fa4.forward",
        "latent attention D=64+512, H=16 on 1, one query, 200 keys in pages of 64, bf16",
        *_LATENT, _UNFENCED_COPIES, queries=[1], keys=[200], heads=16, dim=64, latent=512, page=64,
    ),
    kernel(
        "fa4-backward-d128", "fa4.backward", "backward D=128 causal, H=1 S=256, bf16, CTA pairs",
        *_UNWAITED, sq=256, sk=256, dim=128, heads=1, kv_heads=1, is_causal=True,
    ),
    kernel(
        "fa4-backward-d64", "fa4.backward", "backward D=64, H=2 on 1, S=128x256, bf16",
        *_UNWAITED, sq=128, sk=256, dim=64, kv_heads=1,
    ),
    kernel(
        "fa4-backward-d192", "fa4.backward", "backward D=192/128 causal, H=1 S=256, bf16",
        *_UNWAITED, sq=256, sk=256, dim=192, dim_v=128, heads=1, kv_heads=1, is_causal=True,
    ),
    kernel(
        "fa4-backward-d256", "fa4.backward", "backward D=256, H=1 S=256, bf16, CTA pairs",
        sq=256, sk=256, dim=256, heads=1, kv_heads=1,
    ),
    kernel(
        "fa4-backward-ordered", "fa4.backward",
        "backward D=128 causal, H=1 S=200x300, bf16, deterministic",
        *_UNWAITED, sq=200, sk=300, dim=128, heads=1, kv_heads=1, is_causal=True,
        is_deterministic=True,
    ),
    kernel(
        "fa4-sm90-d128", "fa4.forward", "forward D=128 causal, H=2 S=256, bf16",
        target="sm_90a", queries=[256], keys=[256], kv_heads=2, is_causal=True,
    ),
    kernel(
        "fa4-sm90-full", "fa4.forward", "forward D=128, H=4 on 2, S=200x300, bf16",
        target="sm_90a", queries=[200], keys=[300], heads=4, kv_heads=2,
    ),
    kernel(
        "fa4-sm90-packed", "fa4.forward",
        "forward D=64 causal, H=4 on 1, lengths 100x100 and 30x200 packed, bf16",
        target="sm_90a", queries=[100, 30], keys=[100, 200], heads=4, dim=64, is_packed=True,
        is_causal=True,
    ),
    kernel(
        "fa4-sm90-backward-d64", "fa4.backward", "backward D=64 causal, H=2 S=256, bf16",
        target="sm_90a", sq=256, sk=256, dim=64, is_causal=True,
    ),
    kernel(
        "fa4-sm90-backward-d128", "fa4.backward", "backward D=128, H=2 S=256, bf16",
        target="sm_90a", sq=256, sk=256, dim=128,
    ),
)  # fmt: skip

FLASHINFER = (
    kernel("fi-rmsnorm", "flashinfer.norm", "RMS norm of 8 rows of 2048, bf16", rows=8, columns=2048),
    kernel(
        "fi-layernorm", "flashinfer.norm", "layer norm of 8 rows of 1024, bf16",
        rows=8, columns=1024, is_layer=True,
    ),
    kernel(
        "fi-added-rmsnorm", "flashinfer.added_norm",
        "sum and its RMS norm in place, 6 rows of 4096, bf16", rows=6, columns=4096,
    ),
    kernel(
        "fi-prefill", "flashinfer.prefill",
        "prefill D=128 causal, H=4 on 2, lengths 100x150 and 200x200 packed, bf16",
        queries=[100, 200], keys=[150, 200], heads=4, kv_heads=2, dim=128, is_causal=True,
    ),
    kernel(
        "fi-prefill-persistent", "flashinfer.prefill",
        "prefill D=64 full, H=2, lengths 130x150 and 64x300 packed, f16, persistent",
        queries=[130, 64], keys=[150, 300], heads=2, kv_heads=2, dim=64, dtype="f16",
    ),
    kernel(
        "fi-prefill-paged", "flashinfer.prefill",
        "prefill D=128 causal, H=4 on 2, lengths 60x150 and 100x200 in pages of 64, bf16",
        queries=[60, 100], keys=[150, 200], heads=4, kv_heads=2, dim=128, is_causal=True, page=64,
        pages=[[5, 2, 7], [1, 4, 6, 3]],
    ),
    kernel(
        "fi-mla-decode", "flashinfer.latent_decode",
        "latent decode H=128, 300 keys in pages of 128, split, bf16", keys=[300],
    ),
    kernel(
        "fi-mla-decode-fp8", "flashinfer.latent_decode",
        "latent decode H=128, 200 keys in pages of 128, split, e4m3 to bf16", keys=[200], dtype="e4m3",
    ),
    kernel(
        "fi-mla-decode-sink", "flashinfer.latent_decode",
        "latent decode H=128, 160 keys, split, bf16, with a sink that counts twice",
        keys=[160], sinks=2,
    ),
    kernel(
        "fi-decode-paged", "flashinfer.decode",
        "decode D=128, H=8 on 2, 300 and 77 keys in pages of 16, bf16", *_DECODE,
        keys=[300, 77], heads=8, kv_heads=2, dim=128, page=16,
    ),
    kernel(
        "fi-decode-split", "flashinfer.decode",
        "decode D=128, H=8 on 2, 300 and 257 keys in pages of 32, bf16, 4 splits", *_DECODE,
        keys=[300, 257], heads=8, kv_heads=2, dim=128, page=32, splits=4, reduction="kernel",
    ),
)  # fmt: skip

QUACK = (
    kernel(
        "rmsnorm", "quack.norm", "RMS norm of 7 rows of 1024, bf16", _ROWS_PAST_THE_END,
        rows=7, columns=1024,
    ),
    kernel(
        "rmsnorm-cluster", "quack.norm",
        "sum and its RMS norm, 3 rows of 32768, bf16, a cluster per row",
        rows=3, columns=32768, has_residual=True,
    ),
    kernel(
        "layernorm", "quack.norm", "layer norm of 6 rows of 4096, bf16",
        rows=6, columns=4096, is_layer=True,
    ),
    kernel(
        "rmsnorm-backward", "quack.norm_backward", "RMS norm backward, 16 rows of 1024, bf16",
        rows=16, columns=1024, parts=4,
    ),
    kernel(
        "layernorm-backward", "quack.norm_backward", "layer norm backward, 10 rows of 768, bf16",
        rows=10, columns=768, parts=3, is_layer=True,
    ),
    kernel(
        "softmax", "quack.softmax", "softmax of 9 rows of 1000, bf16", _ROWS_PAST_THE_END,
        rows=9, columns=1000,
    ),
    kernel(
        "softmax-cluster", "quack.softmax", "softmax of 2 rows of 32768, f16, a cluster per row",
        rows=2, columns=32768, dtype="f16",
    ),
    kernel(
        "softmax-backward", "quack.softmax_backward", "softmax backward, 9 rows of 2048, bf16",
        _ROWS_PAST_THE_END, rows=9, columns=2048,
    ),
    kernel(
        "cross-entropy", "quack.cross_entropy", "cross-entropy of 5 rows of 5000, bf16",
        _ROWS_PAST_THE_END, rows=5, columns=5000,
    ),
    kernel(
        "cross-entropy-cluster", "quack.cross_entropy",
        "cross-entropy and gradient, 2 rows of 32768, bf16, a cluster per row",
        rows=2, columns=32768, has_gradient=True,
    ),
    kernel(
        "cross-entropy-backward", "quack.cross_entropy_backward",
        "cross-entropy backward, 5 rows of 4096, bf16", _ROWS_PAST_THE_END, rows=5, columns=4096,
    ),
    kernel("topk", "quack.topk", "largest 16 of 12 rows of 512, bf16", rows=12, columns=512, count=16),
    kernel(
        "rotary", "quack.rotary", "rotary embedding B=2 S=33 H=3 D=64, bf16", _ROWS_PAST_THE_END,
        batch=2, length=33, heads=3, dim=64,
    ),
    kernel(
        "hadamard", "quack.hadamard", "Hadamard transform of 6 rows of 1024, bf16",
        rows=6, columns=1024,
    ),
    kernel(
        "gemm-groups-m", "quack.grouped_gemm", "GEMM of groups of 100, 0, 37 and 150 rows, 256x128, bf16",
        lengths=[100, 0, 37, 150], n=256, k=128, along="m",
    ),
    kernel(
        "gemm-groups-m-2cta", "quack.grouped_gemm",
        "GEMM of groups of 300, 37 and 150 rows, 256x192, bf16, CTA pairs",
        lengths=[300, 37, 150], n=256, k=192, along="m", tile=(256, 128), cluster=(2, 1),
    ),
    kernel(
        "gemm-groups-gather", "quack.grouped_gemm",
        "GEMM of groups of 100, 37 and 150 gathered rows, 256x128, bf16",
        _UNFENCED_COPIES, lengths=[100, 37, 150], n=256, k=128, along="m", is_gathered=True,
    ),
    kernel(
        "gemm-groups-k", "quack.grouped_gemm", "GEMM 128x128 over 128, 64 and 200 of k, bf16",
        lengths=[128, 64, 200], m=128, n=128, k=0, along="k",
    ),
    kernel(
        "gemm-gelu", "quack.activated_gemm", "GEMM 256x256x128 + bias, GELU, bf16",
        m=256, n=256, k=128, activation="gelu_tanh_approx",
    ),
    kernel(
        "gemm-swiglu", "quack.activated_gemm", "GEMM 256x256x128 + bias, SwiGLU, bf16",
        m=256, n=256, k=128, activation="swiglu", is_gated=True,
    ),
    kernel(
        "gemm-symmetric", "quack.symmetric_gemm", "GEMM 512x512x128 of a matrix with itself, bf16",
        m=512, k=128,
    ),
    kernel(
        "gemm-sm90", "quack.hopper_gemm", "GEMM 256x384x256, tile 128x192, cluster 2x1, bf16",
        target="sm_90a", m=256, n=384, k=256, tile=(128, 192), cluster=(2, 1),
    ),
    kernel(
        "gemm-sm90-pingpong", "quack.hopper_gemm",
        "GEMM 512x256x192, tile 64x128, two consumers in turn, bf16",
        target="sm_90a", m=512, n=256, k=192, tile=(64, 128), cluster=(1, 1), is_pingpong=True,
    ),
    kernel(
        "gemm-sm90-groups", "quack.grouped_gemm", "GEMM of groups of 100, 37 and 150 rows, 256x128, bf16",
        target="sm_90a", lengths=[100, 37, 150], n=256, k=128, along="m",
    ),
)  # fmt: skip

TRITON = (
    kernel("triton-softmax", "triton.softmax", "softmax of 6 rows of 1000, bf16", rows=6, columns=1000),
    kernel(
        "triton-layernorm", "triton.norm", "layer norm of 5 rows of 1500, bf16",
        rows=5, columns=1500, is_layer=True,
    ),
    kernel(
        "triton-layernorm-backward", "triton.norm_backward",
        "layer norm backward, 13 rows of 600, bf16, atomic sums",
        rows=13, columns=600, programs=4, is_layer=True,
    ),
    kernel(
        "triton-histogram", "triton.histogram", "histogram of 3000 values, 64 bins, atomic sums",
        count=3000, bins=64,
    ),
    kernel("triton-scan", "triton.scan", "linear recurrence, 4 rows of 700, f32", rows=4, columns=700),
    kernel("triton-sort", "triton.sort", "sort of 3 rows of 256, f32", rows=3, columns=256),
    kernel(
        "triton-gemm-persistent", "triton.persistent_gemm",
        "GEMM 512x384x192, bf16, tensor maps, persistent",
        m=512, n=384, k=192, tile=(128, 128, 64), programs=3,
    ),
    kernel(
        "triton-gemm-persistent-ws", "triton.persistent_gemm",
        "GEMM 512x384x192, bf16, tensor maps, persistent, warp-specialised", _UNFENCED_INIT,
        m=512, n=384, k=192, tile=(128, 128, 64), programs=3, is_specialised=True,
    ),
    kernel(
        "triton-gemm-fp8", "triton.persistent_gemm", "GEMM 256x256x256, e4m3 to bf16, tensor maps",
        m=256, n=256, k=256, tile=(128, 128, 128), programs=4, dtype="e4m3", out_dtype="bf16",
    ),
    kernel(
        "triton-gemm-groups", "triton.grouped_gemm",
        "GEMM of groups of 70, 0, 130 and 20 rows, 128x128, bf16, pointers",
        lengths=[70, 0, 130, 20], n=128, k=128, programs=5, along="m",
    ),
    kernel(
        "triton-gemm-split", "triton.split_gemm", "GEMM 128x128x512, f16 to f32, 4 splits, atomic sums",
        m=128, n=128, k=512, splits=4, dtype="f16",
    ),
    kernel(
        "triton-gemm-mxfp8", "triton.scaled_gemm", "GEMM 256x128x256, mxfp8 to bf16",
        m=256, n=128, k=256, forms=("e4m3", "e4m3"),
    ),
    kernel(
        "triton-gemm-mxfp4", "triton.scaled_gemm", "GEMM 128x128x512, mxfp4 to bf16",
        m=128, n=128, k=512, forms=("e2m1", "e2m1"),
    ),
    kernel(
        "triton-gemm-mxfp8-mxfp4", "triton.scaled_gemm", "GEMM 128x128x256, mxfp8 by mxfp4 to bf16",
        m=128, n=128, k=256, forms=("e4m3", "e2m1"),
    ),
    kernel(
        "triton-gemm-nvfp4", "triton.scaled_gemm", "GEMM 128x128x512, nvfp4 to bf16",
        m=128, n=128, k=512, forms=("e2m1", "e2m1"), block=16,
    ),
    kernel(
        "triton-attention-backward", "triton.backward", "attention backward D=64 causal, H=2 S=192, f16",
        heads=2, sq=192, dim=64, is_causal=True,
    ),
    kernel(
        "triton-decode-paged", "triton.decode",
        "decode D=128, H=16 on 1, 150, 33 and 256 keys in pages of 32, bf16",
        keys=[150, 33, 256], heads=16, dim=128, page=32,
    ),
    kernel(
        "triton-sm90-gemm", "triton.persistent_gemm", "GEMM 512x256x192, bf16, tensor maps, persistent",
        target="sm_90a", m=512, n=256, k=192, tile=(128, 128, 64), programs=3, warps=8,
    ),
    kernel(
        "triton-sm90-attention", "triton.forward", "attention D=64 causal, H=2 S=256, f16",
        target="sm_90a", heads=2, length=256, dim=64, is_causal=True, warps=8,
    ),
    kernel(
        "triton-sm90-attention-backward", "triton.backward",
        "attention backward D=64 causal, H=1 S=192, f16",
        target="sm_90a", heads=1, sq=192, dim=64, is_causal=True,
    ),
)  # fmt: skip

KERNELS: tuple[Kernel, ...] = (*FLASH_ATTENTION, *FLASHINFER, *QUACK, *TRITON, *NVCC)
