"""Offsets of coordinates in the reference: where rows, columns and heads begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.dialect.attn.masks.shifted import shifted
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask


@dataclass(frozen=True)
class Offsets:
    """The offsets of one sequence; without positions masks are aligned at the end."""

    q: int
    k: int
    head: int
    are_positions: bool

    def mask(self, mask: Mask) -> Mask:
        """The mask that rows and columns see."""
        return shifted(mask, self.q, self.k) if self.are_positions else mask


NO_OFFSETS = Offsets(0, 0, 0, are_positions=False)


def offsets_of(
    q_offset: Any, k_offset: Any, head_offset: int, *, batch: int, first_batch: int
) -> list[Offsets]:
    """The offsets of each of `batch` sequences.

    Args:
      q_offset, k_offset, head_offset: as in `attn_mlir.attention`; None for none.
      first_batch: number of the first sequence in arrays of offsets.

    Raises:
      SpecError: an offset that is neither an integer nor integers, one for each sequence.
    """
    tables: list[list[int]] = []
    for name, value in (("q_offset", q_offset), ("k_offset", k_offset)):
        table = np.asarray(0 if value is None else value)
        if table.dtype.kind not in "iu" or table.ndim > 1:
            raise SpecError(f"{name} must be an integer or integers [batch], got {value!r:.60}")
        if table.ndim == 1:
            table = table[first_batch : first_batch + batch]
        if table.shape not in ((), (batch,)):
            raise SpecError(f"{name} has {len(table)} numbers for {batch} sequences")
        tables.append(np.broadcast_to(table, batch).tolist())
    are_positions = q_offset is not None or k_offset is not None
    pairs = zip(*tables, strict=True)
    return [Offsets(q, k, head_offset, are_positions) for q, k in pairs]
