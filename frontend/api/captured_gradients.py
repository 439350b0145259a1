"""Gradients of tensors that a score modifier captures: which there are, and their launches.

A kernel of gradients writes what scores pass on to elements of the tensor, each or summed up along
a row, and further launches sum this up. Memory has an axis for each coordinate of scores (batch,
head, query, key) by which several would write to an element, so that none has to be added to
another in memory. Where coordinates are no axes of the tensor, as those of a distance, it has an
axis for each query, and one for the keys that one thread has, which adds them in their order. Where
that would take too much of it, and any order will do, they are added to the elements themselves:
scores that lie far apart wait for one another then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from attn_mlir.api.plan import Allocation, PlanView, Step
from attn_mlir.compiling.backward.accumulators import ZeroRowsSpec
from attn_mlir.compiling.backward.gradients import parts_of
from attn_mlir.compiling.backward.row_sums import DTYPES, SumPartsSpec
from attn_mlir.dialect.attn.programs.derivative import Read, differentiated
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.dialect.attn.programs.reads import KEY_PARTS, QUARTERS, Pattern
from attn_mlir.errors import SpecError, no_kernel, shown
from attn_mlir.runtime.call.tensors import Extended, view

OFFERED = f"gradients are those of arrays of {', '.join(DTYPES)}"
SUMMED_AT_ONCE = 256  # parts, by a thread
ZEROED_AT_ONCE = 64  # elements
MOST_ELEMENTS = 2**31 - 1  # positions in memory are i32
MOST_SPARSE = 2**26  # elements of memory (256 MiB) of which scores write to some only
MOST_IN_ORDER = 2**28  # likewise (1 GiB), where it keeps the order of additions


class CapturedGradient(NamedTuple):
    """The gradient of a captured tensor.

    Attributes:
      name: of the tensor.
      shape, dtype: likewise.
      read_as: its shape in the modifier's program, which may have an axis of 1 behind the others.
      lead: coordinates of scores that are axes of the memory before those of the tensor, the last
        maybe a name of `KEY_PARTS`; None if parts are added to its elements in any order.
      counts: extents of these axes.
      of_keys: whether the kernel of keys writes the parts, not that of queries.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read_as: tuple[int, ...]
    lead: tuple[str, ...] | None
    counts: tuple[int, ...]
    of_keys: bool

    @property
    def result(self) -> Allocation:
        """The memory of the gradient."""
        return Allocation(f"d{self.name}", self.dtype, self.shape)

    @property
    def adjoint(self) -> tuple[str, tuple[str, ...] | None]:
        """The name and the leading indices that a request asks a kernel for."""
        return self.name, self.lead

    @property
    def _elements(self) -> int:
        return math.prod(self.shape)

    @property
    def _parts(self) -> int:
        """Parts of each element, with some that are 0."""
        return _divisible(math.prod(self.counts))

    @property
    def _is_result(self) -> bool:
        """Whether parts are written to the result itself."""
        has_parts = self._parts > 1 or self.dtype != "f32"
        return not has_parts and self._elements % ZEROED_AT_ONCE == 0

    @property
    def workspace(self) -> list[Allocation]:
        """The memory of the parts, and of their sums before the last ones."""
        if self._is_result:
            return []
        count = -(-self._parts * self._elements // ZEROED_AT_ONCE) * ZEROED_AT_ONCE
        found = [Allocation(parts_of(self.name), "f32", (count,))]
        left = self._parts
        while left > SUMMED_AT_ONCE:
            left //= SUMMED_AT_ONCE
            name = f"sums_of_{self.name}_{len(found)}"
            found.append(Allocation(name, "f32", (left * self._elements,)))
        return found

    def memory(self) -> PlanView:
        """The memory of the parts, as the kernel writes them."""
        name = self.result.name if self._is_result else parts_of(self.name)
        return PlanView(name, (*self.counts, *self.read_as))

    def zeros(self) -> Step:
        """The launch before the kernel."""
        if self._is_result:
            name, count = self.result.name, self._elements
        else:
            name, (count,) = parts_of(self.name), self.workspace[0].shape
        rows = (1, count // ZEROED_AT_ONCE, 1, ZEROED_AT_ONCE)
        spec = ZeroRowsSpec(heads=1, head_dim=ZEROED_AT_ONCE)
        return Step(spec, {"accum": PlanView(name, rows)})

    def sums(self) -> list[Step]:
        """The launches behind the kernel, which sum up the parts level by level."""
        steps: list[Step] = []
        left, memory = self._parts, self.workspace
        for number, source in enumerate(memory):
            is_last = number + 1 == len(memory)
            target = self.result if is_last else memory[number + 1]
            at_once = left if is_last else SUMMED_AT_ONCE
            left //= at_once
            elements = left * self._elements
            views = {
                "parts": PlanView(source.name, (at_once, elements)),
                "sums": PlanView(target.name, (elements,)),
            }
            steps.append(Step(SumPartsSpec(dtype=target.dtype), views))
        return steps


def _divisible(count: int) -> int:
    """The least number, from this one on, of parts that can be summed up level by level."""
    if count <= SUMMED_AT_ONCE:
        return count
    return SUMMED_AT_ONCE * _divisible(-(-count // SUMMED_AT_ONCE))


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
    *,
    key_parts: str,
    in_order: bool,
) -> list[CapturedGradient]:
    """The gradients of captured tensors.

    Args:
      names: of the tensors that are asked for.
      program: of the modifier; None without one.
      captured: the arrays by name.
      sizes: `batch`, `head`, and the longest lengths `q` and `k` of the call.
      key_parts: keys that a thread has alone, as of `KEY_PARTS`.
      in_order: whether the same call has to give the same bits.

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
        made.append(_gradient(name, reads, captured[name], sizes, key_parts))
        if in_order and made[-1].lead is None:
            why = "several reads of its elements"
            if len(reads) == 1:
                why = f"{QUARTERS} parts of it for each query and head have more than 2^28 elements"
            raise SpecError(
                f"captured names {name!r}, whose gradient has no order of additions, as {why}: "
                "deterministic=False allows any"
            )
    return made


def _gradient(
    name: str,
    reads: Sequence[Read],
    array: object,
    sizes: Mapping[str, int],
    key_parts: str,
) -> CapturedGradient:
    """The gradient of one tensor. Errors as of `captured_gradients`."""
    tensor = view(array, name)
    if tensor.dtype not in DTYPES:
        raise SpecError(no_kernel(f"captured {name} of {tensor.dtype}", OFFERED))
    if not reads:
        raise SpecError(f"captured names {name!r}, which has no derivative: steps are flat")
    is_extended = isinstance(array, Extended)
    sizes = {**sizes, **dict.fromkeys(KEY_PARTS, QUARTERS)}
    lead = _lead(reads[0], tensor.shape, sizes, key_parts) if len(reads) == 1 else None
    counts = tuple(sizes[x] for x in lead or ())
    if math.prod((*counts, *tensor.shape)) > MOST_ELEMENTS:
        limit = "with the parts of all scores it has more than 2^31 elements"
        raise SpecError(no_kernel(f"captured {name} {list(tensor.shape)}", limit))
    shape = tuple(tensor.shape[:-1] if is_extended else tensor.shape)
    of_keys = len(reads) == 1 and reads[0].pattern is Pattern.KEY
    return CapturedGradient(name, shape, tensor.dtype, tensor.shape, lead, counts, of_keys)


def _lead(
    read: Read, shape: Sequence[int], sizes: Mapping[str, int], key_parts: str
) -> tuple[str, ...] | None:
    """The coordinates of scores by which several read an element; None if they are added to it."""
    pairs = list(zip(read.axes, shape, strict=True))
    own = {axis for axis, extent in pairs if axis is not None and extent >= sizes[axis]}
    lead = tuple(x for x in read.pattern.depends_on if x not in own)
    is_sparse = any(axis not in own and extent > 1 for axis, extent in pairs)
    most = MOST_SPARSE
    if read.pattern in (Pattern.DISTANCE, Pattern.SCATTER):
        lead, most = (*(x for x in lead if x != "k"), key_parts), MOST_IN_ORDER
    count = math.prod((*(sizes[x] for x in lead), *shape))
    return None if is_sparse and count > most else lead
