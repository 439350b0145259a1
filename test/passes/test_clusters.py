"""The ring proof of clusters: kernels that are wrong across CTAs alone, and the counts of arrivals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import VerifyError
from attn_mlir.passes.analysis.protocol.skeleton import processes
from attn_mlir.passes.plan_memory import arrivals
from attn_mlir.passes.verify_rings import prove
from attn_mlir.schedules import emit as b
from attn_mlir.validation.ws.clusters import (
    built,
    everyone,
    exchange,
    own,
    pair_product,
    shared_tiles,
    turns,
)


def kernel_of(module: Any) -> ws.KernelOp:
    (kernel,) = ir.get_ops_of_type(module, ws.KernelOp)
    return kernel


@pytest.mark.parametrize(
    "build",
    [
        lambda: shared_tiles(2),
        lambda: shared_tiles(8),
        lambda: turns(4),
        lambda: exchange(4),
        pair_product,
    ],
)
def test_what_agrees(build: Callable[[], Any]) -> None:
    module = built(build)
    assert prove(kernel_of(module))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (  # nobody says that the other CTA's slot is free
            lambda: shared_tiles(2, empty_at=own(2)),
            r"'ws.acquire' op in role fetch of CTA . fills a slot of ring x\[0\] in CTA . that role "
            r"leave of CTA . may still read",
        ),
        (  # nor one of four
            lambda: shared_tiles(4, empty_at=[*everyone(4)[:3], (0, 1, 3)]),
            r"role fetch of CTA 2 fills a slot of ring x\[0\] in CTA 3 that role leave of CTA 3 may "
            "still read",
        ),
        (  # nor that the other CTA's part has come
            lambda: shared_tiles(2, full_at=own(2)),
            r"'ws.wait' op in role leave of CTA . reads a slot of ring x\[0\] in CTA . that role "
            "fetch of CTA . may not have filled",
        ),
        (  # a signal to a barrier that may not be waited for yet
            lambda: shared_tiles(2, receivers=own(2), empty_at=own(2)),
            r"role fetch of CTA . commits a slot of ring x\[0\] in CTA . that role leave of CTA . may "
            "not have waited for",
        ),
        (
            lambda: shared_tiles(2, receivers=own(2), full_at=own(2)),
            r"role leave of CTA . releases a slot of ring x\[0\] in CTA . that role fetch of CTA . "
            "may not have acquired",
        ),
        (  # sums of the second CTA are overwritten: its release is for itself
            lambda: pair_product(free=((0,), (1,))),
            r"role multiply of CTA 0 fills a slot of ring sums\[0\] in CTA 1 that role write of CTA 1 "
            "may still read",
        ),
        (  # its operands as well: nobody tells it that they are read
            lambda: pair_product(read=((0,), ())),
            r"never returns.*role fetch of CTA 1 needs an empty slot of ring a\[0\], which nobody",
        ),
        (  # the product reads what the second CTA has not told it of
            lambda: pair_product(loaded=((0,), ())),
            r"role multiply of CTA 0 reads a slot of ring a\[0\] in CTA 1 that role fetch of CTA 1 "
            "may not have filled",
        ),
        (  # sums are for both CTAs
            lambda: pair_product(summed=((0,), ())),
            r"needs one role that fills slots of ring sums\[0\] in CTA 1, or to state its producers, "
            "got none",
        ),
        (  # a tile is gone before it has been copied to the other CTA
            lambda: exchange(2, waits=False),
            r"'ws.release' op in role send of CTA . releases a slot of ring mine\[0\] in CTA . that "
            "is copied to CTA ., where role leave of CTA . may not have waited for it",
        ),
        (
            lambda: exchange(2, empty_at=own(2)),
            r"role send of CTA . fills a slot of ring theirs\[0\] in CTA . that role leave of CTA . "
            "may still read",
        ),
        (  # each waits for the other's token
            lambda: turns(2, is_closed=True, full_at=((1,), (0,)), empty_at=((1,), (0,))),
            r"never returns.*role write of CTA 0 needs a full slot of ring turn\[0\], which write of "
            "CTA 1 commits; role write of CTA 1 needs",
        ),
        (  # the last CTA releases to nobody
            lambda: turns(3, empty_at=((), (0,), ())),
            r"never returns.*role write of CTA 1 needs an empty slot of ring turn\[0\], which nobody "
            "releases",
        ),
        (
            lambda: turns(3, full_at=((1,), (), ())),
            r"needs one role that fills slots of ring turn\[0\] in CTA 2",
        ),
        (
            lambda: turns(3, full_at=((1,), (2, 0), ())),
            r"needs a role that reads slots of ring turn\[0\] in CTA 0, got none",
        ),
    ],
)
def test_what_is_wrong_between_ctas(build: Callable[[], Any], message: str) -> None:
    module = built(build)
    with pytest.raises(VerifyError, match=message):
        prove(kernel_of(module))


def _arrivals(build: Callable[[], Any]) -> dict[str, tuple[int, int]]:
    kernel = kernel_of(module := built(build))
    members = processes(kernel)
    rings = [op for op in kernel.body.blocks[0].operations if isinstance(op, ws.AllocRingOp)]
    found = {ring.label: arrivals(ring.ring, members) for ring in rings}
    del module
    return found


def test_arrivals_are_those_of_all_ctas() -> None:
    """One for the bytes of both, one commit of products, and 128 threads of each CTA."""
    assert _arrivals(pair_product) == {"a": (1, 1), "b": (1, 1), "sums": (1, 256)}
    assert _arrivals(lambda: shared_tiles(4)) == {"x": (1, 4)}
    assert _arrivals(lambda: turns(4)) == {"turn": (32, 32)}


def test_arrivals_are_as_many_in_every_cta() -> None:
    with pytest.raises(
        VerifyError, match="as many arrivals in every CTA: releases of CTA 3 have 3"
    ):
        _arrivals(lambda: shared_tiles(4, empty_at=[*everyone(4)[:3], (0, 1, 2)]))


def _first_copy_in_a_branch(full_at: list[tuple[int, ...]]) -> ws.KernelOp:
    """A ring filled twice in each of two CTAs, the first time by a copy that a branch decides over."""
    kind = ir.MemRefType.get([16, 64], ir.BF16Type.get())
    kernel = b.declare_kernel("k", [b.Argument("x", "in", kind, ("", ""))], cluster=2)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        (x,) = kernel.body.blocks[0].arguments
        tile = b.tile([8, 64], ir.BF16Type.get(), "shared")
        ring = b.Ring("x", tile, full_at=full_at, empty_at=everyone(2))
        with b.role("fetch", first=0, warps=1, lanes=1):
            slot = ring.acquire()
            with b.when(b.compare("eq", b.rank(), 0)):
                b.copy_in(x, slot, [0, 0], [0, 1])
            b.commit(slot, "copy_engine")
            slot = ring.acquire()
            b.copy_in(x, slot, [8, 0], [0, 1])
            b.commit(slot, "copy_engine")
    return kernel


@pytest.mark.parametrize(
    ("full_at", "told"), [([(0,), (0,)], [False, False]), (own(2), [False, True])]
)
def test_another_cta_s_barrier_counts_as_many_arrivals_in_every_turn(
    full_at: list[tuple[int, ...]], told: list[bool]
) -> None:
    """Once for each CTA, or else the bytes of both in one; a CTA's own barrier has one arrival either way."""
    module = built(lambda: _first_copy_in_a_branch(full_at))
    (role,) = ir.get_ops_of_type(module, ws.RoleOp)
    acquires = ir.get_ops_of_type(role, ws.AcquireOp)
    assert [ws.announces_at_once(acquire) for acquire in acquires] == told


def test_an_instance_is_the_same_in_every_cta() -> None:
    module = ir.Module.parse(
        """
!ring = !ws.ring<none, 1, 2>
"ws.kernel"() ({
  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !ring
  "ws.role"() ({
  ^bb0(%g: i32):
    %rank = "ws.rank"() : () -> i32
    %s = "ws.acquire"(%r, %rank) : (!ring, i32) -> none
    "ws.commit"(%s) {by = "threads"} : (none) -> ()
    %t = "ws.wait"(%r, %rank) : (!ring, i32) -> none
    "ws.release"(%t) {by = "threads"} : (none) -> ()
  }) {label_name = "x", warps = array<i32: 0, 1>, groups = 1 : i64, lanes = 1 : i64,
      registers = 0 : i64} : () -> ()
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = [], cluster = 2 : i64} : () -> ()
""",
        built(lambda: shared_tiles(2)).context,
    )
    kernel = kernel_of(module)
    (ring,) = [op.ring for op in kernel.body.blocks[0].operations if isinstance(op, ws.AllocRingOp)]
    with pytest.raises(
        VerifyError, match="expects an instance that is constant or the role's group"
    ):
        arrivals(ring, processes(kernel))
