"""The target machines of kernels: sizes of their resources, and their features.

The one place with these figures. Schedules choose by them, never by a chip's name. "table" means
"Features and Technical Specifications per Compute Capability", 9.0 and 10.0, of the CUDA C++
Programming Guide; other sources are sections of the PTX ISA. A test compares limits and features
with the assembler.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.extensions import note

from .features import Feature, in_words


@dataclass(frozen=True)
class Target:
    """One compilation target.

    Attributes:
      chip: as `ptxas -arch` spells it.
      backend_features: PTX version for the backend.
      features: what the chip has instructions for.
      rows_per_product: rows of A and D of its largest product, its M.
      tensor_columns: columns of a multiprocessor's tensor memory, of 128 lanes x 32 bits each.
      smem_bytes: shared memory that a CTA may ask for.
      registers: 32-bit registers of a multiprocessor.
      registers_per_thread: most that a thread can own.
      least_registers: fewest that a thread can be left with.
      register_step: registers of a thread are a multiple of it.
      warps_per_cta: most warps in a CTA.
      named_barriers: number in a CTA; barrier 0 is the one of all its threads.
      cluster_ctas: most CTAs of a cluster: on every machine with this chip, and where the kernel
        opts in to more.
    """

    chip: str
    backend_features: str
    features: frozenset[Feature]
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

    def missing(self, needs: Iterable[Feature]) -> str:
        """The needed features that the chip lacks, in words; empty if it has all of them."""
        lacking = frozenset(needs) - self.features
        return in_words(lacking) if lacking else ""

    def launch_registers(self, warpgroups: int) -> int:
        """Registers of each thread at launch, for a CTA of `warpgroups` warpgroups that uses
        `setmaxnreg`.

        With one CTA per multiprocessor ptxas gives each thread an equal share of the register file,
        rounded down to whole steps.
        """
        threads = warpgroups * WARPGROUP_THREADS
        share = self.registers // threads // self.register_step * self.register_step
        return min(share, self.registers_per_thread)

    def register_pool(self, warpgroups: int) -> int:
        """Registers per thread, summed over the warpgroups of a CTA, that they can divide among
        themselves.

        A CTA owns the registers that it is launched with, not the rest of the register file; a
        warpgroup that asks for more waits forever (measured on an H200,
        test/validation/differential/roles.py).
        """
        return self.launch_registers(warpgroups) * warpgroups


SHARED_FEATURES = frozenset(
    {
        Feature.WARP_PRODUCTS,  # mma.sync.m16n8k16: from sm_80
        Feature.NARROW_WARP_PRODUCTS,  # mma.sync with elements of 8 bits: from sm_89
        Feature.COPY_ENGINE,  # cp.async.bulk.tensor: from sm_90
        Feature.CLUSTERS,  # .cluster: from sm_90
        Feature.REGISTER_BUDGETS,  # setmaxnreg: sm_90a, sm_100a
    }
)
"""The largest of all targets of this package."""

TARGETS = {
    target.chip: target
    for target in (
        Target(
            chip="sm_90a",
            backend_features="+ptx88",
            features=SHARED_FEATURES | {Feature.WARPGROUP_PRODUCTS},  # wgmma: sm_90a alone
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
        ),
        Target(
            chip="sm_100a",
            backend_features="+ptx88",
            features=SHARED_FEATURES
            | {
                Feature.TENSOR_MEMORY,  # tcgen05.mma
                Feature.GATHER_COPIES,  # cp.async.bulk.tensor .tile::gather4: from sm_100
                Feature.LAUNCH_CONTROL,  # clusterlaunchcontrol: from sm_100
                Feature.PACKED_F32,  # fma .f32x2: from sm_100
                Feature.MAX3,  # max with three inputs: from sm_100
            },
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
        ),
    )
}

DEFAULT_TARGET = "sm_100a"  # where nobody names one
HALF_ROWS = 64  # of a tile in tensor memory that takes half of the lanes; tcgen05.mma, M of 64
FOLD_COLUMNS = 256  # of such a tile in those lanes; tcgen05.mma, N
LINE_BYTES = 128  # of a tile in shared memory: the span of the 128-byte swizzle
WARP_THREADS = 32
WARPGROUP_WARPS = 4  # setmaxnreg and wgmma act on four consecutive warps; PTX ISA
WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_THREADS


SHORT_LINES = (32, 64)  # bytes: spans of the other swizzles


def shared_tile_bytes(
    rows: int, columns: int, element_bits: int, line_bytes: int = LINE_BYTES
) -> int:
    """Bytes of a tile [rows, columns] in shared memory: whole lines, swizzled."""
    return rows * -(-columns * element_bits // (8 * line_bytes)) * line_bytes


def line_of_rows(columns: int, element_bits: int) -> int:
    """Bytes of the shortest swizzled line that has a row of a tile; rows of several have 128."""
    row = columns * element_bits // 8
    return next((line for line in SHORT_LINES if row <= line), LINE_BYTES)


def tensor_tile_columns(rows: int, columns: int, element_bits: int) -> int:
    """Columns of 32 bits that a tile [rows, columns] takes in tensor memory.

    One of 64 rows needs half of the lanes; what it has beyond 256 columns lies in the other half.
    """
    if rows == HALF_ROWS:
        columns = min(columns, FOLD_COLUMNS)
    return columns * element_bits // 32


def register_target(target: Target, module: str) -> Target:
    """Makes a target known under its chip's name.

    Args:
      module: the name of the module that registers it, its `__name__`.

    Raises:
      SpecError: another target has the name.
    """
    if TARGETS.setdefault(target.chip, target) != target:
        raise SpecError(f"two targets are named {target.chip}")
    note(module)
    return target


def target_named(chip: str) -> Target:
    """Returns the limits of a chip; raises TargetError for one that is not known."""
    if chip not in TARGETS:
        raise TargetError(f"no target {chip!r}: supported are {', '.join(TARGETS)}")
    return TARGETS[chip]
