"""Kernels whose rings share a place: slots beside one another and over one another.

Each may leave out one step of the order in which the rings use the place (`without`), for tests of
what is refused. They are built and not written as text: MLIR is needed to have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.schedules import emit as b

ROWS, WIDTH = 64, 192  # of a tile in shared memory
PART = 64  # columns of its thirds
LO_BYTES, HI_BYTES = 4096, 12288  # where the sums of thirds begin, of 8192 bytes each
LANES, COLUMNS = 128, 128  # of a tile in tensor memory
HALF = COLUMNS // 2
MANY = 4  # turns of which nobody hears that r has been read


def _sum(left: b.Value, right: b.Value) -> b.Value:
    """The sum of two fragments, in their type."""
    element = ws.FragmentType(left.type).element
    return b.map_elements(arith.addf, left, right, element=element)


def _everyone(ctas: int) -> Sequence[Sequence[int]]:
    return [range(ctas)] * ctas


def staged(ctas: int = 1, *, without: str = "") -> ws.KernelOp:
    """y[rank] = (2 x0 + x1 + x2) w[rank], x0 to x2 thirds of x's columns, by warpgroups (sm_90a).

    ```
    bytes  0       4096            12288           20480   24576
    x      | 64 x 192, of which every CTA fetches its rows for all |
    lo, hi         | 2 x0          | x1 + x2       |
    out    | y of 64 rows, f32             |
    ```
    Slots of `x` are released when the copy from `out` has read the same bytes. The other rings have
    no empty barriers.

    Args:
      ctas: of the cluster.
      without: what is left out. `read`: the threads that read x meet before they write over it.
        `multiplied`: the threads that multiply meet before they write over lo and hi. `left`: x is
        released after `out`. `everywhere`: in all CTAs that fill it.
    """
    bf16, f32 = ir.BF16Type.get(), ir.F32Type.get()
    dynamic = ir.ShapedType.get_dynamic_size()
    arguments = [
        b.Argument("x", "in", ir.MemRefType.get([dynamic, WIDTH], bf16), ("m", "")),
        b.Argument("w", "in", ir.MemRefType.get([ctas, PART, PART], bf16), ("", "", "")),
        b.Argument("y", "out", ir.MemRefType.get([ctas, dynamic, PART], f32), ("", "m", "")),
    ]
    kernel = b.declare_kernel("k", arguments, cluster=ctas)
    everyone, own = _everyone(ctas), [(rank,) for rank in range(ctas)]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        source, weights, y = kernel.body.blocks[0].arguments
        part = b.tile([ROWS, PART], bf16, "shared")
        x = b.Ring(
            "x",
            b.tile([ROWS, WIDTH], bf16, "shared"),
            stages=2,
            full_at=everyone,
            empty_at=own if without == "everywhere" else everyone,
        )
        inner: dict[str, Any] = {"stages": 2, "inside": x, "known_empty": True}
        lo = b.Ring("lo", part, offset=LO_BYTES, **inner)
        hi = b.Ring("hi", part, offset=HI_BYTES, **inner)
        out = b.Ring("out", b.tile([ROWS, PART], f32, "shared"), **inner)
        w = b.Ring("w", part)
        tiles = b.INT.ceildiv(b.extent(source, 0), ROWS)
        share = ROWS // ctas

        def load(number: b.Value) -> None:
            slot = x.acquire()
            first = b.INT.mul(b.rank(), share)
            row = b.INT.add(b.INT.mul(number, ROWS), first)
            b.copy_in(source, b.rows(slot, first, share), [row, 0], [0, 1], receivers=everyone)
            b.commit(slot, "copy_engine")

        def split(_: b.Value) -> None:
            slot = x.wait()
            x0, x1, x2 = (b.load(b.columns(slot, n * PART, PART)) for n in range(3))
            b.release(slot, "threads")
            if without != "read":
                b.barrier()
            for ring, fragment in ((lo, _sum(x0, x0)), (hi, _sum(x1, x2))):
                slot = ring.acquire()
                b.store(fragment, slot)
                b.commit(slot, "threads")

        def multiply(_: b.Value, weight: b.Value) -> None:
            total = b.fill([ROWS, PART], b.f32_constant(0.0))
            slots = lo.wait(), hi.wait()
            for slot in slots:
                more = b.product(total, slot, weight, accumulate=True, b_layout="kn")
                total = b.wait_product(more)
            for slot in slots:
                b.release(slot, "threads")
            if without != "multiplied":
                b.barrier()
            place = out.acquire()
            b.store(total, place)
            b.commit(place, "threads")

        def leave(number: b.Value) -> None:
            held = x.wait()
            if without == "left":
                b.release(held, "threads")
            slot = out.wait()
            b.copy_out(slot, y, [b.rank(), b.INT.mul(number, ROWS), 0], [1, 2])
            b.release(slot, "copy_engine")
            if without != "left":
                b.release(held, "threads")

        with b.role("split", first=0, warps=4), b.iterations(tiles) as number:
            split(number)
        with b.role("multiply", first=4, warps=4):
            weight = w.wait()
            with b.iterations(tiles) as number:
                multiply(number, weight)
            b.release(weight, "threads")
        with b.role("load", first=8, warps=1, lanes=1):
            slot = w.acquire()
            b.copy_in(weights, slot, [b.rank(), 0, 0], [1, 2])
            b.commit(slot, "copy_engine")
            with b.iterations(tiles) as number:
                load(number)
        with b.role("leave", first=9, warps=1, lanes=1), b.iterations(tiles) as number:
            leave(number)
    return kernel


def columns(ctas: int = 1, *, without: str = "") -> ws.KernelOp:
    """y = (s[:, :64] + 2 s[:, 64:]) v with s = x k^T, in tensor memory (sm_100a); of a pair each CTA
    has its rows of x.

    ```
    columns  0       32      64      96      128
    s        | x k^T, f32                    |
    p, q     | 2 s   |       | s     |            in 16 bits, its right and its left half
    r        | q v, f32      |                    over p, when p v is issued
    ```
    None of these has empty barriers: a token tells who multiplies that r has been read.

    Args:
      ctas: 1, or 2 for a pair.
      without: what is left out. `scores`: the left half is read before p is written over it.
        `issued`: p v is issued before q v. `read`: r is read before the next scores. `everywhere`:
        in both CTAs.
    """
    bf16, f32 = ir.BF16Type.get(), ir.F32Type.get()
    dynamic = ir.ShapedType.get_dynamic_size()
    rows = ctas * LANES
    arguments = [
        b.Argument("x", "in", ir.MemRefType.get([dynamic, HALF], bf16), ("m", "")),
        b.Argument("k", "in", ir.MemRefType.get([COLUMNS, HALF], bf16), ("", "")),
        b.Argument("v", "in", ir.MemRefType.get([HALF, dynamic], bf16), ("", "n")),
        b.Argument("y", "out", ir.MemRefType.get([dynamic, HALF], f32), ("m", "")),
    ]
    kernel = b.declare_kernel("k", arguments, cluster=ctas)
    leader, pair = [(0,)] * ctas, [range(ctas), ()][:ctas]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        source, keys, values, y = kernel.body.blocks[0].arguments

        def ring(
            name: str, shape: Sequence[int], space: str, element: Any, **options: Any
        ) -> b.Ring:
            return b.Ring(name, b.tile(shape, element, space), **options)

        operand = {"full_at": leader, "empty_at": pair}
        x = ring("x", [LANES, HALF], "shared", bf16, stages=2, **operand)
        k = ring("k", [COLUMNS // ctas, HALF], "shared", bf16, **operand)
        v = ring("v", [HALF, HALF // ctas], "shared", bf16, **operand)
        s = ring("s", [LANES, COLUMNS], "tensor", f32, known_empty=True, full_at=pair)
        inner: dict[str, Any] = {"inside": s, "known_empty": True}
        p, q = (
            ring(name, [LANES, HALF], "tensor", bf16, full_at=leader, offset=at, **inner)
            for name, at in (("p", 0), ("q", HALF))
        )
        r = ring("r", [LANES, HALF], "tensor", f32, full_at=pair, **inner)
        o = b.Buffer("o", b.tile([LANES, HALF], f32, "tensor"))
        heard = [(0,), ()] if without == "everywhere" else leader
        read = b.Ring(
            "read", None, stages=MANY if without == "read" else 1, full_at=heard, empty_at=pair
        )
        blocks = b.INT.ceildiv(b.extent(source, 0), rows)

        def first_row(block: b.Value) -> b.Value:
            return b.INT.mul(b.INT.add(b.INT.mul(block, ctas), b.rank()), LANES)

        def fetch(ring: b.Ring, tensor: b.Value, row: Any, column: Any = 0) -> None:
            slot = ring.acquire()
            b.copy_in(tensor, slot, [row, column], [0, 1])
            b.commit(slot, "copy_engine")

        def weigh(block: b.Value) -> None:
            scores = s.wait()

            def half(first: int) -> b.Value:
                return b.rounded(b.load(b.columns(scores, first, HALF)), bf16)

            def hand_over(ring: b.Ring, fragment: b.Value) -> None:
                slot = ring.acquire()
                b.store(fragment, slot)
                b.commit(slot, "threads")

            right = half(HALF)
            right = _sum(right, right)
            if without == "scores":
                hand_over(p, right)
            left = half(0)
            b.release(scores, "threads")
            if without != "scores":
                hand_over(p, right)
            hand_over(q, left)
            slot = r.wait()
            total = b.map_elements(arith.addf, b.load(slot), b.load(o.at()))
            b.release(slot, "threads")
            b.commit(read.acquire(), "threads")
            b.store_global(total, y, [first_row(block), 0], [0, 1])

        def multiply(operands: Sequence[b.Value]) -> None:
            key, value = operands
            tile, scores = x.wait(), s.acquire()
            b.mma(scores, tile, key, accumulate=False, b_layout="nk", ctas=ctas)
            b.release(tile, "tensor_core")
            b.commit(scores, "tensor_core")
            left, right = p.wait(), q.wait()

            def second() -> None:
                place = r.acquire()
                b.mma(place, right, value, accumulate=False, b_layout="kn", ctas=ctas)
                b.release(right, "tensor_core")
                b.commit(place, "tensor_core")

            if without == "issued":
                second()
            b.mma(o.at(), left, value, accumulate=False, b_layout="kn", ctas=ctas)
            b.release(left, "tensor_core")
            if without != "issued":
                second()
            if without != "read":
                b.release(read.wait(), "threads")

        with b.role("weigh", first=0, warps=4), b.iterations(blocks) as block:
            weigh(block)
        with b.role("fetch", first=4, warps=1, lanes=1):
            fetch(k, keys, b.INT.mul(b.rank(), COLUMNS // ctas))
            fetch(v, values, 0, b.INT.mul(b.rank(), HALF // ctas))
            with b.iterations(blocks) as block:
                fetch(x, source, first_row(block))
        with b.role("multiply", first=5, warps=1, lanes=1, ranks=(0,)):
            operands = [k.wait(), v.wait()]
            with b.iterations(blocks):
                multiply(operands)
            if without == "read":
                with b.iterations(blocks):
                    b.release(read.wait(), "threads")
            for slot in operands:
                b.release(slot, "tensor_core")
    return kernel


def in_turns() -> ws.KernelOp:
    """y = x + 1, on any target: threads and the copy engine fill the same bytes of shared memory.

    `ones` is filled and read by threads, `x` over it by the copy engine, and read by threads. Tokens
    say that `ones` has been read, and that x has been.
    """
    bf16, dynamic = ir.BF16Type.get(), ir.ShapedType.get_dynamic_size()
    kind = ir.MemRefType.get([dynamic, PART], bf16)
    arguments = [b.Argument("x", "in", kind, ("m", "")), b.Argument("y", "out", kind, ("m", ""))]
    kernel = b.declare_kernel("k", arguments)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        source, y = kernel.body.blocks[0].arguments
        tile = b.tile([LANES, PART], bf16, "shared")
        ones = b.Ring("ones", tile, known_empty=True)
        x = b.Ring("x", tile, inside=ones, known_empty=True)
        free, over = b.Ring("free", None), b.Ring("over", None)
        tiles = b.INT.ceildiv(b.extent(source, 0), LANES)

        def write() -> None:
            slot = ones.acquire()
            one = arith.ConstantOp(bf16, ir.FloatAttr.get(bf16, 1.0)).result
            b.store(b.fill([LANES, PART], one), slot)
            b.commit(slot, "threads")
            b.release(over.wait(), "threads")

        def fetch(number: b.Value) -> None:
            b.release(free.wait(), "threads")
            slot = x.acquire()
            b.copy_in(source, slot, [b.INT.mul(number, LANES), 0], [0, 1])
            b.commit(slot, "copy_engine")

        def read(ring: b.Ring, token: b.Ring) -> b.Value:
            slot = ring.wait()
            fragment = b.load(slot)
            b.release(slot, "threads")
            b.commit(token.acquire(), "threads")
            return fragment

        with b.role("add", first=0, warps=4), b.iterations(tiles) as number:
            total = _sum(read(ones, free), read(x, over))
            b.store_global(total, y, [b.INT.mul(number, LANES), 0], [0, 1])
        with b.role("write", first=4, warps=4), b.iterations(tiles):
            write()
        with b.role("fetch", first=8, warps=1, lanes=1), b.iterations(tiles) as number:
            fetch(number)
    return kernel
