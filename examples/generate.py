"""Text from a small Llama-shaped model with random weights: paged caches, requests that come and go.

    python examples/generate.py                           toy size, on a GPU or else on the emulator
    python examples/generate.py --size real --device cuda

    attn-mlir prebuild -o DIR examples/generate.py --size real --device sm_90a    where the compiler is
    ATTN_MLIR_BUNDLES=DIR python examples/generate.py --size real --device cuda   where the GPU is

A request has a prompt and a number of tokens that it wants. It waits for a row of the batch and for
pages; then its prompt is read at once (prefill), next to those of other newcomers, and it joins the
batch, of which every step (decoding) makes one token more, on a GPU as one replayed CUDA graph.
When it has its tokens, row and pages go to others. Weights and caches are bf16.

At the end plain torch reads what was written, each request by itself and without a cache, in
float32 and in bf16. How far its logits in bf16 are from those in float32 is the yardstick: those of
a chosen token may be twice as far off, as any kernel of this package may. So a token has to be the
likeliest in float32, but where the two likeliest are closer than such errors are. Exit code: 0 if
all are, else 1.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch is installed where this runs, and not where it is checked.

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import attn_mlir as am
from attn_mlir.runtime.devices.base import Device
from attn_mlir.runtime.devices.idle import IdleDevice

CHIPS = ("sm_90a", "sm_100a")
THETA = 1e4  # base of the rotary angles (Su et al., RoFormer)
PEAK = 2.0  # standard deviation of the scores: some keys count much more than others
# (number of the layer, q, k, v [n, heads, head_dim]) -> O
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Size:
    """Sizes of a model and of its workload.

    Attributes:
      layers, width, heads, kv_heads, head_dim, hidden, vocabulary: of the model; `hidden` counts
        the columns between the two products of the gated half of a layer.
      page: tokens of a page of the cache.
      rows: requests that are in the batch at once.
      requests: how many there are in all; a new one comes every `pause` steps.
      prompts: the fewest and the most tokens of a prompt.
      wanted: the fewest and the most tokens that a request wants.
      seed: of the weights and of the requests.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    page: int
    rows: int
    requests: int
    pause: int
    prompts: tuple[int, int]
    wanted: tuple[int, int]
    seed: int = 0

    @property
    def columns(self) -> int:
        """Pages of the longest request."""
        return -(-(self.prompts[1] + self.wanted[1]) // self.page)

    @property
    def pages(self) -> int:
        """Pages of the whole cache: three quarters of what a batch of the longest requests takes."""
        return max(self.rows * self.columns * 3 // 4, self.columns)


SIZES = {
    # With this seed the two likeliest tokens are never closer than 0.12 on a CPU, above any error in bf16.
    "toy": Size(2, 128, 4, 2, 64, 256, 256, 16, 3, 5, 2, (3, 40), (2, 7), seed=1126),
    "real": Size(8, 4096, 32, 8, 128, 14336, 32000, 16, 32, 96, 4, (32, 2048), (32, 256)),
}


@dataclass(eq=False)
class Request:
    """A prompt and the tokens that follow it.

    Attributes:
      prompt: its tokens, as numbers of the vocabulary.
      wanted: how many are still to follow.
      arrives: the step at which it comes.
      tokens: those that followed the prompt so far.
      logits: of these tokens.
      row: of the batch, once it has one; -1 before.
      pages: of the caches, while it has some.
    """

    prompt: list[int]
    wanted: int
    arrives: int
    tokens: list[int] = field(default_factory=list[int])
    logits: list[float] = field(default_factory=list[float])
    row: int = -1
    pages: list[int] = field(default_factory=list[int])


class Model:
    """Layers of attention with grouped heads and rotary positions, and of gated products.

    Args:
      place: where the weights lie, as torch has it.
    """

    def __init__(self, size: Size, place: str):
        self.size, self.place = size, place
        draws = torch.Generator(place).manual_seed(size.seed)

        def drawn(rows: int, columns: int, scale: float = 1.0) -> Tensor:
            weights = torch.randn(rows, columns, generator=draws, device=place)
            return (weights * scale * rows**-0.5).to(torch.bfloat16)

        width, inner = size.width, size.heads * size.head_dim
        shared = size.kv_heads * size.head_dim
        self.layers = [
            {
                "q": drawn(width, inner, PEAK), "k": drawn(width, shared), "v": drawn(width, shared),
                "o": drawn(inner, width), "gate": drawn(width, size.hidden),
                "up": drawn(width, size.hidden), "down": drawn(size.hidden, width),
            }
            for _ in range(size.layers)
        ]  # fmt: skip
        self.embedding = drawn(size.vocabulary, width, size.vocabulary**0.5)
        self.head = drawn(width, size.vocabulary)
        rates = THETA ** -torch.linspace(0, 1, size.head_dim // 2 + 1, device=place)[:-1]
        angles = torch.arange(size.columns * size.page, device=place)[:, None] * rates
        self.cos, self.sin = angles.cos(), angles.sin()

    def to(self, dtype: torch.dtype) -> Model:
        """The same model, computed in another type."""
        made = copy(self)
        made.layers = [{n: w.to(dtype) for n, w in layer.items()} for layer in self.layers]
        made.embedding, made.head = self.embedding.to(dtype), self.head.to(dtype)
        return made

    def logits(self, tokens: Tensor, attend: Attend, which: Tensor | slice) -> Tensor:
        """In float32, [those asked for, vocabulary].

        Args:
          tokens: [n].
          attend: attention of one layer.
          which: of the tokens.
        """
        x, width = self.embedding[tokens], (self.size.width,)
        for number, w in enumerate(self.layers):
            y = F.rms_norm(x, width)
            q, k, v = ((y @ w[n]).view(len(y), -1, self.size.head_dim) for n in "qkv")
            x = x + attend(number, q, k, v).flatten(1) @ w["o"]
            y = F.rms_norm(x, width)
            x = x + (F.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return (F.rms_norm(x[which], width) @ self.head).float()

    def rotated(self, x: Tensor, positions: Tensor | slice) -> Tensor:
        """[n, heads, head_dim] by its positions: the pairs are the columns of two halves."""
        cos, sin = (angle[positions][:, None] for angle in (self.cos, self.sin))
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Server:
    """A batch of requests, their caches in pages, and steps that make tokens of all of them.

    Args:
      device: of the kernels.
    """

    def __init__(self, model: Model, device: str | Device):
        size, place = model.size, model.place
        self.model, self.device = model, device
        pool = (size.pages, size.page, size.kv_heads, size.head_dim)
        self.pools = [
            [torch.empty(pool, dtype=torch.bfloat16, device=place) for _ in "kv"]
            for _ in range(size.layers)
        ]

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=place)

        self.table = zeros(size.rows, size.columns)
        self.lengths = zeros(size.rows)
        self.active = zeros(size.rows)  # 1 for rows that a request has
        self.tokens, self.best = zeros(size.rows, dtype=torch.int64), zeros(size.rows).float()
        self.numbers = torch.arange(size.rows, dtype=torch.int32, device=place)
        self.free_rows, self.free_pages = list(range(size.rows)), list(range(size.pages))
        self.spent: dict[str, tuple[int, float]]
        self.spent = {"prefill": (0, 0.0), "decode": (0, 0.0)}  # tokens and seconds
        self.decode = self._decode
        if place == "cuda":
            self._decode()  # while no row has a request: loads the kernels
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._decode()
            self.decode = graph.replay

    def run(self, requests: Sequence[Request]) -> None:
        """Makes the tokens of all requests."""
        waiting, running, step = list(requests), list[Request](), 0
        made: list[tuple[list[Request], Any, Any]] = []  # members of a step, tokens, logits

        def noted(members: list[Request]) -> list[Request]:
            """Those that want more, once their newest tokens, still on the device, are noted."""
            rows = self._on_device([request.row for request in members])
            made.append((members, self.tokens[rows], self.best[rows]))
            for request in members:
                request.wanted -= 1
                if not request.wanted:
                    self._dismiss(request)
            return [request for request in members if request.wanted]

        while waiting or running:
            newcomers: list[Request] = []
            while waiting and waiting[0].arrives <= step and self._admits(waiting[0]):
                newcomers.append(waiting.pop(0))
            if newcomers:
                prompts = sum(len(request.prompt) for request in newcomers)
                self._timed("prefill", prompts, partial(self._prefill, newcomers))
                running += noted(newcomers)
            if running:
                self._timed("decode", len(running), self.decode)
                running = noted(running)
            step += 1
        for members, tokens, logits in made:
            for request, token, logit in zip(
                members, tokens.tolist(), logits.tolist(), strict=True
            ):
                request.tokens.append(token)
                request.logits.append(logit)

    def _admits(self, request: Request) -> bool:
        """Gives a request a row and the pages that it will need, if there are any."""
        count = -(-(len(request.prompt) + request.wanted) // self.model.size.page)
        if not self.free_rows or len(self.free_pages) < count:
            return False
        request.row = self.free_rows.pop()
        request.pages = [self.free_pages.pop() for _ in range(count)]
        pages = torch.tensor(request.pages, dtype=torch.int32, device=self.model.place)
        self.table[request.row, :count] = pages
        return True

    def _dismiss(self, request: Request) -> None:
        """Frees the row and the pages of a request."""
        self.active[request.row] = self.lengths[request.row] = 0
        self.free_rows.append(request.row)
        self.free_pages += request.pages

    def _prefill(self, newcomers: Sequence[Request]) -> None:
        """Reads prompts of any lengths, one behind the other, and chooses the token behind each."""
        rows = self._on_device([request.row for request in newcomers])
        lengths = [len(request.prompt) for request in newcomers]
        ends = self._on_device([0, *(sum(lengths[: i + 1]) for i in range(len(lengths)))])
        used = self._on_device(lengths)
        positions = self._on_device([p for length in lengths for p in range(length)])
        sequences = self._on_device([b for b, length in enumerate(lengths) for _ in range(length)])
        tokens = self._on_device([token for request in newcomers for token in request.prompt])
        cache = self._cache(self.table[rows], used, positions, sequences)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return am.attention(
                self.model.rotated(q, positions),
                cache(layer, k, v),
                mask=am.causal(),
                cu_seqlens_q=ends,
                max_seqlen_q=self.model.size.prompts[1],  # a bound: one kernel for all lengths
                device=self.device,
            )

        chosen = self.model.logits(tokens, attend, ends[1:] - 1).max(-1)
        self.tokens[rows], self.best[rows] = chosen.indices, chosen.values
        self.lengths[rows], self.active[rows] = used, 1

    def _decode(self) -> None:
        """Chooses the next token of each request. Nothing here depends on what the tensors hold."""
        sequences = torch.where(self.active > 0, self.numbers, -1)
        cache = self._cache(self.table, self.lengths + self.active, self.lengths, sequences)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = self.model.rotated(q, self.lengths)[:, None]
            return am.attention(q, cache(layer, k, v), num_splits=0, device=self.device)[:, 0]

        chosen = self.model.logits(self.tokens, attend, slice(None)).max(-1)
        self.tokens.copy_(chosen.indices)
        self.best.copy_(chosen.values)
        self.lengths += self.active

    def _cache(
        self, table: Tensor, used: Tensor, positions: Tensor, sequences: Tensor
    ) -> Callable[[int, Tensor, Tensor], am.PagedKV]:
        """A function that writes the new keys, rotated, and values of a layer, and gives its cache.

        Args:
          table: [sequences, columns].
          used: [sequences], tokens with the new ones.
          positions, sequences: [n], of the new tokens; those of sequence -1 go nowhere.
        """

        def cache(layer: int, k: Tensor, v: Tensor) -> am.PagedKV:
            k_pages, v_pages = self.pools[layer]
            found = am.PagedKV(k_pages, v_pages, table, used)
            rotary = (self.model.cos, self.model.sin, False)
            am.append_kv(
                found, k, v, positions, batch_indices=sequences, rotary=rotary, device=self.device
            )
            return found

        return cache

    def _on_device(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.model.place)

    def _timed(self, phase: str, count: int, work: Callable[[], None]) -> None:
        """Counts tokens and the time that they take."""
        start = time.perf_counter()
        work()
        if self.model.place == "cuda":
            torch.cuda.synchronize()
        tokens, seconds = self.spent[phase]
        self.spent[phase] = tokens + count, seconds + time.perf_counter() - start


def drawn_requests(size: Size) -> list[Request]:
    """Requests of random lengths and tokens."""
    draws = random.Random(size.seed)
    return [
        Request(
            [draws.randrange(size.vocabulary) for _ in range(draws.randint(*size.prompts))],
            draws.randint(*size.wanted),
            number * size.pause,
        )
        for number in range(size.requests)
    ]


def plain_logits(model: Model, request: Request) -> Tensor:
    """Logits of plain torch behind each token of a request, [wanted, vocabulary]."""
    tokens = torch.tensor(request.prompt + request.tokens[:-1], device=model.place)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        everywhere = slice(len(tokens))
        q, k = model.rotated(q, everywhere), model.rotated(k, everywhere)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o[0].transpose(0, 1)

    return model.logits(tokens, attend, slice(len(request.prompt) - 1, None))


def check(model: Model, requests: Sequence[Request]) -> bool:
    """Compares with plain torch and says how; whether all tokens are right."""
    wide = model.to(torch.float32)
    yardstick = error = margin = 0.0
    count = same = same_as_bf16 = bf16_same = 0
    for request in requests:
        truth, bf16 = plain_logits(wide, request), plain_logits(model, request)
        tokens = torch.tensor(request.tokens, device=model.place)
        own = truth.gather(1, tokens[:, None])[:, 0]
        found = torch.tensor(request.logits, device=model.place)
        yardstick = max(yardstick, (bf16 - truth).abs().max().item())
        error = max(error, (found - own).abs().max().item())
        margin = max(margin, (truth.max(-1).values - own).max().item())
        count += len(tokens)
        same += int((truth.argmax(-1) == tokens).sum())
        same_as_bf16 += int((bf16.argmax(-1) == tokens).sum())
        bf16_same += int((bf16.argmax(-1) == truth.argmax(-1)).sum())
    print(f"{same} of {count} tokens are those of plain torch in float32", end="")
    print(f", {same_as_bf16} those of plain torch in bf16; of its own {bf16_same} are")
    print(f"errors of logits: {error:.4f}, of plain torch in bf16 {yardstick:.4f}", end="")
    print(f"; the likeliest tokens that were not chosen are ahead by {margin:.4f} at most")
    return error <= 2 * yardstick and margin <= 4 * yardstick  # margin: an error on either side


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Generate tokens with a small random model, and compare them with plain torch."
    )
    parser.add_argument("--size", choices=SIZES, default="toy", help="of the model (default: toy)")
    parser.add_argument(
        "--device",
        choices=("cuda", "emulator", *CHIPS),
        default="cuda" if torch.cuda.is_available() else "emulator",
        help="where kernels run; a chip: nowhere, they are only asked for, as attn-mlir prebuild "
        "wants it (default: cuda where there is one, else emulator)",
    )
    args = parser.parse_args(arguments)
    size, device = SIZES[args.size], args.device
    if device in CHIPS:  # kernels know heads and head sizes of a model, not how wide it is
        small = {"layers": 1, "width": 64, "hidden": 64, "vocabulary": 64, "requests": 4}
        size, device = replace(size, **small), IdleDevice(device)
    model = Model(size, "cuda" if device == "cuda" else "cpu")
    with torch.no_grad():
        server = Server(model, device)
        if device == "cuda":
            server.run(drawn_requests(replace(size, requests=size.rows, wanted=(2, 2))))  # warms up
        server.spent = dict.fromkeys(server.spent, (0, 0.0))
        requests = drawn_requests(size)
        server.run(requests)
        print(f"{size.requests} requests, {size.rows} at once, on {args.device}")
        for phase, (count, seconds) in server.spent.items():
            print(f"{phase}: {count} tokens in {seconds:.3f} s, {count / seconds:.0f} per second")
        return 0 if isinstance(device, IdleDevice) or check(model, requests) else 1


if __name__ == "__main__":
    sys.exit(main())
