"""One call of attention for PyTorch: traces its modifiers and calls the operators.

Works on real tensors, and on fakes, of which only shapes, strides and dtypes are used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from attn_mlir.api.attention import spec_of
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.block_masks.blocks import BlockMask, block_mod, joins_blocks, mask_of, of_call
from attn_mlir.compiling.routes import attention_choice
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.mods import check_extents
from attn_mlir.pytorch.autograd import check_attention
from attn_mlir.pytorch.operators import OPERANDS, attention_op, block_lists_op
from attn_mlir.pytorch.readable import as_tensor
from attn_mlir.pytorch.shapes import wants_gradient
from attn_mlir.runtime.call.tensors import described
from attn_mlir.runtime.kernel import machine_of
from attn_mlir.trace import MaskMod, Recorded, ScoreMod, trace

torch: Any = importlib.import_module("torch")


class Listing(NamedTuple):
    """The lists of a BlockMask of PyTorch.

    Attributes:
      tensors: counts and indices of partly visible blocks, and those of full blocks or None.
      block_size: query positions and keys of a block.
    """

    tensors: tuple[Any, Any, Any, Any]
    block_size: tuple[int, int]


@outside_graphs
def call(
    q: Any,
    k: Any,
    v: Any,
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    mask: str = "full",
    scale: float,
    return_lse: bool = False,
    blocks: Listing | BlockMask | None = None,
) -> tuple[Any, Any]:
    """O [batch, sq, heads, v_head_dim], and LSE [batch, heads, sq] or an empty tensor.

    Args:
      q, k, v: [batch, sequence, heads, head_dim].
      mask: a mask in closed form, as text.
      blocks: the blocks with visible scores; `mask_mod` is for partly visible ones.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    batch, sq, heads, _ = q.shape
    sizes = {"batch": batch, "heads": heads, "sq": sq, "sk": k.shape[1]}
    lists: list[Any] = []
    block: Sequence[int] = ()
    if blocks is not None:
        operands = {name: described(x, name) for name, x in zip(OPERANDS, (q, k, v), strict=True)}
        if isinstance(blocks, BlockMask):
            if blocks.offsets:
                raise SpecError("block_mask has offsets: pass it to attn_mlir.attention")
            mask = str(mask_of(blocks, None, mask_mod))
        spec, machine = spec_of(operands, parse_mask(mask)), machine_of(None, operands["q"])
        choice = attention_choice(spec, sizes, machine, has_block_lists=True)
        block = choice.listed_block
        if isinstance(blocks, BlockMask):
            mask_mod, arrays = of_call(blocks, spec, choice, q, operands)
            lists = [as_tensor(array, 4) for array in arrays.values()]
        else:
            mask_mod, lists = _block_lists(Listing(*blocks), mask_mod, sizes, block)
    for mod in (score_mod, mask_mod):
        check_extents(mod, sizes)
    program, captured = trace(score_mod, mask_mod)
    ranks = [tensor.rank for tensor in program.tensors] if program is not None else []
    read = [as_tensor(x, n) for x, n in zip(captured.values(), ranks, strict=True)]
    modifier = "" if program is None else program.canonical()
    if wants_gradient(q, k, v):
        arrays = dict(zip(captured, read, strict=True))
        modifiers = None if program is None else Recorded(program, arrays)
        check_attention({"query": q, "key": k, "value": v}, mask, scale, modifiers)
    return attention_op(q, k, v, [*lists, *read], modifier, mask, scale, return_lse, list(block))


def _block_lists(
    listing: Listing, mask_mod: MaskMod | None, sizes: dict[str, int], block: Any
) -> tuple[MaskMod | None, list[Any]]:
    """The predicate for the kernel's partly visible blocks, and the kernel's lists."""
    numbers = listing.tensors[0]
    for axis, extent in zip(("batch", "heads"), numbers.shape[:2], strict=True):
        if extent not in (1, sizes[axis]):
            raise SpecError(f"block_mask is for {axis} = {extent}, the call has {sizes[axis]}")
    counts, indices, kinds = block_lists_op(
        *listing.tensors, sizes["sq"], sizes["sk"], list(listing.block_size), list(block)
    )
    if joins_blocks(block, listing.block_size, numbers.shape[1]):
        mask_mod = block_mod(described(kinds, "kinds"), listing.block_size, mask_mod)
    return mask_mod, [counts, indices]
