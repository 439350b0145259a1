"""The formulas that kernels are judged by, one file per operation, and the verdict."""

from attn_mlir.reference.gradients import AttentionGradients, attention_backward_f64
from attn_mlir.reference.lengths import Sequence, sequences
from attn_mlir.reference.mha import Attention, attention_f64, attention_yardstick
from attn_mlir.reference.mla import mla_backward_f64, mla_f64, mla_yardstick
from attn_mlir.reference.mla_decode import (
    check_mla_decode,
    mla_decode_f64,
    mla_decode_yardstick,
)
from attn_mlir.reference.verdict import Comparison, check_attention, compare

__all__ = [
    "Attention",
    "AttentionGradients",
    "Comparison",
    "Sequence",
    "attention_backward_f64",
    "attention_f64",
    "attention_yardstick",
    "check_attention",
    "check_mla_decode",
    "compare",
    "mla_backward_f64",
    "mla_decode_f64",
    "mla_decode_yardstick",
    "mla_f64",
    "mla_yardstick",
    "sequences",
]
