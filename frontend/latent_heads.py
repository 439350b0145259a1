"""Latent attention of any number of heads: what kernels have no number for is filled up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.arrays import on_stream
from attn_mlir.errors import SpecError
from attn_mlir.library import library_of, padded
from attn_mlir.runtime.call.tensors import shape_of

STEP = 8  # heads of a kernel are a multiple of it
TILE = 64  # and of this where there are more than one


def with_filled_heads(
    call: Callable[[Any, Any], tuple[Any, ...]],
    q: Any,
    sinks: Any,
    *,
    axis: int,
    sinks_name: str = "sinks",
    by_tiles: bool = False,
    stream: object | None = None,
) -> tuple[Any, ...]:
    """A call of latent attention whose heads are filled up; its results are without the new ones.

    Args:
      call: of q and sinks; its results have heads at `axis` where they have q's rank, else at 1.
      q: [..., heads, columns]; copied where 8 does not divide the heads.
      sinks: [heads] or None.
      axis: of the heads in q.
      by_tiles: whether more than 64 heads have to be a multiple of 64.
      stream: that the launch is on.

    Raises:
      SpecError: sinks of another number; or as the call.
    """
    shape = shape_of(q, "q")
    heads = shape[axis] if len(shape) > axis else 0
    step = TILE if by_tiles and heads > TILE else STEP
    if not heads % step:
        return call(q, sinks)
    library = library_of(q, "q")
    module: Any = sys.modules[library]
    if sinks is not None and (got := shape_of(sinks, sinks_name)) != (heads,):
        raise SpecError(f"{sinks_name} must be [{heads}] of f32, got {list(got)}")
    with on_stream(stream, q):
        sinks = None if sinks is None else padded(sinks, step)
        results = call(padded(q, step, axis), sinks)
        rank, kept = len(shape), list[Any]()
        for x in results:
            part = x[(slice(None),) * (axis if x.ndim == rank else 1) + (slice(heads),)]
            is_torch = library == "torch"
            kept.append(part.contiguous() if is_torch else module.ascontiguousarray(part))
    return tuple(kept)


def one_behind_another(
    results: Sequence[tuple[Any, ...]], axes: tuple[int, ...], stream: object | None = None
) -> tuple[Any, ...]:
    """Results for some heads each as results for all of them.

    Args:
      axes: of the heads in each result of a call.
      stream: that the launches were on.
    """
    library = library_of(results[0][0])
    module: Any = sys.modules[library]
    join = module.cat if library == "torch" else module.concatenate
    with on_stream(stream, results[0][0]):
        return tuple(
            join(x, axis) for x, axis in zip(zip(*results, strict=True), axes, strict=True)
        )
