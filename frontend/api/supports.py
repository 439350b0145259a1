"""`supports`: why a call of `attention` would be refused, without compiling or launching."""

from __future__ import annotations

import inspect
from typing import Any

from attn_mlir.api.attention import plan
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.errors import REFUSALS, no_kernel
from attn_mlir.runtime.devices.base import TARGETS
from attn_mlir.runtime.kernel import machine_of


@outside_graphs
def supports(*arguments: Any, **options: Any) -> str | None:
    """Why a call of `attention` would be refused; None if a kernel takes it.

    The call is checked and planned as by `plan`, and nothing is compiled, allocated or launched.
    Tensors without memory do, such as those of `torch.empty(..., device="meta")`: indices and
    lengths in host memory are looked at, other elements are not.

    Args:
      arguments, options: as of `attention`.

    Returns:
      The message of the `SpecError`, `TargetError` or `ResourceError`, which says what is wrong,
      what is allowed and what to do; None. A toolchain that is missing shows when kernels compile.

    Raises:
      TypeError: an argument that `attention` has not.
    """
    try:
        planned = plan(*arguments, **options)
        q, device = planned.like, planned.device
        on_gpu = q.device == "cuda" if device is None else device == "cuda"
        if on_gpu and machine_of(device, q).target is None:
            return no_kernel(f"GPU {q.device_index}", f"targets are {', '.join(TARGETS)}")
    except REFUSALS as error:
        return str(error)
    return None


vars(supports).update(__signature__=inspect.signature(plan).replace(return_annotation=str | None))
