"""Fragments whose rows lie anywhere in a tensor: read and written where numbers say, or nowhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import load
from attn_mlir.schedules import emit as b
from attn_mlir.validation.ws.kernels import normal, poison

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
TARGETS = ["sm_90a", "sm_100a"]
ROWS, PAGE = 32, 5
SOURCES = [3, 0, -1, 7, 6, 8, 2**31 - 1, -(2**31), *range(8)] + [5] * 16
PLACES = [*range(29, 0, -3), -1, -7, 30, 2**31 - 1, -(2**31), *range(1, 30, 3)]
PLACES += [-1] * (ROWS - len(PLACES))


def scattered(element: str, columns: int, width: int, limited: bool = False) -> Any:
    """Builds y[places[r] // PAGE, places[r] % PAGE, 1] = x[sources[r], 1] with `width` columns at once."""
    from attn_mlir.dialect._mlir import ir

    def build() -> None:
        kind = ir.Type.parse
        kernel = b.declare_kernel(
            "k",
            [
                b.Argument("x", "in", kind(f"memref<?x2x{columns}x{element}>"), ("m", "", "")),
                b.Argument("sources", "in", kind("memref<?xi32>"), ("n",)),
                b.Argument("places", "in", kind("memref<?xi32>"), ("n",)),
                b.Argument(
                    "y", "inout", kind(f"memref<?x{PAGE}x2x{columns}x{element}>"), ("p", "", "", "")
                ),
            ],
        )
        with ir.InsertionPoint(kernel.body.blocks[0]):
            x, sources, places, y = kernel.body.blocks[0].arguments
            if limited:
                x = b.limit(x, b.constant(3), 0)
            with b.role("move", first=0, warps=4):
                for first in range(0, columns, width):
                    lists = [
                        b.generate(lambda row, a=a: b.element(a, [row]), [ROWS], b.i32())
                        for a in (sources, places)
                    ]
                    part = b.load_rows(x, lists[0], width, [0, 1, first], [0, 2])
                    b.store_rows(part, lists[1], y, [0, 0, 1, first], [0, 1, 3])

    return build


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("element", "columns", "width"),
    [("bf16", 64, 64), ("bf16", 64, 32), ("f16", 72, 64), ("f32", 96, 96), ("f32", 20, 32)],
)
def test_rows_go_where_they_are_told_and_nowhere_else(
    element: str, columns: int, width: int, target: str
) -> None:
    """Rows that are not there read as zeros and are not written; neither are columns beyond the end."""
    kernel = load(compile_kernel("k", scattered(element, columns, width), target=target))
    x = normal(8, 2, columns, dtype=DTYPES[element])
    whole = poison(8, PAGE, 2, columns + 16, dtype=DTYPES[element])
    y = whole[1:7, :, :, :columns]
    expected = whole.copy()
    for source, place in zip(SOURCES, PLACES, strict=True):
        if 0 <= place < 30:
            row = x[source, 1] if 0 <= source < 8 else 0
            expected[1 + place // PAGE, place % PAGE, 1, :columns] = row
    sources, places = (np.array(numbers, np.int32) for numbers in (SOURCES, PLACES))
    kernel(x, sources, places, y, device=EmulatorDevice(check="all"))
    bits = np.dtype(f"u{whole.itemsize}")
    assert (whole.view(bits) == expected.view(bits)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_elements_go_to_the_rows_that_they_are_told(element: str, target: str) -> None:
    """The largest number of each row, which several threads have, to the middle column of its place."""
    from attn_mlir.dialect._mlir import ir

    def build() -> None:
        kind = ir.Type.parse
        arguments = [
            b.Argument("x", "in", kind("memref<?x64xf32>"), ("n", "")),
            b.Argument("places", "in", kind("memref<?xi32>"), ("m",)),
            b.Argument("y", "inout", kind(f"memref<?x{PAGE}x2x3x{element}>"), ("p", "", "", "")),
        ]
        kernel = b.declare_kernel("k", arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            x, places, y = kernel.body.blocks[0].arguments
            with b.role("move", first=0, warps=4):
                own = b.generate(lambda row: row, [ROWS], b.i32())
                part = b.load_rows(x, own, 64, [0, 0], [0, 1])
                zero = b.generate(lambda _: b.f32_constant(0.0), [ROWS], ir.F32Type.get())
                most = b.rounded(b.reduce_rows("max", part, zero), kind(element))
                at = b.generate(lambda row: b.element(places, [row]), [ROWS], b.i32())
                b.store_rows(most, at, y, [0, 0, 1, 1], [0, 1])

    kernel = load(compile_kernel("k", build, target=target))
    x = np.abs(normal(ROWS, 64, dtype=np.float32))
    whole = poison(8, PAGE, 2, 7, dtype=DTYPES[element])
    y = whole[1:7, :, :, 2:5]
    expected = whole.copy()
    for row, place in zip(x, PLACES, strict=True):
        if 0 <= place < 30:
            expected[1 + place // PAGE, place % PAGE, 1, 3] = row.max()
    kernel(x, np.array(PLACES, np.int32), y, device=EmulatorDevice(check="all"))
    bits = np.dtype(f"u{whole.itemsize}")
    assert (whole.view(bits) == expected.view(bits)).all()


def test_a_limit_is_refused() -> None:
    with pytest.raises(VerifyError, match=r"ws.load_rows' op expects a tensor without a limit"):
        compile_kernel("k", scattered("bf16", 64, 64, limited=True), target="sm_90a")
