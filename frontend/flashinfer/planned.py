"""The problem that `plan` makes of its arguments, and its calls of `attention`."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.api.attention import check_scale
from attn_mlir.arrays import check_memory
from attn_mlir.calls import attention
from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.compiling.routes import attention_choice
from attn_mlir.compiling.spec import mha
from attn_mlir.compiling.splits import MAX_SPLITS, STREAM_KEYS, fixed_split_schedule, split_count
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.options import (
    LOG2_E,
    TORCH_DTYPES,
    mask_of,
    number,
    operand_dtype,
    output_dtype,
    tensor,
)
from attn_mlir.flashinfer.positions import alibi, checked_mode
from attn_mlir.flashinfer.table import ALIBI, NO_LIMIT, NO_POSITIONS
from attn_mlir.lse import with_sinks
from attn_mlir.masks import Mask, full
from attn_mlir.mods import softcap
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import as_float, as_int, flag, integer
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.kernel import machine_of
from attn_mlir.trace import MaskMod, ScoreMod

torch: Any = importlib.import_module("torch")

LSE_BASES = {"log2": LOG2_E, "ln": 1.0}  # factors of natural logarithms
_ATTENTION = renamed(
    attention, **{f"{operand}_descale": f"{operand}_scale" for operand in ("q", "k", "v")}
)


@dataclass(frozen=True)
class CallScales:
    """The scales of a call: numbers for operands of 16 bits, tables of the kernel for 8.

    Attributes:
      scale: of the scores.
      output: of O, once it is there.
      q, k, v: tables of f32, or None.
    """

    scale: float
    output: float
    q: Any
    k: Any
    v: Any


@dataclass(frozen=True)
class Problem:
    """The properties that all calls of `run` after one `plan` share.

    Attributes:
      heads, kv_heads, head_dim, v_head_dim: of q and of O.
      dtype, kv_dtype: names of the dtypes of q, and of k and v.
      out_dtype: name of that of O; None: as q.
      mask: in closed form: that of the next three.
      causal: whether a query sees no key to its right.
      window_left: keys to its left that it sees; -1: all.
      window_right: keys to its right, in the place of `causal`; None: that counts.
      cap: of the scores; 0: none.
      scale: of the scores; None: 1 / sqrt(head_dim).
      num_splits: splits of the keys; 0 chooses.
      split_size: keys of a split, if that is fixed instead.
      mask_mod: a mask by the caller, in the place of the causal one.
      positions: what scores say of positions, a `pos_encoding_mode`.
      rotates: whether q and k can be rotated before the kernel.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    kv_dtype: str
    out_dtype: str | None
    mask: Mask = field(default_factory=full)
    causal: object = False
    window_left: object = NO_LIMIT
    window_right: object = None
    cap: float = 0.0
    scale: float | None = None
    num_splits: int = 0
    split_size: int | None = None
    mask_mod: MaskMod | None = None
    positions: str = NO_POSITIONS
    rotates: bool = False

    @staticmethod
    def of(
        sizes: tuple[int, int, int, int | None],
        dtypes: tuple[object, object, object],
        *,
        called: tuple[str, str, str] = ("q_data_type", "kv_data_type", "o_data_type"),
        causal: object = False,
        window_right: object = None,
        mask_mod: MaskMod | None = None,
        rotates: bool = False,
        **scores: Any,
    ) -> Problem:
        """The problem that these arguments of `plan` say.

        Args:
          sizes: num_qo_heads, num_kv_heads, head_dim, and v_head_dim or None: as head_dim.
          dtypes: of q, of k and v, and of O: None takes that of q.
          called: the dtypes, by the caller.
          window_right, mask_mod, rotates: see `Problem`; causal, scores: see `scored`.

        Raises:
          SpecError: one that has no kernel.
        """
        pairs = zip(("num_qo_heads", "num_kv_heads", "head_dim"), sizes[:3], strict=True)
        heads, kv_heads, head_dim = (integer(name, value, 1) for name, value in pairs)
        v_head_dim = head_dim if sizes[3] is None else integer("head_dim_vo", sizes[3], 1)
        dtype = operand_dtype(dtypes[0], called[0])
        return Problem(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            dtype=dtype,
            kv_dtype=operand_dtype(dtypes[1], called[1], dtype),
            out_dtype=output_dtype(dtypes[2], called[2]),
            window_right=window_right,
            mask_mod=mask_mod,
            rotates=rotates,
        ).scored(causal, **scores)

    def scored(
        self,
        causal: object = False,
        *,
        window_left: object = NO_LIMIT,
        logits_soft_cap: object = None,
        sm_scale: float | None = None,
        pos_encoding_mode: object = NO_POSITIONS,
    ) -> Problem:
        """The same with other scores.

        Args:
          causal: counts without a `mask_mod`.
          window_left, logits_soft_cap, sm_scale, pos_encoding_mode: as of
            `BatchDecodeWithPagedKVCacheWrapper.plan`.

        Raises:
          SpecError: one that has no meaning.
        """
        is_causal = flag("causal", causal) and self.mask_mod is None
        cap = max(number("logits_soft_cap", logits_soft_cap, 0.0), 0.0)
        return dataclasses.replace(
            self,
            mask=mask_of(is_causal, window_left, self.window_right),
            causal=is_causal,
            window_left=window_left,
            cap=cap,
            scale=None if sm_scale is None else checked_scale(sm_scale),
            positions=checked_mode(pos_encoding_mode, rotates=self.rotates, cap=cap),
        )

    def within(self, window_left: object) -> Problem:
        """The same within another window; None: as `plan` was told.

        Raises:
          SpecError: no window.
        """
        if window_left is None or as_int(window_left) == as_int(self.window_left):
            return self
        mask = mask_of(self.causal, window_left, self.window_right)
        return dataclasses.replace(self, mask=mask, window_left=window_left)

    def with_splits(
        self,
        device: Any,
        sizes: Mapping[str, int],
        *,
        fixed_split_size: object,
        disable_split_kv: object,
        page_size: int = 1,
    ) -> Problem:
        """The same, with its splits of the keys, decided once.

        Args:
          device: that the calls run on.
          sizes: `batch`, and the longest `sq` and `sk`.
          fixed_split_size: pages of a split; None or -1 leaves the number of splits to a rule, by
            sizes.
          disable_split_kv: whether there is one split, whatever the other options.

        Raises:
          SpecError: splits of a size that has no kernel.
        """
        spec = mha(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            mask=self.mask,
            out_dtype=self.out_dtype,
        )
        if flag("disable_split_kv", disable_split_kv):
            return dataclasses.replace(self, num_splits=1)
        if fixed_split_size is not None and as_int(fixed_split_size) != NO_LIMIT:
            keys = _split_keys(fixed_split_size, page_size, sizes["sk"])
            return dataclasses.replace(self, num_splits=1, split_size=keys)
        machine = machine_of(None, view(torch.empty(0, device=device), "device"))
        choice = attention_choice(spec, sizes, machine)
        return dataclasses.replace(self, num_splits=split_count(0, choice))

    def check(self, q: Any) -> None:
        """Refuses a q that `plan` was not made for.

        Raises:
          SpecError: says what was planned.
        """
        tensor(q, "q", 3)
        if tuple(q.shape[1:]) != (self.heads, self.head_dim):
            raise SpecError(
                f"q must be [tokens, {self.heads}, {self.head_dim}] as planned, got "
                f"{list(q.shape)}: call plan with these sizes"
            )
        if q.dtype != TORCH_DTYPES[self.dtype]:
            raise SpecError(f"q is {q.dtype}, plan was told q_data_type {self.dtype}")

    def check_keys(self, name: str, k: Any, heads: int) -> None:
        """Refuses keys that `plan` was not made for.

        Args:
          heads: that they have.

        Raises:
          SpecError: says what was planned.
        """
        if k.dtype != TORCH_DTYPES[self.kv_dtype]:
            raise SpecError(f"{name} is {k.dtype}, plan was told kv_data_type {self.kv_dtype}")
        if (heads, k.shape[-1]) != (self.kv_heads, self.head_dim):
            raise SpecError(
                f"{name} has {heads} heads of {k.shape[-1]}, plan was told {self.kv_heads} of "
                f"{self.head_dim}: call plan with these sizes"
            )

    def scales(self, q: Any, options: Mapping[str, Any]) -> CallScales:
        """The scales of a call as numbers and tables.

        Args:
          options: `q_scale`, `k_scale` and `v_scale`, where there are any.

        Raises:
          SpecError: one that is no number, for operands of 16 bits.
        """
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        tables: list[Any] = [None, None, None]
        dtypes = (self.dtype, self.kv_dtype, self.kv_dtype)
        products = [1.0, 1.0, 1.0]
        values: dict[str, Any] = {x: options.get(x) for x in ("q_scale", "k_scale", "v_scale")}
        for i, (name, value) in enumerate(values.items()):
            if dtypes[i] not in NARROW_DTYPES:
                products[i] = number(name, value, 1.0)
            elif isinstance(value, torch.Tensor):
                tables[i] = value.to(q.device, torch.float32)
            else:
                tables[i] = torch.full((1,), number(name, value, 1.0), device=q.device)
        factors = [name for name, x in zip(values, products[:2], strict=False) if x != 1.0]
        called = " * ".join(["sm_scale", *factors])
        scale = check_scale(scale * products[0] * products[1], name=called)
        return CallScales(scale, products[2], *tables)

    def _modifier(self, device: Any) -> ScoreMod | None:
        """The modifier of scores: a cap, or a slope along the keys."""
        if self.positions == ALIBI:
            return alibi(self.heads, device)
        return softcap(self.cap) if self.cap else None

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        scales: CallScales,
        options: Mapping[str, Any],
        *,
        rows: int | None = None,
        **lengths: Any,
    ) -> Any:
        """O, with `return_lse` also LSE, as FlashInfer has them.

        Args:
          q: [tokens, heads, head_dim].
          k, v: of `attention`; a cache holds its own scales.
          options: where there are any, `return_lse`, `sinks`, `out` [tokens, heads, v_head_dim],
            memory for O, `lse` f32, memory for LSE, `lse_base` log2 or ln, `lse_layout` NH for
            [tokens, heads] or HN for [heads, tokens].
          rows: queries of each sequence, all of them one behind the other; None: see `lengths`.

        Returns:
          [tokens, heads, v_head_dim], and LSE, which counts a sink.
        """
        tokens = q.shape[0]
        out, lse, sinks = (options.get(name) for name in ("out", "lse", "sinks"))
        return_lse = flag("return_lse", options.get("return_lse", False))
        factor = LSE_BASES[_one_of("lse_base", options, LSE_BASES)]
        by_head = _one_of("lse_layout", options, ("NH", "HN")) == "HN"
        if lse is not None:
            others = {"q": q, "out": out} if out is not None else {"q": q}
            views = {name: view(tensor(x, name, 3), name) for name, x in others.items()}
            shape = (self.heads, tokens) if by_head else (tokens, self.heads)
            check_memory("lse", tensor(lse, "lse", 2), shape, "f32", views)
        if sinks is not None:
            tensor(sinks, "sinks", 1)
        batch = tokens // rows if rows else 1
        by_sequence: Callable[[Any], Any] = lambda x: (  # noqa: E731
            x if rows is None else x.unflatten(0, (batch, rows))
        )
        if v is not None and scales.k is not None:
            lengths |= {"k_descale": scales.k, "v_descale": scales.v}
        if self.split_size is not None:
            lengths |= {"schedule": fixed_split_schedule()}
        results = _ATTENTION(
            by_sequence(q),
            k,
            v,
            mask=self.mask,
            mask_mod=self.mask_mod,
            score_mod=self._modifier(q.device),
            sinks=sinks,
            scale=scales.scale,
            out_dtype=self.out_dtype,
            out=None if out is None else by_sequence(tensor(out, "out", 3)),
            q_descale=scales.q,
            num_splits=self.num_splits,
            split_size=self.split_size,
            return_lse=return_lse,
            **lengths,
        )
        o, lse_natural = results if return_lse else (results, None)
        o = o if out is None else out
        o = o if rows is None or out is not None else o.flatten(0, 1)
        if scales.output != 1.0:
            o.mul_(scales.output)
        if lse_natural is None:
            return o
        lse_natural = lse_natural if sinks is None else with_sinks(lse_natural, sinks)
        found = lse_natural if rows is None else lse_natural.transpose(0, 1).flatten(1)
        found = (found if by_head else found.transpose(0, 1)) * factor
        if lse is None:
            return o, found.contiguous()
        lse.copy_(found)
        return o, lse


def _one_of(name: str, options: Mapping[str, Any], allowed: Iterable[str]) -> str:
    """An option that is one of several words, the first one where it is left out.

    Raises:
      SpecError: it is none of them.
    """
    words = list(allowed)
    value = options.get(name, words[0])
    if value not in words:
        raise SpecError(f"{name} must be {' or '.join(words)}, got {shown(value, 40)}")
    return value


def checked_scale(sm_scale: object) -> float:
    """A scale as the caller wrote it, which engines compare; kernels round it to f32.

    Raises:
      SpecError: no scale.
    """
    rounded = check_scale(sm_scale, name="sm_scale")
    return as_float(sm_scale) or rounded


def _split_keys(fixed_split_size: object, page_size: int, sk: int) -> int:
    """Keys of a split of so many pages.

    Raises:
      SpecError: no whole key tiles, or too many splits of the longest sequence.
    """
    pages = integer("fixed_split_size", fixed_split_size, 1)
    keys = pages * page_size
    least = STREAM_KEYS // math.gcd(STREAM_KEYS, page_size)
    if pages % least:
        raise SpecError(
            f"fixed_split_size must be a multiple of {least} pages of {page_size}, which are "
            f"{least * page_size} keys, got {pages}"
        )
    if -(-sk // keys) > MAX_SPLITS:
        raise SpecError(
            f"fixed_split_size {pages} makes {-(-sk // keys)} parts of {sk} keys, allowed are "
            f"{MAX_SPLITS}"
        )
    return keys
