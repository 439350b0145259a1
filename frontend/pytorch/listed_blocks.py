"""Lists of blocks among the arguments of operators, where these have no block mask.

A forward kernel reads lists for its own blocks, which the graph has made. Kernels of gradients have
blocks of other sizes, and lists of queries as well: theirs are made of these when the operator
runs, on the host.
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
LISTED = (*BLOCK_LISTS, EXTENTS)  # names of arguments, beside the modifier's predicate
TYPES = {**dict.fromkeys(BLOCK_LISTS, "Tensor?"), EXTENTS: "int[]?"}  # in a schema


def with_block_mask(
    options: Mapping[str, Any], q: Any, k: Any, *, are_read: bool = True
) -> dict[str, Any]:
    """The arguments of a function of `api`, from those that may have lists of blocks.

    Args:
      options: by name; the predicate of `score_mod` is that of blocks which are partly visible.
      q, k: [batch, sequence, heads, head_dim].
      are_read: whether the elements of the lists are; else all blocks are partly visible, as it
        makes no difference to a plan.
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
