"""From `attn.mla_decode` to a `ws.kernel`: as `mla-decode-registers`, with groups that take key tiles in turn.

Two groups of threads hold half of O each and find the weights of every other tile (`parts.held_alternating`);
one warp loads, and stores O.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.passes.schedule.parts import builder as b
from attn_mlir.passes.schedule.parts.attention import every_tile
from attn_mlir.passes.schedule.parts.decode_config import KEYS, DecodeConfig
from attn_mlir.passes.schedule.parts.decode_kernel import configure_whole, decode_kernel
from attn_mlir.passes.schedule.parts.held_alternating import (
    GROUPS,
    AlternatingStorage,
    attend,
)
from attn_mlir.passes.schedule.parts.latent_chunks import load_chunks
from attn_mlir.passes.schedule.parts.problem import Problem, WorkTile
from attn_mlir.passes.schedule.parts.row_boxes import RowBoxes, boxes_of
from attn_mlir.passes.schedule.parts.transport import epilogue
from attn_mlir.passes.schedule.registry import NoOptions, register
from attn_mlir.passes.target.limits import WARPGROUP_WARPS, Target
from attn_mlir.passes.target.tiling import ALTERNATING_DECODE

ATTEND, REST = 232, 40  # registers of a thread; 168 of each of three warpgroups


@register
class MlaDecodeAlternating:
    """Latent attention after absorption, by two groups that each hold half of O and weigh half of the keys."""

    name: ClassVar[str] = ALTERNATING_DECODE
    operation: ClassVar[type[Any]] = attn.MlaDecodeOp
    options: ClassVar[type[Any]] = NoOptions

    def lacks(self, target: Target) -> str:
        """Products that leave their sums in registers."""
        return target.lacks_sums_in("registers")

    def takes(self, op: attn.MlaDecodeOp, target: Target) -> bool:
        """None: it is asked for by name, since `mla-decode-registers` is as fast or faster."""
        return False

    def configure(self, op: attn.MlaDecodeOp, target: Target, options: Mapping[str, Any]) -> None:
        """Packs as many heads into a tile as divide them.

        Raises:
          VerifyError: an operation without a kernel.
        """
        configure_whole(op, self.name)

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: as `decode_kernel`.
        """
        with decode_kernel(function, op, DecodeConfig) as (kernel, problem, pages):
            boxes = boxes_of(problem, pages, KEYS, begin_inside=True)
            _emit_roles(problem, AlternatingStorage(problem), boxes)
        return kernel


def _emit_roles(problem: Problem, storage: AlternatingStorage, boxes: RowBoxes) -> None:
    def move(tile: WorkTile) -> None:
        load_chunks(problem, storage, storage.chunks, boxes, tile)
        b.launch_dependents()
        if storage.out is not None:
            epilogue(problem, storage.out, tile)

    def work(role: Callable[[WorkTile], None]) -> None:
        """The work tile of a role, from when the kernels before this one are over."""
        b.grid_dependency_wait()
        with every_tile(problem) as tile:
            role(tile)

    for number, name in enumerate(GROUPS):
        first = number * WARPGROUP_WARPS
        with b.role(name, first=first, warps=WARPGROUP_WARPS, registers=ATTEND):
            work(lambda tile, number=number: attend(problem, storage, tile, number))
    with b.role("move", first=len(GROUPS) * WARPGROUP_WARPS, warps=1, lanes=1, registers=REST):
        work(move)
