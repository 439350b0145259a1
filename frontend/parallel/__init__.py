"""Predicts time, bytes and memory of attention of a long sequence over ranks, and picks a scheme.

Nothing here imports torch or sends anything; `attn_mlir.distributed` runs the schemes.
"""

from attn_mlir.parallel.gpus import GPUS, Gpu, Rate
from attn_mlir.parallel.links import Links
from attn_mlir.parallel.plan import ParallelPlan, plan_parallel
from attn_mlir.parallel.problem import Problem
from attn_mlir.parallel.schemes import SCHEMES, Prediction

__all__ = [
    "GPUS",
    "SCHEMES",
    "Gpu",
    "Links",
    "ParallelPlan",
    "Prediction",
    "Problem",
    "Rate",
    "plan_parallel",
]
