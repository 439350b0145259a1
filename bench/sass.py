"""Static quality of machine code, side by side: registers, spills, tensor and TMA instructions, softmax cost.

    python bench/sass.py                        our D=128 causal kernel
    python bench/sass.py --peer fa4             and FlashAttention-4's beside it (compiled once, see bench/compile.py)
    python bench/sass.py --cubin mine=a.cubin   any cubin instead of ours; repeat for more columns
    python bench/sass.py --masks                what each mask and modifier changes in the softmax loop
    python bench/sass.py --configurations       registers, spills, memory of every built-in configuration
    python bench/sass.py --latent --peer fa4    latent attention, by score and by gathered row (bench/costs/latent.py)

How the softmax loop is found is written in bench/machine_code/loops.py; it prints where the loop lies, so that the
choice can be checked in `nvdisasm -c`. Counts are static: an instruction counts once, whether or not its path is taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from attn_mlir.bench.machine_code import sass
from attn_mlir.bench.machine_code.loops import SoftmaxLoop, softmax_candidates, softmax_loop
from attn_mlir.bench.measuring.stats import BUILD, conditions
from attn_mlir.bench.peers.environment import fa4_cubin
from attn_mlir.bench.problems.problem import Problem

FA4_HEAD_DIMS = (64, 96, 128)  # that its entry point compiles with two query tiles


@dataclass(frozen=True)
class Column:
    """All that is known about one cubin."""

    name: str
    cubin: Path
    usage: sass.Usage
    instruction_count: int
    counts: dict[str, int]
    loop: SoftmaxLoop | None
    masked_loop: SoftmaxLoop | None
    spill_bytes: int | None  # stores + loads by `ptxas -v` from the PTX; a bare cubin does not tell

    def record(self) -> dict[str, object]:
        """For JSON."""
        return {
            "cubin": str(self.cubin),
            "registers": self.usage.registers,
            "stack_bytes": self.usage.stack_bytes,
            "local_bytes": self.usage.local_bytes,
            "spill_bytes": self.spill_bytes,
            "instructions": self.instruction_count,
            "counts": self.counts,
            "softmax_loop": _loop_record(self.loop),
            "masked_softmax_loop": _loop_record(self.masked_loop),
        }


def _loop_record(loop: SoftmaxLoop | None) -> dict[str, object] | None:
    if loop is None:
        return None
    return {
        "address": hex(loop.address),
        "instructions": len(loop.instructions),
        "scores": loop.scores,
        "per_score": loop.per_score,
        "mufu_ex2": loop.exponentials,
        "selects": loop.selects,
        "mix": dict(loop.mix().most_common()),
    }


def measure(name: str, cubin: Path, target: str) -> Column:
    """Disassembles a cubin and reads its largest function, the kernel; its PTX may lie beside it."""
    functions = sass.disassemble(cubin)
    if not functions:
        sys.exit(f"{cubin} holds no code")
    kernel = max(functions, key=lambda function: len(function.instructions))
    ptx = cubin.with_suffix(".ptx")
    masked = [loop for loop in softmax_candidates(kernel) if loop.is_masked]
    return Column(
        name,
        cubin,
        sass.usage(cubin, kernel.name),
        len(kernel.instructions),
        {opcode: kernel.count(opcode) for opcode in sass.OPCODES},
        softmax_loop(kernel),
        max(masked, key=lambda loop: loop.exponentials, default=None),
        sass.spill_bytes(ptx, target) if ptx.exists() else None,
    )


def ours(problem: Problem) -> Column:
    """Our kernel through the public interface."""
    bundle = problem.compile()
    BUILD.mkdir(parents=True, exist_ok=True)
    cubin = BUILD / f"{problem.name}.cubin"
    cubin.write_bytes(bundle.cubin)
    cubin.with_suffix(".ptx").write_text(bundle.ptx)
    return measure("attn-mlir", cubin, problem.target)


def table(columns: list[Column], title: str) -> Table:
    """One row per fact, one column per cubin."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("")
    for column in columns:
        shown.add_column(column.name, justify="right")

    def row(label: str, values: list[str]) -> None:
        shown.add_row(label, *values)

    row("registers per thread", [str(c.usage.registers) for c in columns])
    row("stack + local, bytes", [str(c.usage.stack_bytes + c.usage.local_bytes) for c in columns])
    spills = ["" if c.spill_bytes is None else str(c.spill_bytes) for c in columns]
    row("spilled (ptxas), bytes", spills)
    row("instructions", [str(c.instruction_count) for c in columns])
    shown.add_section()
    for opcode, meaning in sass.OPCODES.items():
        row(f"{opcode}: {meaning}", [str(c.counts[opcode]) for c in columns])
    for heading, loops in (
        ("softmax loop", [c.loop for c in columns]),
        ("masked softmax loop", [c.masked_loop for c in columns]),
    ):
        shown.add_section()
        found = [loop is not None for loop in loops]
        row(f"{heading} at", [hex(lp.address) if lp else "none" for lp in loops])
        if not any(found):
            continue
        row("  instructions", [str(len(lp.instructions)) if lp else "" for lp in loops])
        row("  scores per thread", [str(lp.scores) if lp else "" for lp in loops])
        row("  instructions per score", [f"{lp.per_score:.2f}" if lp else "" for lp in loops])
        row("  MUFU.EX2", [str(lp.exponentials) if lp else "" for lp in loops])
    return shown


def mix_table(columns: list[Column]) -> Table:
    """The unmasked softmax loops by opcode, most frequent first."""
    shown = Table(title="softmax loop by opcode", title_justify="left")
    shown.add_column("")
    mixes = [column.loop.mix() if column.loop else None for column in columns]
    for column in columns:
        shown.add_column(column.name, justify="right")
    total = {opcode: sum(m[opcode] for m in mixes if m) for mix in mixes if mix for opcode in mix}
    for opcode in sorted(total, key=lambda name: (-total[name], name)):
        shown.add_row(opcode, *(str(mix[opcode]) if mix else "" for mix in mixes))
    return shown


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Problem.add_options(parser)
    parser.add_argument("--peer", choices=("fa4",), help="also show this project's kernel")
    parser.add_argument(
        "--cubin", action="append", default=[], metavar="NAME=PATH", help="a cubin instead of ours"
    )
    parser.add_argument("--masks", action="store_true", help="a row per mask and modifier instead")
    parser.add_argument("--configurations", action="store_true", help="a row per configuration")
    parser.add_argument(
        "--latent", action="store_true", help="a row per kernel of latent attention"
    )
    parser.add_argument("--mix", action="store_true", help="also the softmax loop by opcode")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return parser.parse_args()


def costs(args: argparse.Namespace, problem: Problem, console: Console) -> None:
    """The rows of `--masks`, `--configurations` or `--latent`."""
    from attn_mlir.bench.costs import latent, variants

    peer = None
    if args.peer == "fa4":
        peer = variants.Peer(
            lambda d: fa4_cubin(replace(problem, head_dim=d), console.log), FA4_HEAD_DIMS
        )
    if args.latent:
        source = latent.records(args.peer == "fa4", console.log)
    else:
        source = variants.mask_records() if args.masks else variants.configuration_records(peer)
    rows: list[dict[str, object]] = []
    for row in source:
        rows.append(row)
        console.print(", ".join(f"{key} {value}" for key, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "conditions": conditions()}, indent=1))


def main() -> None:
    args = arguments()
    console = Console()
    problem = Problem.of(args)
    if args.masks or args.configurations or args.latent:
        costs(args, problem, console)
        return
    columns: list[Column] = []
    for item in args.cubin:
        name, equals, path = item.partition("=")
        if not equals or not Path(path).is_file():
            sys.exit(f"--cubin wants NAME=PATH of a file, got {item!r}")
        columns.append(measure(name, Path(path), problem.target))
    if not args.cubin:
        columns.append(ours(problem))
    if args.peer == "fa4":
        columns.append(measure("FA4", fa4_cubin(problem, console.log), problem.target))
    console.print(table(columns, problem.title if not args.cubin else "cubins"))
    if args.mix:
        console.print(mix_table(columns))
    if args.json:
        record = {column.name: column.record() for column in columns}
        args.json.write_text(json.dumps({"kernels": record, "conditions": conditions()}, indent=1))


if __name__ == "__main__":
    main()
