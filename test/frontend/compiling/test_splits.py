"""How many parts the keys of a call are split into: a pure function of sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.compiling.routes import attention_choice, choice_of
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.compiling.splits import PARTIAL, check_num_splits, split_count
from attn_mlir.errors import SpecError
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.splits import chosen_splits

B200 = 148


def count(
    num_splits: int, spec: MhaSpec, batch: int, sq: int, sk: int, target: str | None = None
) -> int:
    sizes = {"batch": batch, "sq": sq, "sk": sk}
    return split_count(num_splits, attention_choice(spec, sizes, Machine(target, B200)))


@pytest.mark.parametrize(
    ("most", "key_tiles", "expected"),
    [
        (148, 4, 1),  # at most 4 key tiles
        (148, 5, 5),  # at most one part per key tile
        (148, 100, 100),
        (148, 1000, 128),  # at most 128
        (74, 1000, 74),
        (2, 1000, 2),
        (1, 1000, 1),
        (0, 1000, 1),  # more work tiles than multiprocessors
    ],
)
def test_the_rule(most: int, key_tiles: int, expected: int) -> None:
    assert chosen_splits(most, key_tiles) == expected


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "batch", "sq", "expected"),
    [
        (32, 8, 128, 1, 1, 8),  # 4 heads a tile
        (32, 8, 128, 2, 32, 16),  # 128 rows still fit one tile
        (32, 8, 128, 1, 33, 8),  # two tiles in a work tile
        (32, 8, 128, 1, 65, 16),
        (6, 2, 64, 1, 65, 6),  # 3 heads do not divide a tile
        (2, 2, 192, 1, 129, 4),  # wide heads have one tile
    ],
)
def test_work_tiles(
    heads: int, kv_heads: int, head_dim: int, batch: int, sq: int, expected: int
) -> None:
    spec = am.mha(heads=heads, kv_heads=kv_heads, head_dim=head_dim, schedule="mha")
    choice = choice_of(spec, {"batch": batch, "sq": sq, "sk": 1}, Machine(None, 0))
    assert choice.work_tiles() == expected


@pytest.mark.parametrize("sq", [1, 200])
def test_parts_of_a_fixed_size_take_the_schedule_that_has_them(sq: int) -> None:
    """Where a call names none, whatever it would take without parts: their results do not depend on the batch."""
    q, k = np.zeros((1, sq, 2, 64), np.float16), np.zeros((1, 1000, 2, 64), np.float16)
    on = EmulatorDevice(target="sm_90a")
    (step,) = (plan := am.plan(q, k, k, split_size=256, device=on)).steps
    assert isinstance(step.request, MhaSpec)
    assert (step.request.schedule, step.request.split_size) == ("mha-streaming", 256)
    assert plan.workspace[0].shape[0] == 4  # parts of 1000 keys
    (whole,) = am.plan(q, k, k, device=on).steps
    assert isinstance(whole.request, MhaSpec) and whole.request.split_size is None
    assert (whole.request.schedule == "mha-streaming") == (sq == 1)


def test_parts_of_a_call() -> None:
    spec = am.mha(heads=32, kv_heads=8, head_dim=128)
    assert count(1, spec, 1, 1, 65536) == 1
    assert count(7, spec, 1, 1, 10) == 7  # what is asked for is done
    assert count(0, spec, 1, 1, 65536) == B200 // 8
    assert count(0, spec, 1, 1, 65536, "sm_90a") == B200 // 8 // 2  # streams: half of them suffice
    assert (
        count(0, dataclasses.replace(spec, schedule="mha-streaming"), 1, 1, 65536) == B200 // 8 // 2
    )
    assert count(0, spec, 10, 1, 65536) == 148 // 80
    assert count(0, spec, 32, 4096, 4096) == 1
    assert count(0, dataclasses.replace(spec, mask=am.sliding_window(300, 0)), 1, 1, 65536) == 1
    assert count(0, dataclasses.replace(spec, mask=am.sliding_window(0, 0)), 1, 1, 65536) == 1
    assert count(7, spec, 1, 0, 10) == 1  # nothing to split
    listed = dataclasses.replace(spec, block=(64, 4, 128))
    assert count(0, listed, 1, 1, 65536) == 1
    with pytest.raises(SpecError, match="^num_splits 2 has no kernel: block_mask must be left out"):
        count(2, listed, 1, 1, 65536)
    wide = am.mha(heads=1, head_dim=64, v_head_dim=256)
    assert count(0, wide, 1, 1, 65536) == 1
    with pytest.raises(SpecError, match="^num_splits 2 needs v_head_dim of at most 192, got 256"):
        count(2, wide, 1, 1, 65536)


def test_requests() -> None:
    options: dict[str, Any] = {**PARTIAL}
    spec = am.mha(heads=2, head_dim=64, **options)
    assert (spec.out_dtype, spec.return_lse, spec.partial) == ("f32", True, True)
    assert spec.canonical_json() != dataclasses.replace(spec, partial=False).canonical_json()
    with pytest.raises(SpecError, match="^partial results need out_dtype f32 and return_lse"):
        dataclasses.replace(spec, out_dtype="bf16")
    with pytest.raises(SpecError, match="^out_dtype must be one of bf16, f16, f32, got 'i8'"):
        CombineSpec(heads=2, v_head_dim=64, out_dtype="i8")
    with pytest.raises(SpecError, match="^sinks must be one of bf16, f16, f32 or None, got 'i8'"):
        CombineSpec(heads=2, v_head_dim=64, out_dtype="bf16", sinks="i8")


def test_a_number_of_splits_that_is_none() -> None:
    with pytest.raises(SpecError, match=r"\(0 chooses\)"):
        check_num_splits(-1)


@pytest.mark.parametrize(("terms", "rank"), [(1, 4), (2, 5)])
def test_terms_of_lses_are_an_axis(terms: int, rank: int) -> None:
    spec = CombineSpec(heads=2, v_head_dim=64, out_dtype="bf16", return_lse=True, lse_terms=terms)
    lses = next(x for x in spec.operands if x.name == "lses")
    assert len(lses.extents) == rank
