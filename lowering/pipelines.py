"""The named pipelines, one per arrow of the way down; each starts where `attn` starts."""

from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.passes.registry import register_pipeline

from .convert import UPSTREAM


@register_pipeline
@dataclass(frozen=True)
class AttnToWs:
    """`attn` operations to warp-specialised kernels with proven rings."""

    name: ClassVar[str] = "attn-to-ws"

    def expand(self) -> str:
        """Configure, schedule, prove."""
        return "attn-configure,convert-attn-to-ws,attn-check-stage{stage=ws},ws-verify-rings"


@register_pipeline
@dataclass(frozen=True)
class AttnToNvvm:
    """`attn` operations to kernels at the NVVM level.

    Attributes:
      target: the chip.
    """

    name: ClassVar[str] = "attn-to-nvvm"
    target: str = "sm_100a"

    def expand(self) -> str:
        """Down to `ws`, then addresses, then instructions."""
        return f"attn-to-ws,{ws_to_nvvm(self.target)}"


@register_pipeline
@dataclass(frozen=True)
class AttnToPtx:
    """`attn` operations to a `gpu.binary` that holds PTX.

    Attributes:
      target: the chip.
    """

    name: ClassVar[str] = "attn-to-ptx"
    target: str = "sm_100a"

    def expand(self) -> str:
        """Down to the NVVM level, then upstream's passes and the NVPTX backend."""
        return f"attn-to-nvvm{{target={self.target}}},{UPSTREAM},{nvvm_to_ptx()}"


@register_pipeline
@dataclass(frozen=True)
class AttnToBundle:
    """`attn` operations to a bundle file.

    Attributes:
      target: the chip.
      output: the file; with several kernels in the module, a folder.
    """

    name: ClassVar[str] = "attn-to-bundle"
    target: str = "sm_100a"
    output: str = "kernel.attn"

    def expand(self) -> str:
        """Down to PTX, then `ptxas` and the file."""
        return f"attn-to-ptx{{target={self.target}}},attn-write-bundle{{output={self.output}}}"


def ws_to_nvvm(target: str) -> str:
    """Pipeline text from `ws` to the NVVM level."""
    return (
        f"ws-plan-memory{{target={target}}},convert-ws-to-nvvm{{target={target}}},"
        "attn-check-stage{stage=nvvm}"
    )


def nvvm_to_ptx() -> str:
    """Pipeline text from LLVM to PTX."""
    return "attn-check-stage{stage=llvm},gpu-module-to-binary{format=isa}"
