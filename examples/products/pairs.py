"""C = A B in bf16 with f32 sums, of pairs of CTAs, which share what they multiply.

    python examples/products/pairs.py [FILE]

A pair works on a tile of C: each CTA has half of its rows, and loads half of what it needs of B. The
pairs of a cluster need the same rows of A: each loads a part of them for all. Roles and rings:

```text
load of every CTA ──a──► multiply of all pairs      multiply ──sums──► round ──out──► leave
                  ──b──► multiply of its pair       of a pair          of both CTAs
```

Any M from 1 on, and N and K in multiples of 8, as for the other products.
"""

from collections.abc import Callable

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import kernel_main
from attn_mlir.schedules import emit as b

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
    leader, pair = ([ws.pair_of(rank)[:count] for rank in ctas] for count in (1, 2))
    leaders, everyone = ([tuple(ctas[::step])] * len(ctas) for step in (2, 1))
    same_rows = [tuple(ctas[rank % 2 :: 2]) for rank in ctas]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        left, right, result = kernel.body.blocks[0].arguments
        strip = b.tile([ROWS, DEPTH], narrow, "shared")
        a = b.Ring("a", strip, stages=STAGES, full_at=leaders, empty_at=everyone)
        half = b.tile([DEPTH, COLUMNS // 2], narrow, "shared")
        bs = b.Ring("b", half, stages=STAGES, full_at=leader, empty_at=pair)
        total = b.tile([ROWS, COLUMNS], wide, "tensor")
        sums = b.Ring("sums", total, stages=2, full_at=pair, empty_at=leader)
        out = b.Ring("out", b.tile([ROWS, COLUMNS], narrow, "shared"))

        def place() -> tuple[b.Value, b.Value]:
            """The place of this CTA in its pair, and that of its pair in the cluster."""
            number = b.INT.floordiv(b.rank(), 2)
            return b.INT.sub(b.rank(), b.INT.mul(number, 2)), number

        def each_tile(body: Callable[[b.Value, b.Value], None]) -> None:
            steps = 2 * ROWS, pairs * COLUMNS
            extents = [b.INT.ceildiv(b.extent(result, dim), step) for dim, step in enumerate(steps)]
            side, number = place()
            with b.tiles(extents, order) as (row, column):
                row = b.INT.add(b.INT.mul(row, 2), side)
                column = b.INT.add(b.INT.mul(column, pairs), number)
                body(b.INT.mul(row, ROWS), b.INT.mul(column, COLUMNS))

        steps = b.INT.ceildiv(b.extent(left, 1), DEPTH)

        def load(row: b.Value, column: b.Value) -> None:
            side, number = place()
            first = b.INT.mul(number, ROWS // pairs)
            column = b.INT.add(column, b.INT.mul(side, COLUMNS // 2))
            with b.iterations(steps) as step:
                k = b.INT.mul(step, DEPTH)
                slots = a.acquire(), bs.acquire()
                part = b.rows(slots[0], first, ROWS // pairs)
                b.copy_in(left, part, [b.INT.add(row, first), k], [0, 1], receivers=same_rows)
                b.copy_in(right, slots[1], [k, column], [0, 1])
                for slot in slots:
                    b.commit(slot, "copy_engine")

        def multiply(_: b.Value, __: b.Value) -> None:
            sum_ = sums.acquire()
            with b.iterations(steps) as step:
                slots = a.wait(), bs.wait()
                b.mma(sum_, *slots, accumulate=b.compare("ne", step, 0), b_layout="kn", ctas=2)
                for slot in slots:
                    b.release(slot, "tensor_core")
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
        for warp, role in enumerate((multiply, leave, load), 4):
            ranks = ctas[::2] if role is multiply else ctas
            with b.role(role.__name__, first=warp, warps=1, lanes=1, ranks=ranks):
                each_tile(role)
    return kernel


if __name__ == "__main__":
    kernel_main(__doc__, NAME, product, TARGETS)
