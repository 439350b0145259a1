"""The gradients of multi-head attention in float64, from what the caller gives of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.derivative import Derivative, differentiated
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask, full
from attn_mlir.reference.mha import HIDDEN_BELOW, blocks, check_operands
from attn_mlir.reference.modifier import Modifier
from attn_mlir.reference.offsets import NO_OFFSETS
from attn_mlir.runtime.call.tensors import TensorView
from attn_mlir.trace import MaskMod, ScoreMod, trace

Array = npt.NDArray[Any]


class AttentionGradients(NamedTuple):
    """The gradients of what attention is given, each of the shape of that.

    Attributes:
      dq, dk, dv: of q, k and v.
      dsinks: of the sinks; None without any.
      captured: of tensors that `score_mod` captures, by name.
    """

    dq: Array
    dk: Array
    dv: Array
    dsinks: Array | None = None
    captured: Mapping[str, Array] = MappingProxyType({})


def attention_backward_f64(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    *,
    dlse: Array | None = None,
    mask: Mask | None = None,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    sinks: Array | None = None,
    captured: Sequence[str] = (),
    scale: float | None = None,
) -> AttentionGradients:
    """The formula of `attn_mlir.attention_backward`, whatever the operands' dtype:

        z[i, j] = mod(scale x q[i] . k[j])
        e[i, j] = e^(z[i, j] - lse[i]) where i sees j, else 0
        p[i, j] = e[i, j] / (1 + e^(sink - lse[i]))
        dz[i, j] = p[i, j] (do[i] . v[j] - o[i] . do[i]) + e[i, j] dlse[i]
        ds[i, j] = dz[i, j] x mod'[i, j], and 0 where p is
        dq = scale x ds k        dk = scale x ds^T q        dv = p^T do
        dsinks = -sum of (o[i] . do[i]) / (1 + e^(lse[i] - sink)) over the rows of a head

    without the parts of rows whose LSE is -inf.

    Args:
      q, k, v, mask, score_mod, mask_mod, sinks, scale: as of `attention_f64`.
      o, lse: as that returns them, in any precision.
      do, dlse: as o and lse: their gradients; that of the LSE is 0 if None.
      captured: names of tensors that `score_mod` captures, whose gradients are wanted.

    Raises:
      SpecError: as `attention_f64`, a result or gradient of another shape than its own, or a
        modifier without a derivative.
    """
    factor = check_operands(q, k, v, mask, scale)
    dlse = np.zeros(np.shape(lse)) if dlse is None else dlse
    rows, numbers = (*q.shape[:3], v.shape[3]), (q.shape[0], q.shape[2], q.shape[1])
    named = {"o": (o, rows), "do": (do, rows), "lse": (lse, numbers), "dlse": (dlse, numbers)}
    for name, (array, shape) in named.items():
        if np.shape(array) != shape:
            raise SpecError(f"{name} must be {list(shape)}, got {list(np.shape(array))}")
    q, k, v, o, do, lse, dlse = (x.astype(np.float64) for x in (q, k, v, o, do, lse, dlse))
    is_empty = lse == -np.inf
    sums, dlse = (o * do).sum(3).transpose(0, 2, 1), np.where(is_empty, 0.0, dlse)
    taken, dsinks = np.zeros(lse.shape), None  # by the sink, of the weight of each row
    if sinks is not None:
        logits = np.asarray(sinks, np.float64)[:, None]
        with np.errstate(over="ignore"):
            taken = np.where(is_empty, 0.0, 1 / (1 + np.exp(lse - logits)))
        dsinks = -(taken * sums).sum((0, 2))
    modified = _Modified(score_mod, mask_mod, captured)
    dq, dk, dv = map(np.zeros_like, (q, k, v))
    for b, h, i, visible in blocks(q, k, [mask or full()] * len(q)):
        g = h // (q.shape[2] // k.shape[2])
        scores = factor * q[b, i, h] @ k[b, :, g].T
        z, visible = modified.scores(scores, visible, b, h, i.start)
        with np.errstate(over="ignore", invalid="ignore"):
            e = np.where(visible, np.exp(z - lse[b, h, i, None]), 0.0)
        p = e * (1 - taken[b, h, i, None])
        dz = p * (do[b, i, h] @ v[b, :, g].T - sums[b, h, i, None]) + e * dlse[b, h, i, None]
        ds = modified.through(scores, dz, e, b, h, i.start)
        dq[b, i, h] = factor * ds @ k[b, :, g]
        dk[b, :, g] += factor * ds.T @ q[b, i, h]
        dv[b, :, g] += p.T @ do[b, i, h]
    return AttentionGradients(dq, dk, dv, dsinks, modified.gradients())


class _Modified:
    """A score modifier with its derivatives, evaluated block by block.

    Args:
      score_mod, mask_mod, names: arguments of the call; `names` of the tensors.
    """

    def __init__(self, score_mod: ScoreMod | None, mask_mod: MaskMod | None, names: Sequence[str]):
        program, arrays = trace(score_mod, mask_mod)
        self._modifier = modifier = Modifier(program, host_arrays(arrays))
        self._extended = {name for name, x in arrays.items() if isinstance(x, TensorView)}
        self._derivative: Derivative | None = None
        if modifier.program is not None:
            self._derivative = differentiated(modifier.program)
        for name in names:
            if name not in modifier.tensors:
                raise SpecError(f"captured names {name!r}, which score_mod does not capture")
        self._captured = {name: np.zeros(modifier.tensors[name].shape) for name in names}

    def gradients(self) -> dict[str, Array]:
        """The gradients of the tensors that are asked for, without an axis that tracing adds."""
        return {
            name: x[..., 0] if name in self._extended else x for name, x in self._captured.items()
        }

    def scores(
        self, scores: Array, visible: Array, b: int, h: int, row: int
    ) -> tuple[Array, Array]:
        """The modified scores, and which are visible."""
        modified = self._modifier(scores, b, h, row, NO_OFFSETS)
        if modified is None:
            return scores, visible
        z = np.broadcast_to(modified.score, scores.shape)
        return z, visible & modified.kept & ~(z < HIDDEN_BELOW)

    def through(self, scores: Array, dz: Array, weights: Array, b: int, h: int, row: int) -> Array:
        """The gradients of scores, given those of modified ones; adds to those of tensors."""
        if self._derivative is None:
            return dz
        found = self._derivative

        def value(node: int) -> Array:
            part = Modifier(found.program(node), self._modifier.tensors)
            modified = part(scores, b, h, row, NO_OFFSETS)
            assert modified is not None
            return np.broadcast_to(modified.score, scores.shape)

        def times(node: int) -> Array:
            with np.errstate(invalid="ignore"):
                return np.where(weights == 0, 0.0, dz * value(node))

        for read in found.reads:
            name = found.tensors[read.tensor].name
            if name not in self._captured:
                continue
            into = self._captured[name]
            places = [value(x).astype(np.int64) for x in found.nodes[read.node].args]
            inside = [
                np.clip(np.where(x < 0, x + n, x), 0, n - 1)
                for x, n in zip(places, into.shape, strict=True)
            ]
            np.add.at(into, tuple(inside), times(read.adjoint))
        return times(found.slope)
