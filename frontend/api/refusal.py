"""Why a call of `attention` would be refused, without compiling or launching."""

from __future__ import annotations

from typing import Any

from attn_mlir.api.attention import plan
from attn_mlir.api.plan import Plan
from attn_mlir.errors import REFUSALS, TargetError, no_kernel
from attn_mlir.runtime.devices.base import TARGETS
from attn_mlir.runtime.kernel import machine_of


def refusal(*arguments: Any, **options: Any) -> str | None:
    """The message with which a call that wants no gradients would be refused; None.

    Args:
      arguments, options: as of `attention`.

    Raises:
      TypeError: an argument that `attention` has not.
    """
    try:
        check_chip(plan(*arguments, **options))
    except REFUSALS as error:
        return str(error)
    return None


def check_chip(plan: Plan) -> None:
    """Refuses a plan for a GPU for which no kernels are compiled.

    Raises:
      TargetError: names the targets that have kernels.
    """
    q, device = plan.like, plan.device
    on_gpu = q.device == "cuda" if device is None else device == "cuda"
    if on_gpu and machine_of(device, q).target is None:
        raise TargetError(no_kernel(f"GPU {q.device_index}", f"targets are {', '.join(TARGETS)}"))
