"""The calls of the table of choices: around every threshold of every rule, and a few of everything else.

A section varies what one rule depends on. A new rule gets a section, or values in one, on both sides of
its thresholds; a new option of a call gets a field in `case`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from attn_mlir.validation.choices.case import Case

HOPPER, BLACKWELL = ("sm_90a", 132), ("sm_100a", 148)  # H200, B200
SMALL = (("sm_90a", 78), ("sm_100a", 64))  # other numbers of multiprocessors
MACHINES = (HOPPER, BLACKWELL)
GROUPS = ((1, 1), (8, 8), (32, 8), (64, 8), (24, 8), (8, 1), (128, 1))
ORDERS = (None, "single", "last_first", "persistent", "clc", "ragged", "counter")


def cases() -> list[Case]:
    """All calls, each once."""
    found = {str(case): case for section in SECTIONS for case in section()}
    return list(found.values())


def _calls(
    function: str,
    *,
    machines: Sequence[tuple[str, int]] = MACHINES,
    fixed: Mapping[str, Any] | None = None,
    **axes: Iterable[Any],
) -> Iterator[Case]:
    """Every combination of the axes on every machine."""
    for machine, values in product(machines, product(*axes.values())):
        fields = {**(fixed or {}), **dict(zip(axes, values, strict=True))}
        yield Case(*machine, function, fields)


def _queries() -> Iterator[Case]:
    """Lengths of queries around what fills tiles of 8, 16, 64 and 128 rows, for every kind of group."""
    yield from _calls(
        "attention",
        fixed={"num_splits": 0},
        heads=GROUPS,
        dims=((64, 64), (96, 96), (128, 128), (192, 128), (256, 256)),
        sq=(1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 193, 1024),
    )
    yield from _calls(
        "attention",
        heads=((32, 8), (8, 8)),
        dims=((64, 64), (128, 128)),
        mask=("causal", "window:127,0"),
        sq=(1, 4, 5, 64, 65, 129, 1024, 4096, 8193),
        sk=(8193,),
    )


def _keys() -> Iterator[Case]:
    """Numbers of keys around a tile, four of them, and where sequences are long; with and without splits."""
    yield from _calls(
        "attention",
        heads=((32, 8), (8, 8), (64, 8)),
        sq=(1, 4, 64, 512),
        sk=(0, 1, 64, 128, 129, 512, 513, 640, 1024, 8192, 8193, 65536),
        num_splits=(None, 0),
        mask=("", "causal", "window:1023,0"),
    )
    yield from _calls(
        "attention",
        fixed={"sq": 256, "num_splits": 0},
        sk=(256, 8192, 8193, 32768),
        mask=("", "causal", "window:100,50", "chunked:512", "prefix:100", "causal&chunked:512"),
        dims=((64, 64), (128, 128), (256, 256)),
    )


def _batches() -> Iterator[Case]:
    """Batches at which work tiles are about as many as multiprocessors, or parts of them."""
    about = (
        1,
        2,
        3,
        4,
        5,
        8,
        9,
        16,
        17,
        18,
        19,
        33,
        37,
        66,
        67,
        74,
        75,
        131,
        132,
        133,
        147,
        148,
        149,
    )
    yield from _calls(
        "attention",
        machines=(*MACHINES, *SMALL),
        fixed={"num_splits": 0},
        batch=(*about, 159, 160, 161, 264, 265, 297),
        heads=((8, 8), (64, 8), (8, 1)),
        sq=(1, 4, 64),
    )
    yield from _calls(
        "attention",
        batch=(1, 4, 5, 10, 16, 20, 80, 159, 160, 161),
        sq=(128, 512, 1024),
        heads=((8, 8), (1, 1)),
        dims=((64, 64), (128, 128), (256, 256)),
        mask=("", "causal"),
    )


def _types() -> Iterator[Case]:
    """Types of operands and of O, at head sizes all of which some rule tells apart."""
    sizes = (
        8,
        16,
        24,
        32,
        48,
        56,
        64,
        72,
        80,
        96,
        104,
        112,
        128,
        136,
        144,
        160,
        176,
        192,
        200,
        208,
        224,
        240,
        256,
    )
    kinds = ("bf16", "f16", "e4m3", "e5m2")
    yield from _calls(
        "attention",
        dims=[(d, d) for d in (*sizes, 260, 264)],
        dtype=("bf16", "e4m3"),
        out_dtype=(None, "f32"),
        sq=(1, 256),
    )
    yield from _calls(
        "attention",
        dims=[
            (d, v) for d in (64, 96, 128, 192, 256) for v in (32, 64, 96, 128, 192, 256) if d != v
        ],
        dtype=("bf16", "e4m3"),
        sq=(1, 40, 1024),
        num_splits=(0,),
    )
    yield from _calls(
        "attention",
        dtype=kinds,
        kv_dtype=("", *kinds),
        out_dtype=(None, "bf16", "f16", "f32"),
        sq=(1, 4, 512),
    )
    yield from _calls(
        "attention",
        fixed={"num_splits": 0},
        kv_dtype=("e4m3",),
        dims=((64, 64), (128, 128), (192, 128), (256, 256)),
        batch=(1, 8, 9, 17, 150),
        sq=(1, 4, 5),
        heads=((64, 8), (8, 8)),
    )


def _stored() -> Iterator[Case]:
    """Caches and lengths."""
    pages = (1, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 1024)
    kinds = (
        "rows",
        "rows+pad",
        "rows+idx",
        "rows+idx+pad",
        "page64+hnd",
        "page64+two",
        "page64+csr",
    )
    yield from _calls(
        "attention",
        fixed={"num_splits": 0},
        cache=(*kinds, *(f"page{page}" for page in pages)),
        kv_dtype=("", "e4m3"),
        sq=(1, 4, 40, 256),
        dims=((64, 64), (128, 128), (256, 256)),
    )
    yield from _calls(
        "attention",
        fixed={"kv_dtype": "e4m3", "num_splits": 0},
        cache=("rows+pos", "page16+pos", "page64+pos", "page64+pos+hnd"),
        sq=(1, 40, 256),
        dims=((64, 64), (128, 128), (256, 256)),
    )
    yield from _calls(
        "attention",
        cache=("rows", "page16", "page64"),
        dtype=("e4m3",),
        sq=(1, 256),
        out_dtype=(None, "f32"),
    )
    yield from _calls(
        "attention",
        told=(
            "cuq",
            "cuq+cuk",
            "cuk",
            "usedq",
            "usedk",
            "usedq+usedk",
            "cached",
            "cuq+cuk+usedq",
            "cuq+usedk",
        ),
        sq=(1, 4, 64, 512),
        dims=((64, 64), (128, 128), (256, 256)),
        num_splits=(None, 0),
        mask=("", "causal"),
    )
    yield from _calls(
        "attention",
        mods=("score", "mask", "sinks", "score+mask+sinks"),
        sq=(1, 4, 512),
        dims=((64, 64), (128, 128), (256, 256)),
        num_splits=(None, 0),
        return_lse=(None, True),
    )


def _asked() -> Iterator[Case]:
    """What calls ask for by name, alone and together: where it is kept, and where refused."""
    schedules = (None, "mha", "mha-streaming", "mha-registers", "mha-swapped", "none")
    yield from _calls(
        "attention",
        query_tiles=(None, 1, 2, 3, 4),
        tile_order=ORDERS,
        schedule=schedules,
        sq=(4, 256),
    )
    yield from _calls(
        "attention",
        schedule=schedules[:-1],
        dims=((64, 64), (128, 64), (96, 96), (192, 128), (256, 256)),
        dtype=("bf16", "e4m3"),
        sq=(1, 5, 256),
        num_splits=(None, 0, 3),
    )
    yield from _calls(
        "attention",
        schedule=schedules[:-1],
        split_size=(None, 1, 64, 128, 256, 4096),
        num_splits=(None, 0, 1, 2, 256, 257, -1),
        sq=(1, 40),
    )
    yield from _calls(
        "attention",
        schedule=schedules[:-1],
        cache=("page8", "page16", "page96", "rows"),
        sq=(1, 256),
    )
    yield from _calls(
        "attention",
        split_size=(64, 128, 512, 1024),
        sq=(1, 40, 512),
        sk=(0, 100, 4096, 65536),
        batch=(1, 200),
    )
    yield from _calls(
        "attention",
        query_tiles=(1, 2),
        sq=(1, 40, 512),
        batch=(1, 9, 150),
        num_splits=(None, 0),
        heads=GROUPS,
    )


def _latent() -> Iterator[Case]:
    """Latent attention before absorption."""
    yield from _calls(
        "mla",
        heads=((16, 16), (128, 128), (16, 4)),
        dims=((128, 64, 128), (64, 32, 64), (192, 64, 256), (128, 16, 128), (256, 64, 256)),
        dtype=("bf16", "f16", "e4m3", "e5m2"),
        sq=(1, 64, 65, 1024),
        mask=("", "causal"),
    )
    yield from _calls(
        "mla", query_tiles=(None, 1, 2, 3), tile_order=ORDERS, sq=(64, 1024), dtype=("bf16", "e4m3")
    )
    yield from _calls(
        "mla",
        cache=("page64", "page16", "page32+hnd", "rows", "page64+csr"),
        rope_dtype=("", "e4m3"),
        sq=(1, 256),
        out_dtype=(None, "f32"),
    )
    yield from _calls(
        "mla",
        kv_format=("v32", "e4m3", "e4m3_rope16"),
        cache=("page64", "page16+hnd", "rows"),
        sq=(1, 256),
        dtype=("bf16", "f16"),
    )
    yield from _calls(
        "mla", told=("cuq+cuk", "cuq", "usedk", "usedq"), sq=(1, 256), mask=("", "causal")
    )


def _decode() -> Iterator[Case]:
    """Latent attention after absorption."""
    yield from _calls(
        "mla_decode",
        heads=(4, 8, 16, 24, 64, 128, 256, 1024),
        batch=(1, 2, 4, 9, 33, 66, 132, 133, 149),
        sq=(1, 2, 8),
        sk=(512, 513, 16384),
    )
    yield from _calls(
        "mla_decode",
        heads=(8, 16, 64, 128),
        lists=("lists", "lists+lengths", "lists+extra"),
        batch=(1, 33, 140),
        sq=(1, 2),
        sk=(128, 2048),
        kv_format=("bf16", "v32", "e4m3"),
    )
    yield from _calls(
        "mla_decode",
        num_splits=(None, 0, 1, 2, 128, 129, 256, 257),
        lists=("", "lists", "lists+extra"),
        batch=(1, 200),
    )
    yield from _calls(
        "mla_decode",
        columns=(512, 576),
        dtype=("bf16", "f16", "e4m3"),
        kv_format=("bf16", "v32", "model1", "e4m3", "e4m3_rope16"),
        heads=(16, 128),
        page=(16, 64),
        lists=("", "lists"),
    )
    yield from _calls(
        "mla_decode",
        mask=("", "causal", "window:511,0"),
        sq=(1, 4),
        sinks=(False, True),
        heads=(16, 128),
    )


def _sparse() -> Iterator[Case]:
    """Sparse latent attention."""
    yield from _calls(
        "sparse_mla",
        heads=(4, 8, 16, 64, 72, 128, 192, 256, 1024),
        columns=(512, 576),
        kv_format=("bf16", "v32", "model1", "e4m3", "e4m3_rope16"),
        page=(0, 64),
        dtype=("bf16", "e4m3"),
    )
    yield from _calls(
        "sparse_mla",
        heads=(64, 128),
        dtype=("bf16", "f16", "e4m3"),
        kv_format=("bf16", "e4m3"),
        out_dtype=(None, "bf16", "f16", "f32"),
    )
    yield from _calls(
        "sparse_mla",
        table=(False, True),
        lengths=(False, True),
        sinks=(False, True),
        page=(16, 64),
        heads=(64, 128),
        topk=(1, 100, 2048),
    )


def _append() -> Iterator[Case]:
    """Writing into caches."""
    yield from _calls(
        "append_kv",
        cache=("rows", "rows+pad", "rows+idx", "page16", "page64+hnd", "page64+csr", "page64+two"),
        told=("", "slots", "positions", "batches", "cu"),
        dtype=("bf16", "e4m3"),
        rotary=(0, 64),
    )
    yield from _calls(
        "append_kv",
        dtype=("bf16", "f16", "e4m3", "e5m2"),
        new_dtype=("", "bf16", "e4m3"),
        dims=((64, 64), (128, 128), (192, 128), (256, 256)),
        heads=(1, 8),
    )


SECTIONS = (_queries, _keys, _batches, _types, _stored, _asked, _latent, _decode, _sparse, _append)
