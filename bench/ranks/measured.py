"""Measured times of attention over several GPUs, with which the models are compared.

All times are those of H200s, bf16, batch 1, head size 128, 32 query heads, in milliseconds of the
slowest rank. Prototypes were measured on 27 November 2026 (torch 2.11, NCCL 2.28.9, cuDNN 9.19,
NVLS off) on 2 and 4 GPUs, and as 4 and 8 virtual ranks, where each of two GPUs did the work and the
transfers of one rank. The library was measured by `bench/distributed.py` on 28 November 2026
(docs/lab/performance.md, several GPUs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A measured cell.

    Attributes:
      run: `prototype`, `virtual` or `library`.
      software: the attention kernels, `cuDNN` or `ours`.
      scheme: a name of `attn_mlir.parallel.SCHEMES`; `one`: one GPU; `nccl`: the best scheme over
        NCCL.
      ranks: number of ranks.
      length: tokens of the whole sequence.
      milliseconds: time of the slowest rank.
      is_training: whether the backward pass is included.
    """

    run: str
    software: str
    scheme: str
    ranks: int
    length: int
    kv_heads: int
    is_causal: bool
    milliseconds: float
    is_training: bool = False

    @property
    def title(self) -> str:
        mask = "causal" if self.is_causal else "full"
        passes = ", both passes" if self.is_training else ""
        return f"{self.length // 1024}k {mask}, {self.kv_heads} KV heads{passes}"


# ranks, length in units of 1,024 tokens, KV heads, mask; then milliseconds by column, - for none
PROTOTYPE_COLUMNS = (
    ("cuDNN", "one"), ("ours", "one"), ("cuDNN", "ring-nccl"), ("cuDNN", "gather"),
    ("cuDNN", "ulysses"), ("cuDNN", "ring-pull"), ("ours", "nccl"), ("ours", "ring-nccl"),
    ("ours", "ulysses"), ("ours", "ring-pull"),
)  # fmt: skip
PROTOTYPE = """
2 8 8 causal      0.898 0.724 0.559 0.597 0.784 0.512 0.565 - - 0.499
2 32 8 causal     13.3 11.2 6.86 6.97 7.73 6.66 6.15 - - 5.73
2 128 8 causal    251 199 115 115 127 112 99.5 - - 97.1
2 256 8 causal    1113 811 485 476 554 - 403 - - -
2 8 8 full        1.62 1.47 0.907 0.994 1.11 0.856 0.871 - - 0.852
2 32 8 full       28.2 24.4 13.4 13.2 14.0 12.8 11.6 - - 11.3
2 128 8 full      480 403 228 231 235 227 200 - - 196
2 8 32 causal     0.912 0.768 0.790 0.802 0.913 0.518 0.731 - - 0.487
2 32 32 causal    13.6 12.0 7.66 7.80 8.27 6.70 6.95 - - 5.85
2 128 32 causal   252 199 115 116 129 113 102 - - 99.1
4 32 8 causal     13.5 11.2 4.10 3.77 4.13 3.71 - 3.75 3.59 3.34
4 32 8 full       27.5 24.7 7.17 6.91 7.21 6.84 - 6.60 6.66 6.26
4 32 32 causal    14.0 11.9 6.26 4.70 4.46 3.70 - 5.92 3.97 3.56
4 32 32 full      28.3 24.2 9.38 7.86 7.62 6.92 - 8.66 6.95 6.62
4 128 8 causal    251 200 58.5 58.3 64.1 57.3 - 50.9 50.9 49.1
4 128 8 full      478 406 117.4 116.5 117.3 115.8 - 100.1 101.0 101.4
4 128 32 causal   253 201 62.3 60.4 65.5 57.2 - 52.7 51.7 49.9
4 128 32 full     482 408 123.1 120.4 119.5 116.3 - 104.2 104.4 102.9
"""
VIRTUAL = """
4 32 32 causal    - - 4.89 4.64 4.43 3.58 3.95 - - 3.29
8 8 8 full        - - 0.545 0.349 0.362 0.349 0.406 - - 0.431
8 32 8 causal     - - 2.36 2.18 2.24 2.04 1.86 - - 1.97
8 32 32 causal    - - 3.33 3.21 2.41 2.10 2.18 - - 2.03
8 128 32 causal   - - 32.7 31.8 32.3 28.1 24.4 - - 25.4
"""
BOTH_PASSES_COLUMNS = (("cuDNN", "one"), ("cuDNN", "ring-nccl"), ("cuDNN", "ulysses"))
BOTH_PASSES = """
2 32 8 causal     55.1 28.7 28.7
2 32 8 full       109 55.4 56.4
2 32 32 causal    55.6 31.8 30.5
2 128 8 causal    921 450 466
2 128 8 full      1781 895 896
4 32 8 causal     55.4 15.4 14.3
4 32 8 full       110 29.6 28.5
4 32 32 causal    56.3 20.0 15.2
4 32 32 full      110 32.9 28.7
"""
LIBRARY_COLUMNS = (
    ("ours", "one"), ("ours", "ring-pull"), ("ours", "ring-nccl"), ("ours", "gather"),
    ("ours", "ulysses"),
)  # fmt: skip
# One rank's time is twice the limit of the table. Ulysses waited for the host, which took 17 ms.
LIBRARY = """
2 8 8 causal      0.726 0.518 0.607 0.703 -
2 8 8 full        1.462 0.977 0.912 0.976 -
2 8 32 causal     0.762 0.618 0.799 0.847 -
2 8 32 full       1.472 1.023 1.152 1.152 -
2 32 8 causal     11.078 6.064 6.392 6.377 7.767
2 32 8 full       22.554 11.784 12.024 11.571 13.353
2 32 32 causal    11.284 6.408 7.160 7.270 8.502
2 32 32 full      22.254 12.088 12.523 12.451 14.348
"""
LIBRARY_BOTH_PASSES_COLUMNS = (
    ("ours", "one"), ("ours", "ring-pull"), ("ours", "gather"), ("ours", "ulysses"),
)  # fmt: skip
LIBRARY_BOTH_PASSES = """
2 32 8 causal     51.2 31.9 32.6 29.8
"""

TABLES = (
    ("prototype", PROTOTYPE, PROTOTYPE_COLUMNS, False),
    ("virtual", VIRTUAL, PROTOTYPE_COLUMNS, False),
    ("prototype", BOTH_PASSES, BOTH_PASSES_COLUMNS, True),
    ("library", LIBRARY, LIBRARY_COLUMNS, False),
    ("library", LIBRARY_BOTH_PASSES, LIBRARY_BOTH_PASSES_COLUMNS, True),
)


def measured_cells() -> Iterator[Measured]:
    """All measured cells."""
    for run, text, columns, is_training in TABLES:
        for line in text.strip().splitlines():
            ranks, thousands, kv_heads, mask, *values = line.split()
            for (software, scheme), value in zip(columns, values, strict=True):
                if value != "-":
                    yield Measured(
                        run, software, scheme, 1 if scheme == "one" else int(ranks),
                        1024 * int(thousands), int(kv_heads), mask == "causal", float(value),
                        is_training,
                    )  # fmt: skip
