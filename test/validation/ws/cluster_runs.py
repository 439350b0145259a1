"""Kernels of clusters for any target with calls of them: on the emulator in tests, here on a GPU.

python -m attn_mlir.validation.ws.cluster_runs DIR --write [--target sm_100a]     makes bundles
python -m attn_mlir.validation.ws.cluster_runs DIR                                runs them
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.validation.ws.on_gpu import OnGpu, main

BF16 = ml_dtypes.bfloat16
ROWS = 5 * 64 + 9  # more tiles than slots, and a ragged end
TURNS = 5


def _case(name: str, ctas: int, operands: Callable[[], list[Any]], truth: Any) -> OnGpu:
    """A kernel of `clusters`; `truth` makes the last operand of them all."""

    def text() -> str:
        from attn_mlir.validation.ws import clusters  # needs the compiler

        return str(clusters.built(lambda: getattr(clusters, name)(ctas)))

    return OnGpu(text, operands, lambda arrays: _differences(arrays[-1] != truth(*arrays)))


def _drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(BF16)


def _poison(*shape: int, dtype: Any = BF16) -> Any:
    return np.full(shape, np.nan, dtype)


def _shared_tiles(ctas: int) -> OnGpu:
    """y[rank] = x, of which every CTA fetches a part for all."""
    return _case(
        "shared_tiles", ctas, lambda: [_drawn(ROWS, 64), _poison(ctas, ROWS, 64)], lambda x, _: x
    )


def _exchange(ctas: int) -> OnGpu:
    """y[rank] = x[rank + 1], which the next CTA has sent."""
    shape = ctas, ROWS, 64
    return _case(
        "exchange", ctas, lambda: [_drawn(*shape), _poison(*shape)], lambda x, _: np.roll(x, -1, 0)
    )


def _turns(ctas: int) -> OnGpu:
    """y = 1, written by one CTA after the other."""
    return _case("turns", ctas, lambda: [_poison(TURNS, ctas, 32, dtype=np.float32)], lambda _: 1.0)


def _differences(wrong: Any) -> str:
    places = np.argwhere(wrong)
    return (
        f"y differs at {places[:4].tolist()}, {len(places)} of {wrong.size}" if len(places) else ""
    )


CASES = {
    f"{name} of {ctas} CTAs": make(ctas)
    for name, make, sizes in (
        ("shared tiles", _shared_tiles, (2, 4, 8)),
        ("exchange", _exchange, (2, 4)),
        ("turns", _turns, (2, 8)),
    )
    for ctas in sizes
}

if __name__ == "__main__":
    sys.exit(main(__doc__.partition("\n")[0], CASES))
