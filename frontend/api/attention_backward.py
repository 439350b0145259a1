"""`attention_backward`: checks the arguments and plans the gradients of attention."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from attn_mlir.api.array_checks import checked_array
from attn_mlir.api.attention import check_captured, check_scale, spec_of
from attn_mlir.api.captured_gradients import CapturedGradient, captured_gradients, check_names
from attn_mlir.api.copyable import check_copyable
from attn_mlir.api.fused_gradients import has_kernel, launches_of, tiles_of
from attn_mlir.api.lengths import SequenceArguments, sequence_lengths
from attn_mlir.api.plan import Allocation, Plan, PlanView, Step, named_extents
from attn_mlir.api.planners import declared_by
from attn_mlir.api.row_numbers import SINK_DTYPES, rows_of, sums_of_sinks
from attn_mlir.arrays import stream_of
from attn_mlir.block_masks.blocks import mask_of, of_call
from attn_mlir.caches import CACHES
from attn_mlir.compiling.backward.gradients import (
    GradientsRequest,
    GradientsSpec,
    KvGradientsSpec,
    QGradientsSpec,
    parts_of,
)
from attn_mlir.compiling.backward.mla_gradients import MlaGradientsRequest
from attn_mlir.compiling.dtypes import WIDE_DTYPES, dtype_name, refused_dtype
from attn_mlir.compiling.routes import choice_of
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.errors import SpecError, no_kernel, shown
from attn_mlir.masks import Mask
from attn_mlir.mods import check_extents
from attn_mlir.runtime.call.binding import check_devices
from attn_mlir.runtime.call.scalars import flag
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice, machine_of
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.trace import MaskMod, ScoreMod, trace

OPERAND_GRADIENTS = ("dq", "dk", "dv")
WANTED = ("q", "k", "v", "sinks")  # arguments that have gradients, in the order of results
OF_FORWARD = (
    *("return_lse", "out_dtype", "schedule", "query_tiles", "tile_order"),
    *("num_splits", "split_size", "sm_margin"),
)  # arguments of `attention` that the gradients do not depend on


class Gradients(NamedTuple):
    """The gradients of the arguments of `attention`, each of its argument's shape and dtype.

    Attributes:
      dq, dk, dv: the gradients of the operands; None if not requested.
      dsinks: the gradient of the sinks' logits; None without sinks, or if not requested.
      captured: the gradients of arrays that `score_mod` captures, by the requested names.
    """

    dq: Any
    dk: Any
    dv: Any
    dsinks: Any = None
    captured: Mapping[str, Any] = MappingProxyType({})


def _gradients(results: Sequence[Any], options: Mapping[str, Any]) -> Gradients:
    """The results of a plan, of `WANTED` and of captured arrays, by their names."""
    made = list(results) if isinstance(results, tuple) else [results]
    names = tuple(options.get("captured", ()))
    captured = dict(zip(names, made[len(made) - len(names) :], strict=True))
    wanted = wanted_of(options.get("wanted"), _offered(options.get("sinks")))
    found = dict(zip(wanted, made, strict=False))
    return Gradients(*(found.get(name) for name in WANTED), captured=captured)


def _offered(sinks: object | None) -> tuple[str, ...]:
    """The arguments of a call that have gradients."""
    return WANTED[:-1] if sinks is None else WANTED


def wanted_of(names: Sequence[str] | None, offered: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments whose gradients are requested, in the order of `offered`; all if None.

    Raises:
      SpecError: `names` has a name that is not in `offered`.
    """
    if names is None:
        return offered
    is_list = isinstance(cast(object, names), list | tuple)
    if not is_list or not set(names) <= set(offered) or len(set(names)) < len(names):
        allowed = ", ".join(offered)
        raise SpecError(f"wanted must be a tuple of some of {allowed}, got {shown(names, 40)}")
    return tuple(name for name in offered if name in names)


@dataclass(frozen=True, eq=False)
class _BackwardOperands:
    """The arguments before the lengths: fields follow the bases, the last first."""

    q: Any
    k: Any
    v: Any
    o: Any
    lse: Any
    do: Any
    _: KW_ONLY
    dlse: Any = None
    mask: Mask | None = None
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    block_mask: Any = None
    sinks: Any = None
    scale: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionBackwardCall(SequenceArguments, _BackwardOperands):
    """The arguments of `attention_backward`, which says what they are."""

    wanted: Sequence[str] | None = None
    captured: Any = ()
    dq_dtype: object = None
    deterministic: bool = True
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(AttentionBackwardCall, returns=_gradients)
def attention_backward(call: AttentionBackwardCall) -> Plan:
    """The gradients of q, k and v of `attention`, from the gradient of its output.

    Three kernels compute them. The first one sums O x dO along each row. The second one keeps key
    tiles in place while queries stream past them, the third one query tiles while keys stream. None
    adds to memory atomically, so the same call gives the same bits; see `deterministic`.

    Args:
      q, k, v: the operands of the call of `attention`, bf16 or f16, with head sizes up to 256; on
        `sm_100a` head_dim + v_head_dim is at most 384.
      o: O of the call, of q's dtype.
      lse: LSE of the call, [batch, heads, sq] f32, or [heads, total] with `cu_seqlens_q`. O and LSE
        may be merged from several calls, as in ring attention: the gradients are then the part that
        comes from the keys of this call.
      do: the gradient of O, of o's shape and dtype.
      dlse: the gradient of LSE, of lse's shape and dtype; None: 0. The elements of rows that see no
        key are ignored.
      mask, score_mod, mask_mod, block_mask, sinks, scale: as in the call. The modifier is traced
        (`trace`), and its program differentiated.
      cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k: as in the call.
      wanted: names of the arguments whose gradients are computed, some of `q`, `k`, `v` and
        `sinks`; by default all. Kernels that compute no such gradient are not launched.
      captured: names of arrays that `score_mod` captures and whose gradients are computed, such as
        `slopes` of `mods.alibi`; bf16, f16 or f32. If scores of different positions read one
        element, as in a table of distances, the call needs four f32 copies of the array for each
        query and head, up to 1 GiB.
      dq_dtype: dtype of dq: that of q, which is the default.
      deterministic: whether the same call must give the same bits. On `sm_90a` there is a kernel
        that computes each score once for all gradients, and adds dQ to f32 memory: in any order
        with False, in the order of key blocks with True. It takes head sizes up to 128, and neither
        modifiers, block masks, nor sinks together with dlse. False also allows gradients of
        captured arrays that would need more memory than that: their parts are added to the same
        elements in any order, which is slow.
      device, stream: as of `attention`.

    Returns:
      Gradients(dq, dk, dv, dsinks, captured): arrays of q's library; dq, dk and dv have the shapes
      and dtypes of q, k and v, and are None if not requested. The gradients of a query that sees no
      key, and of a key that no query sees, are 0. Rows outside of every sequence are not written.

    Raises:
      SpecError: an argument is wrong, or has no kernel; nothing was launched.
      TargetError: the device cannot run the kernels, or the toolchain is incomplete.
      LaunchError: a launch failed.
    """
    _check_offered(call)
    captured = check_names(call.captured)
    wanted = wanted_of(call.wanted, _offered(call.sinks))
    if not (wanted or captured):
        raise SpecError("wanted and captured name nothing: there is no gradient to compute")
    names = ["q", "k", "v", "o", "lse", "do", *(["dlse"] if call.dlse is not None else [])]
    views = {name: view(getattr(call, name), name) for name in names}
    operands = {name: views[name] for name in ("q", "k", "v")}
    lengths = sequence_lengths(operands, call.of_tensors())
    attention = spec_of(operands, call.mask, lengths=lengths)
    _check_dtypes(call, attention)
    check_rows(views, "q", attention)
    if call.sinks is not None:
        checked_array("sinks", call.sinks, (attention.heads,), *SINK_DTYPES)
    check_devices(views)
    if call.block_mask is not None:
        mask = mask_of(call.block_mask, call.mask, call.mask_mod)
        if call.block_mask.offsets:
            raise SpecError(no_kernel("block_mask with offsets", "blocks begin at the first query"))
        attention = dataclasses.replace(attention, mask=mask)
    for name in ("q", "k", "v", "o", "do"):
        check_copyable(views[name], name)
    shared = [x.name for x in dataclasses.fields(KvGradientsSpec) if hasattr(attention, x.name)]
    options = {name: getattr(attention, name) for name in shared}
    options["row_weights"] = call.sinks is not None and call.dlse is not None
    plain: tuple[GradientsRequest, ...] = KvGradientsSpec(**options), QGradientsSpec(**options)
    machine = machine_of(call.device, views["q"])
    choices = [choice_of(x, lengths.sizes, machine) for x in plain]
    is_needed = bool(captured or {"k", "v"} & {*wanted}), bool(captured or "q" in wanted)
    needed = list(itertools.compress(zip(plain, choices, strict=True), is_needed))
    kernels = [_kernel(call, *pair, operands) for pair in needed]
    gradients, longest = list[CapturedGradient](), lengths.sizes
    if captured:
        sizes = {"batch": longest["batch"], "q": longest["sq"], "k": longest["sk"]}
        sizes |= {"head": attention.heads}
        *_, of_dq = kernels
        gradients = captured_gradients(
            captured,
            of_dq.spec.modifier,
            of_dq.own,
            sizes,
            key_parts=choices[-1].policy.key_parts,
            in_order=bool(call.deterministic),
        )
        kernels = [x.with_adjoints(gradients) for x in kernels]
        kernels = [x for x in kernels if x.spec.adjoints or x.is_for(wanted)]
    extents = named_extents(plain[0], operands)
    outputs = [x for kernel in kernels for x in kernel.spec.tensors if x.role == "out"]
    results = {x.name: Allocation.of(x, extents) for x in outputs}
    rows = rows_of(views, attention, call.sinks)
    scale = check_scale(call.scale, attention.head_dim)
    arguments: dict[str, object] = {
        **views,
        **lengths.arrays,
        **lengths.scalars,
        "scale": scale,
        **{name: PlanView(name, x.shape) for name, x in results.items()},
        **{parts_of(x.name): x.memory() for x in gradients},
        **rows.arguments,
    }
    launches, workspace = [rows.step], [*rows.workspace]
    fused = GradientsSpec(**options, in_turn=bool(call.deterministic))
    is_plain = all(is_needed) and kernels[0].spec == plain[0]
    is_plain = is_plain and not (captured or fused.row_weights)
    if is_plain and has_kernel(fused, choices[0].call.target):
        tiles = tiles_of(choice_of(fused, lengths.sizes, machine))
        steps, sums_of_dq = launches_of(fused, arguments, results["dq"], tiles)
        launches, workspace = [*launches, *steps], [*workspace, *sums_of_dq]
    else:
        launches += [x.zeros() for x in gradients]
        launches += [x.step(arguments) for x in kernels]
        launches += [step for x in gradients for step in x.sums()]
    if "sinks" in wanted:
        steps, sums = sums_of_sinks(rows, attention, arguments, longest["batch"])
        launches, workspace = [*launches, *steps], [*workspace, sums]
        results[rows.dsinks.name] = rows.dsinks
    names = [f"d{name}" for name in wanted]
    made = [results[name] for name in names] + [x.result for x in gradients]
    unwanted = [x for x in OPERAND_GRADIENTS if x in results and x not in names]
    workspace += [results[name] for name in unwanted]
    workspace += [x for gradient in gradients for x in gradient.workspace]
    return Plan(
        launches,
        made,
        workspace,
        call.q,
        views["q"],
        call.device,
        stream_of(call.stream, call.device, call.q, views["q"]),
        choices[0].call.target.chip,
    )


class _Kernel(NamedTuple):
    """A kernel of gradients, and the arguments that only this kernel has."""

    spec: GradientsRequest
    own: Mapping[str, object]

    def with_adjoints(self, gradients: Sequence[CapturedGradient]) -> _Kernel:
        """The kernel that also writes its parts of the gradients of captured arrays."""
        of_keys = self.spec.operation == KvGradientsSpec.operation
        adjoints = tuple(x.adjoint for x in gradients if x.of_keys == of_keys)
        return self._replace(spec=dataclasses.replace(self.spec, adjoints=adjoints))

    def is_for(self, wanted: Sequence[str]) -> bool:
        """Whether the kernel computes a requested gradient."""
        return any(f"d{name}" in self.spec.results for name in wanted)

    def step(self, arguments: Mapping[str, object]) -> Step:
        """The launch, given the arguments of all kernels."""
        named = {**arguments, **self.own}
        return Step(self.spec, {x.name: named[x.name] for x in self.spec.operands})


def _kernel(
    call: AttentionBackwardCall,
    plain: GradientsRequest,
    choice: Choice,
    operands: Mapping[str, TensorView],
) -> _Kernel:
    """The kernel with the modifier of the call and the lists of its block mask.

    Args:
      plain: the request without modifier and lists.
      choice: the choice for `plain`.
      operands: the views of q, k and v, by name.

    Raises:
      SpecError: a function cannot be traced, or has no derivative.
    """
    own, block, mask_mod = dict[str, Any](), None, call.mask_mod
    if call.block_mask is not None:
        choice = choice.with_lists()
        block, of_queries = choice.listed_block, plain.operation == KvGradientsSpec.operation
        mask_mod, own = of_call(
            call.block_mask, plain, choice, call.q, operands, of_queries=of_queries
        )
    modifier, captured = trace(call.score_mod, mask_mod)
    sizes = choice.call.sizes
    for mod in (call.score_mod, mask_mod):
        check_extents(mod, {**sizes, "heads": plain.heads})
    check_captured(captured, sizes)
    spec = dataclasses.replace(plain, modifier=modifier, block=block)
    return _Kernel(spec, {**own, **captured})


def _check_offered(call: AttentionBackwardCall) -> None:
    """Refuses arguments of `attention` that its gradients do not support.

    Raises:
      SpecError: names the argument.
    """
    for name in ("k", "v"):
        if isinstance(value := getattr(call, name), CACHES):
            supported = "gradients are those of keys and values in tensors of their own"
            raise SpecError(no_kernel(f"{name} of a {type(value).__name__}", supported))
    flag("deterministic", call.deterministic)


def _check_dtypes(call: AttentionBackwardCall, attention: MhaSpec) -> None:
    """Refuses dtypes of operands and of dq that no kernel has.

    Raises:
      SpecError: names the argument.
    """
    for name, dtype in (("q", attention.dtype), ("k", attention.kv_dtype)):
        if dtype not in WIDE_DTYPES:
            raise refused_dtype(name, dtype, WIDE_DTYPES)
    if call.dq_dtype is not None:
        dtype_name(call.dq_dtype, "dq_dtype", (attention.dtype,))


def check_rows(
    views: Mapping[str, TensorView], queries: str, attention: MhaSpec | MlaGradientsRequest
) -> None:
    """Refuses o, do, lse and dlse whose shapes or dtypes do not match the operands.

    Args:
      queries: the name of the operand of queries.

    Raises:
      SpecError: names the argument.
    """
    *lead, rows, heads, _ = views[queries].shape
    shapes = dict.fromkeys(("o", "do"), (*lead, rows, heads, attention.v_head_dim))
    shapes |= {x: (*lead, heads, rows) for x in ("lse", "dlse") if x in views}
    for name, shape in shapes.items():
        dtype = attention.dtype if name in ("o", "do") else "f32"
        checked_array(name, views[name], shape, dtype, note=f" beside this {queries}")
