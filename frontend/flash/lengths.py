"""Lengths of sequences as FlashAttention gives them, and what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_mlir.api.caches import check_entries
from attn_mlir.errors import SpecError
from attn_mlir.flash.rotary import as_f32, full_like, is_readable
from attn_mlir.library import check_one_library
from attn_mlir.mods import alibi, compose
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.trace import ScoreMod


def shape_of_rank(name: str, array: Any, rank: int) -> tuple[int, ...]:
    """The shape of an array.

    Raises:
      SpecError: no array, or one of another rank.
    """
    shape = shape_of(array, name, has_gradient=True)  # what takes the array checks that
    if len(shape) != rank:
        raise SpecError(f"{name} must be an array of rank {rank}, got shape {list(shape)}")
    return shape


def check_extents(arrays: Mapping[str, Any], extent: int) -> None:
    """Refuses arrays of another length; None is left out.

    Raises:
      SpecError: names the array.
    """
    for name, array in arrays.items():
        if array is not None and shape_of_rank(name, array, 1) != (extent,):
            raise SpecError(f"{name} must be [{extent}], got {list(shape_of(array, name))}")


def batch_of(q: Any, cu_seqlens_q: Any) -> int:
    """The number of sequences of queries.

    Raises:
      SpecError: queries or offsets of another rank.
    """
    if cu_seqlens_q is None:
        return shape_of_rank("q", q, 4)[0]
    shape_of_rank("q", q, 3)
    return shape_of_rank("cu_seqlens_q", cu_seqlens_q, 1)[0] - 1


def counts(shape: tuple[int, ...], offsets: Any) -> Any:
    """Queries or new keys of each sequence: a number, or [batch] where offsets give them."""
    return shape[1] if offsets is None else offsets[1:] - offsets[:-1]


def distance(q: Any, k: Any, ours: Mapping[str, Any]) -> Any:
    """Keys less queries of each sequence, [batch] of i32 where q is.

    Args:
      q, k: as of `attention`.
      ours: `cu_seqlens_q`, `cu_seqlens_k`, `seqused_q` and `seqused_k`, where they are given.

    Raises:
      SpecError: arrays of another library, device or length.
    """
    names = ("seqused_q", "seqused_k"), ("cu_seqlens_q", "cu_seqlens_k")
    used, offsets = ({name: ours.get(name) for name in row} for row in names)
    check_one_library({"q": q, **used, **offsets})
    batch = batch_of(q, offsets["cu_seqlens_q"])
    check_extents(used, batch)
    check_extents(offsets, batch + 1)
    found: list[Any] = []
    for name, array in (("q", q), ("k", k)):
        by_offsets = offsets[f"cu_seqlens_{name}"]
        shape = shape_of_rank(name, array, 4 if by_offsets is None else 3)
        own = used[f"seqused_{name}"]
        found.append(counts(shape, by_offsets) if own is None else own)
    ahead = found[1] - found[0]
    return full_like(q, batch, ahead) if isinstance(ahead, int) else ahead


def with_slopes(score_mod: ScoreMod | None, slopes: Any, ahead: Any) -> ScoreMod:
    """The modifier that also subtracts slope x |i + ahead - j| for query i and key j.

    Args:
      slopes: [heads] or [batch, heads] f32.
      ahead: [batch], the position of each sequence's first query among its keys.
    """
    biased = alibi(slopes, offset=ahead)
    return biased if score_mod is None else compose(score_mod, biased)


def rows_of(table: Any, name: str, rows: Any) -> Any:
    """The rows of a table by number; of numbers on a GPU that are none the nearest counts.

    Args:
      name: of `rows`.

    Raises:
      SpecError: names a number that is none.
    """
    count = table.shape[0]
    if is_readable(rows):
        check_entries(name, np.asarray(rows), count, "the table has rows")
    return table[rows.clip(0, count - 1)]


def is_narrow(operand: Any) -> bool:
    """Whether elements have 8 bits; an operand that is no array is not looked at."""
    return "float8" in str(getattr(operand, "dtype", ""))


def descale(value: Any, operand: Any) -> Any:
    """The scale of an operand's elements as `attention` has it.

    As in FlashAttention it is 1 where an operand of 8 bits comes without one, and nothing is made
    of the scale of an operand of 16 bits.
    """
    if not is_narrow(operand):
        return None
    return as_f32(full_like(operand, 1, 1)) if value is None else value
