"""The families that test/validation/numerics/seeds.py runs under many schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_mlir.errors import LaunchError
from attn_mlir.validation.numerics import seeds
from attn_mlir.validation.numerics.draws.axes import AXES
from attn_mlir.validation.numerics.draws.draw import plain
from attn_mlir.validation.numerics.draws.problem import SMALL_DRAWS, Outcome
from attn_mlir.validation.numerics.families import FAMILIES, name
from attn_mlir.validation.numerics.mha_cases import Schedule


def test_every_part_of_our_kernels_has_a_family() -> None:
    """Each axis of the draws with its choices, but for those of sizes, layouts and numbers."""
    assert len({name(family) for family in FAMILIES}) == len(FAMILIES)
    chosen = {item for family in FAMILIES for item in family.items()}
    free = {"arguments", "call", "layout", "numbers", "scale", "schedule"}
    assert {axis for axis, _ in chosen} == {axis.name for axis in AXES} - free
    for axis in ("dtype", "query tiles", "lse"):
        wanted = next(a for a in AXES if a.name == axis).choices[1:]
        assert {(axis, choice.name) for choice in wanted} <= chosen
    orders = {choice for axis, choice in chosen if axis == "tile order"}
    assert orders == {
        "persistent",
        "clc",
        "counter",
    }  # the others are what is chosen where none is asked for


def test_sequences_of_families_differ_and_are_empty() -> None:
    lengths = [
        (int(n), problem.sq)
        for number, family in enumerate(FAMILIES)
        if "lengths" in family
        for problem in [plain(SMALL_DRAWS + number, family)]
        for n in problem.lengths("q")
    ]
    assert any(n == 0 for n, _ in lengths) and any(0 < n < most for n, most in lengths)


@pytest.mark.slow
def test_a_family_runs_with_checkers() -> None:
    row = seeds.run_family(0, 1)
    assert (row.runs, row.failures) == (2, ())
    assert row.warp_instructions > 1000 and row.ptx_lines > 500


def test_wrong_numbers_and_findings_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(number: int, schedule: Schedule) -> Outcome:
        if schedule.seed == 1:
            raise LaunchError("a race")
        return Outcome("wrong" if schedule.seed == 2 else "", 1234, 7)

    monkeypatch.setattr(seeds, "run", run)
    row = seeds.run_family(0, 4)
    assert row.failures == ("adv1: attn_mlir.errors.LaunchError: a race", "adv2: wrong")
    assert row.cells()[1:] == ["1,234", "7", "3 of 5"]
    assert name(FAMILIES[0]) in seeds.table([row])


def test_the_page_keeps_everything_but_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{seeds.BEGIN}\nold\n{seeds.END}\nafter\n")
    seeds.write_page("new", page)
    assert page.read_text() == f"before\n{seeds.BEGIN}\nnew\n{seeds.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no place for the table"):
        seeds.write_page("new", page)
    assert seeds.BEGIN in seeds.PAGE.read_text() and seeds.END in seeds.PAGE.read_text()
