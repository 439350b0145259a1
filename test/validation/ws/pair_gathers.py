"""A pair that multiplies 64 rows of each of its CTAs by rows of a table that either gathers half of."""

from __future__ import annotations

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.schedules import emit as b

ROWS = 64  # of a CTA
AT_ONCE = 2  # blocks that threads copy


def gathered_product(
    count: int, depth: int, layout: str, *, a_space: str = "shared", by_threads: bool = False
) -> ws.KernelOp:
    """y[rank, 64 h + r] = row r of this CTA's rows of a x, and h-th half of its columns.

    Added up are the products of those blocks of the list whose first entry is a row.

    For `nk`, x has the rows that a block of `count` entries lists, transposed: each CTA gathers half of
    them. For `kn`, each gathers `depth` rows of its half of `count` columns. CTAs decide for themselves
    whether a block is gathered; the even one issues the products.

    For a in `halves` a block lists count / 2 rows of x, transposed, of which each CTA gathers its half of the
    columns; y[rank, 64 h + r] is the part of row r's product that is over the h-th half.

    Args:
      count: columns of y, of both CTAs.
      depth: columns of a in a product, an even number of lines.
      a_space: where the product finds a: in `shared` memory, written by threads as two rows below one
        another for each of a; in `tensor` memory, where its rows are twice; or there in `halves`, the first
        `depth` columns of its rows and below them the others.
      by_threads: whether four warps of each CTA copy rows, two blocks at a time, of which they commit the slots
        together.
    """
    bf16, f32 = ir.BF16Type.get(), ir.F32Type.get()
    dynamic = ir.ShapedType.get_dynamic_size()
    mine = count // ws.PAIR
    by_rows = layout == "nk"
    gathered = [mine, depth] if by_rows else [depth, mine]
    in_halves = a_space == "halves"
    whole = ws.PAIR * depth if in_halves else depth  # columns of a
    columns = whole if by_rows else count
    arguments = [
        b.Argument("a", "in", ir.MemRefType.get([2 * ROWS, whole], bf16), ("", "")),
        b.Argument("x", "in", ir.MemRefType.get([dynamic, columns], bf16), ("m", "")),
        b.Argument("list", "in", ir.MemRefType.get([dynamic], b.i32()), ("n",)),
        b.Argument("y", "out", ir.MemRefType.get([ws.PAIR, 2 * ROWS, mine], f32), ("", "", "")),
    ]
    kernel = b.declare_kernel("k", arguments, cluster=ws.PAIR)
    leader, pair = [(0,), (0,)], [(0, 1), (0, 1)]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        a, x, entries, y = kernel.body.blocks[0].arguments
        in_tensor = a_space != "shared"
        stages = AT_ONCE if by_threads else 1
        rows = 2 * ROWS if in_tensor else ROWS
        held = b.Buffer("held", b.tile([rows, depth], bf16, "tensor")) if in_tensor else None
        tile = None if in_tensor else b.tile([ROWS, depth], bf16, "shared")
        ring_a = b.Ring("a", tile, full_at=leader, empty_at=pair)
        own = b.Ring("own", b.tile([rows, depth], bf16, "shared"))
        tile = b.tile(gathered, bf16, "shared")
        ring_b = b.Ring("b", tile, stages=stages, full_at=leader, empty_at=pair)
        tile = b.tile([2 * ROWS, mine], f32, "tensor")
        sums = b.Ring("sums", tile, full_at=pair, empty_at=leader)
        listed = mine if in_halves else count if by_rows else depth
        turns = b.INT.ceildiv(b.extent(entries, 0), listed * stages)
        blocks = b.INT.mul(turns, stages)

        def first_of(block: b.Value) -> b.Value:
            return b.INT.mul(block, listed)

        def counts(block: b.Value) -> b.Value:
            return b.compare("sge", b.element(entries, [first_of(block)]), 0)

        part = b.INT.mul(b.rank(), depth if in_halves else mine)
        is_part = by_rows and not in_halves  # of the rows

        def place(block: b.Value) -> tuple[b.Value, b.Value | int]:
            """The first entry of this CTA's part of a block, and its first column."""
            first = first_of(block)
            return (b.INT.add(first, part), 0) if is_part else (first, part)

        def fetch_a() -> None:
            slot = own.acquire()
            for first in range(0, rows, ROWS):
                column = first // ROWS * depth if in_halves else 0
                b.copy_in(a, b.rows(slot, first, ROWS), [b.INT.mul(b.rank(), ROWS), column], [0, 1])
            b.commit(slot, "copy_engine")

        def fetch() -> None:
            fetch_a()
            with b.iterations(blocks) as block:
                slot = ring_b.acquire()
                first, column = place(block)
                with b.when(counts(block)):
                    b.gather_in(
                        x,
                        slot,
                        [0, column],
                        lambda row: b.element(entries, [b.INT.add(first, row)]),
                    )
                b.commit(slot, "copy_engine")

        def copy() -> None:
            with b.iterations(turns) as turn:
                slots: list[b.Value] = []
                for number in range(AT_ONCE):
                    block = b.INT.add(b.INT.mul(turn, AT_ONCE), number)
                    first, column = place(block)

                    def row(number: b.Value, first: b.Value = first) -> b.Value:
                        return b.element(entries, [b.INT.add(first, number)])

                    found = b.generate(row, gathered[:1], b.i32())
                    slots.append(ring_b.acquire())
                    with b.when(counts(block)):
                        b.copy_rows(x, slots[-1], [0, column], [0, 1], lambda _, row: row, found)
                for slot in slots:
                    b.commit(slot, "warps")

        def multiply() -> None:
            filled, total = ring_a.wait(), sums.acquire()
            left = filled if held is None else held.at()
            with b.iterations(blocks) as block:
                slot = ring_b.wait()
                with b.when(counts(block)):
                    more = b.compare("ne", block, 0)
                    b.mma(total, left, slot, accumulate=more, b_layout=layout, ctas=ws.PAIR)
                b.release(slot, "tensor_core")
            b.release(filled, "tensor_core")
            b.commit(total, "tensor_core")

        def write() -> None:
            source, slot = own.wait(), ring_a.acquire()
            stacked = [ws.PAIR * ROWS, depth // ws.PAIR]
            if held is None:
                source_part, target = (b.view(part, stacked, bf16) for part in (source, slot))
            else:
                source_part, target = source, held.at()
            b.store(b.load(source_part), target)
            b.release(source, "threads")
            b.commit(slot, "threads")
            total = sums.wait()
            found = b.load(total)
            b.release(total, "threads")
            b.store_global(found, y, [b.rank(), 0, 0], [1, 2])

        with b.role("write", first=0, warps=4):
            write()
        first = 4
        if by_threads:
            with b.role("copy", first=first, warps=4):
                copy()
            first += 4
        with b.role("fetch", first=first, warps=1, lanes=1):
            if by_threads:
                fetch_a()
            else:
                fetch()
        with b.role("multiply", first=first + 1, warps=1, lanes=1, ranks=[0]):
            multiply()
    return kernel
