"""Lists of blocks as arguments of operators, which cannot take a block mask.

The graph makes the lists for the block size of the forward kernel. Kernels of gradients have other
block sizes, and need lists of query blocks as well: the operator of the gradients makes these lists
from the forward lists, on the host, when it runs.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_mlir.block_masks.blocks import BlockMask, Lists
from attn_mlir.dialect.attn.block import BLOCK_LISTS, Block
from attn_mlir.masks import full
from attn_mlir.trace import Recorded, keeps_of

torch: Any = importlib.import_module("torch")

EXTENTS = "block_extents"
LISTED = (*BLOCK_LISTS, EXTENTS)  # names of the arguments that describe the blocks
TYPES = {**dict.fromkeys(BLOCK_LISTS, "Tensor?"), EXTENTS: "int[]?"}  # in a schema


def with_block_mask(
    options: Mapping[str, Any], q: Any, k: Any, *, are_read: bool = True
) -> dict[str, Any]:
    """The arguments of a function of `api`, with lists of blocks replaced by a block mask.

    Args:
      options: the operator's arguments by name; the predicate of `score_mod` applies to partly
        visible blocks.
      q, k: [batch, sequence, heads, head_dim].
      are_read: whether the elements of the lists are read; if not, all blocks count as partly
        visible, which gives the same plan.
    """
    named = dict(options)
    *lists, extents = (named.pop(name, None) for name in LISTED)
    if extents is None:
        return named
    block, mods = Block(*extents), named.get("score_mod")
    mask_mod = None
    if isinstance(mods, Recorded) and mods.program.keeps:
        mask_mod = keeps_of(mods.program)
        program = dataclasses.replace(mods.program, keeps=())
        named["score_mod"] = dataclasses.replace(mods, program=program)
    counts, indices = lists
    if are_read and isinstance(indices, torch.Tensor):
        found = Lists(*(x.detach().cpu().numpy() for x in (counts, indices)))
    else:
        shape = tuple(indices.shape)
        order = np.broadcast_to(np.arange(shape[3], dtype=np.int32), shape)
        found = Lists(np.full((*shape[:3], 2), shape[3], np.int32), order)
    _, sq, heads, _ = q.shape
    mask = named.pop("mask", None) or full()
    sizes = {"heads": heads, "sq": sq, "sk": k.shape[1]}
    named["block_mask"] = BlockMask.from_lists(found, block, **sizes, mask=mask, mask_mod=mask_mod)
    return named
