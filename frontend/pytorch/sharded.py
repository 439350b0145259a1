"""Calls of attention of a sharded sequence, inside of `attn_mlir.distributed.context_parallel`.

The context puts a scheme in force for the whole process. The functions of attention then pass their
calls to the scheme; positions in masks and modifiers count in the whole sequence.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.masks.text import parse_mask
from attn_mlir.trace import MaskMod, ScoreMod

torch: Any = importlib.import_module("torch")

HIDDEN, TESTED, WHOLE = 0, 1, 2  # kinds of blocks: masked, partly visible, visible


class Attend(Protocol):
    """A scheme: attention of this rank's queries to the keys of all ranks."""

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        mask: Mask,
        score_mod: ScoreMod | None,
        mask_mod: MaskMod | None,
        scale: float,
        length: int | None,
    ) -> tuple[Any, Any]:
        """O [batch, own tokens, heads, v_head_dim] and LSE [batch, heads, own tokens].

        Args:
          q, k, v: [batch, own tokens, heads or kv_heads, D].
          length: tokens of the whole sequence, if a BlockMask states it; else None.
        """
        ...


_schemes = list[Attend]()  # none, or the one that is in force


@contextmanager
def put_in_force(scheme: Attend) -> Generator[None]:
    """Passes calls to a scheme as long as the context lasts.

    Raises:
      SpecError: a scheme is in force already.
    """
    check_none_in_force()
    _schemes.append(scheme)
    try:
        yield
    finally:
        _schemes.clear()


def check_none_in_force() -> None:
    """Refuses a context inside of another.

    Raises:
      SpecError: a scheme is in force.
    """
    if _schemes:
        raise SpecError("context_parallel is in force: leave its context before you enter another")


def in_force() -> bool:
    """Whether calls are passed to a scheme."""
    return bool(_schemes)


@outside_graphs
def attend(*operands: Any, mask: str, **options: Any) -> tuple[Any, Any]:
    """Attention by the scheme that is in force; arguments and results as of `Attend`.

    Args:
      mask: the text of the mask, as operators take it.
    """
    return _schemes[0](*operands, mask=parse_mask(mask), **options)


def predicate_of(block_mask: Any, length: int) -> MaskMod:
    """The predicate (batch, head, q, k) of the scores that a BlockMask of PyTorch makes visible.

    Args:
      block_mask: a BlockMask of the whole sequence, with equally many queries and keys.
      length: tokens of this rank's shard, for the message.

    Raises:
      SpecError: `block_mask` is not such a BlockMask.
    """
    lengths = tuple(getattr(block_mask, "seq_lengths", ()))
    if len(lengths) != 2 or not hasattr(block_mask, "to_dense"):
        raise SpecError(
            f"block_mask must be a BlockMask of PyTorch where the sequence is sharded, got "
            f"{type(block_mask).__name__}: pass the mask_mod that it was made with"
        )
    if lengths[0] != lengths[1]:
        raise SpecError(
            f"block_mask is for sq, sk = {lengths}: where the sequence is sharded it must be one "
            f"for all of it, of which this rank has {length} positions"
        )
    kinds = _kinds(block_mask)
    rows, columns = block_mask.BLOCK_SIZE
    one_batch, one_head = (kinds.shape[i] == 1 for i in (0, 1))
    mask_mod = block_mask.mask_mod

    def shown(b: Any, h: Any, q: Any, k: Any) -> Any:
        kind = kinds[0 if one_batch else b, 0 if one_head else h, q // rows, k // columns]
        return (kind == WHOLE) | ((kind == TESTED) & mask_mod(b, h, q, k))

    def listed(b: Any, h: Any, q: Any, k: Any) -> Any:
        kind = kinds[0 if one_batch else b, 0 if one_head else h, q // rows, k // columns]
        return kind != HIDDEN

    return listed if hides_nothing(mask_mod) else shown


def hides_nothing(mask_mod: Any) -> bool:
    """Whether `mask_mod` is the default of a BlockMask, which makes every score visible."""
    return getattr(mask_mod, "__name__", "") == "noop_mask"


def _kinds(block_mask: Any) -> Any:
    """The kind of each block, [batch or 1, heads or 1, query blocks, key blocks] i32."""
    listed = _dense(block_mask.kv_num_blocks, block_mask.kv_indices) * TESTED
    if block_mask.full_kv_num_blocks is not None:
        whole = _dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        listed = torch.where(whole > 0, WHOLE, listed)
    return listed.to(torch.int32)


def _dense(counts: Any, indices: Any) -> Any:
    """1 where a block is listed, else 0.

    Args:
      counts: number of listed blocks of each row, [..., query blocks] i32.
      indices: the listed blocks come first in each row, [..., query blocks, key blocks] i32.
    """
    columns = indices.shape[-1]
    is_listed = torch.arange(columns, device=indices.device) < counts[..., None]
    found = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.int32, device=counts.device)
    found.scatter_(-1, torch.where(is_listed, indices, columns).long(), 1)
    return found[..., :columns]
