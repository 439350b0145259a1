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
    """Options that the three functions take by name; see `ring_attention`."""

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

    K and V of the next rank arrive while those of the last one are worked on: no rank holds more
    than three shards of them. Masks and functions see positions of the whole sequence. Autograd
    gets the gradients of q, k, v and sinks; they have the same bits every time.

    Args:
      q: [batch, own tokens, heads, head_dim], bf16 or f16.
      k: [batch, own tokens, kv_heads, head_dim]; kv_heads divides heads.
      v: [batch, own tokens, kv_heads, v_head_dim].
      group: a process group of `torch.distributed`, or a mesh of one dimension; None: all ranks.
      mask: as of `attn_mlir.attention`; `full()` by default.
      layout: which tokens the rank has, `zigzag` by default: see `layouts`.
      score_mod, mask_mod, scale: as of `attn_mlir.attention`, the same functions on all ranks.
      sinks: [heads], as of `attn_mlir.attention`, the same on all ranks. A rank's gradient of them
        is that of its own queries: the sum over ranks is that of all.
      cu_seqlens: [documents + 1] integers from 0 to the length of the whole sequence, of which
        batch is then 1: documents see nothing of each other, and positions are those within a
        document. A tensor on a GPU is read by the host, which waits for it.
      length: of the whole sequence, the same on all ranks. With it ranks that make the call again
        do not ask each other; without it they say their tokens to each other in every call.
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

    Few calls, and memory for K and V of the whole sequence.

    Args:
      q, k, v, group, options: as of `ring_attention`.

    Returns, Raises:
      As `ring_attention`.
    """
    return attend_sharded("gather", (q, k, v), group, options)


@outside_graphs
def ulysses_attention(q: Any, k: Any, v: Any, group: Any = None, **options: Unpack[Options]) -> Any:
    """Attention of all queries to all keys for some of the heads, between exchanges of the heads.

    The number of ranks divides the heads. Heads of K and V that it does not divide are repeated.

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
    """A public function of a scheme."""
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
    """O and LSE by a scheme, with gradients; its ranks have agreed on the call."""
    gradients = wants_gradient((*operands, sinks), {})
    scheme.members.prepare(lambda: scheme.prepare(*operands, sinks, gradients=gradients))
    with scheme.members.watched(scheme.name):
        return Sharded.apply(*operands, sinks, scheme)


def checked_options(
    members: Members, options: Mapping[str, Any] | Options
) -> tuple[bool, dict[str, Any]]:
    """Whether LSE is returned, and all other options, those that are left out by default.

    Raises:
      TypeError: one that the functions do not have.
    """
    with members.checked():
        if unknown := sorted(set(options) - set(DEFAULTS)):
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}: {', '.join(DEFAULTS)}")
        given = {**DEFAULTS, **options}
        return flag("return_lse", given.pop("return_lse")), given
