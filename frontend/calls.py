"""The public functions in place of which PyTorch's compiler traces operators.

`api` does not depend on PyTorch. A call that `torch.compile` traces becomes an operator in its graph,
such as `attn_mlir::attention_call`; any other call goes to `api`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from attn_mlir.api import appending
from attn_mlir.api import attention as api
from attn_mlir.api import mla as dense
from attn_mlir.api import mla_decode as decoding
from attn_mlir.api import sparse_mla as sparse


@functools.wraps(api.attention, updated=())
def attention(*arguments: Any, **options: Any) -> Any:
    """See `api.attention`."""
    if _is_traced():
        from attn_mlir.pytorch.attention import attention_in_graph

        return attention_in_graph(*arguments, **options)
    return api.attention(*arguments, **options)


@functools.wraps(appending.append_kv, updated=())
def append_kv(*arguments: Any, **options: Any) -> None:
    """See `api.appending.append_kv`."""
    if _is_traced():
        from attn_mlir.pytorch.appending import append_in_graph

        return append_in_graph(*arguments, **options)
    return appending.append_kv(*arguments, **options)


@functools.wraps(dense.mla, updated=())
def mla(*arguments: Any, **options: Any) -> Any:
    """See `api.mla.mla`."""
    if _is_traced():
        from attn_mlir.pytorch.latent import mla_in_graph

        return mla_in_graph(*arguments, **options)
    return dense.mla(*arguments, **options)


@functools.wraps(sparse.sparse_mla, updated=())
def sparse_mla(*arguments: Any, **options: Any) -> Any:
    """See `api.sparse_mla.sparse_mla`."""
    if _is_traced():
        from attn_mlir.pytorch.latent import sparse_mla_in_graph

        return sparse_mla_in_graph(*arguments, **options)
    return sparse.sparse_mla(*arguments, **options)


@functools.wraps(decoding.mla_decode, updated=())
def mla_decode(*arguments: Any, **options: Any) -> Any:
    """See `api.mla_decode.mla_decode`."""
    if _is_traced():
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

    If PyTorch's compiler traces it, it is checked then.

    Raises:
      SpecError: as `attention`.
    """
    if _is_traced():
        return functools.partial(attention, *arguments, **options)
    return api.plan(*arguments, **options).run


def _is_traced() -> bool:
    """Whether PyTorch's compiler is loaded and tracing this call."""
    if "torch._dynamo" not in sys.modules:
        return False
    torch: Any = sys.modules["torch"]
    return torch.compiler.is_dynamo_compiling()
