"""A product of `examples/products` beside torch.matmul, in one run on one GPU.

    python examples/products/registers.py product.attn          where the compiler is
    python bench/products.py product.attn [OTHER.attn ...]      where the GPU is; needs torch
    python bench/products.py product.attn --shape 4096 8192 1024 --rounds 200
    python bench/products.py product.attn --shape 300 200 96 --device emulator     checks, no times
    python bench/products.py product.attn --shape 16 8192 8192

Every element is compared with the product in float32. All then run in turns on drawn operands
(constant ones take less power and give higher clocks), `--queue` launches of one behind each other,
which may overlap, from a CUDA graph, since a launch from Python takes longer than a small product;
the clock is asked for at the end. TFLOP/s count 2 m n k, TB/s the bytes of b. A kernel that takes a `table` of rows gets the rows of b in a
drawn order, one that adds up `parts` gets as many as multiprocessors have room for; torch multiplies
b as it lies. Exit code: 0 when all are right, 1 when an element is not.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_mlir.bench.measuring.graphs import recorded, replayed
from attn_mlir.runtime.kernel import Kernel, load

UNIT_ROUNDOFF = 2.0**-8  # of bf16


def pytorch() -> Any:
    """PyTorch, which is not needed to say what this program takes."""
    return importlib.import_module("torch")


def worst(c: Any, a: Any, b: Any) -> float:
    """The largest error of c = a b, in units of what f32 sums and rounding to bf16 allow."""
    torch = pytorch()
    torch.backends.cuda.matmul.allow_tf32 = False
    wide_a, wide_b = a.float(), b.float()
    exact = wide_a @ wide_b
    sums = 2 * a.shape[1] * torch.finfo(torch.float32).eps * (wide_a.abs() @ wide_b.abs())
    allowed = UNIT_ROUNDOFF * (exact.abs() + sums) + sums
    error = (c.float() - exact).abs() / allowed
    return error.nan_to_num(nan=float("inf")).max().item()


def operands(m: int, n: int, k: int, device: str) -> tuple[Any, Any, Any]:
    """a [m, k] and b [k, n], drawn; c [m, n], poisoned."""
    torch = pytorch()
    source = torch.Generator(device).manual_seed(m + n + k)
    a, b = (
        torch.randn(shape, generator=source, device=device).bfloat16() for shape in ((m, k), (k, n))
    )
    return a, b, torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)


def further(kernel: Kernel, m: int, n: int, k: int, tile: Sequence[int], device: str) -> Any:
    """Arguments of a kernel besides a, b and c, by name: a table, a workspace and its counters.

    Args:
      tile: rows and columns of a tile of c, which has a row of counters.
    """
    torch = pytorch()
    down, across = (-(-extent // step) for extent, step in zip((m, n), tile, strict=True))
    processors = 1
    if device == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    found: dict[str, Any] = {}
    for tensor in kernel.bundle.manifest.tensors:
        if tensor.name == "table":
            source = torch.Generator(device).manual_seed(k)
            rows = torch.randperm(k, generator=source, device=device)
            found["table"] = rows.to(torch.int32)
        elif tensor.name == "sums":
            parts = max(1, processors // (down * across))
            found["sums"] = torch.full((parts, m, n), float("nan"), device=device)
        elif tensor.name == "arrived":
            shape = (down, across, tensor.shape[-1])
            found["arrived"] = torch.zeros(shape, dtype=torch.int32, device=device)
    return found


def clock() -> str:
    """The clock of the multiprocessors and the power as the driver tells them."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True).stdout.strip()
    except OSError:
        return "unknown"


def launched(kernel: Kernel, a: Any, b: Any, c: Any, others: Mapping[str, Any]) -> None:
    """One launch on torch's stream."""
    kernel(a, b, c=c, **others, stream=pytorch().cuda.current_stream(), device="cuda")


def report(kernels: Mapping[str, Kernel], given: argparse.Namespace) -> None:
    """Prints TFLOP/s of the kernels and of torch, and the ratios."""
    torch = pytorch()
    m, n, k = given.shape
    a, b, c = operands(m, n, k, "cuda")
    variants: dict[str, Callable[[], object]] = {
        name: functools.partial(
            launched, kernel, a, b, c, further(kernel, m, n, k, given.tile, "cuda")
        )
        for name, kernel in kernels.items()
    }
    variants["torch"] = functools.partial(torch.matmul, a, b, out=c)
    graphs = {name: recorded(call, [()] * given.queue) for name, call in variants.items()}
    found = replayed(graphs, given.queue, given.rounds)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {clock()} at the end")
    print(f"{m} x {n} x {k}, milliseconds: median (20 % .. 80 %) of {given.rounds} x {given.queue}")
    for name, spread in found.items():
        flops, moved = (x / spread.median * 1e-12 for x in (2 * m * n * k, 2 * n * k))
        ratio = found["torch"].median / spread.median
        print(
            f"{flops:8.1f} TFLOP/s {moved:6.2f} TB/s {ratio:7.3f} of torch  "
            f"{spread.text('', 4, 1e3)}  {name}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Products beside torch.matmul.")
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument(
        "--shape", nargs=3, type=int, default=[8192, 8192, 8192], metavar=("M", "N", "K")
    )
    parser.add_argument("--rounds", type=int, default=30, help="replays that count")
    parser.add_argument("--queue", type=int, default=20, help="launches in a graph")
    parser.add_argument(
        "--tile", nargs=2, type=int, default=[16, 128], metavar=("ROWS", "COLUMNS"),
        help="of c, in a kernel that adds up parts",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    given = parser.parse_args()
    kernels = {str(path): load(path) for path in given.bundles}
    m, n, k = given.shape
    is_right = True
    for name, kernel in kernels.items():
        place = "cuda" if given.device == "cuda" else "cpu"
        a, b, c = operands(m, n, k, place)
        others = further(kernel, m, n, k, given.tile, place)
        for _ in range(2):  # the second finds what the first has left in workspaces
            c.fill_(float("nan"))
            kernel(a, b, c=c, **others, device=given.device)
        error = worst(c, a, b[others["table"].long()] if "table" in others else b)
        is_right = is_right and error <= 1
        print(f"{name}: largest error {error:.2f} of what is allowed")
    if is_right and given.device == "cuda":
        report(kernels, given)
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
