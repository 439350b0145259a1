"""From `attn.mla_kv_gradients` and `attn.mla_q_gradients` to the kernels of gradients of attention.

Only the copies differ: two tensors fill a tile of queries or keys, and its gradient is stored to
two tensors. Each gradient has its own matrix product and its own ring, so that the parts of dk_rope
can be stored as f32, which a further launch sums over heads.

```text
k, q  [rows, nope + rope]  | nope of a head | rope, of keys that of all heads |
                  dS x | nope |  dS x | rope |
                  dk_nope, 16 bits       dk_rope, f32
```
"""

from typing import ClassVar

from attn_mlir.schedules.backward.kernel import GradientsSchedule
from attn_mlir.schedules.backward.latent.policy import (
    LATENT_KV_GRADIENTS,
    LATENT_Q_GRADIENTS,
    LATENT_TENSOR_KV_GRADIENTS,
    LATENT_TENSOR_Q_GRADIENTS,
)
from attn_mlir.schedules.backward.policy import GradientsPolicy
from attn_mlir.schedules.backward.tensor_memory.kernel import TensorGradients
from attn_mlir.schedules.registry import register


@register
class LatentKvGradients(GradientsSchedule):
    """Gradients of keys and values, in the registers of the groups that multiply."""

    policy: ClassVar[GradientsPolicy] = LATENT_KV_GRADIENTS


@register
class LatentQGradients(GradientsSchedule):
    """Gradients of queries, in the registers of the groups that multiply."""

    policy: ClassVar[GradientsPolicy] = LATENT_Q_GRADIENTS


@register
class LatentTensorKvGradients(TensorGradients):
    """Gradients of keys and values, in tensor memory."""

    policy: ClassVar[GradientsPolicy] = LATENT_TENSOR_KV_GRADIENTS


@register
class LatentTensorQGradients(TensorGradients):
    """Gradients of queries, in tensor memory."""

    policy: ClassVar[GradientsPolicy] = LATENT_TENSOR_Q_GRADIENTS
