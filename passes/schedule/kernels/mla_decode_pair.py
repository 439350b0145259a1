"""From `attn.mla_decode` of rows that lists name, 128 heads, to a `ws.kernel`: a query in a pair of CTAs.

The roles are those of sparse latent attention in pairs (`sparse_mla_pair`); what a work tile is, and where
its results go, is that of decoding (`parts.sparse_problem.SparseDecode`).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.schedule.entries import CONFIG
from attn_mlir.passes.schedule.parts.absorbed_pair import PairSlots
from attn_mlir.passes.schedule.parts.decode_kernel import listed_kernel
from attn_mlir.passes.schedule.registry import register
from attn_mlir.passes.target.limits import HALF_ROWS, Target
from attn_mlir.passes.target.tiling import PAIR_DECODE

from .mla_decode import MlaDecode
from .sparse_mla import is_for_pairs
from .sparse_mla_pair import PairConfig, emit_pair_roles


@register
class MlaDecodePair(MlaDecode):
    """Latent attention after absorption, of 128 heads over the rows that lists name."""

    name: ClassVar[str] = PAIR_DECODE

    def takes(self, op: attn.MlaDecodeOp, target: Target) -> bool:
        """Lists, and what pairs have a kernel for."""
        return op.is_listed and is_for_pairs(op)

    def configure(self, op: attn.MlaDecodeOp, target: Target, options: Mapping[str, Any]) -> None:
        """Fixed tiles.

        Raises:
          VerifyError: an operation without a kernel.
        """
        if not self.takes(op, target):
            raise op_error(op, "has a kernel of pairs for lists and multiples of 128 heads alone")
        slots = PairSlots.of(op.head_dim, ws.element_bits(op.element_type))
        chosen: dict[str, Any] = {"kv_stages": slots.keys, "packed_heads": HALF_ROWS}
        op.attributes[CONFIG] = PairConfig(**chosen | PairConfig.given(op)).to_attr()

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """As `MlaDecode.build`."""
        with listed_kernel(function, op, PairConfig, ctas=ws.PAIR) as (kernel, listed):
            emit_pair_roles(listed)
        return kernel
