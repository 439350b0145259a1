"""Base classes of requests for attention: sequences with their lengths, caches and heads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import OUT_DTYPES, dtype_name
from attn_mlir.compiling.options import MAX_HEADS
from attn_mlir.compiling.request import Request, option, request
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.dialect.attn.scale import ScaleBlock
from attn_mlir.dialect.orders import TILE_ORDERS
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask, full
from attn_mlir.masks.text import parse_mask
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.schedules.policy.facts import Facts, Scales

MAX_MASK_NAME = 64  # characters of a kernel's name that go to the mask


@request
class SequenceRequest(Request):
    """A request for attention within sequences, of any number and any lengths.

    Args:
      mask: which keys of its sequence a query sees, in closed form, see `masks`; `full()` when left
        out.
      lengths: which index arrays give the lengths of sequences; they are passed with every call.
      cache: the storage of keys in a cache; None for tensors.
    """

    mask: Mask = option(converter=options.mask, default=None, written=str, read=parse_mask)
    lengths: Lengths = option(
        converter=options.lengths,
        default=DENSE,
        written=lambda lengths: [*lengths.tensors, *lengths.scalars],
        read=options.lengths_of,
    )
    cache: Cache | None = option(
        converter=options.cache,
        default=None,
        written=Cache.fields,
        read=lambda fields: Cache(**cast("Mapping[str, Any]", fields)),
    )

    def completed(self) -> Mapping[str, object]:
        """All keys of a sequence."""
        return {"mask": full()}

    @property
    def mask_name(self) -> str:
        """The mask in the name of a kernel; one of many parts by its digest."""
        if len(self.mask.name) > MAX_MASK_NAME:
            return f"mask_{hashlib.sha256(self.mask.name.encode()).hexdigest()[:12]}"
        return self.mask.name

    @property
    def index_operands(self) -> tuple[Operand, ...]:
        """Index arrays of the cache and of lengths, and upper bounds of lengths."""
        index_arrays = {} if self.cache is None else self.cache.arrays
        return (
            *(table(name, "i32", rank) for name, rank in index_arrays.items()),
            *(table(name, "i32", 1) for name in self.lengths.tensors),
            *(Operand(name, "i32", role="scalar") for name in self.lengths.scalars),
        )


@request
class HeadsRequest(SequenceRequest):
    """A request for attention whose query heads share heads of keys and values in groups.

    Args:
      heads: query heads.
      kv_heads: heads of keys and values; each serves heads / kv_heads query heads. As many as
        `heads` when left out.
    """

    heads: int = option(converter=partial(integer, "heads", least=1, most=MAX_HEADS))
    kv_heads: int = option(
        converter=partial(integer, "kv_heads", least=1, most=MAX_HEADS), default=None
    )

    def completed(self) -> Mapping[str, object]:
        """All keys of a sequence, and as many heads of them as of queries."""
        return {**super().completed(), "kv_heads": self.heads}

    def check_heads(self) -> None:
        """Refuses groups of unequal sizes.

        Raises:
          SpecError: says what was got.
        """
        if self.heads % self.kv_heads:
            raise SpecError(
                f"kv_heads must divide heads, got heads = {self.heads} and kv_heads = "
                f"{self.kv_heads}"
            )

    @property
    def group(self) -> int:
        """Query heads per head of keys and values."""
        return self.heads // self.kv_heads

    def attention_facts(self, head_dim: int, v_head_dim: int, dtype: str) -> Facts:
        """The facts that attention and its gradients share, for elements of one type.

        Args:
          head_dim, v_head_dim: as of `Facts`.
          dtype: dtype of all operands and results.
        """
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            q_type=dtype,
            kv_type=dtype,
            out_type=dtype,
            mask=self.mask,
            page_size=0 if self.cache is None else self.cache.page_size,
            ragged_q=self.lengths.ragged_q,
            padded_q=self.has_padded_queries,
        )

    @property
    def has_padded_queries(self) -> bool:
        """Whether a sequence may have fewer queries than the axis of queries."""
        return self.lengths.used_q and not self.lengths.ragged_q

    @property
    def rows_q(self) -> tuple[str, ...]:
        """The extents of queries before heads."""
        return ("total_q",) if self.lengths.ragged_q else ("batch", "sq")

    @property
    def rows_k(self) -> tuple[str, ...]:
        """The extents of keys before heads, where they are tensors."""
        return ("total_k",) if self.lengths.ragged_k else ("batch", "sk")


@request
class GroupedRequest(HeadsRequest):
    """A request for attention, of whose kernel a caller may pin some knobs.

    Args:
      query_tiles: tiles of queries that a CTA works on.
      tile_order: how tiles are given to CTAs.
      num_qk_stages: parts of a tile of keys, by columns, that Q K^T awaits one after the other: 1,
        2 or 4, a divisor of the lines of 128 bytes of a row; 1 when left out.
      num_pv_stages: parts of a tile of probabilities, by columns, that P V awaits one after the
        other: 1, 2 or 4, of 32 columns at least; 1 when left out.
      ordered_softmax: whether the softmax groups of two query tiles weigh their scores one after
        the other.
      out_dtype: of O: `bf16`, `f16` or `f32`, in any spelling.
      return_lse: whether the kernel takes and writes LSE.
    """

    query_tiles: int | None = option(converter=options.query_tiles, default=None, knob="q_tiles")
    tile_order: str | None = option(
        converter=partial(options.one_of, "tile_order", TILE_ORDERS, optional=True),
        default=None,
        knob="tile_order",
    )
    num_qk_stages: int | None = option(
        converter=partial(options.stage_count, "num_qk_stages"), default=None, knob="num_qk_stages"
    )
    num_pv_stages: int | None = option(
        converter=partial(options.stage_count, "num_pv_stages"), default=None, knob="num_pv_stages"
    )
    ordered_softmax: bool = option(
        converter=partial(flag, "ordered_softmax"), default=False, knob="ordered_softmax"
    )
    out_dtype: str = option(
        converter=partial(dtype_name, argument="out_dtype", allowed=OUT_DTYPES), default=None
    )
    return_lse: bool = option(converter=partial(flag, "return_lse"), default=True)


def position_scales(cache: Cache | None, columns: int, v_columns: int) -> Scales | None:
    """The scales of the positions of a cache.

    Args:
      columns, v_columns: of a row of keys, and of values.
    """
    if cache is None or not cache.scale_dtype:
        return None
    rows = (columns, cache.k_groups), (v_columns, cache.v_groups)
    return Scales(*(ScaleBlock(cache.scale_rows, size // groups) for size, groups in rows))


def table(name: str, dtype: str, rank: int) -> Operand:
    """A tensor whose extents each call gives."""
    return Operand(name, dtype, tuple(f"{name}_{axis}" for axis in range(rank)))
