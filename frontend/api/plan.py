"""Plans of calls: kernels in order, and the memory that they need.

A function of `api` checks its arguments and makes a plan; running the plan compiles kernels that
are not cached, allocates and launches. Only `Plan` and `plan_cache.CachedPlan` launch kernels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attn_mlir.arrays import Output, caller_output, counters_like, output_like, stream_of
from attn_mlir.compiling.compiler import compile
from attn_mlir.compiling.request import Request
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET
from attn_mlir.errors import SpecError
from attn_mlir.naming import rename
from attn_mlir.runtime.call.binding import check_apart
from attn_mlir.runtime.call.tensors import (
    TensorView,
    check_has_memory,
    dense_strides,
    dtype_bytes,
    view,
)
from attn_mlir.runtime.call.torch_tensors import is_tensor
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import DeviceChoice, Kernel, machine_of


@dataclass(frozen=True)
class Allocation:
    """Memory for one tensor of a call.

    Attributes:
      name: name of the tensor, unique in a plan.
      dtype: `bf16`, `f16` or `f32`; or `i32` for counters, which are 0 before and after a launch.
      shape: extents; the tensor is dense unless the caller passed memory for it.
      external: the caller's memory; None if the plan allocates it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    external: Output | None = None

    @staticmethod
    def of(
        operand: Operand,
        sizes: Mapping[str, int],
        *,
        name: str = "",
        external: Output | None = None,
    ) -> Allocation:
        """The allocation for an operand of a kernel.

        Args:
          sizes: values of the extents that have names.
          name: by default the operand's name.
        """
        extents = tuple(sizes[n] if isinstance(n, str) else n for n in operand.extents)
        return Allocation(name or operand.name, operand.dtype, extents, external)

    @property
    def byte_count(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)

    def range(self, axis: int, first: int, count: int) -> PlanView:
        """The view of the indices from `first` on along an axis, of a dense tensor."""
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        if shape == self.shape:
            return PlanView(self.name, shape)
        strides = dense_strides(self.shape)
        return PlanView(self.name, shape, strides, first * strides[axis])


def named_extents(request: Request, operands: Mapping[str, TensorView]) -> dict[str, int]:
    """The values of the request's named extents."""
    sizes: dict[str, int] = {}
    for operand in request.tensors:
        if operand.name in operands:
            pairs = zip(operand.extents, operands[operand.name].shape, strict=True)
            sizes |= {name: extent for name, extent in pairs if isinstance(name, str)}
    return sizes


def results_of(
    request: Request, sizes: Mapping[str, int], out: object, operands: Mapping[str, TensorView]
) -> list[Allocation]:
    """Memory for the results of a kernel, of which O is the first.

    Args:
      sizes: as of `Allocation.of`.
      out: the caller's array for O, or None.
      operands: the operands by name, with which it must share no memory.

    Raises:
      SpecError: O cannot be written to it.
    """
    o, *more = [Allocation.of(x, sizes) for x in request.tensors if x.role == "out"]
    if out is not None:
        o = dataclasses.replace(o, external=caller_output(out, o.shape, o.dtype, operands))
    return [o, *more]


@dataclass(frozen=True)
class PlanView:
    """A view of a tensor of the plan, as an argument of a kernel.

    Attributes:
      name: name of the allocation.
      shape: extents of the view: those of the allocation after one of 1, or any for a dense tensor.
      strides: in elements; None for a dense view.
      offset: elements before the view, where it has strides.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0

    def of(self, tensor: TensorView) -> TensorView:
        """The view of the allocated memory."""
        if self.strides is not None:
            begin = tensor.address + self.offset * tensor.item_bytes
            return dataclasses.replace(tensor, address=begin).reshaped(self.shape, self.strides)
        if self.shape == tensor.shape:
            return tensor
        if tensor.shape and self.shape == (1, *tensor.shape):
            whole = tensor.shape[0] * tensor.strides[0]
            return tensor.reshaped(self.shape, (whole, *tensor.strides))
        return tensor.reshaped(self.shape, dense_strides(self.shape))


@dataclass(frozen=True)
class Step:
    """One launch.

    Attributes:
      request: the request for the kernel.
      arguments: by the names of the operands: arrays, numbers, and `PlanView` for tensors of the
        plan.
      names: the caller's name of an operand, if it differs from the kernel's.
    """

    request: Request
    arguments: Mapping[str, object]
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def launch_arguments(self, memory: Mapping[str, TensorView]) -> dict[str, object]:
        """The arguments of the launch by name, given the memory for the tensors of the plan."""
        return {
            name: value.of(memory[value.name]) if isinstance(value, PlanView) else value
            for name, value in self.arguments.items()
        }

    def __str__(self) -> str:
        """The kernel's name with its tensors; those of the plan under their names there."""
        shown: list[str] = []
        for operand in self.request.tensors:
            value = self.arguments[operand.name]
            name = value.name if isinstance(value, PlanView) else operand.name
            shown.append(name if name == operand.name else f"{operand.name}={name}")
        return f"{self.request.kernel_name}({', '.join(shown)})"


class Launched(Protocol):
    """The arguments of a call that say where it runs."""

    @property
    def device(self) -> DeviceChoice: ...
    @property
    def stream(self) -> object | None: ...


@dataclass(frozen=True)
class Plan:
    """The launches of one call. `print` shows them; `run` carries them out.

    Attributes:
      steps: launches, in order.
      results: the tensors that the call returns.
      workspace: tensors that are only needed during the launches.
      model: the caller's array, whose library and device results get.
      like: the view of `model`.
      target: the chip that kernels are compiled for.
      device, stream: where the launches go.
      sm_margin: multiprocessors that persistent kernels leave free.
      for_other_sizes: requests that are compiled as well, for folders of prebuilt bundles.
    """

    steps: Sequence[Step]
    results: Sequence[Allocation]
    workspace: Sequence[Allocation]
    model: object
    like: TensorView
    device: DeviceChoice = None
    stream: object | None = None
    target: str = DEFAULT_TARGET
    for_other_sizes: Sequence[Request] = ()
    sm_margin: int = 0

    @staticmethod
    def of(
        steps: Sequence[Step],
        results: Sequence[Allocation],
        call: Launched,
        model: object,
        like: TensorView,
        workspace: Sequence[Allocation] = (),
    ) -> Plan:
        """The plan of a declared call, for its device and stream."""
        target = machine_of(call.device, like).target or DEFAULT_TARGET
        stream = stream_of(call.stream, call.device, model, like)
        return Plan(steps, results, workspace, model, like, call.device, stream, target)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of memory that a run needs in addition to its results."""
        return sum(allocation.byte_count for allocation in self.workspace)

    def run(self) -> Any:
        """Allocates and launches, with the arrays that the plan was made with.

        Returns:
          The single result, or a tuple of several; None if there is none.

        Raises:
          TargetError: the device cannot run a kernel, or the toolchain is incomplete.
          LaunchError: a launch failed.
        """
        results = tuple(self.execute().values())
        return results if len(results) > 1 else next(iter(results), None)

    def bundles(self) -> list[Bundle]:
        """The compiled kernels of the launches, in order.

        Raises:
          AttnError: as `run` raises it before it allocates memory.
        """
        return [compile(step.request, target=self.target) for step in self.steps]

    def execute(self) -> dict[str, Any]:
        """As `run`, but returns the results by name."""
        for step in self.steps:
            for name, value in step.arguments.items():
                if isinstance(value, TensorView) or is_tensor(value):
                    name = step.names.get(name, name)
                    check_has_memory(view(value, name), name)
        self._check_results()
        kernels = [Kernel(bundle) for bundle in self.bundles()]
        for request in self.for_other_sizes:
            compile(request, target=self.target)
        memory = {x.name: self._memory(x) for x in (*self.results, *self.workspace)}
        views = {name: view(output.tensor, name) for name, output in memory.items()}
        for kernel, step in zip(kernels, self.steps, strict=True):
            try:
                kernel.launch(
                    step.launch_arguments(views),
                    device=self.device,
                    stream=self.stream,
                    sm_margin=self.sm_margin,
                )
            except SpecError as error:
                rename(error, step.names)
                raise
        return {result.name: memory[result.name].finish() for result in self.results}

    def _check_results(self) -> None:
        """Refuses memory of the caller for a result that overlaps an array of the call.

        Raises:
          SpecError: names the array.
        """
        for result in self.results:
            if result.external is None:
                continue
            for step in self.steps:
                arguments = {x.name: step.arguments[x.name] for x in step.request.tensors}
                by_caller_name = {
                    step.names.get(name, name): value for name, value in arguments.items()
                }
                others = {
                    name: view(value, name)
                    for name, value in by_caller_name.items()
                    if not isinstance(value, PlanView)
                }
                check_apart("out", view(result.external.tensor, "out"), others)

    def _memory(self, allocation: Allocation) -> Output:
        if allocation.external is not None:
            return allocation.external
        if allocation.dtype == "i32":
            return counters_like(self.like, allocation.shape, self.stream)
        return output_like(self.model, self.like, allocation.shape, allocation.dtype)

    def __str__(self) -> str:
        """A line per launch and per tensor."""
        count = f"{len(self.steps)} kernel{'s' if len(self.steps) > 1 else ''}"
        lines = [f"{count} for {self.target}, {self.workspace_bytes} bytes of workspace"]
        lines += [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        kinds = [("result", x) for x in self.results] + [("workspace", x) for x in self.workspace]
        lines += [
            f"  {kind:9s}  {x.name:12s} {x.dtype:4s} {list(x.shape)!s:24s} {x.byte_count} bytes"
            for kind, x in kinds
        ]
        return "\n".join(lines)
