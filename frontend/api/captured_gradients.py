"""Gradients of tensors that a score modifier captures: their memory and their launches.

A kernel of gradients writes the contribution of each score, or their sum along a row, to parts in
memory, and further launches sum the parts. The parts have an axis for each coordinate of scores
(batch, head, query, key) along which several scores read one element, so that no two scores write
to one place. If an index of the tensor is not a coordinate, such as a distance, the parts have an
axis of queries and an axis of `KEY_PARTS`: each thread then adds the contributions of its keys, in
their order, to elements of its own. If that takes too much memory, and additions may have any
order, contributions are added to the elements of the tensor atomically, which is slow.
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
SUMMED_AT_ONCE = 256  # parts that one thread sums
ZEROED_AT_ONCE = 64  # elements of a row that is zeroed
MOST_ELEMENTS = 2**31 - 1  # positions in memory are i32
MOST_SPARSE = 2**26  # elements (256 MiB) of parts of which scores write only some
MOST_IN_ORDER = 2**28  # the same (1 GiB), where the parts keep the order of additions


class CapturedGradient(NamedTuple):
    """The gradient of a captured tensor.

    Attributes:
      name, shape, dtype: those of the tensor.
      read_as: the tensor's shape in the modifier's program, which may have a last axis of 1 more.
      lead: leading axes of the parts: coordinates of scores, and possibly a name of `KEY_PARTS` at
        the end; None if scores are added to the tensor's elements in any order.
      counts: extents of the axes `lead`.
      of_keys: whether the kernel of dK and dV writes the parts; else that of dQ does.
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
        """The name of the tensor and the leading axes of its parts, as a request has them."""
        return self.name, self.lead

    @property
    def _elements(self) -> int:
        return math.prod(self.shape)

    @property
    def _parts(self) -> int:
        """Number of parts of each element, padding included."""
        return _divisible(math.prod(self.counts))

    @property
    def _is_result(self) -> bool:
        """Whether the kernel writes to the result itself."""
        has_parts = self._parts > 1 or self.dtype != "f32"
        return not has_parts and self._elements % ZEROED_AT_ONCE == 0

    @property
    def workspace(self) -> list[Allocation]:
        """The memory of the parts, and of their intermediate sums."""
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
        """The launch before the kernel, which zeroes the parts."""
        if self._is_result:
            name, count = self.result.name, self._elements
        else:
            name, (count,) = parts_of(self.name), self.workspace[0].shape
        rows = (1, count // ZEROED_AT_ONCE, 1, ZEROED_AT_ONCE)
        spec = ZeroRowsSpec(heads=1, head_dim=ZEROED_AT_ONCE)
        return Step(spec, {"accum": PlanView(name, rows)})

    def sums(self) -> list[Step]:
        """The launches after the kernel, which sum the parts level by level."""
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
    """The least number of parts, `count` or more, that can be summed level by level."""
    if count <= SUMMED_AT_ONCE:
        return count
    return SUMMED_AT_ONCE * _divisible(-(-count // SUMMED_AT_ONCE))


def check_names(names: object) -> tuple[str, ...]:
    """The names of the tensors whose gradients are requested.

    Raises:
      SpecError: `names` is not a sequence of different names.
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
      names: the requested tensors.
      program: the traced modifier; None without one.
      captured: the arrays by name.
      sizes: extents of scores: `batch`, `head`, and the longest lengths `q` and `k` of the call.
      key_parts: the name in `KEY_PARTS` of the keys that one thread has.
      in_order: whether the same call must give the same bits.

    Raises:
      SpecError: the modifier captures no tensor of that name, or its gradient has no kernel.
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
    """The leading axes of the parts, as of `CapturedGradient.lead`."""
    pairs = list(zip(read.axes, shape, strict=True))
    own = {axis for axis, extent in pairs if axis is not None and extent >= sizes[axis]}
    lead = tuple(x for x in read.pattern.depends_on if x not in own)
    is_sparse = any(axis not in own and extent > 1 for axis, extent in pairs)
    most = MOST_SPARSE
    if read.pattern in (Pattern.DISTANCE, Pattern.SCATTER):
        lead, most = (*(x for x in lead if x != "k"), key_parts), MOST_IN_ORDER
    count = math.prod((*(sizes[x] for x in lead), *shape))
    return None if is_sparse and count > most else lead
