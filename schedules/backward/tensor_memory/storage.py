"""The rings and buffers of gradients in tensor memory."""

from collections.abc import Sequence
from functools import partial

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients, Named
from attn_mlir.schedules.backward.tensor_memory.numbers import part_numbers_of
from attn_mlir.schedules.backward.tensor_memory.policy import PARTS


class TensorGradientStorage:
    """The rings of the kernel; those of scores have an instance for each part of their columns.

    ```
    load --x,y,u,v--> mma --s,dp--> compute --dx,dy--> leave
                       ^ |             | |
                       | '--finished---)-'             rows --lse,delta--> compute
                       '-----p,ds------'
    ```
    Group g of `compute` has the columns of part g: it reads S and writes P in its place, and then
    dS in the place of dP. Neither ring has empty barriers: mma issues the next S after it has
    waited for dS, and products complete in the order of their issue. `finished` signals that all
    products of a work tile are complete.

    Attributes:
      stationary, streamed: of the two operands of each side.
      results: of the gradients.
      numbers: the LSE and delta of queries.
      widths: columns of the first and of the second operand.
      s, dp: scores and the gradients of weights.
      p, ds: weights, if a product reads them, and the gradients of scores, both rounded.
      accumulators: of the gradients.
      finished: tokens of finished work tiles.
    """

    def __init__(self, gradients: Gradients):
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
        scores, weights = (
            b.tile([config.tile_m, self.part], kind, "tensor") for kind in (f32, element)
        )
        self.s, self.dp = (
            b.Ring(name, scores, instances=PARTS, known_empty=True) for name in ("s", "dp")
        )
        inside = partial(b.Ring, tile=weights, instances=PARTS, known_empty=True)
        self.p = inside("p", inside=self.s) if len(sums) > 1 else None
        self.ds = inside("ds", inside=self.dp)
        self.accumulators = [
            b.Buffer(f"{name} sums", b.tile(shape, f32, "tensor")) for name, shape in sums.items()
        ]
        self.finished = b.Ring("finished", None)
