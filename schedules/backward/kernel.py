"""From `attn.kv_gradients` and `attn.q_gradients` to kernels in which one side stands still.

A work tile is 64 or 128 keys of a head, or queries of one, 64 for each group of four warps, which
holds their gradients in registers. Tiles of queries and of the gradient of their output stream past
keys and values, head by head of the group of heads that shares them, and with them a number of each
row, its LSE and its delta; or keys and values past queries. Nothing is added to memory: the result
does not depend on timing.

```text
load --k,v,q,do--> attend[0..1] --dk,dv--> leave      load --q,do,k,v--> attend[0..1] --dq--> leave
rows --lse,delta--> attend
```
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.attn.modifier.region import inside
from attn_mlir.dialect.attn.workspace import ROW_WEIGHTS
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.policy import KV_GRADIENTS, Q_GRADIENTS, GradientsPolicy
from attn_mlir.schedules.backward.roles import GradientStorage, attend, load, store_gradients
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.direction import ROWS_ARE_KEYS, ROWS_ARE_QUERIES, Direction
from attn_mlir.schedules.core.listed_tiles import IndexedTiles
from attn_mlir.schedules.core.mask_tiles import MaskTiles
from attn_mlir.schedules.core.modifier import Modifier, modifier_of
from attn_mlir.schedules.core.problem import Problem, sizes_of
from attn_mlir.schedules.kernel import (
    KEY_DIMS,
    LSE_DIMS,
    QUERY_DIMS,
    opened,
    over_tiles,
    result_names,
)
from attn_mlir.schedules.operands.scales import OperandScales
from attn_mlir.schedules.operands.storage import OperandStorage
from attn_mlir.schedules.operands.storage_checks import check_alike, check_queries, check_rows
from attn_mlir.schedules.registry import register

SCORES_AT_A_TIME = 8  # of a thread; all 32 at once spill twice to ten times as many bytes


@dataclass(frozen=True)
class GradientConfig(Config):
    """How gradients are computed: tiles of `tile_m` rows, `q_tiles` of them in a work tile, stand
    still, and those of `tile_n` stream.

    Attributes:
      attend_registers, other_registers: per thread of the groups, and of the warps behind them.
      heads_in_turn: number of heads whose blocks start alternately. Long blocks of all these heads
        then start before short ones; with turns, successive blocks of one head would wait for each
        other.
    """

    tile_m: int = 64
    tile_n: int = 64
    kv_stages: int = 2
    exp2_period: int = 0
    rescale_threshold: int = 0
    attend_registers: int = 224
    other_registers: int = 56
    heads_in_turn: int = 1

    @property
    def alternating_heads(self) -> int:
        """As of every configuration."""
        return self.heads_in_turn

    def scores_at_a_time(self, modifier: Modifier, element_bits: int) -> int:
        """As of every configuration; few if the modifier reads tensors, beside the gradients."""
        del element_bits
        return SCORES_AT_A_TIME if modifier.reads else 0


@contextmanager
def gradients_kernel(
    function: Any, op: Any, direction: Direction, kind: type[GradientConfig]
) -> Generator[tuple[ws.KernelOp, Gradients]]:
    """Begins the kernel of a function of one operation; the context builds its body.

    Args:
      direction: whether keys or queries are stationary.
      kind: the class of the operation's configuration.

    Yields:
      The kernel, and the gradients that its body computes.

    Raises:
      VerifyError: as of `GradientsSchedule.build`.
    """
    queries, keys = (*op.queries, "do"), (*op.keys, "v")
    storages, results = _storages_of(op, queries, keys), result_names(op)
    result_dims, _ = direction.ordered(QUERY_DIMS, KEY_DIMS)
    dims = {
        **dict.fromkeys(op.queries, QUERY_DIMS),
        **dict.fromkeys(keys, KEY_DIMS),
        "do": QUERY_DIMS,
        **dict.fromkeys(("lse", "delta"), LSE_DIMS),
        **dict.fromkeys(results, result_dims),
    }
    shared = {ROW_WEIGHTS: LSE_DIMS[attn.stored_type(op.lse).rank]}
    with opened(function, op, dims, kind, shared) as (kernel, tensors, captured, config):
        (q, *_), (k, *rope) = op.queries, op.keys
        sequences = (
            storages[q].queries(tensors[q], captured),
            storages[k].keys(tensors[k], captured).sequences,
        )
        _, columns = direction.ordered(*sequences)
        blocks, weights, turns = (
            next(iter(inside(op, x)), None)
            for x in (attn.BlocksOp, attn.RowWeightsOp, attn.TurnsOp)
        )
        problem = Problem(
            q=tuple(tensors[name] for name in op.queries),
            k=tensors[k],
            k_rope=tensors[rope[0]] if rope else None,
            v=tensors["v"],
            o=tensors[results[0]],
            lse=None,
            scale=tensors["scale"],
            splits=None,
            query_sequences=sequences[0],
            key_sequences=sequences[1],
            scales=OperandScales(None, None, None),
            position_scales=None,
            **sizes_of(op),
            stored=op.element_type,
            output=op.element_type,
            modifier=modifier_of(op, captured),
            make_column_tiles=MaskTiles
            if blocks is None
            else IndexedTiles.of(blocks, captured, _block(op, config, direction), columns),
            config=config,
            direction=direction,
        )
        gradients = Gradients(
            problem,
            do=tensors["do"],
            lse=tensors["lse"],
            delta=tensors["delta"],
            weights=None if weights is None else captured[weights.weights],
            results=tuple(tensors[name] for name in results),
            dq_accum=captured[op.dq_accum] if isinstance(op, attn.GradientsOp) else None,
            turns=None if turns is None else captured[turns.turns],
        )
        yield kernel, gradients


def _storages_of(op: Any, *sides: tuple[str, ...]) -> dict[str, OperandStorage]:
    """The storage of operands, by name.

    Args:
      sides: groups of operand names, of queries and of keys; a group must be stored alike.

    Raises:
      VerifyError: operands of a group differ in storage, or no kernel reads the storage of one.
    """
    found = {name: OperandStorage.of(getattr(op, name)) for side in sides for name in side}
    for name, storage in found.items():
        check_rows(op, name, storage)
        check_queries(op, name, storage)
    for first, *others in sides:
        for other in others:
            check_alike(op, **{first: found[first], other: found[other]})
    return found


def _block(op: Any, config: GradientConfig, direction: Direction) -> Block:
    """The block of scores of a work tile and a column tile; keys have all heads of their group."""
    positions, keys = direction.ordered(config.rows_per_cta, config.tile_n)
    heads, _ = direction.ordered(1, op.heads // op.kv_heads)
    return Block(positions, heads, keys)


class GradientsSchedule:
    """A schedule of gradients; its policy decides whether keys or queries are stationary.

    Attributes:
      config: the class of the operation's configuration.
    """

    policy: ClassVar[GradientsPolicy]
    config: ClassVar[type[GradientConfig]] = GradientConfig

    def build(self, function: Any, op: Any, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or operands whose storage has no code.
        """
        direction = ROWS_ARE_KEYS if self.policy.keys_stand else ROWS_ARE_QUERIES
        with gradients_kernel(function, op, direction, self.config) as (kernel, gradients):
            b.emit_roles(self.roles(gradients, self.config.of(op), target))
        return kernel

    def roles(self, gradients: Gradients, config: Any, target: Target) -> list[b.Role]:
        """The roles of the kernel: by default in the registers of the groups that multiply.

        Args:
          config: as `config` says.
        """
        return roles_of(gradients, config, GradientStorage(gradients))


@register
class KvGradients(GradientsSchedule):
    """Gradients of keys and values, which stand still."""

    policy: ClassVar[GradientsPolicy] = KV_GRADIENTS


@register
class QGradients(GradientsSchedule):
    """Gradients of queries, which stand still."""

    policy: ClassVar[GradientsPolicy] = Q_GRADIENTS


def roles_of(
    gradients: Gradients,
    config: GradientConfig,
    storage: GradientStorage,
    more: Sequence[b.Role] = (),
) -> list[b.Role]:
    """The roles of a kernel; those of `more` have the warps behind the groups that attend."""
    groups = config.q_tiles
    attending = b.Role(
        "attend",
        over_tiles(
            gradients.problem, lambda tile, instance: attend(gradients, storage, tile, instance)
        ),
        warps=groups * WARPGROUP_WARPS,
        groups=groups,
        registers=config.attend_registers,
    )
    return [attending, *more, *roles_behind(gradients, config, storage)]


def roles_behind(
    gradients: Gradients, config: GradientConfig, storage: GradientStorage
) -> list[b.Role]:
    """The warps behind the groups: they load, store, and stream numbers of queries."""
    work, behind = (
        partial(over_tiles, gradients.problem),
        partial(b.Role, registers=config.other_registers),
    )
    roles = [
        behind("leave", work(lambda tile, _: store_gradients(gradients, storage, tile)), lanes=1),
        behind("load", work(lambda tile, _: load(gradients, storage, tile)), lanes=1),
    ]
    if storage.numbers.stream:
        roles.append(behind("rows", work(lambda tile, _: storage.numbers.fill(tile))))
    return roles
