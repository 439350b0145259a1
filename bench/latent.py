"""Decoding with latent attention beside torch on one GPU: caches that lie in memory and not in the L2.

    python bench/latent.py --write DIR [--target sm_90a]     where the compiler is, with the same options
    ATTN_MLIR_BUNDLES=DIR python bench/latent.py             where the GPU is; needs torch
    ATTN_MLIR_BUNDLES=DIR python bench/latent.py --heads 64 --queries 2 --splits 0 1 4
    ATTN_MLIR_BUNDLES=DIR python bench/latent.py --schedule mla-decode-registers    not the one chosen
    ATTN_MLIR_BUNDLES=DIR python bench/latent.py --topk 2048    of rows that lists name; write with it as well

Rows of 576 columns in bf16, of which the first 512 are values, in shuffled pages of 64. Each shape runs
on several caches in turn, together several times the L2, recorded in a CUDA graph. Times are those of one
call, medians of the rounds; the bandwidth counts the bytes of the rows once. Peers read the rows of each
sequence without pages: two matrix products by torch with a softmax between, which write the scores to
memory, and `scaled_dot_product_attention` with the one head expanded, where torch has a kernel for that.
Every element of one call is compared with float32. Exit code: 0 when all are right, 1 when one is not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import attn_mlir as am
from attn_mlir.bench.measuring.graphs import recorded, replayed
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on
from attn_mlir.schedules.policy.registry import choose

COLUMNS, VALUES, PAGE = 576, 512, 64
SCALE = 192**-0.5  # of a model whose heads have 128 columns and 64 that are rotated
SHAPES = ((1, 4096), (1, 32768), (8, 8192), (32, 8192), (128, 4096))
CACHED_BYTES = 200 << 20  # of all caches of a shape together; the L2 of an H200 has 50 MB
TOLERANCE = 2.0**-7  # of bf16 O against float32, O being means of standard normal values


@dataclass(frozen=True)
class Shape:
    """One decoding step: `batch` sequences of `keys` cached tokens, `queries` of them new.

    Attributes:
      topk: entries of the list that each query has; 0 where it sees all tokens.
    """

    batch: int
    keys: int
    queries: int
    heads: int
    topk: int = 0

    @property
    def flops(self) -> int:
        """Operations of both products, as FlashMLA counts: every entry of a list is one, whether or not it is a row."""
        seen = self.topk or self.keys
        return 2 * self.batch * self.queries * self.heads * seen * (COLUMNS + VALUES)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the rows."""
        return self.batch * self.keys * COLUMNS * 2

    @property
    def read_bytes(self) -> int:
        """Bytes of the rows that are seen: of lists those of every query, of all tokens once."""
        return (
            self.cache_bytes
            if not self.topk
            else self.queries * self.batch * self.topk * COLUMNS * 2
        )

    def operands(self, torch: Any, count: int) -> tuple[Any, list[Any]]:
        """q [batch, queries, heads, 576], and `count` times rows [batch, keys, 576]."""

        def drawn(*size: int) -> Any:
            return torch.randn(size, device="cuda", dtype=torch.bfloat16)

        torch.manual_seed(self.batch + self.keys)
        rows = [drawn(self.batch, self.keys, COLUMNS) for _ in range(count)]
        return drawn(self.batch, self.queries, self.heads, COLUMNS), rows


def ours(q: Any, cache: am.PagedKV, lists: Any = None, *, splits: int) -> Any:
    """O of latent attention by this package, over all tokens or over rows of the pool that lists name."""
    seen: dict[str, Any] = {"mask": am.causal()} if lists is None else {"indices": lists}
    o, _ = am.mla_decode(q, cache, scale=SCALE, num_splits=splits, **seen)
    return o


def listed(torch: Any, cache: am.PagedKV, positions: Any) -> Any:
    """Rows of the pool, [batch, queries, topk], by the positions of their sequences."""
    table = cache.page_table.long()[:, None].expand(-1, positions.shape[1], -1)
    return (table.gather(2, positions // PAGE) * PAGE + positions % PAGE).to(torch.int32)


def paged(torch: Any, rows: Any) -> am.PagedKV:
    """The rows in pages of a pool, in any order."""
    batch, keys, _ = rows.shape
    count = batch * keys // PAGE
    order = torch.randperm(count, device=rows.device)
    pool = torch.empty_like(rows).view(count, PAGE, 1, COLUMNS)
    pool[order] = rows.view(count, PAGE, 1, COLUMNS)
    table = order.to(torch.int32).view(batch, keys // PAGE)
    used = torch.full((batch,), keys, dtype=torch.int32, device=rows.device)
    return am.PagedKV(pool, page_table=table, seqused=used)


def hidden(torch: Any, queries: int, keys: int, device: Any) -> Any:
    """Which keys a query does not see, [queries, keys]: query i is the last of as many less."""
    return torch.ones(queries, keys, device=device, dtype=torch.bool).triu(1 + keys - queries)


def products(torch: Any, q: Any, rows: Any) -> Any:
    """Two matrix products and a softmax, one query token: all heads are the rows of one matrix."""
    batch, queries, heads, _ = q.shape
    scores = torch.bmm(q.view(batch, queries * heads, COLUMNS), rows.transpose(1, 2)) * SCALE
    if queries > 1:
        away = hidden(torch, queries, rows.shape[1], q.device).repeat_interleave(heads, 0)
        scores = scores.masked_fill(away, float("-inf"))
    o = torch.bmm(scores.softmax(-1), rows[:, :, :VALUES])
    return o.view(batch, queries, heads, VALUES)


def expanded(torch: Any, q: Any, rows: Any) -> Any:
    """torch's attention with the one head in the place of all."""
    heads = q.shape[2]
    k = rows[:, None].expand(-1, heads, -1, -1)
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q.transpose(1, 2), k, k[..., :VALUES], scale=SCALE).transpose(1, 2)


def exact(torch: Any, q: Any, rows: Any, positions: Any = None) -> Any:
    """Latent attention in float32, over all tokens or these [batch, queries, topk]."""
    q, rows = q.float(), rows.float()
    scores = torch.einsum("bqhd,bkd->bhqk", q, rows) * SCALE
    away = hidden(torch, q.shape[1], rows.shape[1], q.device)
    if positions is not None:
        away = torch.ones_like(away).repeat(len(q), 1, 1).scatter(2, positions, False)[:, None]
    weights = scores.masked_fill(away, float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkd->bqhd", weights, rows[..., :VALUES])


def row(torch: Any, shape: Shape, splits: Sequence[int], rounds: int) -> bool:
    """Measures and prints one shape; whether every element was right."""
    count = max(1, -(-CACHED_BYTES // shape.cache_bytes))
    q, rows = shape.operands(torch, count)
    pools: list[tuple[Any, ...]] = [(paged(torch, x),) for x in rows]
    dense = [(x,) for x in rows]
    positions = None
    if shape.topk:
        drawn = torch.rand(shape.batch, shape.queries, shape.keys, device=q.device)
        positions = drawn.argsort(2)[..., : shape.topk]
        pools = [(cache, listed(torch, cache, positions)) for (cache,) in pools]
    calls: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
        f"ours, {n or 'chosen'} splits": (functools.partial(ours, q, splits=n), pools)
        for n in splits
    }
    names = list(calls)
    if positions is None:
        calls["torch.bmm twice"] = functools.partial(products, torch, q), dense
    if shape.queries == 1 and positions is None:
        peer = functools.partial(expanded, torch, q)
        try:
            peer(rows[0])
            calls["torch's attention, expanded"] = peer, dense
        except RuntimeError as error:
            print(f"  torch's attention has no kernel: {str(error).splitlines()[0]:.60}")
    worst = 0.0
    for name in names:
        call, stored = calls[name]
        o, step = call(*stored[0]), max(1, (1 << 28) // (shape.keys * shape.heads * 4))
        for b in range(0, shape.batch, step):
            part = slice(b, b + step)
            told = None if positions is None else positions[part]
            truth = exact(torch, q[part], rows[0][part], told)
            worst = max(worst, (o[part].float() - truth).abs().max().item() / TOLERANCE)
    graphs = {name: recorded(*call) for name, call in calls.items()}
    found = replayed(graphs, count, rounds)
    size = f"{shape.batch} x {shape.keys}, {shape.heads} heads, {shape.queries} queries"
    size += f", lists of {shape.topk}" if shape.topk else ""
    print(f"{size}, {shape.cache_bytes >> 20} MiB: largest error {worst:.2f} of what is allowed")
    for name, spread in found.items():
        rate, work = shape.read_bytes / spread.median * 1e-12, shape.flops / spread.median * 1e-12
        print(f"  {spread.text('us', 1, 1e6):32s} {rate:6.2f} TB/s {work:6.1f} TFLOP/s  {name}")
    sys.stdout.flush()
    return worst <= 1


def write(
    folder: Path, targets: Sequence[str], heads: Sequence[int], queries: int, topk: int
) -> None:
    """Compiles the kernels that the benchmark calls."""
    import ml_dtypes
    import numpy as np

    table, used = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
    pool = np.zeros((1, PAGE, 1, COLUMNS), ml_dtypes.bfloat16)
    cache = am.PagedKV(pool, page_table=table, seqused=used)
    keep = Collector(make_folder(folder))
    for target in targets:
        with recording(keep), launching_on(IdleDevice(target)):
            for count in heads:
                q = np.zeros((1, queries, count, COLUMNS), ml_dtypes.bfloat16)
                lists = np.zeros((1, queries, topk), np.int32) if topk else None
                for splits in (1, 2):
                    ours(q, cache, lists, splits=splits)


def main() -> int:
    parser = argparse.ArgumentParser(description="Decoding with latent attention beside torch.")
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument("--target", action="append", help="chip to compile for (default: sm_90a)")
    parser.add_argument("--shape", nargs=2, type=int, action="append", metavar=("BATCH", "KEYS"))
    parser.add_argument("--heads", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--queries", type=int, default=1, help="new tokens of each sequence")
    parser.add_argument("--topk", type=int, default=0, help="entries of lists; 0: all tokens")
    parser.add_argument(
        "--splits", type=int, nargs="+", default=[0], help="parts of the keys; 0 chooses"
    )
    parser.add_argument("--schedule", help="the kernel, by name, in place of the one chosen")
    parser.add_argument("--rounds", type=int, default=30, help="replays that count")
    given = parser.parse_args()
    if given.schedule:
        asked = functools.partial(choose, asked=given.schedule)
        mock.patch("attn_mlir.compiling.routes.choose", asked).start()
    if given.write is not None:
        write(given.write, given.target or ["sm_90a"], given.heads, given.queries, given.topk)
        return 0
    torch = importlib.import_module("torch")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; rows of {COLUMNS}, bf16")
    right = [
        row(torch, Shape(batch, keys, given.queries, heads, given.topk), given.splits, given.rounds)
        for heads in given.heads
        for batch, keys in given.shape or SHAPES
    ]
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
