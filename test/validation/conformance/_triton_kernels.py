"""Kernels that Triton's own compiler makes for Blackwell; runs in the environment of the peers.

The kernels are plain uses of the language, written here; what is of interest is the PTX that Triton makes of them
(tcgen05, tensor maps built on the device, its warp specialisation).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ._recording import Recorder
from ._triton_launch import launch
from .cases import TritonAttention, TritonGemm

KINDS = {"bf16": "bf16", "f16": "fp16"}


@triton.jit
def gemm_pointers(a, b, d, m, n, k, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    rows = tl.program_id(0) * TM + tl.arange(0, TM)
    columns = tl.program_id(1) * TN + tl.arange(0, TN)
    inner = tl.arange(0, TK)
    a_tile = a + rows[:, None] * k + inner[None, :]
    b_tile = b + inner[:, None] * n + columns[None, :]
    sums = tl.zeros((TM, TN), tl.float32)
    for _ in range(0, k, TK):
        sums = tl.dot(tl.load(a_tile), tl.load(b_tile), sums)
        a_tile += TK
        b_tile += TK * n
    tl.store(d + rows[:, None] * n + columns[None, :], sums.to(d.dtype.element_ty))


@triton.jit
def gemm_maps(
    a, b, d, m, n, k, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, WS: tl.constexpr
):
    a_map = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[TM, TK])
    b_map = tl.make_tensor_descriptor(b, shape=[k, n], strides=[n, 1], block_shape=[TK, TN])
    d_map = tl.make_tensor_descriptor(d, shape=[m, n], strides=[n, 1], block_shape=[TM, TN])
    row = tl.program_id(0) * TM
    column = tl.program_id(1) * TN
    sums = tl.zeros((TM, TN), tl.float32)
    for at in tl.range(0, k, TK, warp_specialize=WS):
        sums = tl.dot(a_map.load([row, at]), b_map.load([at, column]), sums)
    d_map.store([row, column], sums.to(d.dtype.element_ty))


@triton.jit
def attention_maps(
    q, k, v, o, lse, length, scale,
    D: tl.constexpr, TM: tl.constexpr, TN: tl.constexpr, CAUSAL: tl.constexpr, WS: tl.constexpr,
):  # fmt: skip
    plane = tl.program_id(1)
    start = tl.program_id(0) * TM
    total = tl.num_programs(1) * length
    q_map = tl.make_tensor_descriptor(q, shape=[total, D], strides=[D, 1], block_shape=[TM, D])
    k_map = tl.make_tensor_descriptor(k, shape=[total, D], strides=[D, 1], block_shape=[TN, D])
    v_map = tl.make_tensor_descriptor(v, shape=[total, D], strides=[D, 1], block_shape=[TN, D])
    o_map = tl.make_tensor_descriptor(o, shape=[total, D], strides=[D, 1], block_shape=[TM, D])
    rows = start + tl.arange(0, TM)
    queries = q_map.load([plane * length + start, 0])
    top = tl.full((TM,), -float("inf"), tl.float32)
    total_p = tl.zeros((TM,), tl.float32)
    sums = tl.zeros((TM, D), tl.float32)
    end = start + TM if CAUSAL else length
    for at in tl.range(0, end, TN, warp_specialize=WS):
        scores = tl.dot(queries, k_map.load([plane * length + at, 0]).T) * (scale * 1.44269504)
        if CAUSAL:
            columns = at + tl.arange(0, TN)
            scores = tl.where(rows[:, None] >= columns[None, :], scores, -float("inf"))
        above = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - above[:, None])
        shrink = tl.exp2(top - above)
        total_p = total_p * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None]
        sums = tl.dot(p.to(v.dtype.element_ty), v_map.load([plane * length + at, 0]), sums)
        top = above
    o_map.store([plane * length + start, 0], (sums / total_p[:, None]).to(o.dtype.element_ty))
    tl.store(lse + plane * length + rows, (top + tl.log2(total_p)) * 0.69314718)


def record(case: TritonGemm | TritonAttention, recorder: Recorder) -> None:
    """Compiles the case's kernel and writes its launch down."""
    kind = KINDS[case.dtype]
    if isinstance(case, TritonGemm):
        sizes = {"a": case.m * case.k, "b": case.k * case.n, "d": case.m * case.n}
        constants: dict[str, Any] = dict(zip(("TM", "TN", "TK"), case.tile, strict=True))
        function = gemm_pointers
        if case.tma:
            function, constants["WS"] = gemm_maps, case.warp_specialize
        launch(
            recorder,
            function,
            {name: (kind, count) for name, count in sizes.items()},
            {"m": case.m, "n": case.n, "k": case.k},
            constants,
            (-(-case.m // case.tile[0]), -(-case.n // case.tile[1]), 1),
            warps=case.warps,
            stages=case.stages,
        )
        return
    count = case.batch * case.heads * case.length
    launch(
        recorder,
        attention_maps,
        {**dict.fromkeys("qkvo", (kind, count * case.head_dim)), "lse": ("fp32", count)},
        {"length": case.length, "scale": case.head_dim**-0.5},
        {
            "D": case.head_dim, "TM": 128, "TN": 64, "CAUSAL": case.is_causal,
            "WS": case.warp_specialize,
        },
        (case.length // 128, case.batch * case.heads, 1),
        warps=case.warps,
        stages=2,
    )  # fmt: skip
