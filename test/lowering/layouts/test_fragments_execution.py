"""Fragments of each layout through every operation, executed, for both targets."""

from __future__ import annotations

import pytest

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.ws.fragments import CASES, misfit, operands, text
from attn_mlir.validation.ws.kernels import compiled


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
