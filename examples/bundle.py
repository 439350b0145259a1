"""Compile once, keep the bundle, load it and call the kernel on outputs of one's own.

    python examples/bundle.py [FILE]

The file also runs where no compiler is installed: `am.load` and the call need numpy and, for a GPU,
cuda-python.
"""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np

import attn_mlir as am


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else "mha.attn"
    spec = am.mha(heads=4, kv_heads=2, head_dim=64, dtype="bf16", mask=am.causal())
    am.compile(spec, target="sm_100a", progress=print).save(path)

    kernel = am.load(path)
    print(kernel)
    rng = np.random.default_rng(0)
    for batch, sq, sk in ((1, 100, 100), (2, 33, 70)):  # one kernel for all sizes
        q = rng.standard_normal((batch, sq, 4, 64)).astype(ml_dtypes.bfloat16)
        k = rng.standard_normal((batch, sk, 2, 64)).astype(ml_dtypes.bfloat16)
        v = rng.standard_normal((batch, sk, 2, 64)).astype(ml_dtypes.bfloat16)
        o = np.empty_like(q)
        lse = np.empty((batch, 4, sq), np.float32)
        launch = kernel(q, k, v, o, lse, scale=0.125)
        verdict = am.reference.check_attention(q, k, v, o, lse, mask=am.causal())
        print(f"batch {batch}, {sq} queries, {sk} keys on {launch.device}: {verdict}")
        if not verdict.ok:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
