"""The ring protocol: who hands over a slot, and how many arrivals that takes."""

from __future__ import annotations

import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.passes.plan_memory import arrivals, sides
from attn_mlir.passes.verify_rings import prove
from attn_mlir.validation.ws.ring_texts import Kernel, fill, role, use


def filled_by_two(second: str) -> Kernel:
    """`a` is filled by two roles together, one slot; `second` is what the second one does."""
    return Kernel(
        role("first", fill("a", "copy_engine") + fill("a", "copy_engine"), first=0),
        role("second", second, first=1, warps=2, lanes=32),
        role("use", use("a") + use("a") + fill("b"), first=3),
        role("end", use("b"), first=4),
        producers='producers = ["thread_copies", "copy_engine"]',
    )


def test_a_slot_is_full_when_all_producers_have_committed() -> None:
    kernel = filled_by_two(fill("a", "thread_copies") + fill("a", "thread_copies"))
    events = kernel.run().events[kernel.rings["a"], 0]
    commits = [event for event in events if event.kind == "commit"]
    assert {commit.who for commit in commits} == {"first", "second"}
    waits = [event for event in events if event.kind == "wait"]
    assert [sum(wait.knows(commit) for commit in commits) for wait in waits] == [2, 4]
    assert arrivals(kernel.rings["a"], kernel.members) == (1 + 64, 1)


def test_an_asynchronous_arrival_says_nothing_of_what_threads_did_besides() -> None:
    """Who waits for copies of `work` does not know that it is done with `a`; of its stores it does."""

    def kernel(agent: str) -> Kernel:
        return Kernel(
            role("load", fill("a"), first=0),
            role("work", use("a") + fill("b", agent), first=1, lanes=32),
            role("end", use("b") + fill("c", "threads"), first=2),
            role("last", use("c"), first=3),
        )

    assert kernel("threads").precedes("a", "c")
    assert not kernel("thread_copies").precedes("a", "c")


def test_every_producer_waits_for_the_consumers() -> None:
    """The second turn of each knows the release of the first."""
    kernel = filled_by_two(fill("a", "thread_copies") + fill("a", "thread_copies"))
    events = kernel.run().events[kernel.rings["a"], 0]
    first = next(event for event in events if event.kind == "release")
    acquires = [event for event in events if event.kind == "acquire"]
    assert sum(event.knows(first) for event in acquires) == 2


def known_empty(between: str) -> Kernel:
    """`a` has no empty barriers and is filled twice by one role, which does something `between`."""
    return Kernel(
        role("fill", fill("a", "threads") + between + fill("a", "threads"), first=0),
        role("use", use("a") + fill("b") + use("a"), first=1),
        role("end", use("b"), first=2),
        producers="known_empty",
    )


def test_a_slot_without_empty_barriers_is_taken_by_who_knows_of_its_release() -> None:
    """By a slot of `b`, which is handed over behind the release."""
    kernel = known_empty(use("b"))
    kernel.run()
    assert sides(kernel.rings["a"].owner) == ("full",)
    assert sides(kernel.rings["b"].owner) == ("full", "empty")


def test_a_slot_without_empty_barriers_is_refused_to_others() -> None:
    with pytest.raises(
        VerifyError,
        match=r"role fill takes a slot of ring a\[0\], which has no empty barriers, that role use may "
        "not have released: no signal says so",
    ):
        known_empty("").run()


def test_a_producer_that_lags_stops_all() -> None:
    kernel = filled_by_two(fill("a", "thread_copies"))
    with pytest.raises(
        VerifyError, match=r"needs a full slot of ring a\[0\], which first and second"
    ):
        kernel.run()
    with pytest.raises(
        VerifyError, match=r"needs a commit by role second for each commit of ring a"
    ):
        prove(kernel.op)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (fill("a", "threads") + fill("a", "threads"), "states that thread_copies, copy_engine fill slots of ring a"),
        (fill("a", "threads") + fill("a", "thread_copies"), "states that thread_copies, copy_engine"),
    ],
)  # fmt: skip
def test_producers_are_those_stated(second: str, message: str) -> None:
    kernel = filled_by_two(second)
    with pytest.raises(VerifyError, match=message):
        prove(kernel.op)


def test_a_role_hands_over_by_one_agent() -> None:
    mixed = fill("a", "threads") + fill("a", "tensor_core")
    kernel = Kernel(role("fill", mixed, first=0), role("use", use("a") + use("a"), first=1))
    with pytest.raises(VerifyError, match=r"role fill to commit slots of ring a\[0\] by one agent"):
        prove(kernel.op)


@pytest.mark.parametrize(
    ("commit", "release", "expected"),
    [
        ("copy_engine", "tensor_core", (1, 1)),
        ("threads", "threads", (128, 64)),
        ("tensor_core", "threads", (1, 64)),
    ],
)
def test_arrivals_count_the_threads_of_one_group(
    commit: str, release: str, expected: tuple[int, int]
) -> None:
    """256 threads in two groups fill, 128 in two groups use: each meets one group of the other."""
    kernel = Kernel(
        role("fill", fill("a", commit, "%g"), first=0, warps=8, groups=2, lanes=32),
        role("use", use("a", release, "%g"), first=8, warps=4, groups=2, lanes=32),
        instances=2,
    )
    assert arrivals(kernel.rings["a"], kernel.members) == expected


def test_arrivals_of_several_consumers_add_up() -> None:
    kernel = Kernel(
        role("fill", fill("a"), first=0),
        role("left", use("a", "threads"), first=4, warps=4, lanes=32),
        role("right", use("a", "tensor_core"), first=1),
    )
    assert arrivals(kernel.rings["a"], kernel.members) == (1, 129)


def test_every_instance_has_as_many_arrivals() -> None:
    """Instance 0 goes to 128 threads, instance 1 to one: one number for all instances would hang."""
    kernel = Kernel(
        role("fill", fill("a") + fill("a", instance="%c1"), first=0),
        role("many", use("a"), first=4, warps=4, lanes=32),
        role("one", use("a", instance="%c1"), first=1),
        instances=2,
    )
    kernel.run()
    with pytest.raises(
        VerifyError,
        match="many arrivals in every instance: releases of instance 1 have 1, those of instance 0 128",
    ):
        arrivals(kernel.rings["a"], kernel.members)


def test_an_instance_that_the_call_decides_is_refused_by_the_plan() -> None:
    kernel = Kernel(role("fill", fill("a", instance="%m"), first=0), role("use", use("a"), first=1))
    with pytest.raises(
        VerifyError, match="expects an instance that is constant or the role's group"
    ):
        arrivals(kernel.rings["a"], kernel.members)
