"""`one-warp`: attention of 16 queries of a head at a time, by one warp.

The rings: load --q, k, v--> attend.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.kernel import attention_kernel, every_tile_with_queries
from attn_mlir.schedules.operands.storage import is_gathered, page_size_of
from attn_mlir.schedules.registry import NoOptions, register
from attn_mlir.schedules.sources.listed_copies import streamed_kv
from attn_mlir.schedules.sources.transport import stream

from .roles import Storage, attend

COLUMNS = range(16, 129, 16)  # of a head: whole products, and O in the registers of a warp


@dataclass(frozen=True)
class OneWarpConfig(Config):
    """`Config` with the tiles of this schedule."""

    tile_m: int = 16  # rows of mma.sync
    q_tiles: int = 1
    tile_n: int = 32
    kv_stages: int = 2
    exp2_period: int = 0
    rescale_threshold: int = 0


@register
class OneWarp:
    """Attention by one warp, which computes where it is asked for by name."""

    name: ClassVar[str] = "one-warp"
    operation: ClassVar[type[Any]] = attn.MhaOp
    options: ClassVar[type[Any]] = NoOptions
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.WARP_PRODUCTS, Feature.COPY_ENGINE})

    def takes(self, op: attn.MhaOp, target: Target) -> bool:
        """No operation that does not ask for it."""
        return False

    def configure(self, op: attn.MhaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Fixed tiles.

        Raises:
          VerifyError: an operation without a kernel.
        """
        is_plain = not (op.blocks or op.join or is_gathered(op.k) or page_size_of(op.k))
        if str(op.stored_element_type) not in ("bf16", "f16") or not is_plain:
            raise op_error(op, "has no kernel in one-warp: it takes plain tensors of 16 bits")
        for name, size in (("head_dim", op.head_dim), ("v_head_dim", op.v_head_dim)):
            if size not in COLUMNS:
                raise op_error(op, f"has no kernel in one-warp for {name} {size}")
        op.attributes[CONFIG] = OneWarpConfig(**OneWarpConfig.given(op)).to_attr()

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation."""
        with attention_kernel(function, op, OneWarpConfig) as (kernel, problem, stored):
            storage, source = Storage(problem), streamed_kv(problem, *stored)
            with b.role("attend", first=0, warps=1), every_tile_with_queries(problem) as tile:
                attend(problem, storage, tile)
            with b.role("load", first=1, warps=1, lanes=1):
                with every_tile_with_queries(problem) as tile:
                    stream(problem, storage, source, tile)
        return kernel
