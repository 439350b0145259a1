"""Writes roles, rings and memory map of a kernel into the page of its schedule, and their picture beside it.

    python docs/tools/kernel_pages.py            what differs; exit code 1 if anything does
    python docs/tools/kernel_pages.py --write    renews the pages

Each page has a part between `<!-- kernel: begin -->` and `<!-- kernel: end -->`; nothing is compiled beyond
the kernel's plan.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attn_mlir as am
from attn_mlir.cli.ring_picture import picture
from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn.builder import build_module
from attn_mlir.files import write_file
from attn_mlir.passes.analysis.ring_graph import ring_graph
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.passes.plan_memory import memory_map

SCHEDULES = Path(__file__).resolve().parents[2] / "schedules"
PICTURE = "rings.svg"
_PART = re.compile(r"(<!-- kernel: begin -->\n).*?(<!-- kernel: end -->)", re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """The kernel that a page shows.

    Attributes:
      folder: of the schedule.
      target: the chip.
      title: what the kernel computes.
      make: makes its request.
    """

    folder: str
    target: str
    title: str
    make: Callable[[], Any]


def _mha(**options: Any) -> Callable[[], Any]:
    return lambda: am.mha(heads=4, kv_heads=2, head_dim=128, mask=am.causal(), **options)


def _latent() -> Any:
    return am.MlaSpec(heads=4, nope_dim=128, rope_dim=64, mask=am.causal())


def _sparse() -> Any:
    from attn_mlir.compiling.sparse_mla import SparseMlaSpec

    return SparseMlaSpec(heads=64)


def _gradients() -> Any:
    from attn_mlir.compiling.backward.gradients import KvGradientsSpec

    return KvGradientsSpec(heads=4, kv_heads=2, head_dim=128, mask=am.causal())


def _latent_gradients() -> Any:
    from attn_mlir.compiling.backward.mla_gradients import MlaKvGradientsSpec

    return MlaKvGradientsSpec(heads=4, nope_dim=128, rope_dim=64, v_head_dim=128, mask=am.causal())


KERNELS = (
    Shown("attention/tensor_memory", "sm_100a", "causal, head size 128", _mha()),
    Shown("attention/warpgroups", "sm_90a", "causal, head size 128", _mha()),
    Shown(
        "attention/streaming",
        "sm_90a",
        "causal, head size 128",
        _mha(schedule="mha-streaming"),
    ),
    Shown(
        "attention/keys_in_rows",
        "sm_100a",
        "causal, head size 128",
        _mha(schedule="mha-swapped"),
    ),
    Shown("backward", "sm_90a", "dK and dV, causal, head size 128", _gradients),
    Shown(
        "backward/tensor_memory",
        "sm_100a",
        "dK and dV, causal, head size 128",
        _gradients,
    ),
    Shown(
        "backward/latent",
        "sm_90a",
        "dK and dV, causal, 128 + 64 columns",
        _latent_gradients,
    ),
    Shown("latent/prefill", "sm_100a", "causal, 128 + 64 columns", _latent),
    Shown("latent/decode", "sm_100a", "64 heads", lambda: am.MlaDecodeSpec(heads=64)),
    Shown("latent/sparse", "sm_100a", "64 heads", _sparse),
)


def planned(shown: Shown) -> tuple[Any, ws.KernelOp]:
    """The module, which owns the kernel, and the kernel with its plan."""
    module = build_module(make_context(), shown.make(), name="kernel")
    run_pipeline(
        module, f"attn-configure{{target={shown.target}}},convert-attn-to-ws,ws-plan-memory"
    )
    (kernel,) = ir.get_ops_of_type(module, ws.KernelOp)
    return module, kernel


def part_of(shown: Shown, kernel: ws.KernelOp) -> str:
    """The page's text between its marks."""
    roles = (
        (
            role.label,
            role.warp_range[1],
            "one" if role.lane_count == 1 else "all",
            role.register_count or "",
        )
        for role in kernel.roles()
    )
    rings = (
        (
            edges.ring,
            edges.holds,
            edges.space or "",
            edges.stages,
            edges.instances,
            ", ".join(edges.producers),
            ", ".join(edges.consumers),
        )
        for edges in ring_graph(kernel)
    )
    regions = (
        (region.label, region.space, region.begin, region.end) for region in memory_map(kernel)
    )
    lines = [
        f"Roles, rings and memory of this schedule on `{shown.target}`, {shown.title}, 16 bits "
        "(`python docs/tools/kernel_pages.py --write`):",
        "",
        f"![roles and rings]({PICTURE})",
        "",
        *_table(("role", "warps", "lanes", "registers"), roles),
        "",
        *_table(("ring", "holds", "space", "stages", "instances", "filled by", "read by"), rings),
        "",
        *_table(("memory", "space", "begin", "end"), regions),
    ]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def renewed(shown: Shown) -> dict[Path, str]:
    """The files of a page, by path, with the texts that they should have.

    Raises:
      SystemExit: the page has no place for the part.
    """
    module, kernel = planned(shown)
    page = SCHEDULES / shown.folder / "README.md"
    text, count = _PART.subn(
        lambda found: found[1] + part_of(shown, kernel) + found[2], page.read_text()
    )
    if count != 1:
        sys.exit(f"{page} must have one part between kernel: begin and kernel: end, has {count}")
    drawn = picture(
        f"{shown.folder} on {shown.target}",
        [role.label for role in kernel.roles()],
        [
            {
                **edges.record(),
                "producers": list(edges.producers),
                "consumers": list(edges.consumers),
            }
            for edges in ring_graph(kernel)
        ],
    )
    del module
    return {page: text, page.with_name(PICTURE): drawn}


def main() -> None:
    """Compares or renews all pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="renew the pages")
    args = parser.parse_args()
    differ: list[Path] = []
    for shown in KERNELS:
        for path, text in renewed(shown).items():
            if not path.exists() or path.read_text() != text:
                differ.append(path)
                if args.write:
                    write_file(path, text.encode())
    for path in differ:
        print(("written " if args.write else "differs ") + str(path.relative_to(SCHEDULES.parent)))
    sys.exit(bool(differ) and not args.write)


if __name__ == "__main__":
    main()
