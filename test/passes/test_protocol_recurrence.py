"""The ring protocol: turns that runs leave out, and runs that others stand for."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import VerifyError
from attn_mlir.passes.analysis.protocol.clocks import COUNT, Clocks, knows, tick
from attn_mlir.passes.analysis.protocol.recurrence import Skip
from attn_mlir.passes.analysis.protocol.runs import Runs
from attn_mlir.passes.analysis.protocol.simulate import Network
from attn_mlir.passes.analysis.protocol.skeleton import processes
from attn_mlir.passes.analysis.protocol.trace import precedes
from attn_mlir.passes.verify_rings import prove
from attn_mlir.validation.ws import ring_draws
from attn_mlir.validation.ws.clusters import TILE_ROWS, built, exchange
from attn_mlir.validation.ws.ring_texts import Kernel, fill, role, use

MANY = 100_000  # turns that would take a second each 10 ms to run


def turns(count: str, body: str) -> str:
    return f"scf.for %i = %c0 to {count} step %c1 : i32 {{ {body} }}\n"


def chain(stages: int = 2) -> Kernel:
    """`a` goes to a role that fills `b`, one slot of each in every turn."""
    return Kernel(
        role("load", turns("%m", fill("a")), first=0),
        role("work", turns("%m", use("a") + fill("b", "threads")), first=1, lanes=32),
        role("store", turns("%m", use("b")), first=2),
        stages=stages,
    )


def test_clocks_compute_with_every_component() -> None:
    draw, clocks = random.Random(0), Clocks(5)
    for _ in range(50):
        a, b = ([draw.choice((0, 1, 2, 7, COUNT)) for _ in range(5)] for _ in "ab")
        first, second = (sum(tick(n, count) for n, count in enumerate(one)) for one in (a, b))
        assert clocks.join(first, second) == sum(
            tick(n, max(*x)) for n, x in enumerate(zip(a, b, strict=True))
        )
        assert clocks.covers(first, second) == all(x >= y for x, y in zip(a, b, strict=True))
        assert clocks.counts(first) == tuple(a)
        assert [knows(first, tick(n, 2)) for n in range(5)] == [x >= 2 for x in a]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_turns_that_do_the_same_again_are_left_out(stages: int) -> None:
    """The first role fills a ring before the next one has its turn, so that a lap is what repeats."""
    kernel, skips = chain(stages), list[Skip]()
    trace = Network(kernel.members).run({"m": MANY, "n": 0}, skips=skips)
    (skip,) = skips
    assert [per for _, per in skip.loops.values()] == [stages] * 3
    kinds = Counter(event.kind for event in trace.events[kernel.rings["a"], 0])
    assert kinds["acquire"] == kinds["release"] == MANY - skip.times * stages <= 6 * stages


def test_a_run_stands_for_all_with_more_turns() -> None:
    kernel = chain()
    runs = Runs(Network(kernel.members))
    made = [m for m in range(40) if runs.make({"m": m, "n": 0}, ({},))]
    assert made == list(range(len(made))) and len(made) < 16
    assert not any(runs.make({"m": m, "n": 0}, ({},)) for m in (MANY, MANY + 1))


def test_loops_one_after_the_other_have_turns_left_out_each() -> None:
    body = turns("%m", fill("a")) + turns("%n", fill("a"))
    whole = "%both = arith.addi %m, %n : i32\n" + turns("%both", use("a"))
    kernel = Kernel(role("load", body, first=0), role("use", whole, first=1), stages=2)
    skips: list[Skip] = []
    network = Network(kernel.members)
    network.run({"m": MANY, "n": 2 * MANY}, skips=skips)
    assert len(skips) == 2
    runs = Runs(network)
    assert runs.make({"m": MANY, "n": 2 * MANY}, ({},))
    assert not runs.make({"m": 3 * MANY, "n": MANY}, ({},))
    assert runs.make({"m": 3 * MANY, "n": 0}, ({},))


def test_one_turn_that_differs_is_run() -> None:
    """Of many turns one fills no slot, long after the network has come to do the same in each."""
    at = 2000
    some = f"""%at = arith.constant {at} : i32
    %here = arith.cmpi ne, %i, %at : i32
    scf.if %here {{ {fill("a")} }}"""
    kernel = Kernel(
        role("load", turns("%m", some), first=0), role("use", turns("%m", use("a")), first=1)
    )
    network = Network(kernel.members)
    assert network.run({"m": at, "n": 0}, skips=[])
    with pytest.raises(VerifyError, match=r"role use needs a full slot of ring a\[0\], which load"):
        network.run({"m": at + 1, "n": 0}, skips=[])


def test_what_drifts_is_run_to_its_end() -> None:
    """Each turn leaves one more slot of `a` unread, until there is none: no two states are alike."""
    kernel = Kernel(
        role("load", turns("%m", fill("a") + fill("a") + use("b")), first=0),
        role("use", turns("%m", use("a") + fill("b")) + turns("%m", use("a")), first=1),
        stages=4,
    )
    network = Network(kernel.members)
    assert network.run({"m": 3, "n": 0}, skips=[])
    for m in (20, MANY):
        with pytest.raises(VerifyError, match="never returns"):
            network.run({"m": m, "n": 0}, skips=[])
    with pytest.raises(VerifyError, match="never returns"):
        prove(kernel.op)


@pytest.mark.parametrize(("reads", "is_heard"), [("before", True), ("behind", False)])
def test_what_is_used_behind_a_loop_knows_of_all_its_turns(reads: str, is_heard: bool) -> None:
    """`c` may lie over `a` where its filler hears of `b` after the last read of `a`."""
    last = fill("b", "threads")
    loop = turns("%m", use("a"))
    kernel = Kernel(
        role("load", turns("%m", fill("a")), first=0),
        role("work", loop + last if reads == "before" else last + loop, first=1),
        role("finish", use("b") + fill("c"), first=2),
        role("out", use("c"), first=3),
        stages=2,
    )
    skips: list[Skip] = []
    trace = Network(kernel.members).run({"m": MANY, "n": 0}, skips=skips)
    assert precedes(trace, kernel.rings["a"], kernel.rings["c"]) == is_heard and skips


def test_drawn_networks_end_as_in_full() -> None:
    found: Counter[str] = Counter()
    for seed in (2, 11, 17):
        ring_draws.compare(ring_draws.drawn(seed), found)
    assert min(found[kind] for kind in ("failing", "full", "left out", "short")) > 0


def test_what_takes_turns_to_be_heard_of_is_not_left_out() -> None:
    """Roles in a row hand over before they hear: behind the last it is known from turn 5 on that `a` is done.

    Who waits for whom is the same from turn 2 on.
    """
    instances = [(ring, f"%c{instance}") for instance in range(2) for ring in "abc"]
    filled = [fill(ring, instance=instance) for ring, instance in instances[1:]]
    used = [use(ring, instance=instance) for ring, instance in instances[1:]]
    loops = map(turns, ["%m"] * 6, [a + b for a, b in zip([*filled, ""], ["", *used], strict=True)])
    before = [use("a"), *[""] * 5]
    behind = [*[""] * 5, fill("c", instance="%c2")]
    bodies = map("".join, zip(before, loops, behind, strict=True))
    texts = (role(f"role{n}", body, first=n + 1) for n, body in enumerate(bodies))
    ends = fill("a") + use("c", instance="%c2")
    kernel = Kernel(role("ends", ends, first=0), *texts, instances=3)
    network = Network(kernel.members)

    def is_known(m: int) -> bool:
        trace = network.run({"m": m, "n": 0}, skips=[])
        return precedes(trace, kernel.rings["a"], kernel.rings["c"], (0, 2))

    known = [is_known(m) for m in (1, 2, 3, 4, 5, 6, 50, MANY)]
    assert known == [False] * 4 + [True] * 4


def test_copies_to_other_ctas_are_left_out_too() -> None:
    (kernel,) = ir.get_ops_of_type(module := built(lambda: exchange(2)), ws.KernelOp)
    network, skips = Network(processes(kernel)), list[Skip]()
    trace = network.run({"m": TILE_ROWS * MANY, "n": 2}, skips=skips)
    assert len(skips) == 1 and sum(map(len, trace.events.values())) < 200
    del module
