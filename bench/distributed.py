"""Attention on several GPUs of one host: is it right, and how long does it take.

    python bench/distributed.py --write DIR                        where the compiler is
    ATTN_MLIR_BUNDLES=DIR torchrun --nproc-per-node 2 bench/distributed.py check forward backward decode
    ... --lengths 8192 32768 --results FILE

`check` compares each scheme, forward and backward, with the same call on one rank. The other parts time
cells of bf16, 32 heads of 128, batch 1: CUDA events behind a kernel that sleeps, so that the host is
ahead; median of the repetitions, of the slowest rank. "limit" is the time of one GPU over the ranks.
Exit code 1 if an error is too large.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

HEADS, DIM = 32, 128
KV_HEADS = (8, 32)
LENGTHS = (8192, 32768, 131072)
SCHEMES = ("ring", "gather", "ulysses")
MASKS: dict[str, Callable[[], am.Mask]] = {"causal": am.causal, "full": am.full}
MOST_BACKWARD = 32768  # tokens of cells whose gradients are timed
DECODE = ((8, 8), (64, 8), (8, 32))  # sequences, kv_heads
CACHED = 131072  # tokens of each sequence, on all ranks
SLEEP_CYCLES = 30_000_000  # about 17 ms, longer than the host takes for any cell
TOLERANCE = 2.0**-6  # of the largest value: both sides round weights and results to bf16


@dataclass(frozen=True)
class Cell:
    """A size that is timed.

    Attributes:
      length: tokens of the whole sequence.
    """

    length: int
    kv_heads: int
    mask: str

    @property
    def flops(self) -> float:
        """Operations of the forward pass: 4 D for each visible score."""
        return 4 * self.length**2 * HEADS * DIM * (0.5 if self.mask == "causal" else 1)


class Ranks:
    """This rank, and what all of them do together."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.dist: Any = importlib.import_module("torch.distributed")
        number = int(os.environ.get("LOCAL_RANK", "0"))
        self.device: Any = self.torch.device("cuda", number)
        self.torch.cuda.set_device(self.device)
        self.dist.init_process_group("nccl", device_id=self.device)
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks, of each value."""
        found = self.torch.tensor(values, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(found, self.dist.ReduceOp.MAX)
        return found.tolist()

    def milliseconds(self, call: Callable[[], Any], rounds: int) -> float:
        """The median time of a call on the device, of the slowest rank."""
        torch, token = self.torch, self.torch.zeros(1, device=self.device)
        call()
        torch.cuda.synchronize()
        found: list[float] = []
        for _ in range(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.dist.all_reduce(token)
            torch.cuda._sleep(SLEEP_CYCLES)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end))
        return statistics.median(self.largest(found))

    def host_milliseconds(self, call: Callable[[], Any]) -> float:
        """The time that the host takes to issue a call while the device is busy, of the slowest rank."""
        torch, found = self.torch, list[float]()
        for _ in range(5):
            torch.cuda.synchronize()
            torch.cuda._sleep(SLEEP_CYCLES)
            begin = time.perf_counter()
            call()
            found.append((time.perf_counter() - begin) * 1e3)
        torch.cuda.synchronize()
        return self.largest([statistics.median(found)])[0]

    def graph(self, call: Callable[[], Any], times: int = 1) -> Callable[[], Any]:
        """The replay of a call that is recorded so many times."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                call()
        return graph.replay

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


def normal(ranks: Ranks, *shape: int, seed: int) -> Any:
    """bf16 of a normal distribution, the same on all ranks."""
    torch = ranks.torch
    generator = torch.Generator(device=ranks.device).manual_seed(seed)
    return torch.randn(
        shape, generator=generator, dtype=torch.float32, device=ranks.device
    ).bfloat16()


def operands(ranks: Ranks, length: int, kv_heads: int) -> list[Any]:
    """q, k, v and the gradient of O of the whole problem."""
    heads = (HEADS, kv_heads, kv_heads, HEADS)
    return [normal(ranks, 1, length, h, DIM, seed=i) for i, h in enumerate(heads)]


PARTS = "check forward backward decode"
CHECKED: dict[str, dict[str, Any]] = {
    "causal": {"mask": am.causal()},
    "full": {},
    "window": {"mask": am.sliding_window(700, 0)},
    "alibi": {"mask": am.causal(), "score_mod": True},
    "documents": {"mask": am.causal(), "cu_seqlens": (0, 300, 1100, 1111)},
    "sinks": {"mask": am.causal(), "sinks": True},
    "odd": {"mask": am.causal(), "length": 4001},
}
CHECKED_LENGTH, CHECKED_KV_HEADS = 4096, 8


def check(ranks: Ranks) -> bool:
    """Every scheme beside the same call on one rank: O, LSE and the gradients."""
    from attn_mlir import distributed as ad
    from attn_mlir.bench.ranks.calls import attend_whole

    torch, right = ranks.torch, True
    for (name, kept), scheme in product(CHECKED.items(), SCHEMES):
        options = dict(kept)
        length = options.pop("length", CHECKED_LENGTH)
        ends = options.pop("cu_seqlens", None)
        whole = operands(ranks, length, CHECKED_KV_HEADS)
        own = [ad.shard(x) for x in whole[:3]]
        do, rows = whole.pop(), ad.positions(length, device=ranks.device)
        extra = _functions(torch, ranks.device, options)
        for x in (*whole, *own):
            x.requires_grad_()
        starts = None if ends is None else (*ends, length)
        o, lse = attend_whole(whole, starts, extra)
        want = torch.autograd.grad(o, whole, do)
        call = getattr(ad, f"{scheme}_attention")
        found, sums = call(*own, cu_seqlens=starts, return_lse=True, **extra)
        gradients = torch.autograd.grad(found, own, do[:, rows])
        pairs = {"o": (found, o[:, rows]), "lse": (sums, lse[:, :, rows])}
        pairs |= dict(
            zip(
                ("dq", "dk", "dv"),
                zip(gradients, (x[:, rows] for x in want), strict=True),
                strict=True,
            )
        )
        errors = ranks.largest(
            [
                ((x.float() - y.float()).abs().max() / y.abs().max()).item()
                for x, y in pairs.values()
            ]
        )
        is_right = max(errors) <= TOLERANCE
        right = right and is_right
        text = " ".join(f"{x} {y:.1e}" for x, y in zip(pairs, errors, strict=True))
        ranks.say(f"check {scheme:8s} {name:10s} {'right' if is_right else 'WRONG'}  {text}")
    return right


def _functions(torch: Any, device: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Options with the arrays that those of `CHECKED` name."""
    found = dict(options)
    numbers = torch.arange(1, HEADS + 1, device=device, dtype=torch.float32)
    if "score_mod" in found:
        found["score_mod"] = mods.alibi(torch.exp2(-8 * numbers / HEADS))
    if "sinks" in found:
        found["sinks"] = numbers / HEADS
    return found


def forward(ranks: Ranks, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Times of the schemes, of one rank alone, and of the host."""
    from attn_mlir import distributed as ad
    from attn_mlir.distributed.members import members_of
    from attn_mlir.distributed.transport import Transport, transport_of

    members = members_of(None)
    near = transport_of(members, ranks.device)
    ranks.say(f"transport {type(near).__name__}")
    ways: dict[str, Transport] = {"": near}
    if type(near) is not Transport:
        ways[" nccl"] = Transport(members)
    for cell in cells:
        whole = operands(ranks, cell.length, cell.kv_heads)[:3]
        mask = MASKS[cell.mask]()
        own = [ad.shard(x) for x in whole]
        rounds = 3 if cell.length > 65536 else 9
        times = {
            "one": ranks.milliseconds(functools.partial(am.attention, *whole, mask=mask), rounds)
        }
        times["limit"] = times["one"] / ranks.size
        del whole
        for scheme, (way, transport) in product(SCHEMES, ways.items()):
            if scheme == "ulysses" and way:
                continue
            members.transports["cuda"] = transport
            function = getattr(ad, f"{scheme}_attention")
            call = functools.partial(function, *own, mask=mask)
            times[scheme + way] = ranks.milliseconds(call, rounds)
            if not way and cell.length <= 32768:
                times[f"host of {scheme}"] = ranks.host_milliseconds(call)
        members.transports["cuda"] = near
        yield _line(ranks, "forward", cell, times)
        ranks.torch.cuda.empty_cache()


def backward(ranks: Ranks, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Times of both passes."""
    from attn_mlir import distributed as ad

    torch = ranks.torch
    for cell in cells:
        whole = operands(ranks, cell.length, cell.kv_heads)
        mask = MASKS[cell.mask]()
        own = [ad.shard(x) for x in whole]
        rounds = 3 if cell.length > 32768 else 5

        times = {
            "one": ranks.milliseconds(functools.partial(_both, am.attention, whole, mask), rounds)
        }
        times["limit"] = times["one"] / ranks.size
        del whole
        for scheme in SCHEMES:
            call = functools.partial(_both, getattr(ad, f"{scheme}_attention"), own, mask)
            times[scheme] = ranks.milliseconds(call, rounds)
        yield _line(ranks, "backward", cell, times)
        torch.cuda.empty_cache()


def _both(function: Callable[..., Any], given: Sequence[Any], mask: am.Mask) -> Any:
    """Both passes of a function of q, k and v; the last of `given` is the gradient of O."""
    torch: Any = importlib.import_module("torch")
    *operands, do = (x.detach() for x in given)
    operands = [x.requires_grad_() for x in operands]
    return torch.autograd.grad(function(*operands, mask=mask), operands, do)


def decode(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """A step over caches that are sharded by position, in graphs, in microseconds."""
    from attn_mlir import distributed as ad

    times_in_graph = 5
    for batch, kv_heads in DECODE:
        q = normal(ranks, batch, 1, HEADS, DIM, seed=0)
        keys = CACHED // ranks.size
        k, v = (normal(ranks, batch, keys, kv_heads, DIM, seed=i) for i in (1, 2))
        attend = functools.partial(am.attention, q, k, v, return_lse=True, num_splits=0)
        calls: dict[str, Callable[[], Any]] = {"own part": attend}
        for how in ("ag_rs", "a2a"):
            calls[how] = functools.partial(_step, attend, how)
            o, lse = attend()
            calls[f"{how} alone"] = functools.partial(ad.decode_combine, o, lse, how=how)
        times: dict[str, float] = {}
        for name, call in calls.items():
            replay = ranks.graph(call, times_in_graph)
            times[name] = ranks.milliseconds(replay, 7) * 1e3 / times_in_graph
        texts = " ".join(f"{name} {value:.1f}" for name, value in times.items())
        ranks.say(f"decode {batch} sequences, {HEADS} heads on {kv_heads}, us: {texts}")
        yield {"part": "decode", "batch": batch, "kv_heads": kv_heads, "us": times}


def _step(attend: Callable[[], Any], how: str) -> Any:
    """A step of decode on the own part of the caches, and the combination."""
    from attn_mlir import distributed as ad

    return ad.decode_combine(*attend(), how=how)


def _line(ranks: Ranks, part: str, cell: Cell, times: dict[str, float]) -> dict[str, Any]:
    texts = " ".join(f"{name} {value:.3f}" for name, value in times.items())
    ranks.say(f"{part} {cell.length} tokens, {cell.kv_heads} KV heads, {cell.mask}, ms: {texts}")
    return {"part": part, **asdict(cell), "ms": times}


def write(folder: Path, cells: Sequence[Cell], size: int, target: str) -> None:
    """Compiles the kernels that a run on so many ranks calls."""
    from attn_mlir.bench.ranks.calls import call_decode, call_schemes, call_whole
    from attn_mlir.distributed.problem import Problem

    with recording(Collector(make_folder(folder))), launching_on(IdleDevice(target)):
        for cell in cells:
            shape = (cell.length, HEADS, cell.kv_heads, DIM)
            mask = MASKS[cell.mask]()
            for gradients in (False, *[True] * (cell.length <= MOST_BACKWARD)):
                call_whole(shape, None, {"mask": mask}, gradients=gradients)
                call_schemes(Problem(mask), shape, size, gradients=gradients)
        for kept in CHECKED.values():
            options = dict(kept)
            length, ends = options.pop("length", CHECKED_LENGTH), options.pop("cu_seqlens", None)
            given = _functions(importlib.import_module("torch"), "cpu", options)
            shape = (length, HEADS, CHECKED_KV_HEADS, DIM)
            starts = None if ends is None else (*ends, length)
            call_whole(shape, starts, given, gradients=True)
            sinks = given.pop("sinks", None)
            problem = Problem(**given, starts=starts)
            call_schemes(problem, shape, size, sinks=sinks, gradients=True)
        for batch, kv_heads in DECODE:
            call_decode(batch, CACHED // size, HEADS, kv_heads, DIM, size)


def cells_of(lengths: Sequence[int]) -> list[Cell]:
    return [Cell(*x) for x in product(lengths, KV_HEADS, MASKS)]


@contextmanager
def joined() -> Generator[Ranks]:
    ranks = Ranks()
    try:
        yield ranks
    finally:
        ranks.dist.destroy_process_group()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {PARTS}")
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument("--ranks", type=int, default=2, help="for which to compile")
    parser.add_argument("--target", default="sm_90a", help="for which to compile")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what was found as JSON")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS.split()):
        parser.error(f"unknown part {min(unknown)}: {PARTS}")
    cells = cells_of(args.lengths)
    if args.write is not None:
        write(args.write, cells, args.ranks, args.target)
        return 0
    right, rows = True, list[dict[str, Any]]()
    with joined() as ranks:
        ranks.say(
            f"{ranks.size} x {ranks.torch.cuda.get_device_name()}, torch {ranks.torch.__version__}"
        )
        if "check" in args.parts:
            right = check(ranks)
        parts = {
            "forward": lambda: forward(ranks, cells),
            "backward": lambda: backward(ranks, [x for x in cells if x.length <= MOST_BACKWARD]),
            "decode": lambda: decode(ranks),
        }
        for name in args.parts:
            rows += parts[name]() if name in parts else []
        if args.results is not None and ranks.rank == 0:
            args.results.write_text(json.dumps(rows, indent=1))
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
