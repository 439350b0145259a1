"""The configuration of attention with S and O in tensor memory, as its kernel reads it."""

from dataclasses import dataclass

from attn_mlir.schedules.attention.tensor_memory.storage import Stages
from attn_mlir.schedules.core.config import Config


@dataclass(frozen=True)
class MhaConfig(Config):
    """Tiles and registers of one attention operation.

    Attributes:
      softmax_registers, correction_registers, other_registers: per thread, by `setmaxnreg`;
        q_tiles x softmax + correction + other is at most what a CTA owns (`register_pool`).
      num_qk_stages: parts of a tile of keys, by columns, each with a slot and barriers of its own;
        Q K^T begins with the first one. With several, half of `kv_stages` are tiles of keys, the
        others values.
      num_pv_stages: parts of a tile of P, by columns, each with barriers of its own; P V begins
        with the first one.
      ordered_softmax: 1 where the softmax groups of two query tiles weigh their scores one after
        the other.
    """

    softmax_registers: int = 192
    correction_registers: int = 80
    other_registers: int = 48
    num_qk_stages: int = 1
    num_pv_stages: int = 1
    ordered_softmax: int = 0

    @property
    def stages(self) -> Stages:
        """The stages inside products."""
        return Stages(self.num_qk_stages, self.num_pv_stages, bool(self.ordered_softmax))
