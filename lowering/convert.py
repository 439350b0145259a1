"""The pass `convert-ws-to-nvvm`, and the upstream passes from there to LLVM."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.module import target_of
from attn_mlir.passes.infrastructure import analyses
from attn_mlir.passes.infrastructure.registry import register

from .access import chosen_rows, groups, lanes, scatter
from .checks import cluster_legality, copy_legality, legality
from .compute import dot, elementwise, exponential, keep, registers, repeat
from .copies import copies, prefetch, row_copies
from .frame import clock, control, grid, tiles
from .frame.structure import lower_kernel, thread_count
from .manifest import attach, describe
from .rings import clusters, rings
from .sm_90a import legality as sm_90a_legality
from .sm_90a import products
from .sm_100a import gather, matmul
from .sm_100a import legality as sm_100a_legality

FAMILIES = (
    chosen_rows,
    clock,
    cluster_legality,
    clusters,
    control,
    copies,
    copy_legality,
    legality,
    dot,
    elementwise,
    exponential,
    grid,
    groups,
    keep,
    lanes,
    prefetch,
    registers,
    repeat,
    rings,
    row_copies,
    scatter,
    tiles,
    products,
    sm_90a_legality,
    gather,
    matmul,
    sm_100a_legality,
)
"""Modules whose functions are registered by importing them."""

UPSTREAM = (
    "gpu.module("
    "convert-nvgpu-to-nvvm,convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,"
    "convert-index-to-llvm,convert-arith-to-llvm,convert-nvvm-to-llvm"
    "),convert-cf-to-llvm,reconcile-unrealized-casts"
)
"""Upstream passes from our NVVM level to LLVM; `convert-nvgpu-to-nvvm` has to come first."""


@register
@dataclass(frozen=True)
class ConvertWsToNvvm:
    """Replaces every planned `ws.kernel` by a `gpu.module` with an `llvm.func`.

    Attributes:
      target: the chip to emit for; the module's, or sm_100a, where none is named.
    """

    name: ClassVar[str] = "convert-ws-to-nvvm"
    target: str = ""

    def run(self, module: Any) -> None:
        """Converts; no `ws` operation is left.

        Raises:
          VerifyError: a kernel without a plan, or an operation without a lowering.
          TargetError: an unknown chip, or not the module's.
        """
        kernels = list(ir.get_ops_of_type(module, ws.KernelOp))
        target = target_of(module, self.target, keep=bool(kernels))
        module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()
        for kernel in kernels:
            with kernel.operation.location, ir.InsertionPoint(kernel.operation):
                lowering = lower_kernel(kernel, target)
                manifest = describe(lowering.signature, thread_count(kernel), target)
            attach(module, manifest)
            analyses.forget(kernel)
            kernel.operation.erase()
