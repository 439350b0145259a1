"""Attention with modifiers and windows beside FlexAttention on one GPU, in TFLOP/s.

    python bench/flex.py --write DIR [--target sm_90a]       where the compiler is
    ATTN_MLIR_BUNDLES=DIR python bench/flex.py               where the GPU is; needs torch

4 sequences of 4096 tokens, 16 heads of 128 columns, bf16, normal values. Both run in turns from CUDA
graphs, FlexAttention compiled by torch and with a block mask; the products of the pairs that the mask
shows count. What ours gives is compared with what FlexAttention gives. Exit code: 0 when all
agree, 1 when one row does not.
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

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.bench._graphs import recorded, replayed
from attn_mlir.bench.attention import clock
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

BATCH, LENGTH, HEADS, HEAD_DIM = 4, 4096, 16, 128
CAP, WINDOW = 30.0, 1024  # of the softcap; keys that a query sees in the window, itself among them
TOLERANCE = 2.0**-5  # of O: two steps of bf16 for values of 2 to 4, as both round theirs
CALLS = 4  # in a graph


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
      name: in the table.
      mask: in closed form.
      capped, biased: whether scores are capped, or have ALiBi's distances.
    """

    name: str
    mask: am.Mask
    capped: bool = False
    biased: bool = False

    @property
    def flops(self) -> float:
        """Operations of both products, over the pairs that the mask shows."""
        rows = range(LENGTH)
        seen = {"full": LENGTH * LENGTH, "causal": sum(r + 1 for r in rows)}
        pairs = seen.get(str(self.mask), sum(min(r + 1, WINDOW) for r in rows))
        return 4.0 * BATCH * HEADS * HEAD_DIM * pairs

    def ours(self, slopes: Any, q: Any, k: Any, v: Any) -> Any:
        """O [batch, length, heads, columns] of operands that lie so; `slopes` [heads]."""
        mod = mods.softcap(CAP) if self.capped else mods.alibi(slopes) if self.biased else None
        return am.attention(q, k, v, mask=self.mask, score_mod=mod)

    def flex(self, slopes: Any) -> Callable[..., Any]:
        """The same by FlexAttention, compiled."""
        torch: Any = importlib.import_module("torch")
        flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
        attend = torch.compile(flex.flex_attention)

        def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return CAP * torch.tanh(score / CAP)

        def biased(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score - slopes[h] * (i - j).abs()

        def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
            return i >= j

        def window(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (i >= j) & (i - j < WINDOW)

        named = {"full": None, "causal": causal}
        seen = named.get(str(self.mask), window)
        blocks = seen and flex.create_block_mask(seen, None, None, LENGTH, LENGTH)
        mod = capped if self.capped else biased if self.biased else None

        def call(q: Any, k: Any, v: Any) -> Any:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return attend(q, k, v, score_mod=mod, block_mask=blocks).transpose(1, 2)

        return call


ROWS = (
    Row("plain", am.full()),
    Row("causal", am.causal()),
    Row("softcap", am.full(), capped=True),
    Row("softcap causal", am.causal(), capped=True),
    Row("ALiBi causal", am.causal(), biased=True),
    Row(f"window of {WINDOW}", am.sliding_window(WINDOW - 1, 0)),
)


def measured(row: Row, seconds: float, rounds: int) -> bool:
    """Measures and prints one row; whether both agree."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    shape = (BATCH, LENGTH, HEADS, HEAD_DIM)
    operands = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    slopes = torch.from_numpy(mods.alibi_slopes(HEADS)).cuda()
    calls = {"ours": functools.partial(row.ours, slopes), "FlexAttention": row.flex(slopes)}
    o, other = (call(*operands).float() for call in calls.values())
    worst = (o - other).abs().max().item() / TOLERANCE
    graphs = {name: recorded(call, [operands] * CALLS) for name, call in calls.items()}
    found = replayed(graphs, CALLS, rounds, seconds=seconds)
    print(f"{row.name}: {clock()}, error {worst:.2f} of what is allowed")
    for name, spread in found.items():
        ratio = found["FlexAttention"].median / spread.median
        rate = row.flops / spread.median * 1e-12
        print(
            f"  {rate:6.1f} TFLOP/s {ratio:6.3f} of FlexAttention  {name:14s} {spread.text('us', 1, 1e6)}"
        )
    sys.stdout.flush()
    return worst <= 1


def write(folder: Path, targets: Sequence[str]) -> None:
    """Compiles what the benchmark asks for."""
    import ml_dtypes
    import numpy as np

    keep = Collector(make_folder(folder))
    shape = (BATCH, LENGTH, HEADS, HEAD_DIM)
    q, k, v = (np.zeros(shape, ml_dtypes.bfloat16) for _ in range(3))
    for row in ROWS:
        for target in targets:
            with recording(keep), launching_on(IdleDevice(target)):
                row.ours(mods.alibi_slopes(HEADS), q, k, v)


def main() -> int:
    parser = argparse.ArgumentParser(description="Attention beside FlexAttention.")
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument("--target", action="append", help="chip to compile for (default: sm_90a)")
    parser.add_argument("--seconds", type=float, default=0.5, help="that a reading lasts")
    parser.add_argument("--rounds", type=int, default=3, help="readings that count")
    given = parser.parse_args()
    if given.write is not None:
        write(given.write, given.target or ["sm_90a"])
        return 0
    agree = [measured(row, given.seconds, given.rounds) for row in ROWS]
    return int(not all(agree))


if __name__ == "__main__":
    sys.exit(main())
