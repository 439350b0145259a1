"""The second half of a split: from the results for parts of the keys to those for all."""

from __future__ import annotations

import dataclasses
from typing import Any

from attn_mlir.arrays import Output, output_like
from attn_mlir.compiling.compiler import DEFAULT_TARGET, compile_combine
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.compiling.splits import LSE_TERMS, CombineSpec
from attn_mlir.runtime.kernel import DeviceChoice, Kernel
from attn_mlir.runtime.tensors import TensorView, dense_strides, view

LSES_RANK = 4  # of the parts' LSE, where each is one number


@dataclasses.dataclass(frozen=True)
class Split:
    """How the keys of a call are split.

    Attributes:
      count: parts, at least 2.
      sinks: as of `attention`; they count once, where the parts are combined.
    """

    count: int
    sinks: Any


def combine(
    model: object,
    like: TensorView,
    split: Split,
    parts: tuple[Output, Output],
    spec: MhaSpec,
    *,
    out: Output | None = None,
    device: DeviceChoice = None,
    stream: object | None = None,
) -> tuple[Any, Any]:
    """Combines the parts of a call: O, and LSE or None.

    The rows of a ragged batch are combined as those of one sequence: each row is for itself.

    Args:
      model: the array that results shall be like; `like` is its view.
      parts: one after the other, O [count x batch, sq, heads, v_head_dim] and LSE
        [2, count x batch, heads, sq], f32; of a ragged batch [count x total, heads, v_head_dim] and
        [2, heads, count x total].
      spec: the request without a split.
      out: memory for O; made when left out.
      device, stream: of the launch.
    """
    partial, sums = (view(part.tensor, "parts") for part in parts)
    first, *others, heads, columns = partial.shape
    *lead, rows = (first // split.count, *others)
    batch = lead[0] if lead else 1
    total = split.count * rows
    # of LSE's parts in a ragged batch
    between = None if lead else (heads * total, rows, 0, total, 1)
    o, lse = combine_parts(
        model,
        _seen_as(partial, (split.count, batch, rows, heads, columns)),
        _seen_as(sums, (LSE_TERMS, split.count, batch, heads, rows), between),
        like=like,
        is_ragged=not lead,
        sinks=split.sinks,
        out_dtype=spec.output_dtype,
        return_lse=spec.return_lse,
        out=out,
        device=device,
        stream=stream,
    )
    return o, lse


def combine_parts(
    model: object,
    parts: TensorView,
    sums: TensorView,
    *,
    like: TensorView | None = None,
    is_ragged: bool,
    sinks: Any = None,
    out_dtype: str,
    return_lse: bool,
    out: Output | None = None,
    device: DeviceChoice = None,
    stream: object | None = None,
) -> tuple[Any, Any]:
    """Compiles or finds the kernel that combines parts, and runs it: O, and LSE or None.

    Args:
      model: the array that results shall be like.
      parts: [splits, batch, sq, heads, v_head_dim] of f32.
      sums: [splits, batch, heads, sq] of f32, or [2, splits, batch, heads, sq], whose sums count.
      like: the view of `model`; of `parts` when left out.
      is_ragged: whether results have no batch: [total, heads, v_head_dim] and [heads, total].
      sinks, out_dtype, return_lse, out: of the results.
      device, stream: of the launch.
    """
    like = parts if like is None else like
    _, batch, rows, heads, columns = parts.shape
    lead = () if is_ragged else (batch,)
    request = CombineSpec(
        heads,
        columns,
        out_dtype,
        None if sinks is None else view(sinks, "sinks").dtype,
        return_lse=return_lse,
        heads_along_rows=rows < heads,
        lse_terms=LSE_TERMS if len(sums.shape) > LSES_RANK else 1,
    )
    o = out or output_like(model, like, (*lead, rows, heads, columns), out_dtype)
    lse = output_like(model, like, (*lead, heads, rows), "f32") if return_lse else None
    tensors: list[object] = [
        parts,
        sums,
        *([] if sinks is None else [sinks]),
        _as_batch(view(o.tensor, "o")),
    ]
    if lse is not None:
        tensors.append(_seen_as(view(lse.tensor, "lse"), (batch, heads, rows)))
    Kernel(compile_combine(request, target=DEFAULT_TARGET))(*tensors, device=device, stream=stream)
    return o.finish(), None if lse is None else lse.finish()


def _as_batch(tensor: TensorView) -> TensorView:
    """A tensor of rows, [total, heads, columns], as a batch of one sequence; a batch as it is."""
    if len(tensor.shape) == 4:
        return tensor
    rows = tensor.shape[0] * tensor.strides[0]
    return tensor.reshaped((1, *tensor.shape), (rows, *tensor.strides))


def _seen_as(
    tensor: TensorView, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> TensorView:
    """A dense tensor of ours with other dimensions; dense ones where no strides are given."""
    return tensor.reshaped(shape, dense_strides(shape) if strides is None else strides)
