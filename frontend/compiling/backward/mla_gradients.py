"""The requests for the kernels that gradients of latent attention are made by."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import WIDE_DTYPES, dtype_name
from attn_mlir.compiling.latent import NOPE_STEP, ROPE_STEP
from attn_mlir.compiling.options import HEAD_DIM_STEP
from attn_mlir.compiling.request import option, request
from attn_mlir.compiling.sequences import HeadsRequest
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.schedules.policy.facts import Facts, Rope
from attn_mlir.schedules.policy.tiling import MAX_HEAD_DIM


@request
class MlaGradientsRequest(HeadsRequest):
    """Gradients of latent attention before absorption, given that of its output.

    Args:
      nope_dim: columns of q_nope and k_nope, a multiple of 64.
      rope_dim: columns of q_rope and k_rope, a multiple of 16; at most 256 with those of nope.
      v_head_dim: columns of v and O, a multiple of 8; `nope_dim` when left out.
      dtype: of the operands and results: `bf16` or `f16`.

    Raises:
      SpecError: a value that has no kernel.
    """

    results: ClassVar[tuple[str, ...]]

    nope_dim: int = option(converter=partial(options.head_dim, "nope_dim", step=NOPE_STEP))
    rope_dim: int = option(converter=partial(options.head_dim, "rope_dim", step=ROPE_STEP))
    v_head_dim: int = option(
        converter=partial(options.head_dim, "v_head_dim", step=HEAD_DIM_STEP), default=None
    )
    dtype: str = option(
        converter=partial(dtype_name, argument="dtype", allowed=WIDE_DTYPES), default="bf16"
    )

    def completed(self) -> Mapping[str, object]:
        """Values of the size of nope."""
        return {**super().completed(), "v_head_dim": self.nope_dim}

    def check_together(self) -> None:
        """Refuses groups of unequal sizes, caches, and rows that are too long.

        Raises:
          SpecError: names the option.
        """
        self.check_heads()
        if self.cache is not None:
            raise SpecError(no_kernel("cache", "gradients are of keys in tensors of their own"))
        if (columns := self.nope_dim + self.rope_dim) > MAX_HEAD_DIM:
            sizes = f"nope_dim {self.nope_dim} and rope_dim {self.rope_dim}"
            reason = f"together they may be up to {MAX_HEAD_DIM}, got {columns}"
            raise SpecError(no_kernel(sizes, reason, many=True))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K and V by their parts, the gradient of O, two numbers of each row, the scale;
        results and lengths.
        """
        (*lead, rows), rows_q, rows_k = self.rows_q, self.rows_q, self.rows_k
        columns = {
            "q_nope": (*rows_q, self.heads, self.nope_dim),
            "q_rope": (*rows_q, self.heads, self.rope_dim),
            "k_nope": (*rows_k, self.kv_heads, self.nope_dim),
            "k_rope": (*rows_k, 1, self.rope_dim),
            "v": (*rows_k, self.kv_heads, self.v_head_dim),
            "do": (*rows_q, self.heads, self.v_head_dim),
        }
        results = {f"d{name}": (self.dtype, extents) for name, extents in columns.items()}
        results["dk_rope_parts"] = "f32", (*rows_k, self.kv_heads, self.rope_dim)
        return (
            *(Operand(name, self.dtype, extents) for name, extents in columns.items()),
            *(Operand(name, "f32", (*lead, self.heads, rows)) for name in ("lse", "delta")),
            Operand("scale", "f32", role="scalar"),
            *(Operand(name, *results[name], "out") for name in self.results),
            *self.index_operands,
        )

    @property
    def kernel_name(self) -> str:
        """The static options."""
        heads = f"h{self.heads}k{self.kv_heads}"
        words = filter(None, (self.mask_name, self.lengths.short_name, self.dtype, heads))
        sizes = f"d{self.nope_dim}r{self.rope_dim}v{self.v_head_dim}"
        return f"attn_{self.operation}_{'_'.join(words)}_{sizes}"

    def problem(self) -> Facts:
        """The facts of the attention that they are gradients of."""
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.nope_dim,
            v_head_dim=self.v_head_dim,
            q_type=self.dtype,
            kv_type=self.dtype,
            out_type=self.dtype,
            mask=self.mask,
            ragged_q=self.lengths.ragged_q,
            padded_q=self.lengths.used_q and not self.lengths.ragged_q,
            rope=Rope(self.rope_dim, self.dtype, self.dtype),
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One operation of the dialect."""
        from attn_mlir.dialect.attn import MlaKvGradientsOp, MlaQGradientsOp, make_mla_gradients
        from attn_mlir.dialect.attn.backward.mla_gradients import OPERANDS
        from attn_mlir.dialect.attn.storage import sequences_view

        stored = (
            sequences_view(arguments[name], self.lengths, arguments, of_keys=name[0] in "kv")
            for name in OPERANDS
        )
        rest = (arguments[name] for name in ("lse", "delta", "scale"))
        kind = MlaQGradientsOp if "dq_nope" in self.results else MlaKvGradientsOp
        op = make_mla_gradients(kind, *stored, *rest, mask=self.mask)
        return {name: getattr(op, name) for name in self.results}


@request
class MlaKvGradientsSpec(MlaGradientsRequest):
    """The gradients of keys and values; that of k_rope in parts, one for each of their heads.

    Args:
      heads, kv_heads, nope_dim, rope_dim, v_head_dim, dtype: as of `MlaGradientsRequest`.
      mask, lengths, cache: as of `MlaGradientsRequest`.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "mla_kv_gradients"
    results: ClassVar[tuple[str, ...]] = ("dk_nope", "dk_rope_parts", "dv")


@request
class MlaQGradientsSpec(MlaGradientsRequest):
    """The gradients of queries.

    Args:
      heads, kv_heads, nope_dim, rope_dim, v_head_dim, dtype: as of `MlaGradientsRequest`.
      mask, lengths, cache: as of `MlaGradientsRequest`.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "mla_q_gradients"
    results: ClassVar[tuple[str, ...]] = ("dq_nope", "dq_rope")
