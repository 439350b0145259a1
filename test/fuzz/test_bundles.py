"""The slice of the bundles' fuzz that every run of the tests takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bundles


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_a_typed_error_or_a_right_result(first: int) -> None:
    for number in range(first, first + 10):
        try:
            bundles.attempt(number)
        except Exception as error:
            raise AssertionError(f"bundles.attempt({number}): {error!r}") from error


def test_a_case_does_not_depend_on_others() -> None:
    assert bundles.attempt(3) == bundles.attempt(3)
    assert bundles.COUNT >= 300
