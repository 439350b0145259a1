"""Common score modifiers and mask predicates, as functions for `score_mod=` and `mask_mod=`.

Each constructor checks its arguments and returns a `functools.partial` of a function of this
module, which is traced like a user's and, unlike a closure, can be copied and pickled with its
arrays. Queries and keys are numbered from 0; `offset` is added to a query's number to give its key
position: `sk - sq` with a cached prefix. A mask in closed form (`masks`) skips key tiles, while a
predicate tests every score. The extents of captured arrays are checked when a call gives the sizes
(`check_extents`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.scalars import as_int
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.trace import MaskMod, ScoreMod, clip, expm1, tanh, where

FLOATS = ("f32", "bf16", "f16")
INTEGERS = ("i32", "i64")
CAPS = (2.0**-100, 2.0**100)  # allowed softcaps: cap and 1 / cap are far from the limits of f32
MAX_TANH_CAP = 1024.0  # up to this cap the error of `tanh`, times the cap, stays below 2^-13
TANH_IS_X = 2.0**-12  # fraction of a cap up to which tanh(x) is x within 2^-25

Shape = tuple[int, ...]


class Extents(NamedTuple):
    """The extents that a captured array must have.

    Attributes:
      name: name of the argument that the array was passed as.
      shape: the array's shape.
      axes: for each extent `batch`, `heads`, `sq`, `sk`, or "" for any number.
      or_one: whether extents may also be 1.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    or_one: bool = False


def check_extents(mod: object, sizes: Mapping[str, int], *, longer: Collection[str] = ()) -> None:
    """Checks the arrays that a function of this module captures against the sizes of a call.

    Args:
      mod: a score_mod or mask_mod, or None; other functions are ignored.
      sizes: `batch`, `heads`, `sq` and `sk`.
      longer: those that an array may exceed: coordinates are those of a longer problem.

    Raises:
      SpecError: an array that does not fit.
    """
    for expected in extents_of(mod):
        for extent, axis in zip(expected.shape, expected.axes, strict=True):
            is_longer = axis in longer and extent > sizes[axis]
            fits = not axis or extent == sizes[axis] or (expected.or_one and extent == 1)
            if not (fits or is_longer):
                axes = ", ".join(axis or "any" for axis in expected.axes)
                raise SpecError(
                    f"{expected.name} has shape {list(expected.shape)}, it must be [{axes}] with "
                    f"{axis} {'>' if axis in longer else ''}= {sizes[axis]}"
                )


def extents_of(mod: object) -> list[Extents]:
    """The extents that the arrays of a function of this module must have;
    none of other functions.
    """
    if not isinstance(mod, functools.partial):
        return []
    partial = cast("functools.partial[Any]", mod)
    inner = partial.keywords.get("mods", ()) if partial.func in (*_JOINS.values(), _none_of) else ()
    result = [extents for one in inner for extents in extents_of(one)]
    for keyword, array in _ARRAYS.get(partial.func, {}).items():
        if as_int(partial.keywords[keyword]) is None:  # else one number for all
            result.append(array.extents(partial.keywords[keyword]))
    return result


def _flat(how: str, mods: Sequence[Any]) -> tuple[Any, ...]:
    """The functions, with those that are combinations of the same kind replaced by their
    operands.
    """
    result: list[Any] = []
    for mod in mods:
        result += mod.keywords["mods"] if getattr(mod, "func", None) is _JOINS[how] else [mod]
    return tuple(result)


def softcap(cap: float) -> ScoreMod:
    """cap x tanh(score / cap): scores stay within -cap ... cap.

    Raises:
      SpecError: a cap that is no number within `CAPS`.
    """
    if not _is_number(cap) or not CAPS[0] <= cap <= CAPS[1]:
        raise SpecError(
            f"cap of a softcap must be a number from {CAPS[0]:.4g} to {CAPS[1]:.4g}, got "
            f"{cap!r:.40}"
        )

    return functools.partial(_softcapped if cap <= MAX_TANH_CAP else _hardly_capped, cap=float(cap))


def _softcapped(score: Any, b: Any, h: Any, q: Any, k: Any, *, cap: float) -> Any:
    return tanh(score / cap) * cap


def _hardly_capped(score: Any, b: Any, h: Any, q: Any, k: Any, *, cap: float) -> Any:
    """A softcap with a large cap, which would multiply the 2^-23 error of `tanh`."""
    fraction = score * (1.0 / cap)
    grown = expm1(fraction * 2.0)
    return where(abs(fraction) < TANH_IS_X, score, grown / (grown + 2.0) * cap)


def alibi_slopes(heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Slopes of ALiBi, [heads]: 2^(-8 (h + 1) / heads) for a power of two.

    For other counts, with F the largest power of two below: F's slopes, then every other slope of
    2 F, from the first.

    Raises:
      SpecError: not at least one head.
    """
    if as_int(heads) is None or heads < 1:
        raise SpecError(f"heads of ALiBi must be an integer of at least 1, got {heads!r:.40}")
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (h + 1) / whole) for h in range(whole)]
    slopes += [2.0 ** (-8.0 * (2 * h + 1) / (2 * whole)) for h in range(heads - whole)]
    return np.array(slopes, np.float32)


def alibi(slopes: Any, *, offset: Any = 0) -> ScoreMod:
    """score - slope[h] x |q + offset - k|.

    Args:
      slopes: the number of query heads, for `alibi_slopes`, or slopes [heads] or [batch, heads].
      offset: a number, or [batch] i32 or i64, for sequences of unequal lengths.

    Raises:
      SpecError: slopes or offsets of another rank or dtype.
    """
    heads = as_int(slopes)
    slopes = slopes if heads is None else alibi_slopes(heads)
    shape = _check("slopes", slopes, (1, 2), FLOATS).shape
    is_array = not isinstance(offset, int)
    if is_array:
        _check("offset", offset, (1,), INTEGERS)
    return functools.partial(
        _biased_by_slope,
        slopes=slopes,
        offset=offset,
        by_batch=len(shape) == 2,
        is_array=is_array,
    )


def _biased_by_slope(
    score: Any, b: Any, h: Any, q: Any, k: Any,
    *, slopes: Any, offset: Any, by_batch: bool, is_array: bool,
) -> Any:  # fmt: skip
    slope = slopes[b, h] if by_batch else slopes[h]
    return score - slope * abs(q + (offset[b] if is_array else offset) - k)


def relative_bias(table: Any, *, zero: int | None = None, offset: int = 0) -> ScoreMod:
    """score + table[h, k - q - offset + zero], with the index clamped to the table.

    Args:
      table: [heads, distances].
      zero: index of the entry for distance 0; by default the middle one, distances // 2.

    Raises:
      SpecError: a table of another rank or dtype, or an entry that it does not have.
    """
    shape = _check("table", table, (2,), FLOATS).shape
    distances = shape[1]
    middle = distances // 2 if zero is None else zero
    if not 0 <= middle < distances:
        raise SpecError(f"zero must be an entry of the table's {distances}, got {zero!r:.40}")
    return functools.partial(
        _biased_by_distance,
        table=table,
        shift=middle - offset,
        distances=distances,
    )


def _biased_by_distance(
    score: Any, b: Any, h: Any, q: Any, k: Any, *, table: Any, shift: int, distances: int
) -> Any:
    return score + table[h, clip(k - q + shift, 0, distances - 1)]


def relative_logits(logits: Any, *, offset: int = 0) -> ScoreMod:
    """score + logits[b, q, h, q + offset - k] for distances from 0 to below the last extent.

    Args:
      logits: [batch, sq, heads, distances], computed from the queries; scores of keys after the
        query, or further back than `distances`, stay as they are.

    Raises:
      SpecError: logits of another rank or dtype.
    """
    shape = _check("logits", logits, (4,), FLOATS).shape
    return functools.partial(_biased_by_logits, logits=logits, offset=offset, distances=shape[3])


def _biased_by_logits(
    score: Any, b: Any, h: Any, q: Any, k: Any, *, logits: Any, offset: int, distances: int
) -> Any:
    distance = q + offset - k
    in_range = (distance >= 0) & (distance < distances)
    return score + where(in_range, logits[b, q, h, clip(distance, 0, distances - 1)], 0.0)


def bias(tensor: Any) -> ScoreMod:
    """score + the tensor's element at its coordinates; an extent of 1 serves all of a coordinate.

    Args:
      tensor: [q, k], [batch, q, k] or [batch, heads, q, k]; -inf hides the score.

    Raises:
      SpecError: a tensor of another rank or dtype.
    """
    shape = _check("bias", tensor, (2, 3, 4), FLOATS).shape
    return functools.partial(_biased, tensor=tensor, shape=shape)


def _biased(score: Any, b: Any, h: Any, q: Any, k: Any, *, tensor: Any, shape: Shape) -> Any:
    return score + tensor[_at(shape, b, h, q, k)]


def visible_where(tensor: Any) -> MaskMod:
    """A score is visible where the tensor is True.

    Args:
      tensor: of bool, with a shape as in `bias`.

    Raises:
      SpecError: a tensor of another rank or dtype.
    """
    shape = _check("mask", tensor, (2, 3, 4), ("bool",)).shape
    return functools.partial(_visible, tensor=tensor, shape=shape)


def _visible(b: Any, h: Any, q: Any, k: Any, *, tensor: Any, shape: Shape) -> Any:
    return tensor[_at(shape, b, h, q, k)]


def document(ids_q: Any, ids_k: Any = None) -> MaskMod:
    """Queries see the keys of their own document.

    Args:
      ids_q: [batch, sq] or [sq] of integers.
      ids_k: ids of the keys; by default those of the queries.

    Raises:
      SpecError: ids of another rank or dtype.
    """
    keys = ids_q if ids_k is None else ids_k
    shape_q = _check("ids_q", ids_q, (1, 2), INTEGERS).shape
    shape_k = _check("ids_k", keys, (1, 2), INTEGERS).shape
    return functools.partial(
        _same_document,
        ids_q=ids_q,
        keys=keys,
        by_batch=(len(shape_q) == 2, len(shape_k) == 2),
    )


def _same_document(
    b: Any, h: Any, q: Any, k: Any, *, ids_q: Any, keys: Any, by_batch: tuple[bool, bool]
) -> Any:
    of_query = ids_q[b, q] if by_batch[0] else ids_q[q]
    return of_query == (keys[b, k] if by_batch[1] else keys[k])


def key_padding(lengths: Any) -> MaskMod:
    """Keys from lengths[b] on are padding, which no query sees.

    Args:
      lengths: [batch] of integers.

    Raises:
      SpecError: lengths of another rank or dtype.
    """
    _check("lengths", lengths, (1,), INTEGERS)
    return functools.partial(_valid, lengths=lengths)


def _valid(b: Any, h: Any, q: Any, k: Any, *, lengths: Any) -> Any:
    return k < lengths[b]


def tree(mask: Any, lengths: Any, *, counts_new: bool = True) -> MaskMod:
    """Queries see all cached keys, and those of the new tokens for which the mask is True.

    The new tokens are the last keys of a sequence, one for each query, as in speculative decoding,
    where a query sees the drafts that lead to its own. New token j of sequence b, which query i
    sees where mask[i, j], is the key at lengths[b] - sq + j.

    Args:
      mask: of bool, [sq, sq] or [batch, sq, sq]: queries by new tokens.
      lengths: [batch] of integers, number of keys of each sequence, like a cache's `seqused`; or
        one integer for all.
      counts_new: whether the lengths include the new tokens; otherwise token j is the key at
        lengths[b] + j, and sequences may have fewer queries than `sq`.

    Raises:
      SpecError: a mask or lengths of another rank or dtype, a mask that is not square.
    """
    shape = _check("mask", mask, (2, 3), ("bool",)).shape
    if shape[-1] != shape[-2]:
        raise SpecError(f"mask must be [sq, sq] or [batch, sq, sq], got shape {list(shape)}")
    one = as_int(lengths)
    if one is None:
        _check("lengths", lengths, (1,), INTEGERS)
    return functools.partial(
        _in_tree,
        mask=mask,
        lengths=lengths if one is None else one,
        by_batch=(len(shape) == 3, one is None),
        count=shape[-1],
        counts_new=counts_new,
    )


def _in_tree(
    b: Any, h: Any, q: Any, k: Any,
    *, mask: Any, lengths: Any, by_batch: tuple[bool, bool], count: int, counts_new: bool,
) -> Any:  # fmt: skip
    length = lengths[b] if by_batch[1] else lengths
    token = k - (length - count if counts_new else length)
    inside = clip(token, 0, count - 1)
    return (token < 0) | (mask[b, q, inside] if by_batch[0] else mask[q, inside])


def causal_from_top(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Query i sees keys 0 ... i, whatever the lengths; `masks.causal` aligns the last ones."""
    return q >= k


def and_masks(*mods: MaskMod) -> MaskMod:
    """A score is visible if it is for all of the predicates.

    Raises:
      SpecError: none given.
    """
    mods = _flat("and", mods)
    _several("and_masks", mods)
    return functools.partial(_all_of, mods=mods)


def _all_of(b: Any, h: Any, q: Any, k: Any, *, mods: tuple[MaskMod, ...]) -> Any:
    result = mods[0](b, h, q, k)
    for mod in mods[1:]:
        result = result & mod(b, h, q, k)
    return result


def or_masks(*mods: MaskMod) -> MaskMod:
    """A score is visible if it is for any of the predicates.

    Raises:
      SpecError: none given.
    """
    mods = _flat("or", mods)
    _several("or_masks", mods)
    return functools.partial(_any_of, mods=mods)


def _any_of(b: Any, h: Any, q: Any, k: Any, *, mods: tuple[MaskMod, ...]) -> Any:
    result = mods[0](b, h, q, k)
    for mod in mods[1:]:
        result = result | mod(b, h, q, k)
    return result


def not_mask(mod: MaskMod) -> MaskMod:
    """A score is visible if it is not for the predicate."""
    return functools.partial(_none_of, mods=(mod,))


def _none_of(b: Any, h: Any, q: Any, k: Any, *, mods: tuple[MaskMod]) -> Any:
    return ~mods[0](b, h, q, k)


def compose(*mods: ScoreMod) -> ScoreMod:
    """Applies modifiers one after the other, the first one first.

    Raises:
      SpecError: none given.
    """
    mods = _flat("compose", mods)
    _several("compose", mods)
    return functools.partial(_composed, mods=mods)


def _composed(score: Any, b: Any, h: Any, q: Any, k: Any, *, mods: tuple[ScoreMod, ...]) -> Any:
    for mod in mods:
        score = mod(score, b, h, q, k)
    return score


class _Array(NamedTuple):
    """An array that a function captures: its argument's name, and what its axes are.

    Attributes:
      axes: for the largest rank; one of a lower rank has the last of them.
      by_score: whether the axes are those of scores, of which 2 are those of a matrix and 3 have no
        heads.
    """

    name: str
    axes: tuple[str, ...]
    by_score: bool = False

    def extents(self, array: object) -> Extents:
        """The extents that the array must have."""
        shape = view(array, self.name, has_gradient=True).shape
        rank = len(shape)
        axes = _of_rank(self.axes, rank) if self.by_score else self.axes[-rank:]
        return Extents(self.name, shape, axes, or_one=self.by_score)


def _of_rank(values: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """The coordinates among batch, head, q and k for a tensor of this rank."""
    return (*values[: rank - 2], *values[2:])


def _at(shape: Shape, *coordinates: Any) -> tuple[Any, ...]:
    """The coordinates of a score's element in a tensor: 0 along extents of 1."""
    used = _of_rank(coordinates, len(shape))
    return tuple(0 if n == 1 else c for n, c in zip(shape, used, strict=True))


def _check(name: str, value: Any, ranks: Sequence[int], dtypes: Sequence[str]) -> TensorView:
    array = view(value, name, has_gradient=True)  # which the call computes, or refuses
    if len(array.shape) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise SpecError(f"{name} must have {allowed} dimensions, got shape {list(array.shape)}")
    if array.dtype not in dtypes:
        raise SpecError(f"{name} must be of {', '.join(dtypes)}, got {array.dtype}")
    return array


def _several(name: str, mods: Sequence[object]) -> None:
    if not mods:
        raise SpecError(f"{name} needs at least one function")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating) and not isinstance(value, bool)


_JOINS: dict[str, Callable[..., Any]] = {"and": _all_of, "or": _any_of, "compose": _composed}
_SCORES = ("batch", "heads", "sq", "sk")
_ARRAYS: dict[Callable[..., Any], dict[str, _Array]] = {  # of each function, by keyword
    _biased_by_slope: {
        "slopes": _Array("slopes", ("batch", "heads")),
        "offset": _Array("offset", ("batch",)),
    },
    _biased_by_distance: {"table": _Array("table", ("heads", ""))},
    _biased_by_logits: {"logits": _Array("logits", ("batch", "sq", "heads", ""))},
    _biased: {"tensor": _Array("bias", _SCORES, by_score=True)},
    _visible: {"tensor": _Array("mask", _SCORES, by_score=True)},
    _same_document: {
        "ids_q": _Array("ids_q", ("batch", "sq")),
        "keys": _Array("ids_k", ("batch", "sk")),
    },
    _valid: {"lengths": _Array("lengths", ("batch",))},
    _in_tree: {
        "mask": _Array("mask", ("batch", "sq", "sq")),
        "lengths": _Array("lengths", ("batch",)),
    },
}
