"""Plans and compiles the kernels of a call before the ranks communicate.

A rank that lacks a kernel, or a compiler for it, thus refuses the call before another rank waits
for its data. Plans are made from the shapes of operands, since those of other ranks are not there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.api import attention as api
from attn_mlir.api import attention_backward as backward
from attn_mlir.api.plan import Plan
from attn_mlir.api.planners import planner_of
from attn_mlir.api.refusal import check_chip
from attn_mlir.distributed.merging import merge_states
from attn_mlir.runtime.call.tensors import TensorView, dense_strides, described

PARTS = 2  # of a merge; the kernel is the same for any number of parts


@dataclass(frozen=True)
class Operands:
    """Stand-ins for q, k and v, [batch, tokens, heads, D]."""

    q: TensorView
    k: TensorView
    v: TensorView

    @staticmethod
    def of(q: Any, k: Any, v: Any) -> Operands:
        """The stand-ins for tensors."""
        named = zip("qkv", (q, k, v), strict=True)
        return Operands(*(described(x.detach(), name) for name, x in named))

    def cut(
        self, rows: int, keys: int, *, heads: tuple[int, int] | None = None, packed: bool = False
    ) -> Operands:
        """Stand-ins with `rows` rows and `keys` keys.

        Args:
          heads: numbers of heads of q, and of k and v; by default unchanged.
          packed: whether the batch axis, of extent 1, is left out.
        """
        made = list[TensorView]()
        for i, x in enumerate((self.q, self.k, self.v)):
            count = x.shape[2] if heads is None else heads[i > 0]
            shape = (x.shape[0], keys if i else rows, count, x.shape[3])
            made.append(_dense(x, shape[1:] if packed else shape))
        return Operands(*made)

    @property
    def named(self) -> dict[str, TensorView]:
        """The stand-ins by name."""
        return {"q": self.q, "k": self.k, "v": self.v}


def prepare_attention(operands: Operands, options: Mapping[str, Any]) -> None:
    """Plans and compiles a call of `attention`.

    Raises:
      AttnError: as `attention` raises it before anything is launched.
    """
    _compile(planner_of(api.attention)(**operands.named, **options))


def prepare_gradients(operands: Operands, options: Mapping[str, Any]) -> None:
    """Plans and compiles a call of `attention_backward`; errors as `prepare_attention`.

    Args:
      options: of `attention_backward`, without o, lse and do.
    """
    q, v = operands.q, operands.v
    *lead, rows, heads, _ = q.shape
    o = _dense(q, (*lead, rows, heads, v.shape[-1]))
    lse = _dense(q, (*lead, heads, rows), "f32")
    given: dict[str, Any] = {**operands.named, "o": o, "lse": lse, "do": o, **options}
    _compile(planner_of(backward.attention_backward)(**given))


def prepare_merge(operands: Operands, device: Any, sinks: Any) -> None:
    """Plans and compiles the merge of partial results; errors as `prepare_attention`."""
    batch, rows, heads, _ = operands.q.shape
    os = _dense(operands.q, (PARTS, batch, rows, heads, operands.v.shape[3]), "f32")
    lses = _dense(operands.q, (PARTS, batch, heads, rows), "f32")
    options: dict[str, Any] = {"sinks": sinks, "out_dtype": operands.q.dtype, "device": device}
    _compile(planner_of(merge_states)(os, lses, **options))


def _compile(plan: Plan) -> None:
    check_chip(plan)
    plan.bundles()


def _dense(like: TensorView, shape: tuple[int, ...], dtype: str = "") -> TensorView:
    strides = dense_strides(shape)
    return dataclasses.replace(like, shape=shape, strides=strides, dtype=dtype or like.dtype)
