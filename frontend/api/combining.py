"""Plans the combination of the partial results of splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.api.plan import Allocation, Plan, PlanView, Step
from attn_mlir.arrays import Output
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.compiling.spec import LSE_TERMS, MhaSpec
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice, machine_of

LSES_RANK = 4  # rank of the partial LSEs if each is one number


@dataclass(frozen=True)
class Split:
    """How the keys of a call are split.

    Attributes:
      count: number of splits, at least 2, or at least 1 if their size is fixed.
      sinks: as in `attention`; the kernel that combines the splits adds them.
      in_kernel: whether the attention kernel combines the splits itself.
      size: number of keys of a split, if it is fixed; else None.
    """

    count: int
    sinks: Any
    in_kernel: bool = False
    size: int | None = None


def combination(spec: MhaSpec, split: Split, sizes: Mapping[str, int]) -> Step:
    """The launch that combines the results in `partial_o` and `partial_lse`.

    A ragged batch is combined like one sequence, as rows are independent.

    Args:
      spec: the request without a split.
      split: how the keys are split.
      sizes: extents of the call by name: `batch` and `sq`, or `total_q`.
    """
    is_ragged = "total_q" in sizes
    batch, rows = (1, sizes["total_q"]) if is_ragged else (sizes["batch"], sizes["sq"])
    count, heads, columns = split.count, spec.heads, spec.v_head_dim
    total = count * rows
    # position of the splits' axis in the LSE of a ragged batch
    between = (heads * total, rows, 0, total, 1) if is_ragged else None
    return combination_step(
        parts=PlanView("partial_o", (count, batch, rows, heads, columns)),
        lses=PlanView("partial_lse", (LSE_TERMS, count, batch, heads, rows), between),
        sinks=split.sinks,
        out_dtype=spec.out_dtype,
        return_lse=spec.return_lse,
    )


def combination_of(
    model: object,
    parts: TensorView,
    lses: TensorView,
    *,
    is_ragged: bool,
    out_dtype: str,
    return_lse: bool,
    sinks: Any = None,
    out: Output | None = None,
    device: DeviceChoice = None,
    stream: object | None = None,
) -> Plan:
    """The plan that combines partial results of the caller.

    Args:
      model: the caller's array for `parts`; results have its library and device.
      parts: [splits, batch, sq, heads, v_head_dim] of f32.
      lses: [splits, batch, heads, sq] of f32, or [2, splits, batch, heads, sq], two terms to be
        added.
      is_ragged: whether results have no batch: [total, heads, v_head_dim] and [heads, total].
      sinks: [heads], which the parts leave out; None without.
      out_dtype, return_lse, out: as in `attention`.
      device, stream: as in `attention`.
    """
    step = combination_step(
        parts=parts, lses=lses, sinks=sinks, out_dtype=out_dtype, return_lse=return_lse
    )
    sizes = {"batch": parts.shape[1], "sq": parts.shape[2]}
    results: list[Allocation] = []
    for operand in step.request.tensors:
        if operand.role == "out":
            whole = Allocation.of(operand, sizes, external=out if operand.name == "o" else None)
            shape = whole.shape[1:] if is_ragged else whole.shape
            results.append(Allocation(whole.name, whole.dtype, shape, whole.external))
    target = machine_of(device, parts).target or DEFAULT_TARGET
    return Plan([step], results, [], model, parts, device, stream, target)


def combination_step(
    *,
    parts: PlanView | TensorView,
    lses: PlanView | TensorView,
    sinks: Any,
    out_dtype: str,
    return_lse: bool,
) -> Step:
    """The launch that combines partial results; the plan names the results `o` and `lse`.

    Args:
      parts: [splits, batch, sq, heads, v_head_dim] of f32.
      lses: [splits, batch, heads, sq] of f32, or [2, splits, batch, heads, sq], terms to be added.
      sinks: [heads], which the partial results leave out; None without.
      out_dtype, return_lse: of `CombineSpec`.
    """
    _, batch, rows, heads, columns = parts.shape
    request = CombineSpec(
        heads=heads,
        v_head_dim=columns,
        out_dtype=out_dtype,
        sinks=None if sinks is None else view(sinks, "sinks").dtype,
        return_lse=return_lse,
        heads_along_rows=rows < heads,
        lse_terms=LSE_TERMS if len(lses.shape) > LSES_RANK else 1,
    )
    arguments: dict[str, object] = {"parts": parts, "lses": lses}
    if sinks is not None:
        arguments["sinks"] = sinks
    arguments["o"] = PlanView("o", (batch, rows, heads, columns))
    if return_lse:
        arguments["lse"] = PlanView("lse", (batch, heads, rows))
    return Step(request, arguments)
