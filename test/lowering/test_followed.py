"""Roles of one thread that gathers, which the whole warp follows: executed, and what of their code all lanes run."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect import ws
from attn_mlir.lowering.frame import structure
from attn_mlir.lowering.rings import followed
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import load
from attn_mlir.schedules import emit as b
from attn_mlir.validation.ws.gathers import rows_of_a_table

COUNT, COLUMNS = 16, 128


def gathered(*, asks: bool = False, clock: bool = False) -> bytes:
    """y[i] = x[table[i]], 16 entries at a time.

    Args:
      asks: nothing is gathered where the first of them is below -1.
      clock: the role that gathers also leaves in a further output when it begins.
    """

    def load(x: b.Value, entries: b.Ring, tiles: b.Ring) -> None:
        slot = entries.wait()
        first = b.entry(slot, b.constant(0)) if asks else b.constant(0)
        tile = tiles.acquire()
        with b.when(b.compare("sge", first, -1)):
            b.gather_in(x, tile, [0, 0], lambda row: b.entry(slot, row))
        b.commit(tile, "copy_engine")
        b.release(slot, "threads")

    def begin(times: b.Value) -> None:
        ws.StoreEntryOp(ws.ClockOp().cycles, times, [b.constant(1)])

    return rows_of_a_table(COUNT, COLUMNS, load, begin=begin if clock else None)


def attend(made: bytes, x: Any, table: Any, device: EmulatorDevice) -> Any:
    y = np.full((len(table), COLUMNS), np.nan, ml_dtypes.bfloat16)
    load(made)(x, table, y, device=device)
    return y


@pytest.mark.parametrize(
    "device", [EmulatorDevice(check="all"), EmulatorDevice("adversarial", 3, check="all")]
)
def test_rows_where_all_lanes_ask(device: EmulatorDevice) -> None:
    numbers = np.random.default_rng(4)
    x = numbers.standard_normal((50, COLUMNS)).astype(ml_dtypes.bfloat16)
    table = numbers.integers(-1, 50, 5 * COUNT).astype(np.int32)
    table[2 * COUNT] = -2  # of a tile that nothing fills: what was there last, of two slots
    y = attend(gathered(asks=True), x, table, device)
    truth = np.where(table[:, None] >= 0, x[table.clip(0)], 0)
    truth[2 * COUNT : 3 * COUNT] = truth[:COUNT]
    assert np.array_equal(y, truth)


def test_the_warp_meets_where_all_lanes_have_read() -> None:
    """Not where only the copies' rows were read, by the thread that issues them."""
    count = [gathered(asks=asks).count(b"bar.warp.sync") for asks in (False, True)]
    assert count[1] == count[0] + 2  # in each turn of a round


def test_a_role_that_tells_the_time_is_followed_and_one_lane_writes_it() -> None:
    numbers = np.random.default_rng(4)
    x = numbers.standard_normal((50, COLUMNS)).astype(ml_dtypes.bfloat16)
    table = numbers.integers(0, 50, 2 * COUNT).astype(np.int32)
    y, times = np.zeros((len(table), COLUMNS), ml_dtypes.bfloat16), np.full(2, -1, np.int32)
    kernel = load(gathered(clock=True))
    kernel(x, table, y, times, device=EmulatorDevice(check="all"))
    assert np.array_equal(y, x[table])
    assert times[0] == -1 and times[1] >= 0
    assert kernel.bundle.ptx.count("@first st.global.u32") == 1


@pytest.mark.parametrize("follows_clocks", [True, False])
def test_warps_follow_roles_that_gather(
    follows_clocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all that such a role does may be followed."""
    found: dict[str, bool] = {}

    def noted(role: ws.RoleOp) -> bool:
        found[role.label] = followed.is_followed(role)
        return found[role.label]

    monkeypatch.setattr(structure, "is_followed", noted)
    if not follows_clocks:
        kept = tuple(kind for kind in followed.FOLLOWED if kind is not ws.ClockOp)
        monkeypatch.setattr(followed, "FOLLOWED", kept)
    gathered(clock=True)
    assert found == {"find": False, "load": follows_clocks, "leave": False}
