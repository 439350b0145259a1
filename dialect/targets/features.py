"""The features of target machines that kernels may need, as members of one set.

A target lists the features that it has (`limits.Target.features`). A schedule lists those that it
needs, and so does an operation of `ws` that some targets have no instruction for. Code asks for a
feature and never for a chip's name. Each value is the feature in words, for messages.
"""

from collections.abc import Iterable
from enum import Enum


class Feature(Enum):
    """One capability of a chip; instructions and their names are those of the PTX ISA."""

    TENSOR_MEMORY = "accumulators in tensor memory"
    """Products read and write tensor memory, and one thread issues them: tcgen05.mma."""

    WARPGROUP_PRODUCTS = "asynchronous products of warpgroups"
    """Four warps multiply tiles in shared memory into their registers: wgmma.mma_async."""

    WARP_PRODUCTS = "products of warps"
    """One warp multiplies fragments of 16 bits in its registers: mma.sync.m16n8k16."""

    NARROW_WARP_PRODUCTS = "products of warps with 8-bit elements"
    """The same with elements of 8 bits: mma.sync.m16n8k32."""

    COPY_ENGINE = "a copy engine"
    """Copies of boxes of tensors by tensor maps: cp.async.bulk.tensor."""

    GATHER_COPIES = "gather copies"
    """One copy of the copy engine takes rows from four places: .tile::gather4."""

    CLUSTERS = "clusters"
    """CTAs that start together and reach each other's shared memory."""

    LAUNCH_CONTROL = "cluster launch control"
    """A CTA takes over the work of one that has not started: clusterlaunchcontrol."""

    REGISTER_BUDGETS = "register budgets"
    """A warpgroup gives registers back and takes more: setmaxnreg."""

    PACKED_F32 = "packed f32 arithmetic"
    """One instruction computes two f32 elements: fma .f32x2."""

    MAX3 = "a maximum of three operands"
    """max.f32 with three inputs."""


def in_words(features: Iterable[Feature]) -> str:
    """The features in the order of their declaration, such as `clusters and gather copies`."""
    given = frozenset(features)
    return " and ".join(feature.value for feature in Feature if feature in given)
