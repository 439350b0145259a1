"""Checks the scales of 8-bit operands of `mla` and brings them to kernel form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.api.array_checks import checked_array
from attn_mlir.api.caches import Cached
from attn_mlir.api.descales import table_of
from attn_mlir.compiling.latent import NARROW, ROPE_DESCALE
from attn_mlir.dialect.attn.scale import DESCALES
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import TensorView, view


def rope_scales(
    operands: Mapping[str, TensorView], k_rope_descale: Any, cache: Cached | None
) -> dict[str, TensorView]:
    """The scales of the positions of k_rope by the kernel's name; empty without any.

    Args:
      operands: of `mla` by name.
      k_rope_descale: its argument `k_rope_descale`.
      cache: that holds k_rope; None for a tensor.

    Raises:
      SpecError: scales for 16 bits, or of another shape or dtype; says what is allowed.
    """
    k_rope = operands["k_rope"]
    if operands["q_nope"].dtype == NARROW:
        has_scale = cache is not None and cache.kind is not None and cache.kind.scale_dtype
        if k_rope_descale is not None or has_scale:
            name = "k_scale" if has_scale else ROPE_DESCALE
            raise SpecError(
                f"{name} is for k_rope of {NARROW} under bf16: k_descale is of both parts"
            )
        return {}
    if cache is not None and cache.kind is not None and cache.kind.scale_dtype:
        assert cache.scales is not None
        return {ROPE_DESCALE: view(cache.scales[0], "k_scale")}
    if k_rope_descale is None:
        return {}
    if k_rope.dtype != NARROW:
        raise SpecError(
            f"{ROPE_DESCALE} is for k_rope of {NARROW}, got {k_rope.dtype}: leave it out"
        )
    return {ROPE_DESCALE: of_positions(k_rope_descale, ROPE_DESCALE, k_rope, "k_rope")}


def row_scales(
    operands: Mapping[str, TensorView], batch: int, descales: Mapping[str, Any]
) -> dict[str, TensorView]:
    """`q_descale`, `k_descale` and `v_descale` in the kernel's form; empty for operands of 16 bits.

    Args:
      operands: of `mla` by name.
      batch: number of sequences.
      descales: these arguments of it by name.

    Raises:
      SpecError: one is missing or has another shape or dtype, or is given for 16 bits.
    """
    q, k, v = (descales[name] for name in DESCALES)
    if (dtype := operands["q_nope"].dtype) != NARROW:
        for name, value in descales.items():
            if value is not None:
                raise SpecError(f"{name} is for operands of {NARROW}, got {dtype}: leave it out")
        return {}
    for name, value in descales.items():
        if value is None:
            raise SpecError(
                f"{name} is missing: {dtype} operands need their scales, 1.0 where there are none"
            )
    rows, keys, values = operands["q_nope"], operands["k_nope"], operands["v"]
    heads = rows.shape[-2]
    of_q = view(q, DESCALES[0])
    if len(of_q.shape) == len(rows.shape) - 1:
        of_q = checked_array(
            DESCALES[0], q, rows.shape[:-1], "f32", note=", of each position and head of q_nope"
        )
        of_q = of_q.reshaped((*of_q.shape, 1), (*of_q.strides, 1))
    else:
        of_q = of_positions(q, DESCALES[0], rows, "q_nope")
        of_q = of_q.reshaped((*rows.shape[:-2], heads, 1), (*of_q.strides[:-2], 0, 1))
    return {
        DESCALES[0]: of_q,
        DESCALES[1]: of_positions(k, DESCALES[1], keys, "k_nope"),
        DESCALES[2]: table_of(v, DESCALES[2], dtype, batch, values.shape[-2]),
    }


def of_positions(value: Any, name: str, operand: TensorView, called: str) -> TensorView:
    """Scales [batch, sequence] or [total] as [..., 1, 1]: one head, and one group of columns.

    Args:
      operand: [..., heads, columns], whose positions they scale; `called` is its name.

    Raises:
      SpecError: another shape or dtype, or a stride below 0.
    """
    scales = checked_array(
        name, value, operand.shape[:-2], "f32", note=f", of each position of {called}"
    )
    if not scales.empty and min(scales.strides) < 0:
        raise SpecError(f"{name} has strides {list(scales.strides)}: none may be below 0")
    return scales.reshaped((*scales.shape, 1, 1), (*scales.strides, 1, 1))
