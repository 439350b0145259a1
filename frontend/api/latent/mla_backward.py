"""`mla_backward`: checks the arguments and plans the gradients of latent attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from attn_mlir.api.attention_backward import check_rows, wanted_of
from attn_mlir.api.captured_gradients import MOST_ELEMENTS
from attn_mlir.api.copyable import check_copyable
from attn_mlir.api.latent.mla import CALLED, check_shapes, model_scale, sizes_of
from attn_mlir.api.lengths import SequenceArguments, sequence_lengths
from attn_mlir.api.plan import Allocation, Plan, PlanView, Step, named_extents
from attn_mlir.api.planners import declared_by
from attn_mlir.api.row_numbers import rows_of
from attn_mlir.arrays import stream_of
from attn_mlir.caches import CACHES
from attn_mlir.compiling.backward.accumulators import ZeroRowsSpec
from attn_mlir.compiling.backward.mla_gradients import (
    MlaGradientsRequest,
    MlaKvGradientsSpec,
    MlaQGradientsSpec,
)
from attn_mlir.compiling.backward.row_sums import SumPartsSpec
from attn_mlir.compiling.dtypes import WIDE_DTYPES, refused_dtype
from attn_mlir.compiling.routes import choice_of
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.masks import Mask
from attn_mlir.runtime.call.binding import check_devices
from attn_mlir.runtime.call.tensors import dense_strides, view
from attn_mlir.runtime.kernel import DeviceChoice, machine_of

MLA_WANTED = ("q_nope", "q_rope", "k_nope", "k_rope", "v")  # the operands, in the order of results
DK_ROPE, PARTS = "dk_rope", "dk_rope_parts"


class MlaGradients(NamedTuple):
    """The gradients of the operands of `mla`, each of its operand's shape and dtype.

    Attributes:
      dq_nope, dq_rope, dk_nope, dk_rope, dv: the gradients; None if not requested.
    """

    dq_nope: Any
    dq_rope: Any
    dk_nope: Any
    dk_rope: Any
    dv: Any


def _gradients(results: Sequence[Any], options: Mapping[str, Any]) -> MlaGradients:
    """The results of a plan, by their names."""
    made = results if isinstance(results, tuple) else [results]
    found = dict(zip(wanted_of(options.get("wanted"), MLA_WANTED), made, strict=True))
    return MlaGradients(*map(found.get, MLA_WANTED))


@dataclass(frozen=True, eq=False)
class _MlaBackwardOperands:
    """The arguments before the lengths: fields follow the bases, the last first."""

    q_nope: Any
    q_rope: Any
    k_nope: Any
    k_rope: Any
    v: Any
    o: Any
    lse: Any
    do: Any
    _: KW_ONLY
    dlse: Any = None
    mask: Mask | None = None
    scale: float


@dataclass(frozen=True, eq=False, kw_only=True)
class MlaBackwardCall(SequenceArguments, _MlaBackwardOperands):
    """The arguments of `mla_backward`, which says what they are."""

    wanted: Sequence[str] | None = None
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(MlaBackwardCall, returns=_gradients)
def mla_backward(call: MlaBackwardCall) -> Plan:
    """The gradients of the operands of `mla`, from the gradient of its output.

    No kernel adds to memory atomically, so the same call gives the same bits. All heads share
    k_rope, so its gradient is a sum over heads: a kernel writes one f32 part for each key-value
    head, and a further launch adds the parts in the order of heads. The parts take
    [kv_heads, batch, sk, rope] f32 of memory during the call.

    Args:
      q_nope, q_rope, k_nope, k_rope, v: the operands of the call of `mla`, bf16 or f16, read in
        place. nope + rope + v_head_dim is at most 320 on `sm_90a`, 384 on `sm_100a`.
      o: O of the call of `mla`, of q_nope's dtype.
      lse: LSE of the call of `mla`, [batch, heads, sq] f32, or [heads, total] with `cu_seqlens_q`.
      do: the gradient of O, of o's shape and dtype.
      dlse: the gradient of LSE, of lse's shape and dtype; None: 0. The elements of rows that see no
        key are ignored.
      mask, scale: as in the call of `mla`.
      cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k: as in the call
        of `mla`.
      wanted: names of the operands whose gradients are computed; by default all. Kernels that
        compute no such gradient are not launched.
      device, stream: as of `attention`.

    Returns:
      MlaGradients(dq_nope, dq_rope, dk_nope, dk_rope, dv): arrays of q_nope's library with the
      shapes and dtypes of the operands; None for gradients that are not requested. The gradients of
      a query that sees no key, and of a key that no query sees, are 0. Rows outside of every
      sequence are 0 in dk_rope, and are not written elsewhere.

    Raises:
      SpecError: an argument is wrong, or has no kernel; nothing was launched.
      TargetError: the device cannot run the kernels, or the toolchain is incomplete.
      LaunchError: a launch failed.
    """
    wanted = wanted_of(call.wanted, MLA_WANTED)
    if not wanted:
        raise SpecError("wanted names nothing: there is no gradient to compute")
    if isinstance(call.k_rope, CACHES):
        supported = "gradients are those of keys in tensors of their own"
        raise SpecError(no_kernel(f"k_rope of a {type(call.k_rope).__name__}", supported))
    names = [*MLA_WANTED, "o", "lse", "do", *(["dlse"] if call.dlse is not None else [])]
    views = {name: view(getattr(call, name), name) for name in names}
    operands = {name: views[name] for name in MLA_WANTED}
    for name, operand in operands.items():
        if operand.dtype not in WIDE_DTYPES:
            raise refused_dtype(name, operand.dtype, WIDE_DTYPES)
        if operand.dtype != views["q_nope"].dtype:
            got = f"{name} is {operand.dtype}, q_nope is {views['q_nope'].dtype}"
            raise SpecError(f"{got}: all must be the same")
    q, k, v = (views[name] for name in ("q_nope", "k_nope", "v"))
    lengths = sequence_lengths({"q": q, "k": k, "v": v}, call.of_tensors(), called=CALLED)
    check_shapes(operands, None)
    options: dict[str, Any] = {**sizes_of(operands), "mask": call.mask, "lengths": lengths.kinds}
    of_keys = MlaKvGradientsSpec(**options)
    kernels: list[MlaGradientsRequest] = [of_keys] if {*wanted} & {"k_nope", "k_rope", "v"} else []
    kernels += [MlaQGradientsSpec(**options)] if {*wanted} & {"q_nope", "q_rope"} else []
    check_rows(views, "q_nope", of_keys)
    check_devices(views)
    for name in (*operands, "o", "do"):
        check_copyable(views[name], name)
    machine = machine_of(call.device, q)
    target, *_ = (choice_of(x, lengths.sizes, machine).call.target for x in kernels)
    extents, rows = named_extents(of_keys, operands), rows_of(views, of_keys, None)
    outputs = [x for kernel in kernels for x in kernel.tensors if x.role == "out"]
    memory = {x.name: Allocation.of(x, extents) for x in outputs}
    arguments: dict[str, object] = {
        **views,
        **lengths.arrays,
        **lengths.scalars,
        "scale": model_scale(call.scale),
        **{name: PlanView(name, x.shape) for name, x in memory.items()},
        **rows.arguments,
    }
    before, after = list[Step](), list[Step]()
    if PARTS in memory:
        parts = _Parts.of(memory[PARTS], q.dtype)
        memory |= {PARTS: parts.memory, DK_ROPE: parts.total}
        arguments[PARTS] = parts.as_written()
        before = [parts.zeros()] if lengths.kinds.ragged_k or lengths.kinds.used_k else []
        after = [parts.sums()]
    steps = [Step(x, {y.name: arguments[y.name] for y in x.operands}) for x in kernels]
    results = [memory.pop(f"d{name}") for name in wanted]
    return Plan(
        [rows.step, *before, *steps, *after],
        results,
        [*rows.workspace, *memory.values()],
        call.q_nope,
        q,
        call.device,
        stream_of(call.stream, call.device, call.q_nope, q),
        target.chip,
    )


class _Parts(NamedTuple):
    """The parts of the gradient of k_rope, one for each key-value head.

    Attributes:
      memory: the memory of the parts, [kv_heads, ..., rope] f32.
      total: the sum of the parts, [..., 1, rope].
    """

    memory: Allocation
    total: Allocation

    @staticmethod
    def of(written: Allocation, dtype: str) -> _Parts:
        """The parts that a kernel writes.

        Args:
          written: the kernel's result, [..., kv_heads, rope].
          dtype: dtype of the sum.

        Raises:
          SpecError: the parts have more than 2^31 - 1 elements.
        """
        *rows, heads, columns = written.shape
        if math.prod(written.shape) > MOST_ELEMENTS:
            sizes = f"k_rope {[*rows, 1, columns]} beside {heads} heads of k_nope"
            raise SpecError(no_kernel(sizes, "its gradient has more than 2^31 parts"))
        memory = Allocation(PARTS, written.dtype, (heads, *rows, columns))
        return _Parts(memory, Allocation(DK_ROPE, dtype, (*rows, 1, columns)))

    def as_written(self) -> PlanView:
        """The memory with the axes of the kernel's result."""
        (heads, *rows, columns), (of_heads, *strides) = (
            self.memory.shape,
            dense_strides(self.memory.shape),
        )
        shape = (*rows, heads, columns)
        return PlanView(PARTS, shape, (*strides[:-1], of_heads, strides[-1]))

    def zeros(self) -> Step:
        """The launch that zeroes the parts before a kernel that does not write all rows."""
        *rows, columns = self.memory.shape
        accum = PlanView(PARTS, (1, math.prod(rows), 1, columns))
        return Step(ZeroRowsSpec(heads=1, head_dim=columns), {"accum": accum})

    def sums(self) -> Step:
        """The launch after the kernel, which sums the parts."""
        heads, *rest = self.memory.shape
        elements = math.prod(rest)
        views = {
            "parts": PlanView(PARTS, (heads, elements)),
            "sums": PlanView(DK_ROPE, (elements,)),
        }
        return Step(SumPartsSpec(dtype=self.total.dtype), views)
