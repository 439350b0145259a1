"""Common score modifiers and mask predicates, as functions for `score_mod=` and `mask_mod=`.

Each constructor checks its arguments and returns an ordinary function, which is traced like a
user's. Queries and keys are numbered from 0; `offset` is added to a query's number to give its key
position: `sk - sq` with a cached prefix. A mask in closed form (`masks`) skips key tiles, while a
predicate tests every score. The extents of captured arrays are checked when a call gives the sizes
(`check_extents`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from attn_mlir.errors import SpecError
from attn_mlir.runtime.scalars import as_int
from attn_mlir.runtime.tensors import TensorView, view
from attn_mlir.trace import MaskMod, ScoreMod, clip, expm1, tanh, where

FLOATS = ("f32", "bf16", "f16")
INTEGERS = ("i32", "i64")
CAPS = (2.0**-100, 2.0**100)  # allowed softcaps: cap and 1 / cap are far from the limits of f32
MAX_TANH_CAP = 1024.0  # up to this cap the error of `tanh`, times the cap, stays below 2^-13
SMALL_PART = 2.0**-12  # fraction of a cap up to which tanh(x) is x within 2^-25

Mod = TypeVar("Mod", bound=Callable[..., Any])


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


def check_extents(mod: object, sizes: Mapping[str, int]) -> None:
    """Checks the arrays that a function of this module captures against the sizes of a call.

    Args:
      mod: a score_mod or mask_mod, or None; other functions are ignored.
      sizes: `batch`, `heads`, `sq` and `sk`.

    Raises:
      SpecError: an array that does not fit.
    """
    for wanted in cast("tuple[Extents, ...]", getattr(mod, "extents", ())):
        for extent, axis in zip(wanted.shape, wanted.axes, strict=True):
            fits = not axis or extent == sizes[axis] or (wanted.or_one and extent == 1)
            if not fits:
                axes = ", ".join(axis or "any" for axis in wanted.axes)
                raise SpecError(
                    f"{wanted.name} has shape {list(wanted.shape)}, it must be [{axes}] with "
                    f"{axis} = {sizes[axis]}"
                )


def _expecting(mod: Mod, *extents: Extents) -> Mod:
    """Attaches the extents that its arrays must have to a function, and returns it."""
    vars(mod)["extents"] = extents
    return mod


def _of_all(mods: Sequence[object]) -> tuple[Extents, ...]:
    return tuple(extents for mod in mods for extents in getattr(mod, "extents", ()))


def _joined(how: str, mod: Mod, parts: Sequence[object]) -> Mod:
    """Attaches the functions that it combines, and how, to a function, and returns it."""
    vars(mod)["joins"] = (how, tuple(parts))
    return mod


def _flat(how: str, mods: Sequence[Any]) -> tuple[Any, ...]:
    """The functions, with those that are combinations of the same kind replaced by their operands."""
    found: list[Any] = []
    for mod in mods:
        known_how, parts = getattr(mod, "joins", ("", ()))
        found += parts if known_how == how else [mod]
    return tuple(found)


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

    def softcapped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return tanh(score / float(cap)) * float(cap)

    def hardly_capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        """A softcap with a large cap, which would multiply the 2^-23 error of `tanh`."""
        part = score * (1.0 / float(cap))
        grown = expm1(part * 2.0)
        return where(abs(part) < SMALL_PART, score, grown / (grown + 2.0) * float(cap))

    return softcapped if cap <= MAX_TANH_CAP else hardly_capped


def alibi_slopes(heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Slopes of ALiBi, [heads]: 2^(-8 (h + 1) / heads) for a power of two.

    For other counts, with F the largest power of two below: F's slopes, then every other slope of
    2 F, from the first.

    Raises:
      SpecError: not at least one head.
    """
    if not isinstance(cast(object, heads), int) or heads < 1:
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
    table = alibi_slopes(slopes) if isinstance(slopes, int) else slopes
    shape = _check("slopes", table, (1, 2), FLOATS).shape
    wanted = [Extents("slopes", shape, ("batch", "heads")[-len(shape) :])]
    by_batch, is_told = len(shape) == 2, not isinstance(offset, int)
    if is_told:
        wanted.append(Extents("offset", _check("offset", offset, (1,), INTEGERS).shape, ("batch",)))

    def biased(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        slope = table[b, h] if by_batch else table[h]
        return score - slope * abs(q + (offset[b] if is_told else offset) - k)

    return _expecting(biased, *wanted)


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

    def biased(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + table[h, clip(k - q + (middle - offset), 0, distances - 1)]

    return _expecting(biased, Extents("table", shape, ("heads", "")))


def relative_logits(logits: Any, *, offset: int = 0) -> ScoreMod:
    """score + logits[b, q, h, q + offset - k] for distances from 0 to below the last extent.

    Args:
      logits: [batch, sq, heads, distances], computed from the queries; scores of keys after the
        query, or further back than `distances`, stay as they are.

    Raises:
      SpecError: logits of another rank or dtype.
    """
    shape = _check("logits", logits, (4,), FLOATS).shape
    distances = shape[3]

    def biased(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        distance = q + offset - k
        known = (distance >= 0) & (distance < distances)
        return score + where(known, logits[b, q, h, clip(distance, 0, distances - 1)], 0.0)

    return _expecting(biased, Extents("logits", shape, ("batch", "sq", "heads", "")))


def bias(tensor: Any) -> ScoreMod:
    """score + the tensor's element at its coordinates; an extent of 1 serves all of a coordinate.

    Args:
      tensor: [q, k], [batch, q, k] or [batch, heads, q, k]; -inf hides the score.

    Raises:
      SpecError: a tensor of another rank or dtype.
    """
    at, extents = _broadcast("bias", _check("bias", tensor, (2, 3, 4), FLOATS))

    def biased(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + tensor[at(b, h, q, k)]

    return _expecting(biased, extents)


def visible_where(tensor: Any) -> MaskMod:
    """A score is visible where the tensor is True.

    Args:
      tensor: of bool, with a shape as in `bias`.

    Raises:
      SpecError: a tensor of another rank or dtype.
    """
    at, extents = _broadcast("mask", _check("mask", tensor, (2, 3, 4), ("bool",)))

    def visible(b: Any, h: Any, q: Any, k: Any) -> Any:
        return tensor[at(b, h, q, k)]

    return _expecting(visible, extents)


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
    by_batch_q, by_batch_k = len(shape_q) == 2, len(shape_k) == 2

    def same_document(b: Any, h: Any, q: Any, k: Any) -> Any:
        of_query = ids_q[b, q] if by_batch_q else ids_q[q]
        return of_query == (keys[b, k] if by_batch_k else keys[k])

    return _expecting(
        same_document,
        Extents("ids_q", shape_q, ("batch", "sq")[-len(shape_q) :]),
        Extents("ids_k", shape_k, ("batch", "sk")[-len(shape_k) :]),
    )


def key_padding(lengths: Any) -> MaskMod:
    """Keys from lengths[b] on are padding, which no query sees.

    Args:
      lengths: [batch] of integers.

    Raises:
      SpecError: lengths of another rank or dtype.
    """
    shape = _check("lengths", lengths, (1,), INTEGERS).shape

    def valid(b: Any, h: Any, q: Any, k: Any) -> Any:
        return k < lengths[b]

    return _expecting(valid, Extents("lengths", shape, ("batch",)))


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
    count, by_batch = shape[-1], len(shape) == 3
    extents = [Extents("mask", shape, ("batch", "sq", "sq")[-len(shape) :])]
    one = as_int(lengths)
    if one is None:
        found = _check("lengths", lengths, (1,), INTEGERS).shape
        extents.append(Extents("lengths", found, ("batch",)))

    def visible(b: Any, h: Any, q: Any, k: Any) -> Any:
        length = lengths[b] if one is None else one
        token = k - (length - count if counts_new else length)
        inside = clip(token, 0, count - 1)
        return (token < 0) | (mask[b, q, inside] if by_batch else mask[q, inside])

    return _expecting(visible, *extents)


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

    def all_of(b: Any, h: Any, q: Any, k: Any) -> Any:
        result = mods[0](b, h, q, k)
        for mod in mods[1:]:
            result = result & mod(b, h, q, k)
        return result

    return _expecting(_joined("and", all_of, mods), *_of_all(mods))


def or_masks(*mods: MaskMod) -> MaskMod:
    """A score is visible if it is for any of the predicates.

    Raises:
      SpecError: none given.
    """
    mods = _flat("or", mods)
    _several("or_masks", mods)

    def any_of(b: Any, h: Any, q: Any, k: Any) -> Any:
        result = mods[0](b, h, q, k)
        for mod in mods[1:]:
            result = result | mod(b, h, q, k)
        return result

    return _expecting(_joined("or", any_of, mods), *_of_all(mods))


def not_mask(mod: MaskMod) -> MaskMod:
    """A score is visible if it is not for the predicate."""

    def none_of(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ~mod(b, h, q, k)

    return _expecting(none_of, *_of_all([mod]))


def compose(*mods: ScoreMod) -> ScoreMod:
    """Applies modifiers one after the other, the first one first.

    Raises:
      SpecError: none given.
    """
    mods = _flat("compose", mods)
    _several("compose", mods)

    def composed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        for mod in mods:
            score = mod(score, b, h, q, k)
        return score

    return _expecting(_joined("compose", composed, mods), *_of_all(mods))


def _broadcast(
    name: str, tensor: TensorView
) -> tuple[Callable[[Any, Any, Any, Any], tuple[Any, ...]], Extents]:
    """A function from a score's coordinates to the tensor's, 0 for extents of 1; and the extents."""
    shape = tensor.shape
    axes = {2: (2, 3), 3: (0, 2, 3), 4: (0, 1, 2, 3)}[len(shape)]
    names = ("batch", "heads", "sq", "sk")
    extents = Extents(name, shape, tuple(names[axis] for axis in axes), or_one=True)

    def at(*coordinates: Any) -> tuple[Any, ...]:
        used = [coordinates[axis] for axis in axes]
        return tuple(0 if n == 1 else c for n, c in zip(shape, used, strict=True))

    return at, extents


def _check(name: str, value: Any, ranks: Sequence[int], dtypes: Sequence[str]) -> TensorView:
    found = view(value, name)
    if len(found.shape) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise SpecError(f"{name} must have {allowed} dimensions, got shape {list(found.shape)}")
    if found.dtype not in dtypes:
        raise SpecError(f"{name} must be of {', '.join(dtypes)}, got {found.dtype}")
    return found


def _several(name: str, mods: Sequence[object]) -> None:
    if not mods:
        raise SpecError(f"{name} needs at least one function")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating) and not isinstance(value, bool)
