"""The benchmark of products: what it checks before it measures."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from attn_mlir.bench import products


@pytest.mark.parametrize("place", [(0, 0), (71, 39)])
def test_a_wrong_element_is_seen(place: tuple[int, int]) -> None:
    a, b, c = products.operands(72, 40, 96, "cpu")
    assert products.worst(c, a, b) == float("inf")  # poisoned
    c.copy_(a @ b)
    assert products.worst(c, a, b) <= 1
    c[place] += 1
    assert products.worst(c, a, b) > 1
