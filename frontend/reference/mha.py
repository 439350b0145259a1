"""Multi-head attention: one formula, in float64 (the truth) and in a kernel's types (the
yardstick).

It computes blocks of query rows against all keys, so that memory grows with the sequence and not
with its square. Layout is `[batch, sequence, heads, head_dim]`; query head h reads KV head h //
(heads / kv_heads); a row that sees no key gives 0 and an LSE of minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask, full
from attn_mlir.reference.arithmetic import EXACT, KERNEL, Arithmetic
from attn_mlir.reference.modifier import Modifier
from attn_mlir.reference.offsets import Offsets, offsets_of
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.trace import MaskMod, ScoreMod

Array = npt.NDArray[Any]

HIDDEN_BELOW = -2e38  # a modified score below this hides its key; the lowest float32 is -3.4e38
BLOCK_SCORES = 1 << 21  # scores in memory at once: 16 MiB in float64


@dataclass(frozen=True)
class Attention:
    """The results of attention.

    Attributes:
      o: [batch, sq, heads, head_dim_v].
      lse: [batch, heads, sq], natural logarithm.
    """

    o: Array
    lse: Array


def attention_f64(q: Array, k: Array, v: Array, **options: Any) -> Attention:
    """The truth: `attention` in float64, whatever the operands' dtype; options as there."""
    return attention(EXACT, q, k, v, **options)


def attention_yardstick(
    q: Array,
    k: Array,
    v: Array,
    *,
    out_dtype: npt.DTypeLike | None = None,
    score_bits: int | None = None,
    p_dtype: npt.DTypeLike | None = None,
    **options: Any,
) -> Attention:
    """`attention` in a kernel's types: its error is what these types make unavoidable.

    P of 8 bits is multiplied by `weights.FP8_P_SCALE` while it is rounded, since small numbers lose
    less there.

    If O's type is finer than P's, the rounding of P shows, and where few weights decide it does not
    average out: those of equal keys are all rounded alike. How far each is rounded depends on the
    maximum that it is relative to. A kernel's may be stale, by any amount up to a threshold, and
    differs from key tile to key tile; the formula says nothing about it. So O here is the most
    wrong of those that maxima at `weights.POSITIONS` places of an octave give, an octave later each
    weight being rounded by the same factor. At the first the largest P of a row lies a quarter of
    the way between two numbers of its dtype, with half of the largest possible error: twice that
    bounds what one key alone may be wrong by.

    Args:
      out_dtype: dtype of O; by default P's.
      p_dtype: what P is rounded to; by default q's dtype.
      score_bits, options: as of `Arithmetic` and of `attention`.
    """
    types = replace(KERNEL, p=p_dtype, o=out_dtype, score_bits=score_bits)
    return attention(types, q, k, v, **options)


def attention(
    types: Arithmetic,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    sinks: object | None = None,
    modifier: Modifier | None = None,
    first_batch: int = 0,
    q_offset: Any = None,
    k_offset: Any = None,
    head_offset: int = 0,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Attention:
    """The formula: `softmax(mod(scale * q k^T), mask) v`.

    Args:
      types: that it computes in; P has q's dtype if they name none, and O P's.
      q: [batch, sq, heads, head_dim].
      k: [batch, sk, kv_heads, head_dim].
      v: [batch, sk, kv_heads, head_dim_v].
      mask: which keys a query sees; by default all.
      scale: multiplies the scores, finite; 1 / sqrt(head_dim) by default.
      score_mod, mask_mod: as in `attn_mlir.attention`.
      sinks: [heads], logits of a key without a value, which affects O but not LSE.
      modifier: these three, already traced, in place of them.
      first_batch: number of the first batch entry for modifiers; see `sequences`.
      q_offset, k_offset, head_offset: as in `attn_mlir.attention`; arrays have a number for each
        batch entry from the first one on, see `first_batch`.
      q_descale, k_descale, v_descale: scales of the operands, as in `attn_mlir.attention`; 1 by
        default.

    Raises:
      SpecError: operands that are no numpy arrays, shapes that do not fit together, a scale that is
        not finite, a mask that is none, or functions that cannot be traced.
    """
    softmax_scale = check_operands(q, k, v, mask, scale)
    if sinks is not None and (got := shape_of(sinks, "sinks")) != (q.shape[2],):
        raise SpecError(f"sinks must be [{q.shape[2]}], one for each head, got {list(got)}")
    types, number = types.settled(q.dtype), types.scalar
    softmax_scale = number(softmax_scale)
    modifier = modifier or Modifier.of(score_mod, mask_mod, sinks)
    named = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    tables = [_descale(name, x, k, first_batch) for name, x in named.items()]
    of_scores, of_values = (x.astype(number) for x in (tables[0] * tables[1], tables[2]))
    o = np.zeros((*q.shape[:3], v.shape[3]), types.o)
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf, number)
    offsets = offsets_of(q_offset, k_offset, head_offset, batch=len(q), first_batch=first_batch)
    for b, h, rows, visible in blocks(q, k, [x.mask(mask or full()) for x in offsets]):
        g = h // (q.shape[2] // k.shape[2])
        scores = types.scores(q[b, rows, h], k[b, :, g]) * (softmax_scale * of_scores[b, g])
        p = _probabilities(scores, visible, modifier, first_batch + b, h, rows.start, offsets[b])
        product = types.product(p.weights, v[b, :, g])
        o[b, rows, h] = (product / p.divisor[:, None] * of_values[b, g]).astype(o.dtype)
        lse[b, h, rows] = p.lse
    return Attention(o, lse)


def _descale(name: str, values: Any, k: Array, first_batch: int) -> Array:
    """Scales of the batch entries of k as [batch, kv_heads] in float64.

    Raises:
      SpecError: they are no numbers, or not one for each batch entry and KV head.
    """
    shape = k.shape[0], k.shape[2]
    try:
        table = np.asarray(1.0 if values is None else values, np.float64)
        if table.ndim == 2 and len(table) > 1:
            table = table[first_batch : first_batch + k.shape[0]]
        return np.broadcast_to(table, shape)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name} must be numbers of shape {shape}: {error}") from error


class _Probabilities(NamedTuple):
    """Probabilities as weights [rows, sk] / divisor [rows]; and lse [rows]."""

    weights: Array
    divisor: Array
    lse: Array


def _probabilities(
    scores: Array,
    visible: Array,
    modifier: Modifier,
    b: int,
    h: int,
    first_row: int,
    offsets: Offsets,
) -> _Probabilities:
    """Softmax of scaled scores, computed in their precision.

    A row that sees a score of NaN or plus infinity is NaN, and so is its LSE.
    """
    modified = modifier(scores, b, h, first_row, offsets)
    sink = None
    if modified is not None:
        scores = np.array(np.broadcast_to(modified.score, scores.shape))
        visible = visible & modified.kept & ~(scores < HIDDEN_BELOW)
        sink = modified.sink
    scores[~visible] = -np.inf
    top: Array = np.max(scores, axis=1, initial=-np.inf)
    has_key = top != -np.inf
    with np.errstate(invalid="ignore"):  # an infinity less itself is NaN
        weights = np.exp(scores - np.where(has_key, top, top.dtype.type(0))[:, None])
    total: Array = weights.sum(axis=1, dtype=scores.dtype)
    total[~has_key] = 1.0
    lse = np.where(has_key, top + np.log(total), -np.inf)
    if sink is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # -inf less -inf where no key is seen
            weight = np.exp(np.broadcast_to(sink, (len(top), 1))[:, 0] - top)
        total = np.where(has_key, total + weight, total)
    return _Probabilities(weights, total, lse)


def visible_keys(mask: Mask, start: int, stop: int, sq: int, sk: int) -> npt.NDArray[np.bool_]:
    """Which keys each query row from start to stop sees, as [stop - start, sk]."""
    rows, columns = np.arange(start, stop)[:, None], np.arange(sk)[None, :]
    return np.broadcast_to(mask.visible(rows, columns, sq, sk), (stop - start, sk))


def blocks(
    q: Array, k: Array, masks: Sequence[Mask]
) -> Iterator[tuple[int, int, slice, npt.NDArray[np.bool_]]]:
    """Yields (batch, query head, query rows, visible [rows, sk]), at most `BLOCK_SCORES` each.

    Args:
      masks: of each batch entry; equal ones in a row are evaluated once.
    """
    _, sq, heads, _ = q.shape
    sk = k.shape[1]
    step = max(1, BLOCK_SCORES // max(sk, 1))
    for start in range(0, sq, step):
        stop = min(start + step, sq)
        visible = np.zeros((0, 0), np.bool_)
        for b, mask in enumerate(masks):
            if b == 0 or mask != masks[b - 1]:
                visible = visible_keys(mask, start, stop, sq, sk)
            for h in range(heads):
                yield b, h, slice(start, stop), visible


def check_operands(q: Array, k: Array, v: Array, mask: Mask | None, scale: float | None) -> float:
    """Refuses operands that do not fit together, and masks that are none; returns the scale."""
    for name, operand in (("q", q), ("k", k), ("v", v)):
        if not isinstance(cast(object, operand), np.ndarray):
            raise SpecError(f"{name} must be a numpy array, got {type(operand).__name__}")
    if not isinstance(cast(object, mask), Mask | None):
        raise SpecError(f"mask must be made by attn_mlir.masks, got {type(mask).__name__}")
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise SpecError(
            f"q, k and v must be [batch, sequence, heads, head_dim], got {q.shape}, {k.shape}, "
            f"{v.shape}"
        )
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise SpecError(f"q {q.shape}, k {k.shape} and v {v.shape} do not belong together")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise SpecError(f"kv heads must divide heads, got {q.shape[2]} and {k.shape[2]}")
    try:
        number = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    except (TypeError, ValueError) as error:
        raise SpecError(f"scale must be a number, got {scale!r}") from error
    if not math.isfinite(number):
        raise SpecError(f"scale must be finite, got {number}")
    return number
