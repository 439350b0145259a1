"""From warp-specialised kernels to PTX, machine code and bundles."""

from attn_mlir.lowering.assemble import WriteBundle
from attn_mlir.lowering.convert import ConvertWsToNvvm
from attn_mlir.lowering.stages import AttnToBundle, AttnToNvvm, AttnToPtx, AttnToWs

__all__ = [
    "AttnToBundle",
    "AttnToNvvm",
    "AttnToPtx",
    "AttnToWs",
    "ConvertWsToNvvm",
    "WriteBundle",
]
