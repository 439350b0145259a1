"""Small kernels of clusters: tiles that CTAs fetch for one another, turns that they take, products of pairs.

Each takes the lists of its rings and copies as options, so that tests can leave out what must not
be left out. They are built and not written as text: MLIR is needed to have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.kernel import Kernel, load
from attn_mlir.schedules import emit as b

TILE_ROWS, TILE_COLUMNS = 64, 64
PAIR_ROWS, PAIR_COLUMNS, PAIR_DEPTH = 128, 64, 64  # of a CTA, of a pair, of a slot

Lists = Sequence[Sequence[int]]


def compiled(build: Callable[[], ws.KernelOp], target: str) -> Kernel:
    """A kernel, ready to be called."""
    return load(compile_kernel("k", build, target=target))


def built(build: Callable[[], ws.KernelOp]) -> Any:
    """A module with a kernel; keep it while its operations are in use."""
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            build()
        return module


def everyone(ctas: int) -> Lists:
    """For each CTA the ranks of all."""
    return [range(ctas)] * ctas


def own(ctas: int) -> Lists:
    """For each CTA its own rank."""
    return [(rank,) for rank in range(ctas)]


def shared_tiles(
    ctas: int,
    *,
    receivers: Lists | None = None,
    full_at: Lists | None = None,
    empty_at: Lists | None = None,
    ranks: Sequence[Sequence[int]] | None = None,
) -> ws.KernelOp:
    """y[rank] = x for every CTA of a cluster: each fetches its rows of a tile for all of them.

    Args:
      ctas: of the cluster.
      receivers, full_at, empty_at: who gets what a CTA fetches, and is told; all of them.
      ranks: the CTAs that fetch, and those that write; all of them.
    """
    bf16, dynamic = ir.BF16Type.get(), ir.ShapedType.get_dynamic_size()
    x_kind = ir.MemRefType.get([dynamic, TILE_COLUMNS], bf16)
    y_kind = ir.MemRefType.get([dynamic, dynamic, TILE_COLUMNS], bf16)
    arguments = [
        b.Argument("x", "in", x_kind, ("m", "")),
        b.Argument("y", "out", y_kind, ("n", "m", "")),
    ]
    kernel = b.declare_kernel("k", arguments, cluster=ctas)
    share = TILE_ROWS // ctas
    with ir.InsertionPoint(kernel.body.blocks[0]):
        x, y = kernel.body.blocks[0].arguments
        ring = b.Ring(
            "x",
            b.tile([TILE_ROWS, TILE_COLUMNS], bf16, "shared"),
            stages=2,
            full_at=full_at or everyone(ctas),
            empty_at=empty_at or everyone(ctas),
        )
        tiles = b.INT.ceildiv(b.extent(x, 0), TILE_ROWS)

        def fetch(number: b.Value) -> None:
            slot = ring.acquire()
            first = b.INT.mul(b.rank(), share)
            row = b.INT.add(b.INT.mul(number, TILE_ROWS), first)
            to = receivers or everyone(ctas)
            b.copy_in(x, b.rows(slot, first, share), [row, 0], [0, 1], receivers=to)
            b.commit(slot, "copy_engine")

        def leave(number: b.Value) -> None:
            slot = ring.wait()
            b.copy_out(slot, y, [b.rank(), b.INT.mul(number, TILE_ROWS), 0], [1, 2])
            b.release(slot, "copy_engine")

        chosen = ranks or (range(ctas), range(ctas))
        for warp, (body, mine) in enumerate(zip((fetch, leave), chosen, strict=True)):
            with b.role(body.__name__, first=warp, warps=1, lanes=1, ranks=mine):
                with b.iterations(tiles) as number:
                    body(number)
    return kernel


def turns(
    ctas: int,
    *,
    full_at: Lists | None = None,
    empty_at: Lists | None = None,
    is_closed: bool = False,
) -> ws.KernelOp:
    """y[t, rank] = 1 for each turn t: a token goes round, and each CTA writes while it has it.

    Args:
      ctas: of the cluster.
      full_at: to whom each passes it on, the next one; the last one passes it on to nobody.
      empty_at: who hears that it has been taken: the one before.
      is_closed: the first CTA waits for the last one as well.
    """
    f32, dynamic = ir.F32Type.get(), ir.ShapedType.get_dynamic_size()
    y_kind = ir.MemRefType.get([dynamic, dynamic, 32], f32)
    arguments = [b.Argument("y", "out", y_kind, ("t", "n", ""))]
    kernel = b.declare_kernel("k", arguments, cluster=ctas)
    following = full_at or [(rank + 1,) for rank in range(ctas - 1)] + [()]
    before = empty_at or [(), *((rank,) for rank in range(ctas - 1))]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        (y,) = kernel.body.blocks[0].arguments
        token = b.Ring("turn", None, full_at=following, empty_at=before)

        def write(number: b.Value) -> None:
            with b.when(b.compare("ne", b.rank(), -1 if is_closed else 0)):
                b.release(token.wait(), "threads")
            b.store_global(b.fill([32], b.f32_constant(1.0)), y, [number, b.rank(), 0], [2])
            with b.when(b.compare("ne", b.rank(), ctas if is_closed else ctas - 1)):
                b.commit(token.acquire(), "threads")

        with b.role("write", first=0, warps=1):
            with b.iterations(b.extent(y, 0)) as number:
                write(number)
    return kernel


def exchange(
    ctas: int,
    *,
    landed_at: Lists | None = None,
    empty_at: Lists | None = None,
    waits: bool = True,
) -> ws.KernelOp:
    """y[r] = x[r + 1]: each CTA fetches its tiles and copies them on to the one before it.

    Args:
      ctas: of the cluster.
      landed_at: whom the receiver of a tile tells that it has come: who has sent it.
      empty_at: whom it tells that its slot is free: who has sent it, and itself.
      waits: whether who sends a tile keeps it until it has come.
    """
    bf16, dynamic = ir.BF16Type.get(), ir.ShapedType.get_dynamic_size()
    kind = ir.MemRefType.get([dynamic, dynamic, TILE_COLUMNS], bf16)
    dims = ("n", "m", "")
    kernel = b.declare_kernel(
        "k", [b.Argument("x", "in", kind, dims), b.Argument("y", "out", kind, dims)], cluster=ctas
    )
    before = [((rank - 1) % ctas,) for rank in range(ctas)]
    after = [((rank + 1) % ctas,) for rank in range(ctas)]
    with ir.InsertionPoint(kernel.body.blocks[0]):
        x, y = kernel.body.blocks[0].arguments
        tile = b.tile([TILE_ROWS, TILE_COLUMNS], bf16, "shared")
        mine = b.Ring("mine", tile, stages=2)
        theirs = b.Ring(
            "theirs",
            tile,
            stages=2,
            full_at=[sorted({rank, *to}) for rank, to in enumerate(before)],
            empty_at=empty_at or [sorted({rank, *to}) for rank, to in enumerate(after)],
        )
        landed = b.Ring("landed", None, full_at=landed_at or after, empty_at=before)
        tiles = b.INT.ceildiv(b.extent(x, 1), TILE_ROWS)

        def fetch(number: b.Value) -> None:
            slot = mine.acquire()
            b.copy_in(x, slot, [b.rank(), b.INT.mul(number, TILE_ROWS), 0], [1, 2])
            b.commit(slot, "copy_engine")

        def send(_: b.Value) -> None:
            source, target = mine.wait(), theirs.acquire()
            b.copy_across(source, target, before)
            b.commit(target, "copy_engine")
            if waits:
                b.release(landed.wait(), "threads")
            b.release(source, "threads")
            if not waits:
                b.release(landed.wait(), "threads")

        def leave(number: b.Value) -> None:
            slot = theirs.wait()
            b.commit(landed.acquire(), "threads")
            b.copy_out(slot, y, [b.rank(), b.INT.mul(number, TILE_ROWS), 0], [1, 2])
            b.release(slot, "copy_engine")

        for warp, body in enumerate((fetch, send, leave)):
            with b.role(body.__name__, first=warp, warps=1, lanes=1), b.iterations(tiles) as number:
                body(number)
    return kernel


def pair_product(
    *,
    element: str = "bf16",
    b_layout: str = "kn",
    loaded: Lists = ((0,), (0,)),
    read: Lists = ((0, 1), ()),
    summed: Lists = ((0, 1), ()),
    free: Lists = ((0,), (0,)),
    issuers: Sequence[int] = (0,),
) -> ws.KernelOp:
    """y = a b, 256 rows, by one pair: a loop over K, sums in the tensor memory of both CTAs.

    Args:
      element: of a and b.
      b_layout: as `ws.mma`.
      loaded, read: where commits and releases of operands arrive.
      summed, free: where commits and releases of sums arrive.
      issuers: the CTAs that multiply.
    """
    kind, f32 = ir.Type.parse(element), ir.F32Type.get()
    dynamic = ir.ShapedType.get_dynamic_size()
    tensor = ir.MemRefType.get([dynamic, dynamic], kind)
    sums_kind = ir.MemRefType.get([dynamic, PAIR_COLUMNS], f32)
    b_dims = ("k", "n") if b_layout == "kn" else ("n", "k")
    arguments = [
        b.Argument("a", "in", tensor, ("m", "k")),
        b.Argument("b", "in", tensor, b_dims),
        b.Argument("y", "out", sums_kind, ("m", "")),
    ]
    kernel = b.declare_kernel("k", arguments, cluster=2)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        left, right, y = kernel.body.blocks[0].arguments
        shape = [PAIR_DEPTH, PAIR_COLUMNS // 2]
        half = b.tile(shape if b_layout == "kn" else shape[::-1], kind, "shared")
        lists = {"full_at": loaded, "empty_at": read}
        rows = b.Ring("a", b.tile([PAIR_ROWS, PAIR_DEPTH], kind, "shared"), stages=2, **lists)
        columns = b.Ring("b", half, stages=2, **lists)
        tile = b.tile([PAIR_ROWS, PAIR_COLUMNS], f32, "tensor")
        sums = b.Ring("sums", tile, full_at=summed, empty_at=free)
        steps = b.INT.ceildiv(b.extent(left, 1), PAIR_DEPTH)
        blocks = b.INT.ceildiv(b.extent(left, 0), 2 * PAIR_ROWS)

        def first_row(block: b.Value) -> b.Value:
            return b.INT.mul(b.INT.add(b.INT.mul(block, 2), b.rank()), PAIR_ROWS)

        def fetch(block: b.Value) -> None:
            with b.iterations(steps) as number:
                k, column = b.INT.mul(number, PAIR_DEPTH), b.INT.mul(b.rank(), PAIR_COLUMNS // 2)
                at = [k, column] if b_layout == "kn" else [column, k]
                for ring, source, place in (
                    (rows, left, [first_row(block), k]),
                    (columns, right, at),
                ):
                    slot = ring.acquire()
                    b.copy_in(source, slot, place, [0, 1])
                    b.commit(slot, "copy_engine")

        def multiply(_: b.Value) -> None:
            total = sums.acquire()
            with b.iterations(steps) as number:
                slots = rows.wait(), columns.wait()
                more = b.compare("ne", number, 0)
                b.mma(total, *slots, accumulate=more, b_layout=b_layout, ctas=2)
                for slot in slots:
                    b.release(slot, "tensor_core")
            b.commit(total, "tensor_core")

        def write(block: b.Value) -> None:
            total = sums.wait()
            fragment = b.load(total)
            b.release(total, "threads")
            b.store_global(fragment, y, [first_row(block), 0], [0, 1])

        with b.role("write", first=0, warps=4):
            with b.iterations(blocks) as block:
                write(block)
        with b.role("fetch", first=4, warps=1, lanes=1):
            with b.iterations(blocks) as block:
                fetch(block)
        with b.role("multiply", first=5, warps=1, lanes=1, ranks=issuers):
            with b.iterations(blocks) as block:
                multiply(block)
    return kernel
