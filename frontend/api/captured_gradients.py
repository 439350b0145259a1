"""Gradients of tensors that a score modifier captures: which there are, and their launches.

All scores of a head read one element of such a tensor: a scalar, or an array by batch and head. The
kernel of dq sums up what each query adds to it, and a second launch sums up the queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from attn_mlir.api.plan import Allocation, PlanView, Step
from attn_mlir.compiling.backward.gradients import QGradientsSpec, rows_of
from attn_mlir.compiling.backward.row_sums import DTYPES, SumRowsSpec
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.programs.derivative import Read, differentiated
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.dialect.attn.programs.reads import Pattern
from attn_mlir.errors import SpecError, no_kernel, shown
from attn_mlir.runtime.call.tensors import Extended, view

OFFERED = "gradients are those of arrays that are read by batch and head alone"


class CapturedGradient(NamedTuple):
    """The gradient of a captured tensor.

    Attributes:
      name: of the tensor.
      shape, dtype: likewise.
      of_sequences, of_heads: whether there is one for each sequence, and for each head.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    of_sequences: bool
    of_heads: bool

    def result(self) -> Allocation:
        """The memory of the gradient."""
        return Allocation(f"d{self.name}", self.dtype, self.shape)

    def rows(self, queries: tuple[int, ...]) -> Allocation:
        """The memory of what each query adds, given the extents of queries before columns."""
        return Allocation(rows_of(self.name), "f32", (*queries, 1))

    def step(self, spec: QGradientsSpec, rows: Allocation, arguments: Mapping[str, Any]) -> Step:
        """The launch that sums up all queries.

        Args:
          spec: of the kernel of dq.
          arguments: the arrays and scalars of lengths, by name; may have others.
        """
        lengths = Lengths(ragged_q=spec.lengths.ragged_q, used_q=spec.lengths.used_q)
        sums = SumRowsSpec(
            heads=spec.heads,
            dtype=self.dtype,
            of_sequences=self.of_sequences,
            of_heads=self.of_heads,
            lengths=lengths,
        )
        batch = self.shape[0] if self.of_sequences else 1
        place = PlanView(self.result().name, (batch, spec.heads if self.of_heads else 1))
        indices = {x.name: arguments[x.name] for x in sums.index_operands}
        return Step(sums, {"rows": PlanView(rows.name, rows.shape), "sums": place, **indices})


def check_names(names: object) -> tuple[str, ...]:
    """The names of the tensors whose gradients are wanted.

    Raises:
      SpecError: they are no sequence of different names.
    """
    is_list = isinstance(names, list | tuple)
    items = list(cast("Sequence[object]", names)) if is_list else [None]
    if not all(isinstance(x, str) for x in items) or len(set(items)) < len(items):
        got = shown(names, 40)
        raise SpecError(f"captured must be a tuple of different names of arrays, got {got}")
    return tuple(map(str, items))


def captured_gradients(
    names: Sequence[str],
    program: Program | None,
    captured: Mapping[str, object],
    sizes: Mapping[str, int],
) -> list[CapturedGradient]:
    """The gradients of captured tensors.

    Args:
      names: of the tensors that are asked for.
      program: of the modifier; None without one.
      captured: the arrays by name.
      sizes: `batch` and `heads` of the call.

    Raises:
      SpecError: no tensor of that name, or one whose gradient no kernel computes.
    """
    found = () if program is None or not names else differentiated(program).reads
    tensors = {} if program is None else {x.name: n for n, x in enumerate(program.tensors)}
    made: list[CapturedGradient] = []
    for name in names:
        if name not in tensors:
            known = ", ".join(tensors) or "none"
            raise SpecError(f"captured names {name!r}, score_mod captures {known}")
        reads = [read for read in found if read.tensor == tensors[name]]
        made.append(_gradient(name, reads, captured[name], sizes))
    return made


def _gradient(
    name: str, reads: Sequence[Read], array: object, sizes: Mapping[str, int]
) -> CapturedGradient:
    """The gradient of one tensor. Errors as of `captured_gradients`."""
    tensor = view(array, name)
    if tensor.dtype not in DTYPES:
        raise SpecError(no_kernel(f"captured {name} of {tensor.dtype}", f"{OFFERED}, of {DTYPES}"))
    if not reads:
        raise SpecError(f"captured names {name!r}, which has no derivative: steps are flat")
    if len(reads) > 1:
        raise SpecError(no_kernel(f"captured {name} with {len(reads)} indices", OFFERED))
    (read,) = reads
    is_extended = isinstance(array, Extended)
    shape = tuple(tensor.shape[:-1] if is_extended else tensor.shape)
    axes = [
        axis if extent > 1 else None for axis, extent in zip(read.axes, tensor.shape, strict=True)
    ]
    kept = [axis for axis in axes if axis is not None]
    extents = {axis: extent for axis, extent in zip(axes, tensor.shape, strict=True) if axis}
    wanted = {axis: sizes["heads" if axis == "head" else axis] for axis in kept if axis in _AXES}
    is_whole = all(axis or extent == 1 for axis, extent in zip(axes, tensor.shape, strict=True))
    in_order = kept in ([], ["batch"], ["head"], list(_AXES))
    if read.pattern is not Pattern.HEAD or not in_order or not is_whole or extents != wanted:
        what = f"captured {name} {list(shape)}, which is read by {read.pattern.value}"
        raise SpecError(no_kernel(what, OFFERED))
    return CapturedGradient(name, shape, tensor.dtype, "batch" in kept, "head" in kept)


_AXES = ("batch", "head")
