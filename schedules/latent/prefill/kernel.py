"""From `attn.mla` to a `ws.kernel`: the kernels of attention over keys of two tensors.

Roles, rings and the order of products are those of `mha` and of `mha_registers`; only what fills the
slots of Q and K differs. A slot of Q is filled from q_nope and q_rope, a slot of K from k_nope and
k_rope, each with one barrier that counts the bytes of all its copies:

```text
q  [rows, nope + rope]    | q_nope | q_rope |     once for each query tile
k  [tile_n, nope + rope]  | k_nope | k_rope |     one product of depth nope + rope
v  [tile_n, v_head_dim]   | v |                   in the front of a slot of k, where they share a ring
```
Keys and values share a ring or have one each, as shared memory has room for more slots. Where it has for
too few of whole keys, rope has a ring of its own, and scores are two products; see `latent_storage`. So
it has where it is stored in 8 bits under 16: then `widen` fills it, the one warp that is left of the warps
of single roles, or four with one query tile (`narrow_rope`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target, shared_tile_bytes
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.tensor_memory import kernel as tensor_memory
from attn_mlir.schedules.attention.tensor_memory import policy
from attn_mlir.schedules.attention.tensor_memory.kernel import WARPS_PER_GROUP
from attn_mlir.schedules.attention.tensor_memory.storage import Storage
from attn_mlir.schedules.attention.warpgroups import kernel as warpgroups
from attn_mlir.schedules.attention.warpgroups.roles import HeldStorage
from attn_mlir.schedules.core.config import NARROW_BITS
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.kernel import every_tile_with_queries
from attn_mlir.schedules.latent.prefill.arguments import latent_kernel
from attn_mlir.schedules.latent.prefill.narrow_rope import widen
from attn_mlir.schedules.latent.prefill.storage import LatentStorage, RingSlots, TwoRings
from attn_mlir.schedules.operands.storage import page_size_of, position_factors
from attn_mlir.schedules.policy.tiling import PAGE_SIZES, key_tiles_for, row_lines
from attn_mlir.schedules.registry import register

ELEMENT_TYPES = ("bf16", "f16", "f8E4M3FN")
LINE_BYTES = 128  # of a tile's columns, which lie together; the parts of a slot begin with one
REGISTERS = {"softmax_registers": 184, "correction_registers": 72, "other_registers": 72}
# where rope has a ring: the role that issues products has more descriptors, and spills with 64
HELPER_REGISTERS: dict[int, dict[str, int]] = {
    1: {
        "softmax_registers": 208,
        "correction_registers": 88,
        "other_registers": 88,
        "helper_registers": 128,
    },
    2: {"softmax_registers": 184, "correction_registers": 64, "other_registers": 80},
}  # by query tiles; with one, the warps that widen rope or read factors are a group of their own
RINGS = frozenset({"kv_stages", "rope_stages", "value_stages"})  # of the configuration
CLAIMED = "clc"  # the order for which a warp claims work tiles
LEAST_SLOTS = 2  # of keys and values
LEAST_TILE_N = 64  # keys of a tile
STEP_BYTES = 32  # depth of one product of the tensor core


@dataclass(frozen=True)
class MlaConfig(policy.MhaConfig):
    """How one latent attention is computed.

    Attributes:
      rope_stages: slots of the ring of rope of keys; 0 where it lies behind nope in a slot of K.
      value_stages: slots of the ring of values; 0 where they lie in slots of K.
      helper_registers: per thread, of the warps that widen rope of 8 bits, or read factors; 0 where one
        does, of the same group as the other single warps.
    """

    rope_stages: int = 0
    value_stages: int = 0
    helper_registers: int = 0


@register
class MlaTensor:
    """Latent attention before absorption, with S and O in tensor memory."""

    name: ClassVar[str] = "mla"
    operation: ClassVar[type[Any]] = attn.MlaOp
    options: ClassVar[type[Any]] = policy.Options
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TENSOR_MEMORY, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )

    def takes(self, op: attn.MlaOp, target: Target) -> bool:
        """Any."""
        return True

    def configure(self, op: attn.MlaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Stores the configuration of an attention of nope + rope columns as `attn.config`.

        Raises:
          VerifyError: an operation without a kernel, or a configuration that cannot be.
        """
        _refuse_unsupported(op)
        wishes, given = policy.Options(**options), MlaConfig.given(op)
        config = _chosen(op, target, wishes)
        is_free = not wishes.kv_stages and not RINGS & set(given)
        if _has_helper(op):
            config = _with_helper(op, target, config)
        if is_free and not op.has_narrow_rope:
            config = _with_rings(op, target, config)
        for name in ("rope_stages", "value_stages"):
            if (count := getattr(config, name)) < 0:
                raise op_error(op, f"expects {name} of 0 or more, got {count}")
        if config.rope_stages and config.value_stages:
            raise op_error(
                op,
                f"expects value_stages of 0 beside rope_stages of {config.rope_stages}, got "
                f"{config.value_stages}",
            )
        divided = op.nope_dim if config.rope_stages else op.head_dim
        policy.check_key_parts(op, divided, config.num_qk_stages)
        op.attributes[CONFIG] = config.to_attr()

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

    name: ClassVar[str] = "mla-registers"
    operation: ClassVar[type[Any]] = attn.MlaOp
    options: ClassVar[type[Any]] = warpgroups.Options
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WARPGROUP_PRODUCTS, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )

    def takes(self, op: attn.MlaOp, target: Target) -> bool:
        """Any."""
        return True

    def configure(self, op: attn.MlaOp, target: Target, options: Mapping[str, Any]) -> None:
        """As `MlaTensor.configure`."""
        _refuse_unsupported(op)
        if ws.element_bits(attn.logical_type(op.k_rope).element_type) == NARROW_BITS:
            raise op_error(
                op, f"has no kernel for k_rope of 8 bits on {target.chip}: supported is bf16 there"
            )
        wishes, page_size = warpgroups.Options(**options), page_size_of(op.k_rope)
        config = warpgroups.chosen_config(
            op, target, wishes, queries=op.q_nope, page_size=page_size
        )
        op.attributes[CONFIG] = config.to_attr()

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """As `MlaTensor.build`."""
        kind = warpgroups.HeldConfig
        with latent_kernel(function, op, kind) as (kernel, problem, source, *_):
            storage = HeldStorage(problem)
            b.emit_roles(warpgroups.roles_of(problem, kind.of(op), storage, source))
        return kernel


def _chosen(op: attn.MlaOp, target: Target, wishes: policy.Options) -> MlaConfig:
    """The configuration, with smaller tiles than else where these alone have room and none are asked for.

    Raises:
      VerifyError: as `chosen_config`.
    """
    if _has_helper(op) and wishes.tile_order == CLAIMED and not wishes.q_tiles:
        wishes = dataclasses.replace(wishes, q_tiles=1)
    given = MlaConfig.given(op)
    smaller = {"q_tiles": 1, "tile_n": LEAST_TILE_N}
    free = [n for n in smaller if not getattr(wishes, n) and n not in given]
    while True:
        config = policy.chosen_config(
            op, target, wishes, queries=op.q_nope, page_size=page_size_of(op.k_rope), kind=MlaConfig
        )
        if not free or _has_room(op, target, config):
            return config
        name = free.pop(0)
        wishes = dataclasses.replace(wishes, **{name: smaller[name]})


def _has_helper(op: attn.MlaOp) -> bool:
    """Whether warps of their own widen rope, or read factors of keys."""
    return op.has_narrow_rope or position_factors(op.k_nope) is not None


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

    def run(_: Value) -> None:
        with every_tile_with_queries(problem, storage.answers) as tile:
            body(tile)

    own = config.helper_registers
    return b.Role(
        name,
        run,
        warps=_helper_warps(config),
        registers=own or config.other_registers,
        begins_warpgroup=bool(own),
    )


def _with_helper(op: attn.MlaOp, target: Target, config: MlaConfig) -> MlaConfig:
    """The configuration with registers for such warps, and a ring of rope that is widened, as far as none
    are given.

    Raises:
      VerifyError: there is no room, or no warp left for this.
    """
    given = MlaConfig.given(op)
    if config.q_tiles > 1 and config.tile_order == CLAIMED:
        raise op_error(
            op,
            f"expects q_tiles of 1 for the tile_order {CLAIMED} where k_rope has 8 bits, got "
            f"{config.q_tiles}: no warp is left to widen it or to read its factors",
        )
    if not op.has_narrow_rope:
        return dataclasses.replace(config, **{**HELPER_REGISTERS[config.q_tiles], **given})
    slots = _slots(op, target, config, is_apart=True)
    if not _has_room(op, target, config):
        raise op_error(
            op,
            f"has no room for two tiles of {config.tile_n} keys where k_rope has 8 bits, beside "
            f"{config.q_tiles} of queries",
        )
    if "kv_stages" in given:
        slots = RingSlots(config.kv_stages, -(-config.kv_stages // 2))
    chosen = {
        **HELPER_REGISTERS[config.q_tiles],
        "kv_stages": slots.kv,
        "rope_stages": slots.rope,
        **given,
    }
    return dataclasses.replace(config, **chosen)


def _with_rings(op: attn.MlaOp, target: Target, config: MlaConfig) -> MlaConfig:
    """The configuration with the rings that give the most slots, of those that parts of keys fit."""
    count, bits = config.num_qk_stages, ws.element_bits(op.element_type)
    whole, nope = (row_lines(columns, bits) % count for columns in (op.head_dim, op.nope_dim))
    slots = _slots(op, target, config, is_apart=bool(whole and not nope))
    if slots.rope and nope:
        slots = RingSlots(config.kv_stages, 0)
    if slots.rope and not _has_helper(op):
        registers = {name: n for name, n in REGISTERS.items() if name not in MlaConfig.given(op)}
        config = dataclasses.replace(config, **registers)
    return dataclasses.replace(
        config, kv_stages=slots.kv, rope_stages=slots.rope, value_stages=slots.values
    )


def _has_room(op: attn.MlaOp, target: Target, config: MlaConfig) -> bool:
    """Whether shared memory has room for two tiles of keys, with rope of 8 bits beside where that is."""
    return not op.has_narrow_rope or _slots(op, target, config, is_apart=True).kv >= LEAST_SLOTS


def _slots(
    op: attn.MlaOp, target: Target, config: MlaConfig, *, is_apart: bool = False
) -> RingSlots:
    """See `RingSlots.of`."""
    rows, bits = config.tile_m, ws.element_bits(op.element_type)
    q = shared_tile_bytes(rows, op.head_dim, bits)
    o = shared_tile_bytes(rows, op.v_head_dim, ws.element_bits(op.output_type))
    staged = q + o if config.tile_order in LOOPING_ORDERS else max(q, o)
    return RingSlots.of(
        target,
        (op.nope_dim, op.head_dim - op.nope_dim, op.v_head_dim),
        whole=config.kv_stages,
        tile_n=config.tile_n,
        staged_bytes=config.q_tiles * staged,
        bits=bits,
        is_apart=is_apart,
    )


def _refuse_unsupported(op: attn.MlaOp) -> None:
    """Raises VerifyError for a legal `attn.mla` that the kernel does not compute."""
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        allowed = " and ".join(ELEMENT_TYPES)
        raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")
    bits = ws.element_bits(op.element_type)
    rope_bits = ws.element_bits(attn.logical_type(op.q_rope).element_type)
    for name, count, unit in (
        ("nope", op.nope_dim, LINE_BYTES * 8 // bits),
        ("rope", op.rope_dim, STEP_BYTES * 8 // rope_bits),
    ):
        if count % unit:
            raise op_error(
                op, f"has no kernel for {name} of {count}: supported are multiples of {unit}"
            )
    page_size = page_size_of(op.k_rope)
    if not key_tiles_for(page_size):
        raise op_error(op, f"has no kernel for pages of {page_size}: supported are {PAGE_SIZES}")
