"""`decode_combine`: merges the results for the keys that each rank caches."""

from __future__ import annotations

import importlib
from typing import Any, cast

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.distributed.members import Members, communicating, members_of
from attn_mlir.distributed.merging import merge_states
from attn_mlir.distributed.packing import COLUMNS, bits_of, numbers_of
from attn_mlir.distributed.preparing import Operands, prepare_merge
from attn_mlir.distributed.tensors import check_sendable
from attn_mlir.distributed.transport import reduce_scatter, transport_of
from attn_mlir.errors import SpecError, shown

torch: Any = importlib.import_module("torch")

HOW = ("ag_rs", "a2a")
DTYPES = (torch.bfloat16, torch.float16)


@outside_graphs
def decode_combine(
    o: Any, lse: Any, group: Any = None, how: str = "a2a", *, sinks: Any = None, device: Any = None
) -> Any:
    """Merges O of all heads for each rank's keys into O of this rank's heads for all keys.

    Args:
      o: [tokens, heads, D] or [batch, sq, heads, D], bf16 or f16: attention of all heads to the
        keys that this rank caches, by `attention` or `mla_decode`; the number of ranks divides
        heads.
      lse: [heads, tokens] or [batch, heads, sq], f32: LSE of `o`, natural logarithm. The LSE of a
        row without keys is -inf, +inf or NaN, and its O is not read.
      group: as of `ring_attention`.
      how: `a2a`, one all-to-all of O with its LSE, or `ag_rs`, an all-gather of LSE and a
        reduce-scatter of weighted O, which adds in O's dtype.
      sinks: [heads], as of `attention`; they are added here once, so `o` is computed without them.
      device: as of `attention`, for the kernel that merges.

    Returns:
      [tokens, heads / ranks, D] or [batch, sq, heads / ranks, D]: the heads from
      rank x heads / ranks on.

    Raises:
      SpecError: an argument is wrong, or differs between ranks.
      RankError: another rank failed.
    """
    members = members_of(group)
    with members.checked():
        if not isinstance(cast(object, how), str) or how not in HOW:
            raise SpecError(f"how must be one of {', '.join(HOW)}, got {shown(how)}")
        _check(o, lse, sinks, members.size)
        shared = {"shape of o": tuple(o.shape), "dtype": o.dtype, "how": how}
        shared["sinks"] = None if sinks is None else sinks.dtype
    members.agree("decode_combine", shared, o.shape[-3])
    is_flat = o.dim() == 3
    if how == "a2a":
        rows = o[None] if is_flat else o
        own = rows[:, :, : rows.shape[2] // members.size]
        of_rank = None if sinks is None else _own_heads(members, sinks)
        members.prepare(lambda: prepare_merge(Operands.of(own, own, own), device, of_rank))
    with members.watched("decode_combine"):
        parts, sums = (o[None], lse[None]) if is_flat else (o, lse)
        sums = sums.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        combine = _all_to_all if how == "a2a" else _reduce_scatter
        found = combine(members, parts, sums, sinks, device)
    return found[0] if is_flat else found


def _all_to_all(members: Members, o: Any, lse: Any, sinks: Any, device: Any) -> Any:
    """One message for each rank, [batch, sq, heads / ranks, D + 2]: O and the bits of LSE."""
    size, width = members.size, o.shape[3]
    send = o.new_empty((size, *o.shape[:2], o.shape[2] // size, width + COLUMNS))
    send[..., :width] = o.unflatten(2, (size, -1)).movedim(2, 0)
    bits = bits_of(lse.transpose(1, 2), o.dtype).unflatten(2, (size, -1, COLUMNS))
    send[..., width:] = bits.movedim(2, 0)
    if size > 1:
        send = transport_of(members, o.device).swap(send)
    sums = numbers_of(send[..., width:])[..., 0].transpose(2, 3).contiguous()
    options: dict[str, Any] = {
        "out_dtype": str(o.dtype).removeprefix("torch."),
        "return_lse": False,
    }
    own = _own_heads(members, sinks)
    return merge_states(send[..., :width].float(), sums, sinks=own, device=device, **options)


def _reduce_scatter(members: Members, o: Any, lse: Any, sinks: Any, device: Any) -> Any:
    """Scales O by its weight among all keys, and sums it by a reduce-scatter of heads."""
    del device
    size = members.size
    if size > 1:
        sums = lse.new_empty((size, *lse.shape))
        transport_of(members, o.device).gather([(sums, lse.contiguous())])()
        total = torch.logsumexp(sums, 0)
    else:
        total = lse
    if sinks is not None:
        total = torch.logaddexp(total, sinks.float()[:, None])
    weights = torch.where(lse == -torch.inf, 0.0, (lse - total).exp())
    weighted = o.float() * weights.transpose(1, 2)[..., None]
    weighted = weighted.masked_fill((weights == 0).transpose(1, 2)[..., None], 0).to(o.dtype)
    if size == 1:
        return weighted
    send = weighted.unflatten(2, (size, -1)).movedim(2, 0).contiguous()
    own = torch.empty_like(send[0])
    with communicating():
        reduce_scatter(own, send.flatten(0, 1), group=members.group)
    return own


def _own_heads(members: Members, sinks: Any) -> Any:
    if sinks is None:
        return None
    return sinks.chunk(members.size)[members.rank].contiguous()


def _check(o: Any, lse: Any, sinks: Any, size: int) -> None:
    """Refuses shapes and dtypes that do not agree.

    Raises:
      SpecError: names the argument.
    """
    for name, x in (("o", o), ("lse", lse), ("sinks", sinks)):
        if name != "sinks" or x is not None:
            check_sendable(name, x)
            if x.device != o.device:
                raise SpecError(f"{name} must be on o's device, {o.device}, got {x.device}")
    if o.dim() not in (3, 4) or o.dtype not in DTYPES:
        raise SpecError(
            f"o must be [tokens, heads, D] or [batch, sq, heads, D] of bf16 or f16, got {_got(o)}"
        )
    *lead, rows, heads, _ = o.shape
    if lse.dtype != torch.float32:
        raise SpecError(f"lse must be a tensor of float32, got {_got(lse)}")
    if tuple(lse.shape) != (*lead, heads, rows):
        raise SpecError(f"lse must be {[*lead, heads, rows]} beside this o, got {list(lse.shape)}")
    if heads % size:
        raise SpecError(f"o has {heads} heads, which {size} ranks do not divide")
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise SpecError(f"sinks must be a tensor [{heads}], got {_got(sinks)}")


def _got(x: Any) -> str:
    return f"{list(x.shape)} of {x.dtype}"
