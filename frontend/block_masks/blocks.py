"""Block masks: which blocks of scores are empty, partly visible or full, as lists for kernels.

A kernel with a block mask visits the blocks that are not empty, first the partly visible ones, and
evaluates the predicate in these only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from attn_mlir.arrays import put_like
from attn_mlir.block_masks.arguments import BLOCK_SIZE, Array, blocks_of_lists, check_block_size
from attn_mlir.compiling.sequences import SequenceRequest
from attn_mlir.dialect.attn.block import BLOCK_LISTS, Block
from attn_mlir.dialect.attn.coordinates import OFFSETS
from attn_mlir.dialect.attn.lengths import DENSE
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask, full
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.tensors import TensorView
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.trace import MaskMod

EMPTY, PARTIAL, FULL = 0, 1, 2
SHADES = {EMPTY: "  ", PARTIAL: "░░", FULL: "██"}
PICTURE = (32, 40)  # most rows and columns of a picture


class Lists(NamedTuple):
    """The lists that a kernel takes, int32; an extent of 1 for batch or heads serves all of them.

    They are lists of key blocks for each query block, or with both exchanged.

    Attributes:
      counts: [batch, head blocks, query blocks, 2]: number of key blocks that are partly visible,
        and of those that are not empty.
      indices: [batch, head blocks, query blocks, key blocks]: numbers of key blocks, first the
        partly visible ones, then full ones, then empty ones.
    """

    counts: Array
    indices: Array

    @classmethod
    def of(cls, kinds: Array) -> Lists:
        """The lists along the last axis of kinds [batch, head blocks, blocks, listed blocks]."""
        order = np.argsort((kinds + 2) % 3, axis=3, kind="stable").astype(np.int32)
        tested, visited = (kinds == PARTIAL).sum(axis=3), (kinds != EMPTY).sum(axis=3)
        counts = np.stack([tested, visited], axis=3).astype(np.int32)
        return cls(_no_extent_of_0(counts), _no_extent_of_0(order))


@dataclass(frozen=True, eq=False)
class BlockMask:
    """Which blocks of scores are empty, partly visible or full; `print` shows a picture.

    Attributes:
      shape: (batch, heads, sq, sk) of the scores.
      block_size: query positions and keys of a block.
      kinds: [batch, heads, query blocks, key blocks], 0 for empty, 1 for partly visible, 2 for
        full; an extent of 1 for batch or heads serves all of them.
      mask: the mask in closed form for partly visible blocks.
      mask_mod: the predicate for partly visible blocks, or None.
      depends_on: those of `batch` and `heads` on which the predicate depends although their extent
        is 1, so that calls may have no more than 1.
      is_believed: whether the kinds are from the caller, and may differ from the predicate.
      offsets: those of the calls that it is for, by name; blocks are counted from the first query,
        key and head of these.
    """

    shape: tuple[int, int, int, int]
    block_size: tuple[int, int]
    kinds: npt.NDArray[np.uint8]
    mask: Mask
    mask_mod: MaskMod | None
    depends_on: tuple[str, ...] = ()
    is_believed: bool = False
    offsets: Mapping[str, int] = field(default_factory=dict[str, int])
    _made: dict[object, Any] = field(default_factory=dict[object, Any], repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """The state of copies and pickles, without lists on devices."""
        return {**vars(self), "_made": {}}

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Any,
        kv_indices: Any,
        full_kv_num_blocks: Any = None,
        full_kv_indices: Any = None,
        *,
        sq: int,
        sk: int,
        block_size: int | Sequence[int] = BLOCK_SIZE,
        mask_mod: MaskMod | None = None,
    ) -> BlockMask:
        """A block mask from the caller's lists, which are not compared with the predicate.

        Args:
          kv_num_blocks: [batch, heads, query blocks], number of partly visible key blocks.
          kv_indices: [batch, heads, query blocks, key blocks], their numbers; other entries are
            ignored.
          full_kv_num_blocks, full_kv_indices: the same for full blocks; by default there are none.
          sq, sk: numbers of queries and keys.
          block_size: query positions and keys of a block; or one number for both.
          mask_mod: the predicate for partly visible blocks; by default all their scores are
            visible.

        Raises:
          SpecError: lists that do not fit the extents, name blocks that do not exist, or name one
            twice. A full block beyond the last key counts as partial.
        """
        size = check_block_size(block_size)
        sq, sk = integer("sq", sq), integer("sk", sk)
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise SpecError("full_kv_num_blocks and full_kv_indices must be given together")
        extents = (-(-sq // size[0]), -(-sk // size[1]))
        kinds = blocks_of_lists("kv", kv_num_blocks, kv_indices, extents).astype(np.uint8) * PARTIAL
        if full_kv_num_blocks is not None:
            whole = blocks_of_lists("full_kv", full_kv_num_blocks, full_kv_indices, extents)
            if whole.shape != kinds.shape:
                raise SpecError(
                    f"full_kv_indices and kv_indices must agree in batch and heads, got "
                    f"{list(whole.shape[:2])} and {list(kinds.shape[:2])}"
                )
            if (twice := np.argwhere(whole & (kinds != EMPTY))).size:
                raise SpecError(f"block {twice[0].tolist()} is both in kv_indices and full")
            kinds[whole] = FULL
        ragged = kinds[..., sk // size[1] :]
        ragged[ragged == FULL] = PARTIAL
        batch, heads = kinds.shape[:2]
        return cls((batch, heads, sq, sk), size, kinds, full(), mask_mod, is_believed=True)

    @classmethod
    def from_lists(
        cls,
        lists: Lists,
        block: Block,
        *,
        heads: int,
        sq: int,
        sk: int,
        mask: Mask,
        mask_mod: MaskMod | None,
    ) -> BlockMask:
        """The block mask whose `lists` for this block size are `lists`.

        Args:
          lists: counts and indices of the visible blocks, as `BlockMask.lists` returns them.
          block: block size: positions, heads and keys.
          heads, sq, sk: numbers of query heads, queries and keys.
          mask, mask_mod: the mask within partly visible blocks.
        """
        rank = np.arange(int(lists.indices.shape[3]), dtype=np.int32)
        tested, visited = (lists.counts[..., x : x + 1] for x in range(2))
        by_rank = np.where(rank < tested, PARTIAL, np.where(rank < visited, FULL, EMPTY))
        kinds: Array = np.zeros(lists.indices.shape, np.uint8)
        np.put_along_axis(kinds, lists.indices, by_rank.astype(np.uint8), 3)
        if kinds.shape[1] > 1:
            kinds = np.repeat(kinds, block.heads, 1)[:, :heads]
        kinds = kinds[:, :, : -(-sq // block.positions), : -(-sk // block.keys)]
        batch, heads = kinds.shape[:2]
        size = (block.positions, block.keys)
        return cls((batch, heads, sq, sk), size, kinds, mask, mask_mod, is_believed=True)

    @property
    def kv_num_blocks(self) -> Array:
        """int32 [batch, heads, query blocks]: number of partly visible key blocks,
        as in PyTorch.
        """
        return _numbers(self.kinds, PARTIAL)[0]

    @property
    def kv_indices(self) -> Array:
        """int32 [batch, heads, query blocks, key blocks]: numbers, partly visible blocks first."""
        return _numbers(self.kinds, PARTIAL)[1]

    @property
    def full_kv_num_blocks(self) -> Array:
        """As `kv_num_blocks`, for full blocks."""
        return _numbers(self.kinds, FULL)[0]

    @property
    def full_kv_indices(self) -> Array:
        """As `kv_indices`, for full blocks."""
        return _numbers(self.kinds, FULL)[1]

    @property
    def q_num_blocks(self) -> Array:
        """int32 [batch, heads, key blocks]: number of partly visible query blocks."""
        return _numbers(self.kinds.swapaxes(2, 3), PARTIAL)[0]

    @property
    def q_indices(self) -> Array:
        """int32 [batch, heads, key blocks, query blocks]: numbers, partly visible blocks first."""
        return _numbers(self.kinds.swapaxes(2, 3), PARTIAL)[1]

    @property
    def full_q_num_blocks(self) -> Array:
        """As `q_num_blocks`, for full blocks."""
        return _numbers(self.kinds.swapaxes(2, 3), FULL)[0]

    @property
    def full_q_indices(self) -> Array:
        """As `q_indices`, for full blocks."""
        return _numbers(self.kinds.swapaxes(2, 3), FULL)[1]

    def sparsity(self) -> float:
        """Empty blocks in percent."""
        return 100.0 * np.count_nonzero(self.kinds == EMPTY) / max(self.kinds.size, 1)

    def lists(self, block: Block) -> Lists:
        """The lists for a kernel with blocks of this size.

        If sizes differ, blocks are divided and joined. A joined block is full (or empty) if all of
        its parts are; a divided block keeps its kind, so that a kernel may visit more blocks than
        necessary.
        """
        if block not in self._made:
            self._made[block] = Lists.of(self._kinds_of(block))
        return self._made[block]

    def query_lists(self, block: Block) -> Lists:
        """As `lists`, for a kernel whose work tiles are key blocks: lists of query blocks for each.

        They name the same pairs of blocks, with the same kinds. A block is tested as well if keys
        of it lie past the end; rows past the end make no difference.
        """
        key = ("queries", block)
        if key not in self._made:
            self._made[key] = Lists.of(self._kinds_of(block).swapaxes(2, 3))
        return self._made[key]

    def placed(
        self,
        block: Block,
        location: str,
        put: Callable[[Array], Any],
        *,
        of_queries: bool = False,
    ) -> dict[str, Any]:
        """The lists for `block` on the device of the kernel, made once, by their names there.

        Args:
          location: key for the device and the library of arrays.
          put: copies a numpy array there.
          of_queries: whether they are `query_lists`.
        """
        key = (block, location, of_queries)
        if key not in self._made:
            lists = self.query_lists(block) if of_queries else self.lists(block)
            self._made[key] = [put(array) for array in lists]
        return dict(zip(BLOCK_LISTS, self._made[key], strict=True))

    def mask_mod_of(self, block: Block) -> MaskMod | None:
        """The predicate for the partly visible blocks of `lists(block)`.

        If blocks of the caller's lists are joined, it looks up the kinds of the original blocks.
        """
        joins = joins_blocks(block, self.block_size, self.kinds.shape[1])
        return self.as_mask_mod() if joins and self.is_believed else self.mask_mod

    def check_call(self, batch: int, heads: int, sq: int, sk: int) -> None:
        """Refuses a call whose sizes do not fit this block mask.

        Raises:
          SpecError: names the size that differs.
        """
        sizes = {"batch": batch, "heads": heads, "sq": sq, "sk": sk}
        for (axis, size), extent in zip(sizes.items(), self.shape, strict=True):
            may_be_one = axis in ("batch", "heads") and axis not in self.depends_on
            if extent != size and not (may_be_one and extent == 1):
                why = f": its mask_mod depends on {axis}" if axis in self.depends_on else ""
                raise SpecError(f"block_mask is for {axis} = {extent}, the call has {size}{why}")

    def as_mask_mod(self) -> MaskMod:
        """The predicate for all scores that is equivalent to these blocks, with their offsets."""
        kinds = np.ascontiguousarray(self.kinds, np.int32)
        first = {name: self.offsets.get(name, 0) for name in OFFSETS}
        return block_mod(kinds, self.block_size, self.mask_mod, tuple(first.values()))

    def _kinds_of(self, block: Block) -> Array:
        kinds = self.kinds
        _, _, sq, sk = self.shape
        if kinds.shape[1] > 1:
            kinds = _merged(kinds, 1, block.heads, pad_full=True)
        for axis, have, need, extent in (
            (2, self.block_size[0], block.positions, sq),
            (3, self.block_size[1], block.keys, sk),
        ):
            unit = math.gcd(have, need)
            kinds = np.repeat(kinds, have // unit, axis)
            kinds = np.take(kinds, np.arange(-(-extent // unit)), axis)
            kinds = _merged(kinds, axis, need // unit, pad_full=axis == 2)
        return kinds

    def __repr__(self) -> str:
        """A line with shape, block size and sparsity."""
        shape, size = list(self.shape), list(self.block_size)
        count = [int((self.kinds == kind).sum()) for kind in (PARTIAL, FULL)]
        return (
            f"BlockMask(shape={shape}, block_size={size}, {self.kinds.size} blocks: {count[0]} "
            f"partial, {count[1]} full, sparsity {self.sparsity():.1f} %)"
        )

    def __str__(self) -> str:
        """That line, and pictures."""
        return f"{self!r}\n{self.to_string()}"

    def to_string(self, *, limit: int = 2) -> str:
        """Pictures of the first heads, with a character for each block, or for several if there are
        many.

        Args:
          limit: how many heads to show.
        """
        pictures: list[str] = []
        batch, heads = self.kinds.shape[:2]
        for number in range(min(limit, batch * heads)):
            b, h = divmod(number, heads)
            kinds = self.kinds[b : b + 1, h : h + 1]
            for axis, limit_of_axis in ((2, PICTURE[0]), (3, PICTURE[1])):
                kinds = _merged(
                    kinds, axis, max(1, -(-kinds.shape[axis] // limit_of_axis)), pad_full=True
                )
            rows = ["".join(SHADES[int(kind)] for kind in row) for row in kinds[0, 0]]
            title = [f"batch {b}, head {h}"] if batch * heads > 1 else []
            pictures.append("\n".join([*title, *(f"│{row}│" for row in rows)]))
        return "\n".join(pictures)


def joins_blocks(block: Block, block_size: tuple[int, int], heads: int) -> bool:
    """Whether a kernel's block may overlap several blocks of a mask with this many heads."""
    sizes = zip((block.positions, block.keys), block_size, strict=True)
    return any(have % need for need, have in sizes) or (heads > 1 and block.heads > 1)


def block_mod(
    kinds: Any,
    block_size: tuple[int, int],
    inner: MaskMod | None,
    first: Sequence[int] = (0, 0, 0),
) -> MaskMod:
    """The predicate that returns which scores are visible by the kinds of blocks.

    Args:
      kinds: as in `BlockMask`, int32.
      inner: the predicate for partly visible blocks; None if all their scores are visible.
      first: query, key and head that the first block begins with.
    """
    by_batch, by_head = (extent > 1 for extent in kinds.shape[:2])
    return functools.partial(
        _by_kinds, kinds=kinds, block_size=block_size, inner=inner,
        by_batch=by_batch, by_head=by_head, first=first,
    )  # fmt: skip


def _by_kinds(
    b: Any, h: Any, q: Any, k: Any,
    *, kinds: Any, block_size: tuple[int, int], inner: MaskMod | None, by_batch: bool,
    by_head: bool, first: Sequence[int],
) -> Any:  # fmt: skip
    rows, columns = block_size
    row, column, head = (x - y if y else x for x, y in zip((q, k, h), first, strict=True))
    kind = kinds[b if by_batch else 0, head if by_head else 0, row // rows, column // columns]
    visible = kind != EMPTY
    return visible if inner is None else visible & ((kind == FULL) | inner(b, h, q, k))


def mask_of(block_mask: BlockMask, mask: Mask | None, mask_mod: MaskMod | None) -> Mask:
    """The closed form of the mask of a call with a block mask.

    Args:
      mask, mask_mod: the call's other masks: those that the block mask was made of, or None.

    Raises:
      SpecError: no block mask, or other masks than it was made of.
    """
    if not isinstance(cast(object, block_mask), BlockMask):
        raise SpecError(f"block_mask must be made by block_mask(...), got {shown(block_mask)}")
    for name, got, of_blocks in (
        ("mask", mask, block_mask.mask),
        ("mask_mod", mask_mod, block_mask.mask_mod),
    ):
        if got is not None and got != of_blocks:
            raise SpecError(
                f"{name} and block_mask exclude each other: the blocks that it calls full are not "
                f"tested, so make the block mask with this {name}"
            )
    return block_mask.mask


def of_call(
    block_mask: BlockMask,
    spec: SequenceRequest,
    choice: Choice,
    model: object,
    operands: Mapping[str, TensorView],
    *,
    of_queries: bool = False,
) -> tuple[MaskMod | None, dict[str, Any]]:
    """Applies a block mask to a call.

    Args:
      spec: the request.
      choice: for it, of a kernel that reads lists.
      model: the caller's array for q.
      of_queries: whether the lists are of query blocks, for each key block.

    Returns:
      The predicate for partly visible blocks, and the kernel's lists by name.

    Raises:
      SpecError: a block mask for other sizes, or a call whose sequences have lengths.
    """
    if spec.cache is not None:
        raise SpecError("block_mask is for sequences of one length, got a cache")
    if spec.lengths != DENSE:
        arrays = ", ".join(spec.lengths.tensors)
        raise SpecError(f"block_mask is for sequences of one length, got {arrays} as well")
    q, block = operands["q"], choice.listed_block
    batch, sq, heads, _ = q.shape
    block_mask.check_call(batch, heads, sq, operands["k"].shape[1])
    location = f"{type(model).__module__} {q.place}"
    put = functools.partial(put_like, model, q)
    lists = block_mask.placed(block, location, put, of_queries=of_queries)
    return block_mask.mask_mod_of(block), lists


def _merged(kinds: Array, axis: int, count: int, *, pad_full: bool) -> Array:
    """Kinds of blocks that merge `count` blocks along an axis; those past the end are full with
    `pad_full`, else empty.
    """
    if count == 1:
        return kinds
    missing = [(0, 0)] * kinds.ndim
    missing[axis] = (0, -kinds.shape[axis] % count)
    shape = list(kinds.shape)
    shape[axis : axis + 1] = [(shape[axis] + missing[axis][1]) // count, count]
    some = np.pad(kinds != EMPTY, missing).reshape(shape).any(axis=axis + 1)
    every = np.pad(kinds == FULL, missing, constant_values=pad_full).reshape(shape)
    return np.where(every.all(axis=axis + 1), FULL, np.where(some, PARTIAL, EMPTY)).astype(np.uint8)


def _numbers(kinds: Array, kind: int) -> tuple[Array, Array]:
    """Counts of blocks of a kind along the last axis; all their numbers, the kind's first."""
    chosen = kinds == kind
    order = np.argsort(~chosen, axis=3, kind="stable").astype(np.int32)
    return chosen.sum(axis=3).astype(np.int32), order


def _no_extent_of_0(array: Array) -> Array:
    """The array, with zeros in place of extents of 0, as kernels read a list's last entry."""
    if array.size:
        return array
    return np.zeros([max(extent, 1) for extent in array.shape], array.dtype)
