"""From `attn.mha` to a `ws.kernel` whose warpgroups keep S, P and O in registers.

A work tile is 128 or 192 query rows of one head, 64 for each group of four warps, which attends by
itself; behind the groups one warp stores O and one loads.

```text
load --q,k,v--> attend[0..2] --out--> leave
```
With operands of 8 bits two more warps transpose values between `load` and `attend`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.warpgroups.policy import WARPGROUPS
from attn_mlir.schedules.attention.warpgroups.roles import RegisterStorage, attend
from attn_mlir.schedules.attention.warpgroups.values import TRANSPOSING_WARPS, TransposedValues
from attn_mlir.schedules.core.config import FP8_BITS, SCORES_AT_A_TIME, Config
from attn_mlir.schedules.core.modifier import Modifier
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.kernel import (
    attention_kernel,
    every_tile,
    over_tiles,
    when_it_has_rows,
)
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import KVSource, copied_kv
from attn_mlir.schedules.sources.transport import epilogue, load

CACHED_AT_A_TIME = 8  # likewise, if many scores share the elements read


@dataclass(frozen=True)
class RegisterConfig(Config):
    """How one attention operation is computed; `q_tiles` are the groups.

    Attributes:
      attend_registers, other_registers: per thread of the groups, and of the warps behind them.
    """

    tile_m: int = 64
    kv_stages: int = 2
    exp2_period: int = 0
    attend_registers: int = 240
    other_registers: int = 24

    def scores_at_a_time(self, modifier: Modifier, element_bits: int) -> int:
        """Scores that a thread modifies at a time; 0 for any number.

        S, P and O leave no registers for a modifier's temporaries over a whole tile, nor for the
        reads of a predicate; with 8 bits, for no predicate at all. Values shared by many scores,
        tables of distances and reads of predicates, hit L1, so that 8 scores at a time suffice.
        """
        if element_bits != FP8_BITS and not (modifier.changes or modifier.reads):
            return 0
        shares = modifier.gathers or (modifier.hides and not modifier.readings)
        return CACHED_AT_A_TIME if shares else SCORES_AT_A_TIME


@register
class MhaRegisters:
    """Attention with S, P and O in the registers of the groups that issue the products."""

    policy: ClassVar[Policy] = WARPGROUPS

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, RegisterConfig) as (kernel, problem, stored):
            source = copied_kv(problem, *stored)
            config = RegisterConfig.of(op)
            b.emit_roles(roles_of(problem, config, RegisterStorage(problem), source))
        return kernel


def roles_of(
    problem: Problem, config: RegisterConfig, storage: RegisterStorage, source: KVSource
) -> list[b.Role]:
    """The roles of a kernel whose warpgroups keep S, P and O in registers."""
    claimed, values = storage.claimed, storage.values
    groups, other_registers = config.q_tiles, config.other_registers

    work = partial(over_tiles, problem, claimed=claimed)

    def load_and_fetch(_: Value) -> None:
        with every_tile(problem, claimed) as tile:
            with when_it_has_rows(problem, tile):
                load(problem, storage, source, tile)
            if claimed is not None:
                b.fetch_tile(claimed, problem.tile_counter)

    roles = [
        b.Role(
            "attend",
            work(lambda tile, instance: attend(problem, storage, tile, instance)),
            warps=groups * WARPGROUP_WARPS,
            groups=groups,
            registers=config.attend_registers,
        ),
        b.Role(
            "leave",
            work(lambda tile, _: epilogue(problem, storage.out, tile)),
            lanes=1,
            registers=other_registers,
        ),
        b.Role("load", load_and_fetch, lanes=1, registers=other_registers),
    ]
    if isinstance(values, TransposedValues):
        transpose = work(lambda tile, _: values.transpose(problem, tile, other_registers))
        roles.append(
            b.Role("transpose", transpose, warps=TRANSPOSING_WARPS, registers=other_registers)
        )
    return roles
