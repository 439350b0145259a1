"""Limits of the machines that kernels are planned for."""

from dataclasses import dataclass

from attn_mlir.errors import TargetError


@dataclass(frozen=True)
class Target:
    """One compilation target.

    Attributes:
      chip: as `ptxas -arch` spells it.
      features: PTX version for the backend.
      smem_bytes: shared memory a CTA may ask for.
      tmem_cols: tensor-memory columns of 32 bits x 128 lanes; 0 without tensor memory.
      registers: 32-bit registers of a multiprocessor.
      has_launch_control: whether a CTA can take over another one's work (clusterlaunchcontrol).
      warps_per_cta: most warps in a CTA.
    """

    chip: str
    features: str
    smem_bytes: int
    tmem_cols: int
    has_launch_control: bool
    registers: int = 65536  # per SM; CUDA C++ Programming Guide, compute capabilities
    warps_per_cta: int = 32  # 1024 threads; same table


TARGETS = {
    target.chip: target
    for target in (
        Target(
            "sm_90a", "+ptx88", smem_bytes=232448, tmem_cols=0, has_launch_control=False
        ),  # 227 KiB; same table
        Target(
            "sm_100a", "+ptx88", smem_bytes=232448, tmem_cols=512, has_launch_control=True
        ),  # PTX ISA, tcgen05.alloc
    )
}

LINE_BYTES = 128  # of a tile in shared memory: the span of the 128-byte swizzle
WARP_THREADS = 32
WARPGROUP_WARPS = 4  # setmaxnreg acts on four consecutive warps; PTX ISA


def shared_tile_bytes(rows: int, columns: int, element_bits: int) -> int:
    """Bytes of a tile [rows, columns] in shared memory: whole 128-byte lines, swizzled."""
    return rows * -(-columns * element_bits // (8 * LINE_BYTES)) * LINE_BYTES


def target_named(chip: str) -> Target:
    """Returns the limits of a chip; raises TargetError for one that is not known."""
    if chip not in TARGETS:
        raise TargetError(f"no target {chip!r}: supported are {', '.join(TARGETS)}")
    return TARGETS[chip]
