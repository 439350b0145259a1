"""attn-mlir: an attention compiler for NVIDIA Blackwell and Hopper, and an emulator that runs what
it makes.

Names are imported on first use: `import attn_mlir` costs almost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attn_mlir._version import __version__

if TYPE_CHECKING:
    from attn_mlir import errors, mods, reference, trace
    from attn_mlir.api.attention import plan
    from attn_mlir.api.attention_backward import Gradients
    from attn_mlir.api.latent.formats import pack_latent, unpack_latent
    from attn_mlir.api.latent.mla_backward import MlaGradients
    from attn_mlir.api.plan import Plan
    from attn_mlir.block_masks.blocks import BlockMask
    from attn_mlir.block_masks.kinds import block_mask
    from attn_mlir.caches import ContiguousKV, PagedKV
    from attn_mlir.calls import (
        append_kv,
        attention,
        attention_backward,
        mla,
        mla_backward,
        mla_decode,
        sparse_mla,
        supports,
    )
    from attn_mlir.compiling.compiler import compile
    from attn_mlir.compiling.latent import MlaSpec
    from attn_mlir.compiling.mla_decode import MlaDecodeSpec
    from attn_mlir.compiling.spec import MhaSpec, mha
    from attn_mlir.masks import Mask, causal, chunked, full, prefix_lm, sliding_window
    from attn_mlir.runtime.devices.cuda import CudaDevice
    from attn_mlir.runtime.devices.emulator import EmulatorDevice
    from attn_mlir.runtime.file.bundle import Bundle
    from attn_mlir.runtime.file.fat_bundle import FatBundle
    from attn_mlir.runtime.kernel import Kernel, load

__all__ = [
    "BlockMask",
    "Bundle",
    "ContiguousKV",
    "CudaDevice",
    "EmulatorDevice",
    "FatBundle",
    "Gradients",
    "Kernel",
    "Mask",
    "MhaSpec",
    "MlaDecodeSpec",
    "MlaGradients",
    "MlaSpec",
    "PagedKV",
    "Plan",
    "__version__",
    "append_kv",
    "attention",
    "attention_backward",
    "block_mask",
    "causal",
    "chunked",
    "compile",
    "errors",
    "full",
    "load",
    "mha",
    "mla",
    "mla_backward",
    "mla_decode",
    "mods",
    "pack_latent",
    "plan",
    "prefix_lm",
    "reference",
    "sliding_window",
    "sparse_mla",
    "supports",
    "trace",
    "unpack_latent",
]

_MODULES = {
    "BlockMask": "block_masks.blocks",
    "Bundle": "runtime.file.bundle",
    "ContiguousKV": "caches",
    "CudaDevice": "runtime.devices.cuda",
    "EmulatorDevice": "runtime.devices.emulator",
    "FatBundle": "runtime.file.fat_bundle",
    "Gradients": "api.attention_backward",
    "Kernel": "runtime.kernel",
    "Mask": "masks",
    "MhaSpec": "compiling.spec",
    "MlaDecodeSpec": "compiling.mla_decode",
    "MlaGradients": "api.latent.mla_backward",
    "MlaSpec": "compiling.latent",
    "PagedKV": "caches",
    "Plan": "api.plan",
    "append_kv": "calls",
    "attention": "calls",
    "attention_backward": "calls",
    "block_mask": "block_masks.kinds",
    "causal": "masks",
    "chunked": "masks",
    "compile": "compiling.compiler",
    "full": "masks",
    "load": "runtime.kernel",
    "mha": "compiling.spec",
    "mla": "calls",
    "mla_backward": "calls",
    "mla_decode": "calls",
    "pack_latent": "api.latent.formats",
    "plan": "api.attention",
    "prefix_lm": "masks",
    "sliding_window": "masks",
    "sparse_mla": "calls",
    "supports": "calls",
    "unpack_latent": "api.latent.formats",
}
_SUBMODULES = ("errors", "mods", "reference", "trace")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"attn_mlir.{name}")
    if name not in _MODULES:
        if not name.startswith("_") and (make := _mask_function(name)) is not None:
            return make
        raise AttributeError(f"module 'attn_mlir' has no attribute '{name}'{_hint(name)}")
    value = getattr(importlib.import_module(f"attn_mlir.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def _mask_function(name: str) -> Any:
    """The function of a mask that type checkers do not know, as its file registered it."""
    from attn_mlir.masks import function_named

    return function_named(name)


def _hint(name: str) -> str:
    """The end of a message: the public name of a mask with another name in the dialect."""
    if name.startswith("_"):
        return ""
    from attn_mlir.masks import PYTHON_NAMES

    return "".join(f": am.{ours}" for ours, theirs in PYTHON_NAMES.items() if theirs == name)


def __dir__() -> list[str]:
    return sorted(__all__)
