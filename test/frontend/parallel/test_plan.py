"""`plan_parallel`: small cases against hand calculations, bounds that hold always, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.parallel import GPUS, SCHEMES, Gpu, Links, Problem, Rate, plan_parallel
from attn_mlir.parallel.calls import KERNEL, Calls, Software
from attn_mlir.parallel.links import BARRIER, LATENCY, MEASURED, MIB, SIZES, overhead
from attn_mlir.parallel.schemes import predict

# A GPU of one multiprocessor on which a tile of 128 rows takes 1 s for each key, and whose memory
# takes no time.
PER_KEY = 2 * 256 * 128
SLOW = Rate(burst=PER_KEY, sustained=PER_KEY, overhead_keys=0)
TOY = Gpu("toy", 1, 1e12, 1e30, SLOW, SLOW, 1024.0, PER_KEY, "made up")
PROGRAM = Software(packs=False)


def seconds(scheme: str, **options: Any) -> Any:
    problem = Problem(length=256, heads=2, kv_heads=1, ranks=2, is_causal=False, **options)
    return predict(scheme, problem, TOY, Links(1024.0, 512.0), PROGRAM)


def test_a_ring_by_hand() -> None:
    """2 ranks of 128 tokens: 2 steps, each of 2 heads with one tile of 128 keys, 64 KiB between."""
    pulled, sent = seconds("ring-pull"), seconds("ring-nccl")
    assert pulled.attention == sent.attention == 2 * 2 * 128
    assert pulled.bytes_sent == sent.bytes_sent == 128 * 256 * 2
    assert pulled.exposed == 0  # 64 s of a copy beside 256 s of attention
    assert sent.exposed == pytest.approx(64, abs=1e-3)
    # A copy engine waits for the others; O is merged from two parts.
    assert sent.other == pytest.approx(2 * PROGRAM.kernels * KERNEL + KERNEL)
    assert pulled.other == pytest.approx(sent.other + BARRIER)
    assert sent.limit == 256 * 256 * 2 * 256 * 2 / 2 / PER_KEY == 512


def test_slow_copies_are_exposed() -> None:
    problem = Problem(length=256, heads=2, kv_heads=1, ranks=2, is_causal=False)
    found = predict("ring-pull", problem, TOY, Links(128.0, 128.0), PROGRAM)
    assert found.exposed == pytest.approx(512 - 256, abs=1e-3)


def test_a_gather_and_an_exchange_by_hand() -> None:
    gathered, exchanged = seconds("gather"), seconds("ulysses")
    assert gathered.attention == exchanged.attention == 512
    assert gathered.bytes_sent == 128 * 256 * 2
    # Half of q, of the one KV head twice, of O and of 2 columns of LSE for each head.
    assert exchanged.bytes_sent == 128 * 2 * (2 * 128 + 2 * 256 + 2 * 130) / 2
    assert exchanged.exposed == pytest.approx(exchanged.bytes_sent / 1024, abs=1e-3)


def test_margin_hides_messages_of_nccl() -> None:
    gpu = replace(TOY, sms=2, forward=replace(SLOW, burst=2 * PER_KEY, sustained=2 * PER_KEY))
    problem = Problem(length=256, heads=2, kv_heads=1, ranks=2, is_causal=False, sm_margin=1)
    found = predict("ring-nccl", problem, gpu, Links(1024.0, 512.0), PROGRAM)
    assert (found.attention, found.exposed) == (512, 0)


def test_causal_calls_take_half() -> None:
    calls = Calls(TOY, Problem(length=1024, heads=1, kv_heads=1, ranks=1))
    assert calls.attention(1024, 1024, 1, is_square=True) == sum(range(128, 1025, 128))
    assert calls.attention(1024, 1024, 1) == 8 * 1024


def test_the_power_limit() -> None:
    """The first 15 ms run at burst speed if the call comes after a pause."""
    rate = replace(SLOW, sustained=PER_KEY / 2)
    gpu = replace(TOY, forward=rate)
    for is_isolated, expected in ((True, 0.015 + 2 * 0.985), (False, 2.0)):
        problem = Problem(length=256, heads=1, kv_heads=1, is_isolated=is_isolated)
        assert Calls(gpu, problem).throttled(1.0) == pytest.approx(expected)
    problem = Problem(length=256, heads=1, kv_heads=1, is_isolated=True)
    assert Calls(gpu, problem).throttled(0.001) == 0.001


@pytest.mark.parametrize(("kind", "ranks"), MEASURED)
def test_links_reproduce_what_was_measured(kind: Any, ranks: int) -> None:
    links = Links(385e9, 45e9)
    call = getattr(links, kind)
    for size, rate in zip(SIZES, MEASURED[kind, ranks], strict=True):
        count = size / ranks if kind == "gather" else size
        received = size if kind == "shift" else size * (ranks - 1) / ranks
        assert received / call(count, ranks) == pytest.approx(rate * 1e9, rel=0.01)


def test_overhead_of_messages() -> None:
    assert overhead("shift", 2, 1024) == 0
    links = Links(385e9, 45e9)
    times = [links.shift(2**i, 8) for i in range(10, 36)]
    assert times == sorted(times) and times[0] >= LATENCY
    # Between nodes a ring has one port, an all-gather those of all GPUs.
    assert links.gather(64 * MIB, 64) < links.shift(64 * MIB, 64) * 63 / 4


CASES = [
    {"length": length, "ranks": ranks, "causal": causal, "training": training, "gpu": gpu}
    for length, ranks, causal, training, gpu in product(
        (1000, 2**15, 2**20), (1, 2, 8, 64), (True, False), (True, False), GPUS
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda x: "-".join(map(str, x.values())))
def test_bounds(case: dict[str, Any]) -> None:
    """No time is below the limit, and no faster link makes a scheme slower."""
    plan = plan_parallel(heads=64, kv_heads=8, **case)
    faster = plan_parallel(heads=64, kv_heads=8, intra_gbs=2000.0, inter_gbs=400.0, **case)
    for scheme in SCHEMES:
        found = plan[scheme]
        assert found.seconds >= found.limit
        assert found.seconds == pytest.approx(found.attention + found.exposed + found.other)
        assert faster[scheme].seconds <= found.seconds
        assert faster[scheme].bytes_sent == found.bytes_sent
    possible = [x for x in plan.predictions if x.is_possible]
    if possible:
        assert plan.picked is not None
        assert plan[plan.picked].seconds <= 1.02 * min(x.seconds for x in possible)


def test_one_rank_sends_nothing() -> None:
    plan = plan_parallel(4096, ranks=1, heads=8, training=True)
    for scheme in ("ring-pull", "ring-nccl", "gather", "ulysses"):
        assert plan[scheme].bytes_sent == plan[scheme].exposed == 0


def test_what_is_impossible() -> None:
    plan = plan_parallel(2**20, ranks=24, heads=16, kv_heads=8)
    refusals = {x.scheme: x.refusal for x in plan.predictions}
    assert refusals["ring-pull"] == "copy engines reach the 8 ranks of a node, not 24"
    assert refusals["ulysses"] == "24 ranks do not divide 16 heads"
    assert refusals["ring-nccl"] == refusals["gather"] == refusals["2d"] == ""
    assert "no whole number of nodes" in plan_parallel(2**20, ranks=12, heads=16)["2d"].refusal
    assert "do not divide 12 heads" in plan_parallel(2**20, ranks=16, heads=12)["2d"].refusal
    assert "would be ulysses" in plan_parallel(2**20, ranks=8, heads=16)["2d"].refusal
    one = plan_parallel(2**20, ranks=16, heads=16, ranks_per_node=1)["2d"].refusal
    assert one == "a node has one rank: it would be ring-nccl"


def test_memory_is_a_reason() -> None:
    plan = plan_parallel(10 * 2**20, ranks=4, heads=128)
    assert plan.picked is None
    assert all(not x.is_possible for x in plan.predictions)
    assert "are more than the 141 of the GPU" in plan.reason


def test_of_close_schemes_the_one_with_the_least_memory_is_picked() -> None:
    plan = plan_parallel(2**20, ranks=8, heads=64, kv_heads=8)
    level = [x for x in plan.predictions if x.is_possible]
    assert max(x.seconds for x in level) < 1.02 * min(x.seconds for x in level)
    assert plan.picked == min(level, key=lambda x: x.memory_bytes).scheme
    assert "times the memory" in plan.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be an integer from 1 to"),
        ({"length": True}, "length must be an integer from 1 to"),
        ({"ranks": 0}, "ranks must be an integer from 1 to"),
        ({"ranks": 2.0}, "ranks must be an integer from 1 to"),
        ({"ranks": 5000}, "length must be at least 1 token on each rank, got 4096 on 5000"),
        ({"heads": 6, "kv_heads": 4}, "kv_heads must divide heads, got heads = 6 and kv_heads = 4"),
        ({"head_dim": -8}, "head_dim must be an integer from 1 to 1024, got -8"),
        ({"dtype": "e4m3"}, "dtype must be one of bf16, f16, got 'e4m3'"),
        ({"gpu": "A100"}, "gpu must be one of H200, H100, B200, got 'A100'"),
        ({"gpu": None}, "gpu must be one of"),
        ({"intra_gbs": 0}, "intra_gbs must be from 1e-06 to 1000000 GB/s, got 0"),
        ({"intra_gbs": 1e-320}, "intra_gbs must be from 1e-06"),
        ({"inter_gbs": float("nan")}, "inter_gbs must be from 1e-06"),
        ({"inter_gbs": "45"}, "inter_gbs must be from 1e-06"),
        ({"ranks_per_node": 0}, "ranks_per_node must be an integer from 1 to"),
        ({"ranks_per_node": "8"}, "ranks_per_node must be an integer from 1 to"),
        ({"software": None}, "software must be a Software, got None"),
        ({"dtype": np.array(["bf16", "f16"])}, "dtype must be one of bf16, f16"),
        ({"sm_margin": -1}, "sm_margin must be an integer from 0 to"),
        ({"sm_margin": 132}, "sm_margin must be below the 132 of the H200"),
        ({"causal": 1}, "causal must be True or False, got 1"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    given = {"length": 4096, "ranks": 8, "heads": 8, **options}
    with pytest.raises(SpecError) as error:
        plan_parallel(given.pop("length"), **given)
    assert message in str(error.value)


def test_numbers_of_numpy_are_numbers() -> None:
    given: dict[str, Any] = {"length": 4096, "ranks": 16, "heads": 8, "ranks_per_node": 2}
    wanted = plan_parallel(given.pop("length"), **given, inter_gbs=45.0, training=True)
    made: dict[str, Any] = {name: np.int64(x) for name, x in given.items()}
    made |= {"inter_gbs": np.float32(45), "training": np.True_}
    found = plan_parallel(cast(Any, np.array(4096)), **made)
    assert json.dumps(found.json()) == json.dumps(wanted.json())


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(SpecError, match="scheme must be one of ring-pull, .*, got 'tree'"):
        plan_parallel(4096, ranks=2, heads=8)["tree"]
