"""`attn.delta`: a number of each row that its gradients need, from the output and its gradient."""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.shapes import Axes, rank_misfit, shape_misfit
from attn_mlir.dialect.attn.verifier import verified
from attn_mlir.element_types import WIDE_MLIR

_ROWS: Axes = ("batch", "sq", "heads", "v_head_dim")
_NUMBERS: Axes = ("batch", "heads", "sq")


class DeltaOp(AttnDialect.Operation, name="delta", traits=[Pure]):
    """Computes what is subtracted from the gradient of each weight of a row:

        delta[i] = sum_c o[i, c] x do[i, c] - dlse[i]

    A row that sees no key, whose LSE is -inf, has a delta of 0, whatever dlse is.

    Results:
      delta: [batch, heads, sq], f32.

    Operands:
      o: [batch, sq, heads, v_head_dim], bf16 or f16: the output of attention.
      do: as o: the gradient of the output.
      lse: [batch, heads, sq], f32: as `attn.mha` returns it.
      dlse: none, or as lse: the gradient of the LSE.

    Memory effects: none. Hardware: any.

    Example:
      %delta = "attn.delta"(%o, %do, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)
          -> tensor<?x16x?xf32>
    """

    delta: ext.Result[Any]
    o: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    dlse: Sequence[ext.Operand[Any]]

    def verify_invariants(self) -> bool:
        """Checks ranks, element types and the agreement of the shapes."""
        return _report(self, _AXES)


class SinkDeltaOp(AttnDialect.Operation, name="sink_delta", traits=[Pure]):
    """As `attn.delta`, for attention with sinks, of whose rows the sink takes a part:

        taken[i] = 1 / (1 + e^(lse[i] - sink))
        delta[i] = sum_c o[i, c] x do[i, c]
        dsinks[i] = -taken[i] x delta[i]
        weight[i] = lse[i] - ln(1 - taken[i])

    and with a gradient of the LSE, which does not contain the sink:

        delta[i] = (1 - taken[i]) x sum_c o[i, c] x do[i, c] - dlse[i]
        weight[i] = 1 - taken[i]

    Of a row that sees no key, whose LSE is -inf, a sink takes nothing, and its delta is 0.

    Results:
      delta: [batch, heads, sq], f32.
      weight: likewise: the LSE with the sink; with dlse the factor of the weights of the row.
      dsinks: [batch, sq, heads, 1], f32: the part of each row in the gradient of its head's sink.

    Operands:
      o, do, lse: as of `attn.delta`.
      sinks: [heads], bf16, f16 or f32: a logit for each head.
      dlse: none, or as lse: the gradient of the LSE.

    Memory effects: none. Hardware: any.

    Example:
      %delta, %weight, %dsinks = "attn.sink_delta"(%o, %do, %lse, %sinks)
          {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>, tensor<16xf32>)
          -> (tensor<?x16x?xf32>, tensor<?x16x?xf32>, tensor<?x?x16x1xf32>)
    """

    delta: ext.Result[Any]
    weight: ext.Result[Any]
    dsinks: ext.Result[Any]
    o: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    sinks: ext.Operand[Any]
    dlse: Sequence[ext.Operand[Any]]

    def verify_invariants(self) -> bool:
        """Checks ranks, element types and the agreement of the shapes."""
        return _report(self, _SINK_AXES)


_AXES: dict[str, Axes] = {
    **dict.fromkeys(("o", "do"), _ROWS),
    **dict.fromkeys(("lse", "dlse", "delta"), _NUMBERS),
}
_SINK_AXES: dict[str, Axes] = {
    **_AXES,
    "weight": _NUMBERS,
    "sinks": ("heads",),
    "dsinks": ("batch", "sq", "heads", "1"),
}
_SINK_TYPES = ("f32", *WIDE_MLIR)


def _report(op: Any, known: Mapping[str, Axes]) -> bool:
    misfit = f"at most one tensor as dlse, got {len(op.dlse)}" if len(op.dlse) > 1 else ""
    return verified(op, misfit or _misfit(op, known))


def tensors_of(op: DeltaOp | SinkDeltaOp) -> dict[str, ir.Value]:
    """The operands that an operation has, then its results, by name."""
    names = ("o", "do", "lse", "sinks", "dlse", "delta", "weight", "dsinks")
    found = {name: getattr(op, name) for name in names if hasattr(op, name)}
    found |= dict(zip(("dlse",), op.dlse, strict=False))
    return found if len(op.dlse) else {name: x for name, x in found.items() if name != "dlse"}


def _misfit(op: DeltaOp | SinkDeltaOp, known: Mapping[str, Axes]) -> str:
    types = {name: value.type for name, value in tensors_of(op).items()}
    axes = {name: known[name] for name in types}
    if misfit := rank_misfit(types, axes, types):
        return misfit
    element = str(op.o.type.element_type)
    if element not in WIDE_MLIR:
        return f"o elements of type {', '.join(WIDE_MLIR)}, got {element}"
    for name, kind in types.items():
        allowed = {"sinks": _SINK_TYPES, "o": (element,), "do": (element,)}.get(name, ("f32",))
        if str(kind.element_type) not in allowed:
            return f"{name} elements of type {', '.join(allowed)}, got {kind.element_type}"
    return shape_misfit(types, axes, ("heads", "v_head_dim"))


def make_delta(o: ir.Value, do: ir.Value, lse: ir.Value, *dlse: ir.Value) -> DeltaOp:
    """Builds an `attn.delta` at the insertion point; operands as `DeltaOp` says."""
    return DeltaOp(lse.type, o, do, lse, list(dlse))


def make_sink_delta(
    o: ir.Value, do: ir.Value, lse: ir.Value, sinks: ir.Value, *dlse: ir.Value
) -> SinkDeltaOp:
    """Builds an `attn.sink_delta` at the insertion point; operands as `SinkDeltaOp` says."""
    batch, heads, sq = lse.type.shape
    rows = ir.RankedTensorType.get([batch, sq, heads, 1], lse.type.element_type)
    return SinkDeltaOp(lse.type, lse.type, rows, o, do, lse, sinks, list(dlse))
