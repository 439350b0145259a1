"""The facts of an operation in MLIR; see `attn_mlir.schedules.policy.facts`."""

from dataclasses import replace
from typing import Any

from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.modifier.region import inside
from attn_mlir.element_types import name_of_mlir
from attn_mlir.schedules.operands.storage import (
    has_indirect_rows,
    has_padded_queries,
    is_ragged,
    latent_rows_of,
    page_size_of,
    position_scaling,
)
from attn_mlir.schedules.policy.facts import Facts, Fp8Rows, Rope, Scales
from attn_mlir.schedules.policy.facts import Modifier as ModifierFacts

from .modifier import Modifier, modifier_of

Value = Any


def facts_of(op: Any) -> Facts:
    """The facts of an operation for which there are schedules."""
    return _FACTS[type(op)](op)


def element_name(element: ir.Type) -> str:
    """Our name of an element type of operands; MLIR's of others."""
    return name_of_mlir(str(element))


def _element(operand: Value) -> str:
    """The name of the element type that an operand stands for."""
    return element_name(attn.logical_type(operand).element_type)


def _attention(op: Any, q: Value, k: Value, head_dim: int) -> Facts:
    """The facts that attention and its gradients share; all elements are of q's type.

    Args:
      q, k: operands of `op`; for latent attention q_nope and k_nope.
      head_dim: as of `Facts`.
    """
    element = element_name(op.element_type)
    return Facts(
        operation=op.OPERATION_NAME.removeprefix("attn."),
        heads=op.heads,
        kv_heads=op.kv_heads,
        head_dim=head_dim,
        v_head_dim=op.v_head_dim,
        q_type=element,
        kv_type=element,
        out_type=element,
        mask=op.mask_rule,
        page_size=page_size_of(k),
        ragged_q=is_ragged(q),
        padded_q=has_padded_queries(q),
        scales=_scales(k, op.v),
        indexed_rows=has_indirect_rows(k),
    )


def _gradients(op: attn.GradientsOp | attn.KvGradientsOp | attn.QGradientsOp) -> Facts:
    modifier = modifier_of(op, {})
    return replace(
        _attention(op, op.q, op.k, op.head_dim),
        block=None if op.blocks is None else op.blocks.extents,
        modifier=ModifierFacts(modifier.reads, modifier.gathers),
        in_turn=bool(inside(op, attn.TurnsOp)),
    )


def _mha(op: attn.MhaOp) -> Facts:
    modifier, join = Modifier(op, {}), op.join
    return replace(
        _attention(op, op.q, op.k, op.head_dim),
        kv_type=element_name(op.stored_element_type),
        out_type=element_name(op.output_type),
        shares_rows=op.shares_rows,
        block=None if op.blocks is None else op.blocks.extents,
        modifier=ModifierFacts(modifier.reads, modifier.gathers),
        partial=op.is_partial,
        combined=join is not None,
        split_size=0 if join is None else join.part_keys or 0,
        has_tile_counter=op.tile_counter is not None,
    )


def _mla(op: attn.MlaOp) -> Facts:
    scales = position_scaling(op.k_nope)
    return Facts(
        operation="mla",
        heads=op.heads,
        kv_heads=op.kv_heads,
        head_dim=op.nope_dim,
        v_head_dim=op.v_head_dim,
        q_type=_element(op.q_nope),
        kv_type=_element(op.k_nope),
        out_type=element_name(op.output_type),
        mask=op.mask_rule,
        page_size=page_size_of(op.k_rope),
        ragged_q=is_ragged(op.q_nope),
        padded_q=has_padded_queries(op.q_nope),
        scales=None if scales is None else Scales(scales.scale_block, None),
        rope=Rope(op.rope_dim, _element(op.q_rope), _element(op.k_rope)),
    )


def _mla_gradients(op: attn.MlaKvGradientsOp | attn.MlaQGradientsOp) -> Facts:
    element = element_name(op.element_type)
    return replace(
        _attention(op, op.q_nope, op.k_nope, op.nope_dim),
        rope=Rope(op.rope_dim, element, element),
    )


def _mla_decode(op: attn.MlaDecodeOp) -> Facts:
    return Facts(
        operation="mla_decode",
        heads=op.heads,
        kv_heads=1,
        head_dim=op.head_dim,
        v_head_dim=op.v_head_dim,
        q_type=element_name(op.element_type),
        kv_type=_element(op.kv),
        out_type=element_name(op.o.type.element_type),
        mask=op.mask_rule,
        page_size=0 if op.is_listed else page_size_of(op.kv),
        rows=_rows(op.kv),
        indexed_rows=op.is_listed,
        shares_rows=True,
        partial=op.is_partial,
        combined=bool(op.memory),
    )


def _sparse_mla(op: attn.SparseMlaOp) -> Facts:
    return Facts(
        operation="sparse_mla",
        heads=op.heads,
        kv_heads=1,
        head_dim=op.head_dim,
        v_head_dim=op.o.type.shape[2],
        q_type=element_name(op.q.type.element_type),
        kv_type=_element(op.kv),
        out_type=element_name(op.o.type.element_type),
        page_size=op.page_size,
        rows=_rows(op.kv),
        indexed_rows=True,
        shares_rows=True,
    )


def _append(op: attn.AppendOp) -> Facts:
    cache, values = (attn.logical_type(x) for x in (op.k_cache, op.v_cache))
    element = element_name(cache.element_type)
    return Facts(
        operation="append",
        heads=cache.shape[2],
        kv_heads=cache.shape[2],
        head_dim=cache.shape[3],
        v_head_dim=values.shape[3],
        q_type=element_name(op.k_new.type.element_type),
        kv_type=element,
        out_type=element,
        page_size=page_size_of(op.k_cache),
        scales=_scales(op.k_cache, op.v_cache),
    )


def _delta(op: attn.DeltaOp | attn.SinkDeltaOp) -> Facts:
    *_, heads, columns = op.o.type.shape
    element = element_name(op.o.type.element_type)
    return Facts(
        operation=op.OPERATION_NAME.removeprefix("attn."),
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        v_head_dim=columns,
        q_type=element,
        kv_type=element,
        out_type="f32",
    )


def _sum_rows(op: attn.SumRowsOp) -> Facts:
    heads = attn.logical_type(op.rows).shape[2]
    return Facts(
        operation="sum_rows",
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        v_head_dim=1,
        q_type="f32",
        kv_type="f32",
        out_type=element_name(op.sums.type.element_type),
    )


def _sum_parts(op: attn.SumPartsOp) -> Facts:
    return Facts(
        operation="sum_parts",
        heads=1,
        kv_heads=1,
        head_dim=0,
        v_head_dim=1,
        q_type="f32",
        kv_type="f32",
        out_type=element_name(op.sums.type.element_type),
    )


def _accumulators(op: attn.ZeroRowsOp | attn.RoundRowsOp) -> Facts:
    *_, heads, columns = op.accum.type.shape
    (result,) = op.operation.results
    return Facts(
        operation=op.OPERATION_NAME.removeprefix("attn."),
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        v_head_dim=columns,
        q_type="f32",
        kv_type="f32",
        out_type=element_name(result.type.element_type),
    )


def _combine(op: attn.CombineOp) -> Facts:
    *_, heads, columns = op.o.type.shape
    return Facts(
        operation="combine",
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        v_head_dim=columns,
        q_type=element_name(op.parts.type.element_type),
        kv_type=element_name(op.parts.type.element_type),
        out_type=element_name(op.o.type.element_type),
    )


_FACTS: dict[type[Any], Any] = {
    attn.MhaOp: _mha,
    attn.MlaOp: _mla,
    attn.MlaDecodeOp: _mla_decode,
    attn.SparseMlaOp: _sparse_mla,
    attn.AppendOp: _append,
    attn.CombineOp: _combine,
    attn.DeltaOp: _delta,
    attn.SinkDeltaOp: _delta,
    attn.SumRowsOp: _sum_rows,
    attn.SumPartsOp: _sum_parts,
    attn.ZeroRowsOp: _accumulators,
    attn.RoundRowsOp: _accumulators,
    attn.GradientsOp: _gradients,
    attn.KvGradientsOp: _gradients,
    attn.QGradientsOp: _gradients,
    attn.MlaKvGradientsOp: _mla_gradients,
    attn.MlaQGradientsOp: _mla_gradients,
}


def operations() -> tuple[type[Any], ...]:
    """The classes of operations for which there are schedules."""
    return tuple(_FACTS)


def _scales(k: Value, v: Value) -> Scales | None:
    """The scales of positions of keys and values."""
    of_k, of_v = position_scaling(k), position_scaling(v)
    if of_k is None and of_v is None:
        return None
    return Scales(*(None if step is None else step.scale_block for step in (of_k, of_v)))


def _rows(operand: Value) -> Fp8Rows | None:
    """How the rows of a latent cache are stored in 8 bits."""
    step = latent_rows_of(operand)
    return None if step is None else Fp8Rows(step.group.value, step.scaled_columns)
