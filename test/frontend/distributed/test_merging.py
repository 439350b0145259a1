"""`merge_states`: rules of parts without keys, and the chip that its kernel is for."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir.api.planners import planner_of  # noqa: E402
from attn_mlir.distributed.merging import merge_states  # noqa: E402
from attn_mlir.runtime.devices.idle import IdleDevice  # noqa: E402
from attn_mlir.runtime.kernel import launching_on  # noqa: E402


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_the_kernel_is_for_the_chip_of_the_call(target: str) -> None:
    with launching_on(IdleDevice(target)):
        plan = planner_of(merge_states)(torch.zeros(2, 1, 8, 4, 32), torch.zeros(2, 1, 4, 8))
    assert plan.target == target
