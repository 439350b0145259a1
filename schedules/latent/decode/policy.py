"""The configuration of kernels of absorbed latent attention whose tiles have 64 rows and 64 keys."""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from attn_mlir.dialect import attn
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import HALF_ROWS
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.operands.storage import page_size_of
from attn_mlir.schedules.policy.tiling import HALF_TILE_HEADS, HalfTileRows, key_tiles_for

KEYS = 64  # of a tile
CHOSEN = ("kv_stages",)  # of the configuration, what may be given


@dataclass(frozen=True)
class DecodeConfig(Config):
    """Tiles of 64 rows and of 64 keys."""

    tile_m: int = HALF_ROWS
    q_tiles: int = 1
    tile_n: int = KEYS
    kv_stages: int = 2
    exp2_period: int = 0


ConfigT = TypeVar("ConfigT", bound=DecodeConfig)


def chosen_config(op: attn.MlaDecodeOp, kind: type[ConfigT]) -> ConfigT:
    """The configuration of an operation: as many heads in a tile as divide them.

    Raises:
      VerifyError: an operation without a kernel, or a configuration that cannot be.
    """
    if op.heads % HALF_TILE_HEADS:
        raise op_error(
            op,
            f"has no kernel for {op.heads} heads: supported are multiples of {HALF_TILE_HEADS}",
        )
    check_copies(op)
    fixed = kind(packed_heads=HalfTileRows.of(op.heads, is_listed=op.is_listed).heads)
    given: dict[str, Any] = kind.given(op)
    config = dataclasses.replace(fixed, **given)
    for field in dataclasses.fields(fixed):
        want, got = getattr(fixed, field.name), getattr(config, field.name)
        if field.name not in CHOSEN and want != got:
            raise op_error(op, f"expects {field.name} of {want}, got {got}")
    return config


def check_copies(op: attn.MlaDecodeOp) -> None:
    """Refuses what no kernel with such tiles has.

    Raises:
      VerifyError: memory that parts are put together in, or pages that tiles of 64 keys do not go with.
    """
    if op.memory:
        raise op_error(op, "has no kernel that puts parts together: leave out the workspace")
    page = 0 if op.is_listed else page_size_of(op.kv)
    if KEYS not in key_tiles_for(page):
        raise op_error(op, f"has no kernel for pages of {page}: key tiles are of {KEYS}")
