"""Gradients of attention in PyTorch's autograd.

A call of which a gradient is wanted is one node of the graph of autograd: `trained`, outside of
tracers, and the operators with the formula of `register`. All save the operands, O and LSE, and
compute the gradients by `attention_backward`. A call whose gradients have no kernel is refused
before its kernel is launched.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.api.attention_backward import attention_backward
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.plan_cache import READER
from attn_mlir.api.planners import planner_of
from attn_mlir.caches import CACHES
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import AttnError, SpecError, no_kernel
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.backward import attention_backward_in_graph
from attn_mlir.pytorch.operators import AttentionArguments, attention_op, static_scale
from attn_mlir.pytorch.readable import readable
from attn_mlir.runtime.call.signatures import Signature
from attn_mlir.runtime.call.tensors import TensorView, dense_strides, described
from attn_mlir.runtime.call.torch_tensors import (
    NO_GRADIENT,
    check_tensor,
    is_fake,
    is_tracing,
    wants_gradient,
)
from attn_mlir.runtime.kernel import chosen_for_all
from attn_mlir.trace import Recorded, trace

torch: Any = importlib.import_module("torch")

OPERANDS = ("q", "k", "v")
OF_FORWARD = (
    *("return_lse", "out_dtype", "schedule", "query_tiles", "tile_order"),
    *("num_splits", "split_size", "sm_margin"),
)  # arguments of attention of which gradients do not depend
OF_BACKWARD = tuple(inspect.signature(attention_backward).parameters)
DEFAULTS = {name: x.default for name, x in inspect.signature(attention).parameters.items()}
NO_SECOND = (
    "attention has no second derivative: its gradients have none; leave create_graph out, or "
    "differentiate another function of its operands, such as PyTorch's attention"
)
NO_GRADIENT_WITH_BLOCKS = no_kernel(
    "block_mask",
    "pass its mask_mod, or call under torch.no_grad()",
    context="where an operand requires a gradient",
)
MAX_CHECKED = 1024  # calls that are remembered

_checked: set[object] = set()  # calls whose gradients have kernels


class _Attention(torch.autograd.Function):
    """`attention` and its gradients, outside of tracers."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Any,
        k: Any,
        v: Any,
        sinks: Any,
        options: Mapping[str, Any],
        read: Sequence[Any],
    ) -> tuple[Any, Any]:
        call: dict[str, Any] = {**options, "sinks": sinks, "return_lse": True}
        o, lse = attention(q, k, v, **call)
        save(ctx, (q, k, v), (o, lse), call, read)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        return *gradients(ctx, do, dlse), None, None


class _Once(torch.autograd.Function):
    """Gradients as they are, which refuse to be differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> tuple[Any, ...]:
        del ctx
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise SpecError(NO_SECOND)


@outside_graphs
def trained(*arguments: Any, **options: Any) -> Any:
    """`attention`, where a gradient is wanted.

    Raises:
      SpecError: as `attention`, and for a call whose gradients have no kernel.
    """
    operands, named, read = check_call(*arguments, **options)
    o, lse = _Attention.apply(*operands.values(), named.pop("sinks", None), named, read)
    return (o, lse) if named.get("return_lse") else o


def check_call(*arguments: Any, **options: Any) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """The operands and the other arguments of a call of `attention`, whose gradients have kernels;
    and what `check_gradients` found.

    Raises:
      SpecError: as `check_gradients`.
    """
    named = dict(zip(DEFAULTS, arguments, strict=False)) | options
    operands = {name: named.pop(name, None) for name in OPERANDS}
    return operands, named, check_gradients(operands, named)


def check_without_blocks(blocks: Any) -> None:
    """Refuses lists of blocks in a call of which a gradient is wanted.

    Raises:
      SpecError: says so.
    """
    if blocks is not None:
        raise SpecError(NO_GRADIENT_WITH_BLOCKS)


def register(
    operator: Any,
    call_of: Callable[..., tuple[Sequence[Any], Mapping[str, Any]]],
    names: Sequence[str],
) -> None:
    """Tells PyTorch the gradients of an operator for `attention`, which returns O and LSE.

    Args:
      call_of: makes q, k and v, and the other arguments of `attention` by name, of the operator's.
      names: of the operator's arguments, which begin with q, k and v.
    """

    def setup(ctx: Any, inputs: Sequence[Any], output: Sequence[Any]) -> None:
        operands, options = call_of(*inputs)
        if not options.get("return_lse"):
            raise SpecError("return_lse must be True: gradients are computed from LSE")
        known = {**options, "scale": static_scale(options.get("scale"))}
        read = check_gradients(dict(zip(OPERANDS, operands, strict=True)), known)
        save(ctx, operands, output, options, read)

    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        found = dict(zip((*OPERANDS, "sinks"), gradients(ctx, do, dlse), strict=True))
        pairs = zip(names, ctx.needs_input_grad, strict=False)
        return tuple(found[n] if n in found else _no_gradient(x) for n, x in pairs)

    operator.register_autograd(backward, setup_context=setup)


def _no_gradient(needs: bool | Sequence[bool]) -> list[None] | None:
    """For an argument that has none; of a list of tensors a list."""
    return None if isinstance(needs, bool) else [None] * len(needs)


def save(
    ctx: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    options: Mapping[str, Any],
    read: Sequence[Any],
) -> None:
    """Saves what the gradients of a call are computed from.

    Args:
      operands: q, k and v.
      results: O and LSE.
      options: the others of `attention`; those of which gradients do not depend are left out.
      read: the tensors that modifiers capture, which must not change either.
    """
    options = {name: x for name, x in options.items() if name in OF_BACKWARD and x is not None}
    arrays = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
    ctx.save_for_backward(*operands, *results, *arrays.values(), *read)
    ctx.arrays = tuple(arrays)
    ctx.options = {name: x for name, x in options.items() if name not in arrays}
    ctx.set_materialize_grads(False)


def gradients(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
    """The gradients of q, k, v and sinks, from those of O and LSE; None: of 0."""
    q, k, v, o, lse, *arrays = ctx.saved_tensors
    if do is None and dlse is None:
        return None, None, None, None
    backward = attention_backward
    if is_fake(q) or is_tracing():
        backward = attention_backward_in_graph
    do = torch.zeros_like(o) if do is None else do
    with torch.no_grad():
        given = {"q": q, "k": k, "v": v, "o": o, "do": do}
        given = {name: readable(name, x.detach()) for name, x in given.items()}
        options = {**ctx.options, **dict(zip(ctx.arrays, arrays, strict=False))}
        dlse = None if dlse is None else dlse.contiguous()
        found = backward(**given, lse=lse, dlse=dlse, **options)
        results = found.dq, found.dk, found.dv
        for side, written in (("q", results[:1]), ("k", results[1:])):
            if options.get(f"seqused_{side}") is not None:
                _clear_outside(written, options, side)
    results = (*results, *([] if found.dsinks is None else [found.dsinks]))
    if torch.is_grad_enabled():  # the graph of the gradients is wanted as well
        results = _Once.apply(len(results), *results, q, k, v, do, *arrays)
    return (*results, None)[:4]


def _clear_outside(tensors: Sequence[Any], options: Mapping[str, Any], side: str) -> None:
    """Zeroes the rows past the end of each sequence, which kernels do not write.

    Args:
      tensors: [batch, rows, ...], or [rows, ...] with offsets.
      options: the lengths of `attention`.
      side: `q` or `k`.
    """
    first = tensors[0]
    used = torch.as_tensor(options[f"seqused_{side}"], device=first.device)
    offsets = options.get(f"cu_seqlens_{side}")
    if offsets is None:
        outside = torch.arange(first.shape[1], device=first.device) >= used[:, None]
    else:
        offsets = torch.as_tensor(offsets, device=first.device)
        rows = torch.arange(first.shape[0], dtype=offsets.dtype, device=first.device)
        sequence = torch.searchsorted(offsets[1:], rows, right=True)
        known = sequence.clamp(max=used.shape[0] - 1)
        outside = (rows - offsets[known] >= used[known]) | (sequence != known)
    for x in tensors:
        x.masked_fill_(outside[..., None, None], 0)


def check_gradients(operands: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
    """Refuses a call whose gradients have no kernel.

    The gradients are planned, with stand-ins for what the call will return; calls that are alike
    are planned once.

    Args:
      operands: q, k and v, by the caller's names.
      options: the others of `attention`, by name.

    Returns:
      The tensors that modifiers capture.

    Raises:
      SpecError: names an operand that requires a gradient, and says what there is no kernel for.
    """
    signature = Signature(len(operands), *options)
    values = (*operands.values(), *options.values(), chosen_for_all())
    with torch.no_grad():
        is_read = READER.add(signature, values)
    key = tuple(signature.key)
    captured = [signature.arrays[i] for i in signature.captured]
    others = {name: x for name, x in options.items() if name != "sinks"}
    if is_read and key in _checked and not wants_gradient(captured, others):
        return captured
    for name, x in operands.items():
        if isinstance(x, torch.Tensor):
            check_tensor(x, name, has_gradient=True)
    _, arrays = trace(options.get("score_mod"), options.get("mask_mod"))
    for name, x in {**others, **arrays}.items():
        if isinstance(x, torch.Tensor) and x.requires_grad:
            raise SpecError(NO_GRADIENT.format(name))
    _plan_gradients(operands, options)
    if is_read:
        if len(_checked) >= MAX_CHECKED:
            _checked.clear()
        _checked.add(key)
    return captured if is_read else [x for x in arrays.values() if isinstance(x, torch.Tensor)]


def _plan_gradients(operands: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Plans a call and its gradients; errors as `check_gradients`, and of the call itself."""
    given = {**operands, "sinks": options.get("sinks")}
    wanted = [name for name, x in given.items() if getattr(x, "requires_grad", False)]

    def refuse(why: str) -> SpecError:
        name = next(iter(wanted), "q")
        return SpecError(
            f"{name} requires a gradient, which this call has none of: {why}; call under "
            f"torch.no_grad(), or pass {name}.detach()"
        )

    for name, x in operands.items():
        if isinstance(x, CACHES):
            supported = "gradients are those of keys and values in tensors of their own"
            raise refuse(no_kernel(f"{name} of a {type(x).__name__}", supported))
    with torch.no_grad():
        found = [described(x, name) for name, x in operands.items()]
    views = {name: _dense(x, x.shape, x.dtype) for name, x in zip(OPERANDS, found, strict=True)}
    if isinstance(options.get("sinks"), torch.Tensor):
        options = {**options, "sinks": options["sinks"].detach()}
    named: dict[str, Any] = {**views, **options, "return_lse": True}
    o, lse = planner_of(attention)(**named).results
    if o.dtype != views["q"].dtype:
        raise refuse(no_kernel(f"out_dtype {o.dtype}", "gradients are those of O of q's dtype"))
    for name, value in options.items():
        if name not in (*OF_FORWARD, *OF_BACKWARD) and value is not DEFAULTS[name]:
            raise refuse(no_kernel(name, "gradients are those of attention without it"))
    views |= {name: _dense(views["q"], x.shape, x.dtype) for name, x in (("o", o), ("lse", lse))}
    used = {name: x for name, x in options.items() if name in OF_BACKWARD}
    try:
        planner_of(attention_backward)(**views, do=views["o"], **used)
    except AttnError as error:
        raise refuse(str(error)) from error


def _dense(like: TensorView, shape: Sequence[int], dtype: str) -> TensorView:
    """A stand-in for a dense tensor where another one is."""
    strides = dense_strides(tuple(shape))
    return dataclasses.replace(like, shape=tuple(shape), strides=strides, dtype=dtype)


def check_attention(
    operands: Mapping[str, Any], mask: str, scale: float, score_mod: Recorded | None = None
) -> None:
    """`check_gradients` for a call of `attn_mlir::attention`."""
    check_gradients(operands, {"mask": parse_mask(mask), "scale": scale, "score_mod": score_mod})


def _of_attention(*inputs: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """Operands and options of a call of `attn_mlir::attention`, of which gradients are wanted."""
    call = AttentionArguments(*inputs)
    check_without_blocks(call.block or None)
    options: dict[str, Any] = {"mask": parse_mask(call.mask), "scale": call.scale}
    options["return_lse"] = call.return_lse
    if call.modifier:
        program = Program.from_json(call.modifier)
        names = (tensor.name for tensor in program.tensors)
        options["score_mod"] = Recorded(program, dict(zip(names, call.captured, strict=True)))
    return call[: len(OPERANDS)], options


register(attention_op, _of_attention, AttentionArguments._fields)
