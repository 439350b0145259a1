"""Copies of rows that threads wait for before they commit slots, in one CTA and for a product of a pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import LaunchError
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.schedules import emit as b
from attn_mlir.validation.ws.checks import refused
from attn_mlir.validation.ws.clusters import built, compiled
from attn_mlir.validation.ws.pair_gathers import ROWS, gathered_product

COUNT = 16  # rows of a tile
FAIR, LATE = EmulatorDevice(check="all"), EmulatorDevice("adversarial", 2, check="all")


def gathered(columns: int, *, are_together: bool, warps: int = 2, agent: str = "warps") -> Bundle:
    """y[i] = x[table[i]], two tiles at a time, of which both are committed next to each other or not."""

    def build() -> None:
        dynamic, f16 = ir.ShapedType.get_dynamic_size(), ir.F16Type.get()
        rows = ir.MemRefType.get([dynamic, columns], f16)
        arguments = [
            b.Argument("x", "in", rows, ("m", "")),
            b.Argument("table", "in", ir.MemRefType.get([dynamic], b.i32()), ("n",)),
            b.Argument("y", "out", rows, ("my", "")),
        ]
        kernel = b.declare_kernel("k", arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            x, table, y = kernel.body.blocks[0].arguments
            tiles = b.Ring("tiles", b.tile([COUNT, columns], f16, "shared"), stages=3)
            other = b.Ring("other", None)
            turns = b.INT.floordiv(b.extent(table, 0), 2 * COUNT)

            def fill(first: b.Value) -> b.Value:
                slot = tiles.acquire()
                found = b.load_global(table, [COUNT], [first], [0])
                b.copy_rows(x, slot, [0, 0], [0, 1], lambda _, row: row, found)
                return slot

            with b.role("copy", first=0, warps=warps), b.iterations(turns) as turn:
                first = b.INT.mul(turn, 2 * COUNT)
                slots = [fill(b.INT.add(first, number * COUNT)) for number in range(2)]
                token = other.acquire()
                b.commit(slots[0], agent)
                if not are_together:
                    b.commit(token, agent)
                b.commit(slots[1], agent)
                if are_together:
                    b.commit(token, agent)
            with b.role("leave", first=warps, warps=1, lanes=1):
                with b.iterations(b.INT.mul(turns, 2)) as turn:
                    slot = tiles.wait()
                    b.copy_out(slot, y, [b.INT.mul(turn, COUNT), 0], [0, 1])
                    b.release(slot, "copy_engine")
            with b.role("hear", first=warps + 1, warps=1), b.iterations(turns):
                b.release(other.wait(), "threads")

    return Bundle.from_bytes(compile_kernel("k", build, target="sm_100a"))


def attend(made: Bundle, device: EmulatorDevice) -> tuple[Any, Any]:
    """What a kernel makes of five tiles of a table, the last of which is none, and the truth."""
    columns = made.manifest.tensors[0].shape[1]
    assert isinstance(columns, int)
    numbers = np.random.default_rng(4)
    x = numbers.standard_normal((50, columns)).astype(np.float16)
    table = numbers.integers(-3, 55, 4 * COUNT).astype(np.int32)
    y = np.full((4 * COUNT, columns), np.nan, np.float16)
    Kernel(made)(x, table, y, device=device)
    exists = (table >= 0) & (table < 50)
    return y, np.where(exists[:, None], x[table.clip(0, 49)], 0)


@pytest.mark.parametrize("device", [FAIR, LATE])
@pytest.mark.parametrize(
    ("columns", "are_together", "waits"),
    [(192, True, ["0"]), (64, False, ["1", "0"]), (96, False, ["1", "0"])],  # 96: a line and a half
)
def test_rows_by_a_table(
    columns: int, are_together: bool, waits: list[str], device: EmulatorDevice
) -> None:
    made = gathered(columns, are_together=are_together)
    found, truth = attend(made, device)
    assert np.array_equal(found, truth)
    groups = [line.split()[1].strip(";") for line in made.ptx.splitlines() if "wait_group" in line]
    assert [count for count in groups if count in ("0", "1")][: len(waits)] == waits


@pytest.mark.parametrize("gone", ["cp.async.wait_group \t1;", "fence.proxy.async.shared::cta;"])
def test_without_a_wait_or_a_fence_the_checkers_object(gone: str) -> None:
    made = gathered(64, are_together=False)
    assert gone in made.ptx
    with pytest.raises(LaunchError, match="race|proxy"):
        attend(replace(made, ptx=made.ptx.replace(gone, "")), FAIR)


def product(ptx_without: str = "") -> tuple[Any, Any]:
    """What a pair multiplies of rows that warps of both CTAs copy, and the truth; two of four blocks have none."""
    random = np.random.default_rng(3)
    depth, columns, blocks = 128, 32, 4
    kernel = compiled(lambda: gathered_product(columns, depth, "nk", by_threads=True), "sm_100a")
    if ptx_without:
        assert ptx_without in kernel.bundle.ptx
        kernel = Kernel(replace(kernel.bundle, ptx=kernel.bundle.ptx.replace(ptx_without, "")))
    a = random.integers(-3, 4, (2 * ROWS, depth)).astype(np.float32)
    x = random.integers(-3, 4, (200, depth)).astype(np.float32)
    entries = random.integers(-5, 205, blocks * columns).astype(np.int32)
    entries[::columns] = 7, -1, -1, 0
    exists = (entries >= 0) & (entries < len(x))
    rows = np.where(exists[:, None], x[entries.clip(0, 199)], 0).reshape(blocks, columns, depth)
    found = np.full((2, 2 * ROWS, columns // 2), np.nan, np.float32)
    bf16 = ml_dtypes.bfloat16
    kernel(a.astype(bf16), x.astype(bf16), entries, found, device=LATE)
    halves = found.reshape(2, 2, ROWS, columns // 2).transpose(0, 2, 1, 3)
    return halves.reshape(2 * ROWS, columns), a @ (rows[0] + rows[3]).T


def test_a_pair_multiplies_what_its_warps_copy() -> None:
    """One fence to the cluster for both slots, whose arrivals behind it need none."""
    found, truth = product()
    assert np.array_equal(found, truth)


def test_without_the_fence_to_the_cluster_the_checkers_object() -> None:
    with pytest.raises(LaunchError, match="race"):
        product("fence.acq_rel.cluster;")


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (16, {}, "expects rows in multiples of 16 of 16 bytes of a row"),
        (
            32,
            {'by = "warps"': 'by = "copy_engine"'},
            "expects a slot from ws.acquire that is committed by threads",
        ),
    ],
)
def test_copies_that_have_no_code(count: int, changes: dict[str, str], message: str) -> None:
    text = str(built(lambda: gathered_product(count, 128, "nk", by_threads=True)))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    refused(text, message)
