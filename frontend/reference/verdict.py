"""The verdict on a kernel's results: its errors against the truth, measured by the yardstick's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import SpecError
from attn_mlir.reference.mha import Attention, attention_f64, attention_yardstick

Array = npt.NDArray[Any]

FACTOR = 2.0  # a kernel's error may be this many times that of the plain formula in its types
LSE_TOLERANCE = 1e-3  # absolute error; large ones may also have the yardstick's error and rounding
LSE_ROUNDING = (
    2.0**-21
)  # relative to the largest LSE in the same rows, as large products of either sign cancel

# Rows that share one yardstick error. The largest error of a single row depends on a few roundings
# and
# may be 0 by chance; that of all rows hides that late rows of a causal mask are more exact.
YARDSTICK_ROWS = 16

# dtype name: (largest relative error of rounding to it, absolute error of rounding near 0)
ROUNDING = {
    "bfloat16": (2.0**-8, 2.0**-134),
    "float16": (2.0**-11, 2.0**-25),
    "float32": (2.0**-24, 2.0**-150),
}


@dataclass(frozen=True)
class Comparison:
    """The errors of a kernel's O and LSE.

    Attributes:
      max_error: largest absolute error of O against float64.
      yardstick_error: that of the yardstick.
      worst_ratio: largest error of an element of O divided by its tolerance; at most 1 passes.
      worst_index: [batch, query, head, dim] of that element, or None when O is empty.
      wrong_count: elements of O that are not within their tolerance, and NaNs.
      element_count: elements of O.
      lse_error: largest absolute error of LSE; infinite when an infinity is in the wrong place.
      lse_wrong_count: elements of LSE that are not within their tolerance.
    """

    max_error: float
    yardstick_error: float
    worst_ratio: float
    worst_index: tuple[int, ...] | None
    wrong_count: int
    element_count: int
    lse_error: float
    lse_wrong_count: int

    @property
    def ok(self) -> bool:
        """Whether every element of O and LSE is right."""
        return self.wrong_count == 0 and self.lse_wrong_count == 0

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "WRONG"
        text = (
            f"{verdict}: O error {self.max_error:.3e} (yardstick {self.yardstick_error:.3e}, worst "
            f"{self.worst_ratio:.2f} of what is allowed), LSE error {self.lse_error:.3e}"
        )
        if not self.ok:
            text += (
                f"; {self.wrong_count} of {self.element_count} elements of O wrong, first by size "
                f"at {self.worst_index}; {self.lse_wrong_count} of LSE wrong"
            )
        return text


def compare(o: Array, lse: Array | None, truth: Attention, yardstick: Attention) -> Comparison:
    """Judges every element.

    The error of an element of O may be `FACTOR` times the yardstick's largest one in the same head
    and the same `YARDSTICK_ROWS` rows, plus the rounding of the output. A row that sees no key must
    be exactly 0. The error of an LSE may be the sum of `LSE_TOLERANCE`, `FACTOR` times the
    yardstick's largest one in the same rows, and `LSE_ROUNDING`. Where the yardstick is infinite or
    NaN and the truth is not, no error is allowed.

    Args:
      o: [batch, sq, heads, head_dim_v] in the kernel's dtype.
      lse: [batch, heads, sq], or None if there is none to judge.

    Raises:
      SpecError: a shape or a dtype that is not the yardstick's.
    """
    if o.shape != truth.o.shape or (lse is not None and lse.shape != truth.lse.shape):
        raise SpecError(
            f"o {o.shape} and lse {None if lse is None else lse.shape} must have the shapes "
            f"{truth.o.shape} and {truth.lse.shape}"
        )
    if o.dtype.name not in ROUNDING:
        raise SpecError(f"o has dtype {o.dtype}, allowed are {sorted(ROUNDING)}")
    relative, absolute = ROUNDING[o.dtype.name]
    with np.errstate(invalid="ignore"):
        error = np.abs(o.astype(np.float64) - truth.o)
    yardstick_errors = _finite(np.abs(yardstick.o.astype(np.float64) - truth.o))
    allowed = FACTOR * _by_row_group(yardstick_errors) + relative * np.abs(truth.o) + absolute
    allowed[np.isneginf(truth.lse).transpose(0, 2, 1)] = absolute
    error[~np.isfinite(error)] = np.inf  # also true for NaN
    ratio = error / allowed
    index = None if ratio.size == 0 else np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    lse_error = np.zeros(0) if lse is None else _lse_error(lse, truth.lse)
    lse_allowed = np.zeros(0) if lse is None else _lse_allowed(truth.lse, yardstick.lse)
    return Comparison(
        max_error=float(error.max(initial=0.0)),
        yardstick_error=float(yardstick_errors.max(initial=0.0)),
        worst_ratio=float(ratio.max(initial=0.0)),
        worst_index=None if index is None else tuple(int(axis) for axis in index),
        wrong_count=int(np.count_nonzero(ratio > 1.0)),
        element_count=int(o.size),
        lse_error=float(lse_error.max(initial=0.0)),
        lse_wrong_count=int(np.count_nonzero(lse_error > lse_allowed)),
    )


def check_attention(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array | None,
    **options: Any,
) -> Comparison:
    """Judges a kernel's O and LSE for these operands; options as of `mha.attention`."""
    truth = attention_f64(q, k, v, **options)
    return compare(o, lse, truth, attention_yardstick(q, k, v, out_dtype=o.dtype, **options))


def _by_row_group(errors: Array) -> Array:
    """Replaces elements [batch, sq, heads, dim] by the maximum over their `YARDSTICK_ROWS` rows."""
    batch, sq, heads, _ = errors.shape
    rows = np.max(errors, axis=3, initial=0.0)
    groups = -(-sq // YARDSTICK_ROWS)
    padded = np.zeros((batch, groups * YARDSTICK_ROWS, heads))
    padded[:, :sq] = rows
    top = padded.reshape(batch, groups, YARDSTICK_ROWS, heads).max(axis=2)
    return np.repeat(top, YARDSTICK_ROWS, axis=1)[:, :sq, :, None]


def _finite(error: Array) -> Array:
    """Errors, with 0 for infinities and NaN."""
    return np.where(np.isfinite(error), error, 0.0)


def _lse_allowed(truth: Array, yardstick: Array) -> Array:
    """The tolerance of each element of LSE."""
    yardstick_errors = _finite(_lse_error(yardstick, truth)).transpose(0, 2, 1)[..., None]
    size = _finite(np.abs(truth)).transpose(0, 2, 1)[..., None]
    rows = FACTOR * _by_row_group(yardstick_errors) + LSE_ROUNDING * _by_row_group(size)
    return LSE_TOLERANCE + rows[..., 0].transpose(0, 2, 1)


def _lse_error(lse: Array, truth: Array) -> Array:
    """Absolute errors: 0 for equal infinities, infinite for any other infinity or NaN."""
    with np.errstate(invalid="ignore"):
        error = np.abs(lse.astype(np.float64) - truth)
    error[(lse == truth) & np.isinf(truth)] = 0.0
    error[np.isnan(error)] = np.inf
    return error
