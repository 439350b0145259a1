"""From `attn.kv_gradients` and `attn.q_gradients` to kernels that accumulate in tensor memory.

A work tile is 128 keys of a head, or 128 queries. Warps 0-3 and 4-7 are the groups that compute the
two halves of the columns of each tile of scores; one warp each issues the products, stores, loads,
and streams the numbers of queries.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.kernel import GradientConfig, GradientsSchedule
from attn_mlir.schedules.backward.policy import GradientsPolicy
from attn_mlir.schedules.backward.roles import load, store_gradients
from attn_mlir.schedules.backward.tensor_memory.compute import compute
from attn_mlir.schedules.backward.tensor_memory.policy import (
    PARTS,
    TENSOR_KV_GRADIENTS,
    TENSOR_Q_GRADIENTS,
)
from attn_mlir.schedules.backward.tensor_memory.products import scores, sums
from attn_mlir.schedules.backward.tensor_memory.storage import TensorGradientStorage
from attn_mlir.schedules.core.problem import WorkTile
from attn_mlir.schedules.kernel import over_tiles
from attn_mlir.schedules.registry import register


@dataclass(frozen=True)
class TensorGradientConfig(GradientConfig):
    """How gradients are computed in tensor memory, with the defaults of that."""

    tile_m: int = 128
    q_tiles: int = 1
    tile_n: int = 128
    attend_registers: int = 200
    other_registers: int = 104


class TensorGradients(GradientsSchedule):
    """A schedule of gradients in tensor memory."""

    config: ClassVar[type[GradientConfig]] = TensorGradientConfig

    def roles(self, gradients: Gradients, config: Any, target: Target) -> list[b.Role]:
        """As of every schedule of gradients."""
        return _roles(gradients, config, TensorGradientStorage(gradients, target))


@register
class TensorKvGradients(TensorGradients):
    """Gradients of keys and values, which stand still."""

    policy: ClassVar[GradientsPolicy] = TENSOR_KV_GRADIENTS


@register
class TensorQGradients(TensorGradients):
    """Gradients of queries, which stand still."""

    policy: ClassVar[GradientsPolicy] = TENSOR_Q_GRADIENTS


def _roles(
    gradients: Gradients, config: GradientConfig, storage: TensorGradientStorage
) -> list[b.Role]:
    work = partial(over_tiles, gradients.problem)
    behind = partial(b.Role, registers=config.other_registers)
    single = partial(behind, lanes=1)
    roles = [
        b.Role(
            "compute",
            work(lambda tile, group: compute(gradients, storage, tile, group)),
            warps=PARTS * WARPGROUP_WARPS,
            groups=PARTS,
            registers=config.attend_registers,
        ),
        single("scores", work(lambda tile, _: scores(gradients, storage, tile))),
        single("sums", work(lambda tile, _: sums(gradients, storage, tile))),
        single("copy", work(lambda tile, _: _copy(gradients, storage, tile))),
    ]
    if storage.numbers.stream:
        roles.append(behind("rows", work(lambda tile, _: storage.numbers.fill(tile))))
    return roles


def _copy(gradients: Gradients, storage: TensorGradientStorage, tile: WorkTile) -> None:
    """Loads all that a work tile reads, then stores its gradients."""
    load(gradients, storage, tile)
    store_gradients(gradients, storage, tile)
