"""Kernels as callbacks of jax: `buffer_callback` on a GPU, `pure_callback` elsewhere.

Both callbacks pass arrays to `launched`: XLA's buffers by DLPack on a GPU, arrays of numpy on the
host. The call is planned when jax traces it. The plan gives the shapes of the results, and refuses
a call that has no kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.api.attention import attention
from attn_mlir.api.attention_backward import attention_backward
from attn_mlir.api.plan import Allocation, Plan
from attn_mlir.api.planners import planner_of
from attn_mlir.arrays import Output
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.element_types import ELEMENT_TYPES
from attn_mlir.runtime.call.tensors import (
    DeviceKind,
    TensorView,
    dense_strides,
    described_dense,
    view,
)
from attn_mlir.trace import Recorded

jax: Any = importlib.import_module("jax")
buffers: Any = importlib.import_module("jax.experimental.buffer_callback")

PLANNERS = {
    "attention": planner_of(attention),
    "attention_backward": planner_of(attention_backward),
}
KINDS: tuple[DeviceKind, DeviceKind] = ("cpu", "cuda")
BY_BUFFERS = {"cuda"}  # devices that use `buffer_callback`, which jax has on hosts as well
SAMPLES = frozenset(
    "q k v o lse do dlse seqused_q seqused_k cache_seqlens".split()
)  # arrays whose first axis is the batch, unless sequences are packed


@dataclass(frozen=True)
class Operation:
    """The static part of a call: everything except its arrays. jax compiles equal ones once.

    Attributes:
      function: `attention` or `attention_backward`.
      options: (name, value) of the static arguments.
      program: the traced modifiers; None without modifiers.
      captured: names of the arrays that the program reads.
    """

    function: str
    options: tuple[tuple[str, Any], ...]
    program: Program | None = None
    captured: tuple[str, ...] = ()

    def planned(self, arrays: Mapping[str, TensorView], stream: object | None = None) -> Plan:
        """The plan of the call, given the arrays by name; errors as of the function."""
        given = {name: x for name, x in arrays.items() if name not in self.captured}
        options = dict(self.options)
        if self.program is not None:
            read = {name: arrays[name] for name in self.captured}
            options["score_mod"] = Recorded(self.program, read)
        return PLANNERS[self.function](**given, **options, stream=stream)


def computed(operation: Operation, arrays: Mapping[str, Any]) -> list[Any]:
    """The results of an operation, as arrays of jax.

    Under `vmap` samples are merged into the batch if all arrays have a batch axis; otherwise the
    kernels are launched for each sample.

    Raises:
      SpecError: as the function of the operation.
    """
    on_host, on_gpu = (functools.partial(_called, operation, tuple(arrays), kind) for kind in KINDS)
    if not _has_gpu():
        return on_host(*arrays.values())
    return jax.lax.platform_dependent(*arrays.values(), cuda=on_gpu, default=on_host)


def _has_gpu() -> bool:
    """Whether jax has an NVIDIA GPU; without one, calls are not planned for a GPU."""
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def _called(
    operation: Operation, names: Sequence[str], kind: DeviceKind, *arrays: Any
) -> list[Any]:
    views = {name: described_dense(x, name, kind) for name, x in zip(names, arrays, strict=True)}
    plan = operation.planned(views)
    memory = [
        jax.ShapeDtypeStruct(x.shape, jax.numpy.dtype(ELEMENT_TYPES[x.dtype].numpy))
        for x in [*plan.results, *_workspace(plan)]
    ]
    ranks = {name: len(x.shape) for name, x in views.items()}
    run = functools.partial(launched, operation, ranks)

    def on_buffers(context: Any, made: Any, *given: Any) -> None:
        run(given, made, context.stream if kind == "cuda" else None)

    def on_host(*given: Any) -> list[Any]:
        # `vmap` adds a leading axis to every array, of extent 1 where it does not map the array
        lead = _lead(
            [x.shape[: x.ndim - rank] for x, rank in zip(given, ranks.values(), strict=True)]
        )
        made = [np.empty((*lead, *x.shape), x.dtype) for x in memory]
        run([np.ascontiguousarray(x) for x in given], made, None)
        return made

    if kind in BY_BUFFERS:
        call = buffers.buffer_callback(on_buffers, memory, vmap_method="expand_dims")
        return call(*arrays)[: len(plan.results)]
    found = jax.pure_callback(on_host, memory, *arrays, vmap_method="expand_dims")
    return found[: len(plan.results)]


def launched(
    operation: Operation,
    ranks: Mapping[str, int],
    arrays: Sequence[object],
    made: Sequence[object],
    stream: object | None,
) -> None:
    """Launches an operation.

    Args:
      ranks: the rank of each array by name, without the leading axes of `vmap`.
      arrays: the arrays, in the order of `ranks`.
      made: memory of the results, then of the workspace.
      stream: the stream on a GPU, else None.

    Raises:
      SpecError: as the function of the operation, for values that tracing did not see.
      LaunchError: a launch failed.
    """
    views = {name: view(x, name) for name, x in zip(ranks, arrays, strict=True)}
    results = [view(x, "a result") for x in made]
    for given, into in _samples(views, results, ranks):
        plan = operation.planned(given, stream)
        memory = iter(into)
        taken = [_at(x, next(memory)) for x in plan.results]
        kept = {x.name: _at(x, next(memory)) for x in _workspace(plan)}
        workspace = [kept.get(x.name, x) for x in plan.workspace]
        dataclasses.replace(plan, results=taken, workspace=workspace).execute()


def _workspace(plan: Plan) -> list[Allocation]:
    """The tensors of the workspace, without counters, which are kept from launch to launch."""
    return [x for x in plan.workspace if x.dtype != "i32"]


def _at(allocation: Allocation, memory: TensorView) -> Allocation:
    return dataclasses.replace(allocation, external=Output(memory, lambda: memory))


def _samples(
    views: Mapping[str, TensorView], results: Sequence[TensorView], ranks: Mapping[str, int]
) -> Iterator[tuple[dict[str, TensorView], list[TensorView]]]:
    """The arrays and results of each launch: one launch if `vmap`'s axes can join the batch."""
    leads = {name: x.shape[: len(x.shape) - ranks[name]] for name, x in views.items()}
    lead = _lead(leads.values())
    if not lead:
        yield dict(views), list(results)
    elif views.keys() <= SAMPLES and all(x == lead for x in leads.values()):
        depth = len(lead)
        yield (
            {name: _joined(x, depth) for name, x in views.items()},
            [_joined(x, depth) for x in results],
        )
    else:
        for index in itertools.product(*map(range, lead)):
            yield (
                {name: _sample(x, leads[name], index) for name, x in views.items()},
                [_sample(x, lead, index) for x in results],
            )


def _lead(leads: Any) -> tuple[int, ...]:
    """The extents of the axes of `vmap`; arrays that are not mapped have extent 1 there."""
    return tuple(next((n for n in extents if n != 1), 1) for extents in zip(*leads, strict=True))


def _joined(x: TensorView, depth: int) -> TensorView:
    shape = (math.prod(x.shape[: depth + 1]), *x.shape[depth + 1 :])
    return x.reshaped(shape, dense_strides(shape))


def _sample(x: TensorView, lead: Sequence[int], index: Sequence[int]) -> TensorView:
    shape = x.shape[len(lead) :]
    strides = dense_strides(x.shape)[: len(lead)]
    at = zip(index, strides, lead, strict=True)
    moved = x.moved(sum(i * step for i, step, extent in at if extent > 1))
    return moved.reshaped(shape, dense_strides(shape))
