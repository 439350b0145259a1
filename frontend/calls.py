"""`attention` and `append_kv` as the front door has them: PyTorch's compiler traces operators in their place.

`api` knows nothing of PyTorch. Here the two meet: a call that is being traced by `torch.compile` becomes
`attn_mlir::attention_call` or `attn_mlir::append_call` in its graph, any other call is that of `api`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from attn_mlir.api import appending
from attn_mlir.api import attention as api


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


for _own, _planned in ((attention, api.attention), (append_kv, appending.append_kv)):
    vars(_own).update(planner=vars(_planned)["planner"], __signature__=inspect.signature(_planned))


def prepared(*arguments: Any, **options: Any) -> Callable[[], Any]:
    """A call of `attention` that has been checked, to be carried out once other things are done.

    In a graph of PyTorch's compiler it is checked when it is traced.

    Raises:
      SpecError: as `attention`.
    """
    if _is_traced():
        return functools.partial(attention, *arguments, **options)
    return api.plan(*arguments, **options).run


def _is_traced() -> bool:
    """Whether PyTorch's compiler, if it is loaded at all, is looking at this."""
    if "torch._dynamo" not in sys.modules:
        return False
    torch: Any = sys.modules["torch"]
    return torch.compiler.is_dynamo_compiling()
