"""C = A B in bf16 with f32 sums, for machines whose products accumulate in tensor memory.

    python examples/products/tensor_memory.py [FILE]

One CTA per tile of C or, persistent, as many CTAs as multiprocessors. The roles, and the rings
between them:

```text
load ──a, b──► multiply ──sums──► round ──out──► leave
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
ROWS, COLUMNS, DEPTH = 128, 128, 64  # of a tile: of C, and of what a slot holds of K
STAGES = 5  # slots of A and of B, 32 KiB together
PIECE = 32  # columns that a thread rounds at a time


def product(order: str = "persistent") -> ws.KernelOp:
    """Builds `product(a, b, c)`: c [m, n] = a [m, k] b [k, n], at the insertion point."""
    dynamic = ir.ShapedType.get_dynamic_size()
    narrow, wide = ir.BF16Type.get(), ir.F32Type.get()
    matrix = ir.MemRefType.get([dynamic, dynamic], narrow)
    names = {"a": ("in", ("m", "k")), "b": ("in", ("k", "n")), "c": ("out", ("m", "n"))}
    kernel = b.declare_kernel(
        NAME, [b.Argument(name, role, matrix, dims) for name, (role, dims) in names.items()]
    )
    with ir.InsertionPoint(kernel.body.blocks[0]):
        left, right, result = kernel.body.blocks[0].arguments
        a = b.Ring("a", b.tile([ROWS, DEPTH], narrow, "shared"), stages=STAGES)
        bs = b.Ring("b", b.tile([DEPTH, COLUMNS], narrow, "shared"), stages=STAGES)
        sums = b.Ring("sums", b.tile([ROWS, COLUMNS], wide, "tensor"), stages=2)
        out = b.Ring("out", b.tile([ROWS, COLUMNS], narrow, "shared"))

        def each_tile(body: Callable[[b.Value, b.Value], None]) -> None:
            extents = [
                b.INT.ceildiv(b.extent(result, 0), ROWS),
                b.INT.ceildiv(b.extent(result, 1), COLUMNS),
            ]
            with b.tiles(extents, order) as (row, column):
                body(b.INT.mul(row, ROWS), b.INT.mul(column, COLUMNS))

        def each_step(body: Callable[[b.Value], None]) -> None:
            def turn(step: b.Value) -> list[b.Value]:
                body(b.INT.mul(step, DEPTH))
                return []

            b.loop(0, b.INT.ceildiv(b.extent(left, 1), DEPTH), [], turn)

        def load(row: b.Value, column: b.Value) -> None:
            def step(k: b.Value) -> None:
                for ring, source, at in ((a, left, [row, k]), (bs, right, [k, column])):
                    slot = ring.acquire()
                    b.copy_in(source, slot, at, [0, 1])
                    b.commit(slot, "copy_engine")

            each_step(step)

        def multiply(_: b.Value, __: b.Value) -> None:
            sum_ = sums.acquire()

            def step(k: b.Value) -> None:
                slots = a.wait(), bs.wait()
                b.mma(sum_, *slots, accumulate=b.compare("ne", k, 0), b_layout="kn")
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
        for warp, role in enumerate((multiply, leave, load), 4):
            with b.role(role.__name__, first=warp, warps=1, lanes=1):
                each_tile(role)
    return kernel


if __name__ == "__main__":
    kernel_main(__doc__, NAME, product, TARGETS)
