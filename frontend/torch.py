"""Attention for PyTorch: functions with the signatures that PyTorch users know, over custom
operators.

Tensors have PyTorch's layout, [batch, heads, sequence, head_dim]; those that no kernel can read
where they lie are copied, others are not, and head sizes are filled up to multiples of 8. Results
are views of memory with the layout [batch, sequence, heads, head_dim]. Autograd gets the gradients
of query, key and value where there are kernels. CUDA tensors run on their GPU, CPU tensors on the
emulator. Under `torch.compile` the functions stay in the graph.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

from attn_mlir.adapters import adapter, neutral
from attn_mlir.api.attention import check_scale
from attn_mlir.aten import activate as activate
from attn_mlir.aten import deactivate as deactivate
from attn_mlir.block_masks.blocks import BlockMask
from attn_mlir.errors import SpecError, shown
from attn_mlir.mods import causal_from_top
from attn_mlir.pytorch.autograd import check_attention
from attn_mlir.pytorch.batching import register_rules
from attn_mlir.pytorch.call import Listing, call, call_now
from attn_mlir.pytorch.elements import added, visible
from attn_mlir.pytorch.graph import call_in_graph
from attn_mlir.pytorch.jagged import attend_jagged, is_nested
from attn_mlir.pytorch.kernel_options import check_kernel_options
from attn_mlir.pytorch.operators import attention_op
from attn_mlir.pytorch.readable import padded
from attn_mlir.pytorch.shapes import (
    Operands,
    at_tracing_time,
    check_argument,
    checked,
    fold,
    wants_gradient,
)
from attn_mlir.pytorch.sharded import attend, hides_nothing, in_force, predicate_of
from attn_mlir.runtime.call.scalars import flag
from attn_mlir.runtime.call.torch_tensors import is_dispatched, is_traced, is_transformed
from attn_mlir.trace import MaskMod, ScoreMod

torch: Any = importlib.import_module("torch")
biases: Any = importlib.import_module("torch.nn.attention.bias")
flex: Any = importlib.import_module("torch.nn.attention.flex_attention")

register_rules()
NEUTRAL = neutral("dropout_p", 0, instead="there is no dropout")
AUXILIARY = ("lse", "max_scores")  # what PyTorch's AuxRequest asks for


@adapter(NEUTRAL, "query key value attn_mask dropout_p is_causal scale enable_gqa")
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As `torch.nn.functional.scaled_dot_product_attention`.

    Args:
      query: [..., heads, sq, head_dim], bfloat16 or float16; of any rank from 2 on. Alternatively
        query, key and value are nested tensors [batch, heads, ragged, head_dim] of layout
        torch.jagged.
      key: [..., kv_heads, sk, head_dim].
      value: [..., kv_heads, sk, v_head_dim]. Extents of 1 before the last two are broadcast.
      attn_mask: bool, True for visible scores, or float, which is added to the scores; its last two
        dimensions are sq and sk, those before as in query; extents of 1 are broadcast. Or a
        CausalBias of PyTorch, `causal_lower_right(sq, sk)` or `causal_upper_left(sq, sk)`. It may
        require a gradient if query, key or value does.
      is_causal: query i sees keys 0 ... i; if sq and sk differ, no key tile is skipped.
      enable_gqa: whether heads may be a multiple of kv_heads.

    Returns:
      [..., heads, sq, v_head_dim]; for nested tensors a nested tensor with the offsets of query.

    Raises:
      SpecError: an argument is wrong, or has no kernel, such as dropout, float32, or an `attn_mask`
        of nested tensors.
    """
    return sdpa_and_lse(query, key, value, attn_mask, is_causal, scale, enable_gqa)[0]


def sdpa_and_lse(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> tuple[Any, Any]:
    """O of `scaled_dot_product_attention`, and with `return_lse` LSE [batch, heads, sq] f32."""
    if flag("is_causal", is_causal) and attn_mask is not None:
        raise SpecError("attn_mask and is_causal exclude each other")
    if attn_mask is not None and in_force():
        raise SpecError(
            "attn_mask is a tensor of scores of one rank, and the sequence is sharded: pass "
            "is_causal, or flex_attention's score_mod or mask_mod of positions"
        )
    if is_nested(query, key, value):
        if in_force():
            raise SpecError(
                "query is a nested tensor, and the sequence is sharded: pass dense tensors, or "
                "call outside of context_parallel"
            )
        if return_lse:
            raise SpecError("query is a nested tensor, of which LSE is not returned")
        enable_gqa = flag("enable_gqa", enable_gqa)
        return attend_jagged(query, key, value, attn_mask, is_causal, scale, enable_gqa), None
    query, key, value = checked(query, key, value)
    operands = fold(query, key, value, enable_gqa=flag("enable_gqa", enable_gqa))
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    aligned = "top" if is_causal else ""
    if isinstance(attn_mask, biases.CausalBias):
        aligned = _alignment(attn_mask, query.shape[-2], key.shape[-2])
    elif attn_mask is not None:
        _check_mask(attn_mask, query, has_gradient=wants_gradient(query, key, value))
        mask_tensor = operands.mask(attn_mask)
        if mask_tensor.dtype == torch.bool:
            mask_mod = visible(mask_tensor)
        else:
            score_mod = added(mask_tensor)
    mask = "full"
    if aligned == "end" or (aligned and query.shape[-2] == key.shape[-2]):
        mask = "causal"
    elif aligned:
        mask_mod = causal_from_top
    mods: dict[str, Any] = {"score_mod": score_mod, "mask_mod": mask_mod}
    o, lse = _attend(operands, scale, mask=mask, return_lse=return_lse, **mods)
    return operands.unfolded(o), lse


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: ScoreMod | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: Any = None,
    mask_mod: MaskMod | None = None,
) -> Any:
    """As `torch.nn.attention.flex_attention.flex_attention`.

    Args:
      query: [batch, heads, sq, head_dim], bfloat16 or float16.
      key: [batch or 1, kv_heads, sk, head_dim].
      value: [batch or 1, kv_heads, sk, v_head_dim].
      score_mod: `score_mod(score, b, h, q_idx, kv_idx)`; see `attn_mlir.trace`.
      block_mask: a BlockMask of PyTorch or of this package; empty blocks are skipped, and its
        `mask_mod` is evaluated in partly visible blocks only.
      return_lse: also return LSE, [batch, heads, sq] in float32, natural logarithm.
      kernel_options: hints for kernels of Triton, which are left out; see `kernel_options`.
      return_aux: PyTorch's AuxRequest; LSE is supported, the largest scores are not.
      mask_mod: `mask_mod(b, h, q_idx, kv_idx)`, instead of a BlockMask.

    Returns:
      [batch, heads, sq, v_head_dim], with `return_lse` also LSE, with `return_aux` also AuxOutput.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    check_kernel_options(kernel_options)
    if return_aux is not None and not all(hasattr(return_aux, name) for name in AUXILIARY):
        raise SpecError(f"return_aux must be PyTorch's AuxRequest, got {shown(return_aux, 40)}")
    if flag("return_lse", return_lse) and return_aux is not None:
        raise SpecError("return_lse and return_aux exclude each other: AuxRequest(lse=True) has it")
    if return_aux is not None and return_aux.max_scores:
        raise SpecError("return_aux.max_scores is not offered, only lse")
    query, key, value = checked(query, key, value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise SpecError(
                f"{name} must be [batch, heads, sequence, head_dim], got {list(tensor.shape)}"
            )
    operands = fold(query, key, value, enable_gqa=flag("enable_gqa", enable_gqa))
    blocks: Listing | BlockMask | None = None
    length: int | None = None
    if block_mask is not None and in_force():
        _check_one_mask(mask_mod)
        mask_mod = predicate_of(block_mask, query.shape[2])
        length = block_mask.seq_lengths[0]
    elif block_mask is not None:
        blocks, mask_mod = _of_blocks(block_mask, query.shape[2], key.shape[2], mask_mod)
    wants_lse = return_lse or (return_aux is not None and bool(return_aux.lse))
    o, lse = _attend(
        operands,
        scale,
        score_mod=score_mod,
        mask_mod=mask_mod,
        blocks=blocks,
        return_lse=wants_lse,
        length=length,
    )
    if return_aux is not None:
        return o, flex.AuxOutput(lse=lse if wants_lse else None, max_scores=None)
    return (o, lse) if return_lse else o


def register_sharding() -> None:
    """Admits PyTorch's DTensor as an operand of attention, with gradients; repeats do nothing.

    Afterwards `scaled_dot_product_attention`, `flex_attention` and `attn_mlir.attention` take
    operands that are all DTensor. Shards along the batch and along heads are computed in place, and
    shards along queries if no position matters. PyTorch redistributes all other placements.

    Raises:
      ImportError: this PyTorch has no `torch.distributed`.
    """
    from attn_mlir.pytorch.sharding import register  # imports torch.distributed, which takes 0.5 s

    register()


def _attend(
    operands: Operands,
    scale: float | None,
    *,
    mask: str = "full",
    blocks: Listing | BlockMask | None = None,
    return_lse: bool = False,
    length: int | None = None,
    **mods: Any,
) -> tuple[Any, Any]:
    """O [batch, heads, sq, v_head_dim] and LSE [batch, heads, sq] f32.

    Args:
      length: tokens of the whole sequence, if it is sharded and a block mask states it.
      mods: `score_mod` and `mask_mod`, or None.
    """
    query, key, value = operands.query, operands.key, operands.value
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    elif not (torch.compiler.is_dynamo_compiling() and isinstance(scale, float)):
        scale = check_scale(scale)  # a number in a graph may change: the operator checks it
    width = value.shape[-1]
    q, k, v = (padded(x).transpose(1, 2) for x in (query, key, value))
    if in_force():
        o, lse = attend(q, k, v, mask=mask, scale=scale, length=length, **mods)
        return o[..., :width].transpose(1, 2), lse
    options: dict[str, Any] = {"mask": mask, "scale": scale, "return_lse": return_lse}
    in_graph = torch.compiler.is_dynamo_compiling()
    if not (in_graph or is_dispatched() or is_traced(q)):
        o, lse = call_now(q, k, v, blocks=blocks, **mods, **options)
        return (o if o.shape[-1] == width else o[..., :width]).transpose(1, 2), lse
    is_trained = wants_gradient(query, key, value)
    if mods["score_mod"] is None and mods["mask_mod"] is None and blocks is None:
        if is_trained and not in_graph:
            check_attention({"query": q, "key": k, "value": v}, mask, scale)
        o, lse = attention_op(q, k, v, [], "", mask, scale, return_lse or is_trained)
    else:
        in_graph = in_graph and not isinstance(blocks, BlockMask)
        if in_graph and at_tracing_time(is_transformed):  # no rule for the higher-order operator
            in_graph = False
        graph_call = call_in_graph if in_graph else call
        options["return_lse"] = return_lse or is_trained
        o, lse = graph_call(q, k, v, blocks=blocks, **mods, **options)
    o = o if o.shape[-1] == width else o[..., :width]
    return o.transpose(1, 2), lse


def _alignment(bias: Any, sq: int, sk: int) -> str:
    """Where PyTorch's CausalBias begins: from the `top`, or at the `end` of the keys.

    Raises:
      SpecError: it is for other lengths.
    """
    if (bias.seq_len_q, bias.seq_len_kv) != (sq, sk):
        lengths = (bias.seq_len_q, bias.seq_len_kv)
        raise SpecError(
            f"attn_mask is a CausalBias for sq, sk = {lengths}, the call has {(sq, sk)}"
        )
    return "top" if bias.variant == biases.CausalVariant.UPPER_LEFT else "end"


def _check_mask(attn_mask: Any, query: Any, *, has_gradient: bool) -> None:
    """Refuses masks that PyTorch refuses."""
    if not isinstance(attn_mask, torch.Tensor):
        raise SpecError(f"attn_mask must be a tensor, got {type(attn_mask).__name__}")
    allowed = (torch.bool, torch.float32, query.dtype)
    if attn_mask.dtype not in allowed:
        raise SpecError(
            f"attn_mask is {attn_mask.dtype}, allowed are {', '.join(str(x) for x in allowed)}"
        )
    if attn_mask.device != query.device:
        raise SpecError(f"attn_mask is on {attn_mask.device}, query is on {query.device}")
    check_argument("attn_mask", attn_mask, has_gradient=has_gradient)


def _of_blocks(
    block_mask: Any, sq: int, sk: int, mask_mod: MaskMod | None
) -> tuple[Listing | BlockMask, MaskMod | None]:
    """A BlockMask and the predicate for its partly visible blocks.

    Raises:
      SpecError: it is no BlockMask, or for other lengths, or a predicate is given as well.
    """
    if isinstance(block_mask, BlockMask):
        return block_mask, mask_mod
    fields = ("kv_num_blocks", "kv_indices", "BLOCK_SIZE", "seq_lengths", "mask_mod")
    if not all(hasattr(block_mask, name) for name in fields):
        raise SpecError(f"block_mask must be a BlockMask, got {type(block_mask).__name__}")
    lengths = tuple(block_mask.seq_lengths)
    if lengths != (sq, sk):
        raise SpecError(f"block_mask is for sq, sk = {lengths}, the call has {(sq, sk)}")
    _check_one_mask(mask_mod)
    tensors = (
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        getattr(block_mask, "full_kv_num_blocks", None),
        getattr(block_mask, "full_kv_indices", None),
    )
    tested = None if hides_nothing(block_mask.mask_mod) else block_mask.mask_mod
    block_size: Any = tuple(block_mask.BLOCK_SIZE)
    return Listing(tensors, block_size), tested


def _check_one_mask(mask_mod: MaskMod | None) -> None:
    """Refuses a mask_mod next to a BlockMask."""
    if mask_mod is not None:
        raise SpecError("mask_mod and block_mask exclude each other: make the block mask with it")
