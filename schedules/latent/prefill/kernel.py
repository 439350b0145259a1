"""From `attn.mla` to a `ws.kernel`: the kernels of attention with keys of two tensors.

Roles, rings and the order of products are those of `attention.tensor_memory` and
`attention.warpgroups`; only the loads of Q and K differ. A slot of Q is filled from q_nope and
q_rope, a slot of K from k_nope and k_rope, each with one barrier that counts the bytes of all its
copies:

```text
q  [rows, nope + rope]    | q_nope | q_rope |     once for each query tile
k  [tile_n, nope + rope]  | k_nope | k_rope |     one product of depth nope + rope
v  [tile_n, v_head_dim]   | v |                   in the front of a slot of k, if they share one
```
Keys and values share a ring or have one each, whichever gives more slots. If too few slots of whole
keys fit, rope has a separate ring, and scores are two products; see `storage`. So has rope of 8
bits under 16: the role `widen` fills its ring, one warp, or four with one query tile (`fp8_rope`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.tensor_memory import kernel as tensor_memory
from attn_mlir.schedules.attention.tensor_memory.config import MhaConfig
from attn_mlir.schedules.attention.tensor_memory.kernel import WARPS_PER_GROUP
from attn_mlir.schedules.attention.tensor_memory.storage import Storage
from attn_mlir.schedules.attention.warpgroups import kernel as warpgroups
from attn_mlir.schedules.attention.warpgroups.roles import RegisterStorage
from attn_mlir.schedules.core.problem import Problem, WorkTile
from attn_mlir.schedules.kernel import over_tiles
from attn_mlir.schedules.latent.prefill.arguments import latent_kernel
from attn_mlir.schedules.latent.prefill.fp8_rope import upcast_rope
from attn_mlir.schedules.latent.prefill.policy import LATENT, LATENT_WARPGROUPS
from attn_mlir.schedules.latent.prefill.storage import LatentStorage, TwoRings
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register


@dataclass(frozen=True)
class MlaConfig(MhaConfig):
    """The configuration of a latent attention.

    Attributes:
      rope_stages: slots of the ring of k_rope; 0 if it follows nope in a slot of K.
      value_stages: slots of the ring of values; 0 if they share slots of K.
      helper_registers: per thread, of a warpgroup that upcasts rope of 8 bits or loads scales; 0 if
        one of the single warps does.
    """

    rope_stages: int = 0
    value_stages: int = 0
    helper_registers: int = 0


@register
class MlaTensor:
    """Latent attention before absorption, with S and O in tensor memory."""

    policy: ClassVar[Policy] = LATENT

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: as `latent_kernel`.
        """
        config = MlaConfig.of(op)
        rope_stages, stages = config.rope_stages, config.stages
        with latent_kernel(function, op, MlaConfig) as (
            kernel,
            problem,
            source,
            fp8_rope,
            row_scales,
        ):
            if fp8_rope is not None:
                fp8_storage = LatentStorage(problem, rope_stages, stages, is_widened=True)
                roles = tensor_memory.roles_of(problem, config, fp8_storage, source)
                warps = _helper_warps(config)
                body = partial(upcast_rope, problem, fp8_rope, fp8_storage.rope, warps=warps)
                b.emit_roles([*roles, _helper("widen", problem, config, fp8_storage, body)])
                return kernel
            if rope_stages:
                storage = LatentStorage(problem, rope_stages, stages, row_scales)
            elif config.value_stages:
                storage = TwoRings(problem, config.value_stages, stages, row_scales)
            else:
                storage = Storage(problem, stages, row_scales)
            roles = tensor_memory.roles_of(problem, config, storage, source)
            if row_scales is not None:
                body = partial(row_scales.fill, problem)
                roles.append(_helper("scales", problem, config, storage, body))
            b.emit_roles(roles)
        return kernel


@register
class MlaRegisters:
    """Latent attention before absorption, with S, P and O in the registers of warpgroups."""

    policy: ClassVar[Policy] = LATENT_WARPGROUPS

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """As `MlaTensor.build`."""
        kind = warpgroups.RegisterConfig
        with latent_kernel(function, op, kind) as (kernel, problem, source, *_):
            storage = RegisterStorage(problem)
            b.emit_roles(warpgroups.roles_of(problem, kind.of(op), storage, source))
        return kernel


def _helper_warps(config: MlaConfig) -> int:
    """Warps of the helper role: a warpgroup, or the last free warp of the single roles'."""
    return WARPS_PER_GROUP if config.helper_registers else 1


def _helper(
    name: str,
    problem: Problem,
    config: MlaConfig,
    storage: Storage,
    body: Callable[[WorkTile], None],
) -> b.Role:
    """The helper role; `body` emits its part in a work tile."""
    own_registers = config.helper_registers
    return b.Role(
        name,
        over_tiles(problem, lambda tile, _: body(tile), claimed=storage.claimed),
        warps=_helper_warps(config),
        registers=own_registers or config.other_registers,
        begins_warpgroup=bool(own_registers),
    )
