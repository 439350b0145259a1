"""The public functions: attention of own queries to the keys of all ranks, by three schemes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.distributed.autograd import Scheme, Sharded
from attn_mlir.distributed.gather import Gather
from attn_mlir.distributed.members import Members, members_of
from attn_mlir.distributed.operands import checked_call
from attn_mlir.distributed.ring import Ring
from attn_mlir.distributed.ulysses import attend_heads, exchange_heads, prepare_heads
from attn_mlir.masks import Mask
from attn_mlir.runtime.call.scalars import flag
from attn_mlir.runtime.call.torch_tensors import wants_gradient
from attn_mlir.trace import MaskMod, ScoreMod


class Options(TypedDict, total=False):
    """The keyword arguments of the three functions; see `ring_attention`."""

    mask: Mask | None
    layout: str
    score_mod: ScoreMod | None
    mask_mod: MaskMod | None
    sinks: Any
    cu_seqlens: Any
    length: int | None
    scale: float | None
    return_lse: bool
    device: Any


DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(Options.__annotations__),
    "layout": "zigzag",
    "return_lse": False,
}


@outside_graphs
def ring_attention(q: Any, k: Any, v: Any, group: Any = None, **options: Unpack[Options]) -> Any:
    """Attention of this rank's queries to the keys of all ranks, which travel round a ring.

    The next shard of K and V arrives while the kernels read the current one, so a rank holds at
    most three shards. Masks and modifiers see positions of the whole sequence. Autograd computes
    the gradients of q, k, v and sinks; they have the same bits every time.

    Args:
      q: [batch, own tokens, heads, head_dim], bf16 or f16.
      k: [batch, own tokens, kv_heads, head_dim]; kv_heads divides heads.
      v: [batch, own tokens, kv_heads, v_head_dim].
      group: a process group of `torch.distributed`, or a mesh of one dimension; None: all ranks.
      mask: as of `attn_mlir.attention`; `full()` by default.
      layout: which tokens the rank has, `zigzag` by default: see `layouts`.
      score_mod, mask_mod, scale: as of `attn_mlir.attention`, the same on all ranks.
      sinks: [heads], as of `attn_mlir.attention`, the same on all ranks. The gradient of sinks on a
        rank covers the rank's queries: sum it over the ranks.
      cu_seqlens: [documents + 1] integers from 0 to the length of the whole sequence; batch is then
        1. Queries see only keys of their own document, and positions count from its first token.
        The host reads a tensor on a GPU, and waits for it.
      length: tokens of the whole sequence, the same on all ranks. With `length`, ranks that repeat
        a call do not communicate to agree on it; without it, they exchange their token counts in
        every call.
      return_lse: also return LSE.
      device: as of `attn_mlir.attention`.

    Returns:
      O [batch, own tokens, heads, v_head_dim] of q's dtype; with `return_lse` also LSE [batch,
      heads, own tokens] f32, natural logarithm, without sinks.

    Raises:
      SpecError: an argument is wrong, or differs between ranks; nothing was sent.
      RankError: another rank refused, raised, ended or stopped; the message names it.
    """
    return attend_sharded("ring", (q, k, v), group, options)


@outside_graphs
def gather_attention(q: Any, k: Any, v: Any, group: Any = None, **options: Unpack[Options]) -> Any:
    """Attention of this rank's queries to the keys of all ranks, which every rank gathers.

    It launches few kernels, and needs memory for K and V of the whole sequence.

    Args:
      q, k, v, group, options: as of `ring_attention`.

    Returns, Raises:
      As `ring_attention`.
    """
    return attend_sharded("gather", (q, k, v), group, options)


@outside_graphs
def ulysses_attention(q: Any, k: Any, v: Any, group: Any = None, **options: Unpack[Options]) -> Any:
    """Attention of all queries to all keys for this rank's heads, between two all-to-alls.

    The first all-to-all distributes heads instead of tokens, the second one tokens again. The
    number of ranks divides heads; where it does not divide kv_heads, heads of K and V are repeated.

    Args:
      q, k, v, group, options: as of `ring_attention`.

    Returns, Raises:
      As `ring_attention`.
    """
    return attend_sharded("ulysses", (q, k, v), group, options)


SCHEMES: Mapping[str, type[Scheme] | None] = {"ring": Ring, "gather": Gather, "ulysses": None}


def attend_sharded(
    scheme: str, operands: Any, group: Any, options: Mapping[str, Any] | Options
) -> Any:
    """O, and with `return_lse` LSE, as `ring_attention` and its siblings return them.

    Args:
      scheme: a name of `SCHEMES`.
      operands: q, k and v.
      group, options: as of `ring_attention`.
    """
    name, kind, members = f"{scheme}_attention", SCHEMES[scheme], members_of(group)
    return_lse, given = checked_options(members, options)
    given["trains_modifiers"] = kind is None
    given["ranks_of_heads"] = members.size if kind is None else 1
    operands, problem, shards = checked_call(members, name, operands, **given)
    sinks = given["sinks"]
    if kind is None:
        members.prepare(lambda: prepare_heads(members, problem, shards, operands, sinks))
        with members.watched(name):
            attend = functools.partial(attend_heads, problem)
            o, lse = exchange_heads(members, shards, operands, sinks, attend)
    else:
        o, lse = computed(kind(name, members, problem, shards), operands, sinks)
    return (o, lse) if return_lse else o


def computed(scheme: Scheme, operands: tuple[Any, Any, Any], sinks: Any = None) -> tuple[Any, Any]:
    """O and LSE by a scheme, recorded by autograd; the ranks have agreed on the call before."""
    gradients = wants_gradient((*operands, sinks), {})
    scheme.members.prepare(lambda: scheme.prepare(*operands, sinks, gradients=gradients))
    with scheme.members.watched(scheme.name):
        return Sharded.apply(*operands, sinks, scheme)


def checked_options(
    members: Members, options: Mapping[str, Any] | Options
) -> tuple[bool, dict[str, Any]]:
    """`return_lse`, and all other options with defaults filled in.

    Raises:
      TypeError: an option that the functions do not have.
    """
    with members.checked():
        if unknown := sorted(set(options) - set(DEFAULTS)):
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}: {', '.join(DEFAULTS)}")
        given = {**DEFAULTS, **options}
        return flag("return_lse", given.pop("return_lse")), given
