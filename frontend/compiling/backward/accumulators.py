"""The requests for memory that rows are added to: its zeros before, and rounded sums after."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import WIDE_DTYPES, dtype_name
from attn_mlir.compiling.options import HEAD_DIM_STEP, MAX_HEADS
from attn_mlir.compiling.request import Request, option, request
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.schedules.policy.facts import Facts


@request
class AccumulatorsRequest(Request):
    """Rows of f32 [batch, sq, heads, head_dim], for any batch and number of rows.

    Args:
      heads: of a row.
      head_dim: elements per head, a multiple of 8.

    Raises:
      SpecError: a value that has no kernel.
    """

    heads: int = option(converter=partial(integer, "heads", least=1, most=MAX_HEADS))
    head_dim: int = option(converter=partial(options.head_dim, "head_dim", step=HEAD_DIM_STEP))

    @property
    def _rows(self) -> tuple[int | str, ...]:
        return "batch", "sq", self.heads, self.head_dim

    def _facts(self, result: str) -> Facts:
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=0,
            v_head_dim=self.head_dim,
            q_type="f32",
            kv_type="f32",
            out_type=result,
        )


@request
class ZeroRowsSpec(AccumulatorsRequest):
    """Zeros in the place of rows.

    Args:
      heads: of a row.
      head_dim: elements per head, a multiple of 8.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "zero_rows"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The accumulators."""
        return (Operand("accum", "f32", self._rows, "out"),)

    @property
    def kernel_name(self) -> str:
        """The name of the kernel, by its static sizes."""
        return f"attn_zero_rows_h{self.heads}_d{self.head_dim}"

    def problem(self) -> Facts:
        """The facts of the rows."""
        return self._facts("f32")

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.zero_rows`."""
        from attn_mlir.dialect.attn import ZeroRowsOp
        from attn_mlir.dialect.attn.builder import type_of

        return {"accum": ZeroRowsOp(type_of(self.operands[0])).accum}


@request
class RoundRowsSpec(AccumulatorsRequest):
    """Rows times a number, rounded once.

    Args:
      heads: of a row.
      head_dim: elements per head, a multiple of 8.
      dtype: of the result: `bf16` or `f16`.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "round_rows"

    dtype: str = option(
        converter=partial(dtype_name, argument="dtype", allowed=WIDE_DTYPES), default="bf16"
    )

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The accumulators, the number, and what becomes of both."""
        return (
            Operand("accum", "f32", self._rows),
            Operand("scale", "f32", role="scalar"),
            Operand("rounded", self.dtype, self._rows, "out"),
        )

    @property
    def kernel_name(self) -> str:
        """The name of the kernel, by its static sizes."""
        return f"attn_round_rows_{self.dtype}_h{self.heads}_d{self.head_dim}"

    def problem(self) -> Facts:
        """The facts of the rows."""
        return self._facts(self.dtype)

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.round_rows`."""
        from attn_mlir.dialect.attn import make_round_rows
        from attn_mlir.dialect.attn.builder import type_of

        element = type_of(Operand("element", self.dtype, role="scalar"))
        return {"rounded": make_round_rows(*arguments.values(), element).rounded}
