"""A trial of causal attention that needs numpy alone: run, compared with float64, and timed on a
GPU.

bf16 is kept as 16-bit words, since numpy has no such dtype. The error of an element of O may be
what follows from rounding the weights and O to bf16, each by at most 2**-8 of itself: together
2**-7 of the weighed sizes of the values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import LaunchError, TargetError
from attn_mlir.runtime.call.tensors import TensorView, view_as
from attn_mlir.runtime.devices import memory
from attn_mlir.runtime.devices.base import Device
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.timing import seconds_per_launch
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel

Array = npt.NDArray[Any]

HEADS, HEAD_DIM = 4, 128  # of the kernel that is tried
SMALL, EMULATED = (2, 300), (1, 70)  # batch and length of which every element is compared
TIMED, TIMED_SECONDS = (16, 4096), 0.5  # of the one that is timed, and for how long
SAMPLE = 64  # rows of the first and the last head that are compared of that one
ROUNDING = 2.0**-7  # error that is allowed, relative to the weighed sizes of the values
LSE_TOLERANCE = 1e-3
_ARGUMENTS = [
    *((name, "in", "bf16", 4) for name in "qkv"),
    ("o", "out", "bf16", 4),
    ("lse", "out", "f32", 3),
]  # name, role, dtype and rank


@dataclass(frozen=True)
class AttentionRun:
    """One problem that a kernel got right.

    Attributes:
      worst: the largest error as a part of what is allowed.
      seconds: of a launch; None where it was not timed.
    """

    what: ClassVar[str] = "attention"

    device: str
    target: str
    batch: int
    length: int
    heads: int
    head_dim: int
    worst: float
    seconds: float | None = None

    @property
    def tflops(self) -> float | None:
        """10**12 operations per second of both products, of the pairs that the mask shows."""
        if self.seconds is None:
            return None
        pairs = self.batch * self.heads * self.length * (self.length + 1) / 2
        return 4.0 * pairs * self.head_dim / self.seconds * 1e-12

    def __str__(self) -> str:
        speed = ""
        if self.seconds is not None:
            speed = f"; {self.seconds * 1e3:.3f} ms, {self.tflops:.0f} TFLOP/s of visible pairs"
        return (
            f"ok: {self.batch} x {self.length} tokens, {self.heads} heads of {self.head_dim}, "
            "causal, "
            f"bf16, by {self.target} code, error {self.worst:.2f} of what is allowed{speed}"
        )


def is_attention(bundle: Bundle) -> bool:
    """Whether a bundle is of a kernel that can be tried here: dense causal attention in bf16."""
    manifest, request = bundle.manifest, bundle.manifest.request
    tensors = [(x.name, x.role, x.dtype, len(x.shape)) for x in manifest.tensors]
    described = (request.get("op"), request.get("mask"), request.get("modifier"))
    sizes_known = set(manifest.symbols) <= {"batch", "sq", "sk"}
    return tensors == _ARGUMENTS and described == ("mha", "causal", None) and sizes_known


def try_attention(bundle: Bundle, device: Device) -> list[AttentionRun]:
    """Runs a small problem, and on a GPU one that is timed.

    Raises:
      TargetError: another kernel, or not for this device.
      LaunchError: it failed or computed something wrong.
    """
    if not is_attention(bundle):
        raise TargetError(f"the bundle of {bundle.entry} is not that of dense causal attention")
    on_gpu = isinstance(device, CudaDevice)
    runs = [_small(bundle, device, *(SMALL if on_gpu else EMULATED))]
    if isinstance(device, CudaDevice):
        runs.append(_timed(bundle, device, *TIMED))
    return runs


def _small(bundle: Bundle, device: Device, batch: int, length: int) -> AttentionRun:
    """A problem in host memory, of which everything is compared."""
    arrays = _operands(bundle, batch, length)
    Kernel(bundle).launch(_views(bundle, arrays), device=device)
    heads = range(arrays["q"].shape[2])
    places = [(b, head) for b in range(batch) for head in heads]
    return _judged(bundle, device, arrays, places, np.arange(length))


def _timed(bundle: Bundle, device: CudaDevice, batch: int, length: int) -> AttentionRun:
    """A problem in the GPU's memory, of which a sample is compared."""
    arrays, kernel = _operands(bundle, batch, length), Kernel(bundle)
    host = _views(bundle, arrays)
    there = {name: memory.upload(tensor, device.index) for name, tensor in host.items()}
    seconds = seconds_per_launch(
        lambda: kernel.launch(there, device=device), index=device.index, seconds=TIMED_SECONDS
    )
    for name in ("o", "lse"):
        memory.download(there[name], host[name])
    places = [(0, 0), (batch - 1, arrays["q"].shape[2] - 1)]
    rows = np.linspace(0, length - 1, SAMPLE).astype(np.int64)
    return dataclasses.replace(_judged(bundle, device, arrays, places, rows), seconds=seconds)


def _operands(bundle: Bundle, batch: int, length: int) -> dict[str, Array]:
    """Standard normal q, k and v, and outputs of NaN; bf16 as words."""
    random, arrays = np.random.default_rng(0), dict[str, Array]()
    sizes = {"batch": batch, "sq": length, "sk": length}
    for tensor in bundle.manifest.tensors:
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in tensor.shape)
        if tensor.role == "in":
            one = bf16_words(random.standard_normal((1, *shape[1:]), np.float32))
            turned = [np.roll(one, b, axis=1) for b in range(batch)]
            arrays[tensor.name] = np.concatenate(turned)
        elif tensor.dtype == "bf16":
            arrays[tensor.name] = np.full(shape, 0x7FC0, np.uint16)  # a NaN
        else:
            arrays[tensor.name] = np.full(shape, np.nan, np.float32)
    return arrays


def _views(bundle: Bundle, arrays: dict[str, Array]) -> dict[str, TensorView]:
    dtypes = {tensor.name: tensor.dtype for tensor in bundle.manifest.tensors}
    return {name: view_as(array, name, dtypes[name]) for name, array in arrays.items()}


def _judged(
    bundle: Bundle,
    device: Device,
    arrays: dict[str, Array],
    places: Sequence[tuple[int, int]],
    rows: npt.NDArray[np.int64],
) -> AttentionRun:
    """The finished run, if its rows of these batch entries and heads are right.

    Raises:
      LaunchError: an element is wrong.
    """
    batch, length, heads, head_dim = arrays["q"].shape
    worst = max(_error(arrays, b, head, rows) for b, head in places)
    if not worst <= 1:
        raise LaunchError(
            f"attention on {device.name} is wrong: {batch} x {length} tokens, {heads} heads of "
            f"{head_dim}, target {bundle.target}, error {worst:.3g} times what is allowed"
        )
    return AttentionRun(device.name, bundle.target, batch, length, heads, head_dim, worst)


def _error(arrays: dict[str, Array], b: int, head: int, rows: npt.NDArray[np.int64]) -> float:
    """The largest error of rows of one head as a part of what is allowed; infinite for a NaN."""
    q, k, v, o, lse = (arrays[name] for name, *_ in _ARGUMENTS)
    group = head // (q.shape[2] // k.shape[2])
    queries, keys, values = (
        bf16_floats(x).astype(np.float64)
        for x in (q[b, rows, head], k[b, :, group], v[b, :, group])
    )
    scores = queries @ keys.T / math.sqrt(q.shape[3])
    scores[np.arange(len(keys)) > rows[:, None]] = -np.inf
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    weights /= total
    error = np.abs(bf16_floats(o[b, rows, head]) - weights @ values)
    errors = (
        error / (ROUNDING * (weights @ np.abs(values))),
        np.abs(lse[b, head, rows] - (top + np.log(total))[:, 0]) / LSE_TOLERANCE,
    )
    largest = max(float(each.max()) for each in errors)
    return math.inf if any(np.isnan(each).any() for each in errors) else largest


def bf16_words(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The nearest bf16 of finite numbers, ties to even, as words."""
    bits = numbers.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def bf16_floats(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The numbers that bf16 words stand for."""
    return (words.astype(np.uint32) << 16).view(np.float32)
