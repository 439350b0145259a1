"""`attention`: checks the operands and plans the launches, which are then carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from attn_mlir.api.array_checks import checked_array
from attn_mlir.api.caches import cached, check_replaced
from attn_mlir.api.combining import Split, combination
from attn_mlir.api.copyable import check_copyable
from attn_mlir.api.descales import check_scaled, descales_of
from attn_mlir.api.lengths import (
    DENSE_LENGTHS,
    LengthArguments,
    SequenceLengths,
    check_ranks,
    sequence_lengths,
)
from attn_mlir.api.offsets import offsets_of, offsets_of_blocks
from attn_mlir.api.plan import Allocation, Plan, PlanView, Step, named_extents
from attn_mlir.api.planners import declared_by, only_planned
from attn_mlir.arrays import caller_output, stream_of
from attn_mlir.caches import CACHES
from attn_mlir.compiling.compiler import collects_for_other_sizes
from attn_mlir.compiling.dtypes import DTYPES, NARROW_DTYPES, OUT_DTYPES, refused_dtype
from attn_mlir.compiling.routes import attention_choice, chosen
from attn_mlir.compiling.spec import MhaSpec, mha
from attn_mlir.compiling.splits import PARTIAL, fixed_split, split_count
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.dialect.attn.scale import MAX_SCALE
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.mods import check_extents
from attn_mlir.runtime.call.binding import f32_number
from attn_mlir.runtime.call.scalars import flag
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice, machine_of
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.trace import MaskMod, ScoreMod, trace

if TYPE_CHECKING:
    from attn_mlir.block_masks.blocks import BlockMask


@dataclass(frozen=True, eq=False)
class _AttentionOperands:
    """The arguments of `attention` before the lengths: fields follow the bases, the last first."""

    q: Any
    k: Any
    v: Any = None
    _: KW_ONLY
    mask: Mask | None = None
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    block_mask: BlockMask | None = None
    sinks: Any = None
    scale: float | None = None
    return_lse: bool = False
    out_dtype: object = None


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionCall(LengthArguments, _AttentionOperands):
    """The arguments of `attention`, which says what they are."""

    q_offset: Any = None
    k_offset: Any = None
    head_offset: int = 0
    q_descale: Any = None
    k_descale: Any = None
    v_descale: Any = None
    query_tiles: int | None = None
    tile_order: str | None = None
    schedule: str | None = None
    num_splits: int = 1
    split_size: int | None = None
    sm_margin: int = 0
    deterministic: bool | None = None
    out: Any = None
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(AttentionCall)
def attention(call: AttentionCall) -> Plan:
    """softmax(scale * q k^T, masked) v for every batch entry and head.

    The first call for a head count, head size, dtype and mask compiles; later ones, also of other
    processes and with other batch sizes and lengths, find the kernel.

    Args:
      q: [batch, sq, heads, head_dim], bf16, f16 or a `float8` of 8 bits: numpy, torch, cupy,
        anything with DLPack.
      k: [batch, sk, kv_heads, head_dim], of q's dtype or of 8 bits; kv_heads divides heads. Or a
        cache, `PagedKV` or `ContiguousKV`, which has v as well, and the lengths of keys.
      v: [batch, sk, kv_heads, v_head_dim]; omitted for a cache.
      mask: see `masks`; `full()` by default.
      score_mod: `score_mod(score, b, h, q, k)` returns the modified score, before masking; arrays
        that it captures become arguments of the kernel, numbers become constants (see `trace`).
      mask_mod: `mask_mod(b, h, q, k)` returns whether a score is visible, in addition to the mask.
        `mods` has functions of both kinds.
      block_mask: from `am.block_mask`, in place of the `mask` and `mask_mod` that it was made of:
        only blocks with a visible score are computed.
      sinks: [heads], logits of a key without a value, added to the sum that the head's
        probabilities are divided by, but not to the LSE (that of `attn_mlir.flash` counts them).
      scale: multiplies the scores, finite and greater than 0; 1 / sqrt(head_dim) by default.
      return_lse: also return the logarithm of each row's sum of exponentials.
      out_dtype: dtype of O: bf16, f16 or f32, by name or as a dtype of numpy or torch; by default
        that of q, or bf16 for a q of 8 bits.
      cu_seqlens_q: [batch + 1] i32: q is [total, heads, head_dim], and sequence b has the rows
        cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1; O and LSE have the same rows.
      cu_seqlens_k: the same for k and v.
      max_seqlen_q, max_seqlen_k: upper bounds of the lengths; needed for queries whose offsets are
        on a GPU.
      seqused_q, seqused_k: [batch] i32: only the first seqused_q[b] queries, and seqused_k[b] keys,
        of sequence b exist.
      cache_seqlens: [batch] i32: number of cached tokens in k and v, after which come the new ones,
        as many as there are queries; with `cache_counts_new` the number includes the new ones.
      q_offset, k_offset: an integer, or [batch] i32 with one for each sequence: query i is at
        position i + q_offset and key j at j + k_offset, where one that is left out is 0. Masks and
        modifiers see positions; masks are then not aligned at the end. For shards of sequences,
        which need not overlap: a query that sees none of the keys gives 0 and an LSE of -inf.
        q_offset from -2^29 to 2^29, k_offset from 0. Kernels read them: new values compile nothing.
      head_offset: modifiers get h + head_offset, for shards of heads; 0 to 65536. Sinks and scales
        are those of the heads of the call, which is the same without modifiers.
      q_descale, k_descale, v_descale: f32, scales of the elements of 8-bit operands: of one
        element, [kv_heads] or [batch, kv_heads]. Required for 8 bits, and refused otherwise.
      query_tiles, tile_order: see `MhaSpec`; by default one query tile if all rows fit it, and an
        order that follows from the mask.
      schedule: see `MhaSpec`.
      num_splits: number of splits of the keys, 1 to 256, which are computed in parallel and then
        combined; 0 chooses by the sizes. Useful for few queries and many keys. The same number
        gives the same bits.
      split_size: number of keys of each split, a multiple of 128, in place of the number of splits:
        a sequence's results then have the same bits in any batch. For the schedule
        `mha-streaming`, whose launch has as many splits as the longest sequence may need, up to
        256.
      sm_margin: multiprocessors that the call leaves free, for kernels beside it: 0 to all but one.
        Kernels whose CTAs loop over work tiles (`persistent`, `counter`) are launched with as many
        CTAs fewer, and splits are counted for the remaining ones. As in FlashAttention it changes
        no other kernel: those have a CTA for each work tile.
      deterministic: of the gradients that PyTorch's autograd computes: whether the same call gives
        the same bits, see `attention_backward`; None: as `torch.use_deterministic_algorithms`
        says. The results of this call have the same bits always.
      out: an array for O, which is also returned: of O's shape and dtype, with any strides except
        along the last axis. It must share no memory with the operands.
      device: `cuda`, `emulator`, a device, or None for a GPU that can run the kernel, else the
        emulator (with a note on stderr).
      stream: the stream of a GPU; None takes the current stream of torch or cupy, else the default
        one.

    Returns:
      O as [batch, sq, heads, v_head_dim] in q's kind of array; with `return_lse` also LSE as
      [batch, heads, sq] in float32, natural logarithm. With `cu_seqlens_q` they are
      [total, heads, v_head_dim] and [heads, total]. Rows of no sequence are not written; with
      splits they may get any values.

    Raises:
      SpecError: an operand or an option is wrong; nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    k, v, k_descale, v_descale = call.k, call.v, call.k_descale, call.v_descale
    if call.deterministic is not None:
        flag("deterministic", call.deterministic)
    cache = None
    if isinstance(k, CACHES):
        cache = cached(k)
        check_replaced(cache, call)
        k_descale, v_descale = cache.scales or (k_descale, v_descale)
    elif v is None:
        raise SpecError("v is missing: only a cache in the place of k holds the values as well")
    sources = {"k": k, "v": v} if cache is None else cache.operands
    operands = {name: view(value, name) for name, value in {"q": call.q, **sources}.items()}
    lengths = sequence_lengths(operands, call, cache=cache)
    offsets = offsets_of(call.q_offset, call.k_offset, call.head_offset, lengths.sizes["batch"])
    mask, mask_mod, lists = call.mask, call.mask_mod, dict[str, object]()
    if call.block_mask is not None:
        from attn_mlir.block_masks.blocks import mask_of

        offsets = offsets_of_blocks(call.block_mask, offsets)
        mask = mask_of(call.block_mask, mask, mask_mod)
    mods = call.score_mod, call.mask_mod, getattr(call.block_mask, "mask_mod", None)
    if not any(mod is not None for mod in mods):
        offsets = offsets.without_heads()
    out_dtype = out_dtype_of(call.out, call.out_dtype)
    knobs: dict[str, Any] = {
        name: getattr(call, name)
        for name in ("return_lse", "schedule", "query_tiles", "tile_order")
    }
    knobs["offsets"] = offsets.kinds
    spec = spec_of(operands, mask, out_dtype=out_dtype, lengths=lengths, **knobs)
    caller_descales = (call.q_descale, k_descale, v_descale)
    descales = descales_of(spec, lengths.sizes["batch"], *caller_descales, lengths.names)
    if call.sinks is not None:
        checked_array("sinks", call.sinks, (spec.heads,), "f32", "bf16", "f16")
    machine = machine_of(call.device, operands["q"]).without(call.sm_margin)
    choice = attention_choice(
        spec,
        lengths.sizes,
        machine,
        has_split_size=call.split_size is not None,
        has_block_lists=call.block_mask is not None,
    )
    if call.block_mask is not None:
        from attn_mlir.block_masks.blocks import of_call

        mask_mod, lists = of_call(call.block_mask, spec, choice, call.q, operands)
    split = _split(call, choice)
    kernel_sinks = call.sinks if split is None or split.in_kernel else None
    modifier, captured = trace(call.score_mod, mask_mod, kernel_sinks)
    for mod in (call.score_mod, mask_mod):
        sizes = offsets.reached({**lengths.sizes, "heads": spec.heads})
        check_extents(mod, sizes, longer=offsets.axes)
    check_captured(captured, lengths.sizes)
    scale = check_scale(call.scale, spec.head_dim)
    check_scaled(descales, scale, lengths.names)
    return planned(
        call.q,
        operands,
        spec,
        {**offsets.arguments, **descales, **lists, **captured},
        lengths,
        choice=choice,
        modifier=modifier,
        split=split,
        out=call.out,
        scale=scale,
        device=call.device,
        stream=call.stream,
        sm_margin=machine.sm_margin,
    )


plan = only_planned(attention)


def _split(call: AttentionCall, choice: Choice) -> Split | None:
    """How the keys of a call are split; None if they are not. Errors as `attention`."""
    if call.split_size is not None:
        size, count = fixed_split(call.split_size, call.num_splits, choice)
        is_empty = 0 in choice.call.sizes.values()
        return None if is_empty else Split(count, call.sinks, in_kernel=True, size=size)
    count = split_count(call.num_splits, choice)
    return Split(count, call.sinks, choice.combines_splits) if count > 1 else None


def planned(
    model: object,
    operands: Mapping[str, TensorView],
    spec: MhaSpec,
    extra: Mapping[str, object],
    lengths: SequenceLengths | None = None,
    *,
    choice: Choice | None = None,
    modifier: Program | None = None,
    split: Split | None = None,
    out: object = None,
    scale: float | None = None,
    device: DeviceChoice = None,
    stream: object | None = None,
    sm_margin: int = 0,
) -> Plan:
    """The launches for a request: attention and, for split keys, their combination.

    Args:
      model: the caller's array, whose library and device results get; its view is the operand q.
      operands: q, k and v, for which `spec` was made.
      extra: other arguments of the kernel by name: offsets, scales of 8-bit operands, lists of
        blocks, tensors that the modifier reads.
      lengths: the lengths of the sequences; by default those of the operands.
      choice: of the schedule; by default the one for this request and these sizes.
      modifier: of scores, where the request does not have it.
      split: how the keys are split; None if they are not.
      out, sm_margin: as in `attention`.
    """
    q = operands["q"]
    stream = stream_of(stream, device, model, q)
    caller_o = None
    if out is not None:
        shape = (*q.shape[:-1], spec.v_head_dim)
        caller_o = caller_output(out, shape, spec.out_dtype, operands)
    lengths = sequence_lengths(operands) if lengths is None else lengths
    for name in ("q",) if lengths.cache is not None else ("q", "k", "v"):  # pools have been checked
        check_copyable(operands[name], lengths.name(name))
    if choice is None:
        choice = attention_choice(spec, lengths.sizes, machine_of(device, q).without(sm_margin))
    target = choice.call.target.chip
    modified = {} if modifier is None else {"modifier": modifier}
    split_options: dict[str, object] = {}
    if split is not None and split.in_kernel:
        split_options = {"joined": True, "split_size": split.size}
    elif split is not None:
        split_options = PARTIAL
    kernel = chosen(
        spec, choice.in_parts(0 if split is None else split.count), **modified, **split_options
    )
    whole = spec if kernel.partial else kernel  # whose results are those of the call
    sizes = named_extents(whole, operands)
    results = [Allocation.of(x, sizes) for x in whole.tensors if x.role == "out"]
    results[0] = dataclasses.replace(results[0], external=caller_o)
    arguments = {**operands, **lengths.arrays, **lengths.scalars, **extra}
    arguments["scale"] = check_scale(scale, spec.head_dim)
    workspace: list[Allocation] = []
    if split is not None and split.in_kernel:
        extents = {"splits": split.count, "tiles": choice.combined_tiles()}
        memory = _memory(kernel, extents)
        views = [(x.name, x) for x in (*results, *memory)]
        step = Step(kernel, arguments | {name: PlanView(x.name, x.shape) for name, x in views})
        at = (model, q, device, stream, target)
        return Plan([step], results, memory, *at, sm_margin=sm_margin)
    if split is not None:
        sizes |= {"parts": split.count * sizes["batch"]} if "batch" in sizes else {}
        sizes |= {"part_rows": split.count * sizes["total_q"]} if "total_q" in sizes else {}
        outputs = [x for x in kernel.tensors if x.role == "out"]
        workspace = [Allocation.of(x, sizes, name=f"partial_{x.name}") for x in outputs]
    memory = _memory(kernel, {})
    views = [*zip(("o", "lse"), workspace or results, strict=False), *((x.name, x) for x in memory)]
    steps = [Step(kernel, arguments | {name: PlanView(x.name, x.shape) for name, x in views})]
    if split is not None:
        steps.append(combination(spec, split, sizes))
    for_other_sizes: list[MhaSpec] = []
    if collects_for_other_sizes() and split is None:
        candidates = (chosen(spec, x, **modified) for x in choice.for_other_sizes())
        for_other_sizes = list(dict.fromkeys(candidates))
    memory = [*workspace, *memory]
    at = (model, q, device, stream, target, for_other_sizes)
    return Plan(steps, results, memory, *at, sm_margin=sm_margin)


def _memory(kernel: MhaSpec, extents: Mapping[str, int]) -> list[Allocation]:
    """The workspace of a kernel: partial results and counters."""
    return [Allocation.of(x, extents) for x in kernel.tensors if x.role == "inout"]


def spec_of(
    operands: Mapping[str, TensorView],
    mask: Mask | None,
    *,
    out_dtype: object = None,
    return_lse: bool = True,
    lengths: SequenceLengths = DENSE_LENGTHS,
    **knobs: Any,
) -> MhaSpec:
    """The request for these operands, and the knobs that are asked for.

    Raises:
      SpecError: ranks, shapes, dtypes or sizes that do not fit together or have no kernel.
    """
    check_ranks(operands, lengths.kinds)
    tensors = {lengths.name(name): tensor for name, tensor in operands.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise refused_dtype(name, tensor.dtype, DTYPES)
    q, k, v = operands["q"], operands["k"], operands["v"]
    is_cache = lengths.cache is not None
    _check_stored_dtypes(tensors, q, k)
    for name, tensor in list(tensors.items())[1:]:
        are_dense = len(tensor.shape) == len(q.shape) == 4 and not is_cache
        if are_dense and tensor.shape[0] != q.shape[0]:
            raise SpecError(f"{name} has batch {tensor.shape[0]}, q has {q.shape[0]}")
    if k.shape[-1] != q.shape[-1]:
        raise SpecError(f"{lengths.name('k')} has head_dim {k.shape[-1]}, q has {q.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise SpecError(
            f"{lengths.name('k')} and {lengths.name('v')} must agree but for head_dim, got "
            f"{list(k.shape)} and {list(v.shape)}"
        )
    for name, tensor in (("q", q), (lengths.name("k"), k)):
        if 0 in tensor.shape[-2:]:
            what = "heads" if tensor.shape[-2] == 0 else "elements per head"
            raise SpecError(f"{name} has 0 {what}: shape {list(tensor.shape)}")
    return mha(
        heads=int(
            q.shape[-2]
        ),  # a plain integer, which extents of PyTorch's fake tensors need not be
        kv_heads=int(k.shape[-2]),
        head_dim=int(q.shape[-1]),
        v_head_dim=int(v.shape[-1]),
        dtype=q.dtype,
        kv_dtype=k.dtype,
        mask=mask,
        out_dtype=out_dtype,
        return_lse=return_lse,
        lengths=lengths.kinds,
        cache=lengths.cache,
        **knobs,
    )


def _check_stored_dtypes(tensors: Mapping[str, TensorView], q: TensorView, k: TensorView) -> None:
    """Refuses keys and values of another type than queries, unless of 8 bits with queries of 16.

    Raises:
      SpecError: names the operand.
    """
    under = q.dtype not in NARROW_DTYPES and k.dtype in NARROW_DTYPES
    for name, tensor in list(tensors.items())[1:]:
        if tensor.dtype == (k.dtype if under else q.dtype):
            continue
        if under:
            raise SpecError(f"{name} is {tensor.dtype}, k is {k.dtype}: both must be the same")
        raise SpecError(f"{name} is {tensor.dtype}, q is {q.dtype}: all must be the same")


def out_dtype_of(out: object, out_dtype: object) -> object:
    """The dtype of O that a call asks for: by name, else by its array; None leaves it to q."""
    return output_dtype_of(out) if out is not None and out_dtype is None else out_dtype


def output_dtype_of(out: object) -> str:
    """The dtype of an array that is given for O.

    Raises:
      SpecError: it is no array, or has a dtype that O cannot have.
    """
    tensor = view(out, "out")
    if tensor.dtype not in OUT_DTYPES:
        raise SpecError(f"out has dtype {tensor.dtype}, allowed are {', '.join(OUT_DTYPES)}")
    return tensor.dtype


def check_captured(captured: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuses captured arrays without elements, if there are scores.

    Kernels clamp indices to the array, which needs at least one element.

    Args:
      captured: the arrays by name.
      sizes: `batch`, `sq` and `sk` of the call.

    Raises:
      SpecError: names the array and its shape.
    """
    if 0 in (sizes["batch"], sizes["sq"], sizes["sk"]):
        return
    for name, array in captured.items():
        if view(array, name).empty:
            raise SpecError(
                f"{name} is captured and indexed, but has no element: shape "
                f"{list(view(array, name).shape)}"
            )


def check_scale(scale: object, head_dim: int = 1, *, name: str = "scale") -> float:
    """Checks a scale of scores before anything is compiled, and returns it.

    Args:
      scale: as in `attention`.
      head_dim: determines the scale if it is None.
      name: the caller's.

    Raises:
      SpecError: says what was got.
    """
    return f32_number(name, head_dim**-0.5 if scale is None else scale, 0.0, MAX_SCALE)
