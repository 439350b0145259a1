"""The launches that make numbers of rows for gradients, and sum them up.

The first one makes delta of each row and, with sinks, what the kernels of gradients need of the
sink: the LSE that contains it, or the part of each row that it leaves. Rows do not depend on each
other, so there a ragged batch is one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from attn_mlir.api.plan import Allocation, PlanView, Step
from attn_mlir.compiling.backward.gradients import DeltaSpec
from attn_mlir.compiling.backward.mla_gradients import MlaGradientsRequest
from attn_mlir.compiling.backward.row_sums import DTYPES as SINK_DTYPES
from attn_mlir.compiling.backward.row_sums import SinkDeltaSpec, SumPartsSpec, SumRowsSpec
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.workspace import ROW_WEIGHTS
from attn_mlir.runtime.call.tensors import TensorView, view

__all__ = ["SINK_DTYPES", "Rows", "rows_of", "sums_of_sinks"]
DELTA, WEIGHT, PARTS, DSINKS = "delta", "weight", "dsinks_of_rows", "dsinks"


class Rows(NamedTuple):
    """The launch that makes numbers of rows.

    Attributes:
      step: the launch.
      arguments: what it makes, as arguments of the kernels of gradients.
      workspace: the memory of these.
      dsinks: the gradient of the sinks, if there are any; see `sums_of_sinks`.
    """

    step: Step
    arguments: Mapping[str, object]
    workspace: list[Allocation]
    dsinks: Allocation


def rows_of(
    views: Mapping[str, TensorView], attention: MhaSpec | MlaGradientsRequest, sinks: object | None
) -> Rows:
    """The launch for these operands.

    Args:
      views: `o`, `do`, `lse`, and `dlse` if the LSE has a gradient.
      sinks: an array [heads], or None.
    """
    options: dict[str, Any] = {
        "heads": attention.heads,
        "v_head_dim": attention.v_head_dim,
        "dtype": attention.dtype,
        "dlse": "f32" if "dlse" in views else None,
    }
    given: dict[str, TensorView] = dict(views)
    numbers = views["lse"].shape
    memory = {DELTA: Allocation(DELTA, "f32", numbers)}
    spec, sums = DeltaSpec(**options), Allocation(DSINKS, "f32", ())
    if sinks is not None:
        given["sinks"] = view(sinks, "sinks")
        dtype = given["sinks"].dtype
        spec = SinkDeltaSpec(**options, sinks=dtype)
        memory["weight"] = Allocation(WEIGHT, "f32", numbers)
        memory["dsinks"] = Allocation(PARTS, "f32", (*views["o"].shape[:-1], 1))
        sums = Allocation(DSINKS, dtype, (attention.heads,))
    is_ragged = attention.lengths.ragged_q
    given = {x.name: given[x.name] for x in spec.tensors if x.role == "in"}
    if is_ragged:
        given = {name: x if name == "sinks" else _as_batch(x) for name, x in given.items()}
    made = {
        name: PlanView(x.name, (1, *x.shape) if is_ragged else x.shape)
        for name, x in memory.items()
    }
    arguments: dict[str, object] = {DELTA: PlanView(DELTA, numbers)}
    if sinks is not None:
        name = ROW_WEIGHTS if "dlse" in views else "lse"
        arguments[name] = PlanView(WEIGHT, numbers)
    return Rows(Step(spec, {**given, **made}), arguments, [*memory.values()], sums)


def sums_of_sinks(
    rows: Rows, attention: MhaSpec, arguments: Mapping[str, object], batch: int
) -> tuple[list[Step], Allocation]:
    """The launches that sum up the parts of all rows of a head in the gradient of its sink, first
    those of each sequence; and the memory between them.

    Args:
      arguments: the arrays and scalars of lengths, by name; may have others.
      batch: number of sequences.
    """
    parts = next(x for x in rows.workspace if x.name == PARTS)
    lengths = attention.lengths
    of_queries = Lengths(ragged_q=lengths.ragged_q, used_q=lengths.used_q)
    spec = SumRowsSpec(heads=attention.heads, lengths=of_queries)
    sums = Allocation(f"{DSINKS}_of_sequences", "f32", (batch, attention.heads))
    views = {"rows": PlanView(PARTS, parts.shape), "sums": PlanView(sums.name, sums.shape)}
    indices = {x.name: arguments[x.name] for x in spec.index_operands}
    together = {"parts": views["sums"], "sums": PlanView(DSINKS, rows.dsinks.shape)}
    steps = [
        Step(spec, {**views, **indices}),
        Step(SumPartsSpec(dtype=rows.dsinks.dtype), together),
    ]
    return steps, sums


def _as_batch(tensor: TensorView) -> TensorView:
    """A tensor as the only one of a batch."""
    whole = tensor.shape[0] * tensor.strides[0]
    return tensor.reshaped((1, *tensor.shape), (whole, *tensor.strides))
