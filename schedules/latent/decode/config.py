"""The configuration of absorbed latent attention in tiles of 64 rows and 64 keys."""

from dataclasses import dataclass

from attn_mlir.dialect.targets.limits import HALF_ROWS
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.latent.decode.policy import KEYS


@dataclass(frozen=True)
class DecodeConfig(Config):
    """Tiles of 64 rows and of 64 keys."""

    tile_m: int = HALF_ROWS
    q_tiles: int = 1
    tile_n: int = KEYS
    kv_stages: int = 2
    exp2_period: int = 0
