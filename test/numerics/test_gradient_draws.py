"""Drawn calls of `attention_backward`; `make numerics` has 300."""

from __future__ import annotations

import pytest

from attn_mlir.validation.numerics import gradient_draws


@pytest.mark.parametrize("number", range(12))
@pytest.mark.long("4", "5", "6", "7", "8", "9", "10", "11")
def test_draws(number: int) -> None:
    assert not gradient_draws.DRAWS.failure(number)
