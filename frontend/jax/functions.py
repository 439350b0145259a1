"""`attention` for arrays of jax: splits a call into arrays and static arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Hashable, Mapping
from typing import Any, cast

import numpy as np

from attn_mlir.api.attention import attention as of_memory
from attn_mlir.api.attention_backward import OF_FORWARD, attention_backward
from attn_mlir.caches import CACHES
from attn_mlir.errors import SpecError, no_kernel, shown
from attn_mlir.jax.callbacks import Operation
from attn_mlir.jax.calls import Call, attend
from attn_mlir.naming import check_options
from attn_mlir.runtime.call.scalars import as_int, flag
from attn_mlir.runtime.call.tensors import check_numpy
from attn_mlir.runtime.call.torch_tensors import is_tensor
from attn_mlir.trace import trace_sources

jax: Any = importlib.import_module("jax")

SIGNATURE = inspect.signature(of_memory)
ARRAYS = frozenset(
    "q k v sinks cu_seqlens_q cu_seqlens_k seqused_q seqused_k cache_seqlens q_offset k_offset "
    "q_descale k_descale v_descale".split()
)
MODIFIERS = ("score_mod", "mask_mod")
REFUSED = {
    "out": "jax gives the memory of results",
    "device": "arrays are computed with where jax has them",
    "stream": "jax has its own",
    "block_mask": "pass its mask, or mask_mod",
}
BACKWARD_ARGUMENTS = frozenset(inspect.signature(attention_backward).parameters)


def attention(*arguments: Any, **options: Any) -> Any:
    """The implementation of `attn_mlir.jax.attention`, which describes it."""
    try:
        bound = SIGNATURE.bind(*arguments, **options)
    except TypeError:
        check_options(of_memory, options)
        raise
    named = {name: x for name, x in bound.arguments.items() if x is not None}
    for name, why in REFUSED.items():
        if name in named:
            raise SpecError(f"{name} is not offered for arrays of jax: {why}")
    return_lse = flag("return_lse", named.pop("return_lse", False))
    made = attend(*call_of(named, return_lse=return_lse))
    return tuple(made) if return_lse else made[0]


def call_of(
    named: Mapping[str, Any], gradients: Mapping[str, Any] | None = None, *, return_lse: bool
) -> tuple[Call, dict[str, Any]]:
    """The static part of a call, and its arrays by name.

    Args:
      named: arguments of `attention`, without `return_lse` and arguments that are None.
      gradients: `mask` and modifiers for `attention_backward`, if they differ from those of
        `attention`; they read the same arrays.

    Raises:
      SpecError: an argument that must be an array is not one, or a static argument is an array.
    """
    arrays = {name: as_array(name, x) for name, x in named.items() if _is_array(name, x)}
    static = {name: x for name, x in named.items() if name not in arrays}
    mods = [static.pop(name, None) for name in MODIFIERS]
    program, captured = trace_sources(*mods)
    names = tuple(captured)
    forward = Operation("attention", tuple(static.items()), program, names)
    if gradients is not None:
        static = {name: x for name, x in static.items() if name not in ("mask", "q_offset")}
        static |= {name: x for name, x in gradients.items() if name not in MODIFIERS}
        program, again = trace_sources(*(gradients.get(name) for name in MODIFIERS))
        assert tuple(again) == names, "modifiers of gradients read what those of the call read"
    others = [x for x in (*arrays, *static) if x not in OF_FORWARD and x not in BACKWARD_ARGUMENTS]
    refused = ""
    if others:
        refused = no_kernel(
            others[0],
            "gradients are those of attention without it",
            context="where a gradient is wanted",
        )
    options = tuple((name, x) for name, x in static.items() if name in BACKWARD_ARGUMENTS)
    backward = Operation("attention_backward", options, program, names)
    arrays |= {name: _read(name, x) for name, x in captured.items()}
    kinds = tuple(map(type, static.values()))
    return Call(forward, backward, refused, return_lse, kinds), arrays


def _is_array(name: str, value: object) -> bool:
    """Whether an argument is an array.

    Raises:
      SpecError: an array is passed for a static argument, or a value is neither an array nor
        hashable.
    """
    if name in ("q", "k", "v"):
        return True
    if not isinstance(value, jax.Array | np.ndarray) and not is_tensor(value):
        is_number = name not in ARRAYS or as_int(value) is not None
        if not is_number or not isinstance(
            value, Hashable
        ):  # jax compiles a call once for equal static arguments
            as_array(name, value)
        return False
    if name not in ARRAYS:
        raise SpecError(f"{name} must be known when jax traces the call, got {shown(value, 40)}")
    return True


def as_array(name: str, value: object) -> Any:
    """An argument as an array of jax.

    Raises:
      SpecError: it is not an array.
    """
    if isinstance(value, CACHES):
        raise SpecError(f"{name} is a {type(value).__name__}: pass k and v as arrays of jax")
    if not isinstance(value, jax.Array | np.ndarray):
        raise SpecError(f"{name} must be an array of jax or numpy, got {shown(value, 40)}")
    if isinstance(value, np.ndarray):
        check_numpy(cast("np.ndarray[Any, Any]", value), name)
    try:
        return jax.numpy.asarray(cast(Any, value))
    except TypeError as error:
        dtype: object = getattr(cast(Any, value), "dtype", None)
        raise SpecError(f"{name} has dtype {dtype}, of which jax makes no array") from error


def _read(name: str, value: object) -> Any:
    """An array that modifiers read, with at least one axis, as kernels take it.

    Raises:
      SpecError: jax would change its dtype.
    """
    array, dtype = as_array(name, value), getattr(value, "dtype", None)
    if array.dtype != dtype:
        raise SpecError(f"{name} is {dtype}, which jax makes {array.dtype}: pass an array of that")
    return array if array.ndim else array[None]
