"""The base of the wrappers: index tensors and a problem, kept from `plan` to `run`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.attributes import PlannedAttributes
from attn_mlir.flashinfer.buffers import Buffers
from attn_mlir.flashinfer.options import checked_layout
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.table import scores_of
from attn_mlir.runtime.call.scalars import as_int, flag


class Wrapper(PlannedAttributes):
    """Base of the wrappers: `plan` once per step, `run` once per layer.

    A subclass gives `plan` and `run` the signatures of FlashInfer. `plan` makes a `Problem`, keeps
    the index tensors in `_buffers` and ends with `_store_plan`; `run` begins with `_planned`.

    Args:
      workspace: says on which device calls are; nothing is written to it.
      kv_layout: NHD or HND.
      use_cuda_graph: calls are captured, and `buffers` are read.
      names: of the caller's index tensors; given: those that there are.

    Raises:
      SpecError: an argument is wrong.
    """

    def __init__(
        self,
        workspace: Any,
        kv_layout: str,
        use_cuda_graph: bool,
        names: Sequence[str],
        index_tensors: Mapping[str, Any],
    ) -> None:
        buffers = {name: index_tensors.get(name) for name in names}
        self._kv_layout = checked_layout(kv_layout)
        self._use_cuda_graph = flag("use_cuda_graph", use_cuda_graph)
        self._float_workspace_buffer = workspace
        self._buffers = Buffers.of(workspace, self._use_cuda_graph, buffers)
        self._problem: Problem | None = None
        self._tokens = 0
        self._frozen: Mapping[str, int] = {}

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether calls are captured."""
        return self._use_cuda_graph

    def reset_workspace_buffer(
        self, float_workspace_buffer: Any, int_workspace_buffer: Any
    ) -> None:
        """Does nothing: there are no workspaces."""

    def workspace_size(self, *arguments: Any, **options: Any) -> tuple[int, int]:
        """Bytes of both workspaces that a plan needs: none."""
        return 0, 0

    def end_forward(self) -> None:
        """Does nothing, as there."""

    def _check_frozen(self, sizes: Mapping[str, int]) -> None:
        """Refuses sizes that are part of a captured graph, by name, and not what they were.

        Raises:
          SpecError: names one.
        """
        for name, size in sizes.items() if self._use_cuda_graph else ():
            if (before := self._frozen.get(name, size)) != size:
                raise SpecError(f"{name} is {size}, that of a wrapper for graphs stays {before}")

    def _store_plan(self, problem: Problem, tokens: int, frozen: Mapping[str, int]) -> None:
        """Ends `plan`: so many rows of q, and the sizes that `_check_frozen` passed."""
        self._problem, self._tokens, self._frozen = problem, tokens, frozen

    def _planned(self, q: Any) -> Problem:
        """The problem that `plan` made.

        Raises:
          SpecError: `plan` was not called, or not for this q.
        """
        if self._problem is None:
            raise SpecError("plan has not been called: it says what run computes")
        self._problem.check(q)
        if q.shape[0] != self._tokens:
            raise SpecError(
                f"q has {q.shape[0]} rows, plan was told {self._tokens}: call plan with these sizes"
            )
        return self._problem

    def _score(self, q: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the planned scores by those of a call of `forward`.

        Args:
          options: the options of the call by name.

        Returns:
          The options of `run` among them.

        Raises:
          SpecError: one that has no meaning, or `plan` was not called for this q; nothing is
            changed.
        """
        scores = scores_of(options)
        self._problem = self._planned(q).scored(**scores)
        return {name: value for name, value in options.items() if name not in scores}


def check_as_planned(name: str, value: object, planned: object) -> None:
    """Refuses an argument of `run` that says something else than `plan` was told.

    Raises:
      SpecError: says what was planned.
    """
    if value is not None and as_int(value) != as_int(planned):
        raise SpecError(f"{name} is {shown(value, 40)}, plan was told {planned}")


def lengths_of(name: str, offsets: Any) -> Sequence[int]:
    """Lengths of sequences by offsets from 0 on.

    Raises:
      SpecError: they are none.
    """
    numbers = offsets.tolist()
    if not numbers or numbers[0] != 0:
        raise SpecError(f"{name} must begin with 0, got {numbers[:1]}")
    lengths = [y - x for x, y in itertools.pairwise(numbers)]
    for b, length in enumerate(lengths):
        if length < 0:
            raise SpecError(f"{name} must not decrease: sequence {b} has {length}")
    return lengths
