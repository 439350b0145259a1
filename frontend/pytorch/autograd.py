"""Gradients of attention in PyTorch's autograd.

A call of which a gradient is wanted is one node of the graph of autograd: `trained`, outside of
tracers, and the operators with the formula of `register`. All save the operands, O and LSE, and
compute the gradients by `attention_backward`. A call whose gradients have no kernel is refused
before its kernel is launched.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.api.attention_backward import OF_FORWARD, WANTED, attention_backward
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.plan_cache import READER
from attn_mlir.api.planners import planner_of
from attn_mlir.caches import CACHES
from attn_mlir.dialect.attn.block import BLOCK_LISTS
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import AttnError, SpecError, no_kernel
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.backward import attention_backward_in_graph
from attn_mlir.pytorch.listed_blocks import EXTENTS, LISTED, with_block_mask
from attn_mlir.pytorch.operators import AttentionArguments, attention_op, static_numbers
from attn_mlir.pytorch.readable import readable
from attn_mlir.pytorch.shapes import outside_of
from attn_mlir.runtime.call.repeats import Known
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
from attn_mlir.trace import Recorded, trace_sources

torch: Any = importlib.import_module("torch")

OPERANDS = WANTED[:3]
OF_BACKWARD = tuple(inspect.signature(attention_backward).parameters)
DEFAULTS = {name: x.default for name, x in inspect.signature(attention).parameters.items()}
NO_SECOND = (
    "attention has no second derivative: its gradients have none; leave create_graph out, or "
    "differentiate another function of its operands, such as PyTorch's attention"
)
_checked = Known[list[str | None]]()  # of calls whose gradients have kernels: names, for each
# captured array, of the tensors that are read


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
        names: Sequence[str],
        *read: Any,
    ) -> tuple[Any, Any]:
        call: dict[str, Any] = {**options, "sinks": sinks, "return_lse": True}
        o, lse = attention(q, k, v, **call)
        save(ctx, (q, k, v), (o, lse), call, dict(zip(names, read, strict=True)))
        ctx.are_readable = True  # `attention` refuses others
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        *needs, _, _ = ctx.needs_input_grad[: len(WANTED) + 2]
        captured = ctx.needs_input_grad[len(WANTED) + 2 :]
        found = gradients(ctx, do, dlse, compress(WANTED, needs), compress(ctx.read, captured))
        return *map(found.get, WANTED), None, None, *map(found.get, ctx.read)


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
    sinks, names = named.pop("sinks", None), tuple(read)
    o, lse = _Attention.apply(*operands.values(), sinks, named, names, *read.values())
    return (o, lse) if named.get("return_lse") else o


def check_call(
    *arguments: Any, **options: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The operands and the other arguments of a call of `attention`, whose gradients have kernels;
    and what `check_gradients` found.

    Raises:
      SpecError: as `check_gradients`.
    """
    named = dict(zip(DEFAULTS, arguments, strict=False)) | options
    operands = {name: named.pop(name, None) for name in OPERANDS}
    return operands, named, check_gradients(operands, named)


def register(
    operator: Any,
    call_of: Callable[..., tuple[Sequence[Any], Mapping[str, Any]]],
    names: Sequence[str],
) -> None:
    """Tells PyTorch the gradients of an operator for `attention`, which returns O and LSE.

    Args:
      call_of: makes q, k and v, and the other arguments of `attention` by name, of the operator's.
      names: of the operator's arguments, which begin with q, k and v; `captured` are the tensors
        that modifiers read.
    """

    def setup(ctx: Any, inputs: Sequence[Any], output: Sequence[Any]) -> None:
        operands, options = call_of(*inputs)
        if not options.get("return_lse"):
            raise SpecError("return_lse must be True: gradients are computed from LSE")
        q, k, _ = operands
        known = with_block_mask(static_numbers(options), q, k, are_read=False)
        read = check_gradients(dict(zip(OPERANDS, operands, strict=True)), known)
        save(ctx, operands, output, options, read, (*OF_BACKWARD, *LISTED))

    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        needs: dict[str, Any] = dict(zip(names, ctx.needs_input_grad, strict=False))
        wanted = [name for name in WANTED if needs.get(name)]
        behind = len(needs["captured"]) - len(ctx.read)  # lists of blocks
        captured: list[str] = list(compress(ctx.read, needs["captured"][behind:]))
        found = gradients(ctx, do, dlse, wanted, captured)
        lists = {"captured": [None] * behind + [found.get(name) for name in ctx.read]}
        return tuple(lists.get(name, found.get(name)) for name in needs)

    operator.register_autograd(backward, setup_context=setup)


def save(
    ctx: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    options: Mapping[str, Any],
    read: Mapping[str, Any],
    of_backward: Sequence[str] = OF_BACKWARD,
) -> None:
    """Saves what the gradients of a call are computed from.

    Args:
      operands: q, k and v, or what their function has in the place of these.
      results: O and LSE.
      options: the others of the function; those of which gradients do not depend are left out.
      read: the tensors that modifiers capture, which must not change either, by name.
      of_backward: names of arguments of the function of gradients.
    """
    options = {name: x for name, x in options.items() if name in of_backward and x is not None}
    arrays = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
    ctx.save_for_backward(*operands, *results, *arrays.values(), *read.values())
    ctx.arrays, ctx.read = tuple(arrays), tuple(read)
    ctx.options = {name: x for name, x in options.items() if name not in arrays}
    ctx.are_readable = False
    ctx.set_materialize_grads(False)


def gradients(
    ctx: Any, do: Any, dlse: Any, wanted: Iterable[str], captured: Iterable[str]
) -> dict[str, Any]:
    """The gradients that are wanted, from those of O and LSE; one that is missing is 0.

    Bits are the same every time where the call or PyTorch says so, by
    `torch.use_deterministic_algorithms`.

    Args:
      wanted: names of the arguments with one, of `WANTED`; captured: those of captured tensors.

    Returns:
      Them, by these names.
    """
    q, k, v, o, lse, *others = ctx.saved_tensors
    wanted, captured = tuple(wanted), tuple(captured)
    if (do is None and dlse is None) or not (wanted or captured):
        return {}
    options = {"deterministic": torch.are_deterministic_algorithms_enabled(), **ctx.options}
    options |= zip(ctx.arrays, others, strict=False)
    if dlse is not None:
        options["dlse"] = dlse.contiguous()
    if wanted != OPERANDS:
        options["wanted"] = wanted
    if captured:
        options["captured"] = captured
    do = torch.zeros_like(o) if do is None else do
    with torch.no_grad():
        do = readable("do", do)
        if not ctx.are_readable:
            q, k, v = (readable(name, x) for name, x in zip(OPERANDS, (q, k, v), strict=True))
        if is_fake(q) or is_tracing():
            given = (x.detach() for x in (q, k, v, o, lse, do))
            found = attention_backward_in_graph(*given, **options)
        else:
            found = attention_backward(q, k, v, o, lse, do, **with_block_mask(options, q, k))
        for side, results in (("q", [found.dq]), ("k", [found.dk, found.dv])):
            if options.get(f"seqused_{side}") is not None:
                clear_outside([x for x in results if x is not None], options, side)
    made = dict(zip(WANTED, found, strict=False)) | dict(found.captured)
    made = {name: made[name] for name in (*wanted, *captured)}
    return once(made, (q, k, v, do, *others))


def once(made: dict[str, Any], given: Sequence[Any]) -> dict[str, Any]:
    """Gradients, which refuse to be differentiated where the graph of theirs is wanted as well.

    Args:
      given: the tensors that they were computed from.
    """
    if not torch.is_grad_enabled():
        return made
    return dict(zip(made, _Once.apply(len(made), *made.values(), *given), strict=True))


def clear_outside(tensors: Sequence[Any], options: Mapping[str, Any], side: str) -> None:
    """Zeroes the rows past the end of each sequence, which kernels do not write.

    Args:
      tensors: [batch, rows, ...], or [rows, ...] with offsets.
      options: the lengths of `attention`.
      side: `q` or `k`.
    """
    first = tensors[0]
    used, offsets = options[f"seqused_{side}"], options.get(f"cu_seqlens_{side}")
    outside = outside_of(first, used, offsets)[..., None, None]
    for x in tensors:
        x.masked_fill_(outside, 0)


def check_gradients(operands: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses a call whose gradients have no kernel.

    The gradients are planned, with stand-ins for what the call will return; calls that are alike
    are planned once.

    Args:
      operands: q, k and v, by the caller's names.
      options: the others of `attention`, by name.

    Returns:
      The tensors that modifiers read, by name.

    Raises:
      SpecError: names an operand that requires a gradient, and says what there is no kernel for.
    """
    signature = Signature(len(operands), *options)
    in_order = torch.are_deterministic_algorithms_enabled()
    values = (*operands.values(), *options.values(), in_order, chosen_for_all())
    with torch.no_grad():
        is_read = READER.add(signature, values)
    tensors = [signature.arrays[i] for i in signature.captured]
    key = (*signature.key, *(getattr(x, "requires_grad", False) for x in tensors))
    others = {name: x for name, x in options.items() if name != "sinks"}
    if is_read and (names := _checked.get(key)) is not None and not wants_gradient((), others):
        pairs = zip(names, tensors, strict=True)
        return {name: x for name, x in pairs if name is not None}
    for name, x in operands.items():
        if isinstance(x, torch.Tensor):
            check_tensor(x, name, has_gradient=True)
    for name, x in others.items():
        if isinstance(x, torch.Tensor) and x.requires_grad:
            raise SpecError(NO_GRADIENT.format(name))
    with torch.no_grad():
        _, captured = trace_sources(options.get("score_mod"), options.get("mask_mod"))
        read = {name: x for name, x in captured.items() if isinstance(x, torch.Tensor)}
        _plan_gradients(operands, options, read)
    if is_read:
        found = {id(x): name for name, x in read.items()}
        _checked.put(key, [found.get(id(x)) for x in tensors])
    return read


def _plan_gradients(
    operands: Mapping[str, Any], options: Mapping[str, Any], read: Mapping[str, Any]
) -> None:
    """Plans a call and its gradients; errors as `check_gradients`, and of the call itself."""
    given = {**operands, "sinks": options.get("sinks")}
    wanted = [name for name, x in given.items() if getattr(x, "requires_grad", False)]
    captured = [name for name, x in read.items() if x.requires_grad]

    def refuse(why: str, name: str = next(iter(wanted), "q")) -> SpecError:
        return SpecError(
            f"{name} requires a gradient, which this call has none of: {why}; call under "
            f"torch.no_grad(), or pass {name}.detach()"
        )

    for name, x in operands.items():
        if isinstance(x, CACHES):
            supported = "gradients are those of keys and values in tensors of their own"
            raise refuse(no_kernel(f"{name} of a {type(x).__name__}", supported))
    found = [described(x, name) for name, x in operands.items()]
    views = {name: dense(x, x.shape, x.dtype) for name, x in zip(OPERANDS, found, strict=True)}
    if isinstance(options.get("sinks"), torch.Tensor):
        options = {**options, "sinks": options["sinks"].detach()}
    named: dict[str, Any] = {**views, **options, "return_lse": True}
    o, lse = planner_of(attention)(**named).results
    if o.dtype != views["q"].dtype:
        raise refuse(no_kernel(f"out_dtype {o.dtype}", "gradients are those of O of q's dtype"))
    for name, value in options.items():
        if name not in (*OF_FORWARD, *OF_BACKWARD) and value is not DEFAULTS[name]:
            raise refuse(no_kernel(name, "gradients are those of attention without it"))
    views |= {name: dense(views["q"], x.shape, x.dtype) for name, x in (("o", o), ("lse", lse))}
    used = {name: x for name, x in options.items() if name in OF_BACKWARD and x is not None}
    used.setdefault("deterministic", torch.are_deterministic_algorithms_enabled())
    plan = functools.partial(planner_of(attention_backward), **views, do=views["o"], **used)
    try:
        plan()
    except AttnError as error:
        raise refuse(str(error)) from error
    for name in captured:
        try:
            plan(captured=(name,))
        except AttnError as error:
            raise refuse(str(error), name) from error


def dense(like: TensorView, shape: Sequence[int], dtype: str) -> TensorView:
    """A stand-in for a dense tensor where another one is."""
    strides = dense_strides(tuple(shape))
    return dataclasses.replace(like, shape=tuple(shape), strides=strides, dtype=dtype)


def check_attention(
    operands: Mapping[str, Any], mask: str, scale: float, score_mod: Recorded | None = None
) -> None:
    """`check_gradients` for a call of `attn_mlir::attention` without lists of blocks."""
    check_gradients(operands, {"mask": parse_mask(mask), "scale": scale, "score_mod": score_mod})


def _of_attention(*inputs: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """Operands and options of a call of `attn_mlir::attention`, of which gradients are wanted."""
    call = AttentionArguments(*inputs)
    options: dict[str, Any] = {"mask": parse_mask(call.mask), "scale": call.scale}
    options["return_lse"] = call.return_lse
    read = [*call.captured]
    if call.block:
        lists, read = read[: len(BLOCK_LISTS)], read[len(BLOCK_LISTS) :]
        options |= {**dict(zip(BLOCK_LISTS, lists, strict=True)), EXTENTS: [*call.block]}
    if call.modifier:
        program = Program.from_json(call.modifier)
        names = (tensor.name for tensor in program.tensors)
        options["score_mod"] = Recorded(program, dict(zip(names, read, strict=True)))
    return call[: len(OPERANDS)], options


register(attention_op, _of_attention, AttentionArguments._fields)
