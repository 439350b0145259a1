"""Jagged nested tensors of PyTorch, in our function and in PyTorch's own while it is ours."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
inner: Any = pytest.importorskip("torch.nested._internal.sdpa")

import attn_mlir.torch as at  # noqa: E402
from attn_mlir.aten import operators  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch.shapes import outside_of  # noqa: E402

D = 64
sdpa = torch.nn.functional.scaled_dot_product_attention


def offsets_of(*lengths: int) -> Any:
    return torch.tensor([0, *lengths]).cumsum(0)


def jagged(offsets: Any, heads: int = 2, size: int = D, seed: int = 0, **options: Any) -> Any:
    """[batch, heads, ragged, size], of rows that require a gradient."""
    made = torch.Generator().manual_seed(seed)
    rows = torch.randn(int(offsets[-1]), heads, size, generator=made).bfloat16().requires_grad_()
    made = torch.nested.nested_tensor_from_jagged(rows, offsets, **options).transpose(1, 2)
    return made, rows


def truth(rows: list[Any], bounds: list[list[tuple[int, int]]], **options: Any) -> list[Any]:
    """O of each sequence, [length, heads, size] in float64."""
    return [
        sdpa(*(x[a:b].transpose(0, 1) for x, (a, b) in zip(rows, of, strict=True)), **options)
        .transpose(0, 1)
        for of in zip(*bounds, strict=True)
    ]  # fmt: skip


def spans(offsets: Any, lengths: Any = None) -> list[tuple[int, int]]:
    ends = offsets[1:] if lengths is None else offsets[:-1] + lengths
    return list(zip(offsets[:-1].tolist(), ends.tolist(), strict=True))


def check(made: Any, rows: list[Any], bounds: list[list[tuple[int, int]]], **options: Any) -> None:
    """O of each sequence, and the gradients of a weighted sum of its elements."""
    o = made.transpose(1, 2).values()
    weights = torch.linspace(-1, 1, o.numel()).reshape(o.shape)
    (o * weights).sum().backward()
    wide = [x.detach().double().requires_grad_() for x in rows]
    found = truth(wide, bounds, **options)
    total = sum((x * weights[a:b]).sum() for x, (a, b) in zip(found, bounds[0], strict=True))
    total.backward()
    for x, (a, b) in zip(found, bounds[0], strict=True):
        assert torch.allclose(o[a:b].double(), x, atol=0.02)
    for ours, theirs in zip(rows, wide, strict=True):
        assert (ours.grad - theirs.grad).abs().max() < 0.03 * max(1, theirs.grad.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.long("False")
def test_keys_of_other_lengths_than_queries(is_causal: bool) -> None:
    """Grouped heads, a sequence without queries, and values of another head size."""
    of_q, of_k = offsets_of(4, 0, 9), offsets_of(7, 3, 5)
    (q, *x), (k, *y) = jagged(of_q, 4), jagged(of_k, seed=1)
    v, *z = jagged(of_k, size=36, seed=2)
    made = at.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    bounds = [spans(of_q), spans(of_k), spans(of_k)]
    check(made, [*x, *y, *z], bounds, is_causal=is_causal, enable_gqa=True)


@pytest.mark.slow
def test_the_result_is_combined_with_the_query() -> None:
    """Query and result share one offsets tensor; `lengths` leave rows of 0 between sequences."""
    offsets, lengths = offsets_of(6, 9), torch.tensor([4, 5])
    q, k, v = (jagged(offsets, seed=i, lengths=lengths) for i in range(3))
    made = at.scaled_dot_product_attention(q[0], k[0], v[0], is_causal=True)
    assert made.shape == q[0].shape and (made + q[0]).offsets() is offsets
    outside = [4, 5, *range(11, 15)]
    assert not made.transpose(1, 2).values()[outside].any()
    rows = [x for _, x in (q, k, v)]
    check(made, rows, [spans(offsets, lengths)] * 3, is_causal=True)
    assert not any(x.grad[outside].any() for x in rows)


@pytest.mark.slow
def test_rows_before_the_first_sequence_are_outside() -> None:
    """As of `torch.nested.narrow`, whose first offset is where the first sequence begins."""
    start, length = torch.tensor([3, 2]), torch.tensor([5, 3])
    x = torch.full((2, 10, 2, D), torch.nan).bfloat16()
    for i, (begin, count) in enumerate(zip(start, length, strict=True)):
        x[i, begin : begin + count] = i
    x = torch.nested.narrow(x, 1, start, length, layout=torch.jagged).transpose(1, 2)
    rows = at.scaled_dot_product_attention(x, x, x).transpose(1, 2).values()
    assert rows[12:15].eq(1).all() and not rows[[*range(12), *range(15, 20)]].any()
    outside = outside_of(rows, length, x.offsets())
    assert outside.tolist() == [not (3 <= i < 8 or 12 <= i < 15) for i in range(20)]


@pytest.mark.slow
def test_compiled_with_gradients(graphs_afresh: None) -> None:
    """One graph for any lengths."""
    compiled = torch.compile(
        lambda q, k, v: at.scaled_dot_product_attention(q, k, v) * 2.0,
        backend="aot_eager",
        fullgraph=True,
    )
    for lengths in ((4, 9), (8, 3)):
        offsets = offsets_of(*lengths)
        with torch.enable_grad(), torch._dynamo.config.patch(error_on_recompile=lengths[0] == 8):
            q, k, v = (jagged(offsets, seed=i) for i in range(3))
            check(compiled(q[0], k[0], v[0]) * 0.5, [x for _, x in (q, k, v)], [spans(offsets)] * 3)


@pytest.mark.slow
def test_pytorchs_own_function_while_activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: on the host PyTorch never chooses flash attention for nested tensors."""
    monkeypatch.setattr(inner, "_select_sdp_backend", lambda *_: inner.SDPBackend.FLASH_ATTENTION)
    offsets = offsets_of(4, 9)
    taken: list[Any] = []
    ours = operators.flash_attention_forward
    watched = [lambda *x, **y: taken.append(x) or ours(*x, **y), operators.flash_attention_backward]
    for function, of in zip(watched, (ours, watched[1]), strict=True):
        function.__name__ = of.__name__
    monkeypatch.setitem(operators.OPERATORS, "cpu", watched)
    q, k, v = (jagged(offsets, seed=i) for i in range(3))
    with at.activate("cpu"):
        made = sdpa(q[0], k[0], v[0], is_causal=True)
        assert len(taken) == 1 and made.shape == q[0].shape
        check(made, [x for _, x in (q, k, v)], [spans(offsets)] * 3, is_causal=True)


OF = offsets_of(4, 9)
Q = jagged(OF)[0].detach()
DENSE = torch.randn(2, 2, 8, D).bfloat16()
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "key is dense: query, key and value must be nested": ((Q, DENSE, Q), {}),
    "query is dense": ((DENSE, Q, Q), {}),
    "value is int": ((Q, Q, 3), {}),
    "attn_mask of nested tensors has no kernel": (
        (Q, Q, Q), {"attn_mask": torch.ones(8, 8, dtype=torch.bool)},
    ),
    "attn_mask and is_causal exclude": ((Q, Q, Q), {"attn_mask": Q, "is_causal": True}),
    "dropout_p must be 0": ((Q, Q, Q), {"dropout_p": 0.5}),
    "only torch.jagged is offered": ((torch.nested.nested_tensor([DENSE[0]] * 2),) * 3, {}),
    "must be .batch, heads, ragged, head_dim.*transpose": ((Q.transpose(1, 2),) * 3, {}),
    "have 2, 3 and 2 sequences": ((Q, jagged(offsets_of(4, 9, 1))[0].detach(), Q), {}),
    "enable_gqa=True": ((jagged(OF, 4)[0].detach(), Q, Q), {}),
    "value has other sequences": ((Q, Q, jagged(offsets_of(5, 8))[0].detach()), {}),
    "value has other sequences than key": (
        (Q, *(jagged(OF, lengths=torch.tensor(x))[0].detach() for x in ([4, 9], [4, 8]))), {},
    ),
    "query is torch.float32": ((Q.float(), Q.float(), Q.float()), {}),
    "query is torch.bfloat16|key is torch.float16": ((Q, Q.half(), Q.half()), {}),
    "key has head_dim 32, query has 64": ((Q, *[jagged(OF, size=32)[0].detach()] * 2), {}),
    "scale": ((Q, Q, Q), {"scale": -1.0}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_name_the_argument(message: str, no_compiler: type[Exception]) -> None:
    operands, options = REFUSED[message]
    with pytest.raises(SpecError, match=message):
        at.scaled_dot_product_attention(*operands, **options)


def test_sequences_of_one_length_with_other_offsets(no_compiler: type[Exception]) -> None:
    """Offsets of keys and values that are equal, but not one object, name the same sequences."""
    value = jagged(offsets_of(4, 9))[0].detach()
    with pytest.raises(no_compiler):
        at.scaled_dot_product_attention(Q, Q, value)
