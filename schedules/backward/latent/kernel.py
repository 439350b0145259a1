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

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.kernel import (
    GradientConfig,
    GradientsSchedule,
    gradients_of,
    storages_of,
)
from attn_mlir.schedules.backward.latent.policy import (
    LATENT_KV_GRADIENTS,
    LATENT_Q_GRADIENTS,
    LATENT_TENSOR_KV_GRADIENTS,
    LATENT_TENSOR_Q_GRADIENTS,
)
from attn_mlir.schedules.backward.policy import GradientsPolicy
from attn_mlir.schedules.backward.tensor_memory.kernel import TensorGradients
from attn_mlir.schedules.core.direction import Direction
from attn_mlir.schedules.core.mask_tiles import MaskTiles
from attn_mlir.schedules.core.modifier import Unmodified
from attn_mlir.schedules.kernel import KEY_DIMS, LSE_DIMS, QUERY_DIMS, opened, result_names
from attn_mlir.schedules.registry import register

QUERIES, KEYS = ("q_nope", "q_rope", "do"), ("k_nope", "k_rope", "v")
TENSOR_DIMS = {
    **dict.fromkeys(("q_nope", "q_rope"), QUERY_DIMS),
    **dict.fromkeys(KEYS, KEY_DIMS),
    "do": QUERY_DIMS,
    **dict.fromkeys(("lse", "delta"), LSE_DIMS),
}


@contextmanager
def latent_gradients_kernel(
    function: Any,
    op: attn.MlaKvGradientsOp | attn.MlaQGradientsOp,
    direction: Direction,
    kind: type[GradientConfig],
) -> Generator[tuple[ws.KernelOp, Gradients]]:
    """The kernel of a function of one operation; what is built inside is its body.

    Args:
      direction: what stands still.
      kind: of the operation's configuration.

    Raises:
      VerifyError: as of `GradientsSchedule.build`.
    """
    storages = storages_of(op, QUERIES, KEYS)
    of_queries, _ = direction.ordered(QUERY_DIMS, KEY_DIMS)
    dims = TENSOR_DIMS | dict.fromkeys(result_names(op), of_queries)
    with opened(function, op, dims, kind) as opening:
        kernel, tensors, captured, _ = opening
        yield (
            kernel,
            gradients_of(
                op,
                opening,
                direction,
                q=(tensors["q_nope"], tensors["q_rope"]),
                k=tensors["k_nope"],
                k_rope=tensors["k_rope"],
                query_sequences=storages["q_nope"].queries(tensors["q_nope"], captured),
                key_sequences=storages["k_nope"].keys(tensors["k_nope"], captured).sequences,
                modifier=Unmodified(),
                make_column_tiles=MaskTiles,
            ),
        )


@register
class LatentKvGradients(GradientsSchedule):
    """Gradients of keys and values, in the registers of the groups that multiply."""

    policy: ClassVar[GradientsPolicy] = LATENT_KV_GRADIENTS
    opened = staticmethod(latent_gradients_kernel)


@register
class LatentQGradients(GradientsSchedule):
    """Gradients of queries, in the registers of the groups that multiply."""

    policy: ClassVar[GradientsPolicy] = LATENT_Q_GRADIENTS
    opened = staticmethod(latent_gradients_kernel)


@register
class LatentTensorKvGradients(TensorGradients):
    """Gradients of keys and values, in tensor memory."""

    policy: ClassVar[GradientsPolicy] = LATENT_TENSOR_KV_GRADIENTS
    opened = staticmethod(latent_gradients_kernel)


@register
class LatentTensorQGradients(TensorGradients):
    """Gradients of queries, in tensor memory."""

    policy: ClassVar[GradientsPolicy] = LATENT_TENSOR_Q_GRADIENTS
    opened = staticmethod(latent_gradients_kernel)
