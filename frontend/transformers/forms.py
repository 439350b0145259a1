"""Mask functions of `transformers` in closed form, with predicates for the remainder.

The package builds mask functions of `(batch, head, query, key)` over absolute positions as
closures: `and_masks(sliding_window_overlay(4), causal_mask_function)`. A closure of the package is
known by its code, and its parameters are read from its cells. Whatever is not known stays a
predicate, which a kernel evaluates as it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

host: Any = importlib.import_module("transformers.masking_utils")

MaskFunction = Callable[[Any, Any, Any, Any], Any]

# code of the package's closures
_ALL = host.and_masks(host.causal_mask_function).__code__
_WINDOW = host.sliding_window_overlay(1).__code__
_BOTH_SIDES = host.sliding_window_bidirectional_overlay(1).__code__
_CHUNKS = host.chunked_overlay(1, None).__code__
_SEQUENCES = host.packed_sequence_mask_function(None).__code__
_RENUMBERED = host.remap_positions_for_packed_sequence(host.causal_mask_function, None).__code__


@dataclass(frozen=True)
class Form:
    """A query at position p sees keys p - left ... p + right of its chunk where `predicates` holds.

    Attributes:
      left, right: None for no limit.
      chunk: size of chunks of positions, from position 0; None for none.
      predicates: further mask functions, all of which must hold.
    """

    left: int | None = None
    right: int | None = None
    chunk: int | None = None
    predicates: tuple[MaskFunction, ...] = ()

    def narrowed(self, left: int | None, right: int | None) -> Form:
        """With these limits as well."""
        return replace(self, left=_least(self.left, left), right=_least(self.right, right))

    def with_predicate(self, function: MaskFunction) -> Form:
        """With a mask function as well."""
        return replace(self, predicates=(*self.predicates, function))


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def form_of(function: MaskFunction, *, is_padded: bool) -> Form:
    """The closed form of a mask function.

    Args:
      is_padded: whether there may be padding, from whose end chunks are counted.
    """
    form = Form()
    conjuncts = _conjuncts(function)
    codes = [_code(conjunct) for conjunct in conjuncts]
    for conjunct, code in zip(conjuncts, codes, strict=True):
        if conjunct is host.bidirectional_mask_function:
            continue
        if conjunct is host.causal_mask_function:
            form = form.narrowed(None, 0)
        elif code is _WINDOW:
            form = form.narrowed(_cells(conjunct)["sliding_window"] - 1, None)
        elif code is _BOTH_SIDES:
            form = form.narrowed(*[_cells(conjunct)["sliding_window"]] * 2)
        elif code is _CHUNKS and not is_padded and form.chunk is None:
            form = replace(form, chunk=_cells(conjunct)["chunk_size"])
        elif code is _RENUMBERED and _SEQUENCES in codes:
            form = _within_sequences(form, conjunct)
        else:
            form = form.with_predicate(conjunct)
    return form


def tells_sequences(function: MaskFunction) -> bool:
    """Whether a mask function only tells packed sequences apart."""
    return _code(function) is _SEQUENCES


def form_in_graph(function: MaskFunction, window: int | None) -> Form:
    """The closed form under PyTorch's compiler, which hides the cells of closures.

    Args:
      window: all visible keys are among the last `window` ones, if the function is one of several
        that must all hold; None if nothing is known.
    """
    if function is host.causal_mask_function:
        return Form(right=0)
    if function is host.bidirectional_mask_function:
        return Form()
    form = Form(predicates=(function,))
    if window is not None and _code(function) is _ALL:
        return form.narrowed(window - 1, 0)
    return form


def _within_sequences(form: Form, renumbered: MaskFunction) -> Form:
    """With a mask function of positions within each packed sequence, where only one's keys are
    seen.

    There distances are those of absolute positions; chunks are not.
    """
    inner = form_of(_cells(renumbered)["mask_function"], is_padded=True)
    form = form.narrowed(inner.left, inner.right)
    return form.with_predicate(renumbered) if inner.predicates else form


def _conjuncts(function: MaskFunction) -> list[MaskFunction]:
    """The functions that must all hold."""
    if _code(function) is not _ALL:
        return [function]
    return [
        conjunct for inner in _cells(function)["mask_functions"] for conjunct in _conjuncts(inner)
    ]


def _code(function: MaskFunction) -> object:
    return getattr(function, "__code__", None)


def _cells(function: Any) -> dict[str, Any]:
    """The captured values of a closure by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    return {name: cell.cell_contents for name, cell in cells}
