"""Rates of GPUs: attention kernels, memory, links between the GPUs of a node.

The rates of the H200 are measured. The other rows are scaled from them, as `source` says.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from attn_mlir.errors import SpecError, shown

# Speed by head size, relative to 128, as (mean of head_dim and v_head_dim, factor). H200, ours,
# 16384 keys without a mask: 526, 587, 676, 705 and 708 TFLOP/s at 64, 96, 128, 192 with V of 128
# and 256 (docs/lab/performance.md, attention of many queries, 2026-11-23).
BY_HEAD_DIM = ((64, 0.78), (96, 0.87), (128, 1.0), (160, 1.04), (256, 1.05))


@dataclass(frozen=True)
class Rate:
    """The speed of an attention kernel at head size 128, in 16-bit types.

    The time of a work tile is proportional to keys + overhead_keys: its prologue and epilogue take
    as long as `overhead_keys` keys. After `burst_seconds` of work the chip reaches its power limit,
    and its clock falls.

    Attributes:
      burst: FLOP/s before the power limit.
      sustained: FLOP/s at the power limit.
      burst_seconds: seconds of work before the power limit is reached.
      overhead_keys: cost of prologue and epilogue of a work tile, in keys.
      causal_decay_keys: a causal call of S queries to S keys is slower by the factor
        1 + S / causal_decay_keys; 0: by no factor.
    """

    burst: float
    sustained: float
    burst_seconds: float = 15e-3
    overhead_keys: int = 300
    causal_decay_keys: float = 0


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
      name: the name that users write.
      sms: streaming multiprocessors.
      memory_bytes: bytes of HBM.
      memory_bandwidth: bytes/s that an elementwise kernel reaches.
      forward, backward: rates of our kernels.
      intra_bandwidth: bytes/s that copy engines of one GPU read from another GPU of its node.
      peak: dense 16-bit FLOP/s, by the vendor.
      source: where the numbers come from.
    """

    name: str
    sms: int
    memory_bytes: float
    memory_bandwidth: float
    forward: Rate
    backward: Rate
    intra_bandwidth: float
    peak: float
    source: str


# H200, torch 2.11, one call after a pause: 759 and 748 TFLOP/s at 8,192 positions (causal, full),
# 786 and 721 at 32,768, 708 and 698 at 131,072, 694 at 262,144 causal (27 November 2026). A table
# of a GPU that is always busy ends at 676 (docs/lab/performance.md, 2026-11-23), and its left end
# gives the overhead: 541 at 1,024 keys, 635 at 4,096.
HOPPER_FORWARD = Rate(burst=800e12, sustained=703e12)
# Five matrix products, deterministic: 472 to 498 TFLOP/s at 16,384 positions on a busy GPU
# (docs/lab/performance.md, gradients, 2026-11-28); 548 in one call of 32,768 (several GPUs).
HOPPER_BACKWARD = Rate(burst=560e12, sustained=500e12, overhead_keys=280)
# No Blackwell was measured. FlashAttention-4 sustains 1500 TFLOP/s (at best 1605 to 1613, arXiv
# 2603.05451); the backward pass is scaled as on Hopper. The prologue takes as long as on Hopper, so
# at twice the rate it costs twice as many keys.
BLACKWELL_FORWARD = Rate(burst=1500e12, sustained=1500e12, overhead_keys=600)
BLACKWELL_BACKWARD = Rate(burst=1050e12, sustained=1050e12, overhead_keys=560)

_H200 = Gpu(
    name="H200",
    sms=132,
    memory_bytes=141e9,
    memory_bandwidth=4.2e12,
    forward=HOPPER_FORWARD,
    backward=HOPPER_BACKWARD,
    intra_bandwidth=385e9,
    peak=989e12,
    source="vendor: 141 GB, 4.8 TB/s of which decoding reaches 4.3 (2026-11-23), NVLink "
    "450 GB/s of which copy engines reach 382 at 1 GB (2026-11-27); rates of ours measured",
)
GPUS = {
    gpu.name: gpu
    for gpu in (
        _H200,
        replace(
            _H200,
            name="H100",
            memory_bytes=80e9,
            memory_bandwidth=2.9e12,
            source="vendor: 80 GB, 3.35 TB/s, NVLink 450 GB/s; not measured, rates are the H200's: "
            "the same multiprocessors and board power",
        ),
        Gpu(
            name="B200",
            sms=148,
            memory_bytes=180e9,
            memory_bandwidth=7.0e12,
            forward=BLACKWELL_FORWARD,
            backward=BLACKWELL_BACKWARD,
            intra_bandwidth=750e9,
            peak=2250e12,
            source="vendor: 180 GB, 8 TB/s, NVLink 900 GB/s; not measured: shares of the vendor's "
            "numbers as on the H200, FlashAttention-4's published rate",
        ),
    )
}


def gpu_named(name: object) -> Gpu:
    """The row of `GPUS` with this name.

    Raises:
      SpecError: no row has this name.
    """
    found = GPUS.get(name.upper()) if isinstance(name, str) else None
    if found is None:
        raise SpecError(f"gpu must be one of {', '.join(GPUS)}, got {shown(name)}")
    return found


def head_dim_factor(head_dim: int, v_head_dim: int) -> float:
    """The rate at these head sizes, relative to head size 128."""
    mean = (head_dim + v_head_dim) / 2
    places = [x for x, _ in BY_HEAD_DIM]
    if mean <= places[0]:
        return BY_HEAD_DIM[0][1] * mean / places[0]  # below, exponentials are the limit
    if mean >= places[-1]:
        return BY_HEAD_DIM[-1][1]
    right = bisect_right(places, mean)
    (x0, y0), (x1, y1) = BY_HEAD_DIM[right - 1 : right + 1]
    return y0 + (y1 - y0) * (mean - x0) / (x1 - x0)
