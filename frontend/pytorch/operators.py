"""Custom operators of PyTorch for attention and for the lists of a block mask.

Their fake kernels compute the shapes and dtypes of results from the shapes, strides and dtypes of
operands, and refuse everything that the operators refuse.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any, cast

from attn_mlir.api.attention import check_captured, check_scale, planned, spec_of
from attn_mlir.api.descales import descales_of
from attn_mlir.block_masks.blocks import BlockMask
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.block import BLOCK_LISTS, Block
from attn_mlir.dialect.attn.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.readable import readable
from attn_mlir.runtime.call.tensors import TensorView, described, view
from attn_mlir.tracing.indices import check_indices

torch: Any = importlib.import_module("torch")

OPERANDS = ("q", "k", "v")


def known(scale: Any) -> Any:
    """A scale, or for one that may change from run to run of a graph another: nothing depends on
    it.
    """
    return 1.0 if isinstance(scale, torch.SymFloat) else scale


def _request(
    operands: dict[str, TensorView],
    captured: Sequence[TensorView],
    modifier: str,
    mask: str,
    scale: float,
    return_lse: bool,
    block: Sequence[int],
) -> tuple[MhaSpec, dict[str, TensorView]]:
    """The checked request for the operator's arguments, and the captured tensors by name.

    Raises:
      SpecError: says which argument is wrong.
    """
    program = Program.from_json(modifier) if modifier else None
    spec = spec_of(operands, parse_mask(mask), return_lse=return_lse)
    descales_of(
        spec, operands["q"].shape[0], None, None, None
    )  # refuses 8 bits, as there are no factors
    check_scale(known(scale))
    extents = cast("tuple[int, int, int]", tuple(block)) if block else None
    spec = dataclasses.replace(spec, modifier=program, block=extents)
    wanted = [operand for operand in spec.tensors if operand.name in _passed_names(spec)]
    if len(captured) != len(wanted):
        names = ", ".join(operand.name for operand in wanted) or "none"
        raise SpecError(f"captured must hold {len(wanted)} tensors ({names}), got {len(captured)}")
    by_name = dict(zip((operand.name for operand in wanted), captured, strict=True))
    for operand in wanted:
        tensor, rank = by_name[operand.name], len(operand.extents)
        if (tensor.dtype, len(tensor.shape)) != (operand.dtype, rank):
            raise SpecError(
                f"captured {operand.name} must be {operand.dtype} of {rank} dimensions, got "
                f"{tensor.dtype} of shape {list(tensor.shape)}"
            )
    check_captured(by_name, _sizes(operands))
    return spec, by_name


def _passed_names(spec: MhaSpec) -> tuple[str, ...]:
    """Names of the tensors in `captured`: lists of blocks, if any, and those of the modifier."""
    lists = BLOCK_LISTS if spec.block is not None else ()
    read = spec.modifier.tensors if spec.modifier is not None else ()
    return (*lists, *(tensor.name for tensor in read))


def _sizes(operands: dict[str, TensorView]) -> dict[str, int]:
    batch, sq, heads, _ = operands["q"].shape
    return {"batch": batch, "heads": heads, "sq": sq, "sk": operands["k"].shape[1]}


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
    """The operator: returns O and LSE for tensors [batch, sequence, heads, head_dim].

    Args:
      captured: lists of blocks, if there is a block, and the tensors that the modifier reads.
      modifier: `Program.canonical` of a score modifier, or "".
      mask: a mask in closed form, as text: `full`, `causal`, `window:127,0`; see `masks.text`.
      return_lse: whether LSE is computed; otherwise an empty tensor is returned.
      block: extents of listed blocks, see `MhaSpec`; empty if there are none.
    """
    given_qkv = zip(OPERANDS, (q, k, v), strict=True)
    tensors = {name: readable(name, tensor.detach()) for name, tensor in given_qkv}
    q = tensors["q"]
    operands = {name: view(tensor, name) for name, tensor in tensors.items()}
    read = [view(tensor.detach(), "captured") for tensor in captured]
    spec, given = _request(operands, read, modifier, mask, scale, return_lse, block)
    if spec.modifier is not None:
        tensors_read = [given[tensor.name] for tensor in spec.modifier.tensors]
        check_indices(spec.modifier, tensors_read, _sizes(operands))
    results = planned(q, operands, spec, given, scale=scale).execute()
    empty = None if return_lse else q.new_empty(0, dtype=torch.float32)
    return results["o"], results.get("lse", empty)


def _fake_attention(
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
    """The fake kernel: shapes and dtypes of the operator's results."""
    operands = {n: described(x, n) for n, x in zip(OPERANDS, (q, k, v), strict=True)}
    read = [described(tensor, "captured") for tensor in captured]
    _request({**operands}, read, modifier, mask, scale, return_lse, block)
    batch, sq, heads, _ = q.shape
    o = q.new_empty((batch, sq, heads, v.shape[3]))
    return o, q.new_empty((batch, heads, sq) if return_lse else 0, dtype=torch.float32)


attention_op: Any = torch.library.custom_op(
    "attn_mlir::attention",
    _attention,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor[] captured, str modifier, str mask, Scalar scale,"
    " bool return_lse=True, int[] block=[]) -> (Tensor, Tensor)",
)
attention_op.register_fake(_fake_attention)


def _block_lists(
    kv_num_blocks: Any,
    kv_indices: Any,
    full_kv_num_blocks: Any,
    full_kv_indices: Any,
    sq: int,
    sk: int,
    block_size: Sequence[int],
    block: Sequence[int],
) -> tuple[Any, Any, Any]:
    """The operator: from the lists of PyTorch's BlockMask to a kernel's lists, and the kinds of
    blocks.

    Args:
      kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices: see `BlockMask`.
      block_size: query positions and keys of the BlockMask's blocks.
      block: positions, heads and keys of the kernel's blocks.

    Returns:
      `Lists.counts`, `Lists.indices` and `BlockMask.kinds` as int32.
    """
    mask = BlockMask.from_kv_blocks(
        kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices,
        sq=sq, sk=sk, block_size=list(block_size),
    )  # fmt: skip
    arrays = (*mask.lists(Block(*block)), mask.kinds.astype("int32"))
    device = kv_num_blocks.device
    return cast("Any", tuple(torch.from_numpy(array).to(device) for array in arrays))


def _fake_block_lists(
    kv_num_blocks: Any,
    kv_indices: Any,
    full_kv_num_blocks: Any,
    full_kv_indices: Any,
    sq: int,
    sk: int,
    block_size: Sequence[int],
    block: Sequence[int],
) -> tuple[Any, Any, Any]:
    """The fake kernel: shapes of the operator's results."""
    batch, heads = kv_num_blocks.shape[:2]
    positions, joined, keys = block
    rows = (
        max(batch, 1),
        1 if heads == 1 else max(-(-heads // joined), 1),
        max(-(-sq // positions), 1),
    )
    shapes = (
        (*rows, 2),
        (*rows, max(-(-sk // keys), 1)),
        (batch, heads, -(-sq // block_size[0]), -(-sk // block_size[1])),
    )
    return cast("Any", tuple(kv_indices.new_empty(shape, dtype=torch.int32) for shape in shapes))


block_lists_op: Any = torch.library.custom_op(
    "attn_mlir::block_lists",
    _block_lists,
    mutates_args=(),
    schema="(Tensor kv_num_blocks, Tensor kv_indices, Tensor? full_kv_num_blocks,"
    " Tensor? full_kv_indices, int sq, int sk, int[] block_size, int[] block)"
    " -> (Tensor, Tensor, Tensor)",
)
block_lists_op.register_fake(_fake_block_lists)
