"""Caches plans by the signatures of calls, so that repeated calls are not planned again.

A planner checks a call in some two hundred microseconds. Its result depends on shapes, strides,
dtypes, alignment and options. It does not depend on addresses, unless the host reads an array. The
second call with a signature is planned once more with placeholders, views whose addresses number
the arguments, and the launches of that plan are kept (`LaunchPlan`). A later call with the
signature allocates, fills in its addresses and launches.

The signature includes the caller's functions by all that tracing reads (`attn_mlir.api.functions`);
the arrays that they capture are arrays of the call.

Other calls are planned every time: those with functions that have no key, lists of blocks, arrays
of libraries other than numpy and torch, index arrays in host memory, whose contents are checked,
and addresses that a launch plan does not support.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attn_mlir import env
from attn_mlir.api.functions import add_function
from attn_mlir.api.plan import Allocation, Plan, Step
from attn_mlir.arrays import counters_at, current_stream_of, maker_like
from attn_mlir.caches import CACHES
from attn_mlir.compiling.compiler import compile, is_recorded
from attn_mlir.dialect.attn.masks import MASKS
from attn_mlir.errors import AttnError
from attn_mlir.runtime.call.binding import bind
from attn_mlir.runtime.call.repeats import Repeats
from attn_mlir.runtime.call.signatures import Reader, Signature, address_of, is_array
from attn_mlir.runtime.call.tensors import TensorView, dense_strides, view
from attn_mlir.runtime.devices.launchplan import LaunchPlan
from attn_mlir.runtime.kernel import DEVICES_BY_VALUE, choose_device, chosen_for_all, planned_on
from attn_mlir.trace import Recorded, trace

OPERANDS = frozenset(
    "q k v o lse do dlse q_nope q_rope k_nope k_rope out k_new v_new kv kv_scale extra_kv "
    "extra_kv_scale".split()
)  # arrays whose elements no planner reads
ARRAY = "Any"  # annotation of an argument that is an array; on a GPU no planner reads its elements
LINE = 256  # bytes; alignment of the tensors of a workspace, as of allocations
APART = 1 << 40  # bytes between the addresses of placeholders
_STAND_IN = object()  # owner of placeholders


def _fields_of(cache: type) -> Callable[[Any], tuple[object, ...]]:
    return operator.attrgetter(*(field.name for field in dataclasses.fields(cache)))


_CACHE_FIELDS = {cache: _fields_of(cache) for cache in CACHES}
_FUNCTIONS = (types.FunctionType, functools.partial)
READER = Reader((*MASKS, *DEVICES_BY_VALUE), _CACHE_FIELDS, dict.fromkeys(_FUNCTIONS, add_function))


class CachedPlan:
    """The launches of a plan, without the addresses of arrays.

    Args:
      plan: of a call that was made.
      planned: the same plan with placeholders for arrays.
      arrays: views of the arrays of that call.

    Raises:
      ValueError: the plan cannot be cached.
    """

    def __init__(self, plan: Plan, planned: Plan, arrays: Sequence[TensorView]):
        self._like = planned.like
        memory = [*planned.results, *planned.workspace]
        views = {x.name: self._view(x, len(arrays) + i) for i, x in enumerate(memory)}
        self._makers = [self._maker(plan.model, x) for x in planned.results]
        self._workspace = Workspace(plan.model, self._like, planned.workspace)
        has_out = bool(memory) and memory[0].external is not None
        self._out_slot = views[memory[0].name].address // APART - 1 if has_out else None
        # a launch checks overlaps of its own output; those of a later launch are checked here
        is_written_late = has_out and len(planned.steps) > 1
        self._spans = [x.span_bytes for x in arrays] if is_written_late else None
        on_gpu = self._like.device == "cuda"
        self._stream = current_stream_of(plan.model, self._like) if on_gpu else None
        self._steps = [self._launch(step, planned, views) for step in planned.steps]

    def _view(self, allocation: Allocation, slot: int) -> TensorView:
        """The memory of a tensor of the plan, as a view at the address of its slot."""
        if allocation.external is not None:
            return view(allocation.external.tensor, allocation.name)
        return dataclasses.replace(
            self._like,
            dtype=allocation.dtype,
            shape=allocation.shape,
            strides=dense_strides(allocation.shape),
            address=(slot + 1) * APART,
            read_only=False,
        )

    def _maker(self, model: object, x: Allocation) -> Callable[[], Any]:
        """Allocates a result; returns None for memory of the caller."""
        if x.external is not None:
            return lambda: None
        return _made_by(maker_like(model, self._like, x.shape, x.dtype))

    def _launch(
        self, step: Step, planned: Plan, views: Mapping[str, TensorView]
    ) -> tuple[LaunchPlan[Any], list[tuple[int, int]]]:
        """One launch, and the slot and byte offset of each of its tensors."""
        bundle = compile(step.request, target=planned.target)
        bound = bind(bundle.manifest, (), step.launch_arguments(views))
        bound = dataclasses.replace(bound, sm_margin=planned.sm_margin)
        device = choose_device(bundle, planned.device, bound)
        names = list(bound.tensors)
        launch = planned_on(device, bundle, bound, names)
        if launch is None or any(x.owner is not _STAND_IN for x in bound.tensors.values()):
            raise ValueError("the device keeps no launches, or an array is no argument's")
        slots_and_offsets = (divmod(bound.tensors[name].address, APART) for name in names)
        return launch, [(slot - 1, offset) for slot, offset in slots_and_offsets]

    def run(self, signature: Signature, stream: object | None) -> list[Any] | None:
        """Allocates and launches; the results, or None where a launch plan has no answer.

        Raises:
          SpecError: the stream is none.
          LaunchError: a launch failed.
        """
        if self._spans is not None and self._shares(signature.addresses, self._spans):
            return None
        if stream is None and self._stream is not None:
            stream = self._stream()
        made = [make() for make in self._makers]
        memory, slots_and_offsets = self._workspace.take(stream)  # kept until all is launched
        addresses = [*signature.addresses, *map(address_of, made), *slots_and_offsets]
        for launch, slots_and_offsets in self._steps:
            if (
                launch.launch(
                    [addresses[slot] + offset for slot, offset in slots_and_offsets], stream
                )
                is None
            ):
                return None
        if self._out_slot is not None:
            made[0] = signature.arrays[self._out_slot]
        del memory
        return made

    def _shares(self, addresses: Sequence[int], spans: Sequence[int]) -> bool:
        """Whether the caller's memory for the result has bytes in common with another array."""
        assert self._out_slot is not None
        begin, end = addresses[self._out_slot], addresses[self._out_slot] + spans[self._out_slot]
        return any(
            i != self._out_slot and address < end and begin < address + span
            for i, (address, span) in enumerate(zip(addresses, spans, strict=True))
        )


class Workspace:
    """The workspace of a plan: one buffer for all tensors, and counters.

    Args:
      model, like: as of `output_like`.
      allocations: its tensors, in the order of the addresses that `take` returns.
    """

    def __init__(self, model: object, like: TensorView, allocations: Sequence[Allocation]):
        self._like, self._make = like, None
        self._offsets: list[int | None] = []  # in bytes; None for counters
        self._counts: list[int] = []
        begin = 0
        for x in allocations:
            is_counter = x.dtype == "i32"
            self._offsets.append(None if is_counter else begin)
            self._counts.append(math.prod(x.shape))
            begin += 0 if is_counter else -(-x.byte_count // LINE) * LINE
        if begin:
            self._make = _made_by(maker_like(model, like, (begin // 4,), "f32"))

    def take(self, stream: object | None) -> tuple[Any, list[int]]:
        """Memory for one call: its owner, and the address of each allocation."""
        memory = None if self._make is None else self._make()
        begin, addresses = address_of(memory), list[int]()
        for offset, count in zip(self._offsets, self._counts, strict=True):
            if offset is None:
                counters, address = counters_at(self._like, count, stream)
                memory = (memory, counters)
                addresses.append(address)
            else:
                addresses.append(begin + offset)
        return memory, addresses


def _made_by(make: Callable[[], Any] | None) -> Callable[[], Any]:
    """The allocator itself.

    Raises:
      ValueError: there is none.
    """
    if make is None:
        raise ValueError("arrays of this library are made of memory that it takes over")
    return make


class CachingPlanner:
    """A function that plans and runs, and caches plans for repeated calls.

    Args:
      planner: checks a call and makes a `Plan` of it.
    """

    def __init__(self, planner: Callable[..., Any]):
        self._planner = planner
        parameters = inspect.signature(planner).parameters
        self._names = list(parameters)
        self._arrays = {name for name, x in parameters.items() if x.annotation == ARRAY}
        self._plans = Repeats[CachedPlan]()
        self._settings: object = None

    def __call__(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The results of a call; errors as the planner's and those of `Plan.run`."""
        signature = self._signature(arguments, options)
        if signature is None:
            return self._planner(*arguments, **options).run()
        key = tuple(signature.key)
        if (cached := self._plans.get(key)) is not None:
            results = cached.run(signature, options.get("stream"))
            if results is not None:
                return tuple(results) if len(results) > 1 else next(iter(results), None)
        plan = self._planner(*arguments, **options)
        results = plan.run()
        self._plans.note(key, lambda: self._relocatable(plan, arguments, options, signature))
        return results

    def _signature(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> Signature | None:
        """The signature of a call; None for one whose plan is not cached."""
        settings = env.settings()
        if settings is not self._settings:
            self._settings = settings
            self._plans.clear()
        if settings.dump or settings.no_cache or settings.check_lengths or is_recorded():
            return None
        signature = Signature(len(arguments), *options)
        values = [value for name, value in options.items() if name != "stream"]
        is_read = READER.add(signature, (*arguments, *values, chosen_for_all()))
        return signature if is_read else None

    def _relocatable(
        self,
        plan: Plan,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        signature: Signature,
    ) -> CachedPlan | None:
        """The cached form of a plan; None if it has none."""
        values: dict[str, Any] = {**dict(zip(self._names, arguments, strict=False)), **options}
        values.pop("stream", None)
        views = [view(array, "array") for array in signature.arrays]
        on_gpu = all(x.device == "cuda" for x in views)
        names = {name for name, value in values.items() if is_array(value)}
        if not names <= (self._arrays if on_gpu else OPERANDS):
            return None
        compound = [x for x in values.values() if type(x) in _CACHE_FIELDS or _holds_arrays(x)]
        if compound and not on_gpu:
            return None
        if any(
            is_array(x) and not x.shape for value in compound if _is_tuple(value) for x in value
        ):
            return None  # it may be read as a number
        if any(x.empty or x.span_bytes >= APART // 2 for x in views):
            return None
        captured = set(signature.captured)
        try:
            stand_ins = list(_stand_ins(views))
            placeholders = iter([x for i, x in enumerate(stand_ins) if i not in captured])
            replaced = {k: _replaced(x, placeholders) for k, x in values.items()}
            if captured or any(type(x) in _FUNCTIONS for x in values.values()):
                captured_views = [(views[i], stand_ins[i]) for i in signature.captured]
                replaced |= {"mask_mod": None, "score_mod": _recorded(values, captured_views)}
            planned = self._planner(**replaced)
            if [x.request for x in planned.steps] != [x.request for x in plan.steps]:
                return None
            now = self._signature(arguments, options)
            if now is None or now.key != signature.key:  # a function changed in another thread
                return None
            return CachedPlan(plan, planned, views)
        except (AttnError, ValueError):
            return None


def _is_tuple(value: object) -> bool:
    return type(value) is tuple


def _holds_arrays(value: Any) -> bool:
    """Whether a tuple may hold arrays, and not only values."""
    return _is_tuple(value) and any(is_array(x) or _is_tuple(x) for x in value)


def _stand_ins(views: Sequence[TensorView]) -> Iterator[TensorView]:
    """Placeholders: views at addresses that number the arguments; nobody reads them."""
    for slot, tensor in enumerate(views):
        yield dataclasses.replace(tensor, address=(slot + 1) * APART, owner=_STAND_IN)


def _recorded(
    values: Mapping[str, Any], captured: Sequence[tuple[TensorView, TensorView]]
) -> Recorded:
    """The traced functions of a call, with placeholders for the arrays that they read.

    Args:
      captured: views of the arrays that the functions capture, and the placeholder of each.

    Raises:
      ValueError: none or several of these have the address of an array.
    """
    program, arrays = trace(values.get("score_mod"), values.get("mask_mod"))
    assert program is not None
    placeholders: dict[str, Any] = {}
    for name, array in arrays.items():
        read = view(array, name)
        (stand_in,) = [x for tensor, x in captured if tensor.address == read.address]
        placeholders[name] = dataclasses.replace(read, address=stand_in.address, owner=_STAND_IN)
    return Recorded(program, placeholders)


def _replaced(value: Any, stand_ins: Iterator[TensorView]) -> Any:
    """An argument with placeholders for its arrays, in the order of a signature."""
    if _is_tuple(value):
        return tuple(_replaced(x, stand_ins) for x in value)
    if type(value) in _CACHE_FIELDS:
        fields = {x.name: getattr(value, x.name) for x in dataclasses.fields(value)}
        return dataclasses.replace(
            value, **{name: _replaced(x, stand_ins) for name, x in fields.items()}
        )
    return next(stand_ins) if is_array(value) else value
