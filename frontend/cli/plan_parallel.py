"""`attn-mlir plan-parallel`: the scheme for a long sequence on several GPUs, and its cost."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attn_mlir.cli.outputs import check_svg
from attn_mlir.files import write_file
from attn_mlir.parallel import GPUS, SCHEMES, ParallelPlan, plan_parallel
from attn_mlir.parallel.picture import picture
from attn_mlir.parallel.plan import CALLS, INTER
from attn_mlir.parallel.problem import DTYPES

DRAWN_RANKS = 1024  # largest number of ranks in the picture, unless --ranks is larger


def add_plan_parallel(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `attn-mlir plan-parallel`."""
    parser.description = (
        "Predict time, bytes and memory of each scheme of attn_mlir.distributed for one layer's "
        "attention, and pick one (docs/planning.md). Needs no GPU."
    )
    number = parser.add_argument
    number("length", type=tokens, help="tokens of the sequence: 131072, 128k, 1M")
    number("--ranks", type=int, default=8, help="GPUs that share the sequence (%(default)s)")
    number("--heads", type=int, default=32, help="query heads of a layer (%(default)s)")
    number("--kv-heads", type=int, default=8, help="KV heads (%(default)s)")
    number("--head-dim", type=int, default=128, help="head size of K (%(default)s)")
    number("--v-head-dim", type=int, default=None, help="head size of V (default: that of K)")
    number("--batch", type=int, default=1, help="sequences (%(default)s)")
    number("--dtype", default="bf16", help=f"{', '.join(DTYPES)} (%(default)s)")
    number("--full", action="store_true", help="no causal mask")
    number("--training", action="store_true", help="forward and backward pass")
    number("--gpu", default="H200", help=f"{', '.join(GPUS)} (%(default)s)")
    number("--ranks-per-node", type=int, default=8, help="GPUs joined by NVLink (%(default)s)")
    number("--intra-gbs", type=float, default=None, help="GB/s into a GPU within a node")
    number("--inter-gbs", type=float, default=INTER / 1e9, help="GB/s between nodes (%(default)s)")
    number("--sm-margin", type=int, default=0, help="multiprocessors left to NCCL (%(default)s)")
    number("--isolated", action="store_true", help="one call after a pause, as benchmarks time it")
    number("--json", action="store_true", help="print everything as JSON")
    number("--picture", type=Path, metavar="FILE", help="draw times over ranks (.svg)")
    parser.set_defaults(act=plan)


def plan(args: argparse.Namespace) -> int:
    """`attn-mlir plan-parallel`; 1 if no scheme is possible."""
    if args.picture is not None:
        check_svg("--picture", args.picture)
    found = _planned(args, args.ranks)
    if args.picture is not None:
        written = write_file(args.picture, _drawn(args, found))
        if not args.json:
            print(written)
    print(json.dumps(found.json(), indent=1) if args.json else table(found))
    return 0 if found.picked else 1


def table(found: ParallelPlan) -> str:
    """The plan as text."""
    p, links = found.problem, found.links
    mask = "causal" if p.is_causal else "full"
    passes = "forward and backward" if p.is_training else "forward"
    nodes = links.nodes(p.ranks)
    lines = [
        f"{p.batch} x {p.length} tokens, {p.heads} heads on {p.kv_heads} of {p.head_dim}, "
        f"{p.dtype}, {mask}, {passes}",
        f"{p.ranks} x {found.gpu.name}, {nodes} node{'s' * (nodes > 1)}, "
        f"{links.intra / 1e9:g} GB/s within, {links.inter / 1e9:g} between",
        "",
        f"{'':12}{'ms':>11}{'limit':>7}{'efficiency':>12}{'exposed ms':>12}{'sent':>11}"
        f"{'memory':>11}",
    ]
    for x in found.predictions:
        mark = "> " if x.scheme == found.picked else "  "
        if not x.is_possible:
            lines.append(f"{mark}{x.scheme:10} impossible: {x.refusal}")
            continue
        lines.append(
            f"{mark}{x.scheme:10}{x.seconds * 1e3:11.3f}{x.seconds / x.limit:7.2f}"
            f"{found.efficiency(x.scheme):12.0%}{x.exposed * 1e3:12.3f}"
            f"{_bytes(x.bytes_sent):>11}{_bytes(x.memory_bytes):>11}"
        )
    lines.append("")
    if found.picked is None:
        return "\n".join([*lines, f"no scheme is possible: {found.reason}"])
    return "\n".join([*lines, f"{found.picked}: {found.reason}", f"call: {CALLS[found.picked]}"])


def _drawn(args: argparse.Namespace, found: ParallelPlan) -> str:
    most = max(DRAWN_RANKS, args.ranks)
    ranks = [x for x in (2**i for i in range(most.bit_length())) if 2 <= x <= most]
    plans = {x: _planned(args, x) for x in sorted({*ranks, args.ranks}) if x <= args.length}
    lines = {"limit": {n: x.predictions[0].limit for n, x in plans.items()}}
    for scheme in SCHEMES:
        times = {n: x[scheme].seconds for n, x in plans.items() if x[scheme].is_possible}
        if times:
            lines[scheme] = times
    p = found.problem
    mask = "causal" if p.is_causal else "full"
    title = f"{p.length} tokens, {p.heads} heads on {p.kv_heads}, {mask}, {found.gpu.name}"
    caption = (
        f"one layer, predicted by attn-mlir plan-parallel; {found.links.intra / 1e9:g} and "
        f"{found.links.inter / 1e9:g} GB/s, {found.links.ranks_per_node} GPUs in a node"
    )
    return picture(lines, title, caption)


def _planned(args: argparse.Namespace, ranks: int) -> ParallelPlan:
    return plan_parallel(
        args.length,
        ranks=ranks,
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        v_head_dim=args.v_head_dim,
        batch=args.batch,
        causal=not args.full,
        training=args.training,
        dtype=args.dtype,
        gpu=args.gpu,
        ranks_per_node=args.ranks_per_node,
        intra_gbs=args.intra_gbs,
        inter_gbs=args.inter_gbs,
        sm_margin=args.sm_margin,
        isolated=args.isolated,
    )


def tokens(text: str) -> int:
    """The number of tokens in a text, in which k stands for 2^10 and M for 2^20."""
    factor = {"k": 2**10, "m": 2**20}.get(text[-1:].lower(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
