"""Compiles cases of `cases.py` with the packages they come from, and records their launches.

    python _peer.py --out DIR NAME...

A program that runs in the environment of the peers only; `recorded.py` starts it. One process per case, as compiled
functions are cached inside the packages.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from ._recording import Recorder, install, set_environment, tensor
from .cases import (
    FORMATS,
    Attention,
    Case,
    Combine,
    Gemm,
    ScaledGemm,
    TritonAttention,
    TritonGemm,
    case_named,
)
from .kernel import Kernel

CUTE = ("nvidia-cutlass-dsl",)
NVCC = ("nvidia-cuda-nvcc",)


def attention(case: Attention, recorder: Recorder) -> None:
    from flash_attn.cute import interface, utils

    interface.is_fake_mode = lambda: False
    if case.one_cta:
        utils._fa_disable_2cta_enabled = True
    head_dim_v = case.head_dim_v or case.head_dim
    q = tensor((case.batch, case.sq, case.heads, case.head_dim), case.dtype)
    k = tensor((case.batch, case.sk, case.kv_heads, case.head_dim), case.dtype)
    v = tensor((case.batch, case.sk, case.kv_heads, head_dim_v), case.dtype)
    o = tensor((case.batch, case.sq, case.heads, head_dim_v), case.dtype)
    lse = tensor((case.batch, case.heads, case.sq), "f32")
    recorder.name(q=q, k=k, v=v, o=o, lse=lse)
    interface._flash_attn_fwd(
        q,
        k,
        v,
        causal=case.is_causal and case.window is None,
        window_size_left=case.window,
        window_size_right=0 if case.window is not None and case.is_causal else None,
        num_splits=case.splits,
        return_lse=True,
        out=o,
        lse=lse,
    )


def combine(case: Combine, recorder: Recorder) -> None:
    from flash_attn.cute import interface

    interface.is_fake_mode = lambda: False
    shape = (case.batch, case.sq, case.heads, case.head_dim)
    o_partial = tensor((case.splits, *shape), "f32")
    lse_partial = tensor((case.splits, case.batch, case.heads, case.sq), "f32")
    o, lse = tensor(shape, case.dtype), tensor((case.batch, case.heads, case.sq), "f32")
    recorder.name(o_partial=o_partial, lse_partial=lse_partial, o=o, lse=lse)
    interface._flash_attn_fwd_combine(
        o_partial, lse_partial.transpose(-1, -2), o, lse.transpose(-1, -2)
    )


def gemm(case: Gemm, recorder: Recorder) -> None:
    from quack.gemm import gemm as quack_gemm

    def operand(rows: int) -> Any:
        if case.m_major:
            return tensor((case.batch, case.k, rows), case.dtype).mT
        return tensor((case.batch, rows, case.k), case.dtype)

    a, b = operand(case.m), operand(case.n)
    d = tensor((case.batch, case.m, case.n), case.out_dtype)
    c = tensor((case.batch, case.m, case.n), case.out_dtype) if case.add else None
    recorder.name(a=a, b=b, c=c, d=d)
    quack_gemm(
        a,
        b,
        d,
        c,
        None,
        tile_M=case.tile[0],
        tile_N=case.tile[1],
        cluster_M=case.cluster[0],
        cluster_N=case.cluster[1],
        is_dynamic_persistent=case.is_dynamic,
        split_k=case.split_k,
    )


def scaled_gemm(case: ScaledGemm, recorder: Recorder) -> None:
    import torch
    from quack.blockscaled.operand import BlockScaledFormat
    from quack.gemm import gemm as quack_gemm

    operands: list[Any] = []
    for name, rows in zip(case.formats, (case.m, case.n), strict=True):
        form, kinds = FORMATS[name], BlockScaledFormat.from_name(name)
        width = case.k * form.bits // 8
        operands.append(
            torch.empty((case.batch, rows, width), dtype=kinds.qdata_dtype, device="cuda")
        )
        shape = (case.batch, -(-rows // 128), -(-case.k // (4 * form.block)), 32, 4, 4)
        operands.append(torch.empty(shape, dtype=kinds.scale_dtype, device="cuda"))
    a, a_scale, b, b_scale = operands
    d = tensor((case.batch, case.m, case.n), case.out_dtype)
    recorder.name(a=a, a_scale=a_scale, b=b, b_scale=b_scale, d=d)
    quack_gemm(
        a,
        b,
        d,
        None,
        None,
        tile_M=case.tile[0],
        tile_N=case.tile[1],
        cluster_M=case.cluster[0],
        cluster_N=case.cluster[1],
        SFA=a_scale,
        SFB=b_scale,
        bs_format_a=case.formats[0],
        bs_format_b=case.formats[1],
    )


def launched(case: Kernel, recorder: Recorder) -> None:
    """Runs the case's program."""
    program = getattr(
        importlib.import_module(f".programs.{case.module}", __package__), case.function
    )
    if case.is_triton or case.is_nvcc:
        program(recorder, **case.sizes)
        return
    from torch._subclasses.fake_tensor import FakeTensorMode

    install(recorder)
    with FakeTensorMode():
        program(recorder, **case.sizes)


def record(case: Case, folder: Path) -> None:
    """Leaves the record of one case in `folder`."""
    with tempfile.TemporaryDirectory() as name:
        dump = Path(name)
        target = case.target if isinstance(case, Kernel) else "sm_100a"
        set_environment(dump, target)
        recorder = Recorder(dump, target)
        if isinstance(case, Kernel):
            launched(case, recorder)
            compiler = () if case.is_triton else NVCC if case.is_nvcc else CUTE
            recorder.write(folder, case.name, (case.package, *compiler))
            return
        if isinstance(case, TritonGemm | TritonAttention):
            from . import _triton_kernels

            _triton_kernels.record(case, recorder)
            recorder.write(folder, case.name, ("triton",))
            return
        from torch._subclasses.fake_tensor import FakeTensorMode

        install(recorder)
        with FakeTensorMode():
            if isinstance(case, Attention):
                attention(case, recorder)
            elif isinstance(case, Combine):
                combine(case, recorder)
            elif isinstance(case, ScaledGemm):
                scaled_gemm(case, recorder)
            else:
                gemm(case, recorder)
        recorder.write(folder, case.name, (case.package, *CUTE))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    parser.add_argument("name", help="of a case")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    record(case_named(args.name), args.out)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
