"""The backend cases of ONNX's `Attention`, on the emulator; needs the package `onnx`."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

from attn_mlir.validation.onnx.attention_cases import all_cases, check

pytestmark = pytest.mark.slow
CASES = all_cases()


def test_every_case_is_here() -> None:
    assert len(CASES) == 93


@pytest.mark.parametrize("name", CASES)
def test_y(name: str) -> None:
    """Also of the cases that ask for an output that is not offered beside Y."""
    assert check(CASES[name]).reason == ""
