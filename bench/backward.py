"""Gradients of attention beside cuDNN and FlashAttention 2 through torch, on one GPU, in TFLOP/s.

    python bench/backward.py --write DIR                  where the compiler is
    ATTN_MLIR_BUNDLES=DIR python bench/backward.py        where the GPU is; needs torch
    ... --cell 128 causal 4096 --cell 192/128 full 4096 --results FILE

The cells of `bench/attention.py`: 16384 tokens in sequences of a length, 2048 // D heads, bf16, normal
values. The backward pass alone is timed, in turns, and the products of five are counted, over the pairs
that the mask shows: 2 (3 D + 2 Dv) for each pair and head. "same bits" adds nothing to memory;
heads that no other kernel takes have it in both rows. FlashAttention 2 is there for equal head sizes.
Gradients are compared with cuDNN's; exit code 1 if one is off by more than 2^-5 of the largest.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attn_mlir as am
from attn_mlir.bench.attention import LENGTHS, MASKS, TOKENS, WIDTH, Cell, clock
from attn_mlir.bench.measuring.stats import Spread
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

HEAD_DIMS = ("64", "128", "192/128", "256")
OURS: Mapping[str, bool] = {"ours": False, "ours, same bits": True}  # deterministic
CUDNN, FLASH = "cuDNN", "FlashAttention 2"
PEERS = {CUDNN: "CUDNN_ATTENTION", FLASH: "FLASH_ATTENTION"}
TOLERANCE = 2.0**-5  # of the largest gradient: both have weights of bf16, of unlike roundings


def cell_of(head_dims: str, mask: str, length: str | int) -> Cell:
    """The cell of a head size, or of two, of keys and of values, as `D/Dv`."""
    of_keys, _, of_values = head_dims.partition("/")
    return Cell(int(of_keys), int(of_values or of_keys), mask, int(length))


def flops(cell: Cell) -> float:
    """Operations of the five products of gradients, over the pairs that the mask shows."""
    forward = 2 * (cell.head_dim + cell.v_head_dim)
    return cell.flops * 2 * (3 * cell.head_dim + 2 * cell.v_head_dim) / forward


def ours(mask: am.Mask, given: Sequence[Any], *, deterministic: bool) -> am.Gradients:
    """Gradients, of q, k, v, O, its LSE and the gradient of O."""
    return am.attention_backward(*given, mask=mask, deterministic=deterministic)


def peer(torch: Any, backend: str, mask: str, given: Sequence[Any]) -> Callable[[], Any]:
    """The backward pass of a back end of torch, of a forward pass that is made here."""
    backends = importlib.import_module("torch.nn.attention")
    q, k, v, *_, do = (x.detach().transpose(1, 2) for x in given)
    operands = [x.requires_grad_() for x in (q, k, v)]
    with backends.sdpa_kernel(getattr(backends.SDPBackend, backend)):
        attend = torch.nn.functional.scaled_dot_product_attention
        o = attend(*operands, is_causal=mask == "causal")
    return functools.partial(torch.autograd.grad, o, operands, do, retain_graph=True)


def timed(
    torch: Any, calls: Mapping[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, Spread]:
    """Seconds per call, in turns; a reading lasts so long that clocks settle."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        counts[name] = max(1, round(seconds / (time.perf_counter() - begin)))
    for _, (name, call) in itertools.product(range(rounds), calls.items()):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(counts[name]):
            call()
        end.record()
        torch.cuda.synchronize()
        found[name].append(begin.elapsed_time(end) * 1e-3 / counts[name])
    return {name: Spread.of(readings) for name, readings in found.items()}


def row(torch: Any, cell: Cell, rounds: int, seconds: float) -> tuple[bool, dict[str, Any]]:
    """Prints the rates of a cell; whether gradients are those of cuDNN, and the rates."""
    mask = MASKS[cell.mask]()
    q, k, v = cell.operands(torch)
    o, lse = am.attention(q, k, v, mask=mask, return_lse=True)
    given = (q, k, v, o, lse, torch.randn_like(o))
    calls: dict[str, Callable[[], Any]] = {
        name: functools.partial(ours, mask, given, deterministic=same)
        for name, same in OURS.items()
    }
    calls |= {
        name: peer(torch, backend, cell.mask, given)
        for name, backend in PEERS.items()
        if name != FLASH or cell.head_dim == cell.v_head_dim
    }
    right = [x.transpose(1, 2).float() for x in calls[CUDNN]()]
    errors = {
        name: max(
            ((x.float() - y).abs().max() / y.abs().max()).item()
            for x, y in zip(calls[name]()[:3], right, strict=True)
        )
        for name in OURS
    }
    found = timed(torch, calls, rounds, seconds)
    said = clock()
    print(f"{cell.title} {cell.length}: {said}")
    rates = {name: flops(cell) / spread.median * 1e-12 for name, spread in found.items()}
    for name, spread in found.items():
        print(
            f"  {rates[name]:6.1f} TFLOP/s {rates[name] / rates[CUDNN]:6.3f} of cuDNN  {name:20s}"
            f" {spread.text('us', 1, 1e6)}"
            + (f"  off by {errors[name]:.4f}" if name in errors else "")
        )
    sys.stdout.flush()
    kept = {"title": cell.title, "length": cell.length, "rates": rates, "clock": said}
    return max(errors.values()) <= TOLERANCE, kept


def write(folder: Path, cells: Sequence[Cell]) -> None:
    """Compiles the kernels that the benchmark calls, for `sm_90a`."""
    import ml_dtypes
    import numpy as np

    keep = Collector(make_folder(folder))
    for cell in cells:
        shape = (cell.batch, cell.length, cell.heads)
        sizes = (cell.head_dim, cell.v_head_dim)
        x, v = (np.zeros((*shape, size), ml_dtypes.bfloat16) for size in sizes)
        lse = np.zeros((cell.batch, cell.heads, cell.length), np.float32)
        mask = MASKS[cell.mask]()
        with recording(keep), launching_on(IdleDevice("sm_90a")):
            am.attention(x, x, v, mask=mask, return_lse=True)
            for same in OURS.values():
                ours(mask, (x, x, v, v, lse, v), deterministic=same)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument(
        "--cell", nargs=3, action="append", metavar=("D", "MASK", "LENGTH"), default=[]
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="that a reading lasts")
    parser.add_argument("--rounds", type=int, default=3, help="readings that count")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what was found as JSON")
    args = parser.parse_args()
    each: Iterable[Any] = args.cell or itertools.product(HEAD_DIMS, MASKS, LENGTHS)
    cells = [cell_of(*x) for x in each]
    if args.write is not None:
        write(args.write, cells)
        return 0
    torch = importlib.import_module("torch")
    caption = (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: gradients in TFLOP/s; "
        f"{TOKENS} tokens, {WIDTH} // D heads, bf16"
    )
    print(caption)
    found = [row(torch, cell, args.rounds, args.seconds) for cell in cells]
    if args.results is not None:
        rows = [kept for _, kept in found]
        args.results.write_text(json.dumps({"caption": caption, "rows": rows}, indent=1))
    return int(not all(right for right, _ in found))


if __name__ == "__main__":
    sys.exit(main())
