"""Offsets of coordinates: the position of a call's operands in a longer problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attn_mlir.api.array_checks import index_array
from attn_mlir.api.lengths import contents_of
from attn_mlir.compiling.offsets import LEAST, MOST, CallOffsets, numbers_of
from attn_mlir.dialect.attn.coordinates import K_OFFSET, Q_OFFSET, Offsets
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.scalars import as_int, extents, integer

if TYPE_CHECKING:
    from attn_mlir.block_masks.blocks import BlockMask


def offsets_of(q_offset: object, k_offset: object, head_offset: object, batch: int) -> CallOffsets:
    """The offsets that these arguments of `attention` give.

    Raises:
      SpecError: neither an integer nor i32 [batch], or out of range, as far as the host can read.
    """
    values = {Q_OFFSET: q_offset, K_OFFSET: k_offset}
    per_sequence = {name: value for name, value in values.items() if _is_array(value)}
    arrays = {name: _array(name, value, batch) for name, value in per_sequence.items()}
    q, k = (None if name in per_sequence else value for name, value in values.items())
    numbers = numbers_of(q, k, head_offset)
    return CallOffsets(Offsets(tuple(numbers), tuple(arrays)), {**numbers, **arrays})


def offsets_of_blocks(block_mask: BlockMask, requested: CallOffsets) -> CallOffsets:
    """The offsets of a block mask, which are those of its calls.

    Raises:
      SpecError: the call gives others.
    """
    numbers = getattr(block_mask, "offsets", {})
    for name, value in requested.arguments.items():
        if name in requested.kinds.arrays or numbers.get(name) != value:
            raise SpecError(
                f"{name} and block_mask exclude each other: the blocks that it calls full are not "
                f"tested, so make the block mask with this {name}, a number"
            )
    return CallOffsets(Offsets(tuple(numbers)), numbers)


def _is_array(value: object) -> bool:
    """Whether an offset is an array and no number."""
    if as_int(value) is not None:
        return False
    if hasattr(type(value), "__dlpack__"):  # some have a rank, and no extents that can be read
        return bool(getattr(value, "ndim", 1))
    return len(extents(value)) > 0


def _array(name: str, value: object, batch: int) -> object:
    """An offset for each sequence, dense if it is in host memory.

    Raises:
      SpecError: as of `offsets_of`.
    """
    label = f"an integer or [{batch}]"
    value = index_array(name, value, (batch,), label=label, all_count=True)
    numbers = contents_of({name: value}, {})[name]
    if numbers is not None:
        for b in np.flatnonzero((numbers < LEAST[name]) | (numbers > MOST[name])).tolist()[:1]:
            integer(f"{name}[{b}]", int(numbers[b]), LEAST[name], MOST[name])
    return value
