"""Checks the arguments of block masks: sizes and numbers of blocks, and lists of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import MAX_I32, as_int

Array = npt.NDArray[Any]

BLOCK_SIZE = 128
MAX_BLOCKS = 1 << 27  # half a GiB of numbers: a million queries and keys in blocks of 128 have 2^26
MAX_BLOCK_SCORES = 1 << 24  # scores evaluated at once: 128 MiB per value of the predicate


def on_host(array: Any) -> Any:
    """An array in host memory; of one that torch or cupy has on a GPU, a copy."""
    copies: list[Any] = [getattr(array, name, None) for name in ("cpu", "get")]
    return next((copy() for copy in copies if callable(copy)), array)


def check_block_size(block_size: object) -> tuple[int, int]:
    """Query positions and keys of a block, given as one number for both or as two.

    Raises:
      SpecError: it is neither.
    """
    both = isinstance(block_size, (tuple, list))
    pair = cast("Sequence[object]", block_size) if both else (block_size, block_size)
    sizes = [as_int(size) or 0 for size in pair]
    if len(sizes) != 2 or min(sizes) < 1 or max(sizes) > MAX_I32:
        raise SpecError(
            f"block_size must be one or two numbers above 0, got {shown(block_size, 40)}"
        )
    return sizes[0], sizes[1]


def check_block_count(shape: Sequence[int], block_size: tuple[int, int]) -> None:
    """Refuses more or larger blocks than any plausible use has.

    Args:
      shape: (batch, heads, sq, sk), as far as blocks of them differ.

    Raises:
      SpecError: says how many there are, and how many are allowed.
    """
    count = math.prod(shape[:2]) * math.prod(
        -(-extent // size) for extent, size in zip(shape[2:], block_size, strict=True)
    )
    if count > MAX_BLOCKS:
        raise SpecError(
            f"{list(shape)} scores in blocks of {list(block_size)} are {count} blocks, at most "
            f"{MAX_BLOCKS} are allowed: make blocks larger"
        )
    scores = math.prod(map(min, shape[2:], block_size))
    if scores > MAX_BLOCK_SCORES:
        raise SpecError(
            f"block_size {list(block_size)} makes blocks of {scores} scores, at most "
            f"{MAX_BLOCK_SCORES} are allowed: make blocks smaller"
        )


def blocks_of_lists(name: str, counts: Any, indices: Any, extents: tuple[int, int]) -> Array:
    """The blocks that a pair of lists names, as bool [batch, heads, query blocks, key blocks].

    Args:
      name: prefix of the arguments' names, `kv` or `full_kv`.
      counts, indices: as in `BlockMask.from_kv_blocks`.
      extents: number of blocks of queries, and of keys.

    Raises:
      SpecError: lists that do not fit the extents, name blocks that do not exist, or name one
        twice.
    """
    count_name, index_name = f"{name}_num_blocks", f"{name}_indices"
    numbers, blocks = _array(count_name, counts), _array(index_name, indices)
    for label, array, rank in ((count_name, numbers, 3), (index_name, blocks, 4)):
        if array.ndim != rank or array.dtype.kind not in "iu":
            raise SpecError(
                f"{label} must be integers of {rank} dimensions, got shape {list(array.shape)} of "
                f"{array.dtype}"
            )
    if numbers.shape != blocks.shape[:3] or blocks.shape[2:] != extents:
        raise SpecError(
            f"{index_name} must be [batch, heads, {extents[0]}, {extents[1]}] and {count_name} "
            f"one less, got {list(blocks.shape)} and {list(numbers.shape)}"
        )
    if numbers.size and not 0 <= numbers.min() <= numbers.max() <= extents[1]:
        raise SpecError(
            f"{count_name} must be 0 to {extents[1]}, got {numbers.min()} to {numbers.max()}"
        )
    used = np.arange(extents[1]) < numbers[..., None]
    wrong = blocks[used & ((blocks < 0) | (blocks >= extents[1]))]
    if wrong.size:
        raise SpecError(
            f"{index_name} names block {wrong[0]} of keys, there are {extents[1]} blocks"
        )
    mask = np.zeros(blocks.shape, np.bool_)
    at = np.nonzero(used)
    mask[(*at[:3], blocks[used])] = True
    if mask.sum() != used.sum():
        raise SpecError(f"{index_name} names a block of keys twice")
    return mask


def _array(name: str, value: Any) -> Array:
    """An argument as a numpy array.

    Raises:
      SpecError: it is no array, or a masked one.
    """
    try:
        array = cast(Array, np.asanyarray(on_host(value)))
    except Exception as error:  # the library's own errors
        raise SpecError(f"{name} cannot be read as an array: {error}") from error
    if isinstance(array, np.ma.MaskedArray):
        raise SpecError(f"{name} is a masked array: pass {name}.filled(...)")
    return array
