"""Kernels of clusters for any target with calls of them: on the emulator in tests, here on a GPU.

python -m attn_mlir.validation.ws.cluster_runs DIR --write [--target sm_100a]     makes bundles
python -m attn_mlir.validation.ws.cluster_runs DIR                                runs them
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.validation.ws.on_gpu import OnGpu, main

BF16 = ml_dtypes.bfloat16
ROWS = 5 * 64 + 9  # more tiles than slots, and a ragged end
TURNS = 5


def _shared_tiles(ctas: int) -> OnGpu:
    """y[rank] = x, of which every CTA fetches a part for all."""

    def text() -> str:
        from attn_mlir.validation.ws import clusters  # needs the compiler

        return str(clusters.built(lambda: clusters.shared_tiles(ctas)))

    def operands() -> list[Any]:
        x = np.random.default_rng(ctas).standard_normal((ROWS, 64)).astype(BF16)
        return [x, np.full((ctas, *x.shape), np.nan, BF16)]

    return OnGpu(text, operands, lambda arrays: _differences(arrays[1] != arrays[0]))


def _turns(ctas: int) -> OnGpu:
    """y = 1, written by one CTA after the other."""

    def text() -> str:
        from attn_mlir.validation.ws import clusters  # needs the compiler

        return str(clusters.built(lambda: clusters.turns(ctas)))

    def operands() -> list[Any]:
        return [np.full((TURNS, ctas, 32), np.nan, np.float32)]

    return OnGpu(text, operands, lambda arrays: _differences(arrays[0] != 1.0))


def _differences(wrong: Any) -> str:
    places = np.argwhere(wrong)
    return (
        f"y differs at {places[:4].tolist()}, {len(places)} of {wrong.size}" if len(places) else ""
    )


CASES = {f"tiles for {ctas} CTAs": _shared_tiles(ctas) for ctas in (2, 4, 8)} | {
    f"turns of {ctas} CTAs": _turns(ctas) for ctas in (2, 8)
}

if __name__ == "__main__":
    sys.exit(main(__doc__.partition("\n")[0], CASES))
