"""Arrays of `attn_mlir.mods` that are learned: their gradients, eagerly and where graphs make the modifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir.torch as at  # noqa: E402
from attn_mlir import attention, mods  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402

HEADS, ROWS, DIM, REACH = 2, 20, 32, 4
DISTANCES = torch.arange(ROWS) - torch.arange(ROWS)[:, None]  # of a key behind a query
Added = Callable[[Any], Any]

LEARNED: dict[str, tuple[tuple[int, ...], Callable[[Any], Any], Added]] = {
    "relative_bias": (
        (HEADS, 2 * REACH + 1), mods.relative_bias,
        lambda table: table[:, DISTANCES.clamp(-REACH, REACH) + REACH],
    ),
    "bias": ((HEADS, ROWS, ROWS), lambda x: mods.bias(x[None]), lambda x: x),
    "alibi": ((HEADS,), mods.alibi, lambda slopes: -slopes[:, None, None] * DISTANCES.abs()),
}  # fmt: skip


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients(name: str, is_compiled: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    shape, modifier, added = LEARNED[name]
    q, k, v, do = (torch.randn(1, HEADS, ROWS, DIM, dtype=torch.bfloat16) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v, torch.randn(shape))]

    def attend(q: Any, k: Any, v: Any, learned: Any) -> Any:
        return at.flex_attention(q, k, v, score_mod=modifier(learned))

    call = torch.compile(attend, fullgraph=True, backend="aot_eager") if is_compiled else attend
    with torch.enable_grad():
        found = torch.autograd.grad(call(*leaves), leaves, do)
        true = [x.detach().double().requires_grad_() for x in leaves]
        scores = true[0] @ true[1].mT / DIM**0.5 + added(true[3])
        o = scores.softmax(-1) @ true[2]
        expected = torch.autograd.grad(o, true, do.double())
    for x, y in zip(found, expected, strict=True):
        assert (x - y).abs().max() <= 2.0**-6 * y.abs().max()


def test_the_gradient_of_an_array_alone_is_refused() -> None:
    """q, k and v require no gradient, and no kernel computes only the gradient of the table."""
    x = torch.randn(1, ROWS, HEADS, DIM, dtype=torch.bfloat16)
    table = torch.zeros(HEADS, 2 * REACH + 1, requires_grad=True)
    with torch.enable_grad(), pytest.raises(SpecError, match="table requires a gradient"):
        attention(x, x, x, score_mod=mods.relative_bias(table))


def test_the_order_of_sums_is_the_one_that_torch_asks_for() -> None:
    """A table that is read twice has no kernel that gives the same bits every time."""
    x = torch.randn(1, ROWS, HEADS, DIM, dtype=torch.bfloat16, requires_grad=True)
    table = torch.zeros(HEADS, 2 * REACH + 1, requires_grad=True)

    def twice(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + table[h, (q - k) // ROWS + REACH] * (1 + table[h, REACH])

    def attend() -> Any:
        return attention(x, x, x, score_mod=twice)

    with torch.enable_grad():
        attend().sum().backward()
        assert table.grad.isfinite().all()
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(SpecError, match="deterministic"):
                attend()
        finally:
            torch.use_deterministic_algorithms(False)
