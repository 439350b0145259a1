"""Head sizes of no multiple of 16 bytes: operands are padded as in FlashAttention 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from attn_mlir.arrays import check_memory, on_stream
from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.errors import SpecError
from attn_mlir.flash.lengths import is_narrow
from attn_mlir.library import check_one_library, padded
from attn_mlir.runtime.call.tensors import shape_of, view

STEP_BYTES = 16  # the unit of copies
Operands = tuple[Any, Any, Any]


def are_whole(*operands: Any) -> bool:
    """Whether kernels have the head sizes; whatever is no array is left to them."""
    step = _step(operands)
    return not any(_columns(operand) % step for operand in operands)


def _columns(operand: Any) -> int:
    """The last extent; 0 of what has none that can be read."""
    try:
        return int(operand.shape[-1])
    except Exception:  # of any kind: the caller's checks name the argument
        return 0


def in_whole_heads(
    call: Callable[[Operands, Mapping[str, Any]], Any],
    operands: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Any:
    """A call for the next head sizes that kernels have, with zeros in the columns behind.

    Args:
      call: of q, k and v, and of the options by name.
      operands: q, k and v, or the pools of a cache, by their names.
      given: the options.

    Returns:
      The results of `call`, O with its own columns.

    Raises:
      SpecError: operands that do not belong together, and those of `call`.
    """
    q, _, v = operands.values()
    name_q, name_k, _ = operands
    check_one_library(operands)
    shapes = {name: shape_of(x, name, has_gradient=True) for name, x in operands.items()}
    size, found = shapes[name_q][-1], shapes[name_k][-1]
    if size != found:
        raise SpecError(f"{name_k} has {found} elements per head, {name_q} has {size}")
    out, columns = given.get("out"), v.shape[-1]
    if out is not None:
        dtype = view(q, name_q).dtype
        dtype = "bf16" if dtype in NARROW_DTYPES else dtype
        others = {name: view(x, name) for name, x in operands.items()}
        check_memory("out", out, (*shapes[name_q][:-1], columns), dtype, others)
    scale, stream = given.get("softmax_scale"), given.get("stream")
    with on_stream(stream, q):
        step = _step(tuple(operands.values()))
        whole: Any = tuple(padded(x, step) for x in operands.values())
    scale = size**-0.5 if scale is None else scale
    o, others = call(whole, {**given, "softmax_scale": scale, "out": None}), ()
    if isinstance(o, tuple):
        o, *others = cast("tuple[Any, ...]", o)
    with on_stream(stream, q):
        o = o[..., :columns]
        if out is not None:
            out[...] = o
            o = out
    return (o, *others) if others else o


def _step(operands: tuple[Any, ...]) -> int:
    """The step of head sizes, in elements."""
    return STEP_BYTES if any(map(is_narrow, operands)) else STEP_BYTES // 2
