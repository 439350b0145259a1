"""The kernel that a benchmark compiles, and the options of the command line that name it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_mlir.runtime.file.bundle import Bundle


@dataclass(frozen=True)
class Problem:
    """One dense attention kernel; sizes in elements."""

    head_dim: int = 128
    dtype: str = "bf16"
    is_causal: bool = True
    heads: int = 16
    kv_heads: int = 4
    target: str = "sm_100a"

    @property
    def name(self) -> str:
        """Stem of the files that hold it: `d128_causal_bf16_h16k4`."""
        mask = "causal" if self.is_causal else "full"
        target = "" if self.target == "sm_100a" else f"_{self.target}"
        return f"d{self.head_dim}_{mask}_{self.dtype}_h{self.heads}k{self.kv_heads}{target}"

    @property
    def title(self) -> str:
        """For headings."""
        mask = "causal" if self.is_causal else "full"
        return (
            f"D={self.head_dim} {mask} {self.dtype}, {self.heads} heads on {self.kv_heads}, "
            f"{self.target}"
        )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Adds `--head-dim`, `--dtype`, `--mask`, `--heads`, `--kv-heads`, `--target`."""
        group = parser.add_argument_group("kernel")
        group.add_argument("--head-dim", type=int, default=128)
        group.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
        group.add_argument("--mask", choices=("causal", "full"), default="causal")
        group.add_argument("--heads", type=int, default=16)
        group.add_argument("--kv-heads", type=int, default=4)
        group.add_argument("--target", default="sm_100a")

    @staticmethod
    def of(args: argparse.Namespace) -> Problem:
        """The problem that the options of `add_options` name."""
        return Problem(
            args.head_dim, args.dtype, args.mask == "causal", args.heads, args.kv_heads, args.target
        )

    def options(self) -> list[str]:
        """The options that `of` would read back."""
        return [
            f"--head-dim={self.head_dim}",
            f"--dtype={self.dtype}",
            f"--mask={'causal' if self.is_causal else 'full'}",
            f"--heads={self.heads}",
            f"--kv-heads={self.kv_heads}",
            f"--target={self.target}",
        ]

    def compile(self, **options: Any) -> Bundle:
        """Our bundle, by the public interface (the compile cache applies).

        Args:
          options: further ones of `mha`.
        """
        import attn_mlir as am

        spec = am.mha(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            mask=am.causal() if self.is_causal else am.full(),
            **options,
        )
        return am.compile(spec, target=self.target)
