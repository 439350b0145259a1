"""The scales of 8-bit operands: from arguments of `attention` to the tables that kernels read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from attn_mlir.arrays import dense_on_host
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.scale import DESCALES, MAX_SCALE
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.binding import F32_TINY
from attn_mlir.runtime.call.tensors import TensorView, host_array, view


def descales_of(
    spec: MhaSpec,
    batch: int,
    q_descale: Any,
    k_descale: Any,
    v_descale: Any,
    names: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, TensorView]:
    """Tables [1 or batch, 1 or kv_heads] of f32 by name, or scales of positions.

    Args:
      spec: the request.
      batch: number of sequences.
      q_descale, k_descale, v_descale: of one element, [kv_heads] or [batch, kv_heads]; or scales
        of positions, which have been checked with the cache.
      names: the caller's name of an argument, if it differs.

    Raises:
      SpecError: one is missing, or has another shape or dtype, or is not greater than 0 (not
        checked on a GPU); or one is given for operands of more than 8 bits.
    """
    arrays: dict[str, Any] = dict(zip(DESCALES, (q_descale, k_descale, v_descale), strict=True))
    for name in arrays.keys() - set(spec.descales):
        if arrays[name] is not None:
            raise SpecError(
                f"{names.get(name, name)} is for q, k and v of 8 bits, got {spec.dtype}: leave it "
                "out"
            )
    of_positions = DESCALES[1:] if spec.cache is not None and spec.cache.scale_dtype else ()
    return {
        name: view(arrays[name], names.get(name, name))
        if name in of_positions
        else table_of(arrays[name], names.get(name, name), spec.kv_dtype, batch, spec.kv_heads)
        for name in spec.descales
    }


def table_of(value: Any, name: str, dtype: str, batch: int, kv_heads: int) -> TensorView:
    """One array as a table [1 or batch, 1 or kv_heads]; raises as `descales_of`."""
    if value is None:
        raise SpecError(
            f"{name} is missing: {dtype} operands need their scales, 1.0 where there are none"
        )
    allowed = f"f32 of one element, [{kv_heads}] or [{batch}, {kv_heads}]"
    table = view(dense_on_host(value, name), name)
    shape = table.shape
    if table.dtype != "f32":
        raise SpecError(f"{name} must be {allowed}, got {list(shape)} of {table.dtype}")
    if shape in ((), (1,), (1, 1)):
        table = dataclasses.replace(table, shape=(1, 1), strides=(1, 1))
    elif shape == (kv_heads,):
        table = dataclasses.replace(
            table, shape=(1, kv_heads), strides=(kv_heads, table.strides[0])
        )
    elif shape != (batch, kv_heads):
        raise SpecError(f"{name} must be {allowed}, got {list(shape)}")
    if table.device == "cpu" and table.has_memory and not table.empty:
        _check_numbers(table, name)
    return table


def _check_numbers(table: TensorView, name: str) -> None:
    """Refuses scales that are not finite and above 0; negative ones would reverse the scores."""
    numbers = host_array(table)
    wrong = numbers[~(np.isfinite(numbers) & (numbers >= F32_TINY))]
    if wrong.size:
        raise SpecError(
            f"{name} must be finite and greater than 0, at least {F32_TINY:.4g}, got {wrong[0]}"
        )


def check_scaled(
    tables: Mapping[str, TensorView],
    scale: float,
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuses scales whose product with the scale of the scores leaves float32.

    Kernels multiply scores by the scale times the scale of Q, times that of K.

    Args:
      tables: those of `descales_of`; numbers on a GPU are not checked.
      names: as in `descales_of`.

    Raises:
      SpecError: the product that was got, and its bounds.
    """
    product = np.full((1, 1), scale, np.float64)
    for name in [name for name in DESCALES[:2] if name in tables]:
        table = tables[name]
        if table.device != "cpu" or not table.has_memory or table.empty:
            return
        if len(table.shape) > 2:  # scales of positions, of which not all are used
            continue
        product = product * host_array(table)
        if not F32_TINY <= product.min() <= product.max() <= MAX_SCALE:
            raise SpecError(
                f"{names.get(name, name)} makes scales of scores from {product.min():.4g} to "
                f"{product.max():.4g} with "
                f"scale = {scale:.4g}: they must be from {F32_TINY:.4g} to {MAX_SCALE:.4g}"
            )


def scale_tables(
    scales: tuple[object, object] | None, dtype: str, batch: int, heads: int
) -> dict[str, TensorView]:
    """The scales of a cache of 8 bits as tables [1 or batch, 1 or heads] of f32, by name.

    Args:
      scales: k_scale and v_scale of the cache: of one element, [heads] or [batch, heads].
      dtype: element type of the cache.

    Raises:
      SpecError: one is missing or wrong, as in `descales_of`.
    """
    names = ("k_scale", "v_scale")
    pairs = zip(names, (None, None) if scales is None else scales, strict=True)
    return {name: table_of(value, name, dtype, batch, heads) for name, value in pairs}
