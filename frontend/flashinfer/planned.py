"""What `plan` is told of the calls of `run` that follow, and how one is carried out."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_mlir.calls import attention
from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.compiling.routes import routed
from attn_mlir.compiling.spec import mha
from attn_mlir.compiling.splits import split_count
from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.options import LOG2_E, TORCH_DTYPES, number, tensor
from attn_mlir.masks import Mask
from attn_mlir.mods import softcap
from attn_mlir.runtime.kernel import machine_of
from attn_mlir.runtime.tensors import view
from attn_mlir.trace import MaskMod

torch: Any = importlib.import_module("torch")


@dataclass(frozen=True)
class Factors:
    """Factors of a call: numbers where operands have 16 bits, tables of the kernel where they have 8.

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
    """What all calls of `run` after one `plan` have in common.

    Attributes:
      heads, kv_heads, head_dim, v_head_dim: of q and of O.
      dtype, kv_dtype: names of the dtypes of q, and of k and v.
      out_dtype: name of that of O; None: as q.
      mask: in closed form.
      window_left: as `plan` was told.
      cap: of the scores; 0: none.
      scale: of the scores; None: 1 / sqrt(head_dim).
      num_splits: parts of the keys; 0 chooses.
      mask_mod: a mask by the caller, in the place of the causal one.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    kv_dtype: str
    out_dtype: str | None
    mask: Mask
    window_left: int
    cap: float
    scale: float | None
    num_splits: int = 0
    mask_mod: MaskMod | None = None

    def with_parts(self, device: Any, batch: int, sq: int, sk: int, *, unsplit: bool) -> Problem:
        """The same, with the number of parts that these sizes ask for, decided once.

        Args:
          device: that the calls run on.
          unsplit: whether one part is asked for.
        """
        spec = mha(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            dtype=self.dtype,
            mask=self.mask,
            out_dtype=self.out_dtype,
        )
        place = view(torch.empty(0, device=device), "device")
        sizes = {"batch": batch, "sq": sq, "sk": sk}
        machine = machine_of(None, place)
        spec = routed(spec, sq, machine)
        count = 1 if unsplit else split_count(0, spec, sizes, lambda: machine)
        return dataclasses.replace(self, num_splits=count)

    def check(self, q: Any) -> None:
        """Refuses a q that `plan` was not made for.

        Raises:
          SpecError: says what was planned.
        """
        tensor(q, "q", 3)
        if tuple(q.shape[1:]) != (self.heads, self.head_dim):
            raise SpecError(
                f"q must be [tokens, {self.heads}, {self.head_dim}] as planned, got {list(q.shape)}: "
                "call plan with these sizes"
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

    def factors(self, q: Any, q_scale: Any, k_scale: Any, v_scale: Any) -> Factors:
        """Where the factors of a call go.

        Raises:
          SpecError: one that is no number, for operands of 16 bits.
        """
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        tables: list[Any] = [None, None, None]
        dtypes = (self.dtype, self.kv_dtype, self.kv_dtype)
        products = [1.0, 1.0, 1.0]
        given = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        for i, (name, value) in enumerate(given.items()):
            if dtypes[i] not in NARROW_DTYPES:
                products[i] = number(name, value, 1.0)
            elif isinstance(value, torch.Tensor):
                tables[i] = value.to(q.device, torch.float32)
            else:
                tables[i] = torch.full((1,), number(name, value, 1.0), device=q.device)
        return Factors(scale * products[0] * products[1], products[2], *tables)

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        factors: Factors,
        *,
        rows: int | None = None,
        out: Any = None,
        lse: Any = None,
        return_lse: bool = False,
        sinks: Any = None,
        **lengths: Any,
    ) -> Any:
        """O, with `return_lse` also LSE, as FlashInfer has them.

        Args:
          q: [tokens, heads, head_dim].
          k, v: of `attention`; a cache holds its own factors.
          rows: queries of each sequence, of which q holds one after the other; None: `lengths` tells.
          out: [tokens, heads, v_head_dim], memory for O; lse: [tokens, heads] f32, memory for LSE.

        Returns:
          [tokens, heads, v_head_dim], and [tokens, heads] in base 2, which counts a sink.
        """
        tokens = q.shape[0]
        if lse is not None and tuple(tensor(lse, "lse", 2, "f32").shape) != (tokens, self.heads):
            raise SpecError(f"lse must be [{tokens}, {self.heads}], got {list(lse.shape)}")
        parts: Callable[[Any], Any] = lambda x: x if rows is None else x.unflatten(0, (-1, rows))  # noqa: E731
        if v is not None and factors.k is not None:
            lengths |= {"k_descale": factors.k, "v_descale": factors.v}
        found = attention(
            parts(q),
            k,
            v,
            mask=self.mask,
            mask_mod=self.mask_mod,
            score_mod=softcap(self.cap) if self.cap else None,
            sinks=sinks,
            scale=factors.scale,
            out_dtype=self.out_dtype,
            out=None if out is None else parts(tensor(out, "out", 3)),
            q_descale=factors.q,
            num_splits=self.num_splits,
            return_lse=return_lse,
            **lengths,
        )
        o, sums = found if return_lse else (found, None)
        o = o if out is None else out
        o = o if rows is None or out is not None else o.flatten(0, 1)
        if factors.output != 1.0:
            o.mul_(factors.output)
        if sums is None:
            return o
        by_token = sums.transpose(-1, -2) if rows is None else sums.transpose(1, 2).flatten(0, 1)
        by_token = by_token * LOG2_E
        if sinks is not None:
            by_token = torch.logaddexp2(by_token, sinks.float() * LOG2_E)
        if lse is None:
            return o, by_token.contiguous()
        lse.copy_(by_token)
        return o, lse
