"""Compressed rows of pages that `plan` is given: kept where `run` finds them, and looked at on the host."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir.caches import PagedKV
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.options import indices, tensor
from attn_mlir.flashinfer.planned import Factors, Problem

torch: Any = importlib.import_module("torch")

BOTH = 2  # pools of a pair


@dataclass
class Buffers:
    """Index tensors of a wrapper: a graph that was captured reads what `plan` put there last.

    Attributes:
      device: where they are.
      given: the caller's, by name; None where graphs are not captured, and `plan` keeps what it gets.
      kept: what `run` reads.
    """

    device: Any
    given: Mapping[str, Any] | None
    kept: dict[str, Any]

    @staticmethod
    def of(workspace: Any, use_cuda_graph: bool, given: Mapping[str, Any]) -> Buffers:
        """Those of a wrapper.

        Args:
          workspace: says on which device calls will be.

        Raises:
          SpecError: no workspace, or a buffer is missing where graphs are captured.
        """
        device = tensor(workspace, "float_workspace_buffer", 1).device
        if not use_cuda_graph:
            return Buffers(device, None, {})
        for name, buffer in given.items():
            tensor(buffer, name, 1, "i32")
        return Buffers(device, dict(given), {})

    def keep(self, name: str, value: Any, *, whole: bool = False) -> None:
        """Puts an index tensor where `run` finds it.

        Args:
          name: of the buffer.
          whole: whether its length is part of a graph; else what is behind it is not read.

        Raises:
          SpecError: it does not fit the buffer.
        """
        if self.given is None:
            self.kept[name] = value.to(self.device)
            return
        buffer, count = self.given[name], value.shape[0]
        if count > buffer.shape[0] or (whole and count != buffer.shape[0]):
            raise SpecError(
                f"{name} has {buffer.shape[0]} entries, plan was given {count}: the batch of a "
                "wrapper for graphs stays what it is"
            )
        buffer[:count].copy_(value)
        self.kept[name] = buffer


def check_rows(
    names: tuple[str, str, str], indptr: Any, entries: Any, last: Any, page_size: int
) -> list[int]:
    """Lengths of sequences in compressed rows of pages, which are refused where they are none.

    Args:
      names: of the three arguments.
      indptr, entries, last: on any device.

    Raises:
      SpecError: names the argument and the entry.
    """
    offsets, filled = indptr.tolist(), last.tolist()
    batch = len(offsets) - 1
    if batch < 0 or len(filled) != batch:
        raise SpecError(
            f"{names[2]} has {len(filled)} entries, {names[0]} has {max(batch, 0)} sequences"
        )
    if offsets[0] != 0 or offsets[-1] > entries.shape[0]:
        raise SpecError(
            f"{names[0]} goes from {offsets[0]} to {offsets[-1]}: {names[1]} has entries 0 to "
            f"{entries.shape[0]}"
        )
    lengths: list[int] = []
    for b, count in enumerate(y - x for x, y in itertools.pairwise(offsets)):
        if count < 0:
            raise SpecError(f"{names[0]} must not decrease: sequence {b} has {count} pages")
        if count and not 1 <= filled[b] <= page_size:
            raise SpecError(f"{names[2]}[{b}] is {filled[b]}: pages have {page_size} positions")
        lengths.append((count - 1) * page_size + filled[b] if count else 0)
    return lengths


def cache_of(
    problem: Problem,
    buffers: Mapping[str, Any],
    names: tuple[str, str, str],
    paged_kv_cache: Any,
    layout: str,
    page_size: int,
    factors: Factors,
) -> PagedKV:
    """The cache of a call.

    Args:
      buffers: index tensors by name; names: of offsets, entries and last pages among them.
      paged_kv_cache: both pools, or K and V in one.

    Raises:
      SpecError: pools that were not planned for.
    """
    v: Any = None
    if isinstance(paged_kv_cache, torch.Tensor):
        k = tensor(paged_kv_cache, "paged_kv_cache", 5)
    else:
        pair = cast("Sequence[Any]", paged_kv_cache)
        if not isinstance(paged_kv_cache, tuple | list) or len(pair) != BOTH:
            got = shown(cast(object, paged_kv_cache), 40)
            raise SpecError(f"paged_kv_cache must be a tensor or a pair of them, got {got}")
        k, v = (tensor(pool, "paged_kv_cache", 4) for pool in pair)
    heads, page = (k.shape[-2], k.shape[-3]) if layout == "NHD" else (k.shape[-3], k.shape[-2])
    problem.check_keys("paged_kv_cache", k, heads)
    if page != page_size:
        raise SpecError(f"paged_kv_cache has pages of {page}, plan was told {page_size}")
    offsets, entries, last = (buffers[name] for name in names)
    return PagedKV(
        k,
        v,
        layout=layout,
        indptr=offsets,
        indices=entries,
        last_page_len=last,
        k_scale=factors.k,
        v_scale=factors.v,
    )


def compressed(names: tuple[str, str, str], *given: Any) -> tuple[Any, Any, Any]:
    """The three index tensors in i32.

    Raises:
      SpecError: names one that is none.
    """
    offsets, entries, last = (indices(x, n) for x, n in zip(given, names, strict=True))
    return offsets, entries, last
