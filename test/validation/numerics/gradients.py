"""Gradients of attention on the emulator, against their formulas in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.compiling.backward.gradients import GradientsRequest, KvGradientsSpec, QGradientsSpec
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.programs.derivative import differentiated
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.masks import Mask
from attn_mlir.reference import attention_backward_f64, attention_f64
from attn_mlir.reference.mha import visible_keys
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.trace import Recorded
from attn_mlir.validation.numerics.mha_check import poisoned

TARGET = "sm_90a"
TARGETS = TARGET, "sm_100a"
NUMPY: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
LEAST = {"bf16": 2.0**-134, "f16": 2.0**-25}  # half of the least number above 0
EXACT = 2.0**-16  # of f32 products, sums, 2^x and the exponents of moderate scores

Array = NDArray[Any]


def gradients(
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    mask: Mask | None = None,
    dtype: str = "bf16",
    *,
    lengths: Lengths = DENSE,
    of: Literal["kv", "q"] = "kv",
    mods: Recorded | None = None,
) -> GradientsRequest:
    """A request for the gradients of keys and values, or for those of queries."""
    kind = KvGradientsSpec if of == "kv" else QGradientsSpec
    return kind(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        mask=mask or am.full(),
        dtype=dtype,
        lengths=lengths,
        modifier=None if mods is None else mods.program,
    )


@cache
def kernel(request: GradientsRequest, target: str = TARGET) -> am.Kernel:
    """The compiled kernel of a request."""
    return am.load(am.compile(request, target=target))


@dataclass(frozen=True)
class Sequence:
    """The operands of one sequence: q, o, do [sq, heads, ...], k, v [sk, kv_heads, ...], lse and
    dlse [heads, sq].
    """

    q: Array
    k: Array
    v: Array
    o: Array
    do: Array
    lse: Array
    dlse: Array

    @property
    def delta(self) -> Array:
        """[heads, sq]: as `attn.delta` computes it."""
        sums = (self.o.astype(np.float64) * self.do.astype(np.float64)).sum(2).T - self.dlse
        return np.where(np.isinf(self.lse), 0.0, sums).astype(np.float32)


class Expected(NamedTuple):
    """A gradient in float64, and how far a kernel's may be from it, element by element."""

    true: Array
    bound: Array


def draw(
    request: GradientsRequest,
    sq: int,
    sk: int,
    scale: float,
    seed: int,
    *,
    offset: float = 0.0,
    with_dlse: bool = True,
    mods: Recorded | None = None,
    sinks: Array | None = None,
    own_columns: int | None = None,
) -> Sequence:
    """Operands of a sequence, with the results of its attention.

    Args:
      offset: is added to all scores about, by a column that queries and keys have in common.
      with_dlse: whether the LSE has a gradient: infinite for rows that see no key.
      mods: the score modifier of the request, with the tensors that it reads.
      sinks: [heads], the logits of sinks.
      own_columns: of a row of keys; the others are those of the first head.
    """
    random = np.random.default_rng(seed)
    kind = NUMPY[request.dtype]
    q, k, v, do = (
        random.standard_normal((rows, heads, columns)).astype(kind)
        for rows, heads, columns in (
            (sq, request.heads, request.head_dim),
            (sk, request.kv_heads, request.head_dim),
            (sk, request.kv_heads, request.v_head_dim),
            (sq, request.heads, request.v_head_dim),
        )
    )
    if offset:
        q[..., 0], k[..., 0] = offset / scale, 1.0
    k[..., own_columns:] = k[:, :1, own_columns:] if own_columns else k[..., own_columns:]
    options: dict[str, Any] = {"mask": request.mask, "scale": scale, "score_mod": mods}
    options["sinks"] = sinks
    made = attention_f64(q[None], k[None], v[None], **options)
    lse = made.lse[0].astype(np.float32)
    dlse: Array = random.standard_normal(lse.shape, np.float32) if with_dlse else np.zeros_like(lse)
    if with_dlse:
        dlse[np.isinf(lse)] = np.inf
    return Sequence(q, k, v, made.o[0].astype(kind), do, lse, dlse)


def expected(
    request: GradientsRequest,
    given: Sequence,
    scale: float,
    mods: Recorded | None = None,
    sinks: Array | None = None,
) -> dict[str, Expected]:
    """The gradients of one sequence, by their formula."""
    names = ("q", "k", "v", "o", "lse", "do", "dlse")
    batch = {name: getattr(given, name)[None] for name in names}
    options: dict[str, Any] = {"mask": request.mask, "scale": scale, "score_mod": mods}
    true = attention_backward_f64(**batch, **options, sinks=sinks)
    q, k, v, do, o = _wide(request, given.q, given.k, given.v, given.do, given.o)
    visible = visible_keys(request.mask, 0, len(given.q), len(given.q), len(given.k))
    is_empty = np.isinf(given.lse)[..., None]
    lse, dlse = (x.astype(np.float64)[..., None] for x in (given.lse, given.dlse))
    logits = np.full(request.heads, -np.inf) if sinks is None else sinks.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of rows that see no key
        kept_of_row = np.where(is_empty, 1.0, 1 / (1 + np.exp(logits[:, None, None] - lse)))
    dlse = np.where(is_empty, 0.0, dlse)
    products = scale * np.abs(q) @ np.abs(k).transpose(0, 2, 1)
    z, slope, spread, kept = _modified(mods, scale * q @ k.transpose(0, 2, 1), EXACT * products)
    visible = visible & kept
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.where(visible, np.exp(z - lse), 0.0)
    p = kept_of_row * e
    slope, spread, z = (np.where(e == 0, 0.0, x) for x in (slope, spread, z))
    dp, sizes = do @ v.transpose(0, 2, 1), np.abs(do) @ np.abs(v).transpose(0, 2, 1)
    delta, summed_up = ((o * do).sum(2, keepdims=True), np.abs(o * do).sum(2, keepdims=True))
    ds = np.abs(slope * (p * (dp - delta) + e * dlse))
    about = p * (sizes + 2 * summed_up) + 2 * e * np.abs(dlse)
    unit, least = ROUNDING[request.dtype], np.where(visible, LEAST[request.dtype], 0.0)
    size = np.where(is_empty, 0, np.abs(lse)) + (0 if sinks is None else np.abs(logits).max())
    exact = EXACT * (1 + size + np.abs(z) + (np.abs(slope) + spread) * products)
    inexact = unit * ds + least + (exact * np.abs(slope) + spread) * about

    def summed(weights: Array, rows: Array) -> Array:
        found = weights.transpose(0, 2, 1) @ np.abs(rows)
        group = request.heads // request.kv_heads
        groups = found.reshape(request.kv_heads, group, *found.shape[1:]).sum(1)
        return groups.transpose(1, 0, 2)

    bounds = {
        "dq": scale * (inexact @ np.abs(k)).transpose(1, 0, 2),
        "dk": scale * summed(inexact, q),
        "dv": summed((unit + exact) * p + least, do),
    }
    found = {name: getattr(true, name)[0] for name in bounds}
    rounded = {name: unit * np.abs(x) + LEAST[request.dtype] for name, x in found.items()}
    return {name: Expected(x, bounds[name] + rounded[name]) for name, x in found.items()}


class _Modified(NamedTuple):
    """Modified scores, their slopes, by how much these may be wrong, and which are not hidden."""

    z: Array
    slope: Array
    spread: Array
    kept: Array


def _modified(mods: Recorded | None, scores: Array, error: Array) -> _Modified:
    """The modifier of scores [heads, sq, sk] that may be wrong by `error`."""
    if mods is None:
        ones = np.ones_like(scores)
        return _Modified(scores, ones, 0 * ones, ones > 0)
    derivative, (heads, sq, sk) = differentiated(mods.program), scores.shape
    at: dict[str, Any] = {"batch": 0, "head": np.arange(heads)[:, None, None]}
    at |= {"q": np.arange(sq)[:, None], "k": np.arange(sk)}

    def value(program: Program, scores: Array) -> Any:
        return evaluate(program, {"score": scores, **at}, mods.arrays)

    of_slope = derivative.program(derivative.slope)
    ends = [value(of_slope, scores + x).score for x in (0, -2 * error, 2 * error)]
    slope, below, above = (np.broadcast_to(x, scores.shape) for x in ends)
    with np.errstate(invalid="ignore"):  # an infinity less itself is NaN
        spread = np.maximum(np.abs(slope - below), np.abs(slope - above))
    made = value(mods.program, scores)
    z = np.broadcast_to(made.score, scores.shape)
    return _Modified(z, slope, spread + EXACT * (1 + np.abs(slope)), made.kept)


def run(
    request: GradientsRequest,
    given: list[Sequence],
    scale: float,
    seed: int = 1,
    mods: Recorded | None = None,
    target: str = TARGET,
) -> list[dict[str, Array]]:
    """Launches the kernel; returns the gradients of each sequence, by name.

    Sequences lie in a batch, or one after the other where the request has offsets of rows.
    """
    tensors = stored(request.lengths, given, ("q", "k", "v", "do", "lse", "delta"))
    results = {
        name: poisoned(tensors[name[1:]].shape, tensors[name[1:]].dtype) for name in request.results
    }
    captured: Mapping[str, Any] = {} if mods is None else mods.arrays
    arguments = {**tensors, **results, **captured, "scale": scale}
    kernel(request, target).launch(arguments, device=_device(seed, target))
    found = taken_apart(request.lengths, given, results)
    for one in found:
        for rest in one.rest.values():
            assert rest.tobytes() == poisoned(rest.shape, rest.dtype).tobytes(), (
                "written, yet no row"
            )
    return [one.rows for one in found]


def called(
    request: GradientsRequest,
    given: list[Sequence],
    scale: float,
    seed: int = 1,
    mods: Recorded | None = None,
    sinks: Array | None = None,
    target: str = TARGET,
) -> list[dict[str, Array]]:
    """The gradients of each sequence by `am.attention_backward`; sequences lie as of `run`."""
    names = ["q", "k", "v", "o", "lse", "do"]
    names += ["dlse"] if any(one.dlse.any() for one in given) else []
    tensors = stored(request.lengths, given, names)
    options: dict[str, Any] = {"mask": request.mask, "scale": scale, "score_mod": mods}
    options["sinks"] = sinks
    results = am.attention_backward(**tensors, **options, device=_device(seed, target))
    named = {name: getattr(results, name) for name in ("dq", "dk", "dv")}
    return [x.rows for x in taken_apart(request.lengths, given, named)]


def judge(
    request: GradientsRequest,
    given: list[Sequence],
    scale: float,
    seed: int = 1,
    *,
    by: Callable[..., list[dict[str, Array]]] = run,
    mods: Recorded | None = None,
    target: str = TARGET,
    **options: Any,
) -> None:
    """Asserts that every element that the kernel, or the call, makes is within its bound."""
    found_by = by(request, given, scale, seed, mods, target=target, **options)
    for one, found in zip(given, found_by, strict=True):
        wanted = expected(request, one, scale, mods, **options)
        for name, got in found.items():
            true, bound = wanted[name]
            error = np.abs(got.astype(np.float64) - true)
            assert np.all(error <= bound), f"{name}: {np.nanmax(error - bound)} beyond its bound"


def _device(seed: int, target: str) -> EmulatorDevice:
    return EmulatorDevice("adversarial", seed, multiprocessors=2, target=target, check="all")


def stored(lengths: Lengths, given: list[Sequence], names: Iterable[str]) -> dict[str, Any]:
    """The arguments for these tensors of all sequences, with their lengths."""
    ragged = {"q": lengths.ragged_q, "k": lengths.ragged_k}
    used = {"q": lengths.used_q, "k": lengths.used_k}
    tensors: dict[str, Any] = {}
    for name in names:
        side = "k" if name in ("k", "v") else "q"
        tensors[name] = _together([getattr(one, name) for one in given], ragged=ragged[side])
    for side in ("q", "k"):
        counts = [len(getattr(one, side)) for one in given]
        if ragged[side]:
            tensors[f"cu_seqlens_{side}"] = np.cumsum([0, *counts]).astype(np.int32)
            tensors[f"max_seqlen_{side}"] = max(counts)
        if used[side]:
            tensors[f"seqused_{side}"] = np.array(counts, np.int32)
    return tensors


class _Apart(NamedTuple):
    """The results of one sequence by name: rows that exist, and what is behind them."""

    rows: dict[str, Array]
    rest: dict[str, Array]


def taken_apart(
    lengths: Lengths, given: list[Sequence], results: Mapping[str, Array]
) -> list[_Apart]:
    """Results of all sequences, as `stored` lays these out, for each sequence."""
    found = [_Apart({}, {}) for _ in given]
    for name, x in results.items():
        is_of_q = name.startswith("dq")
        counts = [len(one.q if is_of_q else one.k) for one in given]
        if lengths.ragged_q if is_of_q else lengths.ragged_k:
            rows = np.split(x, np.cumsum(counts)[:-1])
        else:
            rows = list(x)
        for one, count, some in zip(found, counts, rows, strict=True):
            one.rows[name], one.rest[name] = some[:count], some[count:]
    return found


def _together(rows: list[Array], *, ragged: bool) -> Array:
    """Sequences one after the other, or in a batch, with NaN behind those that are shorter."""
    axis = int(rows[0].ndim == 2)  # numbers of rows lie along the second axis
    if ragged:
        return np.ascontiguousarray(np.concatenate(rows, axis))
    most = max(x.shape[axis] for x in rows)
    pads = ([(0, 0)] * axis + [(0, most - x.shape[axis])] for x in rows)
    padded = (
        np.pad(x, [*pad, *[(0, 0)] * (x.ndim - axis - 1)], constant_values=np.nan)
        for x, pad in zip(rows, pads, strict=True)
    )
    return np.stack(list(padded))


def _wide(request: GradientsRequest, *operands: Array) -> list[Array]:
    """Operands in float64 [heads, rows, columns], those of keys for each query head."""
    group = request.heads // request.kv_heads
    found = [x.astype(np.float64).transpose(1, 0, 2) for x in operands]
    return [x if x.shape[0] == request.heads else np.repeat(x, group, 0) for x in found]
