"""A model of the `transformers` package on a sequence that lies on several ranks.

    torchrun --nproc-per-node 2 examples/long_context.py                                   on the emulator
    torchrun --nproc-per-node 2 examples/long_context.py --size real --scheme ulysses      on GPUs

Each rank has its shard of the tokens, with their positions; all layers but attention work on tokens by
themselves, and attention is `ring_attention`. The logits are compared with those that the package's own
attention gives for the whole sequence: in float32, and in bf16 as the yardstick, which ours may be twice
as far off as. Exit code: 0 if it is not, else 1.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch and transformers are installed where this runs, and not where it is checked.

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import attn_mlir as am
from attn_mlir import distributed as ad

transformers: Any = importlib.import_module("transformers")

NAME = "attn_mlir_ranks"
SCHEMES = ("ring", "gather", "ulysses")
SIZES: dict[str, dict[str, int]] = {
    "toy": {
        "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 64,
    },
    "real": {
        "num_hidden_layers": 8, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 32000,
    },
}  # fmt: skip
TOKENS = {"toy": 48, "real": 131072}
MOST_COMPARED = 4096  # tokens of a sequence whose logits are compared


def register(scheme: str) -> None:
    """Makes the scheme a choice of models, for causal attention without padding."""
    attend = getattr(ad, f"{scheme}_attention")

    def forward(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float = 0.0, **_: Any
    ) -> tuple[Any, None]:
        del module, mask
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        return attend(q, k, v, mask=am.causal(), scale=scaling), None

    transformers.AttentionInterface.register(NAME, forward)
    transformers.AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def model_of(size: str, tokens: int, attention: str, dtype: Any, device: Any) -> Any:
    """The model with the same random weights on all ranks."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES[size], max_position_embeddings=tokens, attn_implementation=attention
    )
    return transformers.LlamaForCausalLM(config).to(dtype=dtype, device=device).eval()


def sharded_logits(model: Any, words: Any) -> tuple[Any, float]:
    """This rank's logits [1, own tokens, vocabulary], and the seconds that they took."""
    rows = ad.positions(words.shape[1], device=words.device)
    own = {"input_ids": words[:, rows], "position_ids": rows[None], "use_cache": False}
    model(**own)  # compiles, and sets up memory
    dist.barrier()
    begin = time.perf_counter()
    logits = model(**own).logits
    dist.barrier()
    if words.is_cuda:
        torch.cuda.synchronize()
    return logits, time.perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--scheme", choices=SCHEMES, default="ring")
    parser.add_argument("--tokens", type=int, help="of the sequence")
    args = parser.parse_args(arguments)
    on_gpu = args.size == "real"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        return run(args.size, args.scheme, args.tokens or TOKENS[args.size], device)
    finally:
        dist.destroy_process_group()


@torch.no_grad()
def run(size: str, scheme: str, tokens: int, device: Any) -> int:
    """Prints the speed, and compares logits if the sequence is short enough; the exit code."""
    register(scheme)
    words = torch.randint(SIZES[size]["vocab_size"], (1, tokens), generator=torch.manual_seed(1))
    words = words.to(device)
    model = model_of(size, tokens, NAME, torch.bfloat16, device)
    own, seconds = sharded_logits(model, words)
    ranks, is_first = dist.get_world_size(), dist.get_rank() == 0
    if is_first:
        print(
            f"{tokens} tokens on {ranks} ranks, {scheme}: {tokens / seconds:.0f} tokens per second"
        )
    if tokens > MOST_COMPARED:
        return 0
    logits = ad.unshard(own).float()
    del model
    truth, plain = (
        model_of(size, tokens, "sdpa", dtype, device)(
            input_ids=words, use_cache=False
        ).logits.float()
        for dtype in (torch.float32, torch.bfloat16)
    )
    error, yardstick = ((x - truth).abs().max().item() for x in (logits, plain))
    if is_first:
        print(
            f"logits are off by {error:.4f}, those of the package's own attention by {yardstick:.4f}"
        )
    return int(not error <= 2 * yardstick)


if __name__ == "__main__":
    sys.exit(main())
