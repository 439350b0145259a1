"""Shadow memory against a model that remembers every access, and the clocks' bookkeeping."""

from __future__ import annotations

import copy
import random
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest

from attn_mlir.runtime.emulator.checkers import accesses
from attn_mlir.runtime.emulator.checkers.clocks import (
    FIRST_THREAD,
    KNOWN,
    PROXY,
    Actors,
    WarpClocks,
)
from attn_mlir.runtime.emulator.checkers.shadow import Agreement, Shadow
from attn_mlir.runtime.emulator.checkers.spaces import Accessor, ByteSpace

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


_KINDS = ["read"] * 4 + ["lanes"] * 3 + ["write", "store", "store"] + ["learn"] * 5 + ["refine"]


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("seed", range(8))
def test_shadow_agrees_with_a_model(seed: int, rows: int) -> None:
    """Reads and writes of engines, reads of two lanes at a time, and weak stores of two values.

    With a pool that begins with one row and grows as little as it can, rows are used again and again.
    """
    with patch.multiple(accesses, _POOL_ROWS=rows, _POOL_GROWTH=min(rows, 4)):
        for part in range(8):
            _compare_with_model(random.Random(8 * seed + part), steps=100)


def _compare_with_model(draw: random.Random, steps: int) -> None:
    shadow, model = Shadow((GRANULES,)), [_Model() for _ in range(GRANULES)]
    memory = np.zeros(GRANULES, np.int32)
    clocks = np.zeros((ACTORS + 1, ACTORS + 1), np.int32)
    for _ in range(steps):
        kind = draw.choice(_KINDS)
        actor, other = draw.randint(1, ACTORS), draw.randint(1, ACTORS)
        first, count = draw.randrange(len(model)), draw.randint(1, GRANULES)
        value, element_bytes, spread = draw.randint(1, 2), draw.choice([4, 8]), draw.random() < 0.5
        if kind == "learn":
            known_to = range(1, ACTORS + 1) if draw.random() < 0.2 else [actor]
            clocks[known_to] = np.maximum(clocks[known_to], clocks[other])
            continue
        if kind == "refine":
            if len(model) < 4 * GRANULES:
                shadow.refine(2)
                model = [copy.deepcopy(one) for one in model for _ in range(2)]
                memory = np.repeat(memory, 2)
            continue
        lanes = [actor, other] if kind == "lanes" and other != actor else [actor]
        step = int(clocks[lanes, lanes].max()) + 1
        clocks[lanes, lanes] = step
        granules = list(range(first, min(first + count, len(model))))
        where = np.array(granules)
        at = where if spread or kind == "store" else slice(granules[0], granules[-1] + 1)
        known = clocks[actor]
        done = [(lane, granule) for lane in lanes for granule in granules]
        if kind == "lanes":
            every = np.stack([where] * len(lanes))
            knows = clocks[lanes]
            conflict = shadow.read(every, np.array(lanes)[:, None], step, knows, knows)
        elif kind == "read":
            conflict = shadow.read(at, actor, step, known, known)
        else:
            is_there = partial(np.equal, memory[where], value)
            agreement = Agreement(element_bytes, is_there) if kind == "store" else None
            conflict = shadow.write(at, actor, step, known, known, agreement)
            memory[where] = value
        done_as = "read" if kind == "lanes" else kind
        stored = (value, element_bytes)
        wanted = [
            model[granule].access(lane, step, clocks[lane].tolist(), done_as, stored)
            for lane, granule in done
        ]
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
    space.span(0, 32, Accessor(3, 1, nothing, nothing), True)
    for reader in (4, 5):
        knows = nothing.copy()
        knows[3] = 1
        assert space.span(0, 16, Accessor(reader, 1, knows, knows), False) is None
    late = space.lanes(np.array([4]), 4, Accessor(6, 1, knows, knows), True)
    assert late is not None and late.actor in (4, 5) and space.range_of(late) == (4, 4)
    unknown = space.lanes(np.array([17]), 1, Accessor(6, 2, nothing, nothing), False)
    assert unknown is not None and unknown.was_write and space.range_of(unknown) == (17, 1)
    assert space.lanes(np.array([40]), 2, Accessor(6, 3, nothing, nothing), False) is None


def test_lanes_learn_only_from_a_warp_barrier() -> None:
    actors = Actors(32)
    warp = WarpClocks(actors, FIRST_THREAD, "warp")
    warp.step(None)
    assert warp.snapshot(1)[KNOWN, FIRST_THREAD] == 0
    assert warp.snapshot(0)[KNOWN, FIRST_THREAD] == 1
    warp.learn(0b1, ((KNOWN, actors.engine("e")),), 7)
    assert len(warp.groups) == 2
    warp.synchronise(ALL)
    assert len(warp.groups) == 1
    snapshot = warp.snapshot(31)
    assert snapshot[KNOWN, FIRST_THREAD] == 1 and snapshot[KNOWN, actors.engine("e")] == 7


def test_a_proxy_fence_covers_what_was_done_and_known_before_it() -> None:
    actors = Actors(64)
    first, second = (WarpClocks(actors, FIRST_THREAD + 32 * i, "warp") for i in range(2))
    first.step(None)
    second.acquire(first.release(actors.zeros(2), ALL), ALL)
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
    warp.learn(ALL, ((KNOWN, numbers[-1]),), 3)
    early = np.zeros((2, 40), np.int32)
    assert actors.join(early, warp.snapshot(0)[:2])[KNOWN, numbers[-1]] == 3
    assert actors.key_of(numbers[-1]) == count - 1 and actors.key_of(FIRST_THREAD) is None
