"""The requests for sums along rows, and over them, that gradients of sinks and tensors need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.backward.gradients import DeltaSpec
from attn_mlir.compiling.options import MAX_HEADS
from attn_mlir.compiling.request import Request, option, request
from attn_mlir.compiling.sequences import SequenceRequest
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.schedules.policy.facts import Facts

DTYPES = ("f32", "bf16", "f16")


@request
class SinkDeltaSpec(DeltaSpec):
    """As `DeltaSpec`, of attention with sinks: with the weight of rows and the gradient of sinks.

    Args:
      heads, v_head_dim, dtype, dlse: as of `DeltaSpec`.
      sinks: dtype of the sinks.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "sink_delta"

    sinks: str = option(converter=partial(options.one_of, "sinks", DTYPES), default="f32")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those of `DeltaSpec` with the sinks; the weight of rows and their parts in dsinks."""
        *given, delta = super().operands
        given.insert(3, Operand("sinks", self.sinks, (self.heads,)))
        weight = Operand("weight", "f32", delta.extents, "out")
        dsinks = Operand("dsinks", "f32", ("batch", "sq", self.heads, 1), "out")
        return (*given, delta, weight, dsinks)

    @property
    def kernel_name(self) -> str:
        """As of `DeltaSpec`, with the dtype of the sinks."""
        return f"{super().kernel_name}_sinks_{self.sinks}"

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.sink_delta`."""
        from attn_mlir.dialect.attn import make_sink_delta

        op = make_sink_delta(*arguments.values())
        return {name: getattr(op, name) for name in ("delta", "weight", "dsinks")}


@request
class SumRowsSpec(SequenceRequest):
    """The sums of a number of each query, by sequences and heads, for any batch and lengths.

    Args:
      heads: of the queries.
      mask, lengths, cache: `lengths` says which arrays tell the lengths of sequences of queries.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "sum_rows"

    heads: int = option(converter=partial(integer, "heads", least=1, most=MAX_HEADS))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The numbers, the sums, and the lengths of sequences."""
        ragged = self.lengths.ragged_q
        rows, sums = (("total_q",), "sequences") if ragged else (("batch", "sq"), "batch")
        return (
            Operand("rows", "f32", (*rows, self.heads, 1)),
            Operand("sums", "f32", (sums, self.heads), "out"),
            *self.index_operands,
        )

    @property
    def kernel_name(self) -> str:
        """The name of the kernel, by its static sizes."""
        return "_".join(filter(None, ("attn_sum_rows", self.lengths.short_name, f"h{self.heads}")))

    def problem(self) -> Facts:
        """The facts of the numbers."""
        return _facts(self.operation, self.heads, "f32")

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.sum_rows`."""
        from attn_mlir.dialect.attn import make_sum_rows
        from attn_mlir.dialect.attn.builder import type_of
        from attn_mlir.dialect.attn.storage import sequences_view

        rows = sequences_view(arguments["rows"], self.lengths, arguments, of_keys=False)
        sums = self.operand("sums")
        assert sums is not None
        return {"sums": make_sum_rows(rows, type_of(sums)).sums}


@request
class SumPartsSpec(Request):
    """Sums along the first of two dimensions, of any extents.

    Args:
      dtype: of the sums: `f32`, `bf16` or `f16`.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "sum_parts"

    dtype: str = option(converter=partial(options.one_of, "dtype", DTYPES), default="f32")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The parts, and their sums."""
        return (
            Operand("parts", "f32", ("parts", "elements")),
            Operand("sums", self.dtype, ("elements",), "out"),
        )

    @property
    def kernel_name(self) -> str:
        """The name of the kernel: all that is static."""
        return f"attn_sum_parts_{self.dtype}"

    def problem(self) -> Facts:
        """Facts of the parts."""
        return _facts(self.operation, 1, self.dtype)

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.sum_parts`."""
        from attn_mlir.dialect.attn import make_sum_parts
        from attn_mlir.dialect.attn.builder import type_of

        return {"sums": make_sum_parts(arguments["parts"], type_of(self.operands[1])).sums}


def _facts(operation: str, heads: int, result: str) -> Facts:
    """The facts of sums of f32."""
    return Facts(
        operation=operation,
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        v_head_dim=1,
        q_type="f32",
        kv_type="f32",
        out_type=result,
    )
