"""Builds the module that holds one attention function: what a front end hands to the passes."""

import math
from collections.abc import Callable, Sequence

from attn_mlir.dialect._mlir import func, ir
from attn_mlir.dialect.attn.block import BLOCK_LISTS, COUNTS
from attn_mlir.dialect.attn.blocks import COUNTS_RANK, INDICES_RANK, BlocksOp
from attn_mlir.dialect.attn.combine import HEADS_ALONG_ROWS, CombineOp
from attn_mlir.dialect.attn.expression import emit_program
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.mha import LSE_TERMS, OUTPUT_TYPES, make_mha
from attn_mlir.dialect.attn.program import CapturedTensor, Program
from attn_mlir.dialect.attn.scaled import make_scaled
from attn_mlir.dialect.attn.storage import index_arguments, views_of
from attn_mlir.errors import SpecError

ARGUMENT_NAME = "attn.name"  # argument attribute: the name users give the tensor or scalar
ARGUMENT_DEFAULT = "attn.default"  # argument attribute: value of a scalar that is not passed
RESULT_NAME = "attn.name"

# dtype -> element type
DTYPES = {"bf16": "bf16", "f16": "f16", "f32": "f32", "e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}

# dtype of a captured tensor -> element type, where they differ; of i8 the sign tells it from bool
ELEMENTS = {"bool": "i8", "i8": "si8", "u8": "ui8", "u16": "ui16"}

NARROW_DTYPES = ("e4m3", "e5m2")  # operands of these have factors
DESCALES = ("q_descale", "k_descale", "v_descale")


def build_mha_module(
    ctx: ir.Context,
    *,
    name: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: str,
    mask: Mask,
    v_head_dim: int | None = None,
    out_dtype: str | None = None,
    return_lse: bool = True,
    lengths: Lengths = DENSE,
    partial: bool = False,
    modifier: Program | None = None,
    block: Sequence[int] | None = None,
) -> ir.Module:
    """Builds `func.func @name(q, k, v, scale, ...) -> (o, lse)` around one `attn.mha`.

    Batch and both sequence lengths are dynamic. The arguments carry their names, and the scale
    its default of 1 / sqrt(head_dim), as attributes `attn.name` and `attn.default`.

    Args:
      ctx: a context from `make_context`.
      name: symbol of the function, and of the kernel made from it.
      heads, kv_heads: query heads, a multiple of the key-value heads.
      head_dim: elements per row of q and k.
      dtype: `bf16`, `f16`, `f32`, `e4m3` or `e5m2`.
      mask: which keys each row sees.
      v_head_dim: elements per row of v and o; `head_dim` when absent.
      out_dtype: of o, `bf16`, `f16` or `f32`; when absent `dtype`, and bf16 for one of 8 bits.
      return_lse: whether the function returns lse.
      lengths: what tells the lengths of sequences; its index arrays and numbers follow the scale.
      partial: whether the results are those of parts of the keys.
      modifier: what becomes of a score; the tensors it captures are the last arguments.
      block: positions, heads and keys of the blocks of scores that the arguments `BLOCK_LISTS`
        list (`attn.blocks`); none when absent. They follow the factors `q_descale`, `k_descale` and
        `v_descale` of 8-bit operands.

    Raises:
      SpecError: a number or dtype for which no such operation exists.
    """
    _check(heads, kv_heads, head_dim)
    _check_dtype("dtype", dtype, tuple(DTYPES))
    if out_dtype is None:
        out_dtype = dtype if dtype in OUTPUT_TYPES else "bf16"
    _check_dtype("out_dtype", out_dtype, OUTPUT_TYPES)
    dynamic = ir.ShapedType.get_dynamic_size()
    with ctx, ir.Location.unknown():
        element = ir.Type.parse(DTYPES[dtype])
        rows_q = [dynamic] if lengths.ragged_q else [dynamic, dynamic]
        rows_k = [dynamic] if lengths.ragged_k else [dynamic, dynamic]
        q_type = ir.RankedTensorType.get([*rows_q, heads, head_dim], element)
        k_type = ir.RankedTensorType.get([*rows_k, kv_heads, head_dim], element)
        v_dim = head_dim if v_head_dim is None else v_head_dim
        v_type = ir.RankedTensorType.get([*rows_k, kv_heads, v_dim], element)
        output = ir.Type.parse(out_dtype)
        o_type = ir.RankedTensorType.get([*rows_q, heads, v_dim], output)
        f32 = ir.F32Type.get()
        terms = [LSE_TERMS] if partial else []
        lse_type = ir.RankedTensorType.get([*terms, *rows_q[1:], heads, dynamic], f32)
        indices = index_arguments(lengths)
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            further = _list_types() if block is not None else {}
            captured = modifier.tensors if modifier is not None else ()
            further |= {tensor.name: _captured_type(tensor) for tensor in captured}
            factors = DESCALES if dtype in NARROW_DTYPES else ()
            tables = [ir.RankedTensorType.get([dynamic, dynamic], f32)] * len(factors)
            inputs = [q_type, k_type, v_type, f32, *indices.values(), *tables, *further.values()]
            outputs = {"o": o_type, "lse": lse_type}
            if not return_lse:
                del outputs["lse"]
            function = func.FuncOp(name, ir.FunctionType.get(inputs, list(outputs.values())))
            names = [{ARGUMENT_NAME: ir.StringAttr.get(text)} for text in ("q", "k", "v")]
            scale = {
                ARGUMENT_NAME: ir.StringAttr.get("scale"),
                ARGUMENT_DEFAULT: ir.FloatAttr.get(f32, 1.0 / math.sqrt(head_dim)),
            }
            others = [
                {ARGUMENT_NAME: ir.StringAttr.get(text)} for text in (*indices, *factors, *further)
            ]
            function.arg_attrs = [ir.DictAttr.get(attrs) for attrs in (*names, scale, *others)]
            function.result_attrs = ir.ArrayAttr.get(
                [ir.DictAttr.get({RESULT_NAME: ir.StringAttr.get(text)}) for text in outputs]
            )
            with ir.InsertionPoint(function.add_entry_block()):
                q, k, v, factor, *others = function.arguments
                named = dict(zip((*indices, *factors), others, strict=False))
                q, k, v = views_of(lengths, (q, k, v), named)
                if factors:
                    tables = [named[text] for text in factors]
                    q, k, v = map(make_scaled, (q, k, v), tables)
                score_mod = _score_mod(modifier, block, others[len(named) :])
                op = make_mha(
                    *(q, k, v, factor),
                    mask=mask,
                    output=output,
                    partial=partial,
                    score_mod=score_mod,
                )
                func.ReturnOp([getattr(op, text) for text in outputs])
    return module


def build_combine_module(
    ctx: ir.Context,
    *,
    name: str,
    heads: int,
    v_head_dim: int,
    out_dtype: str,
    sinks: str | None = None,
    return_lse: bool = True,
    heads_along_rows: bool = False,
    lse_terms: int = 1,
) -> ir.Module:
    """Builds `func.func @name(parts, lses, ...) -> (o, lse)` around one `attn.combine`.

    Args:
      ctx: a context from `make_context`.
      name: symbol of the function, and of the kernel made from it.
      heads: query heads.
      v_head_dim: elements per row of a part and of o.
      out_dtype: of o, `bf16`, `f16` or `f32`.
      sinks: dtype of the sinks, one per head; none when absent.
      return_lse: whether the function returns lse.
      heads_along_rows: sets `HEADS_ALONG_ROWS`.
      lse_terms: 1, or 2 where lses are sums of two numbers, as a partial `attn.mha` writes them.

    Raises:
      SpecError: a number or dtype for which no such operation exists.
    """
    _check_dtype("out_dtype", out_dtype, OUTPUT_TYPES)
    dynamic = ir.ShapedType.get_dynamic_size()
    with ctx, ir.Location.unknown():
        f32 = ir.F32Type.get()
        lse_shape = [dynamic, heads, dynamic]
        terms = [lse_terms] if lse_terms > 1 else []
        o_shape = [dynamic, dynamic, heads, v_head_dim]
        inputs = {
            "parts": ir.RankedTensorType.get([dynamic, *o_shape], f32),
            "lses": ir.RankedTensorType.get([*terms, dynamic, *lse_shape], f32),
        }
        if sinks is not None:
            inputs["sinks"] = ir.RankedTensorType.get([heads], ir.Type.parse(sinks))
        outputs = {
            "o": ir.RankedTensorType.get(o_shape, ir.Type.parse(out_dtype)),
            "lse": ir.RankedTensorType.get(lse_shape, f32),
        }
        returned = {n: kind for n, kind in outputs.items() if return_lse or n != "lse"}
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kinds = (list(inputs.values()), list(returned.values()))
            function = func.FuncOp(name, ir.FunctionType.get(*kinds))
            names = [{ARGUMENT_NAME: ir.StringAttr.get(text)} for text in inputs]
            function.arg_attrs = [ir.DictAttr.get(attrs) for attrs in names]
            with ir.InsertionPoint(function.add_entry_block()):
                parts, lses, *given = function.arguments
                op = CombineOp(*outputs.values(), parts, lses, given)
                if heads_along_rows:
                    op.operation.attributes[HEADS_ALONG_ROWS] = ir.UnitAttr.get()
                func.ReturnOp([getattr(op, n) for n in returned])
    return module


def _captured_type(captured: CapturedTensor) -> ir.Type:
    """Type of a captured tensor: all extents at run time; a bool takes a byte."""
    element = ir.Type.parse(ELEMENTS.get(captured.dtype, captured.dtype))
    return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * captured.rank, element)


def _list_types() -> dict[str, ir.Type]:
    """Types of the arguments that `attn.blocks` takes, by name."""
    dynamic, i32 = ir.ShapedType.get_dynamic_size(), ir.IntegerType.get_signless(32)
    shapes = ([dynamic] * (COUNTS_RANK - 1) + [COUNTS], [dynamic] * INDICES_RANK)
    types = [ir.RankedTensorType.get(shape, i32) for shape in shapes]
    return dict(zip(BLOCK_LISTS, types, strict=True))


def _score_mod(
    modifier: Program | None, block: Sequence[int] | None, tensors: Sequence[ir.Value]
) -> Callable[..., ir.Value] | None:
    """What builds the region; `tensors` are the lists, if there are any, and what is captured."""
    if modifier is None and block is None:
        return None
    count = 0 if block is None else len(BLOCK_LISTS)

    def build(*arguments: ir.Value) -> ir.Value:
        if block is not None:
            BlocksOp(*tensors[:count], ir.DenseI32ArrayAttr.get(list(block)))
        if modifier is None:
            return arguments[0]
        return emit_program(modifier, arguments, tensors[count:])

    return build


def _check(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises SpecError for what `attn.mha` cannot say."""
    for label, value in (("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim)):
        if value < 1:
            raise SpecError(f"{label} must be at least 1, got {value}")
    if heads % kv_heads:
        raise SpecError(
            f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}: "
            f"query head h reads key-value head h // (heads / kv_heads)"
        )


def _check_dtype(label: str, dtype: str, allowed: Sequence[str]) -> None:
    if dtype not in allowed:
        raise SpecError(f"{label} must be one of {', '.join(allowed)}, got {dtype!r}")
