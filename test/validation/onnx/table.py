"""Runs every backend case of ONNX's `Attention` and writes the table of `docs/numerics.md`.

    python test/validation/onnx/table.py            # prints the table
    python test/validation/onnx/table.py --write    # also puts it into docs/numerics.md

Needs the package `onnx`.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from attn_mlir.validation.onnx.attention_cases import (
    INPUTS,
    OUTPUTS,
    Case,
    Outcome,
    all_cases,
    check,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "numerics.md"
BEGIN, END = "<!-- onnx table: begin -->\n", "<!-- onnx table: end -->\n"


def uses(case: Case) -> str:
    """What a case has beyond Q, K, V and Y."""
    inputs = [name for name in INPUTS[3:] if name in case.inputs]
    outputs = [name for name in OUTPUTS[1:] if name in case.outputs]
    heads = "3-d" if case.inputs["Q"].ndim == 3 else ""
    attributes = sorted(case.attributes.keys() - {"q_num_heads", "kv_num_heads"})
    return ", ".join(filter(None, [heads, *attributes, *inputs, *(f"-> {o}" for o in outputs)]))


def verdict(case: Case, outcome: Outcome) -> str:
    """The last column."""
    if outcome.reason:
        return "WRONG"
    return f"Y right; {', '.join(case.missing)} is not offered" if case.missing else "pass"


def table(outcomes: dict[str, Outcome]) -> str:
    """The table in Markdown, with its summary."""
    cases = all_cases()
    passed = sum(not o.reason and not cases[name].missing for name, o in outcomes.items())
    missing = sum(bool(cases[name].missing) for name in outcomes)
    wrong = sum(bool(o.reason) for o in outcomes.values())
    lines = [
        f"ONNX {version('onnx')}: of {len(outcomes)} cases {passed} pass, {missing} ask for "
        f"`qk_matmul_output`, which is not offered, and {wrong} are wrong.",
        "",
        "| case | has | worst error / allowed | result |",
        "| --- | --- | --- | --- |",
    ]
    for name, outcome in outcomes.items():
        short = name.removeprefix("test_attention_")
        row = [short, uses(cases[name]), f"{outcome.ratio:.2f}", verdict(cases[name], outcome)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the cases; 0 when no element of Y is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    args = parser.parse_args()
    outcomes = {name: check(case) for name, case in all_cases().items()}
    text = table(outcomes)
    print(text)
    if args.write:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])
    return int(any(outcome.reason for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
