"""The rings and buffers of gradients in tensor memory."""

from collections.abc import Sequence

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.dialect.ws.places import footprint
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients, Named
from attn_mlir.schedules.backward.tensor_memory.numbers import part_numbers_of
from attn_mlir.schedules.backward.tensor_memory.policy import PARTS
from attn_mlir.schedules.core.problem import Value


class TensorGradientStorage:
    """The rings of the kernel; those of weights have an instance for each part of the columns.

    ```
    copy --x,y,u,v--> scores --s,dp--> compute --p,ds--> sums
      |                    '-------finished------.         |
      '-----u,v--------------------------------)---------^
    copy <--dx,dy-- compute <------------------------------'          rows --lse,delta--> compute
    ```
    Two threads issue products: `scores` those whose results threads read, ahead of the other one as
    far as slots allow, and `sums` those that add to gradients. Group g of `compute` has the columns
    of part g. `finished` signals that all products of a work tile are complete.

    Where tensor memory has no room beside the gradients (`is_dense`), S and dP have an instance for
    each part, too, in whose place P and dS lie. Then `sums` hands slots of S and dP back as well, when it has read what is
    in their place, and p and ds have no empty barriers: who waits for S hears of that.

    Attributes:
      stationary, streamed: of the two operands of each side.
      results: of the gradients.
      numbers: the LSE and delta of queries.
      widths: columns of the first and of the second operand.
      s, dp: scores and the gradients of weights.
      p, ds: weights, if a product reads them, and the gradients of scores, both rounded.
      accumulators: of the gradients.
      finished: tokens of finished work tiles.
      is_dense: whether p lies in s, and ds in dp.
      part: columns of a part.
      products: that a tile of scores takes, one for each instance of s and dp.
    """

    def __init__(self, gradients: Gradients, target: Target):
        problem = gradients.problem
        config, element, f32 = problem.config, problem.element, ir.F32Type.get()
        self.widths = problem.columns, problem.v_columns
        self.part = config.tile_n // PARTS

        def tiles(rows: int) -> list[ws.TileType]:
            return [b.tile([rows, width], element, "shared") for width in self.widths]

        def rings(operands: Sequence[Named], rows: int, stages: int) -> list[b.Ring]:
            named = zip(operands, tiles(rows), strict=True)
            return [b.Ring(name, x, stages=stages) for (name, _, _), x in named]

        stationary, streamed = gradients.operands()
        self.stationary = rings(stationary, config.tile_m, 1)
        self.streamed = rings(streamed, config.tile_n, config.kv_stages)
        self.numbers = part_numbers_of(gradients)
        named = list(zip(stationary, self.widths, gradients.results, strict=False))
        sums = {f"d{name}": [config.tile_m, width] for (name, _, _), width, _ in named}
        self.results = [
            b.Ring(name, b.tile(shape, problem.output, "shared"), producers=("warps",) * PARTS)
            for name, shape in sums.items()
        ]
        weights = b.tile([config.tile_m, self.part], element, "tensor")
        taken = [*sums.values(), [config.tile_m, 2 * config.tile_n]]
        apart = [footprint(weights).extent * PARTS] * len(sums)
        self.is_dense = sum(width for _, width in taken) + sum(apart) > target.tensor_columns
        self.products = PARTS if self.is_dense else 1
        scores = b.tile([config.tile_m, config.tile_n // self.products], f32, "tensor")
        self.s, self.dp = (b.Ring(name, scores, instances=self.products) for name in ("s", "dp"))

        def over(name: str, ring: b.Ring) -> b.Ring:
            dense = {"inside": ring, "known_empty": True} if self.is_dense else {}
            return b.Ring(name, weights, instances=PARTS, **dense)

        self.p = over("p", self.s) if len(sums) > 1 else None
        self.ds = over("ds", self.dp)
        self.accumulators = [
            b.Buffer(f"{name} sums", b.tile(shape, f32, "tensor")) for name, shape in sums.items()
        ]
        self.finished = b.Ring("finished", None, producers=("tensor_core",) * 2)

    def load_part(self, ring: b.Ring, group: Value) -> Value:
        """Awaits S or dP, loads the part of a group and hands it back."""
        if self.is_dense:
            slot = part = ring.wait(group)
        else:
            slot = ring.wait()
            part = b.columns_at(slot, b.INT.mul(group, self.part), self.part)
        found = b.load(part)
        b.release(slot, "warps")
        return found
