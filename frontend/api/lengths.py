"""Checks the arguments that give the lengths of sequences.

Kernels clamp every number from an index array to the tensor, so a wrong array gives wrong results
but never an access out of bounds. Arrays in host memory are checked here before every launch;
arrays on a GPU only if `ATTN_MLIR_CHECK_LENGTHS` is set, since that waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir import env
from attn_mlir.api.array_checks import checked_array
from attn_mlir.api.caches import Cached, check_cache_indices, longest_of, stored_lengths
from attn_mlir.arrays import as_i32, dense_on_host
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.runtime.call.tensors import TensorView, host_array, view
from attn_mlir.runtime.call.torch_tensors import size_met

Numbers = npt.NDArray[np.int32]
Contents = Mapping[str, Numbers | None]  # of index arrays by name; None: not readable


@dataclass(frozen=True)
class SequenceLengths:
    """The lengths of the sequences of one call.

    Attributes:
      kinds: which arrays give lengths; static, so part of the request.
      arrays: the index arrays by name, in the order of the call; those in host memory are dense.
      scalars: upper bounds of the lengths by name.
      sizes: `batch`, and the longest lengths of queries and keys, `sq` and `sk`.
      cache: how k and v are stored, if they are a cache; static as well.
      names: the caller's name of an argument, if it differs.
      key_lengths: the lengths of the sequences of keys; None if they are not readable.
    """

    kinds: Lengths
    arrays: Mapping[str, object]
    scalars: Mapping[str, int]
    sizes: Mapping[str, int]
    cache: Cache | None = None
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    key_lengths: Numbers | None = None

    def name(self, argument: str) -> str:
        """The caller's name of an argument."""
        return self.names.get(argument, argument)


@dataclass(frozen=True)
class _Operand:
    """The length arguments of queries, or of keys and values.

    Attributes:
      shape: of the tensor, which begins with batch and positions, or with the rows of all
        sequences.
      called: the caller's name of the tensor.
      batch_source: the argument whose extent is the batch, if there is one.
    """

    name: str
    shape: tuple[int, ...]
    called: str
    batch_source: str
    offsets: object | None
    longest: object | None
    lengths: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, eq=False, kw_only=True)
class SequenceArguments:
    """The arguments of a call that give lengths of tensors; `attention` says what they are."""

    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    seqused_q: Any = None
    seqused_k: Any = None

    def of_tensors(self) -> LengthArguments:
        """Those that a call without a cache has."""
        names = [x.name for x in fields(SequenceArguments)]
        return LengthArguments(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, eq=False, kw_only=True)
class LengthArguments(SequenceArguments):
    """The arguments of a call that give lengths, also of a cache."""

    cache_seqlens: Any = None
    cache_counts_new: bool = False

    def of_queries(self) -> LengthArguments:
        """The arguments about queries alone."""
        names = [x.name for x in fields(LengthArguments) if x.name.endswith("_q")]
        return LengthArguments(**{name: getattr(self, name) for name in names})


def sequence_lengths(
    operands: Mapping[str, TensorView],
    arguments: LengthArguments | None = None,
    *,
    cache: Cached | None = None,
    called: Mapping[str, str] = MappingProxyType({}),
) -> SequenceLengths:
    """The lengths that these arguments give.

    Args:
      operands: q, k and v.
      arguments: None where the operands alone give them, or a cache does.
      cache: the cache that k and v are from, which gives the lengths of keys; None without one.
      called: the caller's names of q and k, if they differ.

    Raises:
      SpecError: contradictory arguments, arrays of a wrong kind or, if readable, wrong contents.
    """
    arguments = arguments or LengthArguments()
    seqused_k, cache_seqlens = arguments.seqused_k, arguments.cache_seqlens
    if cache_seqlens is not None and seqused_k is not None:
        raise SpecError("seqused_k and cache_seqlens both tell how many keys count: pass one")
    if flag("cache_counts_new", arguments.cache_counts_new) and cache_seqlens is None:
        raise SpecError("cache_counts_new says what cache_seqlens counts: pass cache_seqlens")
    if arguments.cache_counts_new:
        seqused_k, cache_seqlens = cache_seqlens, None
    used_q = {"seqused_q": arguments.seqused_q} if arguments.seqused_q is not None else {}
    used_k: dict[str, object] = {"seqused_k": seqused_k, "cache_seqlens": cache_seqlens}
    used_k = {name: value for name, value in used_k.items() if value is not None}
    names: Mapping[str, str] = called
    shape, batch_source = operands["k"].shape, names.get("k", "k")
    if cache is not None:
        used_k, names = dict(cache.lengths), {**called, **cache.names}
        shape, batch_source = (cache.batch, cache.max_positions), cache.batch_source
    q, k = names.get("q", "q"), names.get("k", "k")
    queries = _Operand(
        "q", operands["q"].shape, q, q, arguments.cu_seqlens_q, arguments.max_seqlen_q, used_q
    )
    keys = _Operand(
        "k", shape, k, batch_source, arguments.cu_seqlens_k, arguments.max_seqlen_k, used_k
    )
    kinds = Lengths(
        ragged_q=arguments.cu_seqlens_q is not None,
        ragged_k=arguments.cu_seqlens_k is not None,
        used_q=arguments.seqused_q is not None,
        used_k="seqused_k" in used_k,
        cached_k="cache_seqlens" in used_k,
    )
    check_ranks(operands, kinds, names)
    offsets = {"cu_seqlens_q": arguments.cu_seqlens_q, "cu_seqlens_k": arguments.cu_seqlens_k}
    values = {**offsets, **used_q, **used_k}
    caller_names = {name: names.get(name, name) for name in kinds.tensors}
    i32_arrays = {
        n: as_i32(values[n], called, all_count=True) for n, called in caller_names.items()
    }
    arrays = {
        name: dense_on_host(i32_arrays[name], called) for name, called in caller_names.items()
    }
    batch = _batch((queries, keys), arrays, names)
    index_arrays = arrays if cache is None else {**cache.arrays, **arrays}
    contents = contents_of(index_arrays, names)
    longest = {operand.name: _longest(operand, contents) for operand in (queries, keys)}
    lengths_k: Numbers | None = None
    if operands["q"].has_memory:
        lengths_q = _check_contents(queries, contents, _capacities(queries, contents), names)
        capacity = _capacities(keys, contents) if cache is None else stored_lengths(cache, contents)
        lengths_k = _check_contents(keys, contents, capacity, names, added=lengths_q)
        if cache is not None:
            check_cache_indices(cache, contents, lengths_k)
        for operand, lengths in ((queries, lengths_q), (keys, lengths_k)):
            _check_bound(operand, lengths, contents)
    if cache is not None:
        longest["k"] = longest_of(cache, contents)
    scalars = {name: longest[name[-1]] for name in kinds.scalars}
    sizes = {"batch": batch, "sq": longest["q"], "sk": longest["k"]}
    if not operands["q"].has_memory:  # kernels are chosen by them, results do not depend on that
        sizes = {name: size_met(size) for name, size in sizes.items()}
    kind = None if cache is None else cache.kind
    return SequenceLengths(kinds, index_arrays, scalars, sizes, kind, names, lengths_k)


def check_ranks(
    operands: Mapping[str, TensorView],
    kinds: Lengths,
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuses operands whose ranks contradict the lengths.

    Args:
      names: the caller's name of an operand, if it differs.

    Raises:
      SpecError: says the shape that was got, and what is needed.
    """
    for name, is_ragged in (("q", kinds.ragged_q), ("k", kinds.ragged_k), ("v", kinds.ragged_k)):
        shape, called = list(operands[name].shape), names.get(name, name)
        argument = f"cu_seqlens_{'q' if name == 'q' else 'k'}"
        if is_ragged and len(shape) != 3:
            raise SpecError(
                f"{called} must be [total, heads, head_dim] with {argument}, got shape {shape}"
            )
        if not is_ragged and len(shape) != 4:
            hint = f" (pass {argument}?)" if len(shape) == 3 else ""
            raise SpecError(
                f"{called} must be [batch, sequence, heads, head_dim], got shape {shape}{hint}"
            )


def _batch(
    operands: Sequence[_Operand], arrays: Mapping[str, object], names: Mapping[str, str]
) -> int:
    """The batch, on which tensors and arrays have to agree."""
    batches: dict[str, int] = {}
    for operand in operands:
        if operand.offsets is None:
            batches[operand.batch_source] = operand.shape[0]
    for argument, value in arrays.items():
        name = names.get(argument, argument)
        ends = 1 if name.startswith("cu_seqlens") else 0
        array = checked_array(name, value, ("batch + 1" if ends else "batch",), "i32")
        if array.shape[0] < ends:
            raise SpecError(f"{name} must have batch + 1 entries, got none")
        batches[name] = array.shape[0] - ends
    first, batch = next(iter(batches.items()))
    for name, size in batches.items():
        if size != batch:
            raise SpecError(f"{name} has batch {size}, {first} has {batch}")
    return batch


def contents_of(
    arrays: Mapping[str, object], names: Mapping[str, str]
) -> dict[str, Numbers | None]:
    """The contents of index arrays by name; None for those on a GPU that are not read.

    Args:
      names: the caller's name of an array, if it differs.
    """
    return {name: _contents(value, names.get(name, name)) for name, value in arrays.items()}


def check_list_lengths(name: str, lengths: object, topk: int) -> None:
    """Refuses lengths outside 0 to `topk`, as far as the host can read them.

    Raises:
      SpecError: names the entry.
    """
    entries = _contents(lengths, name)
    if entries is None:
        return
    wrong = np.argwhere((entries < 0) | (entries > topk))
    if len(wrong):
        position = tuple(int(i) for i in wrong[0])
        raise SpecError(
            f"{name}[{', '.join(map(str, position))}] is {entries[position]}: lists have {topk} "
            f"entries, so 0 to {topk} of them can count"
        )


def _contents(value: object, name: str) -> Numbers | None:
    """The contents of an index array; None for a fake, or one on a GPU that is not read."""
    tensor = view(value, name)
    if not tensor.has_memory:
        return None
    if tensor.device != "cpu":
        if not env.settings().check_lengths:
            return None
        copy = getattr(value, "cpu", None) or getattr(value, "get", None)  # torch, cupy
        if copy is None:
            raise SpecError(f"{name} is a {type(value).__qualname__}: cannot be read for a check")
        return _contents(copy(), name)
    return np.array(host_array(tensor))


def _longest(operand: _Operand, contents: Contents) -> int:
    """An upper bound of one side's lengths, known at launch."""
    name = f"max_seqlen_{operand.name}"
    if operand.offsets is None:
        if operand.longest is not None:
            raise SpecError(f"{name} is for sequences that cu_seqlens_{operand.name} tells")
        return operand.shape[1]
    if operand.longest is not None:
        return integer(name, operand.longest)
    offsets = contents[f"cu_seqlens_{operand.name}"]
    if offsets is not None:
        return int(np.diff(offsets.astype(np.int64)).max(initial=0))
    if operand.name == "k" or view(operand.offsets, f"cu_seqlens_{operand.name}").device == "cpu":
        return operand.shape[0]
    raise SpecError(f"{name} must be given where cu_seqlens_q is on a GPU: the grid depends on it")


def _capacities(operand: _Operand, contents: Contents) -> Numbers | None:
    """The positions that the tensor has for each sequence; None if not readable."""
    if operand.offsets is None:
        return np.full(operand.shape[0], operand.shape[1], np.int32)
    name = f"cu_seqlens_{operand.name}"
    offsets = contents[name]
    if offsets is None:
        return None
    return _check_offsets(operand, offsets)


def _check_contents(
    operand: _Operand,
    contents: Contents,
    capacity: Numbers | None,
    names: Mapping[str, str],
    *,
    added: Numbers | None = None,
) -> Numbers | None:
    """Refuses wrong numbers; returns the lengths of one side, or None if they are not readable.

    Args:
      capacity: the largest possible length of each sequence.
      names: what the caller calls an argument.
      added: lengths of the queries, which come on top of `cache_seqlens`.
    """
    lengths = capacity
    for label in operand.lengths:
        used = contents[label]
        if used is None or lengths is None or (label == "cache_seqlens" and added is None):
            lengths = None
            continue
        total = used.astype(np.int64)
        if label == "cache_seqlens" and added is not None:
            total = total + added
        for number, (got, limit) in enumerate(zip(total.tolist(), lengths.tolist(), strict=True)):
            if used[number] < 0 or got > limit:
                sum_of = f", {got} with the new tokens" if label == "cache_seqlens" else ""
                least = ", and a length is 0 at least" if used[number] < 0 else ""
                raise SpecError(
                    f"{names.get(label, label)}[{number}] is {used[number]}{sum_of}: sequence "
                    f"{number} of {operand.called} has {limit}{least}"
                )
        lengths = total.astype(np.int32)
    return lengths


def _check_bound(operand: _Operand, lengths: Numbers | None, contents: Contents) -> None:
    """Refuses an upper bound that a length exceeds; unused positions do not count.

    Raises:
      SpecError: names the sequence and its length.
    """
    if operand.longest is None or lengths is None:
        return
    bound = _longest(operand, contents)
    for number, length in enumerate(lengths.tolist()):
        if length > bound:
            raise SpecError(
                f"max_seqlen_{operand.name} is {bound}, but sequence {number} of {operand.called} "
                f"has {length}"
            )


def _check_offsets(operand: _Operand, offsets: Numbers) -> Numbers:
    """Refuses offsets that decrease or leave the tensor; returns the lengths between them."""
    name, total = f"cu_seqlens_{operand.name}", operand.shape[0]
    if offsets[0] < 0 or offsets[-1] > total:
        raise SpecError(
            f"{name} goes from {offsets[0]} to {offsets[-1]}: {operand.called} has rows 0 to "
            f"{total}"
        )
    lengths = np.diff(offsets.astype(np.int64))
    for number, length in enumerate(lengths.tolist()):
        if length < 0:
            raise SpecError(
                f"{name} must not decrease: entry {number} is {offsets[number]}, "
                f"entry {number + 1} is {offsets[number + 1]}"
            )
    return lengths.astype(np.int32)


DENSE_LENGTHS = SequenceLengths(DENSE, {}, {}, {})
