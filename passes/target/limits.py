"""The machines that kernels are planned for: what they hold and what they can do.

The one place with these figures. Schedules choose by them, never by a chip's name. Tables are those
of the CUDA C++ Programming Guide, "Features and Technical Specifications per Compute Capability",
9.0 and 10.0; sections are those of the PTX ISA. Where the assembler knows a limit, a test asks it.
"""

from dataclasses import dataclass
from typing import Literal

from attn_mlir.errors import TargetError

Accumulator = Literal["tensor", "registers"]


@dataclass(frozen=True)
class Target:
    """One compilation target.

    Attributes:
      chip: as `ptxas -arch` spells it.
      features: PTX version for the backend.
      accumulator: where products of the tensor core leave their sums: in tensor memory, or in the
        registers of the warpgroup that issues them.
      rows_per_product: rows of A and D of one product.
      tensor_columns: tensor memory of a multiprocessor, columns of 32 bits x 128 lanes.
      smem_bytes: shared memory that a CTA may ask for.
      registers: 32-bit registers of a multiprocessor.
      registers_per_thread: most that a thread can own.
      least_registers: that a thread can be left with.
      register_step: registers of a thread are given out in multiples.
      warps_per_cta: most warps in a CTA.
      named_barriers: of a CTA, 0 being the one that all its threads meet at.
      cluster_ctas: most CTAs of a cluster on any machine with this chip, and where it is asked for.
      has_gather: whether the copy engine takes rows of one copy from four places.
      has_launch_control: whether a CTA can take over another one's work (clusterlaunchcontrol).
      has_packed_f32: whether f32 arithmetic works on pairs.
      has_max3: whether a maximum takes three f32 operands.
    """

    chip: str
    features: str
    accumulator: Accumulator
    rows_per_product: int
    tensor_columns: int
    smem_bytes: int
    registers: int
    registers_per_thread: int
    least_registers: int
    register_step: int
    warps_per_cta: int
    named_barriers: int
    cluster_ctas: tuple[int, int]
    has_gather: bool
    has_launch_control: bool
    has_packed_f32: bool
    has_max3: bool

    def launch_registers(self, warpgroups: int) -> int:
        """Registers that each thread of a CTA of this size is launched with, if it moves any.

        What ptxas gives a kernel with `setmaxnreg` and one CTA per multiprocessor: equal shares of
        the register file, whole steps of it.
        """
        threads = warpgroups * WARPGROUP_THREADS
        share = self.registers // threads // self.register_step * self.register_step
        return min(share, self.registers_per_thread)

    def register_pool(self, warpgroups: int) -> int:
        """Registers per thread that the warpgroups of a CTA can divide among themselves, summed.

        A CTA owns what it is launched with and not the rest of the register file; one that asks for
        more waits for ever (measured on an H200, validation/differential/roles.py).
        """
        return self.launch_registers(warpgroups) * warpgroups


TARGETS = {
    target.chip: target
    for target in (
        Target(
            chip="sm_90a",
            features="+ptx88",
            accumulator="registers",  # wgmma.mma_async
            rows_per_product=64,  # wgmma.mma_async: M of every shape
            tensor_columns=0,
            smem_bytes=232448,  # table: 227 KB per thread block
            registers=65536,  # table: 64 K per multiprocessor
            registers_per_thread=256,  # setmaxnreg: 24 to 256; table: 255, allocated as 256
            least_registers=24,  # setmaxnreg
            register_step=8,  # setmaxnreg
            warps_per_cta=32,  # table: 1024 threads
            named_barriers=16,  # barrier{.cta}
            cluster_ctas=(8, 16),  # guide, Thread Block Clusters: 8 everywhere, 16 on request
            has_gather=False,  # cp.async.bulk.tensor .tile::gather4: from sm_100
            has_launch_control=False,  # clusterlaunchcontrol: from sm_100
            has_packed_f32=False,  # fma .f32x2: from sm_100
            has_max3=False,  # max with three inputs: from sm_100
        ),
        Target(
            chip="sm_100a",
            features="+ptx88",
            accumulator="tensor",  # tcgen05.mma
            rows_per_product=128,  # tcgen05.mma: M with .cta_group::1, all lanes used
            tensor_columns=512,  # Tensor Memory
            smem_bytes=232448,  # table: 227 KB per thread block
            registers=65536,  # table: 64 K per multiprocessor
            registers_per_thread=256,  # setmaxnreg: 24 to 256; table: 255, allocated as 256
            least_registers=24,  # setmaxnreg
            register_step=8,  # setmaxnreg
            warps_per_cta=32,  # table: 1024 threads
            named_barriers=16,  # barrier{.cta}
            cluster_ctas=(8, 16),  # guide, Thread Block Clusters: 8 everywhere, 16 on request
            has_gather=True,  # cp.async.bulk.tensor .tile::gather4
            has_launch_control=True,  # clusterlaunchcontrol
            has_packed_f32=True,  # fma .f32x2
            has_max3=True,  # max with three inputs
        ),
    )
}

DEFAULT_TARGET = "sm_100a"  # where nobody names one
LINE_BYTES = 128  # of a tile in shared memory: the span of the 128-byte swizzle
WARP_THREADS = 32
WARPGROUP_WARPS = 4  # setmaxnreg and wgmma act on four consecutive warps; PTX ISA
WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_THREADS


def shared_tile_bytes(rows: int, columns: int, element_bits: int) -> int:
    """Bytes of a tile [rows, columns] in shared memory: whole 128-byte lines, swizzled."""
    return rows * -(-columns * element_bits // (8 * LINE_BYTES)) * LINE_BYTES


def target_named(chip: str) -> Target:
    """Returns the limits of a chip; raises TargetError for one that is not known."""
    if chip not in TARGETS:
        raise TargetError(f"no target {chip!r}: supported are {', '.join(TARGETS)}")
    return TARGETS[chip]
