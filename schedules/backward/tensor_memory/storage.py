"""The rings and buffers of gradients in tensor memory."""

from collections.abc import Sequence

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.limits import Target, tensor_tile_columns
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients, Named
from attn_mlir.schedules.backward.stationary import SlotOfEach
from attn_mlir.schedules.backward.tensor_memory.numbers import part_numbers_of
from attn_mlir.schedules.backward.tensor_memory.policy import PARTS
from attn_mlir.schedules.core.problem import Problem, Value


class Weighed:
    """A tile that a product makes, and the tile that threads make of it for the next product.

    The groups of threads have a part of the columns each. Where the second tile lies in the place
    of the first one, a group stores its part when all have loaded theirs, of which tokens tell.

    Attributes:
      made: the ring of f32 tiles.
      used: the ring of rounded ones; None if no product reads any.
      held: the rings that a product waits for which reads `used`: both where they share a place, as
        the next product then has to wait for this one.
    """

    def __init__(self, problem: Problem, names: tuple[str, str | None], *, is_dense: bool):
        config, f32 = problem.config, ir.F32Type.get()
        made, used = names
        shape = [config.tile_m, config.tile_n]
        together = ("warps",) * PARTS
        self._part = config.tile_n // PARTS
        self.made = b.Ring(made, b.tile(shape, f32, "tensor"))
        self.used: b.Ring | None = None
        self.held: list[b.Ring] = []
        self._loaded: b.Ring | None = None
        if used is None:
            return
        weights = b.tile(shape, problem.element, "tensor")
        if is_dense:
            self._loaded = b.Ring(f"{made} loaded", None, producers=together)
            self.used = b.Ring(
                used, weights, inside=self.made, producers=together, known_empty=True
            )
            self.held = [self.used, self.made]
        else:
            self.used = b.Ring(used, weights, producers=together)
            self.held = [self.used]

    def load(self, group: Value) -> Value:
        """Awaits the first tile; returns the part of a group [rows, columns]."""
        slot = self.made.wait()
        found = b.load(self._part_of(slot, group))
        b.release(slot, "warps")
        if self._loaded is not None:
            b.commit(self._loaded.acquire(), "warps")
        return found

    def store(self, part: Value, group: Value) -> None:
        """Hands over the part of a group of the second tile."""
        assert self.used is not None
        if self._loaded is not None:
            b.release(self._loaded.wait(), "warps")
        slot = self.used.acquire()
        b.store(part, self._part_of(slot, group))
        b.commit(slot, "warps")

    def _part_of(self, tile: Value, group: Value) -> Value:
        return b.columns_at(tile, b.INT.mul(group, self._part), self._part)


class TensorGradientStorage:
    """The rings of the kernel.

    ```
    copy --x,y,u,v--> scores --s,dp--> compute --p,ds--> sums
      |                    '-------finished------.         |
      '-----u,v--------------------------------)---------^
    copy <--dx,dy-- compute <------------------------------'          rows --lse,delta--> compute
    ```
    Two threads issue products: `scores` those whose results threads read, ahead of the other one as
    far as slots allow, and `sums` those that add to gradients. Group g of `compute` has the columns
    of part g. `finished` signals that all products of a work tile are complete.

    Where tensor memory has no room beside the gradients, P lies in the place of S, and dS in that
    of dP.

    Attributes:
      stationary, streamed: of the two operands of each side.
      results: the rings of the gradients `parts`.
      numbers: the LSE and delta of queries.
      widths: columns of the first and of the second operand.
      s, dp: scores with weights, if a product reads these, and gradients of weights with those of
        scores.
      accumulators: the slots of the gradients, for each stationary operand.
      finished: tokens of finished work tiles.
    """

    def __init__(self, gradients: Gradients, target: Target):
        problem = gradients.problem
        config, element, f32 = problem.config, problem.element, ir.F32Type.get()
        self.widths = problem.columns, problem.v_columns

        def tiles(rows: int) -> list[ws.TileType]:
            return [b.tile([rows, width], element, "shared") for width in self.widths]

        def named_tiles(operands: Sequence[Named], rows: int) -> list[tuple[str, ws.TileType]]:
            return [(x, tile) for (x, _, _), tile in zip(operands, tiles(rows), strict=True)]

        stationary, streamed = gradients.operands()
        self.stationary = [SlotOfEach(*named) for named in named_tiles(stationary, config.tile_m)]
        self.streamed = [
            b.Ring(*named, stages=config.kv_stages)
            for named in named_tiles(streamed, config.tile_n)
        ]
        self.numbers = part_numbers_of(gradients)
        self.parts = gradients.parts()
        self.results = [
            b.Ring(x.name, x.tile(config.tile_m), producers=("warps",) * PARTS) for x in self.parts
        ]
        has_weights = not all(x.is_of_scores for x in self.parts)
        taken = 2 * config.tile_n + sum(x.columns for x in self.parts)
        bits, weighed = ws.element_bits(element), 1 + has_weights
        taken += weighed * tensor_tile_columns(config.tile_m, config.tile_n, bits)
        is_dense = taken > target.tensor_columns
        self.s = Weighed(problem, ("s", "p" if has_weights else None), is_dense=is_dense)
        self.dp = Weighed(problem, ("dp", "ds"), is_dense=is_dense)
        pairs = list(zip(stationary, self.widths, strict=True))
        self.accumulators = [
            b.Buffer(f"d{name} sums", b.tile([config.tile_m, width], f32, "tensor"))
            for (name, _, _), width in pairs[:weighed]
        ]
        self.finished = b.Ring("finished", None, producers=("tensor_core",) * 2)
