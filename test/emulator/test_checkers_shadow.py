"""Shadow memory against a model that remembers every access, and the clocks' bookkeeping."""

from __future__ import annotations

from functools import partial
from typing import Any

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
from attn_mlir.runtime.emulator.checkers.shadow import Agreement, Shadow
from attn_mlir.runtime.emulator.checkers.spaces import Actor, ByteSpace

ACTORS, GRANULES = 5, 6
ALL = (1 << 32) - 1


class _Model:
    """One granule: every access since the last write that did not agree, and what that one replaced."""

    def __init__(self) -> None:
        self.writes: dict[int, int] = {}
        self.reads: dict[int, int] = {}
        self.earlier: list[dict[int, int]] = []
        self.stored: tuple[int, int] | None = None

    def access(
        self, actor: int, step: int, known: list[int], kind: str, stored: tuple[int, int]
    ) -> bool:
        """Whether the access is in order."""

        def is_late(accesses: dict[int, int]) -> bool:
            return any(who != actor and known[who] < at for who, at in accesses.items())

        late = is_late(self.writes)
        if kind == "read":
            self.reads[actor] = step
            return not late
        repeats = kind == "store" and stored == self.stored
        repeats &= late or len(self.writes) > 1 or actor in self.writes
        if repeats and not any(map(is_late, self.earlier)):
            self.writes[actor] = step
            return not is_late(self.reads)
        good = not late and not is_late(self.reads)
        if kind == "store":
            self.earlier = [self.writes, self.reads]
        self.writes, self.reads = {actor: step}, {}
        self.stored = stored if kind == "store" else None
        return good


_OPERATION = st.tuples(
    st.sampled_from(["read", "write", "store", "store", "learn", "learn"]),
    st.integers(1, ACTORS),
    st.integers(1, ACTORS),
    st.integers(0, GRANULES - 1),
    st.integers(1, GRANULES),
    st.integers(1, 2),
    st.sampled_from([4, 8]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_OPERATION, max_size=60), st.booleans())
def test_shadow_agrees_with_a_model(operations: list[tuple[Any, ...]], spread: bool):
    """Writes of engines, and weak stores of two values with elements of two sizes."""
    shadow, model = Shadow((GRANULES,)), [_Model() for _ in range(GRANULES)]
    memory = np.zeros(GRANULES, np.int32)
    clocks = np.zeros((ACTORS + 1, ACTORS + 1), np.int32)
    for kind, actor, other, first, count, value, element_bytes in operations:
        if kind == "learn":
            clocks[actor] = np.maximum(clocks[actor], clocks[other])
            continue
        clocks[actor, actor] += 1
        step = int(clocks[actor, actor])
        granules = list(range(first, min(first + count, GRANULES)))
        where = np.array(granules)
        at = where if spread or kind == "store" else slice(granules[0], granules[-1] + 1)
        known = clocks[actor]
        if kind == "read":
            conflict = shadow.read(at, actor, step, known, known)
        else:
            is_there = partial(np.equal, memory[where], value)
            agreement = Agreement(element_bytes, is_there) if kind == "store" else None
            conflict = shadow.write(at, actor, step, known, known, agreement)
            memory[where] = value
        stored = (value, element_bytes)
        wanted = [model[g].access(actor, step, known.tolist(), kind, stored) for g in granules]
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
