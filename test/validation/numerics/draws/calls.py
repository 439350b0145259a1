"""How a drawn call is made, and what its arguments are: modes and tensors of PyTorch.

The answer has to be the same. Without torch a draw is called with arrays of numpy, whatever it says of these two.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import ml_dtypes
import numpy as np

import attn_mlir as am
from attn_mlir.caches import CACHES
from attn_mlir.errors import SpecError
from attn_mlir.runtime.kernel import DeviceChoice, launching_on, named_device

PLAIN, ARRAYS = "called", "arrays"
HAS_TORCH = importlib.util.find_spec("torch") is not None
OFFSET = 64  # elements in front of a tensor that begins within its memory
_WORDS = {
    np.dtype(ml_dtypes.bfloat16): ("int16", "bfloat16"),
    np.dtype(ml_dtypes.float8_e4m3fn): ("uint8", "float8_e4m3fn"),
    np.dtype(ml_dtypes.float8_e5m2): ("uint8", "float8_e5m2"),
}  # words that both libraries have, and torch's dtype, of what torch does not take from numpy

Function = Callable[..., Any]


def tensor_of(array: np.ndarray[Any, Any]) -> Any:
    """An array as a tensor with the same strides."""
    torch = importlib.import_module("torch")
    array = array if array.flags.writeable else array.copy()
    if array.dtype not in _WORDS:
        return torch.from_numpy(array)
    words, dtype = _WORDS[array.dtype]
    return torch.from_numpy(array.view(words)).view(getattr(torch, dtype))


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor as an array."""
    torch = importlib.import_module("torch")
    for dtype, (words, name) in _WORDS.items():
        if tensor.dtype == getattr(torch, name):
            return tensor.detach().view(getattr(torch, words)).numpy().view(dtype)
    return tensor.detach().numpy()


def _within(tensor: Any) -> Any:
    """The same numbers in larger memory, of which all other bytes are 0xFF."""
    torch = importlib.import_module("torch")
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    count = (2 * OFFSET + max(reach, 0)) * tensor.element_size()
    memory = torch.full((count,), 0xFF, dtype=torch.uint8).view(tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), OFFSET).copy_(tensor)


def _parameter(tensor: Any) -> Any:
    torch = importlib.import_module("torch")
    return torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    ARRAYS: lambda tensor: tensor,
    "tensors": lambda tensor: tensor,
    "parameters": _parameter,
    "tensors within larger memory": _within,
}


def _module(function: Function) -> Any:
    """The function as a module, which export asks for."""
    torch = importlib.import_module("torch")
    made = torch.nn.Module()
    made.forward = function
    return made


def _compiled(dynamic: bool | None, backend: str) -> Function:
    def make(function: Function, given: Sequence[Any]) -> Any:
        torch = importlib.import_module("torch")
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=backend)
        return compiled(*given)

    return make


def _exported(function: Function, given: Sequence[Any]) -> Any:
    torch = importlib.import_module("torch")
    return torch.export.export(_module(function), tuple(given), strict=False).module()(*given)


def _traced(mode: str) -> Function:
    def make(function: Function, given: Sequence[Any]) -> Any:
        proxies = importlib.import_module("torch.fx.experimental.proxy_tensor")
        return proxies.make_fx(function, tracing_mode=mode)(*given)(*given)

    return make


def _by_jit(function: Function, given: Sequence[Any]) -> Any:
    torch = importlib.import_module("torch")
    return torch.jit.trace(function, tuple(given), check_trace=False)(*given)


def _inferred(function: Function, given: Sequence[Any]) -> Any:
    with importlib.import_module("torch").inference_mode():
        return function(*given)


def _refused(function: Function, given: Sequence[Any]) -> Any:
    """Called, after a tensor of a subclass was refused in the place of the first argument."""
    torch = importlib.import_module("torch")
    named = type("Named", (torch.Tensor,), {})
    try:
        function(given[0].as_subclass(named), *given[1:])
    except SpecError:
        return function(*given)
    raise AssertionError("a tensor of a subclass was taken for q")


MODES: dict[str, Function] = {
    PLAIN: lambda function, given: function(*given),
    "compiled": _compiled(None, "eager"),
    "compiled, sizes dynamic": _compiled(True, "aot_eager"),
    "exported": _exported,
    "make_fx": _traced("real"),
    "make_fx, symbolic": _traced("symbolic"),
    "jit": _by_jit,
    "inference mode": _inferred,
    "after a refusal": _refused,
}
EAGER = (PLAIN, "inference mode", "after a refusal")  # the other modes make a graph


class _Slot:
    """The place of an array among arguments."""

    def __init__(self, index: int):
        self.index = index


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments with every array, or every slot, changed."""
    if isinstance(value, np.ndarray | _Slot):
        return change(value)
    if isinstance(value, CACHES):
        fields = {
            x.name: _mapped(change, getattr(value, x.name)) for x in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _mapped(change, x) for name, x in items}
    if isinstance(value, tuple):
        return tuple(_mapped(change, x) for x in cast("tuple[Any, ...]", value))
    return value


def attend(
    mode: str,
    kind: str,
    operands: tuple[Any, ...],
    options: Mapping[str, Any],
    device: DeviceChoice,
) -> Any:
    """What `attention` gives, called in a mode with arguments of a kind; arrays of numpy.

    Args:
      mode: one of `MODES`.
      kind: one of `ARGUMENTS`.
      operands: q and k and v, or a cache.
    """
    if (mode, kind) == (PLAIN, ARRAYS) or not HAS_TORCH:
        return am.attention(*operands, **options, device=device)
    torch = importlib.import_module("torch")
    tensors: list[Any] = []

    def put(array: Any) -> _Slot:
        tensors.append(ARGUMENTS[kind](tensor_of(array)))
        return _Slot(len(tensors) - 1)

    told = _mapped(put, (*operands, dict(options)))

    def call(*given: Any) -> Any:
        *arguments, named = _mapped(lambda slot: given[slot.index], told)
        return am.attention(*arguments, **named)

    with torch.no_grad(), launching_on(named_device(device)):
        result = MODES[mode](call, tensors)
    return tuple(map(array_of, result)) if isinstance(result, tuple) else array_of(result)
