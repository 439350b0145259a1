"""Launches of flash-attn-4, as its own host code makes them; runs in the environment of the peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._recording import Recorder, tensor


def forward(
    recorder: Recorder,
    *,
    queries: Sequence[int],
    keys: Sequence[int],
    heads: int = 2,
    kv_heads: int = 1,
    dim: int = 128,
    dim_v: int = 0,
    dtype: str = "bf16",
    is_packed: bool = False,
    page: int = 0,
    latent: int = 0,
    softcap: float = 0.0,
    has_sink: bool = False,
    is_causal: bool = False,
    splits: int = 1,
    **_: object,
) -> None:
    """Attention of sequences with `queries[i]` and `keys[i]` rows each.

    Args:
      is_packed: the rows of all sequences lie behind one another.
      page: rows per page of K and V; zero for none.
      latent: columns of V, which also are keys for a second part of the queries; LSE has heads last then.
    """
    from flash_attn.cute import interface

    interface.is_fake_mode = lambda: False
    batch, dim_v = len(queries), dim_v or latent or dim
    options: dict[str, Any] = {}
    if is_packed:
        rows = (sum(queries),)
        offsets = tensor((batch + 1,), "i32"), tensor((batch + 1,), "i32")
        recorder.name(q_offsets=offsets[0], k_offsets=offsets[1])
        options |= {
            "cu_seqlens_q": offsets[0],
            "cu_seqlens_k": offsets[1],
            "max_seqlen_q": max(queries),
            "max_seqlen_k": max(keys),
        }
        k_rows = (sum(keys),)
    else:
        rows, k_rows = (batch, max(queries)), (batch, max(keys))
    if page:
        per_sequence = -(-max(keys) // page)
        table, used = tensor((batch, per_sequence), "i32"), tensor((batch,), "i32")
        recorder.name(page_table=table, used=used)
        options |= {"page_table": table, "seqused_k": used}
        k_rows = (batch * per_sequence + 1, page)
    q, k = tensor((*rows, heads, dim), dtype), tensor((*k_rows, kv_heads, dim), dtype)
    v, o = tensor((*k_rows, kv_heads, dim_v), dtype), tensor((*rows, heads, dim_v), dtype)
    lse_shape = (heads, *rows) if is_packed else (batch, heads, rows[1])
    lse = tensor((batch, rows[-1], heads) if latent else lse_shape, "f32")
    recorder.name(q=q, k=k, v=v, o=o, lse=lse)
    if latent:
        options["qv"] = tensor((*rows, heads, latent), dtype)
        recorder.name(qv=options["qv"])
    if has_sink:
        options["learnable_sink"] = tensor((heads,), dtype)
        recorder.name(sink=options["learnable_sink"])
    if softcap:
        options["softcap"] = softcap
    interface._flash_attn_fwd(
        q, k, v, causal=is_causal, num_splits=splits, return_lse=True, out=o, lse=lse, **options
    )


def backward(
    recorder: Recorder,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 2,
    sq: int,
    sk: int,
    dim: int,
    dim_v: int = 0,
    dtype: str = "bf16",
    is_causal: bool = False,
    is_deterministic: bool = False,
    **_: object,
) -> None:
    """dQ, dK and dV from dO: preprocessing, the gradients in float32, their conversion."""
    from flash_attn.cute import interface

    interface.is_fake_mode = lambda: False
    dim_v = dim_v or dim
    shapes = {
        "q": (batch, sq, heads, dim),
        "k": (batch, sk, kv_heads, dim),
        "v": (batch, sk, kv_heads, dim_v),
        "o": (batch, sq, heads, dim_v),
    }
    given = {name: tensor(shape, dtype) for name, shape in shapes.items()}
    made = {f"d{name}": tensor(shapes[name], dtype) for name in "qkvo"}
    lse = tensor((batch, heads, sq), "f32")
    recorder.name(**given, **made, lse=lse)
    interface._flash_attn_bwd(
        *(given[name] for name in "qkvo"),
        made["do"],
        lse,
        causal=is_causal,
        deterministic=is_deterministic,
        dq=made["dq"],
        dk=made["dk"],
        dv=made["dv"],
    )
