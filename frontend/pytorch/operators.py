"""Custom operators of PyTorch for attention and for the lists of a block mask.

Their fake kernels compute the shapes and dtypes of results from the shapes, strides and dtypes of
operands, and refuse everything that the operators refuse.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from attn_mlir.api.attention import attention, check_captured, check_scale, planned, spec_of
from attn_mlir.api.descales import descales_of
from attn_mlir.block_masks.blocks import BlockMask
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.block import BLOCK_LISTS, Block
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.readable import readable
from attn_mlir.runtime.call.tensors import TensorView, described, view
from attn_mlir.runtime.call.torch_tensors import size_met
from attn_mlir.tracing.indices import check_indices

torch: Any = importlib.import_module("torch")

OPERANDS = ("q", "k", "v")
LONGEST = ("max_seqlen_q", "max_seqlen_k")


def static_scale(scale: Any) -> Any:
    """A scale, or for one that may change from run to run of a graph another: nothing depends on
    it.
    """
    return 1.0 if isinstance(scale, torch.SymFloat) else scale


def static_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name, with symbolic numbers replaced by any value: no plan depends on them."""
    options = {**options, "scale": static_scale(options.get("scale"))}
    longest = {name: size_met(options[name]) for name in LONGEST if options.get(name) is not None}
    return options | longest


class AttentionArguments(NamedTuple):
    """The arguments of the operator for tensors [batch, sequence, heads, head_dim].

    Attributes:
      captured: lists of blocks, if there is a block, and the tensors that the modifier reads.
      modifier: `Program.canonical` of a score modifier, or "".
      mask: a mask in closed form, as text: `full`, `causal`, `window:127,0`; see `masks.text`.
      return_lse: whether LSE is computed; otherwise an empty tensor is returned.
      block: extents of listed blocks, see `MhaSpec`; empty if there are none.
    """

    q: Any
    k: Any
    v: Any
    captured: Sequence[Any]
    modifier: str
    mask: str
    scale: float
    return_lse: bool = True
    block: Sequence[int] = ()


def _request(
    call: AttentionArguments, operands: dict[str, TensorView], captured: Sequence[TensorView]
) -> tuple[MhaSpec, dict[str, TensorView]]:
    """The checked request for the operator's arguments, and the captured tensors by name.

    Raises:
      SpecError: says which argument is wrong.
    """
    program = Program.from_json(call.modifier) if call.modifier else None
    options: dict[str, Any] = {"return_lse": call.return_lse, "modifier": program}
    extents = tuple(call.block) if call.block else None
    spec = spec_of(operands, parse_mask(call.mask), block=extents, **options)
    # refuses 8 bits, as there are no scales
    descales_of(spec, operands["q"].shape[0], None, None, None)
    check_scale(static_scale(call.scale))
    expected = [operand for operand in spec.tensors if operand.name in _passed_names(spec)]
    if len(captured) != len(expected):
        names = ", ".join(operand.name for operand in expected) or "none"
        raise SpecError(
            f"captured must hold {len(expected)} tensors ({names}), got {len(captured)}"
        )
    by_name = dict(zip((operand.name for operand in expected), captured, strict=True))
    for operand in expected:
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


def _attention(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    """The operator: returns O and LSE."""
    call = AttentionArguments(*arguments, **options)
    operand_pairs = zip(OPERANDS, call[:3], strict=True)
    tensors = {name: readable(name, tensor.detach()) for name, tensor in operand_pairs}
    q = tensors["q"]
    if not (call.captured or call.modifier or call.block):  # repeated calls are not planned again
        mask = parse_mask(call.mask)
        results = attention(**tensors, mask=mask, scale=call.scale, return_lse=call.return_lse)
        empty = q.new_empty(0, dtype=torch.float32)
        return results if call.return_lse else (results, empty)
    operands = {name: view(tensor, name) for name, tensor in tensors.items()}
    read = [view(tensor.detach(), "captured") for tensor in call.captured]
    spec, captured = _request(call, operands, read)
    if spec.modifier is not None:
        tensors_read = [captured[tensor.name] for tensor in spec.modifier.tensors]
        check_indices(spec.modifier, tensors_read, _sizes(operands))
    results = planned(q, operands, spec, captured, scale=call.scale).execute()
    empty = None if call.return_lse else q.new_empty(0, dtype=torch.float32)
    return results["o"], results.get("lse", empty)


def _fake_attention(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    """The fake kernel: shapes and dtypes of the operator's results."""
    call = AttentionArguments(*arguments, **options)
    operands = {name: described(x, name) for name, x in zip(OPERANDS, call[:3], strict=True)}
    read = [described(tensor, "captured") for tensor in call.captured]
    _request(call, {**operands}, read)
    batch, sq, heads, _ = call.q.shape
    o = call.q.new_empty((batch, sq, heads, call.v.shape[3]))
    lse_shape = (batch, heads, sq) if call.return_lse else 0
    return o, call.q.new_empty(lse_shape, dtype=torch.float32)


attention_op: Any = torch.library.custom_op(
    "attn_mlir::attention",
    _attention,
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor[] captured, str modifier, str mask, Scalar scale,"
    " bool return_lse=True, int[] block=[]) -> (Tensor, Tensor)",
)
attention_op.register_fake(_fake_attention)


class BlockArguments(NamedTuple):
    """The arguments of the operator that converts the lists of PyTorch's BlockMask.

    Attributes:
      kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices: see `BlockMask`.
      block_size: query positions and keys of the BlockMask's blocks.
      block: positions, heads and keys of the kernel's blocks.
    """

    kv_num_blocks: Any
    kv_indices: Any
    full_kv_num_blocks: Any
    full_kv_indices: Any
    sq: int
    sk: int
    block_size: Sequence[int]
    block: Sequence[int]


def _block_lists(*arguments: Any) -> tuple[Any, Any, Any]:
    """The operator: `Lists.counts` and `Lists.indices` of a kernel, and `BlockMask.kinds`, i32."""
    call = BlockArguments(*arguments)
    sizes: dict[str, Any] = {"sq": call.sq, "sk": call.sk, "block_size": list(call.block_size)}
    mask = BlockMask.from_kv_blocks(*call[:4], **sizes)
    arrays = (*mask.lists(Block(*call.block)), mask.kinds.astype("int32"))
    device = call.kv_num_blocks.device
    return cast("Any", tuple(torch.from_numpy(array).to(device) for array in arrays))


def _fake_block_lists(*arguments: Any) -> tuple[Any, Any, Any]:
    """The fake kernel: shapes of the operator's results."""
    call = BlockArguments(*arguments)
    batch, heads = call.kv_num_blocks.shape[:2]
    positions, heads_per_block, keys = call.block
    rows = (
        max(batch, 1),
        1 if heads == 1 else max(-(-heads // heads_per_block), 1),
        max(-(-call.sq // positions), 1),
    )
    shapes = (
        (*rows, 2),
        (*rows, max(-(-call.sk // keys), 1)),
        (batch, heads, -(-call.sq // call.block_size[0]), -(-call.sk // call.block_size[1])),
    )
    outputs = (call.kv_indices.new_empty(shape, dtype=torch.int32) for shape in shapes)
    return cast("Any", tuple(outputs))


block_lists_op: Any = torch.library.custom_op(
    "attn_mlir::block_lists",
    _block_lists,
    mutates_args=(),
    schema="(Tensor kv_num_blocks, Tensor kv_indices, Tensor? full_kv_num_blocks,"
    " Tensor? full_kv_indices, int sq, int sk, int[] block_size, int[] block)"
    " -> (Tensor, Tensor, Tensor)",
)
block_lists_op.register_fake(_fake_block_lists)
