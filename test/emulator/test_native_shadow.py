"""Accesses that native code records leave the same shadow memory as those that Python records."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from attn_mlir.runtime.emulator.checkers.shadow import Conflict
from attn_mlir.runtime.emulator.checkers.spaces import Accessor, ByteSpace, Stored
from attn_mlir.runtime.emulator.checkers.strong import Strong
from attn_mlir.runtime.emulator.core.order import Scope
from attn_mlir.runtime.emulator.native import machine

WARPS, LANES, BYTES = 2, 32, 1024
FIRST, ENGINE = 2, 2 + 32 * WARPS
ACTORS = ENGINE + 4


def _contents(space: ByteSpace) -> list[Any]:
    """What a shadow remembers, with the steps of each row of the pool in place of its number."""
    shadow = space.shadow
    result: list[Any] = [shadow.element_bytes.tolist()]
    for accesses in (shadow.writes, shadow.reads, shadow.earlier_writes, shadow.earlier_reads):
        cells = accesses.cells.tolist()
        steps = accesses._pool.steps  # pyright: ignore[reportPrivateUsage]
        rows = {n: np.trim_zeros(steps[-1 - (n >> 32)], "b").tolist() for n in cells if n < 0}
        result.append([rows.get(cell, cell) for cell in cells])
    return result


class _Both:
    """Two spaces of the same bytes: one records natively where that is possible."""

    def __init__(self, draw: random.Random, base: int, knows_bytes: bool):
        native = machine()
        if native is None:
            pytest.skip("no native code here")
        self.draw, self.base = draw, base
        self.data = np.zeros(BYTES, np.uint8)
        data = self.data if knows_bytes else None
        self.spaces = (ByteSpace(BYTES, base), ByteSpace(BYTES, base, native, data))
        self.clocks = np.zeros((ACTORS, ACTORS), np.int32)
        self.ticks = [0] * WARPS
        self.done: Counter[str] = Counter()

    def learn(self, warp: int) -> None:
        """A warp, or some of its lanes, learns all steps of everybody, or of one warp."""
        draw = self.draw
        rows = FIRST + 32 * warp + np.arange(32)
        if draw.random() < 0.1:
            rows = rows[: draw.randint(1, 31)]
        others = FIRST + 32 * draw.randrange(WARPS) + np.arange(32)
        teachers = np.arange(ACTORS) if draw.random() < 0.95 else others
        news = self.clocks[teachers].max(axis=0)
        self.clocks[rows] = np.maximum(self.clocks[rows], news)

    def access(self) -> None:
        """A weak load or store of some lanes of a warp, in both spaces."""
        draw = self.draw
        warp = draw.randrange(WARPS)
        if draw.random() < 0.85:
            self.learn(warp)
        lanes = np.arange(LANES)
        if draw.random() < 0.3:
            lanes = np.array(sorted(draw.sample(range(LANES), draw.randint(1, LANES))))
        width = draw.choice([4, 4, 8, 16, 16, 1 if draw.random() < 0.05 else 16])
        addresses = self._addresses(lanes, width)
        self.ticks[warp] += 1
        step, first = self.ticks[warp], FIRST + 32 * warp
        actors = lanes + first
        rows = self.clocks[actors]
        same = np.delete(rows, actors, axis=1)
        known = rows[0].copy() if (same == same[0]).all() else rows
        inside = ((addresses >= self.base) & (addresses + width <= self.base + BYTES)).all()
        values = None
        if draw.random() < 0.5:
            high = draw.choice([2, 2, 255])
            values = np.array(
                [draw.randrange(high) for _ in range(lanes.size * width)], np.uint8
            ).reshape(-1, width)
            if draw.random() < 0.5:
                values[:] = draw.randrange(2)
        element = draw.choice([2, 4]) if width > 4 else width
        found: list[Conflict | None] = []
        for space in self.spaces:
            stored, data = None, ()
            places = (addresses - self.base).astype(np.int64)[:, None] + np.arange(width)
            if values is not None:
                present = self.data[np.clip(places, 0, BYTES - 1)]
                stored, data = (
                    Stored(element, values, lambda present=present: present),
                    (values, element),
                )
            unique = len(set(addresses.tolist())) == addresses.size or values is None
            before = [array.copy() for array in space.shadow.arrays]
            if unique and space.records(addresses, width, lanes, first, step, known, data):
                found.append(None)
                self.done["native"] += 1
                continue
            assert all(map(np.array_equal, space.shadow.arrays, before))
            accessor = Accessor(actors[:, None], step, known, known)
            found.append(space.lanes(addresses, width, accessor, values is not None, stored))
        assert found[0] == found[1]
        self.done["conflict"] += found[0] is not None
        self.done["all"] += 1
        self.clocks[actors, actors] = step
        if values is not None and inside and not (addresses % width).any():
            self.data[(addresses - self.base).astype(np.int64)[:, None] + np.arange(width)] = values

    def _addresses(self, lanes: Any, width: int) -> Any:
        """Addresses: consecutive, shuffled, spread, repeated, and now and then bad ones."""
        draw = self.draw
        slots = BYTES // width
        form = draw.choice(["near"] * 16 + ["shuffled"] * 8 + ["spread"] * 4 + ["same", "any"])
        if form == "same":
            at = np.full(lanes.size, draw.randrange(slots))
        elif form == "any":
            at = np.array([draw.randrange(slots) for _ in range(lanes.size)])
        elif form == "spread":
            at = np.array(draw.sample(range(slots), lanes.size))
        else:
            at = draw.randrange(0, slots - LANES + 1, draw.choice([1, LANES])) + lanes
            if form == "shuffled":
                draw.shuffle(at)
        addresses = self.base + at * width
        if draw.random() < 0.03:
            addresses[-1] += draw.choice([1, BYTES, 2, width])
        return addresses.astype(draw.choice([np.uint32, np.uint64, np.int64]))

    def engine(self) -> None:
        """An engine reads or writes consecutive bytes."""
        draw = self.draw
        actor = ENGINE + draw.randrange(4)
        step = int(self.clocks[actor, actor]) + 1
        if draw.random() < 0.9:
            self.clocks[actor] = self.clocks.max(axis=0)
        first = draw.randrange(BYTES // 16)
        count = draw.randint(1, min(32, BYTES // 16 - first))
        known = self.clocks[actor].copy()
        is_write = draw.random() < 0.5
        at = (self.base + 16 * first, 16 * count)
        found = [
            space.span(*at, Accessor(actor, step, known, known), is_write) for space in self.spaces
        ]
        assert found[0] == found[1]
        self.clocks[actor, actor] = step


@pytest.mark.parametrize("knows_bytes", [True, False])
@pytest.mark.parametrize("base", [0, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_native_accesses_leave_what_python_leaves(seed: int, base: int, knows_bytes: bool) -> None:
    """Loads and stores find and leave the same, whatever the threads know."""
    both = _Both(random.Random(seed), base, knows_bytes)
    for turn in range(300):
        both.engine() if both.draw.random() < 0.2 else both.access()
        if turn % 25 == 0:
            assert _contents(both.spaces[0]) == _contents(both.spaces[1])
    assert _contents(both.spaces[0]) == _contents(both.spaces[1])
    assert both.done["native"] > both.done["all"] // 10
    assert both.done["conflict"] > 10


def test_what_native_code_leaves_to_python() -> None:
    """Strong accesses in a space, arrays of other types or shapes, and too many lanes."""
    native = machine()
    if native is None:
        pytest.skip("no native code here")
    lanes, known = np.arange(LANES), np.zeros(40, np.int32)
    at = 16 * np.arange(LANES, dtype=np.uint32)

    def taken(space: ByteSpace | None = None, **changed: Any) -> bool:
        given: dict[str, Any] = {
            "addresses": at,
            "width": 16,
            "lanes": lanes,
            "first_actor": 2,
            "step": 1,
        }
        given |= {"known": known, "stored": (), **changed}
        return (space or ByteSpace(BYTES, machine=native)).records(**given)

    assert taken()
    assert not taken(known=np.zeros((LANES, 40), np.int32))
    assert not taken(known=known.astype(np.int64))
    assert not taken(known=np.zeros(80, np.int32)[::2])
    assert not taken(addresses=at.astype(np.int32))
    assert not taken(addresses=np.repeat(at, 2)[::2])
    assert not taken(addresses=at[:31])
    assert not taken(addresses=np.arange(64) * 16, lanes=np.zeros(64, np.int64))
    values = np.ones((LANES, 16), np.uint8)
    assert taken(stored=(values, 4))
    assert not taken(stored=(values[:, :8], 4))
    assert not taken(stored=(values.astype(np.int8), 4))
    space = ByteSpace(BYTES, machine=native)
    strong = Strong((0, 0), Scope.GPU)
    look = Accessor(lanes[:, None] + 2, 1, known, known)
    assert space.strong_lanes(at, 16, look, strong, "load") is None
    assert not taken(space)
