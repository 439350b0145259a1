"""C = A B in bf16 with f32 sums, for machines whose products accumulate in tensor memory.

    python examples/products/tensor_memory.py [FILE]

One CTA per tile of C or, persistent, as many CTAs as multiprocessors. The roles, and the rings
between them:

```text
load ──a, b──► multiply ──sums──► round ──out──► leave
```

CTAs of a cluster have rows of C below one another: each loads a part of B for all.

Any M, N and K from 1 on: what a tile has beyond the edge of A or B is read as 0, what it has beyond
the edge of C is not written. The copy engine wants rows that begin at multiples of 16 bytes, which
dense matrices have for N and K in multiples of 8.
"""

from collections.abc import Callable

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import kernel_main
from attn_mlir.schedules import emit as b

NAME, TARGETS = "product", ("sm_100a",)
ROWS, COLUMNS, DEPTH = 128, 128, 64  # of a tile: of C, and of what a slot holds of K
STAGES = 5  # slots of A and of B, 32 KiB together
PIECE = 32  # columns that a thread rounds at a time


def product(order: str = "persistent", ctas: int = 1) -> ws.KernelOp:
    """Builds `product(a, b, c)`: c [m, n] = a [m, k] b [k, n], for clusters of `ctas` CTAs."""
    dynamic = ir.ShapedType.get_dynamic_size()
    narrow, wide = ir.BF16Type.get(), ir.F32Type.get()
    matrix = ir.MemRefType.get([dynamic, dynamic], narrow)
    names = {"a": ("in", ("m", "k")), "b": ("in", ("k", "n")), "c": ("out", ("m", "n"))}
    arguments = [b.Argument(name, role, matrix, dims) for name, (role, dims) in names.items()]
    kernel = b.declare_kernel(NAME, arguments, cluster=ctas)
    everyone = [tuple(range(ctas))] * ctas
    with ir.InsertionPoint(kernel.body.blocks[0]):
        left, right, result = kernel.body.blocks[0].arguments
        a = b.Ring("a", b.tile([ROWS, DEPTH], narrow, "shared"), stages=STAGES)
        strip = b.tile([DEPTH, COLUMNS], narrow, "shared")
        bs = b.Ring("b", strip, stages=STAGES, full_at=everyone, empty_at=everyone)
        sums = b.Ring("sums", b.tile([ROWS, COLUMNS], wide, "tensor"), stages=2)
        out = b.Ring("out", b.tile([ROWS, COLUMNS], narrow, "shared"))

        def each_tile(body: Callable[[b.Value, b.Value], None]) -> None:
            extents = [
                b.INT.ceildiv(b.extent(result, 0), ctas * ROWS),
                b.INT.ceildiv(b.extent(result, 1), COLUMNS),
            ]
            with b.tiles(extents, order) as (row, column):
                row = b.INT.add(b.INT.mul(row, ctas), b.rank())
                body(b.INT.mul(row, ROWS), b.INT.mul(column, COLUMNS))

        steps = b.INT.ceildiv(b.extent(left, 1), DEPTH)

        def load(row: b.Value, column: b.Value) -> None:
            first = b.INT.mul(b.rank(), DEPTH // ctas)
            with b.iterations(steps) as step:
                k = b.INT.mul(step, DEPTH)
                slot = a.acquire()
                b.copy_in(left, slot, [row, k], [0, 1])
                b.commit(slot, "copy_engine")
                slot = bs.acquire()
                part = b.rows(slot, first, DEPTH // ctas)
                b.copy_in(right, part, [b.INT.add(k, first), column], [0, 1], receivers=everyone)
                b.commit(slot, "copy_engine")

        def multiply(_: b.Value, __: b.Value) -> None:
            sum_ = sums.acquire()
            with b.iterations(steps) as step:
                slots = a.wait(), bs.wait()
                b.mma(sum_, *slots, accumulate=b.compare("ne", step, 0), b_layout="kn")
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
            with b.role(role.__name__, first=warp, warps=1, lanes=1):
                each_tile(role)
    return kernel


if __name__ == "__main__":
    kernel_main(__doc__, NAME, product, TARGETS)
