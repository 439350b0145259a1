"""C = A B in bf16 with f32 sums, of pairs of CTAs, which share what they multiply.

    python examples/products/pairs.py [FILE]

A pair works on a tile of C: each CTA has half of its rows, and loads half of what the tile needs of
B. The pairs of a cluster stand side by side, so that they need the same rows of A: each loads a part
of them for all. The roles, and the rings between them:

```text
load of every CTA ──a──► multiply of all pairs      multiply ──sums──► round ──out──► leave
                  ──b──► multiply of its pair       of a pair          of both CTAs
```

Any M, N and K from 1 on: what a tile has beyond the edge of A or B is read as 0, what it has beyond
the edge of C is not written. The copy engine wants rows that begin at multiples of 16 bytes, which
dense matrices have for N and K in multiples of 8.
"""

from collections.abc import Callable

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import kernel_main
from attn_mlir.passes.schedule.parts import builder as b

NAME, TARGETS = "product", ("sm_100a",)
PAIRS = 2  # of CTAs in a cluster
ROWS, COLUMNS, DEPTH = 128, 256, 64  # of C for a CTA, of C for a pair, of K in a slot
STAGES = 4  # slots of A and of B, 32 KiB together
PIECE = 32  # columns that a thread rounds at a time


def product(order: str = "persistent", pairs: int = PAIRS) -> ws.KernelOp:
    """Builds `product(a, b, c)`: c [m, n] = a [m, k] b [k, n], at the insertion point."""
    dynamic = ir.ShapedType.get_dynamic_size()
    narrow, wide = ir.BF16Type.get(), ir.F32Type.get()
    matrix = ir.MemRefType.get([dynamic, dynamic], narrow)
    names = {"a": ("in", ("m", "k")), "b": ("in", ("k", "n")), "c": ("out", ("m", "n"))}
    arguments = [b.Argument(name, role, matrix, dims) for name, (role, dims) in names.items()]
    ctas = range(2 * pairs)
    kernel = b.declare_kernel(NAME, arguments, cluster=len(ctas))
    everyone, leaders = tuple(ctas), tuple(ctas[::2])
    leader, pair = ([ws.pair_of(rank)[:count] for rank in ctas] for count in (1, 2))
    same_rows = [tuple(ctas[rank % 2 :: 2]) for rank in ctas]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        left, right, result = kernel.body.blocks[0].arguments
        a = b.Ring(
            "a",
            b.tile([ROWS, DEPTH], narrow, "shared"),
            stages=STAGES,
            full_at=[leaders for _ in ctas],
            empty_at=[everyone for _ in ctas],
        )
        half = b.tile([DEPTH, COLUMNS // 2], narrow, "shared")
        bs = b.Ring("b", half, stages=STAGES, full_at=leader, empty_at=pair)
        total = b.tile([ROWS, COLUMNS], wide, "tensor")
        sums = b.Ring("sums", total, stages=2, full_at=pair, empty_at=leader)
        out = b.Ring("out", b.tile([ROWS, COLUMNS], narrow, "shared"))

        def each_tile(body: Callable[[b.Value, b.Value], None]) -> None:
            """Of a cluster; the body sees the first row of this CTA and the first column of its pair."""
            steps = 2 * ROWS, pairs * COLUMNS
            extents = [b.INT.ceildiv(b.extent(result, dim), step) for dim, step in enumerate(steps)]
            number = b.INT.floordiv(b.rank(), 2)
            side = b.INT.sub(b.rank(), b.INT.mul(number, 2))
            with b.tiles(extents, order) as (row, column):
                row = b.INT.add(b.INT.mul(row, 2), side)
                column = b.INT.add(b.INT.mul(column, pairs), number)
                body(b.INT.mul(row, ROWS), b.INT.mul(column, COLUMNS))

        def each_step(body: Callable[[b.Value], None]) -> None:
            def turn(step: b.Value) -> list[b.Value]:
                body(b.INT.mul(step, DEPTH))
                return []

            b.loop(0, b.INT.ceildiv(b.extent(left, 1), DEPTH), [], turn)

        def load(row: b.Value, column: b.Value) -> None:
            number = b.INT.floordiv(b.rank(), 2)
            side = b.INT.sub(b.rank(), b.INT.mul(number, 2))
            first = b.INT.mul(number, ROWS // pairs)
            column = b.INT.add(column, b.INT.mul(side, COLUMNS // 2))

            def step(k: b.Value) -> None:
                slot = a.acquire()
                part = b.rows(slot, first, ROWS // pairs)
                b.copy_in(left, part, [b.INT.add(row, first), k], [0, 1], receivers=same_rows)
                b.commit(slot, "copy_engine")
                slot = bs.acquire()
                b.copy_in(right, slot, [k, column], [0, 1])
                b.commit(slot, "copy_engine")

            each_step(step)

        def multiply(_: b.Value, __: b.Value) -> None:
            sum_ = sums.acquire()

            def step(k: b.Value) -> None:
                slots = a.wait(), bs.wait()
                b.mma(sum_, *slots, accumulate=b.compare("ne", k, 0), b_layout="kn", ctas=2)
                for slot in slots:
                    b.release(slot, "tensor_core")

            each_step(step)
            b.commit(sum_, "tensor_core")

        def round_off(_: b.Value, __: b.Value) -> None:
            sum_, slot = sums.wait(), out.acquire()
            for first in range(0, COLUMNS, PIECE):
                piece = b.load(b.columns(sum_, first, PIECE))
                rounded = b.map_elements(lambda x: b.truncate(x, narrow), piece, element=narrow)
                b.store(rounded, b.columns(slot, first, PIECE))
            b.release(sum_, "threads")
            b.commit(slot, "threads")

        def leave(row: b.Value, column: b.Value) -> None:
            slot = out.wait()
            b.copy_out(slot, result, [row, column], [0, 1])
            b.release(slot, "copy_engine")

        with b.role("round", first=0, warps=4):
            each_tile(round_off)
        for warp, (role, ranks) in enumerate(((multiply, leaders), (leave, None), (load, None)), 4):
            with b.role(role.__name__, first=warp, warps=1, lanes=1, ranks=ranks):
                each_tile(role)
    return kernel


if __name__ == "__main__":
    kernel_main(__doc__, NAME, product, TARGETS)
