"""Context parallelism of `diffusers`, whose template calls `forward_op` and `backward_op`.

With Ulysses the operands are all rows of some heads. In a ring the operands are the rank's rows and
the keys of one rank after the other: the template merges O by LSE, and passes merged O and LSE to
the backward pass.
"""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.calls import attention_backward
from attn_mlir.errors import SpecError
from attn_mlir.pytorch.elements import added, visible
from attn_mlir.pytorch.readable import padded, readable
from attn_mlir.torch import sdpa_and_lse

torch: Any = importlib.import_module("torch")


def in_parallel(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    *options: Any,
    _parallel_config: Any,
) -> Any:
    """`attention` of a sequence that is sharded over a group; the template's errors pass through.

    Args:
      query, key, value, attn_mask: this rank's shards, as of `attention`.
      options: `is_causal`, `scale`, `enable_gqa` and `return_lse`, as of `attention`.

    Raises:
      SpecError: `attn_mask` is passed in a ring, which would apply it to the keys of every rank.
    """
    if attn_mask is not None and _parallel_config.context_parallel_config.ring_degree > 1:
        raise SpecError(
            "attn_mask excludes ring_degree > 1: use ulysses_degree, which shares heads"
        )
    return _host()._templated_context_parallel_attention(
        query,
        key,
        value,
        attn_mask,
        0.0,
        *options,
        forward_op=forward_op,
        backward_op=backward_op,
        _parallel_config=_parallel_config,
    )


def forward_op(
    ctx: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
    _save_ctx: bool = True,
    _parallel_config: Any = None,
) -> Any:
    """O [batch, sq, heads, v_head_dim]; with `return_lse` also LSE [batch, sq, heads] f32."""
    del dropout_p, _parallel_config  # the template passes them through
    query, key, value = (_host()._wait_tensor(x) for x in (query, key, value))
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    wants_lse = return_lse or _save_ctx
    o, lse = sdpa_and_lse(q, k, v, attn_mask, is_causal, scale, enable_gqa, wants_lse)
    o = o.transpose(1, 2)
    lse = lse.transpose(1, 2) if wants_lse else None
    if _save_ctx:
        ctx.save_for_backward(query, key, value, o, lse)
        ctx.attn_mask, ctx.scale = attn_mask, scale
    return (o, lse) if return_lse else o


def backward_op(
    ctx: Any,
    grad_out: Any,
    *_: Any,
    query: Any = None,
    key: Any = None,
    value: Any = None,
    out: Any = None,
    lse: Any = None,
) -> tuple[Any, Any, Any]:
    """The gradients of query, key and value; tensors that are passed replace the saved ones."""
    given = (query, key, value, out, lse)
    operands = [x if y is None else y for x, y in zip(ctx.saved_tensors, given, strict=True)]
    *rows, lse = map(_host()._wait_tensor, operands)
    mods: dict[str, Any] = {}
    if (mask := ctx.attn_mask) is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        mods = (
            {"mask_mod": visible(mask)} if mask.dtype == torch.bool else {"score_mod": added(mask)}
        )
    scale = rows[0].shape[-1] ** -0.5 if ctx.scale is None else ctx.scale
    names = ("query", "key", "value", "out", "grad_out")
    tensors = zip(names, (*rows, grad_out), strict=True)
    q, k, v, o, do = (readable(name, padded(x)) for name, x in tensors)
    lse = lse.transpose(1, 2).contiguous()
    found = attention_backward(q, k, v, o, lse, do, scale=scale, **mods)
    gradients = zip(found[:3], rows, strict=False)
    return tuple(made[..., : x.shape[-1]] for made, x in gradients)


def _host() -> Any:
    return importlib.import_module("diffusers.models.attention_dispatch")
