"""Runs the benchmarks and writes their tables into docs/lab/performance.md.

    python bench/report.py                   everything, FlashAttention-4 included (minutes the first time)
    python bench/report.py sass --no-peer    one part, without the peer

A part of the page stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->` and is replaced as a whole, with the
command that made it, the conditions and the date. The other parts stay.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attn_mlir.bench.machine_code.sass import OPCODES
from attn_mlir.bench.measuring.stats import BUILD, ROOT, Spread

PAGE = ROOT / "docs" / "lab" / "performance.md"
REPETITIONS = 10  # of every compile


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def compile_part(record: Any) -> str:
    """Cold and warm compile times, then the stages of a cold compile."""
    cold = record["seconds"]["cold"]["median"]
    user = record["user_seconds"]

    def row(name: str, spread: Any, count: str) -> list[str]:
        return [
            name,
            Spread.recorded(spread).milliseconds(),
            Spread.recorded(user[name]).milliseconds() if name in user else "",
            f"{spread['median'] / cold:.2f}",
            count,
        ]

    rows = [
        row(name, spread, str(int(spread["count"]))) for name, spread in record["seconds"].items()
    ]
    rows += [row(f"FA4 {name} only", spread, "") for name, spread in record["peer_stages"].items()]
    stages = [
        [name, Spread.recorded(spread).milliseconds(), str(record["stage_bytes"].get(name, ""))]
        for name, spread in record["stages"].items()
    ]
    return "\n\n".join(
        [
            record["problem"],
            table(
                ["milliseconds", "median (20 % .. 80 %)", "user CPU", "times our cold", "n"], rows
            ),
            table(["stage of a cold compile", "ms (20 % .. 80 %)", "bytes out"], stages),
        ]
    )


def sass_part(record: Any) -> str:
    """Registers, spills, instruction counts and the softmax loops, a column per kernel."""
    kernels = record["kernels"]

    def row(label: str, value: Callable[[Any], object]) -> list[str]:
        return [label, *(str(value(kernel)) for kernel in kernels.values())]

    def of_loop(name: str, value: Callable[[Any], object]) -> Callable[[Any], object]:
        return lambda kernel: value(kernel[name]) if kernel[name] else "none"

    rows = [
        row("registers per thread", lambda k: k["registers"]),
        row("stack and local memory, bytes", lambda k: k["stack_bytes"] + k["local_bytes"]),
        row("spill stores and loads (`ptxas -v`), bytes", lambda k: k["spill_bytes"]),
        row("instructions", lambda k: k["instructions"]),
    ]
    rows += [
        row(f"`{opcode}`, {text}", lambda k, o=opcode: k["counts"][o])
        for opcode, text in OPCODES.items()
    ]
    for name, title in (
        ("softmax_loop", "softmax loop"),
        ("masked_softmax_loop", "masked softmax loop"),
    ):
        rows += [
            row(f"{title}: instructions", of_loop(name, lambda loop: loop["instructions"])),
            row(f"{title}: scores per thread", of_loop(name, lambda loop: loop["scores"])),
            row(
                f"**{title}: instructions per score**",
                of_loop(name, lambda loop: f"{loop['per_score']:.2f}"),
            ),
            row(f"{title}: `MUFU.EX2`", of_loop(name, lambda loop: loop["mufu_ex2"])),
        ]
    return table(["", *kernels], rows)


def emulator_part(record: Any) -> str:
    """Seconds and rate of one emulation."""
    seconds = record["seconds"]
    return table(
        [record["title"], ""],
        [
            [
                "seconds, median (20 % .. 80 %)",
                f"{seconds['median']:.2f} ({seconds['q20']:.2f} .. {seconds['q80']:.2f})",
            ],
            ["seconds of the first run, translation included", f"{record['first_seconds']:.2f}"],
            ["warp-instructions", f"{record['warp_instructions']:,}"],
            ["warp-instructions per second", f"{record['per_second']['median']:,.0f}"],
        ],
    )


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _rows(record: Any, keys: Iterable[str]) -> list[list[str]]:
    return [[row["name"], *(_text(row[key]) for key in keys)] for row in record["rows"]]


def masks_part(record: Any) -> str:
    """The changes of each mask and modifier in the softmax loop."""
    columns = {
        "PTX lines": "ptx_lines",
        "of these not the same": "ptx_differing",
        "opcodes more or less": "sass_added",
        "per score, no test": "per_score",
        "per score, tested": "masked_per_score",
        "spilled": "spill_bytes",
    }
    rows = _rows(record, columns.values())
    return table(
        ["mask or modifier", *columns], [[cell.replace("|", "\\|") for cell in row] for row in rows]
    )


def configurations_part(record: Any) -> str:
    """Registers, spills and memory of every configuration."""
    columns = {
        "query tiles": "query_tiles",
        "order": "order",
        "registers": "registers",
        "softmax, correction, others": "budgets",
        "spilled": "spill_bytes",
        "shared memory": "smem_bytes",
        "tensor columns": "tensor_cols",
        "per score": "per_score",
    }

    def cell(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else _text(value)  # pyright: ignore

    rows = [
        [row["name"], *(cell(row.get(key)) for key in columns.values())] for row in record["rows"]
    ]
    return table(["head size", *columns], rows)


def latent_part(record: Any) -> str:
    """Latent attention, by score and by gathered row."""
    columns = {
        "registers": "registers",
        "stack, bytes": "stack_bytes",
        "instructions per score": "per_score",
        "`MUFU.EX2` per score": "exponentials",
        "per gathered row": "per_entry",
    }
    return table(["", *columns], _rows(record, columns.values()))


PARTS: dict[str, tuple[list[str], Callable[[Any], str]]] = {
    "compile": (["bench/compile.py", "-n", str(REPETITIONS)], compile_part),
    "sass": (["bench/sass.py"], sass_part),
    "masks": (["bench/sass.py", "--masks"], masks_part),
    "configurations": (["bench/sass.py", "--configurations"], configurations_part),
    "latent": (["bench/sass.py", "--latent"], latent_part),
    "emulator": (["bench/emulator.py"], emulator_part),
}
WITHOUT_PEER = ("masks", "emulator")


def replace_part(page: str, name: str, text: str) -> str:
    """The page with this part replaced. Exits when the page has no such part."""
    pattern = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    changed, count = pattern.subn(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
    if count != 1:
        sys.exit(f"{PAGE} must have one part {name!r} between begin and end comments, has {count}")
    return changed


def run_part(name: str, with_peer: bool) -> str:
    """Runs one benchmark, output shown, and returns its part of the page."""
    program, render = PARTS[name]
    if with_peer and name not in WITHOUT_PEER:
        program = [*program, "--peer", "fa4"]
    BUILD.mkdir(parents=True, exist_ok=True)
    record_file = BUILD / f"{name}.json"
    command = [sys.executable, *program, "--json", str(record_file)]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        sys.exit(f"{' '.join(program)} failed")
    record: Any = json.loads(record_file.read_text())
    facts = ", ".join(f"{key} {value}" for key, value in record["conditions"].items())
    today = datetime.date.today().isoformat()
    return f"`python {' '.join(program)}`, {today}: {facts}.\n\n{render(record)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--no-peer", action="store_true", help="leave FlashAttention-4 out")
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)} (there are {', '.join(PARTS)})")
    for name in args.parts or PARTS:
        text = run_part(name, not args.no_peer)
        PAGE.write_text(replace_part(Path(PAGE).read_text(), name, text))


if __name__ == "__main__":
    main()
