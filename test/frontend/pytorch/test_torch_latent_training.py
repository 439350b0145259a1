"""Gradients of latent attention before absorption by PyTorch's autograd: one node, also in graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch.latent.operators import mla_call_op  # noqa: E402
from attn_mlir.runtime.devices.idle import IdleDevice  # noqa: E402
from attn_mlir.runtime.kernel import launching_on  # noqa: E402
from attn_mlir.validation.effects import only_planned  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32  # noqa: E402

SCALE = 0.11
NAMES = ("q_nope", "q_rope", "k_nope", "k_rope", "v")


@pytest.fixture(autouse=True)
def recorded(graphs_afresh: None) -> Iterator[None]:
    """Enables gradients."""
    del graphs_afresh
    with torch.enable_grad():
        yield


def leaves(sq: int = 9, sk: int = 13, batch: int = 1) -> list[Any]:
    """The operands of `am.mla` with two heads."""
    shapes = (
        (batch, sq, 2, 64),
        (batch, sq, 2, 16),
        (batch, sk, 2, 64),
        (batch, sk, 1, 16),
        (batch, sk, 2, 40),
    )
    return [torch.randn(x).bfloat16().requires_grad_() for x in shapes]


def plain(*operands: Any, causal: bool = True) -> tuple[Any, Any]:
    """O and LSE in float64."""
    q_nope, q_rope, k_nope, k_rope, v = (x.double() for x in operands)
    q, k = torch.cat([q_nope, q_rope], -1), torch.cat([k_nope, k_rope.expand(-1, -1, 2, -1)], -1)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * SCALE
    sq, sk = scores.shape[-2:]
    if causal:
        scores = scores.masked_fill(~torch.ones(sq, sk).tril(sk - sq).bool(), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


def near(found: Any, truth: Any) -> None:
    """Each element is off by 2% of the largest at most."""
    for got, expected in zip(found, truth, strict=True):
        error = (got.double() - expected.double()).abs().max()
        assert error <= 0.02 * expected.double().abs().max()


def call(*operands: Any) -> tuple[Any, Any]:
    return am.mla(*operands, mask=am.causal(), scale=SCALE, return_lse=True)


def loss(o: Any, lse: Any) -> Any:
    """A number that depends on O and LSE."""
    weights = torch.linspace(-1, 1, o.numel(), dtype=o.dtype).reshape(o.shape)
    return (o * weights).sum() + (lse * torch.linspace(0, 1, lse.shape[-1], dtype=lse.dtype)).sum()


def test_gradients_are_those_of_the_formula_also_in_one_graph() -> None:
    operands = leaves()
    truth = torch.autograd.grad(loss(*plain(*operands)), operands)
    found = torch.autograd.grad(loss(*call(*operands)), operands)
    near(found, truth)
    compiled = torch.compile(lambda *x: loss(*call(*x)), fullgraph=True, backend="aot_eager")
    same = torch.autograd.grad(compiled(*operands), operands)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for one, other in zip(found, same, strict=True):
        assert torch.equal(one, other)


def test_o_alone_is_one_node_and_only_what_is_wanted_is_launched() -> None:
    operands = leaves()
    wanted = [operands[1]]
    for x in (*operands[:1], *operands[2:]):
        x.requires_grad_(False)
    with only_planned() as plans, launching_on(IdleDevice("sm_90a")):
        o = am.mla(*operands, scale=SCALE)
        assert type(o.grad_fn).__name__ == "_MlaBackward"
        plans.clear()
        torch.autograd.grad(o, wanted, torch.ones_like(o))
    assert [x.request.operation for plan in plans for x in plan.steps] == [
        "delta",
        "mla_q_gradients",
    ]


@pytest.mark.long
def test_rows_past_the_lengths_have_gradients_of_0() -> None:
    operands = leaves(batch=2)
    o = am.mla(*operands, scale=SCALE, seqused_q=i32(9, 4), seqused_k=i32(7, 13))
    mask = torch.ones_like(o)
    mask[1, 4:] = 0
    found = torch.autograd.grad(o, operands, mask)
    for b, (queries, keys) in enumerate(((9, 7), (4, 13))):
        used = [
            x[b : b + 1, : queries if n < 2 else keys].detach().requires_grad_()
            for n, x in enumerate(operands)
        ]
        truth = torch.autograd.grad(plain(*used, causal=False)[0].sum(), used)
        near([x[b : b + 1, : y.shape[1]] for x, y in zip(found, used, strict=True)], truth)
        for x, y in zip(found, used, strict=True):
            assert not x[b, y.shape[1] :].any()


@pytest.mark.long
def test_the_operator_has_its_gradients() -> None:
    """With and without gradients of some; PyTorch's own checks of an operator."""
    operands = leaves(3, 4)
    operands[3].requires_grad_(False)
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    )
    torch.library.opcheck(
        mla_call_op, (*operands, SCALE, "causal", ""), {"return_lse": True}, test_utils=tests
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"out_dtype": torch.float32}, "v requires a gradient, which .* out_dtype f32 has no kernel"),
        ({"k_rope": am.ContiguousKV(torch.zeros(1, 13, 1, 576).bfloat16(), None, None)}, "k_rope of a Contiguous"),
        ({"v": torch.zeros(1, 13, 2, 256, dtype=torch.bfloat16), "q_nope": torch.zeros(1, 9, 2, 128, dtype=torch.bfloat16),
          "k_nope": torch.zeros(1, 13, 2, 128, dtype=torch.bfloat16)}, r"nope_dim \+ rope_dim must be at most 320 with v_head_dim, got 144"),
    ],
)  # fmt: skip
def test_a_call_without_gradients_is_refused_before_it_is_launched(
    changed: dict[str, Any], message: str
) -> None:
    named = dict(zip(NAMES, leaves(), strict=True))
    named = {name: x.detach() for name, x in named.items()} | changed
    named["v"].requires_grad_()
    with (
        only_planned() as plans,
        launching_on(IdleDevice("sm_90a")),
        pytest.raises(SpecError, match=message),
    ):
        am.mla(**named, scale=SCALE)
    assert not plans


def test_there_is_no_second_derivative() -> None:
    operands = leaves(3, 4)
    o = am.mla(*operands, scale=SCALE)
    (first,) = torch.autograd.grad(o.float().sum(), operands[:1], create_graph=True)
    with pytest.raises(SpecError, match="no second derivative"):
        first.float().sum().backward()
