"""Shadow memory against a model that remembers every access, and the clocks' bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.runtime.emulator.checkers.clocks import (
    FIRST_THREAD,
    KNOWN,
    PROXY,
    Actors,
    WarpClocks,
)
from attn_mlir.runtime.emulator.checkers.shadow import Shadow
from attn_mlir.runtime.emulator.checkers.spaces import Actor, ByteSpace

ACTORS, GRANULES = 5, 6
ALL = (1 << 32) - 1


class _Model:
    """Every access since the last write of each granule."""

    def __init__(self) -> None:
        self.write: dict[int, tuple[int, int]] = {}
        self.reads: dict[int, dict[int, int]] = {}

    def access(self, granule: int, actor: int, step: int, known: list[int], is_write: bool) -> bool:
        """Whether the access is in order."""
        by, at = self.write.get(granule, (actor, 0))
        good = by == actor or known[by] >= at
        reads = self.reads.setdefault(granule, {})
        if not is_write:
            reads[actor] = step
            return good
        good &= all(who == actor or known[who] >= at for who, at in reads.items())
        self.write[granule] = (actor, step)
        self.reads[granule] = {}
        return good


_OPERATION = st.tuples(
    st.sampled_from(["read", "write", "learn", "learn"]),
    st.integers(1, ACTORS),
    st.integers(1, ACTORS),
    st.integers(0, GRANULES - 1),
    st.integers(1, GRANULES),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_OPERATION, max_size=60), st.booleans())
def test_shadow_agrees_with_a_model(operations: list[tuple[str, int, int, int, int]], spread: bool):
    shadow, model = Shadow((GRANULES,)), _Model()
    clocks = np.zeros((ACTORS + 1, ACTORS + 1), np.int32)
    for kind, actor, other, first, count in operations:
        if kind == "learn":
            clocks[actor] = np.maximum(clocks[actor], clocks[other])
            continue
        clocks[actor, actor] += 1
        step = int(clocks[actor, actor])
        granules = list(range(first, min(first + count, GRANULES)))
        at = np.array(granules) if spread else slice(granules[0], granules[-1] + 1)
        known = clocks[actor]
        do = shadow.write if kind == "write" else shadow.read
        conflict = do(at, actor, step, known, known)
        wanted = [model.access(g, actor, step, known.tolist(), kind == "write") for g in granules]
        assert (conflict is None) == all(wanted)


def test_lanes_that_read_one_granule_are_all_remembered() -> None:
    shadow = Shadow((4,))
    nothing = np.zeros(40, np.int32)
    lanes = np.arange(1, 33)[:, None]
    assert shadow.read(np.zeros((32, 1), np.intp), lanes, 1, nothing, nothing) is None
    almost = nothing.copy()
    almost[1:32] = 1
    found = shadow.write(slice(0, 1), 35, 1, almost, almost)
    assert found is not None and (found.actor, found.step, found.was_write) == (32, 1, False)


def test_history_survives_smaller_granules() -> None:
    space = ByteSpace(64)
    nothing = np.zeros(8, np.int32)
    space.span(0, 32, Actor(3, 1, nothing, nothing), True)
    for reader in (4, 5):
        knows = nothing.copy()
        knows[3] = 1
        assert space.span(0, 16, Actor(reader, 1, knows, knows), False) is None
    late = space.lanes(np.array([4]), 4, Actor(6, 1, knows, knows), True)
    assert late is not None and late.actor in (4, 5) and space.range_of(late) == (4, 4)
    unknown = space.lanes(np.array([17]), 1, Actor(6, 2, nothing, nothing), False)
    assert unknown is not None and unknown.was_write and space.range_of(unknown) == (17, 1)
    assert space.lanes(np.array([40]), 2, Actor(6, 3, nothing, nothing), False) is None


def test_lanes_learn_only_from_a_warp_barrier() -> None:
    actors = Actors(32)
    warp = WarpClocks(actors, FIRST_THREAD, "warp")
    warp.step(None)
    assert warp.snapshot(1)[KNOWN, FIRST_THREAD] == 0
    assert warp.snapshot(0)[KNOWN, FIRST_THREAD] == 1
    warp.learn(0b1, (KNOWN,), actors.engine("e"), 7)
    assert len(warp.groups) == 2
    warp.unite(ALL)
    assert len(warp.groups) == 1
    snapshot = warp.snapshot(31)
    assert snapshot[KNOWN, FIRST_THREAD] == 1 and snapshot[KNOWN, actors.engine("e")] == 7


def test_a_proxy_fence_covers_what_was_done_and_known_before_it() -> None:
    actors = Actors(64)
    first, second = (WarpClocks(actors, FIRST_THREAD + 32 * i, "warp") for i in range(2))
    first.step(None)
    second.acquire(first.release(actors.zeros(2), ALL), ALL, tensor=False)
    assert second.snapshot(0)[PROXY, FIRST_THREAD] == 0
    second.fence_proxy(1)
    assert second.snapshot(0)[PROXY, FIRST_THREAD] == 1
    assert second.snapshot(1)[PROXY, FIRST_THREAD] == 0
    second.step(None)
    assert second.snapshot(0)[PROXY, FIRST_THREAD + 32] == 0


@pytest.mark.parametrize("count", [1, 64, 65, 300])
def test_clocks_grow_with_engines(count: int) -> None:
    actors = Actors(32)
    warp = WarpClocks(actors, FIRST_THREAD, "warp")
    numbers = [actors.engine(n) for n in range(count)]
    warp.learn(ALL, (KNOWN,), numbers[-1], 3)
    early = np.zeros((2, 40), np.int32)
    assert actors.join(early, warp.snapshot(0)[:2])[KNOWN, numbers[-1]] == 3
    assert actors.key_of(numbers[-1]) == count - 1 and actors.key_of(FIRST_THREAD) is None
