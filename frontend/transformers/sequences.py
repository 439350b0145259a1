"""Packed batches of models of `transformers`: one row of sequences, told by where each begins."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_mlir.calls import attention
from attn_mlir.errors import SpecError, shown
from attn_mlir.naming import renamed

torch: Any = importlib.import_module("torch")

NAMES = {
    "cu_seqlens_q": "cu_seq_lens_q",
    "cu_seqlens_k": "cu_seq_lens_k",
    "max_seqlen_q": "max_length_q",
    "max_seqlen_k": "max_length_k",
}  # the package's, by ours
_attention = renamed(attention, **NAMES)


@dataclass(frozen=True)
class Sequences:
    """The sequences of a packed batch.

    Attributes:
      offsets_q, offsets_k: [sequences + 1] i32, where sequences begin and the last one ends.
      longest_q, longest_k: no sequence is longer; None where nothing is known.
    """

    offsets_q: Any
    offsets_k: Any
    longest_q: Any = None
    longest_k: Any = None

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A predicate or modifier of positions in the row, as one of positions in a sequence."""

        def of_sequence(*arguments: Any) -> Any:
            *score, b, h, q, k = arguments
            return function(*score, 0, h, q + self.offsets_q[b], k + self.offsets_k[b])

        return of_sequence

    def attend(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """Attention within each sequence.

        Args:
          q: [1, total_q, heads, head_dim]; k and v: [1, total_k, kv_heads, head_dim].
          options: of `attention`; modifiers are those of `within`.

        Returns:
          O [1, total_q, heads, v_head_dim].
        """
        if q.shape[0] != 1:
            raise SpecError(f"cu_seq_lens_q needs a batch of one row, got {q.shape[0]}")
        o = _attention(
            q[0],
            k[0],
            v[0],
            cu_seqlens_q=self.offsets_q,
            cu_seqlens_k=self.offsets_k,
            max_seqlen_q=self.longest_q,
            max_seqlen_k=self.longest_k,
            **options,
        )
        return o[None]


def sequences_of(
    cu_seq_lens_q: Any, cu_seq_lens_k: Any, max_length_q: Any, max_length_k: Any
) -> Sequences | None:
    """The sequences of a packed batch; None where the call names none.

    Raises:
      SpecError: only one side has offsets, or they are no tensors.
    """
    offsets = {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k}
    if all(x is None for x in offsets.values()):
        return None
    for name, value in offsets.items():
        if not isinstance(value, torch.Tensor):
            raise SpecError(f"{name} must be a tensor, got {shown(value)}")
    offsets_q, offsets_k = (x.to(torch.int32) for x in offsets.values())
    return Sequences(offsets_q, offsets_k, max_length_q, max_length_k)
