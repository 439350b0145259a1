"""One trial of an attention kernel: random operands, poisoned outputs, a launch, and the verdict."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.reference import Comparison, check_attention
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import DeviceChoice, Kernel
from attn_mlir.spec import DESCALES

Array = npt.NDArray[Any]

ARGUMENTS = ("q", "k", "v", "o", "lse")  # what an attention bundle takes, in order
ARGUMENTS_OF_BYTES = (*ARGUMENTS, *DESCALES)


@dataclass(frozen=True)
class Trial:
    """What a trial gave.

    Attributes:
      launch_seconds: of the call, copies to a GPU included.
      check_seconds: of the reference.
    """

    launch: Launch
    comparison: Comparison
    launch_seconds: float
    check_seconds: float


def device_of(
    name: str | None,
    schedule: Literal["fair", "adversarial"],
    seed: int,
    trace: Path | None = None,
) -> DeviceChoice:
    """A device from a command line; a schedule or a trace says something about the emulator only.

    Raises:
      SpecError: a schedule or a trace for something that is not the emulator.
    """
    if schedule == "fair" and trace is None:
        return name
    if name not in (None, "emulator"):
        what, got = ("a schedule", f"{schedule} for {name}") if trace is None else ("a trace", name)
        raise SpecError(f"{what} is the emulator's: got {got}")
    return EmulatorDevice(schedule=schedule, seed=seed, trace=trace)


def run_attention(
    bundle: Bundle,
    *,
    batch: int,
    sq: int,
    sk: int,
    mask: Mask,
    scale: float | None = None,
    seed: int = 0,
    device: DeviceChoice = None,
) -> Trial:
    """Run an attention bundle on standard normal operands and judge every element.

    The factors of 8-bit operands are 1.

    Args:
      mask: that the bundle was compiled for.
      seed: of the operands.

    Raises:
      SpecError: not a bundle of attention, or a size below 0.
      TargetError, LaunchError: as a call of the kernel.
    """
    names = tuple(tensor.name for tensor in bundle.manifest.tensors)
    if names not in (ARGUMENTS, ARGUMENTS_OF_BYTES):
        raise SpecError(f"{bundle.entry} takes {', '.join(names)}, attention takes {ARGUMENTS}")
    sizes = {"batch": batch, "sq": sq, "sk": sk}
    if min(sizes.values()) < 0:
        raise SpecError(f"sizes must not be negative, got {sizes}")
    random = np.random.default_rng(seed)
    tensors: list[Array] = []
    for tensor in bundle.manifest.tensors:
        shape = tuple(sizes.get(n, 1) if isinstance(n, str) else n for n in tensor.shape)
        dtype = _dtype(tensor.dtype)
        if tensor.name in DESCALES:
            tensors.append(np.ones(shape, dtype))
        elif tensor.role == "out":
            tensors.append(np.full(shape, np.nan, dtype))
        else:
            tensors.append(random.standard_normal(shape, np.float32).astype(dtype))
    q, k, v, o, lse, *_ = tensors
    start = time.perf_counter()
    factor = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
    launch = Kernel(bundle)(*tensors, scale=factor, device=device)
    launched = time.perf_counter()
    comparison = check_attention(q, k, v, o, lse, mask=mask, scale=scale)
    checked = time.perf_counter()
    return Trial(launch, comparison, launched - start, checked - launched)


def _dtype(name: str) -> np.dtype[Any]:
    dtypes: dict[str, npt.DTypeLike] = {
        "bf16": ml_dtypes.bfloat16,
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "f16": np.float16,
        "f32": np.float32,
    }
    return np.dtype(dtypes[name])
