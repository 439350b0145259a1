"""A model of the `transformers` package with random weights, its attention swapped for this package's.

    python examples/transformer.py                           toy sizes, on a GPU or else on the emulator
    python examples/transformer.py --size real --device cuda

    attn-mlir prebuild -o DIR examples/transformer.py --size real --device sm_90a    where the compiler is
    ATTN_MLIR_BUNDLES=DIR python examples/transformer.py --size real --device cuda   where the GPU is

`attn_mlir.transformers.register` is all that a program needs: after it `attn_implementation="attn_mlir"`
is a choice of every model that asks the package for its attention. An option that kernels lack is refused by name.

Logits are compared for a padded batch of prompts and for the tokens behind them, which see the cache,
eagerly and under `torch.compile` as one graph. The truth is the package's own attention in float32, the
yardstick how far that is off in bf16: ours may be twice as far off. Exit code: 0 if it is not, else 1.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch and transformers are installed where this runs, and not where it is checked.

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from attn_mlir import transformers as attn_mlir_transformers
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

NAME = attn_mlir_transformers.NAME
CHIPS = ("sm_90a", "sm_100a")


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of the prompts.

    Attributes:
      layers, width, heads, kv_heads, head_dim, hidden, vocabulary: of the model.
      window: keys that a query sees, itself among them.
      lengths: of the prompts, padded on the left to the longest.
      new: tokens behind each prompt.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    window: int
    lengths: tuple[int, ...]
    new: int


SIZES = {
    "toy": Size(1, 64, 2, 1, 64, 64, 97, 4, (5, 11), 2),
    "real": Size(8, 4096, 32, 8, 128, 14336, 32000, 1024, (4096, 3001, 1234, 77), 8),
}


def made(size: Size, place: str) -> Any:
    """A model with random weights in bf16."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        sliding_window=size.window,
        max_position_embeddings=max(size.lengths) + size.new,
        initializer_range=size.width**-0.5,
    )
    with torch.device(place):
        model: Any = MistralForCausalLM(config)
    return model.to(torch.bfloat16).eval()


@torch.inference_mode()
def logits(model: Any, call: Any, tokens: Tensor, mask: Tensor, new: int) -> Tensor:
    """Logits of the prompts at once and then of one token after the other, [tokens that are no padding, vocabulary].

    Args:
      model: whose weights they are.
      call: the model, or what a compiler made of it.
      tokens, mask: [batch, longest + new]; the mask is 0 where there is padding.
      new: tokens behind the prompts.
    """
    first = tokens.shape[1] - new
    out = call(input_ids=tokens[:, :first], attention_mask=mask[:, :first], use_cache=True)
    found = [out.logits.float()]
    for end in range(first + 1, first + new + 1):
        out = call(
            input_ids=tokens[:, end - 1 : end],
            attention_mask=mask[:, :end],
            past_key_values=out.past_key_values,
            use_cache=True,
        )
        found.append(out.logits.float())
    return torch.cat(found, 1)[mask.bool()]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument(
        "--device",
        choices=("cuda", "emulator", *CHIPS),
        default="cuda" if torch.cuda.is_available() else "emulator",
        help="a chip: its kernels are asked for, and nothing runs (default: %(default)s)",
    )
    args = parser.parse_args(arguments)
    size, place = SIZES[args.size], "cuda" if args.device == "cuda" else "cpu"
    asks = args.device in CHIPS
    if asks:  # kernels know heads and head sizes of a model, not how wide, deep or long it is
        size = Size(**{**vars(size), "layers": 1, "width": 64, "hidden": 64, "vocabulary": 97})
    attn_mlir_transformers.register()
    model = made(size, place)
    longest = max(size.lengths)
    tokens = torch.randint(size.vocabulary, (len(size.lengths), longest + size.new), device=place)
    mask = torch.ones_like(tokens)
    for row, length in zip(mask, size.lengths, strict=True):
        row[: longest - length] = 0

    def timed(what: str, call: Any) -> Tensor:
        begin = time.perf_counter()
        found = logits(model, call, tokens, mask, size.new)
        seconds = time.perf_counter() - begin
        print(f"{what}: {len(found)} tokens in {seconds:.2f} s", flush=True)
        return found

    backend = "inductor" if place == "cuda" else "eager"
    with launching_on(IdleDevice(args.device)) if asks else contextlib.nullcontext():
        model.set_attn_implementation(NAME)
        compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
        ours = {
            "eager": timed("ours", model),
            "compiled": timed(f"ours, compiled by {backend}", compiled),
        }
    if asks:
        return 0
    model.set_attn_implementation("eager")
    yardstick = timed("eager in bf16", model)
    truth = timed("eager in float32", model.float())
    allowed = 2 * (yardstick - truth).abs().max().item()
    print(f"largest logit {truth.abs().max().item():.3f}; errors up to {allowed:.5f} are allowed")
    errors = {name: (found - truth).abs().max().item() for name, found in ours.items()}
    print("; ".join(f"{name}: largest error {error:.5f}" for name, error in errors.items()))
    return 0 if all(error <= allowed for error in errors.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
