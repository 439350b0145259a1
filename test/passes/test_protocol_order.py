"""The ring protocol: which step precedes which in a run."""

from __future__ import annotations

from collections import Counter

import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.validation.ws.ring_texts import Kernel, fill, role, use


def chain(
    release_a: str, order: str = "after", by_b: str = "threads", lanes: int = 1, ctas: int = 1
) -> Kernel:
    """`a` is filled, read by a worker whose release is `release_a`; then the worker fills `b`."""
    early = order == "before"
    read = """%ua = "ws.wait"(%a, %c0) : (!ring, i32) -> !t
    """
    give = f'"ws.release"(%ua) {{by = "{release_a}"}} : (!t) -> ()\n'
    work = read + (fill("b", by_b) + give if early else give + fill("b", by_b))
    return Kernel(
        role("load", fill("a"), first=0),
        role("work", work, first=1, lanes=lanes),
        role("out", use("b"), first=2),
        ctas=ctas,
    )


def test_what_other_ctas_do_in_their_own_memory_need_not_be_known() -> None:
    assert chain("threads", ctas=2).precedes("a", "b")
    assert not chain("threads", order="before", ctas=2).precedes("a", "b")


def test_a_thread_s_release_precedes_what_it_does_next() -> None:
    assert chain("threads").precedes("a", "b")
    assert not chain("threads").precedes("b", "a")


def test_a_thread_s_release_says_nothing_of_other_threads() -> None:
    """One thread of the role writes `b` while another still reads `a`."""
    assert not chain("threads", lanes=32).precedes("a", "b")


def test_a_handover_by_all_threads_that_comes_back_says_it() -> None:
    """The role acquires `b` again when `out` has released what all its threads committed."""
    twice = fill("b", "threads") + fill("b", "threads")
    kernel = Kernel(
        role("load", fill("a"), first=0),
        role("work", use("a") + twice, first=1, lanes=32),
        role("out", use("b") + use("b"), first=2),
    )
    events = kernel.run().events[kernel.rings["b"], 0]
    taken = [event for event in events if event.kind == "acquire"]
    filled = [event for event in events if event.kind == "commit"]
    assert [any(map(event.knows, filled)) for event in taken] == [False, True]


def test_what_is_still_read_does_not_precede() -> None:
    assert not chain("threads", order="before").precedes("a", "b")


@pytest.mark.parametrize("agent", ["copy_engine", "tensor_core"])
def test_an_engine_s_release_precedes_nothing_by_itself(agent: str) -> None:
    """The engine goes on while the thread acquires the next ring."""
    assert not chain(agent).precedes("a", "b")


def through_an_engine(agent: str) -> Kernel:
    """An engine reads `a`, then fills `b`; who has waited for `b` acquires `c`, which lies over `a`."""
    work = f"""%ua = "ws.wait"(%a, %c0) : (!ring, i32) -> !t
    %sb = "ws.acquire"(%b, %c0) : (!ring, i32) -> !t
    "ws.release"(%ua) {{by = "{agent}"}} : (!t) -> ()
    "ws.commit"(%sb) {{by = "{agent}"}} : (!t) -> ()
    """
    return Kernel(
        role("load", fill("a"), first=0),
        role("work", work, first=1),
        role("finish", use("b") + fill("c"), first=2),
        role("out", use("c"), first=3),
    )


def test_the_tensor_core_completes_in_order() -> None:
    """Its commit of `b` says that its reads of `a`, issued before, are done."""
    assert through_an_engine("tensor_core").precedes("a", "c")


def test_the_copy_engine_completes_in_any_order() -> None:
    """A transfer that has landed says nothing about another one."""
    assert not through_an_engine("copy_engine").precedes("a", "c")


def test_a_producer_waits_for_every_consumer() -> None:
    """One slot, two turns: the second acquire has seen both releases of the first."""
    twice = fill("a") + fill("a")
    read = use("a") + use("a")
    kernel = Kernel(
        role("fill", twice, first=0), role("left", read, first=1), role("right", read, first=2)
    )
    events = kernel.run().events[kernel.rings["a"], 0]
    first, second = (event for event in events if event.kind == "acquire")
    releases = [event for event in events if event.kind == "release"]
    assert len(releases) == 4
    assert not any(first.knows(release) for release in releases)
    assert sorted(r.who for r in releases if second.knows(r)) == ["left", "right"]


def test_copies_of_threads_complete_in_order() -> None:
    """A commit says that all copies before it have landed."""
    text = fill("a", "thread_copies") + fill("b", "thread_copies")
    kernel = Kernel(
        role("fill", text, first=0, lanes=32), role("use", use("b") + use("a"), first=1)
    )
    events = kernel.run().events
    (committed,) = (e for e in events[kernel.rings["a"], 0] if e.kind == "commit")
    (waited,) = (e for e in events[kernel.rings["b"], 0] if e.kind == "wait")
    assert waited.knows(committed)


def test_transfers_complete_in_any_order() -> None:
    """Who has seen the second of two transfers does not know of the first."""
    text = fill("a", "copy_engine") + fill("b", "copy_engine")
    kernel = Kernel(role("fill", text, first=0), role("use", use("b") + use("a"), first=1))
    events = kernel.run().events
    first, second = (
        event for name in "ab" for event in events[kernel.rings[name], 0] if event.kind == "commit"
    )
    seen_b, seen_a = (
        event for name in "ba" for event in events[kernel.rings[name], 0] if event.kind == "wait"
    )
    assert seen_b.knows(second) and not seen_b.knows(first)
    assert seen_a.knows(first) and seen_a.knows(second)


def test_a_deadlock_names_both_sides() -> None:
    left = use("b") + fill("a")
    right = use("a") + fill("b")
    kernel = Kernel(role("left", left, first=0), role("right", right, first=1))
    with pytest.raises(
        VerifyError, match=r"left needs a full slot of ring b\[0\], which right commits; role right"
    ):
        kernel.run()


def test_runs_depend_on_sizes() -> None:
    body = f"scf.for %i = %c0 to %m step %c1 : i32 {{ {fill('a')} }}"
    read = f"scf.for %i = %c0 to %m step %c1 : i32 {{ {use('a')} }}"
    kernel = Kernel(role("fill", body, first=0), role("use", read, first=1), stages=2)
    for m in (0, 1, 5):
        events = kernel.run(m=m).events[kernel.rings["a"], 0]
        assert Counter(event.kind for event in events) == Counter(
            {kind: m for kind in ("acquire", "commit", "wait", "release") if m}
        )
