"""The problem of a whole sequence, and the calls of kernels for its pieces."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from attn_mlir.calls import attention, attention_backward
from attn_mlir.distributed.layouts import Runs
from attn_mlir.distributed.pieces import Document, Piece, pieces_of
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask
from attn_mlir.trace import MaskMod, ScoreMod

torch: Any = importlib.import_module("torch")


@dataclass(frozen=True, eq=False)
class Problem:
    """Attention of a whole sequence, before its rows and keys are distributed.

    Attributes:
      mask, score_mod, mask_mod, scale: as of `attention`, over positions in the whole sequence, or
        in the document if there are documents.
      starts: [documents + 1] offsets of documents, up to the length; None without documents.
      device: as of `attention`.
    """

    mask: Mask | None = None
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    scale: float | None = None
    starts: tuple[int, ...] | None = None
    device: Any = None

    @property
    def positional(self) -> bool:
        """Whether there is a modifier, which may read positions."""
        return self.score_mod is not None or self.mask_mod is not None

    def of_heads(self, first: int, device: Any) -> Problem:
        """The problem of the heads from `first` on: modifiers see the numbers among all heads."""
        score_mod, mask_mod = self.score_mod, self.mask_mod
        if not self.positional:
            return self
        number = torch.tensor([first], dtype=torch.int32, device=device)

        def scores(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            assert score_mod is not None
            return score_mod(score, b, h + number[0], q, k)

        def visible(b: Any, h: Any, q: Any, k: Any) -> Any:
            assert mask_mod is not None
            return mask_mod(b, h + number[0], q, k)

        shifted: dict[str, Any] = {
            "score_mod": None if score_mod is None else scores,
            "mask_mod": None if mask_mod is None else visible,
        }
        return replace(self, **shifted)

    def pieces(self, rows: Runs, keys: Runs) -> tuple[Piece, ...]:
        """The calls for queries and keys at these positions."""
        return pieces_of(rows, keys, self.mask, positional=self.positional, starts=self.starts)

    def attend(
        self, piece: Piece, q: Any, k: Any, v: Any, out: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        """O and LSE of a piece.

        Args:
          q: [batch, rows, heads, head_dim], all rows of the rank.
          k, v: [batch, keys, kv_heads, D], all keys of the source.
          out: memory for O, as of `attention`.
          options: further options of `attention`.
        """
        rows, keys = _slice(piece.rows), _slice(piece.keys)
        operands = q[:, rows], k[:, keys], v[:, keys]
        options |= self.options(piece, q.device)
        if not piece.documents:
            return attention(*operands, out=out, **options)
        operands = tuple(x[0] for x in operands)
        o, lse = attention(*operands, out=None if out is None else out[0], **options)
        return o[None], lse[None]

    def options(self, piece: Piece, device: Any) -> dict[str, Any]:
        """The options of `attention` for a piece; their tensors are made on `device`."""
        options: dict[str, Any] = {"mask": piece.mask, "scale": self.scale, "return_lse": True}
        options |= {"device": self.device}
        if piece.offsets is not None or piece.documents:
            options |= {"score_mod": self.score_mod, "mask_mod": self.mask_mod}
        if piece.offsets is not None:
            options |= dict(zip(("q_offset", "k_offset"), piece.offsets, strict=True))
        if piece.documents:
            sequences = _sequences(piece.documents, device)
            options |= {**sequences.lengths, **sequences.offsets}
        return options

    def gradients(
        self,
        piece: Piece,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        lse: Any,
        do: Any,
        dlse: Any,
        **options: Any,
    ) -> Any:
        """The gradients of the rows and keys of a piece, as `attention_backward` returns them.

        Args:
          q, k, v: as of `attend`.
          o, lse, do, dlse: the merged results of all rows of the rank and their gradients; dlse may
            be None.
          options: further options of `attention_backward`.
        """
        rows, keys = _slice(piece.rows), _slice(piece.keys)
        of_rows = [q[:, rows], k[:, keys], v[:, keys], o[:, rows], do[:, rows]]
        sums = [None if x is None else x[:, :, rows].contiguous() for x in (lse, dlse)]
        options |= self.gradient_options(piece, q.device)
        if piece.documents:
            of_rows = [x[0] for x in of_rows]
            sums = [None if x is None else x[0] for x in sums]
        q, k, v, o, do = of_rows
        found = attention_backward(q, k, v, o, sums[0], do, dlse=sums[1], **options)
        if piece.documents:
            found = found._replace(**{x: getattr(found, x)[None] for x in ("dq", "dk", "dv")})
        return found

    def gradient_options(self, piece: Piece, device: Any) -> dict[str, Any]:
        """The options of `attention_backward` for a piece; their tensors are made on `device`.

        `attention_backward` has no offsets: modifiers that add them to the positions replace them.
        """
        options: dict[str, Any] = {"mask": piece.mask, "scale": self.scale, "device": self.device}
        options["deterministic"] = True
        if piece.documents:
            sequences = _sequences(piece.documents, device)
            options |= {**sequences.lengths, **self._at(sequences.offsets)}
        elif piece.offsets is not None:
            options |= self._at(_offsets(piece.offsets, device))
        return options

    def _at(self, offsets: Mapping[str, Any]) -> dict[str, Any]:
        """A mask and modifiers with the offsets built in; offsets are [sequences] i32."""
        q_offset, k_offset = offsets["q_offset"], offsets["k_offset"]
        many = q_offset.shape[0] > 1
        mask, score_mod, mask_mod = self.mask, self.score_mod, self.mask_mod
        end = 2**30  # a key always exists

        def at(b: Any, q: Any, k: Any) -> tuple[Any, Any]:
            number = b if many else 0
            return q + q_offset[number], k + k_offset[number]

        def scores(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            assert score_mod is not None
            return score_mod(score, b, h, *at(b, q, k))

        def shown_keys(b: Any, h: Any, q: Any, k: Any) -> Any:
            q, k = at(b, q, k)
            kept = None if mask is None else mask.visible(q, k, end, end)
            if mask_mod is None:
                return kept
            own = mask_mod(b, h, q, k)
            return own if kept is None else kept & own

        has_mask = mask is not None or mask_mod is not None
        return {
            "mask": None,
            "score_mod": None if score_mod is None else scores,
            "mask_mod": shown_keys if has_mask else None,
        }


@dataclass(frozen=True)
class _Sequences:
    """Documents as arguments of `attention`.

    Attributes:
      lengths: cu_seqlens [documents + 1] i32 and the longest lengths, of queries and of keys.
      offsets: q_offset and k_offset, [documents] i32.
    """

    lengths: Mapping[str, Any]
    offsets: Mapping[str, Any]


@lru_cache(maxsize=256)
def _sequences(documents: Sequence[Document], device: Any) -> _Sequences:
    lengths, offsets = dict[str, Any](), dict[str, Any]()
    for side, runs in (("q", [x.queries for x in documents]), ("k", [x.keys for x in documents])):
        sizes = [len(x) for x in runs]
        lengths[f"cu_seqlens_{side}"] = _i32([0, *accumulate(sizes)], device)
        lengths[f"max_seqlen_{side}"] = max(sizes)
        offsets[f"{side}_offset"] = _i32([x.start for x in runs], device)
    return _Sequences(lengths, offsets)


@lru_cache(maxsize=256)
def _offsets(offsets: tuple[int, int], device: Any) -> dict[str, Any]:
    return {x: _i32([y], device) for x, y in zip(("q_offset", "k_offset"), offsets, strict=True)}


def _i32(values: Sequence[int], device: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _slice(run: range) -> slice:
    return slice(run.start, run.stop)


def integers_of(cu_seqlens: Any) -> tuple[int, ...] | None:
    """The offsets of documents as numbers; None without documents.

    Raises:
      SpecError: an offset is not an integer.
    """
    if cu_seqlens is None:
        return None
    try:
        return tuple(operator.index(x) for x in cu_seqlens)
    except TypeError:
        raise SpecError(f"cu_seqlens must be integers, got {shown(cu_seqlens)}") from None


def starts_of(starts: tuple[int, ...] | None, length: int, batch: int) -> tuple[int, ...] | None:
    """The checked offsets of documents; None without documents.

    Raises:
      SpecError: the offsets do not rise from 0 to `length`, or `batch` is not 1.
    """
    if starts is None:
        return None
    is_rising = all(a <= b for a, b in pairwise(starts))
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != length or not is_rising:
        raise SpecError(
            f"cu_seqlens must rise from 0 to the {length} tokens of all ranks, got {shown(starts)}"
        )
    if batch != 1:
        raise SpecError(f"cu_seqlens are of one packed sequence, q has batch {batch}")
    return starts
