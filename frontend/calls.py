"""The public functions in place of which tracers of PyTorch see operators.

`api` does not depend on PyTorch. A call that something of PyTorch traces or transforms becomes an
operator, such as `attn_mlir::attention_call`: under `torch.compile`, `torch.export`,
`torch.jit.trace`, `make_fx`, a `FakeTensorMode` and `torch.func`. Any other call goes to `api`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

from attn_mlir.api import appending
from attn_mlir.api import attention as api
from attn_mlir.api import attention_backward as backward
from attn_mlir.api.latent import mla as dense
from attn_mlir.api.latent import mla_backward as dense_backward
from attn_mlir.api.latent import mla_decode as decoding
from attn_mlir.api.latent import sparse_mla as sparse
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.refusal import refusal
from attn_mlir.caches import CACHES
from attn_mlir.errors import REFUSALS
from attn_mlir.runtime.call.torch_tensors import (
    is_compiling,
    is_fake,
    is_tensor,
    is_tracing,
    wants_gradient,
)

P = ParamSpec("P")
TRAINED = {
    "attention": "attn_mlir.pytorch.autograd",
    "mla": "attn_mlir.pytorch.latent.autograd",
}  # modules whose `trained` calls the function as a node of autograd


def _or_operator(function: Callable[P, Any]) -> Callable[P, Any]:
    """A function of `api`, in whose place tracers of PyTorch see the operator for it."""
    name = function.__name__
    trains = TRAINED.get(name)

    @functools.wraps(function, updated=())
    def call(*arguments: P.args, **options: P.kwargs) -> Any:
        if _is_traced(arguments, options):
            from attn_mlir.pytorch.in_graphs import IN_GRAPHS

            return IN_GRAPHS[name](*arguments, **options)
        if trains is not None and wants_gradient(arguments, options):
            return importlib.import_module(trains).trained(*arguments, **options)
        return function(*arguments, **options)

    attributes = vars(function)
    vars(call).update(planner=attributes["planner"], __signature__=attributes["__signature__"])
    return call


attention = _or_operator(api.attention)
attention_backward = _or_operator(backward.attention_backward)
append_kv = _or_operator(appending.append_kv)
mla = _or_operator(dense.mla)
mla_backward = _or_operator(dense_backward.mla_backward)
sparse_mla = _or_operator(sparse.sparse_mla)
mla_decode = _or_operator(decoding.mla_decode)


def prepared(*arguments: Any, **options: Any) -> Callable[[], Any]:
    """Checks a call of `attention`, and returns a function that carries it out later.

    If PyTorch traces it, it is checked then.

    Raises:
      SpecError: as `attention`.
    """
    if _is_traced(arguments, options):
        return functools.partial(attention, *arguments, **options)
    return api.plan(*arguments, **options).run


@outside_graphs
def supports(*arguments: Any, **options: Any) -> str | None:
    """Why a call of `attention` would be refused; None if kernels take it.

    The call is checked and planned, as are its gradients where an operand requires one, and nothing
    is compiled, allocated or launched. Tensors without memory do, such as those of
    `torch.empty(..., device="meta")`: indices and lengths in host memory are looked at, other
    elements are not.

    Args:
      arguments, options: as of `attention`.

    Returns:
      The message of the `SpecError`, `TargetError` or `ResourceError`, which says what is wrong,
      what is allowed and what to do; None. A toolchain that is missing shows when kernels compile.

    Raises:
      TypeError: an argument that `attention` has not.
    """
    if not wants_gradient(arguments, options):
        return refusal(*arguments, **options)
    from attn_mlir.pytorch.autograd import DIFFERENTIABLE

    with sys.modules["torch"].no_grad():
        if (reason := refusal(*arguments, **options)) is not None:
            return reason
    try:
        DIFFERENTIABLE.check_call(arguments, options)
    except REFUSALS as error:
        return str(error)
    return None


vars(supports).update(
    __signature__=inspect.signature(attention).replace(return_annotation=str | None)
)


def _is_traced(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a call is to be an operator of PyTorch, since something records or transforms it.

    That is PyTorch's compiler, another tracer or a transformation of `torch.func` for calls with
    tensors, and a fake as the first argument.
    """
    if "torch" not in sys.modules:
        return False
    if is_compiling():
        return True
    if arguments and is_fake(arguments[0]):
        return True
    return is_tracing() and any(map(_holds_tensors, (*arguments, *options.values())))


def _holds_tensors(value: object) -> bool:
    """Whether an argument is a tensor of PyTorch, or a cache of such."""
    return is_tensor(value) or (
        isinstance(value, CACHES) and any(map(is_tensor, vars(value).values()))
    )
