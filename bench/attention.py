"""Attention of many queries beside cuDNN on one GPU, in TFLOP/s.

    python bench/attention.py --write DIR [--target sm_90a]       where the compiler is
    ATTN_MLIR_BUNDLES=DIR python bench/attention.py               where the GPU is; needs torch
    ATTN_MLIR_BUNDLES=DIR python bench/attention.py --cell 128 causal 4096 --tile-order single counter
    ... --flash-attention DIR     with --write: compiles its Hopper kernel (`.venv-peers`), else runs it
    python bench/attention.py --picture docs/attention_speed.svg --of FILE    of what --results FILE kept

16384 tokens in sequences of a length, 2048 // D heads, bf16, normal values; with `--dtype e4m3` or
e5m2 also these, rounded, beside our own kernel for bf16 (cuDNN has no such attention through torch).
All run in turns from
CUDA graphs; a reading lasts `--seconds`, so that clocks settle, and counts the products of the
pairs that the mask shows. A sample of rows is compared with float32 attention. Exit code: 0 when
all are right, 1 when one is not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attn_mlir as am
from attn_mlir.bench.measuring.graphs import recorded, replayed
from attn_mlir.bench.measuring.picture import picture
from attn_mlir.bench.peers.environment import record_fa4
from attn_mlir.bench.peers.fa4_launch import FlashAttention
from attn_mlir.bench.problems.problem import Problem
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

TOKENS, WIDTH = 16384, 2048  # of a batch, and of all heads of a token
HEAD_DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256))  # of Q and K, and of V
LENGTHS = (1024, 4096, 16384)
MASKS: Mapping[str, Callable[[], am.Mask]] = {"full": am.full, "causal": am.causal}
TOLERANCES = {"bf16": 2.0**-7, "e4m3": 2.0**-3, "e5m2": 2.0**-2}
"""The tolerance of O against float32 attention of the same operands, O being means of standard normal values: weights
of 8 bits are off by up to 2^-4 or 2^-3 of each, and a row of causal attention may have few."""
TORCH_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
SAMPLE = 64  # rows of the first and of the last head that are compared
CALLS = 4  # in a graph


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    head_dim: int
    v_head_dim: int
    mask: str
    length: int

    @property
    def title(self) -> str:
        """Head sizes and mask."""
        of_v = f"/{self.v_head_dim}" if self.v_head_dim != self.head_dim else ""
        return f"D={self.head_dim}{of_v} {self.mask}"

    @property
    def heads(self) -> int:
        """Heads of Q, K and V."""
        return WIDTH // self.head_dim

    @property
    def batch(self) -> int:
        """Sequences."""
        return TOKENS // self.length

    @property
    def flops(self) -> float:
        """Operations of both products, over the pairs that the mask shows."""
        pairs = self.length * self.length
        if self.mask == "causal":
            pairs = self.length * (self.length + 1) / 2
        return 2.0 * self.batch * self.heads * pairs * (self.head_dim + self.v_head_dim)

    def operands(self, torch: Any) -> tuple[Any, Any, Any]:
        """q, k and v [batch, length, heads, head size], drawn."""
        torch.manual_seed(self.length)
        sizes = (self.head_dim, self.head_dim, self.v_head_dim)
        shapes = ((self.batch, self.length, self.heads, size) for size in sizes)
        q, k, v = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes)
        return q, k, v


@dataclass(frozen=True)
class Variant:
    """A way of ours to compute it, of operands of a dtype; None leaves it to the defaults."""

    query_tiles: int | None = None
    tile_order: str | None = None
    dtype: str = "bf16"

    def __str__(self) -> str:
        tiles = [] if self.query_tiles is None else [f"{self.query_tiles} query tiles"]
        order = [] if self.tile_order is None else [self.tile_order]
        dtype = [] if self.dtype == "bf16" else [self.dtype]
        return ", ".join(["ours", *dtype, *tiles, *order])

    def __call__(self, mask: am.Mask, q: Any, k: Any, v: Any, *factor: Any) -> Any:
        """O; `factor` is that of all operands, where they have 8 bits."""
        names = ("q_descale", "k_descale", "v_descale")
        return am.attention(
            q,
            k,
            v,
            mask=mask,
            schedule="mha-registers",
            query_tiles=self.query_tiles,
            tile_order=self.tile_order,
            **(dict.fromkeys(names, factor[0]) if factor else {}),
        )

    def operands(self, torch: Any, drawn: Sequence[Any]) -> Sequence[Any]:
        """The operands of a call, of drawn ones."""
        if self.dtype == "bf16":
            return drawn
        dtype = getattr(torch, TORCH_DTYPES[self.dtype])
        return [*(x.to(dtype) for x in drawn), torch.ones(1, device="cuda")]


def cudnn(torch: Any, mask: str) -> Callable[..., Any]:
    """Attention by cuDNN, through torch."""
    functional = torch.nn.functional
    backends = importlib.import_module("torch.nn.attention")

    def call(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with backends.sdpa_kernel(backends.SDPBackend.CUDNN_ATTENTION):
            attend = functional.scaled_dot_product_attention
            return attend(q, k, v, is_causal=mask == "causal").transpose(1, 2)

    return call


def flash_attention(cell: Cell, folder: Path) -> dict[str, Callable[..., Any]]:
    """FlashAttention's Hopper kernel for a cell, by its name, if the folder has it."""
    stem = folder / f"{_problem(cell).name}.{cell.length}"
    if not stem.with_name(f"{stem.name}.cubin").exists():
        return {}
    return {"FlashAttention's": FlashAttention(stem)}


def _problem(cell: Cell) -> Problem:
    """A cell as the problem that the peers' environment compiles."""
    return Problem(cell.head_dim, "bf16", cell.mask == "causal", cell.heads, cell.heads, "sm_90a")


def write_flash_attention(folder: Path, cells: Sequence[Cell]) -> None:
    """Compiles FlashAttention's Hopper kernel and records its launches, for V as wide as K."""
    make_folder(folder)
    for cell in cells:
        if cell.head_dim != cell.v_head_dim:
            continue
        stem = record_fa4(_problem(cell), cell.batch, cell.length, print)
        for suffix in (".cubin", ".launch.json"):
            kept = folder / f"{stem.name}.{cell.length}{suffix}"
            kept.write_bytes(stem.with_name(stem.name + suffix).read_bytes())


def error(torch: Any, cell: Cell, operands: Sequence[Any], o: Any, dtype: str = "bf16") -> float:
    """The largest error of sampled rows, in units of what is allowed for operands of a dtype."""
    rows = torch.linspace(0, cell.length - 1, SAMPLE, device="cuda").long()
    keys = torch.arange(cell.length, device="cuda")
    worst = 0.0
    for b, head in {(0, 0), (cell.batch - 1, cell.heads - 1)}:
        q, k, v = (x[b, :, head].float() for x in operands[:3])
        scores = q[rows] @ k.T / cell.head_dim**0.5
        if cell.mask == "causal":
            scores = scores.masked_fill(keys > rows[:, None], float("-inf"))
        difference = (o[b, rows, head].float() - scores.softmax(-1) @ v).abs().max().item()
        worst = max(worst, difference / TOLERANCES[dtype])
    return worst


def clock() -> str:
    """The state of the GPU: clock, power, temperature."""
    query = "--query-gpu=clocks.sm,power.draw,temperature.gpu"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.splitlines()[0] if found.returncode == 0 else "clock unknown"


def row(
    torch: Any,
    cell: Cell,
    variants: Sequence[Variant],
    seconds: float,
    rounds: int,
    peers: Mapping[str, Callable[..., Any]],
) -> tuple[bool, dict[str, Any]]:
    """Measures and prints one cell; whether the sampled rows were right, and what was found.

    Args:
      peers: what runs beside ours and cuDNN's, by name.
    """
    drawn = cell.operands(torch)
    mask = MASKS[cell.mask]()
    others = {"cuDNN": cudnn(torch, cell.mask), **peers}
    calls: dict[str, Callable[..., Any]] = {str(v): functools.partial(v, mask) for v in variants}
    given = {str(v): v.operands(torch, drawn) for v in variants} | dict.fromkeys(others, drawn)
    dtypes = {str(v): v.dtype for v in variants} | dict.fromkeys(others, "bf16")
    calls |= others
    worst = {
        name: error(torch, cell, given[name], call(*given[name]), dtypes[name])
        for name, call in calls.items()
    }
    graphs = {name: recorded(call, [given[name]] * CALLS) for name, call in calls.items()}
    found = replayed(graphs, CALLS, rounds, seconds=seconds)
    said = clock()
    print(f"{cell.title} {cell.length}: {said}")
    rates = {name: cell.flops / spread.median * 1e-12 for name, spread in found.items()}
    for name, spread in found.items():
        rate = rates[name]
        ratio = found["cuDNN"].median / spread.median
        print(
            f"  {rate:6.1f} TFLOP/s {ratio:6.3f} of cuDNN  {name:40s} {spread.text('us', 1, 1e6)}"
            f"  error {worst[name]:.2f} of what is allowed"
        )
    sys.stdout.flush()
    kept = {"title": cell.title, "length": cell.length, "rates": rates, "clock": said}
    return max(worst[str(v)] for v in variants) <= 1, kept


def write(
    folder: Path, targets: Sequence[str], cells: Sequence[Cell], variants: Sequence[Variant]
) -> None:
    """Compiles the kernels that the benchmark calls."""
    import ml_dtypes
    import numpy as np

    keep = Collector(make_folder(folder))
    for cell, variant, target in itertools.product(cells, variants, targets):
        sizes = (cell.head_dim, cell.head_dim, cell.v_head_dim)
        shape = (cell.batch, cell.length, cell.heads)
        dtype = getattr(ml_dtypes, TORCH_DTYPES[variant.dtype])
        q, k, v = (np.zeros((*shape, size), dtype) for size in sizes)
        factor = [] if variant.dtype == "bf16" else [np.ones(1, np.float32)]
        with recording(keep), launching_on(IdleDevice(target)):
            variant(MASKS[cell.mask](), q, k, v, *factor)


def main() -> int:
    parser = argparse.ArgumentParser(description="Attention of many queries beside cuDNN.")
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument("--target", action="append", help="chip to compile for (default: sm_90a)")
    parser.add_argument(
        "--cell", nargs=3, action="append", metavar=("D", "MASK", "LENGTH"), default=[]
    )
    parser.add_argument(
        "--query-tiles", type=int, nargs="+", default=[0], help="of a work tile; 0 chooses"
    )
    parser.add_argument(
        "--tile-order", nargs="+", default=[""], help="of work tiles; '' chooses", metavar="ORDER"
    )
    parser.add_argument(
        "--dtype", nargs="+", default=["bf16"], choices=sorted(TORCH_DTYPES), help="of Q, K and V"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="that a reading lasts")
    parser.add_argument("--rounds", type=int, default=3, help="readings that count")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=LENGTHS,
        help="of sequences, where no cell is given",
    )
    parser.add_argument(
        "--flash-attention", type=Path, metavar="DIR", help="with FlashAttention's own kernel"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what was found as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw results as SVG")
    parser.add_argument("--of", type=Path, metavar="FILE", help="the results to draw")
    given = parser.parse_args()
    if given.picture is not None:
        kept = json.loads(given.of.read_text())
        given.picture.write_text(picture(kept["rows"], kept["caption"]))
        return 0
    values = dict(HEAD_DIMS)
    cells = [Cell(int(d), values[int(d)], mask, int(length)) for d, mask, length in given.cell]
    if not cells:
        each = [(*sizes, mask) for mask in MASKS for sizes in HEAD_DIMS]
        cells = [Cell(*head, length) for head in each for length in given.lengths]
    ways = itertools.product(given.dtype, given.query_tiles, given.tile_order)
    variants = [Variant(tiles or None, order or None, dtype) for dtype, tiles, order in ways]
    if given.write is not None:
        write(given.write, given.target or ["sm_90a"], cells, variants)
        if given.flash_attention is not None:
            write_flash_attention(given.flash_attention, cells)
        return 0
    torch = importlib.import_module("torch")
    caption = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: TFLOP/s of visible pairs over "
        f"the length of sequences; {TOKENS} tokens, {WIDTH} // D heads, {', '.join(given.dtype)}"
    )
    print(caption)
    place = given.flash_attention
    found = [
        row(
            torch,
            cell,
            variants,
            given.seconds,
            given.rounds,
            {} if place is None else flash_attention(cell, place),
        )
        for cell in cells
    ]
    if given.results is not None:
        rows = [kept for _, kept in found]
        given.results.write_text(json.dumps({"caption": caption, "rows": rows}, indent=1))
    return int(not all(right for right, _ in found))


if __name__ == "__main__":
    sys.exit(main())
