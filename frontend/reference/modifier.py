"""Score modifiers, predicates and sinks of the reference: traced and evaluated on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.evaluation import Modified, evaluate
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.reference.offsets import Offsets
from attn_mlir.trace import MaskMod, ScoreMod, trace

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Modifier:
    """A traced modifier with the arrays that it reads.

    Attributes:
      program: None if scores are not modified.
      tensors: captured arrays by name.
    """

    program: Program | None
    tensors: Mapping[str, Array]

    @staticmethod
    def of(score_mod: ScoreMod | None, mask_mod: MaskMod | None, sinks: object | None) -> Modifier:
        """Traces the functions.

        Raises:
          SpecError: they cannot be traced, or an array that they capture is not on the host.
        """
        program, arrays = trace(score_mod, mask_mod, sinks)
        return Modifier(program, host_arrays(arrays))

    def __call__(
        self, scores: Array, batch: int, head: int, first_row: int, offsets: Offsets
    ) -> Modified | None:
        """Evaluates the program for the rows from `first_row` on, in the precision of the scores.

        Args:
          scores: [rows, sk], scaled.
          offsets: of coordinates; the sink is that of the head itself.
        """
        if self.program is None:
            return None
        rows, keys = scores.shape
        at: dict[str, Any] = {
            "score": scores,
            "batch": batch,
            "head": head + offsets.head,
            "q": np.arange(first_row, first_row + rows)[:, None] + offsets.q,
            "k": np.arange(keys)[None, :] + offsets.k,
        }
        modified = evaluate(self.program, at, self.tensors, scores.dtype)
        if self.program.sink is None or not (offsets.head or offsets.q):
            return modified
        own = at | {"head": head, "q": at["q"] - offsets.q}
        return modified._replace(sink=evaluate(self.program, own, self.tensors, scores.dtype).sink)
