"""Sparse latent attention by pairs of CTAs whose threads copy the rows, which is asked for by name."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.errors import VerifyError
from attn_mlir.reference.sparse_mla import SparseAttention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.runtime.kernel import load
from attn_mlir.validation.numerics.sparse_cases import Case, problem, wrong

HEADS, BLOCK = 128, 128
THREADS = "sparse-mla-pair-threads"
FAIR, LATE = EmulatorDevice(check="all"), EmulatorDevice("adversarial", 1, check="all")


def attend(given: dict[str, Any], device: EmulatorDevice, **options: Any) -> SparseAttention:
    """What the schedule makes of a call's arguments."""
    rows, head_dim = given["q"].shape[:2], given["q"].shape[2]
    spec = SparseMlaSpec(heads=HEADS, head_dim=head_dim, schedule=THREADS, **options)
    o = np.zeros((*rows, 512), ml_dtypes.bfloat16)
    lse, top = (np.zeros(rows, np.float32) for _ in range(2))
    others = [given[name] for name in ("topk_length", "sinks") if options.get(name)]
    arguments = (given["q"], given["kv"][:, 0], given["indices"], *others, o, lse, top)
    load(am.compile(spec, target="sm_100a"))(*arguments, scale=given["scale"], device=device)
    return SparseAttention(o, lse, top)


def test_bits_are_those_of_gathered_rows(launches: list[Stats]) -> None:
    """A query in which nothing counts and one of two blocks; of each row 576 and 512 columns are copied once."""
    given = problem(Case(2, 300, 200, HEADS, lengths=True, sinks=True, empty=True), seed=2)
    gathered = am.sparse_mla(**given, device=EmulatorDevice())
    for device in (FAIR, LATE):
        found = attend(given, device, topk_length=True, sinks=True)
        assert not wrong(given, found)
        for mine, theirs in zip(vars(found).values(), gathered, strict=True):
            assert mine.tobytes() == theirs.tobytes()
        counters = launches[-1].counters
        assert counters["thread_copy_bytes"] == 2 * BLOCK * 2 * (576 + 512)


def test_rows_that_are_widened_have_no_such_kernel() -> None:
    with pytest.raises(VerifyError, match="has no kernel: .*: rows of 8 bits must be left out"):
        am.compile(SparseMlaSpec(heads=HEADS, kv_format="v32", schedule=THREADS), target="sm_100a")
