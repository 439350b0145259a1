"""Checks q, k and v of a call and agrees on it with all ranks; packs K and V into one message."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir.api.attention import check_scale
from attn_mlir.distributed.layouts import Runs, agreed_length, check_layout, runs_of, tokens_of
from attn_mlir.distributed.members import Members
from attn_mlir.distributed.problem import Problem, integers_of, starts_of
from attn_mlir.distributed.tensors import check_sendable, readable
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.call.torch_tensors import wants_gradient
from attn_mlir.runtime.kernel import machine_of
from attn_mlir.trace import MaskMod, ScoreMod, trace

torch: Any = importlib.import_module("torch")

DTYPES = (torch.bfloat16, torch.float16)
SINK_DTYPES = (*DTYPES, torch.float32)


@dataclass(frozen=True)
class Shards:
    """The shards of a sequence.

    Attributes:
      length: tokens of the whole sequence.
      runs: the positions of each rank's tokens, in the order of its memory.
      most: tokens of the longest shard; every message has room for as many.
    """

    length: int
    runs: tuple[Runs, ...]
    most: int

    @staticmethod
    def of(runs: tuple[Runs, ...]) -> Shards:
        """The shards with these positions, by rank."""
        counts = [*map(tokens_of, runs)]
        return Shards(sum(counts), runs, max(counts))

    @property
    def is_even(self) -> bool:
        """Whether all runs of all ranks are equally long."""
        return len({len(run) for of_rank in self.runs for run in of_rank}) == 1


@dataclass(frozen=True, eq=False)
class Arguments:
    """The checked arguments of a call, before the ranks compare them.

    Attributes:
      operands: q, k and v as kernels read them.
      problem: the problem without its documents.
      layout: the name of the layout.
      cu_seqlens: the offsets of documents, not yet checked; None without documents.
      shared: values that must be equal on all ranks, by the names that messages use.
    """

    operands: tuple[Any, Any, Any]
    problem: Problem
    layout: str
    cu_seqlens: tuple[int, ...] | None
    shared: dict[str, object]

    def problem_of(self, length: int) -> Problem:
        """The problem for a sequence of `length` tokens.

        Raises:
          SpecError: the documents do not end at `length`.
        """
        starts = starts_of(self.cu_seqlens, length, self.operands[0].shape[0])
        return dataclasses.replace(self.problem, starts=starts)


def checked_call(
    members: Members,
    name: str,
    operands: tuple[Any, Any, Any],
    *,
    length: int | None = None,
    **options: Any,
) -> tuple[tuple[Any, Any, Any], Problem, Shards]:
    """Checks a call and agrees on it with all ranks.

    Args:
      name: the function that is called.
      length: tokens of the whole sequence; by default the ranks exchange their token counts.
      options: as of `checked_arguments`.

    Returns:
      q, k and v as kernels read them; the problem; and the shards of all ranks.

    Raises:
      SpecError: an argument is wrong, or differs between ranks.
      RankError: another rank refused the call, or did not make it.
    """
    with members.checked():
        call = checked_arguments(operands, **options)
        length = checked_length(length)
    tokens = call.operands[0].shape[1]
    found = agreed_length(members, name, call.shared, tokens, call.layout, length)
    runs = tuple(runs_of(found, members.size, x, call.layout) for x in range(members.size))
    with members.agreeing():
        return call.operands, call.problem_of(found), Shards.of(runs)


def checked_length(length: object) -> int | None:
    """The length of the whole sequence, or None.

    Raises:
      SpecError: it is not an integer of at least 0.
    """
    return None if length is None else integer("length", length, 0)


def checked_arguments(
    operands: tuple[Any, Any, Any],
    *,
    mask: Mask | None,
    layout: str,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    sinks: Any,
    cu_seqlens: Any,
    scale: float | None,
    device: Any,
    ranks_of_heads: int = 1,
    trains_modifiers: bool = False,
) -> Arguments:
    """The arguments of a call as kernels read them.

    Args:
      ranks_of_heads: number of ranks that share the heads; it must divide the heads of q.
      trains_modifiers: whether modifiers may capture tensors that require a gradient.

    Raises:
      SpecError: an argument is wrong.
    """
    layout = check_layout(layout)
    _check_operands(*operands)
    _check_options(operands[0], sinks, scale, device)
    with torch.no_grad() if trains_modifiers else contextlib.nullcontext():
        modifiers = traced_modifiers(score_mod, mask_mod)
    q, k, v = (readable(n, x) for n, x in zip("qkv", operands, strict=True))
    if q.shape[2] % ranks_of_heads:
        raise SpecError(f"q has {q.shape[2]} heads, which {ranks_of_heads} ranks do not divide")
    if mask is not None and not isinstance(cast(object, mask), Mask):
        raise SpecError(f"mask must be made by attn_mlir.masks, got {type(mask).__name__}")
    if isinstance(cu_seqlens, torch.Tensor):
        check_sendable("cu_seqlens", cu_seqlens)
        cu_seqlens = cu_seqlens.tolist()
    cu_seqlens = integers_of(cu_seqlens)
    shared: dict[str, object] = {
        "batch": q.shape[0],
        "heads of q and k": (q.shape[2], k.shape[2]),
        "head_dim and v_head_dim": (q.shape[3], v.shape[3]),
        "dtype": q.dtype,
        "device": q.device.type,
        "mask": mask,
        "layout": layout,
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "score_mod and mask_mod": modifiers,
        "sinks": None if sinks is None else sinks.dtype,
        "gradients": wants_gradient((*operands, sinks), {}),
    }
    problem = Problem(mask, score_mod, mask_mod, scale, None, device)
    return Arguments((q, k, v), problem, layout, cu_seqlens, shared)


def _check_operands(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_sendable(name, x, has_gradient=True)
        if x.dim() != 4:
            raise SpecError(f"{name} must be [batch, own tokens, heads, D], got {list(x.shape)}")
        if x.dtype not in DTYPES or x.dtype != q.dtype or x.device != q.device:
            raise SpecError(
                f"{name} must be bfloat16 or float16, of q's dtype and device, got {x.dtype} on "
                f"{x.device} beside {q.dtype} on {q.device}"
            )
    if k.shape[:3] != v.shape[:3] or k.shape[3] != q.shape[3] or k.shape[:2] != q.shape[:2]:
        raise SpecError(
            "k must be [batch, own tokens, kv_heads, head_dim] of q's batch, tokens and head_dim, "
            f"and v of k's tokens and heads: q is {list(q.shape)}, k {list(k.shape)}, v "
            f"{list(v.shape)}"
        )
    if not k.shape[2] or q.shape[2] % k.shape[2]:
        raise SpecError(f"k has {k.shape[2]} heads, which must divide the {q.shape[2]} of q")


def traced_modifiers(score_mod: ScoreMod | None, mask_mod: MaskMod | None) -> str:
    """A digest of the traced modifiers, which must be equal on all ranks; "" without modifiers.

    Raises:
      SpecError: as `trace`; or autograd records the call, and a modifier captures a tensor that
        requires a gradient.
    """
    for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if mod is not None and not callable(cast(object, mod)):
            raise SpecError(f"{name} must be a function, got {type(mod).__name__}")
    program, _ = trace(score_mod, mask_mod)
    return "" if program is None else hashlib.sha256(program.canonical().encode()).hexdigest()[:16]


def check_sinks(sinks: Any, q: Any, *, has_gradient: bool = False) -> None:
    """Refuses all but sinks of the heads of q; `has_gradient` as of `check_sendable`.

    Raises:
      SpecError: says what they have to be.
    """
    check_sendable("sinks", sinks, has_gradient=has_gradient)
    is_right = tuple(sinks.shape) == (q.shape[2],) and sinks.dtype in SINK_DTYPES
    if not is_right or sinks.device != q.device:
        raise SpecError(
            f"sinks must be [{q.shape[2]}] of bfloat16, float16 or float32 on {q.device}, got "
            f"{list(sinks.shape)} of {sinks.dtype} on {sinks.device}"
        )


def _check_options(q: Any, sinks: Any, scale: object, device: Any) -> None:
    if sinks is not None:
        check_sinks(sinks, q, has_gradient=True)
    check_scale(scale, q.shape[3])
    machine_of(device, view(q.detach(), "q"))


class Message:
    """K and V of a rank as one tensor of rank 1, padded to the same length on all ranks."""

    def __init__(self, k: Any, v: Any, tokens: int):
        batch, _, heads, _ = k.shape
        self._shapes = [(batch, tokens, heads, x.shape[3]) for x in (k, v)]
        self._tokens = tokens

    def packed(self, k: Any, v: Any) -> Any:
        """The message for tensors of at most `tokens` tokens."""
        if k.shape[1] == self._tokens:
            return torch.cat([k.reshape(-1), v.reshape(-1)])
        flat = k.new_zeros(sum(map(_count, self._shapes)))
        for whole, x in zip(self.parts(flat, self._tokens), (k, v), strict=True):
            whole[:, : x.shape[1]] = x
        return flat

    def parts(self, flat: Any, tokens: int) -> list[Any]:
        """Views of K and V in a message, of its first `tokens` tokens."""
        first = _count(self._shapes[0])
        pairs = zip((flat[:first], flat[first:]), self._shapes, strict=True)
        return [x.view(shape)[:, :tokens] for x, shape in pairs]


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
