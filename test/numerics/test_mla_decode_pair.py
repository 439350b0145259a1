"""Decoding of 128 heads in a pair of CTAs, by lists and of sequences: every element, and what it takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.routes import choice_of
from attn_mlir.dialect.attn.latent.formats import FORMATS
from attn_mlir.reference import check_mla_decode
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.validation.numerics.decode import DecodeProblem
from attn_mlir.validation.numerics.sparse_cases import poison
from attn_mlir.validation.numerics.stored import Form

FAIR: dict[str, Any] = {"target": "sm_100a", "check": "all"}
LATE: dict[str, Any] = {**FAIR, "schedule": "adversarial", "seed": 3}
HEADS, BLOCK = 128, 128

LISTED = DecodeProblem(
    queries=2,
    keys=(300,),
    cache=Form(61),
    heads=HEADS,
    topk=290,
    has_lengths=True,
    sinks="finite",
    device=FAIR,
)
SEQUENCES = DecodeProblem(
    queries=2,
    keys=(150, 60),
    cache=Form(64),
    heads=HEADS,
    columns=512,
    sinks="infinite",
    options={"mask": am.causal()},
    device=FAIR,
)
WINDOW = {"mask": am.sliding_window(100, 0)}


def test_sequences_late_and_out_of_order() -> None:
    """In the last block of either, the second half of the keys is behind the end, NaN in its pages."""
    dataclasses.replace(SEQUENCES, device=LATE).run()


def test_products_and_bytes_are_those_of_the_formula(launches: list[Stats]) -> None:
    """Of two blocks the one in which an entry counts: a row is copied as key and as value."""
    problem = dataclasses.replace(
        LISTED,
        columns=512,
        queries=1,
        topk=2 * BLOCK,
        has_lengths=False,
        call={"num_splits": 1},
    )
    made = problem.made()
    made.lists["indices"][..., BLOCK:] = -1
    o, lse = problem.launched(made, am.EmulatorDevice(**FAIR))
    assert not problem.wrong(made, o, lse)
    queries = 2 * 64 * (128 + 2 * 384)  # of both CTAs; all but the first columns twice
    assert launches[-1].mma_count == 512 // 16 + 2 * BLOCK // 16
    gathered = BLOCK * (512 + 512) + queries
    assert launches[-1].counters["tensor_load_bytes"] == 2 * gathered


def test_products_and_bytes_of_sequences(launches: list[Stats]) -> None:
    """A key is copied once as key and once as value for both CTAs, whatever the parts, and no others."""
    problem = dataclasses.replace(
        SEQUENCES, queries=1, keys=(129, 0, 64), sinks="", call={"num_splits": 1}
    )
    problem.run()
    blocks, tiles = 2 + 0 + 1, 3
    products, copied = 512 // 16 + 2 * BLOCK // 16, BLOCK * (512 + 512)
    queries = 2 * 64 * (128 + 2 * 384)
    assert launches[-1].mma_count == blocks * products
    assert launches[-1].counters["tensor_load_bytes"] == 2 * (blocks * copied + tiles * queries)


def test_pairs_are_chosen_where_there_is_a_kernel() -> None:
    """As many CTAs as two halves of the heads would be, so the number of parts is the same."""
    listed, sizes = {"indices": True, "heads": HEADS}, {"batch": 3, "sq": 2, "sk": 512}
    spec = MlaDecodeSpec(**listed)

    def chosen(spec: MlaDecodeSpec, target: str = "sm_100a") -> Choice:
        return choice_of(spec, sizes, Machine(target, 0))

    assert chosen(spec).name == "mla-decode-pair"
    for name in ("mla-decode-pair", "mla-decode"):
        assert chosen(dataclasses.replace(spec, schedule=name)).work_tiles() == 2 * 3 * 2
    assert chosen(MlaDecodeSpec(heads=HEADS)).name == "mla-decode-pair"
    others: tuple[dict[str, Any], ...] = (
        {"heads": 192},
        {"indices": True, "heads": 64},
        {"heads": HEADS, "kv_format": "e4m3", "kv_group": 128},
    )
    for options in others:
        assert chosen(MlaDecodeSpec(**options)).name == "mla-decode"
    assert chosen(spec, "sm_90a").name == "mla-decode-streaming"


@pytest.mark.long
@pytest.mark.parametrize(
    "problem",
    [
        LISTED,
        dataclasses.replace(LISTED, call={"num_splits": 4}),  # more parts than a list has blocks
        dataclasses.replace(
            LISTED, heads=2 * HEADS, columns=512, dtype=np.float16, sinks="infinite"
        ),
        SEQUENCES,
        dataclasses.replace(SEQUENCES, queries=4, cache=Form(0), call={"num_splits": 2}),
        dataclasses.replace(
            SEQUENCES, queries=3, keys=(300,), cache=Form(16), columns=576, options=WINDOW
        ),
        dataclasses.replace(
            SEQUENCES,
            queries=4,
            keys=(3, 140),
            cache=Form(32),
            heads=2 * HEADS,
            dtype=np.float16,
            call={"num_splits": 3},
        ),
    ],
    ids=[
        "lists",
        "in parts",
        "two pairs",
        "pages",
        "rows in parts",
        "window",
        "two pairs in parts",
    ],
)
def test_late_and_out_of_order(problem: DecodeProblem) -> None:
    late = dataclasses.replace(problem, device=LATE)
    for fair, found in zip(problem.run(), late.run(), strict=True):
        assert fair.tobytes() == found.tobytes()


@pytest.mark.long
@pytest.mark.parametrize(("kv_format", "group"), [("v32", None), ("model1", None), ("e4m3", 32)])
@pytest.mark.parametrize("parts", [1, 3])
def test_rows_of_8_bits(kv_format: str, group: int | None, parts: int) -> None:
    """With a list without entries, and NaN in rows that nothing names."""
    random, columns = np.random.default_rng(3), FORMATS[kv_format].columns
    rows = (random.standard_normal((5, 16, 1, columns)) / 4).astype("bfloat16")
    q = (random.standard_normal((2, 1, HEADS, columns)) / 4).astype("bfloat16")
    indices = random.integers(-2, 82, (2, 1, 300)).astype(np.int32)
    indices[indices == 7] = -1
    lengths = np.array([[290], [0]], np.int32)
    pool, scale = am.pack_latent(rows, kv_format, group=group)
    truth = am.unpack_latent(pool, kv_format, kv_scale=scale).reshape(80, columns)
    poison(pool, FORMATS[kv_format], np.array([7]))
    if scale is not None:
        scale[7 // 16, 7 % 16] = np.nan
    options: dict[str, Any] = {"scale": 0.3, "indices": indices, "topk_length": lengths}
    found = [
        am.mla_decode(
            q,
            am.PagedKV(pool, None, np.zeros((1, 1), np.int32)),
            num_splits=parts,
            kv_format=kv_format,
            kv_scale=scale,
            device=am.EmulatorDevice(**device),
            **options,
        )
        for device in (FAIR, LATE)
    ]
    verdict = check_mla_decode(q, truth, *found[0], **options)
    assert verdict.ok, verdict
    assert [x.tobytes() for x in found[0]] == [x.tobytes() for x in found[1]]


@pytest.mark.long
def test_each_of_two_pools_has_the_kernel_of_its_scales() -> None:
    """Scales of 64 columns and of 32; and no entry of one of the pools."""
    random, groups, columns = np.random.default_rng(0), (64, 32), 576
    q = (random.standard_normal((1, 1, HEADS, columns)) / 4).astype("bfloat16")
    pools = [(random.standard_normal((2, 8, 1, columns)) / 4).astype("bfloat16") for _ in groups]
    packed = [
        am.pack_latent(x, "e4m3", group=group) for x, group in zip(pools, groups, strict=True)
    ]
    rows = [am.unpack_latent(x, "e4m3", kv_scale=scale).reshape(-1, columns) for x, scale in packed]
    lists = [random.integers(0, 16, (1, 1, count)).astype(np.int32) for count in (140, 6)]
    cache = am.PagedKV(packed[0][0], None, np.zeros((1, 1), np.int32))
    options: dict[str, Any] = {
        "scale": 0.3,
        "kv_format": "e4m3",
        "kv_scale": packed[0][1],
        "extra_kv": packed[1][0],
        "extra_kv_scale": packed[1][1],
        "device": am.EmulatorDevice(**FAIR),
    }
    for first in (lists[0], np.zeros((1, 1, 0), np.int32)):
        found = am.mla_decode(q, cache, indices=first, extra_indices=lists[1], **options)
        both = np.concatenate([first, lists[1] + len(rows[0])], 2)
        verdict = check_mla_decode(q, np.concatenate(rows), *found, scale=0.3, indices=both)
        assert verdict.ok, str(verdict)
