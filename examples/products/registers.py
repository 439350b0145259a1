"""C = A B in bf16 with f32 sums, for machines whose products accumulate in registers.

    python examples/products/registers.py [FILE]

A tile of C is the work of two groups of threads, half of its rows each, which share B. The roles,
and the rings between them, of which those of a group are instances:

```text
load ──a, b──► multiply ──out──► leave
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

NAME, TARGETS = "product", ("sm_90a",)
GROUPS = 2
ROWS, COLUMNS, DEPTH = 64, 256, 64  # of a tile of a group: of C, and of what a slot holds of K
STAGES = 3  # slots of A and of B, 48 KiB together
TOGETHER = 8  # rows of tiles that are worked on side by side: what they load of B is in the cache


def product(order: str = "persistent", ctas: int = 1) -> ws.KernelOp:
    """Builds `product(a, b, c)`: c [m, n] = a [m, k] b [k, n], for clusters of `ctas` CTAs."""
    dynamic = ir.ShapedType.get_dynamic_size()
    narrow = ir.BF16Type.get()
    matrix = ir.MemRefType.get([dynamic, dynamic], narrow)
    names = {"a": ("in", ("m", "k")), "b": ("in", ("k", "n")), "c": ("out", ("m", "n"))}
    arguments = [b.Argument(name, role, matrix, dims) for name, (role, dims) in names.items()]
    kernel = b.declare_kernel(NAME, arguments, cluster=ctas)
    everyone = [tuple(range(ctas))] * ctas
    height = GROUPS * ROWS  # of what a CTA has of C
    with ir.InsertionPoint(kernel.body.blocks[0]):
        left, right, result = kernel.body.blocks[0].arguments
        a = b.Ring("a", b.tile([ROWS, DEPTH], narrow, "shared"), stages=STAGES, instances=GROUPS)
        strip = b.tile([DEPTH, COLUMNS], narrow, "shared")
        bs = b.Ring("b", strip, stages=STAGES, full_at=everyone, empty_at=everyone)
        out = b.Ring("out", b.tile([ROWS, COLUMNS], narrow, "shared"), instances=GROUPS)

        def each_tile(body: Callable[[b.Value, b.Value], None]) -> None:
            m, n = (b.extent(result, dim) for dim in range(2))
            strips = b.INT.ceildiv(m, TOGETHER * ctas * height)
            extents = [b.constant(TOGETHER), b.INT.ceildiv(n, COLUMNS), strips]
            with b.tiles(extents, order) as (inner, column, strip):
                row = b.INT.add(b.INT.mul(strip, TOGETHER), inner)
                row = b.INT.mul(row, ctas * height)
                with b.when(b.compare("slt", row, m)):
                    row = b.INT.add(row, b.INT.mul(b.rank(), height))
                    body(row, b.INT.mul(column, COLUMNS))

        steps = b.INT.ceildiv(b.extent(left, 1), DEPTH)

        def load(row: b.Value, column: b.Value) -> None:
            def step(number: b.Value) -> list[b.Value]:
                k = b.INT.mul(number, DEPTH)
                for group in range(GROUPS):
                    slot = a.acquire(group)
                    b.copy_in(left, slot, [b.INT.add(row, group * ROWS), k], [0, 1])
                    b.commit(slot, "copy_engine")
                slot = bs.acquire()
                first = b.INT.mul(b.rank(), DEPTH // ctas)
                part = b.rows(slot, first, DEPTH // ctas)
                b.copy_in(right, part, [b.INT.add(k, first), column], [0, 1], receivers=everyone)
                b.commit(slot, "copy_engine")
                return []

            b.loop(0, steps, [], step)

        def leave(row: b.Value, column: b.Value) -> None:
            for group in range(GROUPS):
                slot = out.wait(group)
                b.copy_out(slot, result, [b.INT.add(row, group * ROWS), column], [0, 1])
                b.release(slot, "copy_engine")

        with b.role("multiply", first=0, warps=4 * GROUPS, groups=GROUPS, registers=232) as group:

            def step(number: b.Value, sums: b.Value) -> list[b.Value]:
                slots = a.wait(group), bs.wait()
                sums = b.wait_product(b.product(sums, *slots, accumulate=True, b_layout="kn"))
                for slot in slots:
                    b.release(slot, "threads")
                return [sums]

            def multiply(_: b.Value, __: b.Value) -> None:
                zeros = b.fill([ROWS, COLUMNS], b.f32_constant(0.0))
                (sums,) = b.loop(0, steps, [zeros], step)
                slot = out.acquire(group)
                rounded = b.map_elements(lambda x: b.truncate(x, narrow), sums, element=narrow)
                b.store(rounded, slot)
                b.commit(slot, "threads")

            each_tile(multiply)
        for warp, role in enumerate((load, leave), 4 * GROUPS):
            with b.role(role.__name__, first=warp, warps=1, lanes=1, registers=40):
                each_tile(role)
    return kernel


if __name__ == "__main__":
    kernel_main(__doc__, NAME, product, TARGETS)
