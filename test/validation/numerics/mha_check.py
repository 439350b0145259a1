"""Runs one attention case on the emulator and judges every element of O and LSE."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.masks import Mask, causal, full
from attn_mlir.reference import Attention, Comparison, attention_f64, attention_yardstick, compare
from attn_mlir.reference.verdict import LSE_TOLERANCE
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.numerics.mha_cases import Case, Inputs, Schedule

ROOT = Path(__file__).resolve().parents[3]
TARGET = "sm_100a"
POISON_BITS = 0xFFFF  # every bit of the outputs is set before a launch: a NaN in bf16, fp16 and f32


@dataclass(frozen=True)
class Verdict:
    """Largest errors as ratios to what is allowed; `reason` says what is wrong, empty when nothing is."""

    reason: str
    o_ratio: float
    lse_ratio: float


@dataclass(frozen=True)
class Outcome:
    """A verdict and what the run cost."""

    verdict: Verdict
    warp_instructions: int


def mask_named(name: str) -> Mask:
    """The mask that a case calls `full` or `causal`."""
    return {"full": full, "causal": causal}[name]()


@functools.lru_cache(maxsize=4)
def kernel(head_dim: int, dtype: str, mask: str, heads: int, kv_heads: int) -> Kernel:
    """The compiled kernel for these static properties; the compile cache applies."""
    spec = am.mha(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        mask=mask_named(mask),
    )
    return am.load(am.compile(spec, target=TARGET))


def kernel_of(case: Case) -> Kernel:
    """The kernel that the case runs."""
    return kernel(case.head_dim, case.dtype, case.mask, case.heads, case.kv_heads)


@functools.lru_cache(maxsize=4)
def expected(case: Case) -> tuple[Inputs, Attention, Attention]:
    """Operands, truth and yardstick of a case."""
    data = case.inputs()
    operands: Any = (data.q, data.k, data.v)
    mask = mask_named(case.mask)
    return data, attention_f64(*operands, mask=mask), attention_yardstick(*operands, mask=mask)


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that holds NaN with every bit set: an element that is not written cannot pass."""
    words = np.full((*shape, dtype.itemsize // 2), POISON_BITS, np.uint16)
    return words.view(dtype).reshape(shape)


def launch(
    run: Kernel, data: Inputs, schedule: Schedule, **scalars: float
) -> tuple[NDArray[Any], NDArray[Any], int]:
    """O, LSE and the executed warp-instructions of one emulation."""
    batch, sq, heads, _ = data.q.shape
    o = poisoned(data.q.shape, data.q.dtype)
    lse = poisoned((batch, heads, sq), np.dtype(np.float32))
    device = EmulatorDevice(schedule=schedule.kind, seed=schedule.seed)
    done = run(data.q, data.k, data.v, o, lse, device=device, **scalars)
    return o, lse, done.warp_instructions or 0


def verdict_of(comparison: Comparison) -> Verdict:
    """The comparison in the words of the sweep's table."""
    return Verdict(
        "" if comparison.ok else str(comparison),
        comparison.worst_ratio,
        comparison.lse_error / LSE_TOLERANCE,
    )


def judged(case: Case, data: Inputs, o: Any, lse: Any, scale: float | None = None) -> str:
    """What is wrong with these outputs for these operands; empty when nothing is."""
    operands: Any = (data.q, data.k, data.v)
    options: Any = {"mask": mask_named(case.mask), "scale": scale}
    truth = attention_f64(*operands, **options)
    return verdict_of(compare(o, lse, truth, attention_yardstick(*operands, **options))).reason


def check(case: Case, schedule: Schedule) -> Outcome:
    """One case under one schedule; errors of compiling and launching propagate."""
    data, truth, yardstick = expected(case)
    o, lse, instructions = launch(kernel_of(case), data, schedule)
    return Outcome(verdict_of(compare(o, lse, truth, yardstick)), instructions)


@functools.cache
def _sources_hash() -> str:
    """Of everything beside the kernel that a result depends on."""
    digest = hashlib.sha256()
    for folder in ("runtime", "frontend/reference", "test/validation/numerics"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key(case: Case) -> str:
    """Changes when a result of this case may change: the kernel's PTX or the sources that run and judge it."""
    text = kernel_of(case).bundle.ptx + _sources_hash()
    return hashlib.sha256(text.encode()).hexdigest()[:24]
