"""The types that a formula computes in: float64 for the truth,
those of a kernel for the yardstick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.reference.sums import cut_product
from attn_mlir.reference.weights import weighted_values

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Arithmetic:
    """The types of a formula.

    Attributes:
      number: dtype of scores, row maximum, exponentials, sums and LSE.
      p: what P is rounded to before the second product, while the row sum is of P before rounding;
        None: as the operation says.
      o: what O is rounded to at the end; None: as the operation says.
      score_bits: bits that sums of Q K^T keep, as `cut_product` says; None: all of `number`.
    """

    number: npt.DTypeLike
    p: npt.DTypeLike | None = None
    o: npt.DTypeLike | None = None
    score_bits: int | None = None

    def settled(self, p: npt.DTypeLike, o: npt.DTypeLike | None = None) -> Arithmetic:
        """With these types of P and O where none is asked for; O's is P's if there is none here."""
        p = np.dtype(p if self.p is None else self.p)
        output = next((x for x in (self.o, o) if x is not None), p)
        return Arithmetic(np.dtype(self.number), p, np.dtype(output), self.score_bits)

    @property
    def scalar(self) -> Any:
        """The class of one number of `number`."""
        return np.dtype(self.number).type

    def scores(self, q: Array, k: Array) -> Array:
        """Q K^T of [rows, columns] and [keys, columns], before it is scaled."""
        q, k = q.astype(self.number), k.astype(self.number)
        return cut_product(q, k, self.score_bits) if self.score_bits else q @ k.T

    def product(self, weights: Array, values: Array) -> Array:
        """P V of [rows, keys] and [keys, columns], before it is divided by the row sum.

        Args:
          weights: of which the largest of a row is 1.
        """
        p, o = np.dtype(self.p), np.dtype(self.o)
        return weighted_values(weights, values.astype(self.number), p, o)


EXACT = Arithmetic(np.float64, np.float64, np.float64)
KERNEL = Arithmetic(np.float32)
