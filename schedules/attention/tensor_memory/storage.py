"""The rings and buffers of the kernel whose products accumulate in tensor memory."""

from typing import NamedTuple

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.ws.tiles import RESPONSE_BYTES
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem
from attn_mlir.schedules.sources.key_slots import KeySlots, stage_columns, staged_ring
from attn_mlir.schedules.sources.query_slots import QuerySlots
from attn_mlir.schedules.sources.row_scales import RowScales

CLAIM_STAGES = 2  # claimed work tiles by which the fastest role may lead the slowest


class Stages(NamedTuple):
    """The stages inside products.

    Attributes:
      qk: stages of Q K^T: column ranges of a tile of keys, each awaited by itself.
      pv: stages of P V: column ranges of a tile of P, each awaited by itself.
      alternates: whether the softmax groups of two query tiles compute P one after the other.
    """

    qk: int = 1
    pv: int = 1
    alternates: bool = False


class Storage:
    """The rings and buffers of the kernel, with an instance for each query tile.

    ```
    load --q,kv--> mma --s--> softmax --stats--> correction --out--> epilogue
                   | ^ ^         |                 ^  |
                   | | '----p----'                 |  |
                   | '------p----------------------+--'
                   '----------finished-------------'            correction --heard--> softmax
    ```
    `s` carries the scores S to softmax, which writes the probabilities P to the same columns, as
    `p`. Softmax and correction commit a slot of `p` together: P is complete, and O is rescaled to
    the new row maximum. A full `s` signals that the previous product P V is complete: `stats`,
    committed after the wait for `s`, signals correction that it may rescale O. `finished` signals
    correction that the last product is complete; its release signals mma that O has been read.
    A full `p` implies that correction has read the alphas in `stats`; at the end of a work tile
    the ring `heard` acknowledges that, before softmax commits 1 / l and after. `row_scales`
    multiply scores, if rows have scales. `claimed` has the coordinates of claimed work tiles, if
    the tile order claims any.

    If Q K^T has stages, keys have their own ring `k`, with a slot for each stage of a tile, and
    values a ring `v`. If P V has stages, a slot of `p` is one stage of a tile, at the front of as
    many columns of S. If the softmax groups alternate, one group signals the other by `order`.
    """

    def __init__(
        self, problem: Problem, stages: Stages | None = None, row_scales: RowScales | None = None
    ):
        """Declares the rings; `row_scales` multiply the scores of rows with scales."""
        self.row_scales, self.stages = row_scales, stages or Stages()
        config, element = problem.config, problem.element
        f32 = ir.F32Type.get()
        instances = config.q_tiles
        stage_ranges = self._stage_columns(problem)
        self.queries = QuerySlots.of(problem, stage_ranges if self.stages.qk > 1 else [])
        self.keys, self.v = self._keys_and_values(problem, stage_ranges)
        scores = [config.tile_m, config.tile_n]
        self.s = b.Ring("s", b.tile(scores, f32, "tensor"), instances=instances, known_empty=True)
        self.p = b.Ring(
            "p",
            b.tile([config.tile_m, config.tile_n // self.stages.pv], element, "tensor"),
            stages=self.stages.pv,
            instances=instances,
            inside=self.s,
            producers=("threads", "threads"),
            known_empty=True,
        )
        row_values = b.tile([config.tile_m], f32, "shared")
        self.stats = b.Ring("stats", row_values, instances=instances, known_empty=True)
        self.acknowledged = b.Ring("heard", None, instances=instances)
        self.order: b.Ring | None = None
        if self.stages.alternates:
            self.order = b.Ring("order", None, instances=instances, known_empty=True)
        out = b.tile([config.tile_m, problem.v_columns], problem.output, "shared")
        self.out = b.Ring("out", out, instances=instances)
        self.o = b.Buffer(
            "o", b.tile([config.tile_m, problem.v_columns], f32, "tensor"), instances=instances
        )
        self.finished = b.Ring("finished", None, instances=instances)
        self.claimed: b.Ring | None = None
        if config.tile_order == "clc":
            words = b.tile([RESPONSE_BYTES // 4], b.i32(), "shared")
            self.claimed = b.Ring("answers", words, stages=CLAIM_STAGES)

    def _stage_columns(self, problem: Problem) -> list[range]:
        """The columns of each stage of Q K^T."""
        return stage_columns(problem, problem.columns, self.stages.qk)

    def _keys_and_values(
        self, problem: Problem, stage_ranges: list[range]
    ) -> tuple[KeySlots, b.Ring]:
        """The rings of keys and of values: one ring, unless Q K^T has stages."""
        config = problem.config
        if len(stage_ranges) > 1:
            values = config.kv_stages // 2
            keys = staged_ring(problem, "k", stage_ranges, tiles=config.kv_stages - values)
            return KeySlots(problem, keys), values_ring(problem, values)
        shape = [config.tile_n, max(problem.columns, problem.v_columns)]
        kv = b.Ring("kv", b.tile(shape, problem.element, "shared"), stages=config.kv_stages)
        return KeySlots.whole(problem, kv), kv


def values_ring(problem: Problem, stages: int) -> b.Ring:
    """A ring of values alone."""
    values = b.tile([problem.config.tile_n, problem.v_columns], problem.element, "shared")
    return b.Ring("v", values, stages=stages)
