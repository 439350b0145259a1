"""The combine kernel alone, on the emulator, against its formula in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.mha_check import poisoned

NUMPY: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-20}  # f32: 2^x has 2 ulp, sums more


def parts_of(splits: int, batch: int, sq: int, heads: int, d: int) -> list[NDArray[np.float32]]:
    """Parts and LSEs; part 1 saw no key anywhere and was never written, one row saw none at all.

    Of what saw no key some have the LSE of our kernels, -inf, and some that of FlashMLA's, +inf.
    """
    random = np.random.default_rng(splits)
    parts = random.standard_normal((splits, batch, sq, heads, d), np.float32)
    lses = 4 * random.standard_normal((splits, batch, heads, sq), np.float32)
    if splits > 1:
        lses[1], parts[1] = -np.inf, np.nan
        lses[1, :, ::2] = np.inf
    lses[:, 0, 0, sq // 2] = -np.inf
    lses[::2, 0, 0, sq // 2], parts[::2, 0, sq // 2, 0] = np.inf, np.nan
    return [parts, lses]


def expected(
    parts: NDArray[Any], lses: NDArray[Any], sinks: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """O and LSE by the definition."""
    mass = np.where(np.isinf(lses), 0, np.exp(lses.astype(np.float64)))
    total = mass.sum(0)
    divisor = total if sinks is None else total + np.exp(sinks.astype(np.float64))[None, :, None]
    weights = np.where(total > 0, mass / np.where(total > 0, divisor, 1), 0)
    values = np.where(np.isnan(parts), 0, parts).astype(np.float64)
    with np.errstate(divide="ignore"):
        return (values * weights.transpose(0, 1, 3, 2)[..., None]).sum(0), np.log(total)


@pytest.mark.parametrize(
    ("splits", "sq", "heads", "d", "dtype", "sinks", "along_heads"),
    [
        (1, 130, 3, 64, "bf16", None, False),
        (5, 40, 2, 128, "f16", "f32", False),
        (4, 3, 20, 72, "bf16", "bf16", True),
        (9, 1, 140, 40, "f32", None, True),
    ],
)
def test_parts_become_the_whole(
    splits: int,
    sq: int,
    heads: int,
    d: int,
    dtype: str,
    sinks: str | None,
    along_heads: bool,
) -> None:
    """Late and out of order, and with the same bits under the fair schedule."""
    parts, lses = parts_of(splits, 2, sq, heads, d)
    logits = None if sinks is None else np.linspace(-2, 2, heads).astype(NUMPY[sinks])
    spec = CombineSpec(
        heads=heads, v_head_dim=d, out_dtype=dtype, sinks=sinks, return_lse=True,
        heads_along_rows=along_heads,
    )  # fmt: skip
    o = poisoned((2, sq, heads, d), np.dtype(NUMPY[dtype]))
    lse = poisoned((2, heads, sq), np.dtype(np.float32))
    given = [parts, lses, *([] if logits is None else [logits]), o, lse]
    kernel = am.load(am.compile(spec))
    kernel(*given, device=EmulatorDevice("adversarial", seed=2))
    true_o, true_lse = expected(parts, lses, logits)
    assert np.all(np.abs(o.astype(np.float64) - true_o) <= ROUNDING[dtype] * (1 + np.abs(true_o)))
    assert np.array_equal(np.isinf(lse), np.isinf(true_lse))
    finite = np.isfinite(true_lse)
    assert np.allclose(lse[finite], true_lse[finite], rtol=0, atol=1e-5)
    kernel(*given[:-2], again := poisoned(o.shape, o.dtype), lse, device=EmulatorDevice())
    assert again.tobytes() == o.tobytes()
