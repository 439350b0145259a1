"""Which kernel a call takes: by the machine and the rows that share keys, never by what arrays hold."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.routes import attention_choice, chosen
from attn_mlir.compiling.splits import split_count
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.policy.register_tiling import register_tiling_for, thread_registers
from attn_mlir.schedules.policy.tiling import query_tiles_for

HOPPER = target_named("sm_90a")


@pytest.mark.parametrize(
    ("target", "heads", "sq", "options", "schedule"),
    [
        ("sm_90a", (8, 1), 4, {}, "mha-streaming"),  # 32 rows
        ("sm_90a", (8, 1), 5, {}, "mha-registers"),
        ("sm_90a", (2, 2), 32, {}, "mha-streaming"),
        ("sm_90a", (2, 2), 33, {}, "mha-registers"),
        ("sm_90a", (3, 1), 5, {}, "mha-streaming"),  # 15 rows
        ("sm_90a", (1, 1), 1, {"query_tiles": 1}, "mha-registers"),
        ("sm_90a", (1, 1), 500, {"dtype": "e4m3"}, "mha-registers"),
        ("sm_90a", (1, 1), 20, {"dtype": "e4m3"}, "mha-streaming"),
        ("sm_90a", (1, 1), 500, {"schedule": "mha-streaming"}, "mha-streaming"),
        ("sm_100a", (8, 1), 1, {}, None),
        (None, (8, 1), 1, {}, None),
        ("sm_100a", (8, 1), 4, {}, None),  # 64 columns fill half of a product's rows
        ("sm_100a", (8, 1), 4, {"head_dim": 128}, "mha-swapped"),
        ("sm_100a", (8, 1), 2, {"head_dim": 128}, None),  # 16 rows
        ("sm_100a", (8, 1), 5, {"head_dim": 128}, None),
        ("sm_100a", (24, 1), 1, {"head_dim": 96}, "mha-swapped"),
        ("sm_100a", (8, 1), 4, {"head_dim": 128, "dtype": "e4m3"}, None),
        ("sm_100a", (8, 1), 4, {"head_dim": 128, "tile_order": "clc"}, None),
        ("sm_100a", (8, 1), 4, {"head_dim": 128, "schedule": "mha-streaming"}, "mha-streaming"),
        ("sm_90a", (8, 1), 4, {"head_dim": 128}, "mha-streaming"),
    ],
)
def test_routes(
    target: str | None,
    heads: tuple[int, int],
    sq: int,
    options: dict[str, Any],
    schedule: str | None,
) -> None:
    spec = am.mha(heads=heads[0], kv_heads=heads[1], **{"head_dim": 64, **options})
    choice = attention_choice(spec, {"sq": sq}, Machine(target, 132))
    assert choice.name == schedule or (schedule is None and choice.name == "mha")


@pytest.mark.parametrize("page", [8, 16, 32, 64, 128, 192, 256, 320])
def test_every_page_size_has_a_kernel_for_any_number_of_queries(page: int) -> None:
    """Pages that tiles of 128 keys do not go with are for the kernels of many queries, on both targets."""
    q = np.zeros((2, 1, 8, 64), np.float16)
    pool, table = np.zeros((4, page, 1, 64), np.float16), np.arange(4, dtype=np.int32).reshape(2, 2)
    streams = page % 128 == 0 or page in (16, 32, 64)
    for target, otherwise in (("sm_90a", "mha-registers"), ("sm_100a", None)):
        device = am.EmulatorDevice(target=target)
        plan = am.plan(q, am.PagedKV(pool, pool, table), device=device)
        few = "mha-streaming" if target == "sm_90a" and streams else otherwise
        assert plan.steps[0].request.schedule == few
        assert am.plan(q.repeat(64, 1), am.PagedKV(pool, pool, table), device=device)
    cut = am.PagedKV(pool[:, : page - 1], pool[:, : page - 1], table)  # whose rows threads copy
    assert am.plan(q, cut, device="emulator").steps[0].request.schedule == "mha-streaming"


@pytest.mark.parametrize(
    ("target", "sq", "options", "schedule"),
    [
        ("sm_100a", 1, {}, "mha-streaming"),
        ("sm_100a", 500, {}, "mha-streaming"),
        ("sm_100a", 4, {"head_dim": 128}, "mha-swapped"),  # as without parts
        ("sm_100a", 4, {"schedule": "mha"}, "mha"),
        ("sm_90a", 500, {}, "mha-streaming"),
    ],
)
def test_parts_of_a_fixed_size(
    target: str, sq: int, options: dict[str, Any], schedule: str
) -> None:
    """A call that names no schedule gets one that puts such parts together."""
    spec = am.mha(**{"heads": 8, "kv_heads": 1, "head_dim": 64, **options})
    choice = attention_choice(spec, {"sq": sq}, Machine(target, 132), has_split_size=True)
    assert choice.name == schedule


@pytest.mark.parametrize(
    ("sq", "group", "tiles"),
    [
        (64, 1, 1),
        (65, 1, 2),
        (128, 1, 2),
        (192, 1, None),
        (1024, 1, 2),
        (4096, 1, None),
        (16, 8, 2),
    ],
)
def test_query_tiles_on_hopper(sq: int, group: int, tiles: int | None) -> None:
    """One where all rows fit one, two where a third would have more than a twentieth to spare."""
    assert query_tiles_for(HOPPER, sq, group) == tiles


@pytest.mark.parametrize(
    ("sizes", "options", "groups", "keys"),
    [
        ((64, 64), {}, 3, 128),
        ((96, 96), {}, 3, 96),
        ((128, 128), {}, 3, 80),
        ((192, 128), {}, 3, 80),
        ((128, 128), {"groups": 2}, 2, 128),
        ((192, 192), {}, 2, 112),
        ((256, 256), {}, 2, 80),
        ((256, 256), {"tile_order": "persistent"}, 2, 48),  # O has a place of its own
        ((128, 128), {"tile_order": "counter"}, 3, 80),
        ((128, 128), {"page_size": 64}, 2, 128),  # 80 does not go with it
        ((64, 64), {"page_size": 8}, 2, 64),
    ],
)
def test_tiles(sizes: tuple[int, int], options: dict[str, Any], groups: int, keys: int) -> None:
    """S, P and O fit the registers: half a register per key for S, a quarter for P."""
    tiles = register_tiling_for(HOPPER, *sizes, **options)
    assert (tiles.q_tiles, tiles.tile_n) == (groups, keys)
    order, page = options.get("tile_order", "single"), options.get("page_size", 0)
    attending, _ = thread_registers(HOPPER, groups, order, page)
    assert keys * 3 / 4 + sizes[1] / 2 <= attending - 32


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
def test_tiles_of_every_head_size(bits: int, reads: bool) -> None:
    """Whatever else is asked for; 8 bits of 256 columns have no register to spare for modifiers."""
    step = 8 * 16 // bits
    for size, order, page in product(
        range(step, 257, step), ("single", "persistent", "counter"), (0, 16)
    ):
        options = {"tile_order": order, "page_size": page, "output_bits": 32}
        assert register_tiling_for(HOPPER, size, size, element_bits=bits, reads=reads, **options)


@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        # batch, queries and keys of 64 heads on 8: query tiles, parts
        ((1, 1, 4096), {}, (1, 8)),
        ((1, 2, 4096), {}, (1, 8)),  # 16 rows
        ((1, 4, 4096), {}, (1, 8)),  # two work tiles of each part: 128 CTAs
        ((1, 4, 16384), {}, (1, 8)),
        ((3, 4, 4096), {}, (1, 2)),
        ((8, 4, 4096), {}, (1, 1)),  # 128 work tiles of one query tile
        ((9, 4, 4096), {}, (2, 1)),
        ((64, 4, 1024), {}, (2, 1)),
        ((1, 4, 512), {}, (1, 1)),  # 4 key tiles
        ((64, 2, 1024), {}, (1, 1)),
        ((1, 8, 4096), {}, (1, 4)),  # four work tiles read the same keys
        ((5, 8, 4096), {}, (2, 1)),
        ((1, 1, 4096), {"heads": 256}, (1, 8)),  # groups of 32: two query tiles along the heads
        ((16, 1, 4096), {"heads": 256}, (2, 1)),
        ((1, 4, 4096), {"v_head_dim": 256}, (1, 8)),
        ((9, 4, 4096), {"v_head_dim": 256}, (1, 1)),  # no room for two
        ((1, 4, 4096), {"kv_dtype": "e4m3"}, (1, 8)),
        ((1, 1, 4096), {"kv_dtype": "e4m3"}, (1, 16)),
        ((1, 4, 4096), {"query_tiles": 2}, (2, 8)),
        ((64, 4, 1024), {"query_tiles": 1}, (1, 1)),
    ],
)
def test_few_queries_on_an_h200(
    sizes: tuple[int, int, int], options: dict[str, Any], expected: tuple[int, int]
) -> None:
    """One query tile and parts while there is a multiprocessor for each, else two without parts."""
    given = {"heads": 64, "kv_heads": 8, "head_dim": 128, **options}
    spec, machine = am.mha(**given, schedule="mha-streaming"), Machine("sm_90a", 132)
    called = dict(zip(("batch", "sq", "sk"), sizes, strict=True))
    choice = attention_choice(spec, called, machine)
    parts = split_count(0, choice)
    found = chosen(spec, choice.in_parts(parts if parts > 1 else 0))
    assert (found.query_tiles or 1, parts) == expected
    collected = {chosen(spec, other) for other in choice.for_other_sizes()}
    assert chosen(spec, choice) in collected
    assert chosen(spec, choice.in_parts(2)) == spec


@pytest.mark.parametrize(
    ("head_dim", "mask", "sizes", "tiles", "order"),
    [
        (64, "full", (16, 1024), None, "counter"),  # three groups, and an eighth more rows
        (64, "causal", (16, 1024), 2, "counter"),
        (64, "full", (4, 4096), None, "counter"),
        (64, "full", (1, 16384), None, None),  # long, and all tiles are
        (64, "causal", (1, 16384), None, "counter"),
        (64, "causal", (1, 384), None, None),  # a CTA for each
        (128, "full", (16, 1024), 2, "counter"),
        (256, "full", (4, 4096), None, None),  # O beside Q leaves room for less keys
        (256, "causal", (4, 4096), None, "counter"),
        (256, "causal", (1, 16384), None, None),
    ],
)
def test_orders_on_hopper(
    head_dim: int, mask: str, sizes: tuple[int, int], tiles: int | None, order: str | None
) -> None:
    """By the number of work tiles, how long they are, and whether they are equally long."""
    spec = am.mha(heads=16, head_dim=head_dim, mask=parse_mask(mask), schedule="mha-registers")
    called = {"batch": sizes[0], "sq": sizes[1], "sk": sizes[1]}
    machine = Machine("sm_90a", 132)
    choice = attention_choice(spec, called, machine)
    found = chosen(spec, choice)
    assert (found.query_tiles, found.tile_order) == (tiles, order)
    assert chosen(spec, choice.in_parts(2)).tile_order is None
    collected = {chosen(spec, other) for other in choice.for_other_sizes()}
    assert found in collected and len(collected) <= 3
    for others in ({"batch": 1}, {"batch": 640}, {"sk": 9000}, {"batch": 3, "sk": 1}):
        assert chosen(spec, choice.of_sizes({**called, **others})) in collected
    asked = dataclasses.replace(spec, tile_order="single", query_tiles=1)
    choice = attention_choice(asked, called, machine)
    assert {chosen(asked, x) for x in (choice, *choice.for_other_sizes())} == {asked}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"schedule": "mha"}, "sm_90a has no schedule mha: it has no tensor memory"),
        ({"tile_order": "clc"}, "sm_90a has no kernel: tile_order must be .*, got clc"),
        (
            {"tile_order": "counter", "schedule": "mha-streaming"},
            "schedule mha-streaming has no kernel: tile_order must be .*, got counter",
        ),
    ],
)
def test_what_hopper_has_no_kernel_for(option: dict[str, Any], text: str) -> None:
    q = np.zeros((1, 20, 1, 64), ml_dtypes.bfloat16)
    with pytest.raises(SpecError, match=text):
        am.attention(q, q, q, **option, device=am.EmulatorDevice(target="sm_90a"))


def test_a_counter_is_for_products_into_registers() -> None:
    q = np.zeros((1, 20, 1, 64), ml_dtypes.bfloat16)
    with pytest.raises(
        SpecError, match="sm_100a has no kernel: tile_order must be .*, got counter"
    ):
        am.attention(q, q, q, tile_order="counter", device=am.EmulatorDevice())


def test_lists_of_blocks_on_hopper() -> None:
    """Blocks of 128 rows, also of few queries, and of as many keys as fit."""
    machine = Machine("sm_90a", 132)
    for head_dim, heads, block in ((64, (4, 4), (128, 1, 128)), (256, (8, 1), (16, 8, 64))):
        spec = am.mha(heads=heads[0], kv_heads=heads[1], head_dim=head_dim)
        for sq in (1, 4096):
            choice = attention_choice(spec, {"sq": sq}, machine, has_block_lists=True)
            assert (choice.name, choice.listed_block) == ("mha-registers", block)
    spec = am.mha(heads=1, head_dim=64, dtype="e4m3")
    choice = attention_choice(
        spec, {"batch": 1, "sq": 4096, "sk": 9}, machine, has_block_lists=True
    )
    narrow = chosen(spec, choice)
    assert (narrow.schedule, narrow.block) == ("mha-registers", (128, 1, 128))


def test_kernels_that_calls_choose_pass_the_checks_of_a_request() -> None:
    """Which `chosen` leaves out."""
    q, k = (np.zeros((1, n, 2, 64), np.float16) for n in (300, 4096))
    blocks = am.block_mask(None, None, None, 300, 4096, mask=am.causal())
    calls: list[dict[str, Any]] = [
        {"num_splits": 3, "sinks": np.zeros(2, np.float32)},
        {"split_size": 512, "mask_mod": lambda b, h, q, k: q > k},
        {"block_mask": blocks},
        {"query_tiles": 1, "tile_order": "persistent"},
    ]
    for target, call in product(("sm_90a", "sm_100a"), calls):
        for step in am.plan(q, k, k, device=am.EmulatorDevice(target=target), **call).steps:
            assert dataclasses.replace(step.request) == step.request
