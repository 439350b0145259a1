"""One call of attention for PyTorch: traces its modifiers and calls the operators.

Works on real tensors, and on fakes, of which only shapes, strides and dtypes are used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from attn_mlir.api.attention import attention, spec_of
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.plan_cache import READER
from attn_mlir.block_masks.blocks import BlockMask, block_mod, joins_blocks, mask_of, of_call
from attn_mlir.compiling.routes import attention_choice
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.mods import check_extents
from attn_mlir.naming import renamed
from attn_mlir.pytorch.autograd import check_attention, trained
from attn_mlir.pytorch.operators import OPERANDS, attention_op, block_lists_op
from attn_mlir.pytorch.readable import all_readable, as_tensor
from attn_mlir.pytorch.shapes import wants_gradient
from attn_mlir.pytorch.traced import traced
from attn_mlir.runtime.call.repeats import Known
from attn_mlir.runtime.call.signatures import Signature
from attn_mlir.runtime.call.tensors import described, view
from attn_mlir.runtime.kernel import machine_of
from attn_mlir.trace import MaskMod, ScoreMod, trace
from attn_mlir.tracing.indices import check_indices

torch: Any = importlib.import_module("torch")
importlib.import_module("torch.utils.weak")

_checked = Known[bool]()  # of calls whose modifiers stay inside what they read True

_block_masks = torch.utils.weak.WeakIdKeyDictionary()  # ours, by the indices of PyTorch's


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
    sizes = _sizes(q, k)
    lists: list[Any] = []
    block: Sequence[int] = ()
    if blocks is not None:
        with torch.no_grad():
            pairs = zip(OPERANDS, (q, k, v), strict=True)
            operands = {name: described(x, name) for name, x in pairs}
        if isinstance(blocks, BlockMask):
            check_without_offsets(blocks)
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
    is_trained = wants_gradient(q, k, v)
    modifiers = traced(score_mod, mask_mod, q, is_trained=is_trained)
    if is_trained and not block:
        check_attention({"query": q, "key": k, "value": v}, mask, scale, modifiers.recorded)
    read = [*lists, *modifiers.tensors]
    return attention_op(q, k, v, read, modifiers.text, mask, scale, return_lse, list(block))


@outside_graphs
def call_now(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: str,
    mask_mod: MaskMod | None,
    blocks: Listing | BlockMask | None,
    **options: Any,
) -> tuple[Any, Any]:
    """As `call`, of tensors that nothing traces: a call that comes again is not planned again.

    Args:
      options: others of `attention`.

    Returns:
      O, and LSE or None.
    """
    tensors = all_readable({"q": q, "k": k, "v": v})
    predicate = blocks.mask_mod if isinstance(blocks, BlockMask) else mask_mod
    if options["score_mod"] is not None or predicate is not None:
        with torch.no_grad():
            _check_indices((options["score_mod"], predicate), _sizes(q, k))
    if blocks is None:
        options["mask"] = parse_mask(mask)
    elif isinstance(blocks, BlockMask):
        check_without_offsets(blocks)
    else:
        blocks = _converted(blocks, q.shape[1], k.shape[1], mask_mod)
    attend = _trained if wants_gradient(q, k, v) else _attention
    options |= {"mask_mod": mask_mod, "block_mask": blocks}
    results = attend(**tensors, **{name: x for name, x in options.items() if x is not None})
    return results if options["return_lse"] else (results, None)


_attention, _trained = (renamed(x, q="query", k="key", v="value") for x in (attention, trained))


def _check_indices(mods: tuple[ScoreMod | None, MaskMod | None], sizes: dict[str, int]) -> None:
    """`check_indices` for modifiers; calls on a GPU that are alike are checked once.

    Raises:
      SpecError: as `trace` and `check_indices`.
    """
    signature = Signature(*sizes.values())
    is_read = READER.add(signature, mods)
    key = tuple(signature.key)
    if is_read and _checked.get(key):
        return
    program, captured = trace(*mods)
    assert program is not None
    views = [view(array, name) for name, array in captured.items()]
    check_indices(program, views, sizes)
    if is_read and not any(x.device == "cpu" for x in views):  # whose elements were looked at
        _checked.put(key, True)


def _sizes(q: Any, k: Any) -> dict[str, int]:
    batch, sq, heads, _ = q.shape
    return {"batch": batch, "heads": heads, "sq": sq, "sk": k.shape[1]}


def _converted(blocks: Listing, sq: int, sk: int, mask_mod: MaskMod | None) -> BlockMask:
    """The block mask for PyTorch's lists, which are copied to the host once.

    Raises:
      SpecError: as `BlockMask.from_kv_blocks`.
    """
    lists, size = blocks
    changes = tuple(None if x is None else (id(x), x._version) for x in lists)
    key = (changes, sq, sk, size, mask_mod)
    indices = lists[1]
    if indices not in _block_masks or _block_masks[indices][0] != key:
        options: dict[str, Any] = {"sq": sq, "sk": sk, "block_size": size, "mask_mod": mask_mod}
        _block_masks[indices] = key, BlockMask.from_kv_blocks(*lists, **options)
    return _block_masks[indices][1]


def check_without_offsets(blocks: BlockMask) -> None:
    """Refuses a block mask whose blocks are not counted from the first query and key.

    Raises:
      SpecError: says where to pass it.
    """
    if blocks.offsets:
        raise SpecError("block_mask has offsets: pass it to attn_mlir.attention")


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
