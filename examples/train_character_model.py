"""Trains a small language model of characters, with this package's attention and with PyTorch's.

    python examples/train_character_model.py                               toy sizes, on the emulator in about a minute
    python examples/train_character_model.py --size real --device cuda     a GPU; with the time of a step beside PyTorch's
    ... --deterministic                                                    with gradients that have the same bits every time

    attn-mlir prebuild -o DIR examples/train_character_model.py --size real --device sm_90a    where the compiler is
    ATTN_MLIR_BUNDLES=DIR python examples/train_character_model.py --size real --device cuda   where the GPU is

The text is drawn: sums such as 27+15=42. A model of them is trained three times, from the same weights and with the
same batches: with `attn_mlir.torch.scaled_dot_product_attention`, with PyTorch's in bf16, which is the yardstick, and
with PyTorch's in float32, which is the truth. Our losses may be twice as far from the truth as PyTorch's, on average.
Exit code: 0 if they are not farther, else 1.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch is installed where this runs, and not where it is checked.

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import attn_mlir.torch
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

CHIPS = ("sm_90a",)
CHARACTERS = "0123456789+=\n"
EXACT = 0.002  # of a loss, below which differences say nothing
WARM = 3  # steps whose time does not count

Attend = Callable[..., Tensor]  # of query, key and value, [batch, heads, sequence, head_dim]


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of its training.

    Attributes:
      layers, heads, head_dim: of the model, which is heads x head_dim wide.
      batch, length: characters of a step, [batch, length].
      steps: of the training.
      rate: of AdamW.
    """

    layers: int
    heads: int
    head_dim: int
    batch: int
    length: int
    steps: int
    rate: float


SIZES = {
    "toy": Size(2, 2, 32, 2, 32, 40, 3e-3),
    "real": Size(8, 16, 64, 8, 2048, 100, 5e-4),
}


class Layer(nn.Module):
    """Attention to the characters before, and two linear layers."""

    def __init__(self, size: Size, attend: Attend):
        super().__init__()
        width = size.heads * size.head_dim
        self.size, self.attend = size, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.size.heads, self.size.head_dim))
        query, key, value = (y.transpose(1, 2) for y in heads.unbind(2))
        o = self.attend(query, key, value, is_causal=True)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.linear(self.norms[1](x))


class Model(nn.Module):
    """Predicts the next character of [batch, length], as logits [batch, length, characters]."""

    def __init__(self, size: Size, attend: Attend):
        super().__init__()
        width = size.heads * size.head_dim
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.positions = nn.Embedding(size.length, width)
        self.layers = nn.Sequential(*(Layer(size, attend) for _ in range(size.layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS)))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.last(self.layers(self.characters(x) + self.positions(places)))


def sums(count: int) -> Tensor:
    """The numbers of that many characters of text."""
    draw, text = random.Random(0), ""
    while len(text) < count:
        a, b = draw.randrange(10), draw.randrange(10)
        text += f"{a}+{b}={a + b}\n"
    return torch.tensor([CHARACTERS.index(x) for x in text[:count]])


def in_float32(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """PyTorch's attention, of operands as they are, with nothing in it rounded to bf16."""
    q, k, v = (x.float() for x in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        return functional.scaled_dot_product_attention(q, k, v, **options).to(query.dtype)


def trained(what: str, size: Size, attend: Attend, text: Tensor) -> tuple[list[float], float]:
    """The loss of each step, and the median of the seconds that a step takes."""
    torch.manual_seed(0)
    place = text.device.type
    with torch.device(place):
        model = Model(size, attend)
    optimiser = torch.optim.AdamW(model.parameters(), lr=size.rate)
    losses: list[float] = []
    seconds: list[float] = []
    starts = torch.Generator().manual_seed(1)
    for step in range(size.steps):
        begin = time.perf_counter()
        first = torch.randint(len(text) - size.length, (size.batch, 1), generator=starts)
        places = (first + torch.arange(size.length + 1)).to(place)
        rows = text[places]
        with torch.autocast(place, torch.bfloat16):
            logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())  # which waits for the GPU
        seconds.append(time.perf_counter() - begin)
        if step % max(size.steps // 8, 1) == 0 or step == size.steps - 1:
            print(f"{what:18} step {step:3}: loss {losses[-1]:.4f}", flush=True)
    return losses, statistics.median(seconds[WARM:] or seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--steps", type=int, help="of the training (default: those of the size)")
    parser.add_argument(
        "--device",
        choices=("cuda", "emulator", *CHIPS),
        default="cuda" if torch.cuda.is_available() else "emulator",
        help="a chip: its kernels are asked for, and nothing runs (default: %(default)s)",
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="ask PyTorch for the same bits every time; ours is trained twice, with equal losses",
    )
    args = parser.parse_args(arguments)
    asks, size = args.device in CHIPS, SIZES[args.size]
    if asks:  # kernels know heads, head sizes, batch and lengths, not how deep a model is
        size = dataclasses.replace(size, layers=1, steps=1)
    if args.steps is not None:
        size = dataclasses.replace(size, steps=args.steps)
    text = sums(100 * size.length).to("cuda" if args.device == "cuda" else "cpu")
    ours = attn_mlir.torch.scaled_dot_product_attention
    if asks:
        with launching_on(IdleDevice(args.device)):
            for form in (False, True):
                torch.use_deterministic_algorithms(form, warn_only=True)
                trained("attn_mlir", size, ours, text)
        return 0
    torch.use_deterministic_algorithms(args.deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # that would be timed as well
    found, step = trained("attn_mlir", size, ours, text)
    if args.deterministic and trained("attn_mlir again", size, ours, text)[0] != found:
        print("the same training gives other losses")
        return 1
    torchs = functional.scaled_dot_product_attention
    yardstick, torch_step = trained("PyTorch in bf16", size, torchs, text)
    truth, _ = trained("PyTorch in float32", size, in_float32, text)

    def off(losses: list[float]) -> float:
        return statistics.fmean(abs(x - y) for x, y in zip(losses, truth, strict=True))

    allowed = 2 * off(yardstick) + EXACT
    print(
        f"loss from {truth[0]:.3f} to {truth[-1]:.3f}; on average ours is off by {off(found):.5f}, "
        f"PyTorch's by {off(yardstick):.5f}, {allowed:.5f} is allowed"
    )
    print(f"a step takes {1e3 * step:.1f} ms, with PyTorch's attention {1e3 * torch_step:.1f} ms")
    return 0 if off(found) <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
