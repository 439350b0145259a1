"""Attention with modifiers and windows beside FlexAttention on one GPU, in TFLOP/s.

    python bench/flex.py --write DIR [--target sm_90a]       where the compiler is; needs torch
    ATTN_MLIR_BUNDLES=DIR python bench/flex.py               where the GPU is; needs torch
    ... --gradients                                          the backward pass alone, in both places

The operands are 4 sequences of 4096 tokens, 16 heads of 128 columns, bf16, normal values. Both
implementations alternate; the forward pass runs from CUDA graphs, and FlexAttention is compiled by
torch with a block mask. FLOPs are those of visible scores: two matrix products of the forward pass,
five of the backward pass, whatever a kernel computes. Our results are compared with FlexAttention's.
FlexAttention does not compile the learned table, whose gradient is computed as well: its row is
compared with our row without a modifier. Exit code: 0 if all rows agree, else 1.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.bench.attention import clock
from attn_mlir.bench.backward import timed
from attn_mlir.bench.measuring.graphs import recorded, replayed
from attn_mlir.bench.measuring.stats import Spread
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

BATCH, LENGTH, HEADS, HEAD_DIM = 4, 4096, 16, 128
CAP, WINDOW = 30.0, 1024  # of the softcap; keys that a query sees in the window, itself among them
TOLERANCE = 2.0**-5  # of O: two steps of bf16 for values of 2 to 4, as both round theirs
CALLS = 4  # in a graph
OURS, PEER, PLAIN = "ours", "FlexAttention", "ours without a modifier"
REACH = 64  # largest distance of the learned table; larger ones are clamped
GRADIENT_TOLERANCE = 2.0**-5  # of the largest element: both round weights to bf16, differently


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
      name: in the table.
      mask: in closed form.
      capped, biased: whether scores are capped, or have ALiBi's distances.
      learned: whether a learned table of distances is added to the scores.
    """

    name: str
    mask: am.Mask
    capped: bool = False
    biased: bool = False
    learned: bool = False

    @property
    def flops(self) -> float:
        """Operations of both products, over the pairs that the mask shows."""
        rows = range(LENGTH)
        seen = {"full": LENGTH * LENGTH, "causal": sum(r + 1 for r in rows)}
        pairs = seen.get(str(self.mask), sum(min(r + 1, WINDOW) for r in rows))
        return 4.0 * BATCH * HEADS * HEAD_DIM * pairs

    def ours(self, read: Any, q: Any, k: Any, v: Any) -> Any:
        """O [batch, length, heads, columns] by our kernels, of operands with the same axes.

        Args:
          read: the slopes [heads], or the learned table [heads, 2 REACH + 1].
        """
        mod = mods.softcap(CAP) if self.capped else mods.alibi(read) if self.biased else None
        if self.learned:
            mod = mods.relative_bias(read)
        return am.attention(q, k, v, mask=self.mask, score_mod=mod)

    def read(self) -> Any:
        """The array that the modifier of `ours` reads, of numpy."""
        learned = np.zeros((HEADS, 2 * REACH + 1), np.float32)
        return learned if self.learned else mods.alibi_slopes(HEADS)

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


LEARNED = Row("learned table", am.full(), learned=True)


def measured(row: Row, seconds: float, rounds: int) -> bool:
    """Measures and prints one row of the forward pass; whether both agree."""
    torch: Any = importlib.import_module("torch")
    operands, slopes = _operands(torch), torch.from_numpy(row.read()).cuda()
    calls = {OURS: functools.partial(row.ours, slopes), PEER: row.flex(slopes)}
    o, other = (call(*operands).float() for call in calls.values())
    worst = (o - other).abs().max().item() / TOLERANCE
    graphs = {name: recorded(call, [operands] * CALLS) for name, call in calls.items()}
    found = replayed(graphs, CALLS, rounds, seconds=seconds)
    print(f"{row.name}: {clock()}, error {worst:.2f} of what is allowed")
    _show(found, row.flops, PEER)
    return worst <= 1


def measured_gradients(row: Row, seconds: float, rounds: int) -> bool:
    """Measures and prints one row of the backward pass; whether both agree."""
    torch: Any = importlib.import_module("torch")
    *operands, do = _operands(torch, 4)
    leaves = [x.requires_grad_() for x in operands]
    read = torch.from_numpy(row.read()).cuda()
    ours, wanted = functools.partial(row.ours, read), leaves
    peer, name = row.flex(read), PEER
    if row.learned:
        wanted = [*leaves, read.requires_grad_()]
        peer, name = functools.partial(ROWS[0].ours, read), PLAIN
    calls = {
        OURS: _gradients(torch, ours, wanted, do),
        name: _gradients(torch, peer, leaves, do),
    }
    pairs: Any = [] if row.learned else zip(calls[OURS](), calls[name](), strict=True)
    errors: list[float] = [
        ((x.float() - y.float()).abs().max() / y.abs().max()).item() for x, y in pairs
    ]
    worst = max(errors, default=0.0) / GRADIENT_TOLERANCE
    found = timed(torch, calls, rounds, seconds)
    print(f"{row.name}: {clock()}, error {worst:.2f} of what is allowed")
    _show(found, 2.5 * row.flops, name)
    return worst <= 1


def _operands(torch: Any, count: int = 3) -> list[Any]:
    """Tensors of normal values, [batch, length, heads, columns]."""
    torch.manual_seed(0)
    shape = (BATCH, LENGTH, HEADS, HEAD_DIM)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(count)]


def _gradients(
    torch: Any, attend: Callable[..., Any], leaves: list[Any], do: Any
) -> Callable[[], Any]:
    """Runs a forward pass, and returns its backward pass; the first three leaves are q, k, v."""
    return functools.partial(
        torch.autograd.grad, attend(*leaves[:3]), leaves, do, retain_graph=True
    )


def _show(found: Mapping[str, Spread], flops: float, peer: str) -> None:
    """Prints a line for each implementation: its rate, and the ratio to the rate of a peer."""
    for name, spread in found.items():
        ratio, rate = found[peer].median / spread.median, flops / spread.median * 1e-12
        print(
            f"  {rate:6.1f} TFLOP/s {ratio:6.3f} of {peer}  {name:24s} {spread.text('us', 1, 1e6)}"
        )
    sys.stdout.flush()


def write(folder: Path, targets: Sequence[str], *, gradients: bool) -> None:
    """Compiles what the benchmark asks for."""
    torch: Any = importlib.import_module("torch")
    keep = Collector(make_folder(folder))
    shape = (BATCH, LENGTH, HEADS, HEAD_DIM)
    q, k, v, do = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(4))
    for row, target in itertools.product((*ROWS, LEARNED) if gradients else ROWS, targets):
        read = torch.from_numpy(row.read())
        with recording(keep), launching_on(IdleDevice(target)):
            if not gradients:
                row.ours(read, q, k, v)
                continue
            leaves = [x.requires_grad_() for x in (q, k, v, *([read] if row.learned else []))]
            _gradients(torch, functools.partial(row.ours, read), leaves, do)()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gradients", action="store_true", help="the backward pass, not the forward"
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument("--target", action="append", help="chip to compile for (default: sm_90a)")
    parser.add_argument("--seconds", type=float, default=0.5, help="that a reading lasts")
    parser.add_argument("--rounds", type=int, default=3, help="readings that count")
    given = parser.parse_args()
    if given.write is not None:
        write(given.write, given.target or ["sm_90a"], gradients=given.gradients)
        return 0
    rows, measure = (ROWS, measured)
    if given.gradients:
        rows, measure = ((*ROWS, LEARNED), measured_gradients)
    agree = [measure(row, given.seconds, given.rounds) for row in rows]
    return int(not all(agree))


if __name__ == "__main__":
    sys.exit(main())
