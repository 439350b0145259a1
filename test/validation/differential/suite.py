"""All programs, by family and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attn_mlir.validation.differential import (
    atomics,
    barriers,
    bulk,
    chains,
    clusters,
    crowds,
    hints,
    mapmaking,
    matrices,
    memory,
    messages,
    ops,
    pipelines,
    roles,
    tma,
    warpgroups,
    warps,
)
from attn_mlir.validation.differential.case import Program

SEED = 20261121

# family -> (what makes it, programs or rounds)
FAMILIES: dict[str, Callable[[int], Iterator[Program]]] = {
    "integer": lambda seed: chains.chains("integer", ops.integer_ops, seed, 4, 6),
    "float": lambda seed: chains.chains("float", ops.float_ops, seed + 1, 4, 6),
    "half": lambda seed: chains.chains("half", ops.half_ops, seed + 2, 4, 6),
    "convert": lambda seed: chains.chains("convert", ops.convert_ops, seed + 3, 4, 6),
    "approximate": lambda seed: chains.chains("approximate", ops.approximate_ops, seed + 4, 8, 3),
    "warp": lambda seed: warps.collectives(seed + 5, 250),
    "control": lambda seed: warps.control(seed + 6, 40),
    "load": lambda seed: memory.loads(seed + 7, 126),
    "store": lambda seed: memory.stores(seed + 8, 80),
    "atomic": lambda seed: atomics.atomics(seed + 9, 240),
    "atomic-wide": lambda seed: atomics.wide_atomics(seed + 25, 24),
    "hint": lambda seed: hints.hints(seed + 27, 36),
    "mbarrier": lambda seed: barriers.histories(seed + 10, 200),
    "meeting": lambda seed: barriers.meetings(seed + 11, 40),
    "roles": lambda seed: roles.roles(seed + 28, 80),
    "roles-starved": lambda seed: roles.starved(seed + 30, 2),
    "tma-load": lambda seed: tma.loads(seed + 12, 240),
    "tma-store": lambda seed: tma.stores(seed + 13, 100, False),
    "tma-reduce": lambda seed: tma.stores(seed + 14, 160, True),
    "tma-before": lambda seed: tma.stores(seed + 24, 20, False, -1),
    "tensormap": lambda seed: mapmaking.made_maps(seed + 26, 80),
    "bulk": lambda seed: bulk.copies(seed + 15, 120),
    "cp-async": lambda seed: bulk.small_copies(seed + 16, 40),
    "position": lambda seed: clusters.positions(seed + 17, 20),
    "remote": lambda seed: clusters.remote(seed + 18, 50),
    "signal": lambda seed: clusters.signals(seed + 19, 80),
    "multicast": lambda seed: clusters.multicasts(seed + 20, 50),
    "mma": lambda seed: matrices.products(seed + 21, 160),
    "matrix": lambda seed: matrices.moves(seed + 22, 60),
    "wgmma": lambda seed: warpgroups.products(seed + 23, 200),
    "message": lambda seed: messages.messages(seed + 31, 80),
    "wgmma-moved": lambda seed: warpgroups.products(seed + 35, 40, anywhere=True),
    "crowd": lambda seed: crowds.crowds(seed + 32, 40),
    "cluster-ahead": lambda seed: crowds.ahead(seed + 33, 20),
    "sum": lambda seed: crowds.sums(seed + 34, 38),
    "pipeline": lambda seed: pipelines.pipelines(seed + 29, 80),
}


def generate(seed: int = SEED, families: list[str] | None = None) -> Iterator[Program]:
    """Every program of some families, or of all."""
    for name, make in FAMILIES.items():
        if families is None or name in families:
            yield from make(seed)
