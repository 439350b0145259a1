"""Every kind of finding: a minimal kernel that has it, and a near miss that has not.

A line that begins with `<wrong>` is in the first only, one with `<right>` in the second only. `docs/emulator.md`
shows the table of kinds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_mlir.validation.emulator.kinds import SCHEDULES, Kind, check_wrong, run
from attn_mlir.validation.emulator.pairs_table import KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "emulator.md"
IDS = [kind.title for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_the_kernel_is_found_out(kind: Kind) -> None:
    check_wrong(kind)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_the_near_miss_is_not(kind: Kind, schedule: str, seed: int) -> None:
    assert run(kind, is_wrong=False, schedule=schedule, seed=seed) == []


def test_the_page_lists_every_kind() -> None:
    page = PAGE.read_text()
    assert [title for title in IDS if f"| {title} |" not in page] == []
