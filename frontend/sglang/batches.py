"""Batches of SGLang's requests: their lengths and pages in tensors whose addresses graphs keep."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.flash import flash_attn_with_kvcache
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.runtime.kernel import DeviceChoice

torch: Any = importlib.import_module("torch")

_attend = renamed(
    flash_attn_with_kvcache, k_cache="key_buffer", v_cache="value_buffer", softmax_scale="scaling",
    window_size="sliding_window_size", softcap="logit_cap", k_descale="k_scale",
    v_descale="v_scale", cache_seqlens="seq_lens",
)  # fmt: skip


@dataclass
class Batch:
    """The requests of a step.

    Attributes:
      cu_seqlens_q: [requests + 1] i32.
      cache_seqlens: [requests] i32, tokens of each request, the new ones included.
      page_table: [requests, columns] i32.
      max_seqlen_q: no request has more new tokens.
    """

    cu_seqlens_q: Any
    cache_seqlens: Any
    page_table: Any
    max_seqlen_q: int


@dataclass
class Buffers:
    """Memory for batches that graphs read, as long as the longest ones.

    Attributes:
      batch: with as many requests and columns as there may be.
      page_size: tokens of a page.
    """

    batch: Batch
    page_size: int

    @classmethod
    def of(cls, most: int, max_context_len: int, page_size: int, device: Any) -> Buffers:
        """Buffers for `most` requests, of one new token each, with so many tokens."""
        sizes = {"max_bs": most, "context_len": max_context_len, "page_size": page_size}
        for name, size in sizes.items():
            integer(name, size, 1)
        i32 = {"dtype": torch.int32, "device": device}
        table = torch.zeros(most, -(-max_context_len // page_size), **i32)
        lengths, starts = torch.ones(most, **i32), torch.arange(most + 1, **i32)
        return cls(Batch(starts, lengths, table, 1), page_size)

    def filled(self, seq_lens: Any, req_to_token: Any, req_pool_indices: Any) -> Batch:
        """The batch of these requests in the buffers; arguments as of `pages`."""
        (count,), table = _indices("seq_lens", seq_lens, 1), self.batch.page_table
        _check_count(req_pool_indices, count)
        columns = table.shape[1]
        found = pages(req_to_token, req_pool_indices, columns * self.page_size, self.page_size)
        table[:count, : found.shape[1]] = found
        self.batch.cache_seqlens[:count] = seq_lens
        lengths = self.batch.cache_seqlens[:count]
        return Batch(self.batch.cu_seqlens_q[: count + 1], lengths, table[:count], 1)


def pages(req_to_token: Any, req_pool_indices: Any, longest: int, page_size: int) -> Any:
    """The pages of requests, [requests, columns] i32.

    Args:
      req_to_token: [pool, tokens], the place of each token of a request; pages are whole.
      req_pool_indices: [requests], the row of each request.
      longest: no request has more tokens.
      page_size: tokens of a page.

    Raises:
      SpecError: names an argument that is wrong.
    """
    integer("page_size", page_size, 1)
    _indices("req_to_token", req_to_token, 2)
    _indices("req_pool_indices", req_pool_indices, 1)
    first = req_to_token[req_pool_indices, :longest:page_size]
    return (first // page_size if page_size > 1 else first).to(torch.int32)


def batch_of(
    seq_lens: Any,
    new_lens: Any,
    longest: tuple[int, int],
    req_to_token: Any,
    req_pool_indices: Any,
    page_size: int,
) -> Batch:
    """The batch of a step outside of graphs.

    Args:
      seq_lens: [requests], tokens of each request, the new ones included.
      new_lens: [requests], new ones; None: one each.
      longest: no request has more new tokens, and tokens.
      req_to_token, req_pool_indices, page_size: as of `pages`.

    Raises:
      SpecError: names an argument that is wrong.
    """
    (count,) = _indices("seq_lens", seq_lens, 1)
    _check_count(req_pool_indices, count)
    starts = torch.arange(count + 1, dtype=torch.int32, device=seq_lens.device)
    if new_lens is not None:
        if _indices("extend_seq_lens", new_lens, 1) != (count,):
            raise SpecError(f"extend_seq_lens has {len(new_lens)} requests, seq_lens has {count}")
        starts[1:] = new_lens.cumsum(0)
    table = pages(req_to_token, req_pool_indices, longest[1], page_size)
    return Batch(starts, seq_lens.to(torch.int32), table, longest[0])


def attend(
    q: Any,
    key_buffer: Any,
    value_buffer: Any,
    batch: Batch | None,
    page_size: int,
    *,
    scaling: float | None,
    window: int = -1,
    logit_cap: float = 0.0,
    k_scale: Any = None,
    v_scale: Any = None,
    sinks: Any = None,
    is_causal: bool = True,
    device: DeviceChoice = None,
) -> Any:
    """Attention of the new tokens of a batch over their requests' pages.

    Args:
      q: [tokens, heads, head_dim].
      key_buffer, value_buffer: [places, kv_heads, head_dim or v_head_dim] of a layer, the new
        tokens in it; places are whole pages.
      scaling: of the scores.
      window: keys before its own that a query sees; -1 for all.
      logit_cap: 0 for none.
      k_scale, v_scale: f32 of one element, or None, of buffers of 8 bits.
      sinks: [heads] f32, or None.
      is_causal: whether a query sees no key behind it.
      device: see `attention`.

    Returns:
      [tokens, heads, v_head_dim] like q.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    page_size = integer("page_size", page_size, 1)
    if not isinstance(batch, Batch):
        raise SpecError(f"batch must be a Batch, got {shown(batch, 40)}")
    if scaling is None:
        raise SpecError("scaling must be a number, got None")
    _indices("seq_lens", batch.cache_seqlens, 1)
    pools: list[Any] = []
    for name, buffer in (("key_buffer", key_buffer), ("value_buffer", value_buffer)):
        shape = shape_of(buffer, name)
        if not isinstance(buffer, torch.Tensor) or len(shape) != 3 or shape[0] % page_size:
            raise SpecError(
                f"{name} must be a tensor [places, kv_heads, head_dim] of whole pages of "
                f"{page_size}, got {type(buffer).__name__} {list(shape)}"
            )
        pools.append(buffer.unflatten(0, (-1, page_size)))
    return _attend(
        q,
        *pools,
        cache_seqlens=batch.cache_seqlens,
        page_table=batch.page_table,
        cu_seqlens_q=batch.cu_seqlens_q,
        max_seqlen_q=batch.max_seqlen_q,
        softmax_scale=scaling,
        causal=is_causal,
        window_size=(window, 0 if is_causal else window),
        softcap=logit_cap,
        k_descale=_of_one_element("k_scale", k_scale),
        v_descale=_of_one_element("v_scale", v_scale),
        sinks=sinks,
        num_splits=0,
        device=device,
    )


def _indices(name: str, array: Any, rank: int) -> tuple[int, ...]:
    """The shape of a tensor of integers.

    Raises:
      SpecError: the argument is not a tensor of this rank of i32 or i64.
    """
    is_tensor = isinstance(array, torch.Tensor)
    if not is_tensor or array.dim() != rank or array.dtype not in (torch.int32, torch.int64):
        got = f"{list(array.shape)} of {array.dtype}" if is_tensor else shown(array, 40)
        raise SpecError(f"{name} must be a tensor of rank {rank} of int32 or int64, got {got}")
    return tuple(array.shape)


def _check_count(req_pool_indices: Any, count: int) -> None:
    """Refuses `req_pool_indices` for another number of requests.

    Raises:
      SpecError: shows both numbers.
    """
    (rows,) = _indices("req_pool_indices", req_pool_indices, 1)
    if rows != count:
        raise SpecError(f"req_pool_indices has {rows} requests, seq_lens has {count}")


def _of_one_element(name: str, scale: Any) -> Any:
    """A scale as a tensor [1], or None.

    Raises:
      SpecError: the scale is not a tensor of one element.
    """
    if scale is None:
        return None
    if not isinstance(scale, torch.Tensor) or scale.numel() != 1:
        raise SpecError(f"{name} must be a tensor of one element, got {shown(scale, 40)}")
    return scale.reshape(1)
