"""What several tests of the emulator begin with."""

from __future__ import annotations

import pytest

from attn_mlir.validation.emulator.hopper_twin import Hopper, connect


@pytest.fixture(scope="session")
def hopper() -> Hopper:
    """A Hopper GPU."""
    return connect()
