"""Masks by the caller: a truth value per score, those of all sequences one behind the other.

Sequence b of n queries and m keys has n x m of them, row by row; or bits, eight to a byte from the
lowest on, where each sequence begins at a byte of its own (FlashInfer,
`flashinfer/quantization.py`).
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.options import tensor
from attn_mlir.trace import MaskMod

torch: Any = importlib.import_module("torch")

BITS = 8
MAX_SCORES = 2**31 - 1  # indices are i32


def mask_mod_of(
    custom_mask: Any, packed_custom_mask: Any, device: Any, sq: Sequence[int], sk: Sequence[int]
) -> MaskMod | None:
    """The predicate that reads a mask; None where there is none.

    Args:
      custom_mask: [scores] of bool; packed_custom_mask: [bytes] of u8, which counts where both are.
      device: that the calls run on.
      sq, sk: queries and keys of each sequence.

    Raises:
      SpecError: a mask of another shape or dtype.
    """
    is_packed = packed_custom_mask is not None
    if not is_packed and custom_mask is None:
        return None
    name = "packed_custom_mask" if is_packed else "custom_mask"
    mask = tensor(
        packed_custom_mask if is_packed else custom_mask, name, 1, "u8" if is_packed else "bool"
    )
    counts = [n * m for n, m in zip(sq, sk, strict=True)]
    entry_counts = [-(-count // BITS) for count in counts] if is_packed else counts
    begins = [0, *itertools.accumulate(entry_counts)]
    if mask.shape[0] != begins[-1]:
        raise SpecError(
            f"{name} must be [{begins[-1]}] for queries {list(sq)} and keys {list(sk)}, got "
            f"{list(mask.shape)}"
        )
    if begins[-1] > MAX_SCORES:
        raise SpecError(f"{name} has {begins[-1]} entries, at most {MAX_SCORES} can be told apart")
    values = mask.to(device)
    if not mask.shape[0]:
        values = torch.zeros(1, dtype=mask.dtype, device=device)
    first, keys = (
        torch.tensor(numbers or [0], dtype=torch.int32, device=device)
        for numbers in (begins[:-1], list(sk))
    )

    def visible(b: Any, h: Any, q: Any, k: Any) -> Any:
        return values[first[b] + q * keys[b] + k]

    def visible_bit(b: Any, h: Any, q: Any, k: Any) -> Any:
        score = q * keys[b] + k
        return ((values[first[b] + (score >> 3)] >> (score & 7)) & 1) == 1

    return visible_bit if is_packed else visible
