"""Gradients of latent attention before absorption in PyTorch's autograd, as `autograd` has those of
attention: a call is one node, which saves the operands, O and LSE."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from attn_mlir.api.latent.mla import mla
from attn_mlir.api.latent.mla_backward import MLA_WANTED, mla_backward
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.plan_cache import READER
from attn_mlir.api.planners import planner_of
from attn_mlir.caches import CACHES
from attn_mlir.errors import AttnError, SpecError, no_kernel
from attn_mlir.pytorch.autograd import clear_outside, dense, once, save
from attn_mlir.pytorch.graph_calls import GraphCall
from attn_mlir.pytorch.latent_backward import mla_backward_in_graph
from attn_mlir.pytorch.operators import static_scale
from attn_mlir.pytorch.readable import readable
from attn_mlir.runtime.call.repeats import Known
from attn_mlir.runtime.call.signatures import Signature
from attn_mlir.runtime.call.tensors import described
from attn_mlir.runtime.call.torch_tensors import NO_GRADIENT, check_tensor, is_fake, is_tracing
from attn_mlir.runtime.kernel import chosen_for_all

torch: Any = importlib.import_module("torch")

OF_FORWARD = (
    *("return_lse", "out_dtype", "query_tiles", "tile_order", "num_qk_stages", "num_pv_stages"),
    *("ordered_softmax", "sm_margin"),
)  # arguments of `mla` of which gradients do not depend
OF_BACKWARD = tuple(inspect.signature(mla_backward).parameters)
DEFAULTS = {name: x.default for name, x in inspect.signature(mla).parameters.items()}

_checked = Known[bool]()  # calls whose gradients have kernels


class _Mla(torch.autograd.Function):
    """`mla` and its gradients, outside of tracers."""

    @staticmethod
    def forward(ctx: Any, options: Mapping[str, Any], *operands: Any) -> tuple[Any, Any]:
        o, lse = mla(*operands, **{**options, "return_lse": True})
        save(ctx, operands, (o, lse), options, {}, OF_BACKWARD)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        _, *needs = ctx.needs_input_grad
        found = _gradients(ctx, do, dlse, compress(MLA_WANTED, needs))
        return None, *map(found.get, MLA_WANTED)


@outside_graphs
def trained(*arguments: Any, **options: Any) -> Any:
    """`mla`, where a gradient is wanted.

    Raises:
      SpecError: as `mla`, and for a call whose gradients have no kernel.
    """
    named = dict(zip(DEFAULTS, arguments, strict=False)) | options
    operands = {name: named.pop(name, None) for name in MLA_WANTED}
    _check_gradients(operands, named)
    o, lse = _Mla.apply(named, *operands.values())
    return (o, lse) if named.get("return_lse") else o


def register(operator: Any, call: GraphCall) -> None:
    """Tells PyTorch the gradients of the operator for `mla`, which returns O and LSE.

    Args:
      call: that the operator was made of.
    """
    names = call.arguments

    def setup(ctx: Any, inputs: Sequence[Any], output: Sequence[Any]) -> None:
        named = dict(zip(names, inputs, strict=True))
        options = call.unflattened(lambda tensor, _: tensor, named)
        operands = {name: options.pop(name) for name in MLA_WANTED}
        if not options.get("return_lse"):
            raise SpecError("return_lse must be True: gradients are computed from LSE")
        _check_gradients(operands, {**options, "scale": static_scale(options["scale"])})
        save(ctx, [*operands.values()], output, options, {}, OF_BACKWARD)

    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        needs = dict(zip(names, ctx.needs_input_grad, strict=False))
        found = _gradients(ctx, do, dlse, [name for name in MLA_WANTED if needs.get(name)])
        return tuple(map(found.get, needs))

    operator.register_autograd(backward, setup_context=setup)


def _gradients(ctx: Any, do: Any, dlse: Any, wanted: Iterable[str]) -> dict[str, Any]:
    """The gradients that are wanted, by the names of operands, from those of O and LSE."""
    count = len(MLA_WANTED)
    given, (o, lse, *others) = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
    wanted = tuple(wanted)
    if (do is None and dlse is None) or not wanted:
        return {}
    options: dict[str, Any] = {**ctx.options, "wanted": wanted}
    options |= zip(ctx.arrays, others, strict=False)
    if dlse is not None:
        options["dlse"] = dlse.contiguous()
    do = torch.zeros_like(o) if do is None else do
    with torch.no_grad():
        do = readable("do", do)
        pairs = zip(MLA_WANTED, given, strict=True)
        named: dict[str, Any] = {name: readable(name, x) for name, x in pairs}
        named |= {"o": o, "lse": lse, "do": do}
        if is_fake(o) or is_tracing():
            found = mla_backward_in_graph(*(x.detach() for x in named.values()), **options)
        else:
            found = mla_backward(**named, **options)
        made = {name: x for name, x in zip(MLA_WANTED, found, strict=True) if x is not None}
        for side in ("q", "k"):
            of_side = [x for name, x in made.items() if name.startswith("q") == (side == "q")]
            if of_side and options.get(f"seqused_{side}") is not None:
                clear_outside(of_side, options, side)
    return once(made, (*given, do, *others))


def _check_gradients(operands: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuses a call whose gradients have no kernel; calls that are alike are planned once.

    Raises:
      SpecError: names an operand that requires a gradient, and says what there is no kernel for.
    """
    signature = Signature(len(operands), *options)
    with torch.no_grad():
        values = (*operands.values(), *options.values(), chosen_for_all())
        is_read = READER.add(signature, values)
    needs = {name: bool(getattr(x, "requires_grad", False)) for name, x in operands.items()}
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in options.values()):
        is_read = False
    key = (*signature.key, *needs.values())
    if is_read and _checked.get(key):
        return
    for name, x in {**operands, **options}.items():
        if isinstance(x, torch.Tensor):
            check_tensor(x, name, has_gradient=name in operands)
            if name not in operands and x.requires_grad:
                raise SpecError(NO_GRADIENT.format(name))
    with torch.no_grad():
        _plan_gradients(operands, options, next((x for x in needs if needs[x]), MLA_WANTED[0]))
    if is_read:
        _checked.put(key, True)


def _plan_gradients(operands: Mapping[str, Any], options: Mapping[str, Any], wanted: str) -> None:
    """Plans a call and its gradients; errors as `_check_gradients`, and of the call itself.

    Args:
      wanted: an operand whose gradient is wanted.
    """

    def refused(why: str) -> SpecError:
        return SpecError(
            f"{wanted} requires a gradient, which this call has none of: {why}; call under "
            f"torch.no_grad(), or pass {wanted}.detach()"
        )

    if isinstance(cache := operands["k_rope"], CACHES):
        supported = "gradients are those of keys in tensors of their own"
        raise refused(no_kernel(f"k_rope of a {type(cache).__name__}", supported))
    found = {name: described(x, name) for name, x in operands.items()}
    views = {name: dense(x, x.shape, x.dtype) for name, x in found.items()}
    given: dict[str, Any] = {**views, **options, "return_lse": True}
    o, lse = planner_of(mla)(**given).results
    if o.dtype != views["q_nope"].dtype:
        raise refused(no_kernel(f"out_dtype {o.dtype}", "gradients are those of O of q's dtype"))
    for name, value in options.items():
        if name not in (*OF_FORWARD, *OF_BACKWARD) and value is not DEFAULTS[name]:
            raise refused(no_kernel(name, "gradients are those of attention without it"))
    views |= {x.name: dense(views["q_nope"], x.shape, x.dtype) for x in (o, lse)}
    used = {name: x for name, x in options.items() if name in OF_BACKWARD and x is not None}
    try:
        planner_of(mla_backward)(**views, do=views["o"], **used)
    except AttnError as error:
        raise refused(str(error)) from error
