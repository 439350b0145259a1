"""Instructions that kernels of latent attention execute, for each score and for each row that is gathered, beside FlashAttention-4's.

Counted in machine code, of turns as `machine_code/turns.py` has them. For each score: the loop that makes weights, and
where other threads keep O in step with the maxima, their loop as well, which then has nothing to do. For each entry of a
list: the loops that gather, by TMA or by threads; a warp of either copies 512 bytes with an instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_mlir.bench.machine_code.loops import MIN_EXPONENTIALS, loops
from attn_mlir.bench.machine_code.sass import Function, Instruction, count, disassemble
from attn_mlir.bench.machine_code.sass import usage as usage_of
from attn_mlir.bench.machine_code.turns import Worker, workers
from attn_mlir.bench.measuring.stats import BUILD
from attn_mlir.bench.peers.environment import fa4_cubin
from attn_mlir.bench.problems.latent_requests import LATENT
from attn_mlir.bench.problems.problem import Problem

TARGET = "sm_100a"
GATHERED_BYTES = 512  # by one instruction of a warp
LEAST_GATHERS = 16  # in a loop that gathers
THREADS = 128  # that share the scores of a block


@dataclass(frozen=True)
class Latent:
    """A configuration that both have.

    Attributes:
      name: of our request in `latent_requests.LATENT`.
      problem, options: of FlashAttention-4's; `options` are of `fa4_compile.py`.
      block, peer_block: scores between two looks at O, which 128 threads share.
      entry_bytes: gathered for an entry of a list, by all CTAs that share it.
      has_peer: whether FlashAttention-4's kernel is not beside another one of ours.
    """

    name: str
    problem: Problem
    options: tuple[str, ...]
    block: int
    peer_block: int
    entry_bytes: int = 0
    has_peer: bool = True


def _absorbed(heads: int, is_causal: bool) -> Problem:
    return Problem(head_dim=64, is_causal=is_causal, heads=heads, kv_heads=1)


ROW = 2 * 576  # bytes
CACHE = ("--latent=512", "--sk=4096")
LISTS = (*CACHE, "--topk=2048")
KERNELS = (
    Latent("dense, causal, 16 heads", Problem(head_dim=192, kv_heads=16), ("--value-dim=128",),
           128 * 128, 128 * 128),
    Latent("lists, 64 heads", _absorbed(64, False), LISTS,
           64 * 64, 64 * 64, ROW),
    Latent("lists, 128 heads", _absorbed(128, False), LISTS,
           64 * 128, 64 * 128, ROW + 2 * 512),
    Latent("lists, 128 heads, by threads", _absorbed(128, False), LISTS,
           64 * 128, 64 * 128, ROW + 2 * 512, has_peer=False),
    Latent("decoding, causal, 128 heads", _absorbed(128, True), (*CACHE, "--sq=1"),
           64 * 128, 64 * 128),
)  # fmt: skip


def records(with_peer: bool, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """A row for each kernel of ours and, with the peer, one for the peer's."""
    import attn_mlir as am

    for kernel in KERNELS:
        folder = BUILD / "latent" / "".join(c if c.isalnum() else "_" for c in kernel.name)
        folder.mkdir(parents=True, exist_ok=True)
        bundle = am.compile(LATENT[kernel.name](), target=TARGET)
        cubin = folder / "ours.cubin"
        cubin.write_bytes(bundle.cubin)
        cubin.with_suffix(".ptx").write_text(bundle.ptx)
        yield record(kernel.name, cubin, kernel.block, kernel.entry_bytes)
        if with_peer and kernel.has_peer:
            cubin = fa4_cubin(kernel.problem, tell, folder, kernel.options)
            yield record(f"FA4: {kernel.name}", cubin, kernel.peer_block, kernel.entry_bytes)


def record(name: str, cubin: Path, block: int, entry_bytes: int) -> dict[str, Any]:
    """The numbers of a kernel, the largest function of a cubin."""
    function = max(disassemble(cubin), key=lambda function: len(function.instructions))
    usage = usage_of(cubin, function.name)
    return {
        "name": name,
        "registers": usage.registers,
        "stack_bytes": usage.stack_bytes + usage.local_bytes,
        **per_score(function, block),
        "per_entry": per_entry(function, entry_bytes) if entry_bytes else None,
    }


def per_score(function: Function, block: int) -> dict[str, float]:
    """Instructions for each score, of warps that make weights and of those that keep O in step; and exponentials.

    Args:
      block: scores that 128 threads share, and after which O is looked at once.
    """
    own = block // THREADS
    best: tuple[float, float] | None = None
    for worker in workers(function, loops(function), _is_exponential, MIN_EXPONENTIALS):
        blocks = max(1, round(worker.turn().work / own))
        turn = worker.turn(enough=blocks * own)
        cost = (turn.instructions / (blocks * own), turn.work / (blocks * own))
        best = min(best or cost, cost)
    if best is None:
        raise ValueError(f"{function.name} has no loop that makes weights")
    corrections = [
        Worker(worker.function, worker.loop, _nothing, worker.body).turn().instructions
        for worker in workers(function, loops(function), _is_rescaling, 1)
        if not sum(map(_is_exponential, worker.instructions))
    ]
    return {"per_score": best[0] + min(corrections, default=0) / own, "exponentials": best[1]}


def per_entry(function: Function, entry_bytes: int) -> float:
    """Instructions of warps that gather, for each entry of a list."""
    turns = [w.turn() for w in workers(function, loops(function), _is_gather, LEAST_GATHERS)]
    ratio = sum(turn.instructions for turn in turns) / sum(turn.work for turn in turns)
    return ratio * entry_bytes / GATHERED_BYTES


def _is_exponential(item: Instruction) -> int:
    return count([item], "MUFU.EX2")


def _is_rescaling(item: Instruction) -> int:
    return count([item], "STTM")


def _is_gather(item: Instruction) -> int:
    return int("GATHER4" in item.opcode or item.base == "LDGSTS")


def _nothing(_: Instruction) -> int:
    return 0
