"""Attention for PyTorch: a custom operator, and functions with the signatures that PyTorch users know.

Tensors are laid out as in PyTorch, [batch, heads, sequence, head_dim], and only looked at: results
are views of memory laid out [batch, sequence, heads, head_dim]. Forward only. CUDA tensors run on
their GPU, CPU tensors on the emulator.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from attn_mlir.blocks import BlockMask, of_call
from attn_mlir.descales import descales_of
from attn_mlir.dialect.attn.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.mask_text import parse_mask
from attn_mlir.masks import causal, full
from attn_mlir.mods import bias, causal_from_top, check_extents, visible_where
from attn_mlir.operators import check_captured, check_scale, launch, spec_of
from attn_mlir.runtime.tensors import view
from attn_mlir.trace import MaskMod, ScoreMod, trace

if TYPE_CHECKING:
    from attn_mlir.masks import Mask

torch: Any = importlib.import_module("torch")

NAME = "attn_mlir::attention"


def _attention(
    q: Any,
    k: Any,
    v: Any,
    captured: Sequence[Any],
    modifier: str,
    mask: str,
    scale: float,
    return_lse: bool = True,
    block: Sequence[int] = (),
) -> tuple[Any, Any]:
    """The operator: O and LSE of tensors [batch, sequence, heads, head_dim].

    Args:
      captured: lists of blocks, if there is a block, and what the modifier reads.
      modifier: `Program.canonical` of a score modifier, or "".
      mask: in closed form, as text: `full`, `causal`, `window:127,0`; see `mask_text`.
      return_lse: whether LSE is computed; else it is empty.
      block: of the lists, see `MhaSpec`; empty if there are none.
    """
    program = Program.from_json(modifier) if modifier else None
    operands = {name: view(tensor, name) for name, tensor in (("q", q), ("k", k), ("v", v))}
    spec = spec_of(operands, parse_mask(mask), return_lse=return_lse)
    descales_of(spec, len(q), None, None, None)  # refuses 8 bits: PyTorch has no factors
    extents = cast("tuple[int, int, int]", tuple(block)) if block else None
    spec = dataclasses.replace(spec, modifier=program, block=extents)
    o, lse = launch(q, operands, spec, captured, scale=scale)
    return o, q.new_empty(0, dtype=torch.float32) if lse is None else lse


def _fake(
    q: Any,
    k: Any,
    v: Any,
    captured: Sequence[Any],
    modifier: str,
    mask: str,
    scale: float,
    return_lse: bool = True,
    block: Sequence[int] = (),
) -> tuple[Any, Any]:
    """Shapes and dtypes of the operator's results."""
    batch, sq, heads, _ = q.shape
    o = q.new_empty((batch, sq, heads, v.shape[3]))
    return o, q.new_empty((batch, heads, sq) if return_lse else 0, dtype=torch.float32)


attention_op: Any = torch.library.custom_op(
    NAME,
    _attention,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor[] captured, str modifier, str mask, float scale,"
    " bool return_lse=True, int[] block=[]) -> (Tensor, Tensor)",
)
attention_op.register_fake(_fake)


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As `torch.nn.functional.scaled_dot_product_attention`.

    Args:
      query: [batch, heads, sq, head_dim], bfloat16 or float16.
      key: [batch, kv_heads, sk, head_dim].
      value: [batch, kv_heads, sk, v_head_dim].
      attn_mask: bool, True where a score counts, or float, which is added to the scores; its last
        two dimensions are sq and sk, those before are batch and heads; extents of 1 are repeated.
      is_causal: query i sees keys 0 ... i; where sq and sk differ no key tile is skipped.
      enable_gqa: whether heads may be a multiple of kv_heads.

    Returns:
      [batch, heads, sq, v_head_dim].

    Raises:
      SpecError: an argument is wrong, or has no kernel: dropout, gradients, other dtypes and ranks.
    """
    if dropout_p != 0.0:
        raise SpecError(f"dropout_p must be 0, got {dropout_p}: there is no dropout")
    if is_causal and attn_mask is not None:
        raise SpecError("attn_mask and is_causal exclude each other")
    _check_operands(query, key, value, enable_gqa)
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    mask = full()
    if attn_mask is not None:
        attn_mask = _of_rank_2_to_4(attn_mask)
        if attn_mask.dtype == torch.bool:
            mask_mod = visible_where(attn_mask)
        else:
            score_mod = bias(attn_mask)
    if is_causal and query.shape[2] == key.shape[2]:
        mask = causal()
    elif is_causal:
        mask_mod = causal_from_top
    return _call(query, key, value, mask, score_mod, mask_mod, scale, return_lse=False)[0]


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
    mask_mod: MaskMod | None = None,
) -> Any:
    """As `torch.nn.attention.flex_attention.flex_attention`.

    Args:
      query: [batch, heads, sq, head_dim], bfloat16 or float16.
      key: [batch, kv_heads, sk, head_dim].
      value: [batch, kv_heads, sk, v_head_dim].
      score_mod: `score_mod(score, b, h, q_idx, kv_idx)`; see `attn_mlir.trace`.
      block_mask: a BlockMask of PyTorch or of this package; blocks that it leaves out are
        skipped, and its `mask_mod` is evaluated in partly visible blocks alone.
      return_lse: also return LSE, [batch, heads, sq] in float32, natural logarithm.
      kernel_options: not offered.
      mask_mod: `mask_mod(b, h, q_idx, kv_idx)`, instead of a BlockMask.

    Returns:
      [batch, heads, sq, v_head_dim], with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    if kernel_options:
        raise SpecError(f"kernel_options are not offered, got {', '.join(kernel_options)}")
    _check_operands(query, key, value, enable_gqa)
    blocks = None if block_mask is None else _block_mask(block_mask, query.shape[2], key.shape[2])
    o, lse = _call(
        query, key, value, None, score_mod, mask_mod, scale, return_lse=return_lse, blocks=blocks
    )
    return (o, lse) if return_lse else o


def _call(
    query: Any,
    key: Any,
    value: Any,
    mask: Mask | None,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    scale: float | None,
    *,
    return_lse: bool,
    blocks: BlockMask | None = None,
) -> tuple[Any, Any]:
    """O and LSE by the operator, in PyTorch's layout."""
    check_scale(scale)
    batch, heads, sq, head_dim = query.shape
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    lists: list[Any] = []
    block: tuple[int, int, int] | None = None
    if blocks is not None:
        operands = {name: view(tensor, name) for name, tensor in (("q", q), ("k", k), ("v", v))}
        spec = spec_of(operands, None)
        spec, mask_mod, lists = of_call(blocks, spec, mask_mod, mask, q, operands)
        mask, block = spec.mask, spec.block
    sizes = {"batch": batch, "heads": heads, "sq": sq, "sk": key.shape[2]}
    for mod in (score_mod, mask_mod):
        check_extents(mod, sizes)
    program, captured = trace(score_mod, mask_mod)
    check_captured(captured, sizes)
    o, lse = attention_op(
        q,
        k,
        v,
        [_as_tensor(array) for array in (*lists, *captured.values())],
        "" if program is None else program.canonical(),
        str(full() if mask is None else mask),
        1.0 / math.sqrt(head_dim) if scale is None else float(scale),
        return_lse,
        list(block or ()),
    )
    return o.transpose(1, 2), lse


def _block_mask(given: Any, sq: int, sk: int) -> BlockMask:
    """A BlockMask of PyTorch as one of ours.

    Raises:
      SpecError: something else, or one for other lengths.
    """
    if isinstance(given, BlockMask):
        return given
    fields = ("kv_num_blocks", "kv_indices", "BLOCK_SIZE", "seq_lengths", "mask_mod")
    if not all(hasattr(given, name) for name in fields):
        raise SpecError(f"block_mask must be a BlockMask, got {type(given).__name__}")
    lengths = tuple(given.seq_lengths)
    if lengths != (sq, sk):
        raise SpecError(f"block_mask is for sq, sk = {lengths}, the call has {(sq, sk)}")
    mod = given.mask_mod
    hides_nothing = getattr(mod, "__name__", "") == "noop_mask"  # PyTorch's, where none was given
    return BlockMask.from_kv_blocks(
        given.kv_num_blocks,
        given.kv_indices,
        getattr(given, "full_kv_num_blocks", None),
        getattr(given, "full_kv_indices", None),
        sq=sq,
        sk=sk,
        block_size=tuple(given.BLOCK_SIZE),
        mask_mod=None if hides_nothing else mod,
    )


def _as_tensor(array: Any) -> Any:
    """A captured array as a tensor that aliases it."""
    owner: Any = getattr(array, "owner", array)
    if isinstance(owner, tuple):  # a view of a tensor and its DLPack capsule
        owner = cast("tuple[Any, ...]", owner)[0]
    tensor: Any = owner if isinstance(owner, torch.Tensor) else torch.from_dlpack(owner)
    return tensor if tensor.dim() else tensor.reshape(1)


def _of_rank_2_to_4(attn_mask: Any) -> Any:
    """A mask of torch as `bias` takes it: rank 3 there is [heads, q, k] in front of a batch of 1."""
    if not isinstance(attn_mask, torch.Tensor):
        raise SpecError(f"attn_mask must be a tensor, got {type(attn_mask).__name__}")
    if attn_mask.dim() not in (2, 3, 4):
        raise SpecError(f"attn_mask must have 2 to 4 dimensions, got {list(attn_mask.shape)}")
    return attn_mask.unsqueeze(0) if attn_mask.dim() == 3 else attn_mask


def _check_operands(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            raise SpecError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.dim() != 4:
            raise SpecError(
                f"{name} must be [batch, heads, sequence, head_dim], got {list(tensor.shape)}"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise SpecError(
                f"{name} requires a gradient, which attention has none of: call under "
                "torch.no_grad() or detach it"
            )
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise SpecError(
            f"query has {query.shape[1]} heads, key has {key.shape[1]}: pass enable_gqa=True"
        )
