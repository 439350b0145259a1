"""A target that has products of single warps and a copy engine, and nothing else.

It is the part of Hopper that later chips have as well: PTX for `sm_90` without wgmma and setmaxnreg.
"""

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target, register_target

PLAIN_CHIP = register_target(
    Target(
        chip="sm_90",
        backend_features="+ptx88",
        features=frozenset({Feature.WARP_PRODUCTS, Feature.COPY_ENGINE}),
        rows_per_product=16,  # mma.sync.m16n8k16
        tensor_columns=0,
        smem_bytes=232448,
        registers=65536,
        registers_per_thread=256,
        least_registers=24,
        register_step=8,
        warps_per_cta=32,
        named_barriers=16,
        cluster_ctas=(1, 1),
    ),
    __name__,
)
