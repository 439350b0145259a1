"""Columns of a tile in tensor memory from a computed one on: groups use different ones by the same code."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import load
from attn_mlir.schedules import emit as b

ROWS, COLUMNS, GROUPS = 128, 64, 2
PART = COLUMNS // GROUPS


def exchanged(dtype: str) -> Bundle:
    """y = x: each group stores its columns to tensor memory, and loads those of the other one."""

    def build() -> None:
        element = {"f32": ir.F32Type, "bf16": ir.BF16Type}[dtype].get()
        kind = ir.MemRefType.get([ROWS, COLUMNS], element)
        x, y = (
            b.Argument(name, role, kind, ("", "")) for name, role in (("x", "in"), ("y", "out"))
        )
        kernel = b.declare_kernel("k", [x, y])
        with ir.InsertionPoint(kernel.body.blocks[0]):
            x, y = kernel.body.blocks[0].arguments
            tiles = b.Buffer("tiles", b.tile([ROWS, COLUMNS], element, "tensor"))
            stored = b.Ring("stored", None, producers=("warps",) * GROUPS)

            def part(group: b.Value) -> b.Value:
                return b.columns_at(tiles.at(), b.INT.mul(group, PART), PART)

            with b.role("work", first=0, warps=4 * GROUPS, groups=GROUPS) as group:
                first = b.INT.mul(group, PART)
                slot = stored.acquire()
                b.store(b.load_global(x, [ROWS, PART], [0, first], [0, 1]), part(group))
                b.commit(slot, "warps")
                slot, other = stored.wait(), b.INT.sub(GROUPS - 1, group)
                found = b.load(part(other))
                b.release(slot, "warps")
                b.store_global(found, y, [0, b.INT.mul(other, PART)], [0, 1])

    return compile_kernel("k", build, target="sm_100a")


@pytest.mark.parametrize("schedule", ["fair", "adversarial"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_groups_exchange_columns(dtype: str, schedule: str) -> None:
    kind = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}[dtype]
    x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(kind)
    y = np.full_like(x, np.nan)
    load(exchanged(dtype))(x, y, device=EmulatorDevice(schedule, seed=1, check="all"))
    assert np.array_equal(y, x)
