"""A transformer of the `diffusers` package with random weights, its attention swapped for this package's.

    python examples/image_transformer.py                           toy sizes, on a GPU or else on the emulator
    python examples/image_transformer.py --size real --device cuda

What it makes of noise is compared with the package's `native` backend. The truth is that in float32, the yardstick how
far it is off in bf16: ours may be twice as far off. Exit code: 0 if it is not, else 1.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportPrivateImportUsage=false
# PyTorch and diffusers are installed where this runs, and not where it is checked.

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from diffusers import FluxTransformer2DModel

import attn_mlir.diffusers

SIZES = {  # heads, head size, blocks of both kinds, patches of the image, tokens of text
    "toy": (2, 64, 1, 1, 64, 9),
    "real": (24, 128, 4, 8, 4096, 512),
}
TEXT_WIDTH = 64


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="toy")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default)
    args = parser.parse_args(arguments)
    heads, head_dim, joint, single, patches, tokens = SIZES[args.size]
    torch.manual_seed(0)
    with torch.device(args.device):
        model: Any = FluxTransformer2DModel(
            in_channels=16,
            num_layers=joint,
            num_single_layers=single,
            num_attention_heads=heads,
            attention_head_dim=head_dim,
            axes_dims_rope=(head_dim // 4, head_dim // 4, head_dim // 2),
            joint_attention_dim=TEXT_WIDTH,
            pooled_projection_dim=TEXT_WIDTH,
        )
        given = {
            "hidden_states": torch.randn(1, patches, 16),
            "encoder_hidden_states": torch.randn(1, tokens, TEXT_WIDTH),
            "pooled_projections": torch.randn(1, TEXT_WIDTH),
            "timestep": torch.ones(1),
            "img_ids": torch.randint(64, (patches, 3)).float(),
            "txt_ids": torch.zeros(tokens, 3),
        }

    def timed(what: str, dtype: torch.dtype) -> torch.Tensor:
        inputs = {name: x.to(dtype) for name, x in given.items()}
        begin = time.perf_counter()
        found = model.to(dtype)(**inputs).sample.float().cpu()
        print(f"{what}: {time.perf_counter() - begin:.2f} s", flush=True)
        return found

    truth = timed("native in float32", torch.float32)
    yardstick = timed("native in bf16", torch.bfloat16)
    attn_mlir.diffusers.register()
    model.set_attention_backend("attn_mlir")
    ours = timed("ours", torch.bfloat16)
    model.reset_attention_backend()
    attn_mlir.diffusers.unregister()
    allowed, error = 2 * (yardstick - truth).abs().max(), (ours - truth).abs().max()
    print(f"largest error {error:.5f}; up to {allowed:.5f} are allowed")
    return 0 if error <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
