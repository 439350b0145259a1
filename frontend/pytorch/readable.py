"""Makes tensors of PyTorch readable for kernels.

PyTorch's functions take any strides, addresses and head sizes. A tensor that no tensor map can
describe is copied once, when the operator runs, also in graphs; head sizes are padded with zeros.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from attn_mlir import env, library
from attn_mlir.api.copyable import misfit
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.repeats import Known
from attn_mlir.runtime.call.signatures import ALIGNMENT, Signature, is_array
from attn_mlir.runtime.call.tensors import TensorView, view

torch: Any = importlib.import_module("torch")

HEAD_DIM_STEP = 8  # elements of 16 bits: 16 bytes, the unit of copies

_readable = Known[bool]()  # of layouts that kernels can read True


def readable(name: str, tensor: Any) -> Any:
    """The tensor, or a dense copy, with a gradient, if kernels cannot read it where it lies."""
    problem = _problem(name, tensor)
    if problem is None:
        return tensor
    env.log("debug", f"{name} {problem}; it is copied")
    return tensor.clone(memory_format=torch.contiguous_format)


def all_readable(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Several tensors as of `readable`, by name; they have memory, and are of a plain class."""
    key, addresses = list[Any](), 0
    for x in tensors.values():
        key += (x.shape, x.stride(), x.dtype)
        addresses |= x.data_ptr()
    layouts = (*key, addresses % ALIGNMENT)
    if _readable.get(layouts):
        return dict(tensors)
    made = {name: readable(name, x) for name, x in tensors.items()}
    if all(x is tensors[name] for name, x in made.items()):
        _readable.put(layouts, True)
    return made


def _problem(name: str, tensor: Any) -> str | None:
    """Why kernels cannot read a tensor where it lies; None if they can.

    Layouts that they can read are remembered, as a `view` takes some ten microseconds.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        tensor = tensor.detach()
    layout = Signature()
    is_known = is_array(tensor) and layout.add_array(tensor)
    key = tuple(layout.key)
    if is_known and _readable.get(key):
        return None
    problem = misfit(view(tensor, name))
    if problem is None:
        if is_known:
            _readable.put(key, True)
        return None
    return problem[0]


def padded(tensor: Any) -> Any:
    """[..., head_dim] with zeros behind, up to a head size that kernels have."""
    return library.padded(tensor, HEAD_DIM_STEP)


def as_tensor(array: Any, rank: int) -> Any:
    """A captured array as a tensor that aliases it, with axes of extent 1 appended up to `rank`."""
    owner: Any = array.owner if isinstance(array, TensorView) else array
    if isinstance(owner, tuple):  # references: the tensor and its DLPack capsule
        owner = cast("tuple[Any, ...]", owner)[0]
    tensor: Any = owner if isinstance(owner, torch.Tensor) else _imported(owner)
    while tensor.dim() < rank:
        tensor = tensor.unsqueeze(-1)
    return tensor


def _imported(array: Any) -> Any:
    """A tensor that aliases an array of another library, also of bfloat16, which DLPack of numpy
    lacks.

    Raises:
      SpecError: it runs backwards, of which PyTorch has no tensors: importing one ends the process.
    """
    words: Any = array
    steps: tuple[int, ...] = getattr(array, "strides", None) or ()
    if any(step < 0 for step in steps):
        raise SpecError(
            f"a captured array of shape {list(words.shape)} has strides {list(steps)} in bytes: "
            "PyTorch has no negative ones, capture a copy"
        )
    if isinstance(array, np.ndarray) and words.dtype.name == "bfloat16":
        return torch.from_dlpack(words.view(np.uint16)).view(torch.bfloat16)
    return torch.from_dlpack(words)
