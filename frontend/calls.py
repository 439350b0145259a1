"""The public functions in place of which tracers of PyTorch see operators.

`api` does not depend on PyTorch. A call that something of PyTorch traces or transforms becomes an operator,
such as `attn_mlir::attention_call`: under `torch.compile`, `torch.export`, `torch.jit.trace`, `make_fx`, a
`FakeTensorMode` and `torch.func`. Any other call goes to `api`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_mlir.api import appending
from attn_mlir.api import attention as api
from attn_mlir.api import mla as dense
from attn_mlir.api import mla_decode as decoding
from attn_mlir.api import sparse_mla as sparse
from attn_mlir.caches import CACHES
from attn_mlir.runtime.call.torch_tensors import is_compiling, is_fake, is_tensor, is_tracing


@functools.wraps(api.attention, updated=())
def attention(*arguments: Any, **options: Any) -> Any:
    """See `api.attention`."""
    if _is_traced(arguments, options):
        from attn_mlir.pytorch.attention import attention_in_graph

        return attention_in_graph(*arguments, **options)
    return api.attention(*arguments, **options)


@functools.wraps(appending.append_kv, updated=())
def append_kv(*arguments: Any, **options: Any) -> None:
    """See `api.appending.append_kv`."""
    if _is_traced(arguments, options):
        from attn_mlir.pytorch.appending import append_in_graph

        return append_in_graph(*arguments, **options)
    return appending.append_kv(*arguments, **options)


@functools.wraps(dense.mla, updated=())
def mla(*arguments: Any, **options: Any) -> Any:
    """See `api.mla.mla`."""
    if _is_traced(arguments, options):
        from attn_mlir.pytorch.latent import mla_in_graph

        return mla_in_graph(*arguments, **options)
    return dense.mla(*arguments, **options)


@functools.wraps(sparse.sparse_mla, updated=())
def sparse_mla(*arguments: Any, **options: Any) -> Any:
    """See `api.sparse_mla.sparse_mla`."""
    if _is_traced(arguments, options):
        from attn_mlir.pytorch.latent import sparse_mla_in_graph

        return sparse_mla_in_graph(*arguments, **options)
    return sparse.sparse_mla(*arguments, **options)


@functools.wraps(decoding.mla_decode, updated=())
def mla_decode(*arguments: Any, **options: Any) -> Any:
    """See `api.mla_decode.mla_decode`."""
    if _is_traced(arguments, options):
        from attn_mlir.pytorch.latent import mla_decode_in_graph

        return mla_decode_in_graph(*arguments, **options)
    return decoding.mla_decode(*arguments, **options)


for _own, _planned in (
    (attention, api.attention),
    (append_kv, appending.append_kv),
    (mla, dense.mla),
    (sparse_mla, sparse.sparse_mla),
    (mla_decode, decoding.mla_decode),
):
    vars(_own).update(planner=vars(_planned)["planner"], __signature__=inspect.signature(_planned))


def prepared(*arguments: Any, **options: Any) -> Callable[[], Any]:
    """Checks a call of `attention`, and returns a function that carries it out later.

    If PyTorch traces it, it is checked then.

    Raises:
      SpecError: as `attention`.
    """
    if _is_traced(arguments, options):
        return functools.partial(attention, *arguments, **options)
    return api.plan(*arguments, **options).run


def _is_traced(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a call is to be an operator of PyTorch, since something records or transforms it.

    That is PyTorch's compiler, another tracer or a transformation of `torch.func` for calls with tensors, and
    a fake as the first argument.
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
