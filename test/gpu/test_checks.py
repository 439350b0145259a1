"""The checks of a GPU; `make gpu` runs the same ones without pytest."""

from __future__ import annotations

import pytest

from attn_mlir.runtime.devices import driver
from attn_mlir.validation.gpu.check import Check, Machine, Skipped
from attn_mlir.validation.gpu.table import CHECKS


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_gpu(check: Check, gpu: driver.Gpu, target: str) -> None:
    if target not in check.targets:
        pytest.skip(f"{gpu.name} is {target}, this is for {', '.join(check.targets)}")
    try:
        check.run(Machine(gpu, target))
    except Skipped as skipped:
        pytest.skip(str(skipped))
