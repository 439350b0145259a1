"""A pair that multiplies 64 rows of each of its CTAs by rows of a table that either gathers half of."""

from __future__ import annotations

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.passes.schedule.parts import builder as b

ROWS = 64  # of a CTA


def gathered_product(count: int, depth: int, layout: str) -> ws.KernelOp:
    """y[rank, 64 h + r] = row r of this CTA's rows of a x, and h-th half of its columns.

    Added up are the products of those blocks of the list whose first entry is a row.

    For `nk`, x has the rows that a block of `count` entries lists, transposed: each CTA gathers half of
    them. For `kn`, each gathers `depth` rows of its half of `count` columns. CTAs decide for themselves
    whether a block is gathered; the even one issues the products. Threads copy a, two rows a line.

    Args:
      count: columns of y.
      depth: columns of a, an even number of lines.
    """
    bf16, f32 = ir.BF16Type.get(), ir.F32Type.get()
    dynamic = ir.ShapedType.get_dynamic_size()
    mine = count // ws.PAIR
    by_rows = layout == "nk"
    gathered = [mine, depth] if by_rows else [depth, mine]
    columns = depth if by_rows else count
    arguments = [
        b.Argument("a", "in", ir.MemRefType.get([2 * ROWS, depth], bf16), ("", "")),
        b.Argument("x", "in", ir.MemRefType.get([dynamic, columns], bf16), ("m", "")),
        b.Argument("list", "in", ir.MemRefType.get([dynamic], b.i32()), ("n",)),
        b.Argument("y", "out", ir.MemRefType.get([ws.PAIR, 2 * ROWS, mine], f32), ("", "", "")),
    ]
    kernel = b.declare_kernel("k", arguments, cluster=ws.PAIR)
    leader, pair = [(0,), (0,)], [(0, 1), (0, 1)]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        a, x, entries, y = kernel.body.blocks[0].arguments
        ring_a = b.Ring("a", b.tile([ROWS, depth], bf16, "shared"), full_at=leader, empty_at=pair)
        own = b.Ring("own", b.tile([ROWS, depth], bf16, "shared"))
        ring_b = b.Ring("b", b.tile(gathered, bf16, "shared"), full_at=leader, empty_at=pair)
        tile = b.tile([2 * ROWS, mine], f32, "tensor")
        sums = b.Ring("sums", tile, full_at=pair, empty_at=leader)
        listed = count if by_rows else depth
        blocks = b.INT.ceildiv(b.extent(entries, 0), listed)

        def first_of(block: b.Value) -> b.Value:
            return b.INT.mul(block, listed)

        def counts(block: b.Value) -> b.Value:
            return b.compare("sge", b.element(entries, [first_of(block)]), 0)

        def fetch() -> None:
            slot = own.acquire()
            b.copy_in(a, slot, [b.INT.mul(b.rank(), ROWS), 0], [0, 1])
            b.commit(slot, "copy_engine")
            with b.turns(blocks) as block:
                slot = ring_b.acquire()
                part = b.INT.mul(b.rank(), mine)
                first = b.INT.add(first_of(block), part) if by_rows else first_of(block)
                column = 0 if by_rows else part
                with b.when(counts(block)):
                    b.gather_in(
                        x,
                        slot,
                        [0, column],
                        lambda row: b.element(entries, [b.INT.add(first, row)]),
                    )
                b.commit(slot, "copy_engine")

        def multiply() -> None:
            left, total = ring_a.wait(), sums.acquire()
            with b.turns(blocks) as block:
                slot = ring_b.wait()
                with b.when(counts(block)):
                    more = b.compare("ne", block, 0)
                    b.mma(total, left, slot, accumulate=more, b_layout=layout, ctas=ws.PAIR)
                b.release(slot, "tensor_core")
            b.release(left, "tensor_core")
            b.commit(total, "tensor_core")

        def write() -> None:
            source, slot = own.wait(), ring_a.acquire()
            stacked = [ws.PAIR * ROWS, depth // ws.PAIR]
            left, right = (b.view(part, stacked, bf16) for part in (source, slot))
            b.store(b.load(left), right)
            b.release(source, "threads")
            b.commit(slot, "threads")
            total = sums.wait()
            found = b.load(total)
            b.release(total, "threads")
            b.store_global(found, y, [b.rank(), 0, 0], [1, 2])

        with b.role("write", first=0, warps=4):
            write()
        with b.role("fetch", first=4, warps=1, lanes=1):
            fetch()
        with b.role("multiply", first=5, warps=1, lanes=1, ranks=[0]):
            multiply()
    return kernel
