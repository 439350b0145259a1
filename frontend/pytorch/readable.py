"""Makes tensors of PyTorch readable for kernels.

PyTorch's functions take any strides, addresses and head sizes. A tensor that no tensor map can
describe is copied once, when the operator runs, also in graphs; head sizes are padded with zeros.
"""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir import env, library
from attn_mlir.api.copyable import misfit
from attn_mlir.runtime.call.tensors import view

torch: Any = importlib.import_module("torch")

HEAD_DIM_STEP = 8  # elements of 16 bits: 16 bytes, the unit of copies


def readable(name: str, tensor: Any) -> Any:
    """The tensor, or a dense copy if kernels cannot read it where it lies."""
    problem = misfit(view(tensor, name))
    if problem is None:
        return tensor
    what, _ = problem
    env.log("debug", f"{name} {what}; it is copied")
    return tensor.clone(memory_format=torch.contiguous_format)


def padded(tensor: Any) -> Any:
    """[..., head_dim] with zeros behind, up to a head size that kernels have."""
    return library.padded(tensor, HEAD_DIM_STEP)
