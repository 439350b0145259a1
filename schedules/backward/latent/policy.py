"""The policies of gradients of latent attention: as for attention, but rows are in two tensors."""

from typing import ClassVar

from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import WIDE
from attn_mlir.schedules.backward.policy import (
    MOST_COLUMNS,
    GradientsPolicy,
    KvGradientsPolicy,
    QGradientsPolicy,
    row_columns,
)
from attn_mlir.schedules.backward.tensor_memory.policy import (
    TensorKvGradientsPolicy,
    TensorQGradientsPolicy,
)
from attn_mlir.schedules.policy.base import Claims, first_mismatch
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import multiple_of
from attn_mlir.schedules.policy.refusal import Mismatch

NOPE_STEP = 64  # columns of a 128-byte line of a tile; rope begins at a line
ROPE_STEP = 16  # K extent of a 16-bit matrix product

KV_GRADIENTS, Q_GRADIENTS = "mla_kv_gradients", "mla_q_gradients"


class _LatentGradientsPolicy(GradientsPolicy):
    """Gradients of rows of nope and rope."""

    kernel: ClassVar[str] = "kernel"
    claims: ClassVar[Claims] = Claims(types=WIDE, most=(MOST_COLUMNS, MOST_COLUMNS))

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of other gradients; nope must fill whole lines, and rope whole matrix products."""
        assert facts.rope is not None
        checks = [
            ("nope_dim", facts.head_dim, multiple_of(NOPE_STEP)),
            ("rope_dim", facts.rope.columns, multiple_of(ROPE_STEP)),
            ("nope_dim + rope_dim", row_columns(facts), multiple_of(ROPE_STEP, most=MOST_COLUMNS)),
        ]
        return first_mismatch(checks) or super().mismatch(facts, target)


class LatentKvGradientsPolicy(_LatentGradientsPolicy, KvGradientsPolicy):
    """Gradients of keys and values, with queries streaming past them."""

    name: ClassVar[str] = "mla-kv-gradients"
    operation: ClassVar[str] = KV_GRADIENTS


class LatentQGradientsPolicy(_LatentGradientsPolicy, QGradientsPolicy):
    """Gradients of queries, with keys and values streaming past them."""

    name: ClassVar[str] = "mla-q-gradients"
    operation: ClassVar[str] = Q_GRADIENTS


class LatentTensorKvGradientsPolicy(_LatentGradientsPolicy, TensorKvGradientsPolicy):
    """Gradients of keys and values, which accumulate in tensor memory."""

    name: ClassVar[str] = "mla-kv-gradients-tensor"
    operation: ClassVar[str] = KV_GRADIENTS


class LatentTensorQGradientsPolicy(_LatentGradientsPolicy, TensorQGradientsPolicy):
    """Gradients of queries, which accumulate in tensor memory."""

    name: ClassVar[str] = "mla-q-gradients-tensor"
    operation: ClassVar[str] = Q_GRADIENTS


LATENT_KV_GRADIENTS, LATENT_Q_GRADIENTS = LatentKvGradientsPolicy(), LatentQGradientsPolicy()
LATENT_TENSOR_KV_GRADIENTS = LatentTensorKvGradientsPolicy()
LATENT_TENSOR_Q_GRADIENTS = LatentTensorQGradientsPolicy()
