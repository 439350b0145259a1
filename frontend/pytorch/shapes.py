"""Checks operands of PyTorch's attention functions, and makes them [batch, heads, seq, head_dim].

Broadcast extents get strides of 0; operands are copied only if no strides can express the shape.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.element_types import ELEMENT_TYPES, NARROW
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.runtime.call.torch_tensors import (
    DIFFERENTIATED,
    NO_GRADIENT,
    check_tensor,
    is_differentiated,
)

torch: Any = importlib.import_module("torch")

DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Operands:
    """Checked operands of rank 4.

    Attributes:
      query: [batch, heads, sq, head_dim].
      key: [batch, kv_heads, sk, head_dim].
      value: [batch, kv_heads, sk, v_head_dim].
      lead: extents before sq in PyTorch's result.
      batch_axes: how many of these form the batch; the next one is the heads, or there is 1 head.
    """

    query: Any
    key: Any
    value: Any
    lead: tuple[int, ...]
    batch_axes: int

    def unfolded(self, result: Any) -> Any:
        """A result [batch, heads, ...] reshaped to PyTorch's leading extents."""
        return result if len(self.lead) == 2 else result.reshape(*self.lead, *result.shape[2:])

    def mask(self, attn_mask: Any) -> Any:
        """A mask as [batch or 1, heads or 1, sq or 1, sk or 1].

        Raises:
          SpecError: it does not broadcast to the shape of the scores.
        """
        scores = (*self.lead, self.query.shape[2], self.key.shape[2])
        shape = (1,) * (len(scores) - attn_mask.dim()) + tuple(attn_mask.shape)
        fits = attn_mask.dim() >= 2 and len(shape) == len(scores)
        if not fits or any(n not in (1, m) for n, m in zip(shape, scores, strict=True)):
            raise SpecError(
                f"attn_mask has shape {list(attn_mask.shape)}: it must have 2 to {len(scores)} "
                f"dimensions, each 1 or that of the scores, which are {list(scores)}"
            )
        return _of_rank_4(attn_mask.reshape(shape), self.lead, self.batch_axes)


def checked(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Checks query, key and value; returns them, under autocast in its dtype.

    Raises:
      SpecError: names the operand, what was got, and what to do.
    """
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise SpecError(f"{name} must be a tensor, got {type(tensor).__name__}")
        check_argument(name, tensor, has_gradient=True)
        if tensor.dim() < 2:
            raise SpecError(f"{name} must be [..., sequence, head_dim], got {list(tensor.shape)}")
        tensors[name] = tensor = _autocast(tensor)
        if tensor.dtype not in DTYPES:
            raise SpecError(f"{name} is {tensor.dtype}, {_advice(tensor.dtype)}")
        if tensor.dtype != tensors["query"].dtype:
            raise SpecError(
                f"{name} is {tensor.dtype}, query is {query.dtype}: convert one of them"
            )
        if tensor.device != query.device:
            raise SpecError(f"{name} is on {tensor.device}, query is on {query.device}")
        if 0 in tensor.shape[-1:]:
            raise SpecError(no_kernel(f"{name} of head_dim 0", "a row has an element at least"))
    if key.shape[-1] != query.shape[-1]:
        raise SpecError(f"key has head_dim {key.shape[-1]}, query has {query.shape[-1]}")
    if value.shape[-2] != key.shape[-2]:
        raise SpecError(f"value has {value.shape[-2]} keys, key has {key.shape[-2]}")
    return tensors["query"], tensors["key"], tensors["value"]


def check_argument(name: str, tensor: Any, *, has_gradient: bool = False) -> None:
    """Refuses a tensor that is not what its memory holds, or of which a derivative is wanted.

    PyTorch's compiler traces this, and `described` sees the tensors again when it runs a fake
    kernel.

    Args:
      has_gradient: whether autograd gets the gradient of this argument.

    Raises:
      SpecError: names the argument, and says what it is and what to pass.
    """
    if not torch.compiler.is_dynamo_compiling():
        check_tensor(tensor, name, has_gradient=has_gradient)
        return
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise SpecError(f"{name} is a {type(tensor).__name__}: pass a plain torch.Tensor")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise SpecError(f"{name} must be a dense tensor, got one of layout {tensor.layout}")
    if tensor.requires_grad and torch.is_grad_enabled() and not has_gradient:
        raise SpecError(NO_GRADIENT.format(name))
    if at_tracing_time(is_differentiated):
        raise SpecError(DIFFERENTIATED.format(name))


def wants_gradient(*operands: Any) -> bool:
    """Whether autograd records a call with these operands; PyTorch's compiler traces this."""
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in operands)


def outside_of(rows: Any, used: Any, offsets: Any = None) -> Any:
    """Which rows lie outside of every sequence, bools [batch, rows], or [rows] with offsets.

    Args:
      rows: [batch, rows, ...], or [rows, ...] with offsets.
      used: [batch] integers, the length of each sequence.
      offsets: [batch + 1] integers, the begin of each sequence and the end of the last one; rows
        before the first sequence and after the last one are outside.
    """
    used = torch.as_tensor(used, device=rows.device)
    if offsets is None:
        return torch.arange(rows.shape[1], device=rows.device) >= used[:, None]
    offsets = torch.as_tensor(offsets, device=rows.device)
    numbers = torch.arange(rows.shape[0], dtype=offsets.dtype, device=rows.device)
    sequence = torch.searchsorted(offsets[1:], numbers, right=True)
    known = sequence.clamp(max=used.shape[0] - 1)
    place = numbers - offsets[known]
    return (place < 0) | (place >= used[known]) | (sequence != known)


def at_tracing_time(ask: Callable[[], bool]) -> bool:
    """The answer that PyTorch's compiler takes as a constant, when it traces this."""
    return ask()


at_tracing_time._dynamo_marked_constant = True  # pyright: ignore


def _autocast(tensor: Any) -> Any:
    """An operand in the dtype of autocast, if that is on."""
    kind = tensor.device.type
    if tensor.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def _advice(dtype: Any) -> str:
    allowed = "allowed are " + ", ".join(str(kind) for kind in DTYPES)
    if dtype in (torch.float32, torch.float64):
        return f"{allowed}: convert query, key and value with .to(torch.bfloat16)"
    if dtype in [getattr(torch, ELEMENT_TYPES[name].torch) for name in NARROW]:
        return f"{allowed}: attn_mlir.attention takes 8 bits, with their scales"
    return allowed


def fold(query: Any, key: Any, value: Any, *, enable_gqa: bool) -> Operands:
    """Brings operands to rank 4 as PyTorch's `scaled_dot_product_attention` broadcasts them.

    Operands of rank 3 are a batch of single heads, unless heads are grouped: one kernel then serves
    any number of them.

    Raises:
      SpecError: extents that do not go together.
    """
    tensors = {"query": query, "key": key, "value": value}
    least = 3 if enable_gqa else 2
    for name, tensor in tensors.items():
        if tensor.dim() < least:
            expected = (
                "[..., heads, sequence, head_dim]" if enable_gqa else "[..., sequence, head_dim]"
            )
            raise SpecError(f"{name} must be {expected}, got {list(tensor.shape)}")
    leads = [tuple(tensor.shape[:-2]) for tensor in tensors.values()]
    if leads[0] == leads[1] == leads[2] and len(leads[0]) == 2:
        return Operands(query, key, value, leads[0], 1)
    one_head = len(leads[0]) > 1 and all(lead[-1:] == (1,) for lead in leads[1:])
    if enable_gqa or one_head:
        heads, kv_heads = leads[0][-1:], leads[1][-1:]
        if leads[2][-1:] != kv_heads:
            raise SpecError(f"key has {kv_heads[0]} heads, value has {leads[2][-1]}")
        batch = _broadcast(tensors, [lead[:-1] for lead in leads])
        lead, expected = (*batch, *heads), [(*batch, *heads), *[(*batch, *kv_heads)] * 2]
    else:
        lead = _broadcast(tensors, leads)
        expected = [lead] * 3
    joined = 1 if len(lead) == 1 and not enable_gqa else max(len(lead) - 1, 0)
    query, key, value = (
        _of_rank_4(tensor.expand(*extents, *tensor.shape[-2:]), extents, joined)
        for tensor, extents in zip(tensors.values(), expected, strict=True)
    )
    return Operands(query, key, value, lead, joined)


def _broadcast(tensors: dict[str, Any], extents: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The extents after broadcasting.

    Raises:
      SpecError: shows the operands' shapes.
    """
    rank = max(len(lead) for lead in extents)
    padded = [(1,) * (rank - len(lead)) + lead for lead in extents]
    result: list[int] = []
    for axis in zip(*padded, strict=True):
        others = [n for n in axis if n != 1]
        if any(n != others[0] for n in others):
            shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in tensors.items())
            raise SpecError(
                f"batch and heads must agree or be 1, got {shapes}; enable_gqa=True lets heads be "
                "a multiple"
            )
        result.append(others[0] if others else 1)
    return tuple(result)


def _of_rank_4(tensor: Any, lead: Sequence[int], batch_axes: int) -> Any:
    """A tensor broadcast to leading extents `lead`, of which the first `batch_axes` are merged into
    one.

    A view if strides allow it, else a copy.
    """
    before, heads = tensor.shape[:batch_axes], tensor.shape[batch_axes:-2]
    inner = (math.prod(heads), *tensor.shape[-2:])
    if batch_axes == 1:
        return tensor.reshape(*before, *inner)
    if all(extent == 1 for extent in before):
        return tensor.reshape(1, *inner)
    whole = tensor.expand(*lead[:batch_axes], *tensor.shape[batch_axes:])
    return whole.reshape(math.prod(lead[:batch_axes]), *inner)
