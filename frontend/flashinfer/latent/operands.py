"""Operands and results of FlashInfer's latent attention, which `mla_decode` computes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir import env
from attn_mlir.arrays import check_memory
from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.calls import mla_decode
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.options import LOG2_E, tensor
from attn_mlir.latent_heads import with_filled_heads
from attn_mlir.lse import with_sinks
from attn_mlir.masks import causal as causal_mask
from attn_mlir.masks import full
from attn_mlir.runtime.call.tensors import view

torch: Any = importlib.import_module("torch")

COLUMNS = 512  # of a latent row, without those that are rotated
BASES = {"base2": LOG2_E, "basee": 1.0}  # factors of natural logarithms
ROW_RANK = 3  # of pools [pages, page, columns], and of queries [tokens, heads, columns]
NARROW, WIDE = torch.float8_e4m3fn, torch.bfloat16


@dataclass(frozen=True)
class LatentCall:
    """A call without its arrays.

    Attributes:
      scale: of the scores; output: of O.
      causal: whether the queries are the last positions of their sequence.
      base: of LSE, `base2` or `basee`.
    """

    scale: Any
    output: float = 1.0
    causal: bool = False
    base: str = "base2"

    def __call__(
        self,
        q: Any,
        pool: Any,
        pages: Mapping[str, Any] | None,
        *,
        out: Any = None,
        lse: Any = None,
        sinks: Any = None,
        rows: Any = None,
        **lists: Any,
    ) -> tuple[Any, Any]:
        """O and LSE.

        Args:
          q: [batch, sq, heads, columns], bf16 or f16, or e4m3 for a cache of it, which bf16 holds.
          pool: [pages, page, columns], of q's dtype or e4m3.
          pages: which of them sequences have, fields of `PagedKV`; None with `indices`.
          out: [tokens, heads, 512], memory for O; lse: [tokens, heads] f32, memory for LSE.
          sinks: [heads], which count in LSE.
          rows: [tokens], the rows of q [batch x sq] that count; None: all.
          lists: `indices` and `topk_length` of `mla_decode`.

        Returns:
          [tokens, heads, 512] and [tokens, heads].

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        if pool.dtype == NARROW:
            q = q.to(WIDE) if q.dtype == NARROW else q
            pool, lists["kv_format"] = pool.view(torch.uint8), "e4m3"
        pool = pool.unsqueeze(2)
        cache = ContiguousKV(pool, None, None) if pages is None else PagedKV(pool, **pages)
        if pages is not None:
            lists["mask"] = causal_mask() if self.causal else full()

        def decode(q: Any, sinks: Any) -> tuple[Any, Any]:
            return mla_decode(q, cache, scale=self.scale, sinks=sinks, **lists)

        o, sums = with_filled_heads(decode, q, sinks, axis=2)
        sums = (sums if sinks is None else with_sinks(sums, sinks)).transpose(1, 2)
        o, sums = o.flatten(0, 1), sums.flatten(0, 1) * BASES[self.base]
        if rows is not None:
            o, sums = o[rows], sums[rows]
        if self.output != 1.0:
            o.mul_(self.output)
        return _into("out", out, o, q), _into("lse", lse, sums.contiguous(), q)


def _into(name: str, memory: Any, result: Any, q: Any) -> Any:
    """A result in the caller's memory, if there is any.

    Raises:
      SpecError: it has another shape or dtype, or is q's.
    """
    if memory is None:
        return result
    wanted = view(result, name)
    check_memory(name, tensor(memory, name, len(wanted.shape)), wanted.shape, wanted.dtype,
                 {"q": view(q, "q")})  # fmt: skip
    memory.copy_(result)
    return memory


def packed(first: Any, second: Any, names: tuple[str, str]) -> Any:
    """Latent columns with the rotated ones behind them, as one array.

    Args:
      first: [..., 512]; second: [..., 64]; without a copy where both are columns of one array.
      names: of both, by the caller.

    Raises:
      SpecError: they differ in anything but columns.
    """
    a, b = (tensor(x, name, ROW_RANK) for x, name in zip((first, second), names, strict=True))
    if a.shape[:2] != b.shape[:2] or a.dtype != b.dtype or a.device != b.device:
        raise SpecError(
            f"{names[1]} must be {list(a.shape[:2])} rows of {a.dtype} as {names[0]}, got "
            f"{list(b.shape[:2])} of {b.dtype}"
        )
    columns = a.shape[-1]
    if (
        a.stride() == b.stride()
        and a.stride(-1) == 1
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        and b.storage_offset() == a.storage_offset() + columns
    ):
        return a.as_strided((*a.shape[:2], columns + b.shape[-1]), a.stride())
    env.log_once(
        "info", f"{names[0]} and {names[1]} are no columns of one array: each call copies them"
    )
    return torch.cat([a, b], -1)


def one_array(whole: Any, parts: tuple[Any, Any], names: tuple[str, str, str]) -> Any:
    """An operand that is given as one array, as a pair, or by two arguments.

    Args:
      whole: an array or a pair; parts: by the two arguments; names: of all three.

    Raises:
      SpecError: not exactly one of these.
    """
    if (whole is None) == (parts[0] is None and parts[1] is None):
        raise SpecError(f"pass {names[0]}, or {names[1]} and {names[2]}")
    if whole is None:
        for part, name in zip(parts, names[1:], strict=True):
            tensor(part, name, ROW_RANK)
        return packed(*parts, names[1:])
    if isinstance(whole, tuple | list):
        pair = cast("Sequence[Any]", whole)
        if len(pair) != len(parts):
            raise SpecError(f"{names[0]} must be an array or a pair, got {shown(pair, 40)}")
        return packed(pair[0], pair[1], (f"{names[0]}[0]", f"{names[0]}[1]"))
    return tensor(whole, names[0], ROW_RANK)


def checked_base(name: str, base: object, otherwise: str) -> str:
    """The base of LSE.

    Raises:
      SpecError: another word.
    """
    if base is None:
        return otherwise
    if not isinstance(base, str) or base not in BASES:
        raise SpecError(f"{name} must be {' or '.join(BASES)}, got {shown(base, 40)}")
    return base
