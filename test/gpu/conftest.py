"""GPU tests: skipped, with the reason, where no GPU can run the bundle."""

from __future__ import annotations

import pytest

from attn_mlir.errors import TargetError
from attn_mlir.runtime.devices import driver


@pytest.fixture(scope="session")
def gpu() -> driver.Gpu:
    """The first GPU."""
    try:
        found = driver.gpus()
    except TargetError as error:
        pytest.skip(str(error))
    if not found:
        pytest.skip("the driver shows no GPU")
    return found[0]


@pytest.fixture(scope="session")
def target(gpu: driver.Gpu) -> str:
    """The target of the first GPU, when it is one that the tests have machine code for."""
    if gpu.targets[0] not in ("sm_90a", "sm_100a"):
        pytest.skip(f"no machine code for {gpu.name}")
    return gpu.targets[0]
