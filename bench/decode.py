"""Decoding beside cuDNN on one GPU: few queries, caches that lie in memory and not in the L2.

    python bench/decode.py --write DIR [--target sm_90a]        where the compiler is, with the same options
    ATTN_MLIR_BUNDLES=DIR python bench/decode.py                where the GPU is; needs torch
    ATTN_MLIR_BUNDLES=DIR python bench/decode.py --pages 16 64  the same caches in shuffled pages as well
    ATTN_MLIR_BUNDLES=DIR python bench/decode.py --cache e4m3   the same caches in 8 bits as well

Each shape runs on several caches in turn, together several times the L2, recorded in a CUDA graph,
so that neither the cache nor the host decides. The graphs are replayed in turns. Times are those of
one call, medians of the rounds; the bandwidth counts the bytes of K and V once. Every element of
one call is compared with float32 attention by torch. Exit code: 0 when all are right, 1 when one is
not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attn_mlir as am
from attn_mlir.bench.measuring.graphs import recorded, replayed
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on
from attn_mlir.schedules.policy.tiling import MAX_Q_TILES, STREAM_ROWS

HEADS, KV_HEADS, HEAD_DIM = 64, 8, 128
SHAPES = ((1, 4096), (1, 16384), (8, 4096), (8, 16384), (64, 1024), (64, 4096), (64, 16384))
CACHED_BYTES = 200 << 20  # of all caches of a shape together; the L2 of an H200 has 50 MB
NARROW = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # dtypes of caches -> of torch
FACTOR = 2.0**-6  # of elements of 8 bits: standard normal values fill the range of both
TOLERANCE = 2.0**-7  # of bf16 O against float32, O being means of standard normal values


@dataclass(frozen=True)
class Shape:
    """One decoding step: `batch` sequences of `keys` cached tokens, `queries` new ones each."""

    batch: int
    keys: int
    queries: int = 1

    @property
    def cache_bytes(self) -> int:
        """Bytes of K and V."""
        return 2 * self.batch * self.keys * KV_HEADS * HEAD_DIM * 2

    def operands(self, torch: Any, count: int) -> tuple[Any, list[tuple[Any, Any]]]:
        """q [batch, queries, heads, head_dim], and `count` caches [batch, keys, kv_heads, head_dim]."""

        def drawn(length: int, heads: int) -> Any:
            size = (self.batch, length, heads, HEAD_DIM)
            return torch.randn(size, device="cuda", dtype=torch.bfloat16)

        torch.manual_seed(self.batch + self.keys)
        caches = [tuple(drawn(self.keys, KV_HEADS) for _ in "kv") for _ in range(count)]
        return drawn(self.queries, HEADS), caches


def ours(q: Any, k: Any, v: Any, splits: int, tiles: int = 0) -> Any:
    """Attention by this package; work tiles of `tiles` query tiles, where that is not 0."""
    return am.attention(
        *(q, k, v),
        mask=am.causal(),
        num_splits=splits,
        query_tiles=tiles or None,
        schedule="mha-streaming",
    )


def paged(torch: Any, k: Any, v: Any, size: int) -> Any:
    """The same cache in pages of a pool, in any order."""
    batch, keys = k.shape[:2]
    count = batch * keys // size
    order = torch.randperm(count, device=k.device)
    pools = [torch.empty_like(x).view(count, size, KV_HEADS, HEAD_DIM) for x in (k, v)]
    for pool, x in zip(pools, (k, v), strict=True):
        pool[order] = x.view(count, size, KV_HEADS, HEAD_DIM)
    table = order.to(torch.int32).view(batch, keys // size)
    used = torch.full((batch,), keys, dtype=torch.int32, device=k.device)
    return am.PagedKV(*pools, page_table=table, seqused=used)


def ours_paged(q: Any, cache: Any, splits: int) -> Any:
    """Attention by this package, from pages."""
    return am.attention(q, cache, mask=am.causal(), num_splits=splits, schedule="mha-streaming")


def ours_narrow(q: Any, k: Any, v: Any, factor: Any, splits: int) -> Any:
    """Attention by this package, to keys and values of 8 bits."""
    return am.attention(
        *(q, k, v),
        mask=am.causal(),
        k_descale=factor,
        v_descale=factor,
        num_splits=splits,
        schedule="mha-streaming",
    )


def theirs(torch: Any) -> Callable[[Any, Any, Any], Any]:
    """Attention by cuDNN, through torch; one query sees all keys."""
    functional = torch.nn.functional
    backends = importlib.import_module("torch.nn.attention")

    def call(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with backends.sdpa_kernel(backends.SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)

    return call


def exact(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention in float32; query i sees the keys up to its own, the last of as many."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / HEAD_DIM**0.5
    hidden = torch.ones(scores.shape[2:], device=q.device, dtype=torch.bool).triu(
        1 + scores.shape[3] - scores.shape[2]
    )
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def row(
    torch: Any,
    shape: Shape,
    splits: Sequence[int],
    tiles: Sequence[int],
    pages: Sequence[int],
    narrow: Sequence[str],
    rounds: int,
) -> bool:
    """Measures and prints one shape; whether every element was right."""
    count = max(1, -(-CACHED_BYTES // shape.cache_bytes))
    q, caches = shape.operands(torch, count)
    step = max(1, (1 << 31) // (shape.keys * HEADS * 4 * shape.queries))  # sequences per comparison
    calls: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
        f"ours, {n or 'chosen'} splits": (functools.partial(ours, q, splits=n), caches)
        for n in splits
    }
    for number in tiles:
        for n in splits:
            name = f"ours, {n or 'chosen'} splits, query tiles: {number}"
            calls[name] = functools.partial(ours, q, splits=n, tiles=number), caches
    if shape.queries == 1:
        calls["cuDNN"] = functools.partial(theirs(torch), q), caches
    for size in pages:
        pools = [(paged(torch, *cache, size),) for cache in caches]
        name = f"ours, pages of {size}, {splits[0] or 'chosen'} splits"
        calls[name] = functools.partial(ours_paged, q, splits=splits[0]), pools
    truths = dict.fromkeys(calls, caches[0])
    for dtype in narrow:
        factor = torch.full((1,), FACTOR, device="cuda")
        kind = getattr(torch, NARROW[dtype])
        stored = [tuple((x / FACTOR).to(kind) for x in cache) for cache in caches]
        for n in splits:
            name = f"ours, {dtype}, {n or 'chosen'} splits"
            calls[name] = functools.partial(ours_narrow, q, factor=factor, splits=n), stored
            truths[name] = tuple(x.float() * FACTOR for x in stored[0])
    errors: dict[str, float] = {}
    for name, (call, stored) in calls.items():
        o, found = call(*stored[0]), list[float]()
        for b in range(0, min(shape.batch, 4 * step), step):
            part = slice(b, b + step)
            truth = exact(torch, q[part], *(x[part] for x in truths[name]))
            found.append((o[part].float() - truth).abs().max().item() / TOLERANCE)
        errors[name] = math.inf if any(map(math.isnan, found)) else max(found)
    graphs = {name: recorded(*call) for name, call in calls.items()}
    times = replayed(graphs, count, rounds)
    size = f"{shape.batch} x {shape.keys}, {shape.queries} queries, {shape.cache_bytes >> 20} MiB"
    print(f"{size}: largest error {max(errors.values()):.2f} of what is allowed")
    wide = min(times[f"ours, {n or 'chosen'} splits"].median for n in splits)
    for name, spread in times.items():
        is_narrow = any(f", {dtype}," in name for dtype in narrow)
        rate = shape.cache_bytes / (1 + is_narrow) / spread.median * 1e-12
        ratio = times["cuDNN"].median / spread.median if "cuDNN" in times else float("nan")
        of_wide = f": {spread.median / wide:.3f} of the time of 16 bits" if is_narrow else ""
        print(
            f"  {spread.text('us', 1, 1e6):32s} {rate:6.2f} TB/s {ratio:6.3f} of cuDNN  {name}{of_wide}"
        )
        if errors[name] > 1:
            print(f"  WRONG, {errors[name]:.2f} of what is allowed: {name}")
    sys.stdout.flush()
    return max(errors.values()) <= 1


def write(
    folder: Path,
    targets: Sequence[str],
    queries: int,
    tiles: Sequence[int],
    pages: Sequence[int],
    narrow: Sequence[str],
) -> None:
    """Compiles the kernels that the benchmark calls, for `queries` queries per sequence, of any shape."""
    import ml_dtypes
    import numpy as np

    sizes = ((queries, HEADS), (1, KV_HEADS), (1, KV_HEADS))
    q, k, v = (np.zeros((1, *size, HEAD_DIM), ml_dtypes.bfloat16) for size in sizes)
    chosen = (0,) if queries * HEADS // KV_HEADS <= STREAM_ROWS else range(MAX_Q_TILES + 1)
    with recording(Collector(make_folder(folder), targets)), launching_on(IdleDevice()):
        for splits in (1, 2):
            for number in (*chosen, *tiles):
                ours(q, k, v, splits, number)
            for dtype in narrow:
                kind = getattr(ml_dtypes, NARROW[dtype])
                ours_narrow(q, k.astype(kind), v.astype(kind), np.ones(1, np.float32), splits)
            for size in pages:
                pools = (np.zeros((1, size, KV_HEADS, HEAD_DIM), ml_dtypes.bfloat16) for _ in "kv")
                table, used = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
                cache = am.PagedKV(*pools, page_table=table, seqused=used)
                ours_paged(q, cache, splits)


def main() -> int:
    parser = argparse.ArgumentParser(description="Decoding beside cuDNN.")
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument("--target", action="append", help="chip to compile for (default: sm_90a)")
    parser.add_argument("--shape", nargs=2, type=int, action="append", metavar=("BATCH", "KEYS"))
    parser.add_argument("--queries", type=int, default=1, help="new tokens of each sequence")
    parser.add_argument(
        "--splits", type=int, nargs="+", default=[0], help="parts of the keys; 0 chooses"
    )
    parser.add_argument(
        "--query-tiles", type=int, nargs="+", default=[], help="numbers to measure as well"
    )
    parser.add_argument(
        "--pages", type=int, nargs="+", default=[], help="sizes of pages to measure as well"
    )
    parser.add_argument(
        "--cache", choices=NARROW, nargs="+", default=[], help="types of 8 bits to measure as well"
    )
    parser.add_argument("--rounds", type=int, default=30, help="replays that count")
    given = parser.parse_args()
    if given.write is not None:
        targets, tiles = given.target or ["sm_90a"], given.query_tiles
        write(given.write, targets, given.queries, tiles, given.pages, given.cache)
        return 0
    torch = importlib.import_module("torch")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {HEADS} heads on {KV_HEADS}, D={HEAD_DIM}, bf16"
    )
    shapes = [Shape(batch, keys, given.queries) for batch, keys in given.shape or SHAPES]
    right = [
        row(
            *(torch, shape, given.splits, given.query_tiles),
            *(given.pages, given.cache, given.rounds),
        )
        for shape in shapes
    ]
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
