"""C = A B in bf16 with f32 sums, for few rows: each warp has a part of K, and the parts are added up.

    python examples/products/warps.py [FILE [TARGET]]

A tile of C is 16 rows, as many as a product of one warp has: those of a decoding step's heads, say.
Its columns are few, so that many CTAs share the work, and within a CTA the warps share K: step s is
the work of warp s mod 4. Their sums meet in shared memory, where `merge` adds them up. The roles,
and the rings between them, of which those of a warp are ways:

```text
load ──a, b──► multiply ──sums──► merge ──out──► leave
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

NAME, TARGETS = "product", ("sm_90a", "sm_100a")
WARPS = 4  # that multiply
ROWS, COLUMNS, DEPTH = 16, 64, 64  # of a tile: of C, and of what a slot holds of K
STAGES = 4  # slots of A and of B of a warp, 10 KiB together


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
        a = b.Ring("a", b.tile([ROWS, DEPTH], narrow, "shared"), stages=STAGES, ways=WARPS)
        bs = b.Ring("b", b.tile([DEPTH, COLUMNS], narrow, "shared"), stages=STAGES, ways=WARPS)
        sums = b.Ring("sums", b.tile([ROWS, COLUMNS], wide, "shared"), ways=WARPS)
        out = b.Ring("out", b.tile([ROWS, COLUMNS], narrow, "shared"))

        def each_tile(body: Callable[[b.Value, b.Value], None]) -> None:
            extents = [
                b.INT.ceildiv(b.extent(result, 0), ROWS),
                b.INT.ceildiv(b.extent(result, 1), COLUMNS),
            ]
            with b.tiles(extents, order) as (row, column):
                body(b.INT.mul(row, ROWS), b.INT.mul(column, COLUMNS))

        turns = b.INT.ceildiv(b.extent(left, 1), WARPS * DEPTH)

        def load(row: b.Value, column: b.Value) -> None:
            def turn(number: b.Value) -> list[b.Value]:
                for warp in range(WARPS):
                    k = b.INT.mul(b.INT.add(b.INT.mul(number, WARPS), warp), DEPTH)
                    for ring, source, at in ((a, left, [row, k]), (bs, right, [k, column])):
                        slot = ring.acquire(warp)
                        b.copy_in(source, slot, at, [0, 1])
                        b.commit(slot, "copy_engine")
                return []

            b.loop(0, turns, [], turn)

        with b.role("multiply", first=0, warps=WARPS, groups=WARPS) as warp:

            def step(_: b.Value, total: b.Value) -> list[b.Value]:
                slots = a.wait(warp), bs.wait(warp)
                total = b.dot(total, *map(b.load, slots), b_layout="kn")
                for slot in slots:
                    b.release(slot, "threads")
                return [total]

            def multiply(_: b.Value, __: b.Value) -> None:
                zeros = b.fill([ROWS, COLUMNS], b.f32_constant(0.0))
                (total,) = b.loop(0, turns, [zeros], step)
                slot = sums.acquire(warp)
                b.store(total, slot)
                b.commit(slot, "threads")

            each_tile(multiply)

        def merge(_: b.Value, __: b.Value) -> None:
            slots = [sums.wait(warp) for warp in range(WARPS)]
            total, *others = map(b.load, slots)
            for other in others:
                total = b.map_elements(b.fadd, total, other)
            for slot in slots:
                b.release(slot, "threads")
            slot = out.acquire()
            b.store(b.map_elements(lambda x: b.truncate(x, narrow), total, element=narrow), slot)
            b.commit(slot, "threads")

        def leave(row: b.Value, column: b.Value) -> None:
            slot = out.wait()
            b.copy_out(slot, result, [row, column], [0, 1])
            b.release(slot, "copy_engine")

        with b.role("merge", first=WARPS, warps=1):
            each_tile(merge)
        for warp, role in enumerate((leave, load), WARPS + 1):
            with b.role(role.__name__, first=warp, warps=1, lanes=1):
                each_tile(role)
    return kernel


if __name__ == "__main__":
    kernel_main(__doc__, NAME, product, TARGETS)
