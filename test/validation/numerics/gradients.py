"""Gradients of attention on the emulator, against their formulas in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.lowering.compile import compile_request
from attn_mlir.masks import Mask
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.mha_check import poisoned

TARGET = "sm_90a"
NUMPY: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
EXACT = 2.0**-16  # of f32 products, sums, 2^x and the exponents of moderate scores

Array = NDArray[Any]


@dataclass(frozen=True)
class Gradients:
    """A request for the gradients of keys and values, or for those of queries.

    Attributes:
      of: what the results are gradients of.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    mask: Mask = field(default_factory=am.full)
    dtype: str = "bf16"
    lengths: Lengths = DENSE
    of: Literal["kv", "q"] = "kv"

    @property
    def kernel_name(self) -> str:
        """Says what it computes."""
        return f"{self.of}_gradients"

    @property
    def schedule_options(self) -> Mapping[str, int | str]:
        """None."""
        return {}

    @property
    def operands(self) -> tuple[Operand, ...]:
        """In the order of the call."""
        q = ("total_q",) if self.lengths.ragged_q else ("batch", "sq")
        k = ("total_k",) if self.lengths.ragged_k else ("batch", "sk")
        row = (self.heads, *q) if self.lengths.ragged_q else ("batch", self.heads, "sq")
        queries = (*q, self.heads, self.head_dim)
        keys, values = (
            (*k, self.kv_heads, columns) for columns in (self.head_dim, self.v_head_dim)
        )
        results = {"dq": queries, "dk": keys, "dv": values}
        return (
            Operand("q", self.dtype, queries),
            Operand("k", self.dtype, keys),
            Operand("v", self.dtype, values),
            Operand("do", self.dtype, (*q, self.heads, self.v_head_dim)),
            Operand("lse", "f32", row),
            Operand("delta", "f32", row),
            Operand("scale", "f32", role="scalar"),
            *(Operand(name, self.dtype, results[name], "out") for name in self.results),
            *(Operand(name, "i32", (f"{name}_0",)) for name in self.lengths.tensors),
            *(Operand(name, "i32", role="scalar") for name in self.lengths.scalars),
        )

    @property
    def results(self) -> tuple[str, ...]:
        """Their names."""
        return ("dk", "dv") if self.of == "kv" else ("dq",)

    def canonical_json(self) -> str:
        """None: nobody asks these bundles what they compute."""
        return "{}"

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.kv_gradients` or `attn.q_gradients`."""
        from attn_mlir.dialect.attn import make_kv_gradients, make_q_gradients
        from attn_mlir.dialect.attn.storage import sequences_view

        stored = (
            sequences_view(arguments[name], self.lengths, arguments, of_keys=name in ("k", "v"))
            for name in ("q", "k", "v", "do")
        )
        rest = (arguments[name] for name in ("lse", "delta", "scale"))
        make = make_kv_gradients if self.of == "kv" else make_q_gradients
        op = make(*stored, *rest, mask=self.mask)
        return {name: getattr(op, name) for name in self.results}


@cache
def kernel(request: Gradients, target: str = TARGET) -> am.Kernel:
    """The compiled kernel of a request."""
    return am.load(compile_request(request, target=target))


@dataclass(frozen=True)
class Sequence:
    """The operands of one sequence: q, do [sq, heads, ...], k, v [sk, kv_heads, ...], lse and delta
    [heads, sq].
    """

    q: Array
    k: Array
    v: Array
    do: Array
    lse: Array
    delta: Array


class Expected(NamedTuple):
    """A gradient in float64, and how far a kernel's may be from it, element by element."""

    true: Array
    bound: Array


def draw(
    request: Gradients, sq: int, sk: int, scale: float, seed: int, *, offset: float = 0.0
) -> Sequence:
    """Operands of a sequence, with the LSE and delta of its attention.

    Args:
      offset: is added to all scores about, by a column that queries and keys have in common.
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
    wide, seen = _wide(request, q, k, v, do), _seen(request.mask, sq, sk)
    scores = np.where(seen, scale * wide[0] @ wide[1].transpose(0, 2, 1), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.logaddexp.reduce(scores, axis=2) if sk else np.full(scores.shape[:2], -np.inf)
        weights = np.where(seen, np.exp(scores - lse[..., None]), 0.0)
    delta = ((weights @ wide[2]) * wide[3]).sum(2)
    return Sequence(q, k, v, do, lse.astype(np.float32), delta.astype(np.float32))


def expected(request: Gradients, given: Sequence, scale: float) -> dict[str, Expected]:
    """The gradients of one sequence, by the definitions of the operations."""
    q, k, v, do = _wide(request, given.q, given.k, given.v, given.do)
    seen = _seen(request.mask, len(given.q), len(given.k))
    lse, delta = (x.astype(np.float64)[..., None] for x in (given.lse, given.delta))
    scores = scale * q @ k.transpose(0, 2, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.where(seen, np.exp(scores - lse), 0.0)
    dp = do @ v.transpose(0, 2, 1)
    ds, about = p * (dp - delta), p * (np.abs(do) @ np.abs(v).transpose(0, 2, 1) + np.abs(delta))
    unit = ROUNDING[request.dtype]
    size = np.where(np.isinf(lse), 0, np.abs(lse))
    exact = EXACT * (1 + size + scale * np.abs(q) @ np.abs(k).transpose(0, 2, 1))

    def summed(weights: Array, rows: Array) -> Array:
        found = weights.transpose(0, 2, 1) @ rows
        group = request.heads // request.kv_heads
        groups = found.reshape(request.kv_heads, group, *found.shape[1:]).sum(1)
        return groups.transpose(1, 0, 2)

    def judged(true: Array, bound: Array) -> Expected:
        return Expected(true, bound + unit * np.abs(true))

    inexact = unit * np.abs(ds) + exact * about
    dq, dq_bound = (scale * (x @ y).transpose(1, 0, 2) for x, y in ((ds, k), (inexact, np.abs(k))))
    return {
        "dq": judged(dq, dq_bound),
        "dk": judged(scale * summed(ds, q), scale * summed(inexact, np.abs(q))),
        "dv": judged(summed(p, do), summed((unit + exact) * p, np.abs(do))),
    }


def run(
    request: Gradients, given: list[Sequence], scale: float, seed: int = 1
) -> list[dict[str, Array]]:
    """Launches the kernel; returns the gradients of each sequence, by name.

    Sequences lie in a batch, or one after the other where the request has offsets of rows.
    """
    lengths = request.lengths
    ragged = {"q": lengths.ragged_q, "k": lengths.ragged_k}
    used = {"q": lengths.used_q, "k": lengths.used_k}
    tensors: dict[str, Any] = {}
    for name in ("q", "k", "v", "do", "lse", "delta"):
        side = "k" if name in ("k", "v") else "q"
        tensors[name] = _together([getattr(one, name) for one in given], ragged=ragged[side])
    for side in ("q", "k"):
        counts = [len(getattr(one, side)) for one in given]
        if ragged[side]:
            tensors[f"cu_seqlens_{side}"] = np.cumsum([0, *counts]).astype(np.int32)
            tensors[f"max_seqlen_{side}"] = max(counts)
        if used[side]:
            tensors[f"seqused_{side}"] = np.array(counts, np.int32)
    results = {
        name: poisoned(tensors[name[1:]].shape, tensors[name[1:]].dtype) for name in request.results
    }
    device = EmulatorDevice("adversarial", seed, multiprocessors=2, target=TARGET, check="all")
    kernel(request).launch({**tensors, **results, "scale": scale}, device=device)
    side = request.of[0]
    if ragged[side]:
        ends = tensors[f"cu_seqlens_{side}"][1:-1]
        parts = {name: np.split(x, ends) for name, x in results.items()}
        return [{name: x[number] for name, x in parts.items()} for number in range(len(given))]
    found: list[dict[str, Array]] = []
    for number, one in enumerate(given):
        count = len(getattr(one, side))
        for x in results.values():
            rest = x[number, count:]
            assert rest.tobytes() == poisoned(rest.shape, rest.dtype).tobytes(), (
                "written, yet no row"
            )
        found.append({name: x[number, :count] for name, x in results.items()})
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


def judge(request: Gradients, given: list[Sequence], scale: float, seed: int = 1) -> None:
    """Launches the kernel and asserts that every element is within its bound."""
    for one, found in zip(given, run(request, given, scale, seed), strict=True):
        wanted = expected(request, one, scale)
        for name, got in found.items():
            true, bound = wanted[name]
            error = np.abs(got.astype(np.float64) - true)
            assert np.all(error <= bound), f"{name}: {np.nanmax(error - bound)} beyond its bound"


def _wide(request: Gradients, q: Array, k: Array, v: Array, do: Array) -> list[Array]:
    """Operands in float64 [heads, rows, columns], those of keys for each query head."""
    group = request.heads // request.kv_heads
    found = [x.astype(np.float64).transpose(1, 0, 2) for x in (q, k, v, do)]
    return [x if x.shape[0] == request.heads else np.repeat(x, group, 0) for x in found]


def _seen(mask: Mask, sq: int, sk: int) -> Array:
    """[sq, sk]: whether a query sees a key."""
    visible = mask.visible(np.arange(sq)[:, None], np.arange(sk)[None, :], sq, sk)
    return np.broadcast_to(visible, (sq, sk))
