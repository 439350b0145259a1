"""The requests for the kernels that gradients of attention are made by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import WIDE_DTYPES, dtype_name
from attn_mlir.compiling.mha_options import MODIFIER
from attn_mlir.compiling.options import HEAD_DIM_STEP, MAX_HEADS
from attn_mlir.compiling.request import Request, option, request
from attn_mlir.compiling.sequences import HeadsRequest, table
from attn_mlir.compiling.spec import block_lists
from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.dialect.attn.programs.derivative import differentiated
from attn_mlir.dialect.attn.programs.program import CapturedTensor, Program
from attn_mlir.dialect.attn.programs.reads import KEY_PARTS
from attn_mlir.dialect.attn.workspace import ROW_WEIGHTS, TURNS
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.schedules.policy.facts import Facts, Modifier

GRADIENT_DTYPE: Any = option(
    converter=partial(dtype_name, argument="dtype", allowed=WIDE_DTYPES), default="bf16"
)
"""The option `dtype`, of operands and gradients."""


def check_tensors(request: HeadsRequest) -> None:
    """Refuses keys in a cache.

    Raises:
      SpecError: names the option.
    """
    if request.cache is not None:
        raise SpecError(no_kernel("cache", "gradients are of keys in tensors of their own"))


@request
class DeltaSpec(Request):
    """The term subtracted from the gradient of each weight of a row, for any batch and lengths.

    Args:
      heads: query heads.
      v_head_dim: elements per head of O.
      dtype: of O and of its gradient: `bf16` or `f16`.
      dlse: dtype of the gradient of the LSE, `f32`; None without one.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "delta"

    heads: int = option(converter=partial(integer, "heads", least=1, most=MAX_HEADS))
    v_head_dim: int = option(converter=partial(options.head_dim, "v_head_dim", step=HEAD_DIM_STEP))
    dtype: str = GRADIENT_DTYPE
    dlse: str | None = option(converter=partial(options.one_of, "dlse", ("f32",)), default=None)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """O, its gradient, the LSE and its gradient; delta."""
        rows = ("batch", "sq", self.heads, self.v_head_dim)
        numbers = ("batch", self.heads, "sq")
        return (
            Operand("o", self.dtype, rows),
            Operand("do", self.dtype, rows),
            Operand("lse", "f32", numbers),
            *((Operand("dlse", self.dlse, numbers),) if self.dlse is not None else ()),
            Operand("delta", "f32", numbers, "out"),
        )

    @property
    def kernel_name(self) -> str:
        """The dtype of O, the heads and their size."""
        word = "" if self.dlse is None else "_dlse"
        return f"attn_delta{word}_{self.dtype}_h{self.heads}_d{self.v_head_dim}"

    def problem(self) -> Facts:
        """The facts of the rows of O."""
        return Facts(
            operation=self.operation,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=0,
            v_head_dim=self.v_head_dim,
            q_type=self.dtype,
            kv_type=self.dtype,
            out_type="f32",
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `attn.delta`."""
        from attn_mlir.dialect.attn import make_delta

        return {"delta": make_delta(*arguments.values()).delta}


@request
class GradientsRequest(HeadsRequest):
    """Gradients of attention for any batch and any sequence lengths, given that of its output.

    Args:
      head_dim: elements per head of Q and K, a multiple of 8.
      v_head_dim: elements per head of V and O; `head_dim` when left out.
      dtype: of Q, K, V, the gradient of O and the results: `bf16` or `f16`.
      modifier: the traced program of the attention's score modifier and predicate, as of `MhaSpec`;
        its tensors are passed with every call.
      row_weights: whether each query has a factor of its probabilities, as with sinks and a
        gradient of the LSE.
      block: positions, heads and keys of the blocks of scores that lists name, as `Choice.block`
        says; None for a kernel without lists. For gradients of keys they are lists of query blocks,
        which have all heads of a group.
      adjoints: (name, leading axes) of tensors that the modifier reads and whose gradients the
        kernel writes in parts (`parts_of`). The leading axes of the parts, before those of the
        tensor, are coordinates of scores, and a name of `KEY_PARTS` if contributions of several
        keys are added. None: contributions are added to memory of the tensor's shape, in any order.

    Raises:
      SpecError: a value that has no kernel.
    """

    results: ClassVar[tuple[str, ...]]
    accumulators: ClassVar[tuple[str, ...]] = ()  # memory of f32 that is added to

    head_dim: int = option(converter=partial(options.head_dim, "head_dim", step=HEAD_DIM_STEP))
    v_head_dim: int = option(
        converter=partial(options.head_dim, "v_head_dim", step=HEAD_DIM_STEP), default=None
    )
    dtype: str = GRADIENT_DTYPE
    modifier: Program | None = MODIFIER
    block: tuple[int, int, int] | None = option(
        converter=options.unchecked, default=None, written=list, read=tuple
    )
    row_weights: bool = option(converter=partial(flag, "row_weights"), default=False)
    adjoints: tuple[tuple[str, tuple[str, ...] | None], ...] = option(
        converter=options.adjoints, default=(), written=list, read=tuple
    )

    def completed(self) -> Mapping[str, object]:
        """Values of the size of keys."""
        return {**super().completed(), "v_head_dim": self.head_dim}

    def check_together(self) -> None:
        """Refuses groups of unequal sizes, caches, and modifiers without a derivative.

        Raises:
          SpecError: names the option.
        """
        self.check_heads()
        check_tensors(self)
        if self.modifier is not None:
            differentiated(self.modifier)
        if self.block is not None:
            self._set("block", options.gradient_block(self.block, self.group))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Q, K, V, the gradient of O, two numbers of each row, the scale; results, lengths and
        what the modifier reads.
        """
        *lead, rows = self.rows_q
        queries = (*self.rows_q, self.heads, self.head_dim)
        keys = (*self.rows_k, self.kv_heads, self.head_dim)
        values = (*self.rows_k, self.kv_heads, self.v_head_dim)
        results = {"dq": queries, "dk": keys, "dv": values, "dq_accum": queries}
        return (
            Operand("q", self.dtype, queries),
            Operand("k", self.dtype, keys),
            Operand("v", self.dtype, values),
            Operand("do", self.dtype, (*self.rows_q, self.heads, self.v_head_dim)),
            *(Operand(name, "f32", (*lead, self.heads, rows)) for name in ("lse", "delta")),
            Operand("scale", "f32", role="scalar", default=1.0 / math.sqrt(self.head_dim)),
            *(Operand(name, self.dtype, results[name], "out") for name in self.results),
            *(Operand(name, "f32", results[name], "inout") for name in self.accumulators),
            *self.index_operands,
            *(() if self.block is None else block_lists()),
            *((Operand(ROW_WEIGHTS, "f32", (*lead, self.heads, rows)),) * self.row_weights),
            *(table(x.name, x.dtype, x.rank) for x in self._read),
            *(self._parts(*pair) for pair in self.adjoints),
        )

    def _parts(self, name: str, lead: tuple[str, ...] | None) -> Operand:
        """The memory for what scores pass on to a tensor."""
        (tensor,) = (x for x in self._read if x.name == name)
        memory = table(parts_of(name), "f32", len(lead or ()) + tensor.rank)
        return dataclasses.replace(memory, role="inout")

    @property
    def _read(self) -> tuple[CapturedTensor, ...]:
        """The tensors that the modifier reads."""
        return () if self.modifier is None else self.modifier.tensors

    @property
    def kernel_name(self) -> str:
        """The static options."""
        words = (
            self.mask_name,
            "mod" if self.modifier is not None else "",
            "blocks" if self.block is not None else "",
            "weighed" if self.row_weights else "",
            self.lengths.short_name,
            self.dtype,
            f"h{self.heads}k{self.kv_heads}",
        )
        parts = f"_a{len(self.adjoints)}" if self.adjoints else ""
        values = f"v{self.v_head_dim}" if self.v_head_dim != self.head_dim else ""
        return (
            f"attn_{self.operation}_{'_'.join(filter(None, words))}_d{self.head_dim}{values}{parts}"
        )

    def problem(self) -> Facts:
        """The facts of the attention that they are gradients of."""
        return dataclasses.replace(
            self.attention_facts(self.head_dim, self.v_head_dim, self.dtype),
            block=None if self.block is None else Block(*self.block),
            modifier=Modifier.of(self.modifier),
        )

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """One operation of the dialect."""
        from attn_mlir.dialect.attn import GradientsOp, KvGradientsOp, QGradientsOp, make_gradients
        from attn_mlir.dialect.attn.storage import sequences_view

        stored = (
            sequences_view(arguments[name], self.lengths, arguments, of_keys=name in ("k", "v"))
            for name in ("q", "k", "v", "do")
        )
        rest = (arguments[name] for name in ("lse", "delta", "scale", *self.accumulators))
        kinds = {
            "gradients": GradientsOp,
            "kv_gradients": KvGradientsOp,
            "q_gradients": QGradientsOp,
        }
        region = partial(self._emit_region, arguments) if self._has_region else None
        op = make_gradients(kinds[self.operation], *stored, *rest, mask=self.mask, score_mod=region)
        return {name: getattr(op, name) for name in self.results}

    @property
    def _has_region(self) -> bool:
        return self.modifier is not None or self.row_weights or self.block is not None

    def _emit_region(self, arguments: Mapping[str, Any], *coordinates: Any) -> Any:
        """Emits scores and their gradients beside products; returns the modified score."""
        from attn_mlir.dialect.attn import RowWeightsOp
        from attn_mlir.dialect.attn.blocks import make_blocks
        from attn_mlir.dialect.attn.programs.expression import Target, emit_derivative

        if self.block is not None:
            make_blocks(arguments, self.block)
        if self.row_weights:
            RowWeightsOp(arguments[ROW_WEIGHTS])
        if self.modifier is None:
            return coordinates[0]
        tensors, parts = [arguments[x.name] for x in self._read], {*KEY_PARTS}
        targets = {
            name: Target(
                arguments[parts_of(name)], lead or (), lead is None or bool(parts & {*lead})
            )
            for name, lead in self.adjoints
        }
        rows = "q" if "dq" in self.results else "k"
        return emit_derivative(self.modifier, coordinates, tensors, targets, rows)


@request
class KvGradientsSpec(GradientsRequest):
    """The gradients of keys and values; options as of every request of gradients.

    Args:
      heads, kv_heads, head_dim, v_head_dim, dtype, modifier: as of `GradientsRequest`.
      row_weights, block, adjoints, mask, lengths, cache: as of `GradientsRequest`.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "kv_gradients"
    results: ClassVar[tuple[str, ...]] = ("dk", "dv")


@request
class QGradientsSpec(GradientsRequest):
    """The gradient of queries; options as of every request of gradients.

    Args:
      heads, kv_heads, head_dim, v_head_dim, dtype, modifier: as of `GradientsRequest`.
      row_weights, block, adjoints, mask, lengths, cache: as of `GradientsRequest`.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "q_gradients"
    results: ClassVar[tuple[str, ...]] = ("dq",)


def parts_of(name: str) -> str:
    """The name of the memory for what scores pass on to a tensor."""
    return f"parts_of_{name}"


@request
class GradientsSpec(GradientsRequest):
    """The gradients of keys and values, and sums of those of queries, which are added to memory.

    Args:
      in_turn: whether blocks of keys add in order, so that the same call gives the same bits.
      heads, kv_heads, head_dim, v_head_dim, dtype, modifier: as of `GradientsRequest`.
      row_weights, block, adjoints, mask, lengths, cache: as of `GradientsRequest`.

    Raises:
      SpecError: a value that has no kernel.
    """

    operation: ClassVar[str] = "gradients"
    results: ClassVar[tuple[str, ...]] = ("dk", "dv")
    accumulators: ClassVar[tuple[str, ...]] = ("dq_accum",)

    in_turn: bool = option(converter=partial(flag, "in_turn"), default=False)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those of every request, and the turns."""
        turns = Operand(TURNS, "i32", ("batch", self.heads, "turns"), "inout")
        return super().operands + (turns,) * self.in_turn

    @property
    def kernel_name(self) -> str:
        """As of every request, with a word for turns."""
        return super().kernel_name + "_in_turn" * self.in_turn

    def problem(self) -> Facts:
        """As of every request, and whether blocks take turns."""
        return dataclasses.replace(super().problem(), in_turn=self.in_turn)

    @property
    def _has_region(self) -> bool:
        return self.in_turn or super()._has_region

    def _emit_region(self, arguments: Mapping[str, Any], *coordinates: Any) -> Any:
        """As of every request, and the turns."""
        from attn_mlir.dialect.attn import TurnsOp

        if self.in_turn:
            TurnsOp(arguments[TURNS])
        return super()._emit_region(arguments, *coordinates)
