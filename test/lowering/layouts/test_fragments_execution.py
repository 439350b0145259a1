"""Fragments of each layout through every operation, executed, for both targets."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.ws.fragments import CASES, misfit, operands, text
from attn_mlir.validation.ws.kernels import compiled, kernel, poison, role


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(
    "one row per thread, 8 bits-sm_90a",
    "one row per thread-sm_90a",
    "one row per thread, a warp-sm_90a",
)
def test_every_operation(name: str, target: str) -> None:
    case = CASES[name]
    kernel = compiled(text(case), target)
    for device in (EmulatorDevice(), EmulatorDevice("adversarial", 0)):
        arrays = operands(case)
        kernel(*arrays, device=device)
        assert not misfit(case, *arrays)


def test_lanes_of_a_warp_have_other_elements_of_a_line() -> None:
    """64 elements are two for each lane, so that a warp loads each once, with loads in flight."""
    body = """
    %line = "ws.map"() ({
    ^bb0(%i: i32):
      %v = "ws.element"(%x, %i) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xf32>, i32) -> f32
      "ws.yield"(%v) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 0>} : () -> !ws.frag<vector<64xf32>>
    "ws.store_global"(%line, %y, %c0) {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 1>}
      : (!ws.frag<vector<64xf32>>, memref<?xf32>, i32) -> ()
"""
    arguments = [("x", "in", "memref<?xf32>", ("n",)), ("y", "out", "memref<?xf32>", ("m",))]
    made = compiled(kernel(arguments, role("one", body, first=0, warps=1, lanes=32)), "sm_90a")
    assert len(re.findall(r"ld\.global\S*", made.bundle.ptx)) == 2
    x, y = np.arange(64, dtype=np.float32), poison(64)
    made(x, y, device=EmulatorDevice())
    np.testing.assert_array_equal(y, x)
