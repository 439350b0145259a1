"""Which kernels of attention spill registers: head sizes in steps, under what changes their registers.

    python bench/spills.py                          every kernel in steps of 16 columns; about a second each
    python bench/spills.py --step 8                 all head sizes of 16 bits
    python bench/spills.py --only sm_100a --only joined     kernels whose names contain all of these texts
    python bench/spills.py --count                  only says how many they are

A kernel is one that a call can choose or ask for by an option: schedule and target, head size, dtypes, LSE, parts of
the keys, pages, query tiles, tile order, modifiers. Prints what `ptxas -v` says of those that spill, bytes stored plus
bytes loaded. Exit code: 0 when none does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.cache import TABLE, Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import AttnError
from attn_mlir.schedules.policy.tiling import KEYS_IN_ROWS_TILES, MAX_HEAD_DIM, STREAM_COLUMNS

TILED, HELD, STREAMED, SWAPPED = "mha", "mha-registers", "mha-streaming", "mha-swapped"
HEADS, KV_HEADS = 16, 2
Options = Mapping[str, Any]
Choices = Mapping[str, Options]

PAGES: Choices = {"": {}} | {
    f"pages of {size}": {"cache": Cache(page_size=size, pages=TABLE)} for size in (16, 64)
}
LSE: Choices = {"": {}, "lse": {"return_lse": True}}
WIDE: Choices = {"bf16": {}}
NARROW: Choices = {"e4m3": {"dtype": "e4m3"}}
UNDER_16: Choices = {"e4m3 under bf16": {"kv_dtype": "e4m3"}}
PARTS: Choices = {"": {}, "joined": {"joined": True}}
RAGGED: Choices = {"ragged": {"lengths": Lengths(ragged_q=True, ragged_k=True)}}
COUNTED: Choices = {"counter": {"tile_order": "counter"}}
ORDERS: Choices = {
    "": {},
    "persistent": {"tile_order": "persistent"},
    **COUNTED,
    **RAGGED,
}


def modifiers() -> Choices:
    """Score modifiers, predicates and sinks."""
    ids, visible = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.bool_)
    bias = mods.bias(np.zeros((1, 1, 1, 1), np.float32))
    documents = mods.document(ids)
    return {
        "softcap": {"score_mod": mods.softcap(30.0)},
        "alibi": {"score_mod": mods.alibi(HEADS)},
        "relative bias": {"score_mod": mods.relative_bias(np.zeros((HEADS, 41), np.float32))},
        "bias of rank 4": {"score_mod": bias},
        "documents": {"mask_mod": documents},
        "visible": {"mask_mod": mods.visible_where(visible)},
        "softcap, documents": {"score_mod": mods.softcap(30.0), "mask_mod": documents},
        "bias, visible": {"score_mod": bias, "mask_mod": mods.visible_where(visible)},
        "sinks": {"sinks": np.zeros(HEADS, np.float32)},
    }


def tables() -> Iterator[tuple[str, str, list[Choices]]]:
    """Target, schedule, and the axes of which all combinations are kernels."""
    scored = modifiers()
    for target in ("sm_90a", "sm_100a"):
        for dtypes in (WIDE, NARROW, UNDER_16):
            yield target, STREAMED, [dtypes, PAGES, PARTS, LSE]
            yield target, STREAMED, [dtypes, PARTS, {"2 query tiles": {"query_tiles": 2}}, PAGES]
        yield target, STREAMED, [WIDE, PARTS, RAGGED]
        yield target, STREAMED, [WIDE, PARTS, scored]
    for dtypes in (WIDE, NARROW):
        yield "sm_90a", HELD, [dtypes, ORDERS, LSE]
        yield "sm_90a", HELD, [dtypes, PAGES, {"": {}, **COUNTED}]
        yield "sm_90a", HELD, [dtypes, {"": {}, **COUNTED}, scored]
        yield "sm_90a", HELD, [dtypes, {"": {}, **COUNTED}, {"1 query tile": {"query_tiles": 1}}]
        yield "sm_100a", TILED, [dtypes, {k: v for k, v in ORDERS.items() if k != "counter"}, LSE]
        yield "sm_100a", TILED, [dtypes, {"clc": {"tile_order": "clc"}}]
        yield "sm_100a", TILED, [dtypes, PAGES, LSE]
        yield "sm_100a", TILED, [dtypes, scored]
    tiles = {f"{count} query tiles": {"query_tiles": count} for count in KEYS_IN_ROWS_TILES}
    yield "sm_100a", SWAPPED, [WIDE, PAGES, PARTS, LSE, tiles]
    yield "sm_100a", SWAPPED, [WIDE, PARTS, scored, tiles]


def kernels(step: int) -> Iterator[tuple[str, str, Options]]:
    """Name, target and options of each kernel that may exist."""
    seen: set[str] = set()
    for target, schedule, axes in tables():
        for chosen in product(*(axis.items() for axis in axes)):
            options = {key: value for _, some in chosen for key, value in some.items()}
            most = MAX_HEAD_DIM
            if schedule == SWAPPED or (schedule == STREAMED and "query_tiles" in options):
                most = STREAM_COLUMNS
            for size in range(step, most + 1, step):
                words = (target, schedule, f"D={size}", *(word for word, _ in chosen if word))
                if (name := ", ".join(words)) not in seen:
                    seen.add(name)
                    named = None if schedule == TILED else schedule
                    yield name, target, {"head_dim": size, "schedule": named, **options}


def spilled(target: str, options: Options) -> int | None:
    """Bytes that a kernel spills; None if there is no such kernel."""
    given: dict[str, Any] = {"heads": HEADS, "kv_heads": KV_HEADS, "mask": am.causal(), **options}
    try:
        bundle = am.compile(MhaSpec(**given), target=target)
    except AttnError:
        return None
    found = bundle.report["spill_bytes"]
    assert isinstance(found, int)
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="part of a kernel's name")
    parser.add_argument("--step", type=int, default=16, help="of head sizes; 16 when left out")
    parser.add_argument("--count", action="store_true", help="compile nothing")
    args = parser.parse_args()
    wanted = [x for x in kernels(args.step) if all(text in x[0] for text in args.only)]
    if args.count:
        print(f"{len(wanted)} kernels")
        return 0
    exist = spill = 0
    for name, target, options in wanted:
        found = spilled(target, options)
        exist += found is not None
        if found:
            spill += 1
            print(f"{name}: {found}", flush=True)
    print(f"{exist} kernels of {len(wanted)} exist, {spill} spill")
    return 1 if spill else 0


if __name__ == "__main__":
    sys.exit(main())
