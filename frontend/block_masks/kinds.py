"""`block_mask`: evaluates a predicate for all scores and classifies the blocks of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from attn_mlir.arrays import host_arrays
from attn_mlir.block_masks.arguments import (
    BLOCK_SIZE,
    Array,
    check_block_count,
    check_block_size,
    on_host,
)
from attn_mlir.block_masks.blocks import EMPTY, FULL, PARTIAL, BlockMask
from attn_mlir.compiling.offsets import CallOffsets, numbers_of
from attn_mlir.dialect.attn.coordinates import OFFSETS, Offsets
from attn_mlir.dialect.attn.masks import INTS
from attn_mlir.dialect.attn.masks.shifted import shifted
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask, full
from attn_mlir.mods import check_extents
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.trace import MaskMod, trace

CHUNK_SCORES = 1 << 19  # scores evaluated at a time: 4 MiB per node of the predicate


def block_mask(
    mask_mod: MaskMod | None,
    batch: int | None,
    heads: int | None,
    sq: int,
    sk: int,
    *,
    mask: Mask | None = None,
    block_size: int | Sequence[int] = BLOCK_SIZE,
    q_offset: int | None = None,
    k_offset: int | None = None,
    head_offset: int = 0,
) -> BlockMask:
    """Evaluates a predicate for all scores; finds for each block whether it hides all, some or
    none.

    Arrays that the predicate captures are read now; if they change, a new block mask is needed.

    Args:
      mask_mod: `mask_mod(b, h, q, k)` as in `attention`; None if there is only `mask`.
      batch, heads: numbers of sequences and heads; 1 or None if the predicate does not depend on
        them.
      sq, sk: numbers of queries and keys.
      mask: a mask in closed form, in addition to the predicate; `full()` by default.
      block_size: query positions and keys of a block; a kernel's own block has 256 rows, which are
        256 / group positions with grouped heads, and 128 keys.
      q_offset, k_offset, head_offset: numbers as of `attention`, which then has them from here.

    Raises:
      SpecError: an invalid extent or function.
    """
    closed = full() if mask is None else mask
    if not isinstance(cast(object, closed), Mask):
        raise SpecError(f"mask must be made by attn_mlir.masks, got {shown(mask)}")
    size = check_block_size(block_size)
    sizes = {
        "batch": integer("batch", 1 if batch is None else batch, 1),
        "heads": integer("heads", 1 if heads is None else heads, 1),
        "sq": integer("sq", sq),
        "sk": integer("sk", sk),
    }
    numbers = numbers_of(q_offset, k_offset, head_offset)
    offsets = CallOffsets(Offsets(tuple(numbers)), numbers)
    check_extents(mask_mod, offsets.reached(sizes), longer=offsets.axes)
    program, captured = trace(None, mask_mod)
    tensors = host_arrays({name: on_host(array) for name, array in captured.items()})
    looked_at = _looked_at(program)
    distinct = [sizes[name] if name in looked_at else 1 for name in ("batch", "heads")]
    sq, sk = sizes["sq"], sizes["sk"]
    check_block_count((*distinct, sq, sk), size)
    first = [numbers.get(name, 0) for name in OFFSETS]
    in_call = shifted(closed, *first[:2]) if offsets.kinds.are_positions else closed
    rows = _Rows(in_call, program, tensors, size, sq, sk, first)
    kinds = np.zeros((*distinct, -(-sq // size[0]), -(-sk // size[1])), np.uint8)
    for b, h, row in np.ndindex(*kinds.shape[:3]):
        kinds[b, h, row] = rows.kinds(b, h, row)
    broadcast = tuple(name for name in looked_at if sizes[name] == 1)
    shape = (sizes["batch"], sizes["heads"], sq, sk)
    return BlockMask(shape, size, kinds, closed, mask_mod, broadcast, offsets=numbers)


@dataclass(frozen=True)
class _Rows:
    """Evaluates masks for one block of queries at a time.

    Attributes:
      first: positions of the first query and key, and the first head, as the predicate sees them.
    """

    mask: Mask
    program: Program | None
    tensors: Mapping[str, Array]
    block_size: tuple[int, int]
    sq: int
    sk: int
    first: Sequence[int]

    def kinds(self, b: int, h: int, row: int) -> Array:
        """The kinds [key blocks] for a block of queries;
        evaluates only blocks that `mask` visits.
        """
        positions, keys = self.block_size
        first = row * positions
        q = np.arange(first, min(first + positions, self.sq))[:, None]
        kinds_of_row = np.zeros(-(-self.sk // keys), np.uint8)
        span = self.mask.tile_range(INTS, first, positions, self.sq, self.sk, keys)
        step = max(1, CHUNK_SCORES // (positions * keys))
        for begin in range(span.begin, span.end, step):
            end = min(begin + step, span.end)
            k = np.arange(begin * keys, min(end * keys, self.sk))[None, :]
            visible = np.broadcast_to(self._visible(b, h, q, k), (len(q), k.shape[1]))
            starts = range(0, k.shape[1], keys)
            some = np.logical_or.reduceat(visible.any(axis=0), starts)
            every = np.logical_and.reduceat(visible.all(axis=0), starts)
            every &= (np.arange(begin, end) + 1) * keys <= self.sk
            kinds_of_row[begin:end] = np.where(every, FULL, np.where(some, PARTIAL, EMPTY))
        return kinds_of_row

    def _visible(self, b: int, h: int, q: Array, k: Array) -> Any:
        visible: Any = self.mask.visible(q, k, self.sq, self.sk)
        if self.program is None:
            return visible
        first_q, first_k, first_head = self.first
        at: dict[str, Any] = {"score": 0.0, "batch": b, "head": h + first_head}
        at |= {"q": q + first_q, "k": k + first_k}
        return visible & evaluate(self.program, at, self.tensors, np.float32).kept


def _looked_at(program: Program | None) -> list[str]:
    """The axes among `batch` and `heads` on which a predicate depends."""
    if program is None:
        return []
    stack, visited = list(program.keeps), set[int]()
    while stack:
        number = stack.pop()
        if number not in visited:
            visited.add(number)
            stack += program.nodes[number].args
    values = {program.nodes[n].value for n in visited if program.nodes[n].op == "argument"}
    arguments = (("batch", "batch"), ("head", "heads"))
    return [axis for argument, axis in arguments if argument in values]
