"""`plan_parallel`: picks a scheme for a sequence over ranks, and predicts its cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from attn_mlir.errors import SpecError, shown
from attn_mlir.parallel.calls import OURS, Software
from attn_mlir.parallel.gpus import Gpu, gpu_named
from attn_mlir.parallel.links import Links
from attn_mlir.parallel.problem import Problem
from attn_mlir.parallel.schemes import SCHEMES, Prediction, limit, predict
from attn_mlir.runtime.call.scalars import as_float, flag, integer

GB = 1e9
INTER = 45e9  # bytes/s of NDR InfiniBand with one port for each GPU: see `Links`
MIN_GBS, MAX_GBS = 1e-6, 1e6  # bounds of a link's bandwidth
LEVEL = 0.02  # relative difference within which the scheme with the least memory is picked
CALLS = {
    "ring-pull": "ring_attention on the GPUs of one host",
    "ring-nccl": "ring_attention",
    "gather": "gather_attention",
    "ulysses": "ulysses_attention",
    "2d": "ulysses_ring_attention, of a mesh of nodes and their ranks",
}


@dataclass(frozen=True)
class ParallelPlan:
    """Predictions for all schemes, and the picked scheme.

    Attributes:
      problem, gpu, links: the arguments, with defaults filled in.
      predictions: one for each scheme.
      one_rank: seconds of one GPU that has the whole sequence, whether or not its memory suffices.
      picked: name of the scheme that needs the least memory among those within 2 % of the fastest
        possible one; None if no scheme is possible.
      reason: a sentence that explains the choice.
    """

    problem: Problem
    gpu: Gpu
    links: Links
    predictions: tuple[Prediction, ...]
    one_rank: float
    picked: str | None
    reason: str

    def __getitem__(self, scheme: str) -> Prediction:
        """The prediction for a scheme.

        Raises:
          SpecError: no scheme has this name.
        """
        for x in self.predictions:
            if x.scheme == scheme:
                return x
        raise SpecError(f"scheme must be one of {', '.join(SCHEMES)}, got {shown(scheme)}")

    def efficiency(self, scheme: str) -> float:
        """The time of one rank over the summed time of all ranks, 1 at best."""
        return self.one_rank / (self[scheme].seconds * self.problem.ranks)

    def json(self) -> dict[str, Any]:
        """The plan as plain values, in seconds and bytes."""
        schemes = [
            asdict(x) | {"efficiency": self.efficiency(x.scheme), "call": CALLS[x.scheme]}
            for x in self.predictions
        ]
        return {
            "problem": asdict(self.problem),
            "gpu": self.gpu.name,
            "links": asdict(self.links),
            "one_rank_seconds": self.one_rank,
            "schemes": schemes,
            "picked": self.picked,
            "reason": self.reason,
        }


def plan_parallel(
    length: int,
    *,
    ranks: int,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int = 128,
    v_head_dim: int | None = None,
    batch: int = 1,
    causal: bool = True,
    training: bool = False,
    dtype: str = "bf16",
    gpu: str | Gpu = "H200",
    ranks_per_node: int = 8,
    intra_gbs: float | None = None,
    inter_gbs: float = INTER / GB,
    sm_margin: int = 0,
    isolated: bool = False,
    software: Software = OURS,
) -> ParallelPlan:
    """Predicts the cost of each scheme of `attn_mlir.distributed`, and picks one.

    The model is a closed form of rates and bytes; docs/lab/distributed.md has its errors.

    Args:
      length: tokens of the whole sequence.
      ranks: GPUs that share the sequence.
      heads, kv_heads: heads of a layer before heads are exchanged, with tensor parallelism those of
        one tensor-parallel rank; kv_heads defaults to heads.
      head_dim, v_head_dim: head sizes of K and V; v_head_dim defaults to head_dim.
      batch: number of sequences.
      causal: whether the mask is causal; else there is no mask.
      training: whether the backward pass is included.
      dtype: bf16 or f16.
      gpu: H200, H100, B200, or a `Gpu` of the caller's.
      ranks_per_node: GPUs that are connected by NVLink.
      intra_gbs, inter_gbs: bandwidth of long messages, in 1e9 bytes/s that a GPU receives from its
        node and from other nodes; by default that of the GPU's row, and that of NDR InfiniBand.
      sm_margin: multiprocessors that attention leaves to NCCL, so that transfers overlap with it.
      isolated: whether a single call after a pause is predicted, as benchmarks time it, instead of
        a call on a busy GPU.
      software: the implementation, if its rates and copies are not ours.

    Raises:
      SpecError: an argument is out of range, or contradicts another one.
    """
    chosen = gpu if isinstance(gpu, Gpu) else gpu_named(gpu)
    if not isinstance(cast(object, software), Software):
        raise SpecError(f"software must be a Software, got {shown(software)}")
    problem = Problem(
        length=length,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        batch=batch,
        is_causal=flag("causal", causal),
        is_training=flag("training", training),
        dtype=dtype,
        ranks=ranks,
        sm_margin=sm_margin,
        is_isolated=flag("isolated", isolated),
    )
    if problem.sm_margin >= chosen.sms:
        raise SpecError(f"sm_margin must be below the {chosen.sms} of the {chosen.name}")
    intra = chosen.intra_bandwidth if intra_gbs is None else _bandwidth("intra_gbs", intra_gbs)
    in_node = integer("ranks_per_node", ranks_per_node, 1)
    links = Links(intra, _bandwidth("inter_gbs", inter_gbs), in_node)
    predictions = tuple(predict(name, problem, chosen, links, software) for name in SCHEMES)
    alone = limit(replace(problem, ranks=1, sm_margin=0), chosen, links, software)
    possible = sorted((x for x in predictions if x.is_possible), key=lambda x: x.seconds)
    if not possible:
        reasons = "; ".join(f"{x.scheme}: {x.refusal}" for x in predictions)
        return ParallelPlan(problem, chosen, links, predictions, alone, None, reasons)
    near = [x for x in possible if x.seconds <= possible[0].seconds * (1 + LEVEL)]
    best = min(near, key=lambda x: x.memory_bytes)
    reason = _reason(best, [x for x in possible if x is not best])
    return ParallelPlan(problem, chosen, links, predictions, alone, best.scheme, reason)


def _reason(best: Prediction, others: list[Prediction]) -> str:
    share = best.exposed / best.seconds
    text = f"{best.seconds / best.limit:.2f} times the limit, {share:.0%} of it exposed transfers"
    if not others:
        return f"{text}; no other scheme is possible"
    other = others[0]
    text += f"; {other.scheme} takes {other.seconds / best.seconds:.2f} times that"
    if other.seconds <= best.seconds * (1 + LEVEL):
        text += f" and {other.memory_bytes / best.memory_bytes:.1f} times the memory"
    return text


def _bandwidth(name: str, value: object) -> float:
    number = as_float(value, name)
    if number is None or not MIN_GBS <= number <= MAX_GBS:
        raise SpecError(
            f"{name} must be from {MIN_GBS:g} to {MAX_GBS:.0f} GB/s, got {shown(value)}"
        )
    return number * GB
