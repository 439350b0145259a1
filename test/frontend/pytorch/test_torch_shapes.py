"""Ranks, repeated extents and masks: PyTorch's own function says the same of the operands of rank 4."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch.shapes import fold  # noqa: E402

reference = torch.nn.functional.scaled_dot_product_attention
SQ, SK, DIM, V_DIM = 3, 5, 4, 2


def randn(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


def operands(*leads: tuple[int, ...]) -> tuple[Any, Any, Any]:
    q, k, v = leads
    return randn(*q, SQ, DIM), randn(*k, SK, DIM), randn(*v, SK, V_DIM)


def folded(q: Any, k: Any, v: Any, mask: Any = None, *, enable_gqa: bool = False) -> Any:
    """The result by way of operands of rank 4, whose heads are grouped."""
    made = fold(q, k, v, enable_gqa=enable_gqa)
    assert made.query.dim() == made.key.dim() == made.value.dim() == 4
    mask = None if mask is None else made.mask(mask)
    return made.unfolded(
        reference(made.query, made.key, made.value, attn_mask=mask, enable_gqa=True)
    )


@pytest.mark.parametrize(
    "leads",
    [
        ((), (), ()),
        ((6,), (6,), (6,)),
        ((6,), (1,), (1,)),
        ((2, 4), (2, 4), (2, 4)),
        ((2, 4), (2, 1), (2, 1)),
        ((2, 4), (1, 4), (2, 4)),
        ((1, 4), (2, 4), (2, 4)),
        ((2, 1), (2, 4), (2, 4)),
        ((2, 4), (2, 1), (2, 4)),
        ((2, 4), (4,), (4,)),
        ((2, 4), (1,), ()),
        ((2, 4), (), ()),
        ((4,), (2, 4), (2, 4)),
        ((2, 3, 4), (2, 3, 4), (2, 3, 4)),
        ((2, 3, 4), (1, 3, 1), (2, 1, 1)),
        ((2, 1, 3, 4), (5, 1, 1), (1, 5, 3, 4)),
        ((0, 4), (0, 4), (0, 4)),
    ],
)
def test_ranks_and_repeated_extents(leads: Any) -> None:
    q, k, v = operands(*leads)
    torch.testing.assert_close(folded(q, k, v), reference(q, k, v))


@pytest.mark.parametrize(
    "leads",
    [
        ((4,), (2,), (2,)),
        ((2, 4), (2, 2), (2, 2)),
        ((2, 4), (1, 2), (2, 2)),
        ((2, 3, 4), (2, 3, 1), (2, 3, 1)),
        ((2, 3, 4), (2,), (3, 2)),
    ],
)
def test_grouped_heads(leads: Any) -> None:
    q, k, v = operands(*leads)
    torch.testing.assert_close(
        folded(q, k, v, enable_gqa=True), reference(q, k, v, enable_gqa=True)
    )


MASKS = {
    (): [(SQ, SK), (1, SK), (SQ, 1)],
    (6,): [(SQ, SK), (6, 1, SK), (1, SQ, SK)],
    (2, 4): [(SQ, SK), (4, SQ, SK), (2, 1, 1, SK), (1, 1, 1, 1), (2, 4, SQ, 1), (1, 4, 1, SK)],
    (2, 3, 4): [(SQ, SK), (3, 4, SQ, SK), (3, 1, SQ, SK), (2, 1, 4, 1, SK), (1, 1, 4, SQ, SK)],
}


@pytest.mark.parametrize("kind", ["float", "bool"])
@pytest.mark.parametrize(("lead", "shape"), [(k, s) for k, shapes in MASKS.items() for s in shapes])
def test_masks(lead: Any, shape: Any, kind: str) -> None:
    q, k, v = operands(lead, lead, lead)
    mask = randn(*shape) if kind == "float" else torch.rand(shape) < 0.6
    torch.testing.assert_close(folded(q, k, v, mask), reference(q, k, v, attn_mask=mask))


def test_nothing_is_copied_where_strides_can_say_it() -> None:
    packed = randn(2, 7, 3, 4, 8)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    made = fold(q, k, v[:, :1], enable_gqa=False)
    assert made.query.data_ptr() == q.data_ptr() and made.query.stride() == q.stride()
    assert made.value.stride()[1] == 0
    mask = torch.rand(7, 7).expand(2, 4, 7, 7)
    assert made.mask(mask).data_ptr() == mask.data_ptr()


@pytest.mark.parametrize(
    ("leads", "options", "message"),
    [
        (((2, 4), (2, 2), (2, 2)), {}, "batch and heads must agree or be 1, got query"),
        (((2, 4), (3, 4), (3, 4)), {}, "batch and heads must agree or be 1, got query"),
        (((), (), ()), {"enable_gqa": True}, r"query must be \[\.\.\., heads, sequence, head_dim"),
        (((2, 4), (2, 2), (2, 4)), {"enable_gqa": True}, "key has 2 heads, value has 4"),
    ],
)
def test_refused(leads: Any, options: dict[str, bool], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        folded(*operands(*leads), **options)


@pytest.mark.parametrize("shape", [(SK,), (), (3, 4, SQ, SK), (1, 2, 4, SQ, SK), (SQ, SQ)])
def test_masks_that_do_not_fit(shape: tuple[int, ...]) -> None:
    q, k, v = operands((2, 4), (2, 4), (2, 4))
    with pytest.raises(SpecError, match=r"attn_mask has shape .*which are \[2, 4, 3, 5\]"):
        folded(q, k, v, randn(*shape))
