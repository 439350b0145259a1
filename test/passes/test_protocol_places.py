"""The ring protocol: slots of several rings that overlap, and the place that the planner gives them."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import VerifyError
from attn_mlir.passes.analysis.protocol.clocks import knows
from attn_mlir.passes.analysis.protocol.recurrence import Skip
from attn_mlir.passes.analysis.protocol.simulate import Network
from attn_mlir.passes.analysis.protocol.trace import Event
from attn_mlir.passes.plan_memory import Region, plan
from attn_mlir.passes.verify_rings import prove
from attn_mlir.validation.ws import places, ring_draws
from attn_mlir.validation.ws.clusters import built
from attn_mlir.validation.ws.ring_texts import Kernel, fill, role, use

MANY = 10_000  # turns that take long to run


def turns(body: str, count: str = "%m") -> str:
    return f"scf.for %i = %c0 to {count} step %c1 : i32 {{ {body} }}\n"


DECLARED = """
!tile = !ws.tile<vector<128x128xf32>, "tensor">
!ring = !ws.ring<!tile, 2, 1>
"ws.kernel"() ({{
^bb0:
  %s = "ws.alloc_ring"() {{label_name = "s"}} : () -> !ring
{borrowers}
}}) {{sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []}} : () -> ()
"""


def overlapping(*borrowers: tuple[str, int, int, int]) -> dict[str, dict[str, object]]:
    """Which slots overlap, by ring: of borrowers by name, columns, stages and offset."""
    text = "\n".join(
        f'  %{name} = "ws.alloc_inside"(%s) {{label_name = "{name}", offset = {offset} : i64}} : (!ring)'
        f' -> !ws.ring<!ws.tile<vector<128x{columns}xf32>, "tensor">, {stages}, 1>'
        for name, columns, stages, offset in borrowers
    )
    module = ir.Module.parse(DECLARED.format(borrowers=text), make_context())
    (kernel,) = ir.get_ops_of_type(module, ws.KernelOp)
    rings = [op for op in kernel.body.blocks[0].operations if isinstance(op, ws.AllocRingOp)]
    return {op.label: {other.label: found for other, found in ws.overlaps(op)} for op in rings}


def test_which_slots_overlap() -> None:
    """Beside one another, over one another by a column, and parts of slots."""
    found = overlapping(("p", 32, 2, 0), ("q", 32, 2, 32), ("r", 33, 2, 31), ("h", 16, 4, 40))
    same, parts = ((0,), (1,)), ((0, 1), (2, 3))
    assert found["s"] == {"p": same, "q": same, "r": same, "h": parts}
    assert found["p"] == {"s": same, "r": same}
    assert found["q"] == {"s": same, "r": same, "h": ((0,), (2,))}
    assert found["h"]["s"] == ((0,), (0,), (1,), (1,))
    assert found["h"]["r"] == ((0,), (), (1,), ())


def rotation(stages: int) -> Kernel:
    """Two borrowers over one another: b is filled from a, c from b, and a again when c is used."""
    return Kernel(
        role("load", turns(fill("a", "threads") + use("c")), first=0),
        role("first", turns(use("a") + fill("b", "threads")), first=1),
        role("second", turns(use("b") + fill("c", "threads")), first=2),
        stages=stages,
        inside="bc",
    )


@pytest.mark.parametrize("stages", [1, 2])
def test_rings_may_take_turns_at_a_place_in_any_order(stages: int) -> None:
    kernel, skips = rotation(stages), list[Skip]()
    Network(kernel.members).run({"m": MANY, "n": 0}, skips=skips)
    (skip,) = skips
    assert MANY - skip.times * next(iter(skip.loops.values()))[1] < 20


def last_in_place(load: str, tail: str) -> Kernel:
    """b is filled once, in the place of a, when the first m turns of that are over.

    Args:
      load, tail: further turns of a, by who fills and by who uses it.
    """
    return Kernel(
        role("load", turns(fill("a")) + load, first=0),
        role("work", turns(use("a")) + fill("c", "threads") + tail, first=1),
        role("store", use("c") + fill("b", "threads"), first=2),
        role("end", use("b"), first=3),
        stages=2,
        inside="b",
    )


def test_a_borrower_may_be_used_once_behind_all_turns_of_its_lender() -> None:
    """The place of operands is that of the result."""
    kernel = last_in_place("", "")
    assert prove(kernel.op)
    wrong = last_in_place(fill("a"), use("a"))
    with pytest.raises(
        VerifyError,
        match=r"takes turn 0 of ring b\[0\] in the place of turn 0 of ring a\[0\], which role \w+ may "
        r"still \w+: a wait for what follows that \w+ is missing before this acquire",
    ):
        prove(wrong.op)


def lives(events: list[Event]) -> list[tuple[Event, list[Event]]]:
    """For each turn its acquire, and the steps with which it ends."""
    begun = [event for event in events if event.kind == "acquire"]
    ends: dict[int, list[Event]] = {turn: [] for turn in range(len(begun))}
    counts: dict[tuple[str, str], int] = {}
    for event in events:
        if event.kind in ("commit", "release"):
            turn = counts.get((event.kind, event.who), 0)
            counts[event.kind, event.who] = turn + 1
            ends[turn].append(event)
    return [(first, ends[turn]) for turn, first in enumerate(begun)]


def is_before(one: tuple[Event, list[Event]], other: tuple[Event, list[Event]]) -> bool:
    """Whether all of a turn had happened when another one began."""
    return all(knows(other[0].clock, end.tick) for end in one[1])


def test_no_turns_that_pass_are_live_at_once() -> None:
    """Compared are all pairs of turns at a place, in any order of the run."""
    kernels = [(ring_draws.drawn(seed, "b"), "ab") for seed in range(12, 40)]
    kernels += [(rotation(stages), "abc") for stages in (1, 2)]
    pairs = passed = 0
    for (kernel, names), (m, n) in product(kernels, ((3, 0), (5, 3))):
        stages = ws.RingType(kernel.rings["a"].type).stages
        try:
            trace = Network(kernel.members).run({"m": m, "n": n})
        except VerifyError:
            continue
        passed += 1
        rings = [lives(trace.events[kernel.rings[name], 0]) for name in names]
        for one, other in combinations(rings, 2):
            for (t, mine), (u, theirs) in product(enumerate(one), enumerate(other)):
                if (t - u) % stages == 0:
                    assert is_before(mine, theirs) or is_before(theirs, mine), (t, u)
                    pairs += 1
    assert passed > 10 and pairs > 100


@pytest.mark.parametrize("inside", ["b", "bc"])
def test_drawn_networks_with_a_place_end_as_in_full(inside: str) -> None:
    for seed in (4, 22, 39):
        ring_draws.compare(ring_draws.drawn(seed, inside), ring_draws.Counter())


def planned(kernel: ws.KernelOp, target: str) -> dict[str, Region]:
    with kernel.operation.context:
        return {region.label: region for region in plan(kernel, target_named(target))}


def test_borrowers_lie_in_the_place_of_their_lender() -> None:
    module = built(places.staged)
    (kernel,) = ir.get_ops_of_type(module, ws.KernelOp)
    regions = planned(kernel, "sm_90a")
    begin, step = regions["x"].begin, places.ROWS * places.WIDTH * 2
    assert regions["x"].end == begin + 2 * step
    found = {name: (x.begin - begin, x.end - begin) for name, x in regions.items() if x.is_borrowed}
    part = places.ROWS * places.PART * 2
    assert found == {
        "lo": (places.LO_BYTES, step + places.LO_BYTES + part),
        "hi": (places.HI_BYTES, step + places.HI_BYTES + part),
        "out": (0, step + 2 * part),
    }


def test_a_place_is_in_use_while_a_borrower_is() -> None:
    """a is done when c is filled; b, which lies there, is not."""
    kernel = Kernel(
        role("load", fill("a", "threads"), first=0),
        role("work", use("a") + fill("b", "threads") + fill("c", "threads"), first=1),
        role("end", use("c") + use("b"), first=2),
        inside="b",
    )
    regions = planned(kernel.op, "sm_90a")
    assert regions["b"].begin == regions["a"].begin
    assert regions["a"].end <= regions["c"].begin or regions["c"].end <= regions["a"].begin
