"""Products of 64 rows: where their sums lie in tensor memory, how threads get at them, what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import VerifyError
from attn_mlir.lowering import layouts
from attn_mlir.lowering.checks.copy_legality import MAX_BOX_ROWS
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import load
from attn_mlir.schedules import emit as b

ROWS = 64


def multiplied(
    k: int, n: int, layout: str, piece: int, rows: int = ROWS, left: int = 0, shift: int = 0
) -> Bundle:
    """y = 2 (a b + a b), the doubling by threads, piece by piece and through tensor memory again.

    Args:
      left: columns of the buffer to the left of the sums.
      shift: columns by which threads move all pieces.
    """

    def build() -> None:
        bf16, f32 = ir.BF16Type.get(), ir.F32Type.get()
        shapes = [[rows, k], [n, k] if layout == "nk" else [k, n]]
        arguments = [
            b.Argument(name, "in", ir.MemRefType.get(shape, bf16), ("", ""))
            for name, shape in zip("ab", shapes, strict=True)
        ]
        y = b.Argument("y", "out", ir.MemRefType.get([rows, n], f32), ("", ""))
        kernel = b.declare_kernel("k", [*arguments, y])
        with ir.InsertionPoint(kernel.body.blocks[0]):
            *sources, y = kernel.body.blocks[0].arguments
            rings = [
                b.Ring(name, b.tile(shape, bf16, "shared"))
                for name, shape in zip("ab", shapes, strict=True)
            ]
            sums = b.Buffer("sums", b.tile([rows, left + n], f32, "tensor"))
            done = b.Ring("done", None)

            def tile() -> b.Value:
                return b.columns(sums.at(), left, n) if left else sums.at()

            with b.role("load", first=4, warps=1, lanes=1):
                for source, ring, shape in zip(sources, rings, shapes, strict=True):
                    slot = ring.acquire()
                    for first in range(0, shape[0], MAX_BOX_ROWS):
                        count = min(MAX_BOX_ROWS, shape[0] - first)
                        b.copy_in(source, b.rows(slot, first, count), [first, 0], [0, 1])
                    b.commit(slot, "copy_engine")
            with b.role("multiply", first=5, warps=1, lanes=1):
                slots = [ring.wait() for ring in rings]
                token = done.acquire()
                for accumulate in (False, True):
                    b.mma(tile(), *slots, accumulate=accumulate, b_layout=layout)
                b.commit(token, "tensor_core")
                for slot in slots:
                    b.release(slot, "tensor_core")
            with b.role("leave", first=0, warps=4):
                token = done.wait()
                for first in range(shift, n - piece + 1, piece):
                    part = b.columns(tile(), first, piece)
                    found = b.load(part)
                    b.store(b.map_elements(b.fadd, found, found), part)
                for first in range(shift, n - piece + 1, piece):
                    part = b.columns(tile(), first, piece)
                    b.store_global(b.load(part), y, [0, first], [0, 1])
                b.release(token, "threads")

    return compile_kernel("k", build, target="sm_100a")


@pytest.mark.parametrize(
    ("k", "n", "layout", "piece", "left"),
    [
        (64, 64, "nk", 64, 0),
        (16, 24, "kn", 24, 256),  # odd pieces, from the second half of the lanes on
        (64, 512, "kn", 64, 0),  # the sums are in both halves
        (128, 320, "nk", 32, 0),
    ],
)
def test_products(k: int, n: int, layout: str, piece: int, left: int) -> None:
    kernel = load(multiplied(k, n, layout, piece, left=left))
    numbers = np.random.default_rng(0)
    a = numbers.integers(-3, 4, (ROWS, k)).astype(np.float32)
    other = numbers.integers(-3, 4, (k, n)).astype(np.float32)
    right = other.T if layout == "nk" else other
    given = [np.ascontiguousarray(x).astype(ml_dtypes.bfloat16) for x in (a, right)]
    for schedule in ("fair", "adversarial"):
        y = np.full((ROWS, n), np.nan, np.float32)
        kernel(*given, y, device=EmulatorDevice(schedule, seed=1, check="all"))
        assert np.array_equal(y, 4 * a @ other)  # small integers: exact


def test_where_columns_lie() -> None:
    assert layouts.tensor_offset(128, 300, 32) == 300
    assert layouts.tensor_offset(64, 255, 32) == 255
    assert layouts.tensor_offset(64, 300, 32) == (16 << 16) + 44


def test_what_has_no_code() -> None:
    def refused(message: str, **options: int) -> None:
        with pytest.raises(VerifyError, match=message):
            multiplied(**{"k": 64, "n": 64, "layout": "kn", "piece": 64} | options)

    refused("'ws.mma' op expects M of 64 or 128, got 96", rows=96)
    refused("'ws.mma' op expects N a multiple of 8 to 512, got 520", n=520, piece=8)
    refused("'ws.mma' op expects d of 64 rows from a column in 256s on, got 64", left=64)
    refused("'ws.load' op expects columns from one in 8s on, got .* from column 4", n=72, shift=4)
    refused("'ws.load' op expects columns on one side of 256, got .*", n=320, piece=320)


def test_512_columns_take_256() -> None:
    made = load(multiplied(64, 512, "kn", 64))
    regions = {x["what"]: x["end"] - x["begin"] for x in made.bundle.report["memory_map"]}
    assert regions["sums"] == 256
