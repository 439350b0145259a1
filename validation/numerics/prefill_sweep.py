"""Checks dense prefill on the emulator over FlashMLA's test matrix; `make numerics` runs this.

    python -m attn_mlir.validation.numerics.prefill_sweep                   every case, fair and adversarial
    python -m attn_mlir.validation.numerics.prefill_sweep --only qk=192     cases whose text contains this
    python -m attn_mlir.validation.numerics.prefill_sweep --list            cases only

By FlashMLA's function, with its comparison and tolerances, for `sm_100a`; two sequences of a mean length of up to 512, and
2 query heads. Exit code: 0 when every case is right, 1 when one is not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from attn_mlir.flash_mla import flash_attn_varlen_func
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.sparse_cases import agrees
from attn_mlir.validation.numerics.sparse_sweep import swept

BF16: Any = ml_dtypes.bfloat16
BATCH, HEADS = 2, 2
LIMITS = {"out": (1e-3, 8.01 / 128, 7e-6), "lse": (1e-6, 2.01 / 65536, 7e-6)}
DEVICES = (
    EmulatorDevice(check="all", target="sm_100a"),
    EmulatorDevice("adversarial", 1, check="all", target="sm_100a"),
)


class Case(NamedTuple):
    """Sizes and features of a problem.

    Attributes:
      length: of each sequence; where they vary, the mean of the keys' lengths, queries being fewer.
      kv_heads: of the 2 query heads.
      qk: columns of q and k; v has 128.
    """

    length: int
    varies: bool
    kv_heads: int
    qk: int
    causal: bool


def cases() -> Iterator[Case]:
    """The matrix."""
    yield from map(
        Case._make, product((256, 512), (False, True), (2, 1), (128, 192), (False, True))
    )


def run(case: Case) -> str:
    """What is wrong with one case; nothing where it is right."""
    random = np.random.default_rng(0)
    keys = np.full(BATCH, case.length)
    if case.varies:
        keys = random.normal(case.length, case.length / 2, BATCH).clip(1, 2 * case.length)
    queries = (keys * random.uniform(0.5, 1, BATCH)).clip(1) if case.varies else keys
    ends_q, ends_k = (np.r_[0, x.astype(np.int32)].cumsum().astype("i4") for x in (queries, keys))
    shapes = (
        (ends_q[-1], HEADS, case.qk),
        *((ends_k[-1], case.kv_heads, n) for n in (case.qk, 128)),
    )
    q, k, v = ((random.standard_normal(shape) / 10).astype(BF16) for shape in shapes)
    scale = (case.qk + 100) ** -0.5
    longest_q, longest_k = (int(np.diff(x).max()) for x in (ends_q, ends_k))
    told: dict[str, Any] = {"softmax_scale": scale, "causal": case.causal, "is_varlen": case.varies}
    found = [
        flash_attn_varlen_func(q, k, v, ends_q, ends_k, longest_q, longest_k, **told, device=device)
        for device in DEVICES
    ]
    is_same = all(x.tobytes() == y.tobytes() for x, y in zip(*found, strict=True))
    reason = "" if is_same else "an adversarial schedule has other bits; "
    truth = {"out": np.zeros(found[0][0].shape), "lse": np.zeros(found[0][1].shape)}
    for (first, last), (begin, end) in zip(pairwise(ends_q), pairwise(ends_k), strict=True):
        rows = slice(first, last)
        for h in range(HEADS):
            of_key = h * case.kv_heads // HEADS
            key, value = (x[begin:end, of_key].astype(np.float64) for x in (k, v))
            scores = scale * q[rows, h].astype(np.float64) @ key.T
            if case.causal:
                hidden = ~np.tri(last - first, end - begin, end - begin - (last - first), bool)
                scores[hidden] = -np.inf
            sums = np.log(np.exp(scores).sum(1))
            truth["out"][rows, h] = np.exp(scores - sums[:, None]) @ value
            truth["lse"][rows, h] = sums
    for (name, limits), array in zip(LIMITS.items(), found[0], strict=True):
        if not agrees(array, truth[name], *limits):
            reason += f"{name} is not within FlashMLA's tolerances; "
    return reason


if __name__ == "__main__":
    sys.exit(swept(__doc__ or "", cases(), run, "cases of dense prefill"))
