"""From `attn.mha` to a `ws.kernel` for few queries whose products have keys in their rows.

A work tile is 8, 16 or 32 query rows, those of a group's heads and of a few tokens, which are the
columns of a product. Warps 0-3 attend, one thread for each key of a tile; 4 issues the products, 5
stores O, 6 loads. See `splits.swapped`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.keys_in_rows.policy import KEYS_IN_ROWS
from attn_mlir.schedules.attention.keys_in_rows.roles import (
    KeysInRowsStorage,
    attend,
    multiply,
    store_output,
)
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.kernel import attention_kernel, over_tiles
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.policy.tiling import KEYS_IN_ROWS_QUERIES, STREAM_KEYS
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import CopiedKV, copied_kv
from attn_mlir.schedules.sources.transport import load_streamed


@dataclass(frozen=True)
class KeysInRowsConfig(Config):
    """How one attention operation with few queries is computed: `Config` with other defaults."""

    tile_m: int = KEYS_IN_ROWS_QUERIES
    q_tiles: int = 1
    tile_n: int = STREAM_KEYS
    exp2_period: int = 0
    tile_order: str = "persistent"

    @property
    def owns_keys(self) -> bool:
        """Each attending thread owns a key."""
        return True


@register
class MhaKeysInRows:
    """Attention of few queries with keys in the rows of its products."""

    policy: ClassVar[Policy] = KEYS_IN_ROWS

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, KeysInRowsConfig) as (kernel, problem, stored):
            source = copied_kv(problem, *stored)
            b.emit_roles(_roles(problem, KeysInRowsStorage(problem), source))
        return kernel


def _roles(problem: Problem, storage: KeysInRowsStorage, source: CopiedKV) -> list[b.Role]:
    work = partial(over_tiles, problem, waits=True)

    def load(number: Value) -> None:
        work(lambda tile, _: load_streamed(problem, storage, source, tile))(number)
        b.launch_dependents()

    roles = [
        b.Role(
            "attend", work(lambda tile, _: attend(problem, storage, tile)), warps=WARPGROUP_WARPS
        ),
        b.Role("mma", work(lambda tile, _: multiply(problem, storage, tile)), lanes=1),
    ]
    if storage.out is not None:
        roles.append(
            b.Role("leave", work(lambda tile, _: store_output(problem, storage, tile)), lanes=1)
        )
    return [*roles, b.Role("load", load, lanes=1)]
