"""Launches of FlashInfer's CuTe DSL kernels, as its own host code makes them; runs in the environment of the peers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from .._recording import Recorder, tensor


def _pretend(recorder: Recorder) -> None:
    """Lets torch answer FlashInfer's questions about a GPU that is not there."""
    device = recorder.device
    properties = SimpleNamespace(
        multi_processor_count=device.sm_count,
        major=device.major,
        minor=0,
        shared_memory_per_block_optin=232448,
        name="none",
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: (device.major, 0)


def norm(
    recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16", is_layer: bool = False
) -> None:
    """RMS norm with weight, or layer norm with weight and bias."""
    _pretend(recorder)
    x, y = tensor((rows, columns), dtype), tensor((rows, columns), dtype)
    if is_layer:
        from flashinfer.norm.kernels.layernorm import layernorm_cute

        weight, bias = tensor((columns,), "f32"), tensor((columns,), "f32")
        recorder.name(x=x, y=y, weight=weight, bias=bias)
        layernorm_cute(y, x, weight, bias)
        return
    from flashinfer.norm.kernels.rmsnorm import rmsnorm_cute

    weight = tensor((columns,), dtype)
    recorder.name(x=x, y=y, weight=weight)
    rmsnorm_cute(x, weight, y)


def added_norm(recorder: Recorder, *, rows: int, columns: int, dtype: str = "bf16") -> None:
    """The sum of X and R in place of R, and its RMS norm in place of X."""
    from flashinfer.norm.kernels.fused_add_rmsnorm import fused_add_rmsnorm_cute

    _pretend(recorder)
    x, residual = tensor((rows, columns), dtype), tensor((rows, columns), dtype)
    weight = tensor((columns,), dtype)
    recorder.name(x=x, residual=residual, weight=weight)
    fused_add_rmsnorm_cute(x, residual, weight)


def prefill(
    recorder: Recorder,
    *,
    queries: list[int],
    keys: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: str = "bf16",
    is_causal: bool = False,
    page: int = 0,
    pages: list[list[int]] | None = None,
) -> None:
    """Attention of packed sequences; O has as many rows more in front as the longest sequence.

    Args:
      pages: of each sequence, where K and V are in pages of `page` rows.
    """
    from flashinfer.cute_dsl.attention.wrappers.batch_prefill import BatchPrefillCuteDSLWrapper
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    _pretend(recorder)
    with unset_fake_temporarily():  # the plan looks at the lengths
        kind = tensor((1,), dtype, "cpu").dtype
        q_offsets = _offsets(queries)
        k_offsets = _offsets(keys)
        wrapper = BatchPrefillCuteDSLWrapper(tensor((1,), "f32", "cpu"))
        options: dict[str, Any] = {
            "num_qo_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim_qk": dim,
            "causal": is_causal,
            "q_data_type": kind,
            "kv_data_type": kind,
        }
        q = tensor((sum(queries), heads, dim), dtype, "cpu")
        lse = tensor((sum(queries), heads), "f32", "cpu")
        if pages is None:
            k, v = (tensor((sum(keys), kv_heads, dim), dtype, "cpu") for _ in range(2))
            wrapper.plan(q_offsets, k_offsets, **options)
            wrapper.run(q, k, v, return_lse=True, lse=lse)
            recorder.name(q_offsets=wrapper._qo_indptr, k_offsets=wrapper._kv_indptr)
        else:
            every = [number for some in pages for number in some]
            table = torch.tensor(every, dtype=torch.int32)
            shape = (max(every) + 1, page, kv_heads, dim)
            k, v = (torch.zeros(shape, dtype=kind) for _ in range(2))
            wrapper.plan(
                q_offsets,
                page_size=page,
                paged_kv_indptr=_offsets([len(some) for some in pages]),
                paged_kv_indices=table,
                paged_kv_last_page_len=torch.tensor(
                    [
                        length - page * (len(some) - 1)
                        for length, some in zip(keys, pages, strict=True)
                    ],
                    dtype=torch.int32,
                ),
                **options,
            )
            wrapper.run_paged(q, (k, v), return_lse=True, lse=lse)
            recorder.name(q_offsets=wrapper._qo_indptr, k_offsets=wrapper._kv_indptr)
            recorder.name(
                page_table=wrapper._paged_kv_indices, page_offsets=wrapper._paged_kv_indptr
            )
        recorder.name(q=q, k=k, v=v, lse=lse, o=wrapper._o_scratch)


def _offsets(lengths: list[int]) -> Any:
    return torch.tensor([sum(lengths[:at]) for at in range(len(lengths) + 1)], dtype=torch.int32)


def latent_decode(
    recorder: Recorder,
    *,
    keys: list[int],
    heads: int = 128,
    page: int = 128,
    dtype: str = "bf16",
    sinks: int = 0,
) -> None:
    """One query per sequence against a latent cache in pages: 512 columns of values and keys, 64 of keys alone."""
    from flashinfer.cute_dsl.attention.wrappers.batch_mla import cute_dsl_mla_decode
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    _pretend(recorder)
    with unset_fake_temporarily():  # torch slices the cache
        batch, per_sequence = len(keys), -(-max(keys) // page)
        q = tensor((batch, 1, heads, 576), dtype, "cpu")
        cache = tensor((batch * per_sequence + 1, page, 576), dtype, "cpu")
        workspace = tensor((1 << 25,), "i8", "cpu")
        table, used = tensor((batch, per_sequence), "i32", "cpu"), tensor((batch,), "i32", "cpu")
        o = tensor((batch, 1, heads, 512), "bf16" if dtype == "e4m3" else dtype, "cpu")
        sink = tensor((heads,), "f32", "cpu") if sinks else None
        recorder.name(
            q=q, cache=cache, page_table=table, used=used, o=o, workspace=workspace, sink=sink
        )
        cute_dsl_mla_decode(
            q, cache, workspace, 512, 64, table, used, max(keys), 192**-0.5, out=o, sinks=sink,
            enable_pdl=False,
        )  # fmt: skip


def decode(
    recorder: Recorder,
    *,
    keys: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    page: int,
    dtype: str = "bf16",
    splits: int = 1,
    reduction: str = "auto",
) -> None:
    """One query per sequence against K and V in pages."""
    from flashinfer.cute_dsl.attention.wrappers.batch_decode import BatchDecodePagedCuteDSLWrapper
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    _pretend(recorder)
    counts = [-(-length // page) for length in keys]
    with unset_fake_temporarily():
        kind = tensor((1,), dtype, "cpu").dtype
        workspace = tensor((1 << 22,), "f32", "cpu")
        wrapper = BatchDecodePagedCuteDSLWrapper(workspace)
        offsets, table = _offsets(counts), tensor((sum(counts),), "i32", "cpu")
        used = torch.tensor(keys, dtype=torch.int32)
        wrapper.plan(
            offsets, table, used, heads, kv_heads, dim, page,
            q_data_type=kind, kv_data_type=kind, o_data_type=kind, kv_splits=splits,
            reduction=reduction,
        )  # fmt: skip
        q = tensor((len(keys), heads, dim), dtype, "cpu")
        k, v = (tensor((sum(counts) + 1, page, kv_heads, dim), dtype, "cpu") for _ in range(2))
        o = torch.zeros((len(keys), heads, dim), dtype=kind)
        wrapper.run(q, k, v, out=o)
        recorder.name(
            q=q,
            k=k,
            v=v,
            o=o,
            page_offsets=offsets,
            page_table=table,
            used=used,
            workspace=workspace,
        )
