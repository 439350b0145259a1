"""The factors of 8-bit operands of latent attention before absorption, checked and in the kernel's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.api.caches import Cached
from attn_mlir.compiling.latent import NARROW_ROPE, ROPE_FACTORS
from attn_mlir.errors import SpecError
from attn_mlir.runtime.tensors import TensorView, view


def rope_factors(
    operands: Mapping[str, TensorView], given: Any, cache: Cached | None
) -> dict[str, TensorView]:
    """The factors of the positions of k_rope by the kernel's name; empty where there are none.

    Args:
      operands: of `mla` by name.
      given: its argument `k_rope_descale`.
      cache: that holds k_rope; None for a tensor.

    Raises:
      SpecError: factors of 16 bits, or of another shape or dtype; says what is allowed.
    """
    rope = operands["k_rope"]
    if cache is not None and cache.kind is not None and cache.kind.scale_dtype:
        assert cache.scales is not None
        return {ROPE_FACTORS: view(cache.scales[0], "k_scale")}
    if given is None:
        return {}
    if rope.dtype != NARROW_ROPE:
        raise SpecError(
            f"{ROPE_FACTORS} is for k_rope of {NARROW_ROPE}, got {rope.dtype}: leave it out"
        )
    return {ROPE_FACTORS: of_positions(given, ROPE_FACTORS, rope, "k_rope")}


def of_positions(given: Any, name: str, operand: TensorView, called: str) -> TensorView:
    """Factors [batch, sequence] or [total] as [..., 1, 1]: one head, and one group of columns.

    Args:
      operand: [..., heads, columns], whose positions they are of; `called` is its name.

    Raises:
      SpecError: another shape or dtype, or a stride below 0.
    """
    found, rows = view(given, name), operand.shape[:-2]
    if found.dtype != "f32" or found.shape != rows:
        raise SpecError(
            f"{name} must be f32 {list(rows)}, of each position of {called}, got {list(found.shape)} of "
            f"{found.dtype}"
        )
    if not found.empty and min(found.strides) < 0:
        raise SpecError(f"{name} has strides {list(found.strides)}: none may be below 0")
    return found.reshaped((*found.shape, 1, 1), (*found.strides, 1, 1))
