"""From `attn.mla_kv_gradients` and `attn.mla_q_gradients` to the kernels of gradients of attention.

Only copies differ: a tile of queries or keys is filled from two tensors, and a gradient of it is
stored to two. The columns of each are a product, and a ring, of their own, so that those of k_rope
leave as f32, which a further launch sums up over heads.

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
