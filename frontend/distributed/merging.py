"""Merges the results of attention to parts of the keys, by the kernel that combines splits.

A part without keys has an LSE of -inf, and its O is not looked at; a row without keys in any part
is 0. Sinks are added once, here, and LSEs are those without sinks.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from attn_mlir.api.array_checks import checked_array
from attn_mlir.api.combining import combination_of
from attn_mlir.api.plan import Plan
from attn_mlir.api.planners import declared_by
from attn_mlir.arrays import caller_output, stream_of
from attn_mlir.compiling.dtypes import OUT_DTYPES, dtype_name
from attn_mlir.compiling.splits import MAX_SPLITS
from attn_mlir.distributed.pieces import Piece
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.scalars import flag
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.kernel import DeviceChoice

torch: Any = importlib.import_module("torch")

MAX_SLOTS = 8  # parts that are kept before they are merged: memory of so many O in f32


@dataclass(frozen=True, eq=False)
class MergeCall:
    """The arguments of `merge_states`, which says what they are."""

    os: Any
    lses: Any
    _: KW_ONLY
    sinks: Any = None
    out_dtype: object = "f32"
    return_lse: bool = True
    out: Any = None
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(MergeCall)
def merge_states(call: MergeCall) -> Plan:
    """Attention to all keys, from that to parts of them.

    Args:
      os: [parts, batch, sq, heads, v_head_dim] f32, of 1 to 256 parts.
      lses: [parts, batch, heads, sq] f32, natural logarithms; -inf or +inf: no keys.
      sinks: [heads] bf16, f16 or f32, which the parts leave out; they are not in the LSE either.
      out_dtype: of O: bf16, f16 or f32.
      return_lse: whether LSE is returned as well.
      out, device, stream: as of `attention`.

    Returns:
      O [batch, sq, heads, v_head_dim]; with `return_lse` also LSE [batch, heads, sq] f32.

    Raises:
      SpecError: an argument is wrong.
    """
    parts, sums = view(call.os, "os"), view(call.lses, "lses")
    if parts.dtype != "f32" or len(parts.shape) != 5 or not 1 <= parts.shape[0] <= MAX_SPLITS:
        raise SpecError(
            f"os must be f32 [1 to {MAX_SPLITS}, batch, sq, heads, v_head_dim], got "
            f"{list(parts.shape)} of {parts.dtype}"
        )
    count, batch, rows, heads, _ = parts.shape
    checked_array("lses", sums, (count, batch, heads, rows), "f32", note=" beside these os")
    if call.sinks is not None:
        checked_array("sinks", call.sinks, (heads,), "f32", "bf16", "f16")
    dtype = dtype_name(call.out_dtype, "out_dtype", OUT_DTYPES)
    operands = {"os": parts, "lses": sums}
    out = None if call.out is None else caller_output(call.out, parts.shape[1:], dtype, operands)
    return combination_of(
        call.os,
        parts,
        sums,
        is_ragged=False,
        sinks=call.sinks,
        out_dtype=dtype,
        return_lse=flag("return_lse", call.return_lse),
        out=out,
        device=call.device,
        stream=stream_of(call.stream, call.device, call.os, parts),
    )


class Partials:
    """The results of pieces, until they are merged.

    Attributes:
      os: [slots, batch, rows, heads, v_head_dim] f32.
      lses: [slots, batch, heads, rows] f32, -inf where no piece has written.
    """

    def __init__(
        self,
        q: Any,
        width: int,
        blocks: Sequence[range],
        plans: Sequence[Sequence[Piece]],
        device: DeviceChoice = None,
    ):
        """Makes memory for the results.

        Args:
          q: [batch, rows, heads, head_dim], of which the results are.
          width: v_head_dim.
          blocks: rows whose pieces are the same or disjoint.
          plans: the pieces that will be added, by source.
          device: of the kernel that merges, as of `attention`.
        """
        batch, rows, heads, _ = q.shape
        self._blocks, self._used, self._device = blocks, [0] * len(blocks), device
        most = max((sum(b.start in x.rows for p in plans for x in p) for b in blocks), default=1)
        slots = min(max(most, 1), MAX_SLOTS)
        memory = {"dtype": torch.float32, "device": q.device}
        self.os = torch.empty((slots, batch, rows, heads, width), **memory)
        self.lses = torch.full((slots, batch, heads, rows), -torch.inf, **memory)

    def slot(self, piece: Piece) -> tuple[Any, Any]:
        """Memory for O [batch, rows, heads, v_head_dim] and LSE [batch, heads, rows] of a piece."""
        inside = [i for i, block in enumerate(self._blocks) if block.start in piece.rows]
        number = max(self._used[i] for i in inside)
        if number == self.os.shape[0]:
            self._merge_slots()
            number = 1
        for i in inside:
            self._used[i] = number + 1
        rows = slice(piece.rows.start, piece.rows.stop)
        return self.os[number, :, rows], self.lses[number, :, :, rows]

    def merged(self, dtype: Any, sinks: Any = None) -> tuple[Any, Any]:
        """O [batch, rows, heads, v_head_dim] of a dtype and LSE [batch, heads, rows]."""
        o = torch.empty(self.os.shape[1:], dtype=dtype, device=self.os.device)
        lse = torch.empty(self.lses.shape[1:], dtype=torch.float32, device=self.os.device)
        for rows, count in self._spans():
            at, name = slice(rows.start, rows.stop), str(dtype).removeprefix("torch.")
            _, lse[:, :, at] = merge_states(
                self.os[:count, :, at],
                self.lses[:count, :, :, at],
                sinks=sinks,
                out_dtype=name,
                out=o[:, at],
                device=self._device,
            )
        return o, lse

    def _merge_slots(self) -> None:
        o, lse = self.merged(torch.float32)
        self.os[0].copy_(o)
        self.lses.fill_(-torch.inf)
        self.lses[0].copy_(lse)
        self._used = [1] * len(self._used)

    def _spans(self) -> list[tuple[range, int]]:
        """Rows with the number of their slots, at least 1; neighbours with the same are one."""
        found = list[tuple[range, int]]()
        for rows, used in zip(self._blocks, self._used, strict=True):
            count = max(used, 1)
            if found and found[-1][1] == count:
                found[-1] = range(found[-1][0].start, rows.stop), count
            else:
                found.append((rows, count))
        return found
