"""Tensors with an element for each score, as predicates and as modifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attn_mlir.trace import MaskMod, ScoreMod


def visible(tensor: Any) -> MaskMod:
    """The predicate of a bool tensor, True where a score is visible.

    Args:
      tensor: [batch or 1, heads or 1, sq or 1, sk or 1].
    """
    return _element(tensor)


def added(tensor: Any) -> ScoreMod:
    """The modifier that adds the elements of a float tensor.

    Args:
      tensor: as in `visible`.
    """
    element = _element(tensor)

    def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + element(b, h, q_idx, kv_idx)

    return biased


def _element(tensor: Any) -> Callable[[Any, Any, Any, Any], Any]:
    repeated = [bool(extent == 1) for extent in tensor.shape]

    def element(*coordinates: Any) -> Any:
        at = zip(coordinates, repeated, strict=True)
        return tensor[tuple(0 if is_one else coordinate for coordinate, is_one in at)]

    return element
