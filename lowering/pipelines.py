"""The named pipelines, one per arrow of the way down; each starts where `attn` starts."""

from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.passes.infrastructure.registry import register_pipeline

from .convert import UPSTREAM

LINES = "ensure-debug-info-scope-on-llvm-func{emission-kind=DebugDirectivesOnly}"
"""Makes the backend write `.loc` for the operations' locations; the code stays as it is."""


@register_pipeline
@dataclass(frozen=True)
class AttnToWs:
    """`attn` operations to warp-specialised kernels with proven rings.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
    """

    name: ClassVar[str] = "attn-to-ws"
    target: str = ""

    def expand(self) -> str:
        """Configure, schedule, prove."""
        return (
            f"attn-configure{{target={self.target}}},convert-attn-to-ws,"
            "attn-check-stage{stage=ws},ws-verify-rings"
        )


@register_pipeline
@dataclass(frozen=True)
class AttnToNvvm:
    """`attn` operations to kernels at the NVVM level.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
    """

    name: ClassVar[str] = "attn-to-nvvm"
    target: str = ""

    def expand(self) -> str:
        """Down to `ws`, then addresses, then instructions."""
        return f"attn-to-ws{{target={self.target}}},{ws_to_nvvm()}"


@register_pipeline
@dataclass(frozen=True)
class AttnToPtx:
    """`attn` operations to a `gpu.binary` that holds PTX.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
    """

    name: ClassVar[str] = "attn-to-ptx"
    target: str = ""

    def expand(self) -> str:
        """Down to the NVVM level, then upstream's passes and the NVPTX backend."""
        return f"attn-to-nvvm{{target={self.target}}},{UPSTREAM},{nvvm_to_ptx()}"


@register_pipeline
@dataclass(frozen=True)
class AttnToBundle:
    """`attn` operations to a bundle file.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
      output: the file; with several kernels in the module, a folder.
    """

    name: ClassVar[str] = "attn-to-bundle"
    target: str = ""
    output: str = "kernel.attn"

    def expand(self) -> str:
        """Down to PTX with the lines of its source, then `ptxas` and the file.

        A bundle's arguments are passed by name, so each must have one.
        """
        steps = (
            "attn-check-names",
            f"attn-to-ws{{target={self.target}}}",
            ws_to_nvvm(with_source=True),
            UPSTREAM,
            nvvm_to_ptx(with_source=True),
            f"attn-write-bundle{{output={self.output}}}",
        )
        return ",".join(steps)


def ws_to_nvvm(target: str = "", *, with_source: bool = False) -> str:
    """Pipeline text from `ws` to the NVVM level; with the source that a bundle keeps, if asked."""
    record = "ws-record-source," if with_source else ""
    return (
        f"ws-plan-memory{{target={target}}},{record}convert-ws-to-nvvm,"
        "attn-check-stage{stage=nvvm}"
    )


def nvvm_to_ptx(*, with_source: bool = False) -> str:
    """Pipeline text from LLVM to PTX; with the lines of the source, if asked."""
    lines = f"{LINES}," if with_source else ""
    return f"attn-check-stage{{stage=llvm}},{lines}gpu-module-to-binary{{format=isa}}"


register_pipeline(
    "nvvm-to-ptx",
    f"{UPSTREAM},{nvvm_to_ptx(with_source=True)}",
    help="Kernels at the NVVM level to a `gpu.binary` that holds PTX with the lines of its source.",
)
