"""Options of FlashInfer's functions: what each is here."""

from __future__ import annotations

import importlib
import math
from typing import Any

from attn_mlir.caches import LAYOUTS
from attn_mlir.compiling.dtypes import DTYPES, OUT_DTYPES, dtype_name
from attn_mlir.element_types import ELEMENT_TYPES, NARROW
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.table import NO_LIMIT
from attn_mlir.library import in_i32
from attn_mlir.masks import Mask, sliding_window
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import as_float, as_int, flag
from attn_mlir.runtime.call.tensors import check_has_memory, view

torch: Any = importlib.import_module("torch")

LOG2_E = math.log2(math.e)
_WINDOW = renamed(sliding_window, **{"window left": "window_left", "window right": "window_right"})
TORCH_DTYPES = {name: getattr(torch, ELEMENT_TYPES[name].torch) for name in (*OUT_DTYPES, *NARROW)}


def checked_layout(kv_layout: object) -> str:
    """NHD or HND.

    Raises:
      SpecError: something else.
    """
    if not isinstance(kv_layout, str) or kv_layout not in LAYOUTS:
        raise SpecError(f"kv_layout must be NHD or HND, got {shown(kv_layout, 40)}")
    return kv_layout


def mask_of(causal: object, window_left: object, window_right: object = None) -> Mask:
    """The keys that a query sees: so many to its left and to its right.

    Args:
      window_left: -1: all; window_right likewise, and None: none if causal, else all.

    Raises:
      SpecError: a number below -1, or something else.
    """
    if window_right is None:
        window_right = 0 if flag("causal", causal) else NO_LIMIT
    limits: list[int | None] = []
    for name, value in (("window_left", window_left), ("window_right", window_right)):
        limit = as_int(value)
        if limit is None or limit < NO_LIMIT:
            raise SpecError(f"{name} must be -1 or more, got {shown(value, 40)}")
        limits.append(None if limit == NO_LIMIT else limit)
    return _WINDOW(*limits)


def number(name: str, value: object, otherwise: float) -> float:
    """A scale, or what it is when left out.

    Raises:
      SpecError: no number.
    """
    if value is None:
        return otherwise
    result = as_float(value)
    if result is None or not math.isfinite(result):
        raise SpecError(f"{name} must be a finite number, got {shown(value, 40)}")
    return result


def operand_dtype(value: object, name: str, otherwise: str | None = None) -> str:
    """The name of a dtype of q, k or v.

    Raises:
      SpecError: one that has no kernel.
    """
    return otherwise if value is None and otherwise else dtype_name(value, name, DTYPES)


def output_dtype(value: object, name: str) -> str | None:
    """The name of the dtype of O; None leaves it to q's.

    Raises:
      SpecError: one that has no kernel.
    """
    return None if value is None else dtype_name(value, name, OUT_DTYPES)


def tensor(value: Any, name: str, rank: int, dtype: str = "") -> Any:
    """A tensor of PyTorch.

    Args:
      dtype: i32, f32, ... of its elements; any if empty.

    Raises:
      SpecError: something else, or one of another rank or dtype.
    """
    if not isinstance(value, torch.Tensor):
        raise SpecError(f"{name} must be a tensor of torch, got {shown(value, 40)}")
    array = view(value, name)
    if len(array.shape) != rank or (dtype and array.dtype != dtype):
        of_dtype = f" of {dtype}" if dtype else ""
        raise SpecError(
            f"{name} must be a tensor of rank {rank}{of_dtype}, got {list(array.shape)} of "
            f"{array.dtype}"
        )
    return value


def by_position(value: Any, name: str, kv_layout: object) -> Any:
    """Keys or values of one sequence as [positions, heads, D].

    Raises:
      SpecError: no tensor of that rank, or no layout.
    """
    array = tensor(value, name, 3)
    return array.transpose(0, 1) if checked_layout(kv_layout) == "HND" else array


def indices(value: Any, name: str) -> Any:
    """An index tensor in i32, of which torch makes i64, whose numbers `plan` reads.

    Raises:
      SpecError: none of rank 1, of other numbers, or one without numbers, since it is traced.
    """
    array = tensor(value, name, 1)
    check_has_memory(view(array, name), name)
    if array.dtype not in (torch.int32, torch.int64):
        raise SpecError(f"{name} must be of int32, got {array.dtype}")
    return array if array.dtype == torch.int32 else in_i32(array)
