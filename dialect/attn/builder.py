"""Builds the module with one function for a request: the input of the passes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_mlir.dialect._mlir import func, ir
from attn_mlir.dialect.attn.append import INTERLEAVED, AppendOp
from attn_mlir.dialect.attn.blocks import make_blocks
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.combine import HEADS_ALONG_ROWS, CombineOp
from attn_mlir.dialect.attn.coordinates import OFFSETS
from attn_mlir.dialect.attn.join import PART_KEYS, JoinOp
from attn_mlir.dialect.attn.latent.formats import LatentFormat
from attn_mlir.dialect.attn.latent.rows import emit_latent_rows
from attn_mlir.dialect.attn.latent.sparse_mla import PAGE_SIZE, SparseMlaOp
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.mha import MhaOp, make_mha
from attn_mlir.dialect.attn.offsets import OffsetsOp
from attn_mlir.dialect.attn.operands import Operand, Request
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.dialect.attn.scale import DESCALES
from attn_mlir.dialect.attn.scaled import make_scaled
from attn_mlir.dialect.attn.storage import cache_views, scales_view, views_of
from attn_mlir.dialect.attn.tile_counter import TileCounterOp
from attn_mlir.dialect.attn.workspace import TILE_COUNTER, WORKSPACE
from attn_mlir.element_types import ELEMENT_TYPES

ARGUMENT_NAME = (
    "attn.name"  # argument attribute: the name by which callers pass the tensor or scalar
)
ARGUMENT_DEFAULT = "attn.default"  # argument attribute: default value of a scalar
RESULT_NAME = "attn.name"


def build_module(ctx: ir.Context, request: Request, *, name: str | None = None) -> ir.Module:
    """Builds one function around the operation of a request.

    Its arguments are the request's inputs and scalars, its results the outputs, each in the order
    of the call. Their names, and the defaults of scalars, are attributes.

    Args:
      ctx: a context from `make_context`.
      request: the operation with its options and operands.
      name: symbol of the function and of its kernel; by default the request's kernel name.
    """
    given = [operand for operand in request.operands if operand.role != "out"]
    results = [operand for operand in request.operands if operand.role == "out"]
    with ctx, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kind = ir.FunctionType.get([type_of(x) for x in given], [type_of(x) for x in results])
            function = func.FuncOp(name or request.kernel_name, kind)
            function.arg_attrs = [_attributes(operand) for operand in given]
            function.result_attrs = ir.ArrayAttr.get([_attributes(x) for x in results])
            with ir.InsertionPoint(function.add_entry_block()):
                arguments = zip(given, function.arguments, strict=True)
                values = request.emit({operand.name: value for operand, value in arguments})
                func.ReturnOp([values[operand.name] for operand in results])
    return module


def type_of(operand: Operand) -> ir.Type:
    """The type of an argument or result."""
    element = ir.Type.parse(ELEMENT_TYPES[operand.dtype].mlir)
    if operand.role == "scalar":
        return element
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic if isinstance(extent, str) else extent for extent in operand.extents]
    return ir.RankedTensorType.get(shape, element)


def _attributes(operand: Operand) -> Any:
    """The attributes of an argument or result: its name and default."""
    attributes: dict[str, Any] = {ARGUMENT_NAME: ir.StringAttr.get(operand.name)}
    if operand.default is not None:
        attributes[ARGUMENT_DEFAULT] = ir.FloatAttr.get(ir.F32Type.get(), operand.default)
    return ir.DictAttr.get(attributes)


def emit_mha(
    arguments: Mapping[str, ir.Value],
    *,
    mask: Mask,
    out_dtype: str,
    lengths: Lengths,
    cache: Cache | None,
    partial: bool,
    part_keys: int | None,
    modifier: Program | None,
    block: Sequence[int] | None,
) -> MhaOp:
    """Builds one `attn.mha` at the insertion point, with storage operations for q, k and v.

    Args:
      arguments: `q`, `k`, `v`, `scale`, the index arrays and scalars of `lengths` and `cache`,
        `DESCALES` for operands of 8 bits, `BLOCK_LISTS` with a `block`, `WORKSPACE` if the kernel
        joins parts of the keys, `TILE_COUNTER` if CTAs draw work tiles, those of `OFFSETS` that the
        call gives, and the tensors that the modifier reads.
      mask: which keys each row sees.
      out_dtype: element type of o.
      lengths: which arrays give the lengths of sequences.
      cache: how k and v are stored, if they are a cache.
      partial: whether there is a result for each part of the keys.
      part_keys: number of keys of a part that the kernel joins; None for equal shares.
      modifier: the score modifier.
      block: positions, heads and keys of a listed block of scores.
    """
    stored = (arguments["q"], arguments["k"], arguments["v"])
    q, k, v = views_of(lengths, cache, stored, arguments)
    rows = 1 if cache is None else cache.scale_rows
    q, k, v = (
        make_scaled(operand, _scales(name, cache, arguments), rows=rows)
        if name in arguments
        else operand
        for operand, name in zip((q, k, v), DESCALES, strict=True)
    )
    return make_mha(
        *(q, k, v, arguments["scale"]),
        mask=mask,
        output=ir.Type.parse(ELEMENT_TYPES[out_dtype].mlir),
        partial=partial,
        score_mod=_score_mod(modifier, block, part_keys, arguments),
    )


def _scales(name: str, cache: Cache | None, arguments: Mapping[str, ir.Value]) -> ir.Value:
    """The scales of an operand; those per position as a view with the sequences of the operand."""
    q, _, v = DESCALES
    if cache is None or not cache.scale_dtype or name == q:
        return arguments[name]
    return scales_view(arguments[name], cache, arguments, of_values=name == v)


def emit_combine(
    arguments: Mapping[str, ir.Value],
    *,
    o: Operand,
    lse: Operand,
    heads_along_rows: bool,
) -> CombineOp:
    """Builds one `attn.combine` at the insertion point.

    Args:
      arguments: `parts`, `lses` and, if there are any, `sinks`.
      o, lse: types of the results.
      heads_along_rows: sets `HEADS_ALONG_ROWS`.
    """
    sinks = [arguments["sinks"]] if "sinks" in arguments else []
    op = CombineOp(type_of(o), type_of(lse), arguments["parts"], arguments["lses"], sinks)
    if heads_along_rows:
        op.operation.attributes[HEADS_ALONG_ROWS] = ir.UnitAttr.get()
    return op


def emit_sparse_mla(
    arguments: Mapping[str, ir.Value],
    *,
    results: Sequence[Operand],
    page_size: int | None,
    form: LatentFormat | None,
) -> SparseMlaOp:
    """Builds one `attn.sparse_mla` at the insertion point.

    Args:
      arguments: `q`, `kv`, `indices`, `scale` and, where there are any, `topk_length`, `sinks`,
        `page_table` and `batch_of_query`; with a form what its rows are made of.
      results: types of o, lse and max_logits.
      page_size: rows of a page, if there is a table.
      form: how the rows of `kv` are stored; None for 16 bits.
    """
    given = {**arguments, "kv": emit_latent_rows(arguments, form)}
    operands = [given[name] for name in ("q", "kv", "indices", "scale")]
    names = ("topk_length", "sinks", "page_table", "batch_of_query")
    optional = [[arguments[name]] if name in arguments else [] for name in names]
    op = SparseMlaOp(*[type_of(result) for result in results], *operands, *optional)
    if page_size is not None:
        i64 = ir.IntegerType.get_signless(64)
        op.operation.attributes[PAGE_SIZE] = ir.IntegerAttr.get(i64, page_size)
    return op


def emit_append(
    arguments: Mapping[str, ir.Value],
    *,
    cache: Cache | None,
    lengths: str,
    interleaved: bool,
) -> AppendOp:
    """Builds one `attn.append` at the insertion point, with storage operations for the cache.

    Args:
      arguments: `k_cache`, `v_cache`, `k_new`, `v_new`; the index arrays of `cache`; and those of
        `slot_mapping`, `positions`, `batch_indices`, `cu_seqlens`, `cos`, `sin`, `k_scale` and
        `v_scale` that the request has.
      cache: how sequences are stored in the cache; None if slots give the places.
      lengths: as in `cache_views`.
      interleaved: sets `INTERLEAVED`.
    """
    k, v = arguments["k_cache"], arguments["v_cache"]
    if cache is not None:
        k, v = cache_views(cache, lengths, (k, v), arguments)
    if "k_scale" in arguments:
        scales = [arguments["k_scale"], arguments["v_scale"]]
        if cache is not None and cache.scale_dtype:
            scales = [
                scales_view(x, cache, arguments, of_values=number > 0)
                for number, x in enumerate(scales)
            ]
        rows = 1 if cache is None else cache.scale_rows
        k, v = (make_scaled(x, own, rows=rows) for x, own in zip((k, v), scales, strict=True))
    names = ("slot_mapping", "positions", "batch_indices", "cu_seqlens")
    lists = [[arguments[name]] if name in arguments else [] for name in names]
    angles = [arguments[name] for name in ("cos", "sin") if name in arguments]
    op = AppendOp(k, v, arguments["k_new"], arguments["v_new"], *lists, angles)
    if interleaved:
        op.operation.attributes[INTERLEAVED] = ir.UnitAttr.get()
    return op


def _score_mod(
    modifier: Program | None,
    block: Sequence[int] | None,
    part_keys: int | None,
    arguments: Mapping[str, ir.Value],
) -> Callable[..., ir.Value] | None:
    """The function that builds the region of an `attn.mha`; None if scores are not modified."""
    others = (WORKSPACE[0], TILE_COUNTER, *OFFSETS)
    if modifier is None and block is None and not any(name in arguments for name in others):
        return None

    def build(*coordinates: ir.Value) -> ir.Value:
        if block is not None:
            make_blocks(arguments, block)
        if WORKSPACE[0] in arguments:
            join = JoinOp(*(arguments[name] for name in WORKSPACE))
            if part_keys is not None:
                kind = ir.IntegerType.get_signless(64)
                join.operation.attributes[PART_KEYS] = ir.IntegerAttr.get(kind, part_keys)
        if TILE_COUNTER in arguments:
            TileCounterOp(arguments[TILE_COUNTER])
        offsets = [[arguments[name]] if name in arguments else [] for name in OFFSETS]
        if any(offsets):
            OffsetsOp(*offsets)
        if modifier is None:
            return coordinates[0]
        from attn_mlir.dialect.attn.programs.expression import emit_program

        read = [arguments[tensor.name] for tensor in modifier.tensors]
        return emit_program(modifier, coordinates, read)

    return build
