"""The rings and buffers of the kernel whose products accumulate in tensor memory."""

from typing import NamedTuple

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.ws.tiles import RESPONSE_BYTES
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem
from attn_mlir.schedules.sources.key_slots import KeySlots, stage_columns, staged_ring
from attn_mlir.schedules.sources.query_slots import QuerySlots
from attn_mlir.schedules.sources.row_scales import RowScales

CLAIM_STAGES = (
    2  # slots for claimed work tiles: how many of them the fastest role may be ahead of the slowest
)


class Stages(NamedTuple):
    """The stages inside products.

    Attributes:
      qk: parts of a tile of keys by columns, which Q K^T awaits one after the other.
      pv: parts of a tile of P by columns, which P V awaits one after the other.
      in_turn: whether the softmax groups of two query tiles weigh their scores one after the other.
    """

    qk: int = 1
    pv: int = 1
    in_turn: bool = False


class Storage:
    """The rings and buffers of the kernel; `instances` are its query tiles.

    ```
    load --q,kv--> mma --s--> softmax --stats--> correction --out--> epilogue
                   | ^ ^         |                 ^  |
                   | | '----p----'                 |  |
                   | '------p----------------------+--'
                   '----------finished-------------'            correction --heard--> softmax
    ```
    `s` carries the scores S to softmax, which writes the probabilities P to the same place, as `p`.
    Softmax and correction commit a slot of `p` together: P is there, and O has been rescaled to the
    new row maximum. A full `s` says that the previous product P V is complete: `stats`, handed over
    behind the wait for it, tells correction that O may be rescaled; `finished` tells correction
    that the last one is complete, and its release tells mma that O has been read. When softmax has
    scores, correction has read the factors in `stats` before, of which P tells as well; at the end
    of a work tile `heard` tells softmax so, before it hands 1 / l over and after. `factors`
    multiply scores, if rows have any. `answers` has the coordinates of claimed work tiles, if the
    tile order claims any.

    Where Q K^T has stages, keys have a ring `k` of their own, with a slot for each part of a tile,
    and values a ring `v`. Where P V has, so has `p`: its slots are parts of a tile, each at the
    front of as many columns of S. By `order` a softmax group tells the other one, whose way it is,
    to go on, where they take turns.
    """

    def __init__(
        self, problem: Problem, stages: Stages | None = None, factors: RowScales | None = None
    ):
        """With what softmax multiplies scores by, if rows have factors."""
        self.factors, self.stages = factors, stages or Stages()
        config, element = problem.config, problem.element
        f32 = ir.F32Type.get()
        instances = config.q_tiles
        parts = self._parts(problem)
        self.queries = QuerySlots.of(problem, parts if self.stages.qk > 1 else [])
        self.keys, self.v = self._keys_and_values(problem, parts)
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
        factors_of_rows = b.tile([config.tile_m], f32, "shared")
        self.stats = b.Ring("stats", factors_of_rows, instances=instances, known_empty=True)
        self.heard = b.Ring("heard", None, instances=instances)
        self.order: b.Ring | None = None
        if self.stages.in_turn:
            self.order = b.Ring("order", None, instances=instances, known_empty=True)
        out = b.tile([config.tile_m, problem.v_columns], problem.output, "shared")
        self.out = b.Ring("out", out, instances=instances)
        self.o = b.Buffer(
            "o", b.tile([config.tile_m, problem.v_columns], f32, "tensor"), instances=instances
        )
        self.finished = b.Ring("finished", None, instances=instances)
        self.answers: b.Ring | None = None
        if config.tile_order == "clc":
            words = b.tile([RESPONSE_BYTES // 4], b.i32(), "shared")
            self.answers = b.Ring("answers", words, stages=CLAIM_STAGES)

    def _parts(self, problem: Problem) -> list[range]:
        """The columns that have slots of their own."""
        return stage_columns(problem, problem.columns, self.stages.qk)

    def _keys_and_values(self, problem: Problem, parts: list[range]) -> tuple[KeySlots, b.Ring]:
        """The rings of keys and of values: one ring, in whose slots they lie in turn, unless keys
        lie in parts.
        """
        config = problem.config
        if len(parts) > 1:
            values = config.kv_stages // 2
            keys = staged_ring(problem, "k", parts, tiles=config.kv_stages - values)
            return KeySlots(problem, keys), values_ring(problem, values)
        shape = [config.tile_n, max(problem.columns, problem.v_columns)]
        kv = b.Ring("kv", b.tile(shape, problem.element, "shared"), stages=config.kv_stages)
        return KeySlots.whole(problem, kv), kv


def values_ring(problem: Problem, stages: int) -> b.Ring:
    """A ring of values alone."""
    values = b.tile([problem.config.tile_n, problem.v_columns], problem.element, "shared")
    return b.Ring("v", values, stages=stages)
