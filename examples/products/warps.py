"""C = A B in bf16 with f32 sums, for few rows: each warp has a part of K, and the parts are added up.

    python examples/products/warps.py [FILE [TARGET]]

For decoding: a tile of C has 16 rows, say the heads of a group. Row k of B is row table[k] of b,
zeros where there is none. Each warp that multiplies has one that loads: many copies are under way.

```text
load ──a, b──► multiply ──sums──► merge
```

Step s of K is the work of warp s mod 4, a run of steps that of one of `parts` CTAs. Each writes its
sums to `sums` [parts, m, n]; who is last at its counter in `arrived` [m / 16, n / 128, 4], rounded
up, adds them up in order. Counters begin as 0 and end so. Any M; N and K in multiples of 8.
"""

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import kernel_main
from attn_mlir.schedules import emit as b

NAME, TARGETS = "product", ("sm_90a", "sm_100a")
WARPS = 4  # of each role
ROWS, COLUMNS, DEPTH = 16, 128, 32  # of a tile: of C, and of what a slot holds of K
SHARE = COLUMNS // WARPS  # columns that a warp merges
STAGES = 4  # slots of A and of B of a warp, 10 KiB together


def product(order: str = "single") -> ws.KernelOp:
    """Builds `product(a, b, table, c, sums, arrived)`: c = a b[table], at the insertion point."""
    kind, narrow = ir.Type.parse, ir.BF16Type.get()
    arguments = [
        b.Argument("a", "in", kind("memref<?x?xbf16>"), ("m", "k")),
        b.Argument("b", "in", kind("memref<?x?xbf16>"), ("rows", "n")),
        b.Argument("table", "in", kind("memref<?xi32>"), ("k",)),
        b.Argument("c", "out", kind("memref<?x?xbf16>"), ("m", "n")),
        b.Argument("sums", "inout", kind("memref<?x?x?xf32>"), ("parts", "m", "n")),
        b.Argument("arrived", "inout", kind(f"memref<?x?x{WARPS}xi32>"), ("down", "across", "")),
    ]
    kernel = b.declare_kernel(NAME, arguments)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        left, right, table, result, workspace, arrived = kernel.body.blocks[0].arguments
        a = b.Ring("a", b.tile([ROWS, DEPTH], narrow, "shared"), stages=STAGES, instances=WARPS)
        bs = b.Ring("b", b.tile([DEPTH, COLUMNS], narrow, "shared"), stages=STAGES, instances=WARPS)
        share = b.tile([ROWS, SHARE], ir.F32Type.get(), "shared")
        sums = b.Ring("sums", share, instances=WARPS * WARPS)
        depth, parts = b.extent(left, 1), b.extent(workspace, 0)

        def first(part: b.Value) -> b.Value:
            """The step of each warp that a part begins with."""
            return b.INT.floordiv(b.INT.mul(part, b.INT.ceildiv(depth, WARPS * DEPTH)), parts)

        def load(down: b.Value, across: b.Value, part: b.Value) -> None:
            def start(step: b.Value) -> b.Value:
                return b.INT.mul(b.INT.add(b.INT.mul(step, WARPS), warp), DEPTH)

            def rows_of(step: b.Value) -> b.Value:
                found = b.load_global(table, [DEPTH], [start(step)], [0])
                end, none = b.INT.sub(depth, start(step)), b.constant(-1)  # beyond K
                return b.map_rows(lambda row, i: b.select(b.INT.less(i, end), row, none), found)

            def body(step: b.Value, found: b.Value) -> list[b.Value]:
                ahead, k = rows_of(b.INT.add(step, 1)), start(step)
                slot, other = a.acquire(warp), bs.acquire(warp)
                row, column = b.INT.mul(down, ROWS), b.INT.mul(across, COLUMNS)
                b.copy_rows(left, slot, [row, k], [0, 1], lambda i: i)
                b.commit(slot, "thread_copies")
                b.copy_rows(right, other, [0, column], [0, 1], lambda _, x: x, found)
                b.commit(other, "thread_copies")
                return [ahead]

            b.loop(first(part), first(b.INT.add(part, 1)), [rows_of(first(part))], body)
            b.launch_dependents()

        def multiply(_: b.Value, __: b.Value, part: b.Value) -> None:
            def body(_: b.Value, *totals: b.Value) -> list[b.Value]:
                slot, other = a.wait(warp), bs.wait(warp)
                rows = b.load(slot)
                shares = [b.load(b.columns(other, i * SHARE, SHARE)) for i in range(WARPS)]
                b.release(slot, "threads")
                b.release(other, "threads")
                pairs = zip(totals, shares, strict=True)
                return [b.dot(total, rows, share, b_layout="kn") for total, share in pairs]

            zeros = b.fill([ROWS, SHARE], b.f32_constant(0.0))
            totals = b.loop(first(part), first(b.INT.add(part, 1)), [zeros] * WARPS, body)
            for share, total in enumerate(totals):
                slot = sums.acquire(b.INT.add(b.INT.mul(warp, WARPS), share))
                b.store(total, slot)
                b.commit(slot, "threads")

        def merge(down: b.Value, across: b.Value, part: b.Value) -> None:
            def add(number: b.Value, total: b.Value) -> list[b.Value]:
                one = b.load_global(workspace, [ROWS, SHARE], [number, *place], [1, 2])
                return [b.map_elements(b.fadd, total, one)]

            column = b.INT.mul(b.INT.add(b.INT.mul(across, WARPS), warp), SHARE)
            place = [b.INT.mul(down, ROWS), column]
            total = zeros = b.fill([ROWS, SHARE], b.f32_constant(0.0))
            for other in range(WARPS):
                slot = sums.wait(b.INT.add(warp, other * WARPS))
                total = b.map_elements(b.fadd, total, b.load(slot))
                b.release(slot, "threads")
            b.store_global(total, workspace, [part, *place], [1, 2])
            with b.when(b.arrive_last(arrived, [down, across, warp], parts)):
                (total,) = b.loop(0, parts, [zeros], add)
                rounded = b.map_elements(lambda x: b.truncate(x, narrow), total, element=narrow)
                b.store_global(rounded, result, place, [0, 1])

        for number, role in enumerate((multiply, load, merge)):
            with b.role(role.__name__, first=number * WARPS, warps=WARPS, groups=WARPS) as warp:
                if role is not multiply:
                    b.grid_dependency_wait()
                with b.tiles([b.extent(arrived, 0), b.extent(arrived, 1), parts], order) as tile:
                    role(*tile)
    return kernel


if __name__ == "__main__":
    kernel_main(__doc__, NAME, product, TARGETS)
