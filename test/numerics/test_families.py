"""The families that test/numerics/seeds.py runs under many schedules."""

from __future__ import annotations

from pathlib import Path

import families
import pytest
import seeds
from families import FAMILIES
from mha_cases import Schedule

import attn_mlir as am
from attn_mlir.errors import LaunchError


def test_every_part_of_our_kernels_has_a_family() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert {family.dtype for family in FAMILIES} == {"bf16", "f16", "e4m3"}
    assert {(f.head_dim, f.v_head_dim) for f in FAMILIES} >= {(64, 64), (128, 128), (192, 128)}
    masks = {am.causal(), am.full(), am.sliding_window(70, 20), am.prefix_lm(150)}
    assert {family.mask for family in FAMILIES} == masks
    options = [item for family in FAMILIES for item in family.options.items()]
    assert {("query_tiles", 1), ("query_tiles", 2), ("return_lse", False)} <= set(options)
    assert {("tile_order", "persistent"), ("tile_order", "clc")} <= set(options)


@pytest.mark.slow
def test_a_family_runs_with_checkers() -> None:
    row = seeds.run_family(0, 1)
    assert (row.runs, row.failures) == (2, ())
    assert row.warp_instructions > 1000 and row.ptx_lines > 500


def test_wrong_numbers_and_findings_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(number: int, schedule: Schedule) -> tuple[str, int]:
        if schedule.seed == 1:
            raise LaunchError("a race")
        return ("wrong" if schedule.seed == 2 else ""), 7

    monkeypatch.setattr(seeds, "run", run)
    monkeypatch.setattr(seeds, "ptx_lines", lambda _: 1234)
    row = seeds.run_family(0, 4)
    assert row.failures == ("adv1: attn_mlir.errors.LaunchError: a race", "adv2: wrong")
    assert row.cells()[1:] == ["1,234", "7", "3 of 5"]
    assert families.FAMILIES[0].name in seeds.table([row])


def test_the_page_keeps_everything_but_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{seeds.BEGIN}\nold\n{seeds.END}\nafter\n")
    seeds.write_page("new", page)
    assert page.read_text() == f"before\n{seeds.BEGIN}\nnew\n{seeds.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="no place for the table"):
        seeds.write_page("new", page)
    assert seeds.BEGIN in seeds.PAGE.read_text() and seeds.END in seeds.PAGE.read_text()
