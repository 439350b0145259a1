"""Makes tensors of PyTorch readable for kernels.

PyTorch's functions take any strides, addresses and head sizes. A tensor that no tensor map can
describe is copied once, when the operator runs, also in graphs; head sizes are padded with zeros.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np

from attn_mlir import env, library
from attn_mlir.api.copyable import misfit
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.repeats import Known
from attn_mlir.runtime.call.signatures import Signature, is_array
from attn_mlir.runtime.call.tensors import TensorView, view

torch: Any = importlib.import_module("torch")

HEAD_DIM_STEP = 8  # elements of 16 bits: 16 bytes, the unit of copies

_readable = Known()  # layouts that kernels can read


def readable(name: str, tensor: Any) -> Any:
    """The tensor, or a dense copy if kernels cannot read it where it lies; the copy has a gradient.

    Layouts that kernels can read are remembered, as a `view` takes some ten microseconds.
    """
    layout = Signature()
    seen = tensor.detach() if tensor.requires_grad else tensor
    is_known = is_array(seen) and layout.add_array(seen)
    if is_known and (key := tuple(layout.key)) in _readable:
        return tensor
    problem = misfit(view(seen, name))
    if problem is None:
        if is_known:
            _readable.add(key)
        return tensor
    what, _ = problem
    env.log("debug", f"{name} {what}; it is copied")
    return tensor.clone(memory_format=torch.contiguous_format)


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
