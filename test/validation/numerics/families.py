"""One small problem for each family of our attention kernels, for runs under many schedules.

A family is named by what it chooses on the axes of the draws (`draws/axes.py`); everything else is
plain: D = 64, one sequence, one head, bf16, the full mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import launching_on
from attn_mlir.validation.numerics.draws.draw import plain
from attn_mlir.validation.numerics.draws.problem import SMALL_DRAWS, Outcome, Problem
from attn_mlir.validation.numerics.mha_cases import Schedule

Family = Mapping[str, str]

LONG = {"queries": "129", "keys": "300"}  # D = 64
WIDE = {"head sizes": "128x128", "queries": "200", "keys": "256"}
CAUSAL = {"mask": "& causal"}
TURNS = {"batch": "2", "queries": "300"}  # more work tiles than multiprocessors
BATCH = {"batch": "3", "heads": "2/1", "queries": "77"}

FAMILIES: tuple[Family, ...] = (
    {**LONG, **CAUSAL},
    {**LONG, "dtype": "f16"},
    {**WIDE, **CAUSAL, "dtype": "f16"},
    WIDE,
    {**WIDE, "mask": "& two-sided window"},
    {**WIDE, "mask": "& prefix"},
    {**WIDE, **CAUSAL, "further mask": "& chunked", "complement": "yes"},
    {**WIDE, **CAUSAL, "head sizes": "192x128"},
    {**CAUSAL, "head sizes": "256x256", "queries": "128", "keys": "200"},
    {**LONG, **CAUSAL, "query tiles": "1"},
    {**LONG, **CAUSAL, "query tiles": "2"},
    {**CAUSAL, "heads": "8/1", "keys": "300"},
    {**TURNS, **CAUSAL, "tile order": "persistent"},
    {**TURNS, "tile order": "clc"},
    {**TURNS, **CAUSAL, "tile order": "clc", "query tiles": "1"},
    {**WIDE, **CAUSAL, "lse": "no"},
    {**LONG, **CAUSAL, "out_dtype": "f32"},
    {**WIDE, **CAUSAL, "dtype": "e4m3", "factors": "per head"},
    {**LONG, "dtype": "e5m2", "factors": "one of each", "out_dtype": "f16"},
    {**BATCH, **CAUSAL, "lengths": "ragged"},
    {**BATCH, **CAUSAL, "lengths": "ragged with holes", "tile order": "persistent"},
    {**BATCH, "lengths": "ragged", "dtype": "e4m3", "factors": "per sequence"},
    {**BATCH, "lengths": "used queries and keys"},
    {**CAUSAL, "batch": "3", "heads": "8/1", "queries": "7", "keys": "256", "lengths": "cached prefix"},
    {"keys": "385", "parts of the keys": "3", "sinks": "f32"},
    {**BATCH, "lengths": "ragged", "parts of the keys": "3"},
    {"queries": "256", "keys": "256", "mask_mod": "documents", "block mask": "128 x 128"},
    {**LONG, **CAUSAL, "score_mod": "softcap", "mask_mod": "documents"},
    {**LONG, **CAUSAL, "score_mod": "alibi", "sinks": "f16"},
    {"score_mod": "bias of rank 4", "mask_mod": "tensor", "queries": "129"},
    {**LONG, **CAUSAL, "magnitude": "operands"},
    {"keys": "385", "magnitude": "rows of any size", "parts of the keys": "3"},
    {**CAUSAL, "heads": "8/1", "keys": "300", "kernel": "streaming"},
    {**CAUSAL, "heads": "8/1", "keys": "300", "kernel": "for sm_90a"},
    {"head sizes": "256x256", "keys": "200", "kernel": "for sm_90a"},
    {"keys": "385", "parts of the keys": "3", "sinks": "f32", "kernel": "streaming"},
    {**BATCH, **CAUSAL, "cache": "pages of 64"},
    {**WIDE, **CAUSAL, "cache": "pages of 16, heads first", "tile order": "persistent"},
    {**BATCH, "cache": "pages of 8 in compressed rows", "lengths": "ragged"},
    {"keys": "385", "cache": "pages of 256 without the new keys", "parts of the keys": "3"},
    {**BATCH, **CAUSAL, "cache": "padded rows"},
    {**BATCH, **CAUSAL, "cache": "pages of 64", "kernel": "for sm_90a"},
    {"batch": "3", "heads": "8/1", "cache": "pages of 16, heads first", "kernel": "streaming"},
    {"batch": "3", "heads": "8/1", "queries": "2", "keys": "300", "cache": "pages of 64",
     "keys and values": "e4m3 under 16 bits", "factors": "one of each", "kernel": "for sm_90a"},
    {**WIDE, **CAUSAL, "queries": "7", "keys and values": "e5m2 under 16 bits", "factors": "per head",
     "parts of the keys": "3"},
    {"head sizes": "256x256", "queries": "7", "keys": "200", "dtype": "f16",
     "keys and values": "e4m3 under 16 bits", "factors": "per tensor", "kernel": "for sm_90a"},
    {"heads": "8/1", "queries": "7", "keys": "300", "dtype": "e4m3", "factors": "per sequence",
     "kernel": "for sm_90a"},
    {"batch": "3", "heads": "8/1", "queries": "2", "keys": "300", "cache": "pages of 64",
     "keys and values": "e4m3 under 16 bits", "factors": "one of each",
     "factors of positions": "of 32 columns", "kernel": "for sm_90a"},
    {**LONG, **CAUSAL, "kernel": "in registers"},
    {**WIDE, "mask": "& two-sided window", "kernel": "in registers"},
    {**WIDE, **CAUSAL, "head sizes": "192x128", "kernel": "in registers", "query tiles": "2"},
    {**CAUSAL, "head sizes": "256x256", "queries": "128", "keys": "200", "kernel": "in registers"},
    {**TURNS, **CAUSAL, "kernel": "in registers", "tile order": "persistent"},
    {**TURNS, **CAUSAL, "heads": "2/1", "kernel": "in registers", "tile order": "counter"},
    {**BATCH, **CAUSAL, "lengths": "ragged with holes", "kernel": "in registers", "tile order": "counter"},
    {"queries": "256", "keys": "256", "mask_mod": "documents", "block mask": "128 x 128",
     "kernel": "in registers"},
    {**BATCH, **CAUSAL, "lengths": "ragged with holes", "kernel": "in registers"},
    {**BATCH, **CAUSAL, "cache": "pages of 64", "kernel": "in registers"},
    {**WIDE, **CAUSAL, "cache": "pages of 16, heads first", "kernel": "in registers"},
    {**LONG, **CAUSAL, "score_mod": "alibi", "sinks": "f16", "kernel": "in registers"},
    {**CAUSAL, "heads": "8/1", "queries": "2", "keys": "300", "head sizes": "128x128", "kernel": "swapped"},
)  # fmt: skip


def name(family: Family) -> str:
    """What it chooses, in one line."""
    return ", ".join(f"{axis} {choice}" for axis, choice in family.items())


def problem(number: int) -> Problem:
    """A family's problem."""
    return plain(SMALL_DRAWS + number, FAMILIES[number])


def problems(target: str) -> Iterator[tuple[str, Problem]]:
    """The name and the problem of each family that is for a chip."""
    for number, family in enumerate(FAMILIES):
        if (made := problem(number)).target == target:
            yield name(family), made


class _Noting(IdleDevice):
    """Keeps the bundles that it is to launch."""

    def __init__(self) -> None:
        self.asked: list[Bundle] = []

    def launch(self, bundle: Bundle, bound: Any, stream: object | None) -> Any:
        self.asked.append(bundle)
        return super().launch(bundle, bound, stream)


def kernels(number: int) -> list[Bundle]:
    """The kernels that a family launches, in order; nothing is run."""
    device = _Noting()
    with launching_on(device):
        problem(number).run()
    return device.asked


def run(number: int, schedule: Schedule, check: str = "all") -> Outcome:
    """Run a family's problem.

    Raises:
      LaunchError: a finding of a checker among others.
    """
    made = problem(number)
    made.device.update(schedule=schedule.kind, seed=schedule.seed, check=check)
    return made.run()
