"""Pairs of a wrong and a right kernel: every wrong one is found out, no right one is."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from attn_mlir.runtime.emulator.checkers import CHECKS
from attn_mlir.runtime.emulator.machine.faults import FaultKind
from attn_mlir.validation.emulator import (
    pairs_clusters,
    pairs_memory,
    pairs_order,
    pairs_promises,
    pairs_reads,
    pairs_registers,
    rules,
)
from attn_mlir.validation.emulator.kinds import SCHEDULES, Kind, check_wrong, run
from attn_mlir.validation.emulator.pairs_table import KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "emulator.md"
PAIRS = (
    *pairs_order.PAIRS,
    *pairs_memory.PAIRS,
    *pairs_reads.PAIRS,
    *pairs_registers.PAIRS,
    *pairs_clusters.PAIRS,
    *pairs_promises.PAIRS,
)
NAMES = [pair.name for pair in PAIRS]
UNPROMISED = [pair for pair in PAIRS if pair.found == "unpromised"]


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_the_wrong_one_is_found_out(pair: Kind) -> None:
    check_wrong(pair)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_the_right_one_is_not(pair: Kind, schedule: str, seed: int) -> None:
    assert run(pair, is_wrong=False, schedule=schedule, seed=seed) == []


@pytest.mark.parametrize("pair", UNPROMISED, ids=[pair.name for pair in UNPROMISED])
def test_what_silicon_does_is_no_other_finding(pair: Kind) -> None:
    assert {finding.check for finding in run(pair, is_wrong=True)} == {"unpromised"}


def test_the_page_has_the_rules_that_decide() -> None:
    assert all(pair.rule for pair in UNPROMISED)
    assert all(pair.found == "unpromised" for pair in PAIRS if pair.rule.startswith("open"))
    page = PAGE.read_text()
    texts = [text for name, text in vars(rules).items() if name.isupper()]
    assert {pair.rule for pair in PAIRS} == {"", *texts}
    assert [text for text in texts if f"| {text} |" not in page] == []


def test_every_check_and_every_fault_of_memory_has_a_kernel() -> None:
    others = {"descriptor", "tensor-map", "unsupported"}  # what a kernel asks for, not when
    known = {kind.found for kind in (*KINDS, *PAIRS)}
    assert known >= (set(CHECKS) | set(get_args(FaultKind))) - others


def test_there_are_enough_and_the_page_names_their_kinds() -> None:
    assert len({*NAMES, *(kind.name for kind in KINDS)}) == len(PAIRS) + len(KINDS) >= 120
    page = PAGE.read_text()
    assert [pair.title for pair in PAIRS if f"| {pair.title} |" not in page] == []
