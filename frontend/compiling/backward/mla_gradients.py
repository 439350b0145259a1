"""The requests for the kernels of the gradients of latent attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from attn_mlir.compiling.backward.gradients import GRADIENT_DTYPE, check_tensors
from attn_mlir.compiling.latent import NOPE_DIM, ROPE_DIM, V_HEAD_DIM, check_columns
from attn_mlir.compiling.request import request
from attn_mlir.compiling.sequences import HeadsRequest
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.schedules.policy.facts import Facts, Rope


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

    nope_dim: int = NOPE_DIM
    rope_dim: int = ROPE_DIM
    v_head_dim: int = V_HEAD_DIM
    dtype: str = GRADIENT_DTYPE

    def completed(self) -> Mapping[str, object]:
        """The default of `v_head_dim`: `nope_dim`."""
        return {**super().completed(), "v_head_dim": self.nope_dim}

    def check_together(self) -> None:
        """Refuses groups of unequal sizes, caches, and rows that are too long.

        Raises:
          SpecError: names the option.
        """
        self.check_heads()
        check_tensors(self)
        check_columns(self.nope_dim, self.rope_dim)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The parts of Q, K and V, then dO, LSE, delta and the scale; the results; the lengths."""
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
        """The facts of the attention whose gradients are computed."""
        return dataclasses.replace(
            self.attention_facts(self.nope_dim, self.v_head_dim, self.dtype),
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
    """The gradients of keys and values; the gradient of k_rope has one part for each kv head.

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
