"""The rings and buffers of the kernel whose products accumulate in tensor memory."""

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.ws.tiles import ANSWER_BYTES

from . import builder as b
from .key_slots import KeySlots, WholeKeys
from .problem import Problem
from .row_factors import RowFactors

CLAIMS_AHEAD = (
    2  # slots for claimed work tiles: how many of them the fastest role may be ahead of the slowest
)


class Storage:
    """The rings and buffers of the kernel; `ways` are its query tiles.

    ```
    load --q,kv--> mma --s--> softmax --stats--> correction --out--> epilogue
                   | ^ ^         |                 ^  |
                   | | '----p----'                 |  |
                   | '------p----------------------+--'
                   '----------finished-------------'            correction --heard--> softmax
    ```
    `s` carries the scores S to softmax, which writes the probabilities P to the same place, as `p`.
    Softmax and correction commit a slot of `p` together: P is there, and O has been rescaled to the new
    row maximum. A full `s` says that the previous product P V is complete: `stats`, handed over behind the
    wait for it, tells correction that O may be rescaled; `finished` tells correction that the last one is complete, and its release tells mma that
    O has been read. When softmax has scores, correction has read the factors in `stats` before, of which
    P tells as well; at the end of a work tile `heard` tells softmax so, before it hands 1 / l over and
    after. `factors` multiply scores, if rows have any. `answers` has the coordinates of claimed work tiles, if the tile order claims any.
    """

    def __init__(self, problem: Problem, factors: RowFactors | None = None):
        """With what softmax multiplies scores by, if rows have factors."""
        self.factors = factors
        config, element = problem.config, problem.element
        f32 = ir.F32Type.get()
        ways = config.q_tiles
        self.q = b.Ring("q", b.tile([config.tile_m, problem.columns], element, "shared"), ways=ways)
        self.keys, self.v = self._keys_and_values(problem)
        scores = [config.tile_m, config.tile_n]
        self.s = b.Ring("s", b.tile(scores, f32, "tensor"), ways=ways)
        self.p = b.Ring(
            "p",
            b.tile(scores, element, "tensor"),
            ways=ways,
            inside=self.s,
            producers=("threads", "threads"),
        )
        factors_of_rows = b.tile([config.tile_m], f32, "shared")
        self.stats = b.Ring("stats", factors_of_rows, ways=ways, known_empty=True)
        self.heard = b.Ring("heard", None, ways=ways)
        out = b.tile([config.tile_m, problem.v_columns], problem.output, "shared")
        self.out = b.Ring("out", out, ways=ways)
        self.o = b.Buffer("o", b.tile([config.tile_m, problem.v_columns], f32, "tensor"), ways=ways)
        self.finished = b.Ring("finished", None, ways=ways)
        self.answers: b.Ring | None = None
        if config.tile_order == "clc":
            words = b.tile([ANSWER_BYTES // 4], b.i32(), "shared")
            self.answers = b.Ring("answers", words, stages=CLAIMS_AHEAD)

    def _keys_and_values(self, problem: Problem) -> tuple[KeySlots, b.Ring]:
        """The rings of keys and of values: here one ring, in whose slots they lie in turn."""
        config = problem.config
        shape = [config.tile_n, max(problem.columns, problem.v_columns)]
        kv = b.Ring("kv", b.tile(shape, problem.element, "shared"), stages=config.kv_stages)
        return WholeKeys(problem, kv), kv
