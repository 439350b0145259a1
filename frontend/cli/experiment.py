"""One trial of an attention kernel: random operands, poisoned outputs, a launch and a verdict."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from attn_mlir.compiling.bundled import attention_of, text_of
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.lengths import DENSE
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.dialect.attn.scale import DESCALES
from attn_mlir.element_types import ELEMENT_TYPES
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.reference import Comparison, check_attention
from attn_mlir.reference.modifier import Modifier
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import FatBundle, bundles_of
from attn_mlir.runtime.kernel import DeviceChoice, Kernel
from attn_mlir.waiting import waiting_for

Array = npt.NDArray[Any]

ARGUMENTS = ("q", "k", "v", "o", "lse")  # operands of an attention bundle, in order
ARGUMENTS_OF_BYTES = (*ARGUMENTS, *DESCALES)
SMALL_INTEGERS = 4  # number of values: ids of documents that some queries and keys share
TABLE_ELEMENTS = 1 << 16  # extents of a tensor that a modifier reads


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
      launch_seconds: time of the call, with copies to a GPU.
      check_seconds: time of the reference.
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
    """The device that a command line names; schedule and trace are options of the emulator.

    Raises:
      SpecError: a schedule or a trace for another device than the emulator.
    """
    if schedule == "fair" and trace is None:
        return name
    if name not in (None, "emulator"):
        what, got = ("a schedule", f"{schedule} for {name}") if trace is None else ("a trace", name)
        raise SpecError(f"{what} is the emulator's: got {got}")
    return EmulatorDevice(schedule=schedule, seed=seed, trace=trace)


def run_attention(
    bundle: Bundle | FatBundle,
    *,
    batch: int,
    sq: int,
    sk: int,
    mask: Mask | None = None,
    scale: float | None = None,
    seed: int = 0,
    device: DeviceChoice = None,
) -> Trial:
    """Runs an attention bundle on standard normal operands and judges every element.

    The manifest says what it has to compute. Scales of 8-bit operands are 1; integers that a score
    modifier reads are small, and truth values random.

    Args:
      mask: the mask that the bundle was compiled for; only needed if its manifest has none.
      seed: seed of the operands.

    Raises:
      SpecError: not a bundle of attention for dense operands, another mask than the bundle's, or a
        size below 0.
      TargetError, LaunchError: as for a call of the kernel.
    """
    first = bundles_of(bundle)[0]
    mask, program = _computed(first, attention_of(first), mask)
    sizes = {"batch": batch, "sq": sq, "sk": sk}
    if min(sizes.values()) < 0:
        raise SpecError(f"sizes must not be negative, got {sizes}")
    random = np.random.default_rng(seed)
    captured = [] if program is None else [tensor.name for tensor in program.tensors]
    tensors: dict[str, Array] = {}
    for tensor in first.manifest.tensors:
        extent = _table_extent(len(tensor.shape)) if tensor.name in captured else 1
        shape = tuple(sizes.get(n, extent) if isinstance(n, str) else n for n in tensor.shape)
        dtype = _dtype(tensor.dtype)
        if tensor.name in DESCALES:
            tensors[tensor.name] = np.ones(shape, dtype)
        elif tensor.role == "out":
            tensors[tensor.name] = np.full(shape, np.nan, dtype)
        elif dtype.kind in "bi":
            top = 2 if dtype.kind == "b" else SMALL_INTEGERS
            tensors[tensor.name] = random.integers(0, top, shape).astype(dtype)
        else:
            tensors[tensor.name] = random.standard_normal(shape, np.float32).astype(dtype)
    q, k, v, o = (tensors[name] for name in ("q", "k", "v", "o"))
    start = time.perf_counter()
    softmax_scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
    launch = Kernel(bundle).launch({**tensors, "scale": softmax_scale}, device=device)
    launched = time.perf_counter()
    modifier = Modifier(program, {name: tensors[name] for name in captured})
    with waiting_for("comparing with float64"):
        comparison = check_attention(
            q, k, v, o, tensors.get("lse"), mask=mask, scale=scale, modifier=modifier
        )
    checked = time.perf_counter()
    return Trial(launch, comparison, launched - start, checked - launched)


def _computed(
    bundle: Bundle, request: MhaSpec | None, mask: Mask | None
) -> tuple[Mask, Program | None]:
    """The mask and score modifier of an attention bundle with dense operands.

    Raises:
      SpecError: as `run_attention`.
    """
    if request is None:
        return _computed_by_text(bundle, mask)
    if mask not in (None, request.mask):
        raise SpecError(f"{bundle.entry} was compiled for mask {request.mask}, got {mask}")
    is_dense = request.lengths == DENSE and request.cache is None and request.block is None
    if not is_dense or request.partial:
        raise SpecError(
            f"{bundle.entry} is not for dense operands "
            f"({', '.join(tensor.name for tensor in request.tensors)}"
            f"{', partial results' if request.partial else ''}): call it from Python"
        )
    return request.mask, request.modifier


def _computed_by_text(bundle: Bundle, mask: Mask | None) -> tuple[Mask, Program | None]:
    """The same of a bundle that was made from text.

    Raises:
      SpecError: as `run_attention`.
    """
    compiled, program = text_of(bundle)
    read = [] if program is None else [tensor.name for tensor in program.tensors]
    names = tuple(x.name for x in bundle.manifest.tensors if x.name not in read)
    if names not in (ARGUMENTS, ARGUMENTS_OF_BYTES):
        raise SpecError(f"{bundle.entry} takes {', '.join(names)}, attention takes {ARGUMENTS}")
    if compiled is None and mask is None:
        raise SpecError(
            f"{bundle.entry} does not say what it computes: its bundle was made from text. "
            "Name the mask that it has (--mask)"
        )
    if compiled is not None and mask not in (None, compiled):
        raise SpecError(f"{bundle.entry} was compiled for mask {compiled}, got {mask}")
    chosen = mask if compiled is None else compiled
    assert chosen is not None  # one of both is there
    return chosen, program


def _table_extent(rank: int) -> int:
    """Extent, by rank, of a table that a modifier reads; kernels clamp indices to it."""
    return max(2, round(TABLE_ELEMENTS ** (1.0 / max(rank, 1))))


def _dtype(name: str) -> np.dtype[Any]:
    numpy = ELEMENT_TYPES[name].numpy
    return np.dtype(getattr(ml_dtypes, numpy, numpy))
