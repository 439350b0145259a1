"""pass-Q: for few new tokens and a long cache, queries travel and the cached keys stay in place.

Each rank computes attention of all new queries to the keys that it caches, and sends every rank the
partial results of that rank's queries. That moves fewer bytes than K and V if new tokens are fewer
than 2 kv_heads / heads of all tokens.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from attn_mlir.api import attention as api
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.planners import planner_of
from attn_mlir.caches import CACHES
from attn_mlir.calls import attention
from attn_mlir.distributed.layouts import padded
from attn_mlir.distributed.members import Members, members_of
from attn_mlir.distributed.merging import merge_states
from attn_mlir.distributed.operands import check_sinks
from attn_mlir.distributed.packing import COLUMNS, bits_of, numbers_of
from attn_mlir.distributed.preparing import Operands, prepare_merge
from attn_mlir.distributed.tensors import check_sendable, readable
from attn_mlir.distributed.transport import transport_of
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.scalars import flag

torch: Any = importlib.import_module("torch")

NAME = "pass_q_attention"
DTYPES = (torch.bfloat16, torch.float16)


@outside_graphs
def pass_q_attention(
    q: Any,
    k: Any,
    v: Any = None,
    group: Any = None,
    *,
    new: tuple[Any, Any] | None = None,
    sinks: Any = None,
    scale: float | None = None,
    return_lse: bool = False,
    device: Any = None,
) -> Any:
    """Attention of this rank's new tokens to the keys that all ranks have cached.

    Every query sees every cached key, so cached keys must precede the new tokens. Attention among
    the new tokens is computed by `ring_attention`, and is passed as `new`. There are no gradients.

    Args:
      q: [batch, own new tokens, heads, head_dim], bf16 or f16; the number of new tokens may differ
        between ranks.
      k, v: the keys and values that this rank caches, [batch, own cached tokens, kv_heads,
        head_dim]; or a cache as k, as of `attn_mlir.attention`.
      group: as of `ring_attention`.
      new: (O, LSE) of this rank's queries to the new keys, from
        `ring_attention(..., return_lse=True)` without sinks.
      sinks, scale, device: as of `attn_mlir.attention`.
      return_lse: also return LSE.

    Returns:
      O of q's shape and dtype; with `return_lse` also LSE [batch, heads, own new tokens] f32,
      without sinks.

    Raises:
      SpecError: an argument is wrong, or differs between ranks; nothing was sent.
      RankError: another rank refused, raised, ended or stopped; the message names it.
    """
    members = members_of(group)
    with members.checked():
        _check(q, k, v, new, sinks)
        return_lse = flag("return_lse", return_lse)
        q = readable("q", q)
        shared: dict[str, object] = {
            "batch, heads and head_dim": (q.shape[0], *q.shape[2:]),
            "dtype": q.dtype,
            "scale": scale,
            "new": new is not None,
            "sinks": None if sinks is None else (tuple(sinks.shape), sinks.dtype),
        }
    counts = members.agree(NAME, shared, q.shape[1])
    most = max(counts)
    options = {"scale": scale, "device": device, "return_lse": True}
    members.prepare(lambda: _prepare(q, k, v, most * members.size, sinks, options))
    with members.watched(NAME):
        parts, sums = _parts(members, q, k, v, most, options)
        if new is not None:
            parts = torch.cat([parts, new[0][None].float()])
            sums = torch.cat([sums, new[1][None]])
        dtype = str(q.dtype).removeprefix("torch.")
        o, lse = merge_states(parts, sums, sinks=sinks, out_dtype=dtype, device=device)
    return (o, lse) if return_lse else o


def _parts(
    members: Members, q: Any, k: Any, v: Any, most: int, options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The partial results of this rank's queries, from the caches of all ranks.

    Args:
      most: new tokens of the rank that has the most.

    Returns:
      O [ranks, batch, own tokens, heads, D] f32 and LSE [ranks, batch, heads, own tokens] f32.
    """
    size, (batch, own, heads, width) = members.size, q.shape
    rows = padded(q.transpose(0, 1), most)  # [most, batch, heads, D]
    whole = rows.new_empty((size, *rows.shape))
    transport_of(members, q.device).gather([(whole, rows)])()
    queries = whole.flatten(0, 1).transpose(0, 1).contiguous()  # [batch, ranks x most, heads, D]
    given = (queries, k) if v is None else (queries, k, v)
    o, lse = attention(*given, **options)
    send = o.new_empty((size, batch, most, heads, width + COLUMNS))
    send[..., :width] = o.unflatten(1, (size, most)).movedim(1, 0)
    bits = bits_of(lse.transpose(1, 2), o.dtype).unflatten(2, (heads, COLUMNS))
    send[..., width:] = bits.unflatten(1, (size, most)).movedim(1, 0)
    if size > 1:
        send = transport_of(members, q.device).swap(send)
    send = send[:, :, :own]
    sums = numbers_of(send[..., width:])[..., 0].transpose(2, 3).contiguous()
    return send[..., :width].float().contiguous(), sums


def _prepare(q: Any, k: Any, v: Any, rows: int, sinks: Any, options: Mapping[str, Any]) -> None:
    """Plans and compiles the kernels for `rows` queries; errors as `attention`, `merge_states`."""
    queries = Operands.of(q, q, q).cut(rows, rows).q
    planner = planner_of(api.attention)
    given = (queries, k) if v is None else (queries, k, v)
    planner(*given, **options).bundles()
    prepare_merge(Operands.of(q, q, q), options["device"], sinks)


def _check(q: Any, k: Any, v: Any, new: Any, sinks: Any) -> None:
    """Refuses operands that cannot be sent, or whose shapes and dtypes do not agree.

    Raises:
      SpecError: names the argument.
    """
    check_sendable("q", q)
    if q.dim() != 4 or q.dtype not in DTYPES:
        raise SpecError(
            f"q must be [batch, own new tokens, heads, head_dim] of bf16 or f16, got "
            f"{list(q.shape)} of {q.dtype}"
        )
    if not isinstance(k, CACHES):
        for name, x in (("k", k), ("v", v)):
            check_sendable(name, x)
        batch, heads, width = q.shape[0], q.shape[2], q.shape[3]
        wanted = (batch, k.shape[1], k.shape[2], width) if k.dim() == 4 else ()
        for name, x in (("k", k), ("v", v)):
            if tuple(x.shape) != wanted or x.dtype != q.dtype or x.device != q.device:
                raise SpecError(
                    f"{name} must be [{batch}, own cached tokens, kv_heads, {width}] of {q.dtype} "
                    f"on {q.device}, got {list(x.shape)} of {x.dtype} on {x.device}"
                )
        if not k.shape[2] or heads % k.shape[2]:
            raise SpecError(f"k has {k.shape[2]} heads, which must divide the {heads} of q")
    if sinks is not None:
        check_sinks(sinks, q)
    if new is None:
        return
    results = cast("tuple[Any, ...]", new) if isinstance(new, tuple) else ()
    if len(results) != 2:
        raise SpecError("new must be O and LSE, as of ring_attention(..., return_lse=True)")
    shapes = (tuple(q.shape), q.dtype), ((q.shape[0], q.shape[2], q.shape[1]), torch.float32)
    for name, x, (shape, dtype) in zip(("new[0]", "new[1]"), results, shapes, strict=True):
        check_sendable(name, x)
        if tuple(x.shape) != shape or x.dtype != dtype or x.device != q.device:
            raise SpecError(
                f"{name} must be {list(shape)} of {dtype} on {q.device}, got {list(x.shape)} of "
                f"{x.dtype} on {x.device}"
            )
