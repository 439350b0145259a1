"""The request for the kernel that combines the partial results of splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.options import HEAD_DIM_STEP, MAX_HEADS
from attn_mlir.compiling.request import Request, option, request
from attn_mlir.compiling.spec import LSE_TERMS
from attn_mlir.dialect.attn.latent.columns import LATENT_COLUMNS
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.schedules.policy.facts import Facts

OUT_DTYPES = ("bf16", "f16", "f32")
SINK_DTYPES = ("bf16", "f16", "f32")
MAX_V_DIM = LATENT_COLUMNS


def _dtype(name: str, value: str | None, *, allowed: Sequence[str], otherwise: str = "") -> Any:
    """Checks a dtype and returns it.

    Raises:
      SpecError: it is not an allowed one.
    """
    if value not in allowed:
        raise SpecError(
            f"{name} must be one of {', '.join(allowed)}{otherwise}, got {shown(value, 40)}"
        )
    return value


@request
class CombineSpec(Request):
    """Combines the partial results of splits, for any batch, lengths and number of splits.

    Args:
      heads: query heads.
      v_head_dim: elements per head of O, up to 512, the values of a latent cache.
      out_dtype: dtype of O: `bf16`, `f16` or `f32`.
      sinks: dtype of the sinks; None without sinks.
      return_lse: whether the kernel takes and writes LSE.
      heads_along_rows: whether tiles have many heads of one query, which suits few queries, instead
        of many queries of one head.
      lse_terms: 1, or 2 for lses [2, ...], terms to be added, as the kernel for parts writes them.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "combine"

    heads: int = option(converter=partial(integer, "heads", least=1, most=MAX_HEADS))
    v_head_dim: int = option(
        converter=partial(options.head_dim, "v_head_dim", step=HEAD_DIM_STEP, most=MAX_V_DIM)
    )
    out_dtype: str = option(converter=partial(_dtype, "out_dtype", allowed=OUT_DTYPES))
    sinks: str | None = option(
        converter=partial(_dtype, "sinks", allowed=SINK_DTYPES, otherwise=" or None"), default=None
    )
    return_lse: bool = option(converter=partial(flag, "return_lse"), default=False)
    heads_along_rows: bool = option(converter=partial(flag, "heads_along_rows"), default=False)
    lse_terms: int = option(
        converter=partial(integer, "lse_terms", least=1, most=LSE_TERMS), default=1
    )

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The partial results and their LSEs, the sinks; O and LSE."""
        terms = (LSE_TERMS,) if self.lse_terms > 1 else ()
        rows = ("batch", "sq", self.heads, self.v_head_dim)
        sinks = Operand("sinks", self.sinks or "", (self.heads,))
        return (
            Operand("parts", "f32", ("splits", *rows)),
            Operand("lses", "f32", (*terms, "splits", *self._lse.extents)),
            *((sinks,) if self.sinks is not None else ()),
            Operand("o", self.out_dtype, rows, "out"),
            *((self._lse,) if self.return_lse else ()),
        )

    @property
    def _lse(self) -> Operand:
        return Operand("lse", "f32", ("batch", self.heads, "sq"), "out")

    @property
    def kernel_name(self) -> str:
        """The dtype of O, the heads and their size."""
        return f"attn_combine_{self.out_dtype}_h{self.heads}_d{self.v_head_dim}"

    def problem(self) -> Facts:
        """The facts of the partial results, which are f32."""
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=0,
            v_head_dim=self.v_head_dim,
            q_type="f32",
            kv_type="f32",
            out_type=self.out_dtype,
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.combine`."""
        from attn_mlir.dialect.attn.builder import emit_combine

        o = self.operand("o")
        assert o is not None
        op = emit_combine(arguments, o=o, lse=self._lse, heads_along_rows=self.heads_along_rows)
        return {"o": op.o, "lse": op.lse}
