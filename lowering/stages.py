"""The stages from `attn` to PTX, in one place, and the named pipelines that consist of them.

`attn-opt` runs them by name, `compile` stage by stage; both by the driver in
`passes.infrastructure.pipeline`.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from attn_mlir.passes.infrastructure.registry import register_pipeline

from .convert import UPSTREAM

LINES = "ensure-debug-info-scope-on-llvm-func{emission-kind=DebugDirectivesOnly}"
"""Makes the backend write `.loc` for the operations' locations; the code stays the same."""


class Stage(NamedTuple):
    """A stage of the compilation.

    Attributes:
      name: the level that it ends at, for reports.
      text: its passes, as pipeline text.
    """

    name: str
    text: str


def stages(
    *, target: str = "", configure: str = "", for_bundle: bool = False
) -> tuple[Stage, Stage, Stage, Stage]:
    """The stages from `attn`: to `ws` with proven rings, NVVM, LLVM, PTX.

    A kernel that is written in `ws` begins with the second.

    Args:
      target: the chip; the module's, or sm_100a, where none is named.
      configure: further options of `attn-configure`.
      for_bundle: whether arguments must have names, and PTX the lines of the kernel's source.
    """
    names = "attn-check-names," if for_bundle else ""
    return (
        Stage(
            "ws",
            f"{names}attn-configure{{{f'target={target} {configure}'.strip()}}},convert-attn-to-ws,"
            "attn-check-stage{stage=ws},ws-verify-rings",
        ),
        Stage("nvvm", ws_to_nvvm(target, with_source=for_bundle)),
        Stage("llvm", UPSTREAM),
        Stage("ptx", nvvm_to_ptx(with_source=for_bundle)),
    )


def ws_to_nvvm(target: str = "", *, with_source: bool = False) -> str:
    """Pipeline text from `ws` to the NVVM level; `with_source` keeps the kernel's `ws` text."""
    record = "ws-record-source," if with_source else ""
    return (
        f"ws-plan-memory{{target={target}}},{record}convert-ws-to-nvvm,"
        "attn-check-stage{stage=nvvm}"
    )


def nvvm_to_ptx(*, with_source: bool = False) -> str:
    """Pipeline text from the NVVM level to PTX; `with_source` adds line numbers of the `ws`
    text.
    """
    lines = f"{LINES}," if with_source else ""
    return f"attn-check-stage{{stage=llvm}},{lines}gpu-module-to-binary{{format=isa}}"


def _pipeline_text(parts: tuple[Stage, ...]) -> str:
    return ",".join(stage.text for stage in parts)


@dataclass(frozen=True)
class _FromAttn:
    """A pipeline that begins with `attn` operations.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
      configure: further options of `attn-configure`, in braces.
    """

    target: str = ""
    configure: str = ""

    def first(self, count: int) -> str:
        """Pipeline text of the first `count` stages."""
        return _pipeline_text(stages(target=self.target, configure=self.configure)[:count])


@register_pipeline
@dataclass(frozen=True)
class AttnToWs(_FromAttn):
    """`attn` operations to warp-specialised kernels with proven rings."""

    name: ClassVar[str] = "attn-to-ws"

    def expand(self) -> str:
        """Configuration, schedule, ring proof."""
        return self.first(1)


@register_pipeline
@dataclass(frozen=True)
class AttnToNvvm(_FromAttn):
    """`attn` operations to kernels at the NVVM level."""

    name: ClassVar[str] = "attn-to-nvvm"

    def expand(self) -> str:
        """As `attn-to-ws`, then memory planning, then conversion to instructions."""
        return self.first(2)


@register_pipeline
@dataclass(frozen=True)
class AttnToPtx(_FromAttn):
    """`attn` operations to a `gpu.binary` that holds PTX."""

    name: ClassVar[str] = "attn-to-ptx"

    def expand(self) -> str:
        """As `attn-to-nvvm`, then upstream passes and the NVPTX backend."""
        return self.first(4)


@register_pipeline
@dataclass(frozen=True)
class AttnToBundle(_FromAttn):
    """`attn` operations to a bundle file.

    Attributes:
      output: the file; with several kernels in the module, a folder.
    """

    name: ClassVar[str] = "attn-to-bundle"
    output: str = "kernel.attn"

    def expand(self) -> str:
        """As `attn-to-ptx` with source lines, then `ptxas` and the file.

        A bundle's arguments are passed by name, so each of them must have a name.
        """
        passes = stages(target=self.target, configure=self.configure, for_bundle=True)
        return f"{_pipeline_text(passes)},attn-write-bundle{{output={self.output}}}"


register_pipeline(
    "nvvm-to-ptx",
    f"{UPSTREAM},{nvvm_to_ptx(with_source=True)}",
    help="Kernels at the NVVM level to a `gpu.binary` that holds PTX with the lines of its source.",
)
