"""What calls choose is what the kept table says: schedule, tiles, order, splits, workspace, or the refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_mlir.validation.choices.grid import cases
from attn_mlir.validation.choices.table import (
    COMMAND,
    differences,
    kept_rows,
    rows_of,
    sample,
    write_rows,
)

SHARE = 6  # one call in six is compared by `make test`
SHOWN = 20  # of the rows that differ


@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.long)])
def test_calls_choose_what_is_kept(share: int) -> None:
    kept, rows = kept_rows(), rows_of(sample(share))
    changed = differences({call: kept[call] for call in rows if call in kept}, rows)
    told = "\n".join(changed[:SHOWN])
    assert not changed, f"{len(changed)} rows differ; if they are meant to:\n  {COMMAND}\n{told}"


def test_every_call_of_the_grid_is_kept_and_no_other() -> None:
    kept = [call for call in kept_rows() if not call.startswith("kernel ")]
    assert kept == [str(case) for case in cases()]


def test_differences_name_the_row() -> None:
    old, new = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}
    assert differences(old, new) == [
        "b\n  old: 2\n  new: 4",
        "c\n  old: 3\n  new: (no row)",
        "d\n  old: (no row)\n  new: 5",
    ]


def test_a_table_is_kept_as_it_was(tmp_path: Path) -> None:
    rows = {"call a=1": "kernel; x[1,2]", "call b=2": "SpecError: no | kernel"}
    path = tmp_path / "table.xz"
    assert kept_rows(path) == {}
    write_rows(rows, path)
    assert kept_rows(path) == rows
    first = path.read_bytes()
    write_rows(rows, path)
    assert path.read_bytes() == first
