"""Integers that leave a tensor or 32 bits are refused where PyTorch refuses them, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.trace import clip, trace, where
from attn_mlir.tracing.indices import check_indices

SIZES = {"batch": 2, "heads": 3, "sq": 5, "sk": 7}
ROW = np.arange(7, dtype=np.float32)
TABLE = np.zeros((3, 5), np.float32)
IDS = np.array([0, 6, -7, 3, 2, 1, 4])
FAR = np.array([0, 1, 2, 3, 4, 5, 2**40])

Mod = Callable[..., Any]

INSIDE: list[Mod] = [
    lambda s, b, h, q, k: ROW[k] + TABLE[h, q],
    lambda s, b, h, q, k: ROW[-k - 1] + ROW[q - k] + TABLE[-1, -5],
    lambda s, b, h, q, k: ROW[IDS[k]] + ROW[s.to(int)],
    lambda s, b, h, q, k: TABLE[h, clip(k, 0, 4)] + (FAR[k] * 2**20 + q) * 1.0,
    lambda s, b, h, q, k: s + (-(2**31) + k + h),
    lambda s, b, h, q, k: s + (q.long() * 2**31) % 7 + (k * 2**40).int() * 1.0,
]
OUTSIDE: list[tuple[Mod, str]] = [
    (lambda s, b, h, q, k: TABLE[h, k], "TABLE is indexed with 6 along axis 1, which has 5"),
    (lambda s, b, h, q, k: TABLE[q, 0], "TABLE is indexed with 4 along axis 0, which has 3"),
    (lambda s, b, h, q, k: ROW[q - k - 2], "ROW is indexed with -8 along axis 0, which has 7"),
    (lambda s, b, h, q, k: where(k < 5, TABLE[h, k], 0.0), "move the index inside by clamp()"),
    (lambda s, b, h, q, k: TABLE[IDS[k], 0], "TABLE is indexed with 6 along axis 0"),
    (lambda s, b, h, q, k: ROW[FAR[k]], "ROW is indexed with 1099511627776 along axis 0"),
    (
        lambda s, b, h, q, k: s + k * 2**30,
        "mul of integers gives 6442450944, and they have 32 bits",
    ),
]


def check(mod: Mod, **changes: Any) -> None:
    program, arrays = trace(mod)
    assert program is not None
    views = [view(array, name) for name, array in arrays.items()]
    check_indices(program, [_moved(x, **changes) for x in views], SIZES)


def _moved(tensor: TensorView, *, device: Any = "cpu") -> TensorView:
    from dataclasses import replace

    return replace(tensor, device=device)


@pytest.mark.parametrize("mod", INSIDE)
def test_inside(mod: Mod) -> None:
    check(mod)


@pytest.mark.parametrize(("mod", "message"), OUTSIDE)
def test_outside(mod: Mod, message: str) -> None:
    with pytest.raises(SpecError) as error:
        check(mod)
    assert message in str(error.value)


def test_on_a_gpu_no_tensor_is_read() -> None:
    check(lambda s, b, h, q, k: TABLE[IDS[k], 0] + ROW[k], device="cuda")
    with pytest.raises(SpecError, match="TABLE is indexed with 6 along axis 1"):
        check(lambda s, b, h, q, k: TABLE[h, k], device="cuda")


def test_without_scores_there_is_nothing_to_refuse() -> None:
    program, arrays = trace(lambda s, b, h, q, k: s + TABLE[h, k])
    assert program is not None
    check_indices(program, [view(x, n) for n, x in arrays.items()], SIZES | {"sq": 0})
