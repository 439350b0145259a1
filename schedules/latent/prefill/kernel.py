"""From `attn.mla` to a `ws.kernel`: the kernels of attention over keys of two tensors.

Roles, rings and the order of products are those of `mha` and of `mha_registers`; only what fills
the slots of Q and K differs. A slot of Q is filled from q_nope and q_rope, a slot of K from k_nope
and k_rope, each with one barrier that counts the bytes of all its copies:

```text
q  [rows, nope + rope]    | q_nope | q_rope |     once for each query tile
k  [tile_n, nope + rope]  | k_nope | k_rope |     one product of depth nope + rope
v  [tile_n, v_head_dim]   | v |                   in the front of a slot of k, if they share one
```
Keys and values share a ring or have one each, as shared memory has room for more slots. Where it
has for too few of whole keys, rope has a ring of its own, and scores are two products; see
`latent_storage`. So it has where it is stored in 8 bits under 16: then `widen` fills it, the one
warp that is left of the warps of single roles, or four with one query tile (`narrow_rope`).
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
from attn_mlir.schedules.attention.warpgroups.roles import HeldStorage
from attn_mlir.schedules.core.problem import Problem, WorkTile
from attn_mlir.schedules.kernel import over_tiles
from attn_mlir.schedules.latent.prefill.arguments import latent_kernel
from attn_mlir.schedules.latent.prefill.narrow_rope import widen
from attn_mlir.schedules.latent.prefill.policy import LATENT, LATENT_WARPGROUPS
from attn_mlir.schedules.latent.prefill.storage import LatentStorage, TwoRings
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register


@dataclass(frozen=True)
class MlaConfig(MhaConfig):
    """How one latent attention is computed.

    Attributes:
      rope_stages: slots of the ring of rope of keys; 0 where it lies behind nope in a slot of K.
      value_stages: slots of the ring of values; 0 where they lie in slots of K.
      helper_registers: per thread, of the warps that widen rope of 8 bits, or read factors; 0 where
        one does, of the same group as the other single warps.
    """

    rope_stages: int = 0
    value_stages: int = 0
    helper_registers: int = 0


@register
class MlaTensor:
    """Latent attention before absorption, with S and O in tensor memory."""

    policy: ClassVar[Policy] = LATENT
    operation: ClassVar[type[Any]] = attn.MlaOp

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: as `latent_kernel`.
        """
        config = MlaConfig.of(op)
        apart, stages = config.rope_stages, config.stages
        with latent_kernel(function, op, MlaConfig) as (kernel, problem, source, narrow, factors):
            if narrow is not None:
                widened = LatentStorage(problem, apart, stages, is_widened=True)
                roles = tensor_memory.roles_of(problem, config, widened, source)
                warps = _helper_warps(config)
                body = partial(widen, problem, narrow, widened.rope, warps=warps)
                b.emit_roles([*roles, _helper("widen", problem, config, widened, body)])
                return kernel
            if apart:
                storage = LatentStorage(problem, apart, stages, factors)
            elif config.value_stages:
                storage = TwoRings(problem, config.value_stages, stages, factors)
            else:
                storage = Storage(problem, stages, factors)
            roles = tensor_memory.roles_of(problem, config, storage, source)
            if factors is not None:
                body = partial(factors.fill, problem)
                roles.append(_helper("factors", problem, config, storage, body))
            b.emit_roles(roles)
        return kernel


@register
class MlaRegisters:
    """Latent attention before absorption, with S, P and O in the registers of groups of threads."""

    policy: ClassVar[Policy] = LATENT_WARPGROUPS
    operation: ClassVar[type[Any]] = attn.MlaOp

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """As `MlaTensor.build`."""
        kind = warpgroups.HeldConfig
        with latent_kernel(function, op, kind) as (kernel, problem, source, *_):
            storage = HeldStorage(problem)
            b.emit_roles(warpgroups.roles_of(problem, kind.of(op), storage, source))
        return kernel


def _helper_warps(config: MlaConfig) -> int:
    """How many they are: a warpgroup, or the one warp that is left of the last warpgroup."""
    return WARPS_PER_GROUP if config.helper_registers else 1


def _helper(
    name: str,
    problem: Problem,
    config: MlaConfig,
    storage: Storage,
    body: Callable[[WorkTile], None],
) -> b.Role:
    """The role of these warps; `body` emits their part in a work tile."""

    own = config.helper_registers
    return b.Role(
        name,
        over_tiles(problem, lambda tile, _: body(tile), answers=storage.answers),
        warps=_helper_warps(config),
        registers=own or config.other_registers,
        begins_warpgroup=bool(own),
    )
