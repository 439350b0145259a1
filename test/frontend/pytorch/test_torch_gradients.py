"""Gradients of the doors of PyTorch: autograd gets what a plain softmax in float64 gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402 # pyright: ignore
from torch.autograd import forward_ad  # noqa: E402 # pyright: ignore
from torch.utils.checkpoint import checkpoint  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir import flash  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.mods import softcap  # noqa: E402
from attn_mlir.pytorch.attention_call import attention_call_op  # noqa: E402
from attn_mlir.pytorch.autograd import DIFFERENTIABLE  # noqa: E402
from attn_mlir.pytorch.operators import attention_op  # noqa: E402
from attn_mlir.runtime.devices.idle import IdleDevice  # noqa: E402
from attn_mlir.runtime.kernel import launching_on  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32  # noqa: E402

HEADS, KV_HEADS, SQ, SK, DIM = 4, 2, 20, 33, 32
OPERATORS = ("attn_mlir.attention", "attn_mlir.attention_call", "attn_mlir.attention_backward_call")


@pytest.fixture(autouse=True)
def recorded() -> Iterator[None]:
    """Gradients are recorded, of the same random numbers each time, by a compiler without graphs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.enable_grad():
        yield


def leaf(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(shape).to(dtype).requires_grad_()


def operands(sq: int = SQ, sk: int = SK, width: int = DIM, **options: Any) -> tuple[Any, Any, Any]:
    """As `attn_mlir.attention` takes them."""
    shapes = (sq, HEADS, DIM), (sk, KV_HEADS, DIM), (sk, KV_HEADS, width)
    return tuple(leaf(1, *shape, **options) for shape in shapes)  # type: ignore[return-value]


def plain(
    q: Any, k: Any, v: Any, sinks: Any = None, *,
    causal: bool = False, left: int | None = None, cap: float = 0.0, top: bool = False,
) -> Any:  # fmt: skip
    """O and LSE of [batch, rows, heads, head_dim] in float64; the last query sees the last key, or
    with `top` the first one the first.
    """
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    sq, sk = scores.shape[-2:]
    scores = cap * (scores / cap).tanh() if cap else scores
    ahead = torch.arange(sk) - torch.arange(sq)[:, None] - (0 if top else sk - sq)
    hidden = (ahead > 0) & causal | (ahead < -(sk if left is None else left))
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        logits = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, logits], -1)
    return (scores.softmax(-1)[..., :sk] @ v).transpose(1, 2), scores.logsumexp(-1)


def of_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of [batch, heads, rows, head_dim], for operands as `attn_mlir.attention` has them."""

    def call(*given: Any) -> Any:
        o, *lse = function(*(x.transpose(1, 2) for x in given))
        return o.transpose(1, 2), *lse

    return call


def near(found: Any, truth: Any) -> None:
    """Of 8 bits, or f16 of 11: each element is off by 2% of the largest at most."""
    for got, expected in zip(found, truth, strict=True):
        assert (
            got.double() - expected.double()
        ).abs().max() <= 0.02 * expected.double().abs().max()


def gradients(results: Any, leaves: Any, seed: int = 3) -> tuple[Any, ...]:
    """Of all results at once, each with random weights."""
    random = torch.Generator().manual_seed(seed)
    weights = [torch.randn(x.shape, generator=random, dtype=torch.float64) for x in results]
    return torch.autograd.grad(
        results, leaves, [w.to(x) for w, x in zip(weights, results, strict=True)]
    )


DOORS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (lambda *x: am.attention(*x, return_lse=True), {}),
    "attention, causal": (
        lambda *x: am.attention(*x, mask=am.causal(), return_lse=True), {"causal": True},
    ),
    "flex_attention": (
        of_torch(lambda *x: at.flex_attention(*x, enable_gqa=True, return_lse=True)), {},
    ),
    "softcap and sinks": (
        lambda *x: flash.flash_attn_func(
            *x[:3], softcap=2.0, learnable_sink=x[3], return_attn_probs=True
        )[:2],
        {"cap": 2.0},
    ),
    "flash_attn_func": (
        lambda *x: flash.flash_attn_func(
            *x, causal=True, window_size=(9, 0), deterministic=True, return_attn_probs=True
        )[:2],
        {"causal": True, "left": 9},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOORS)
def test_gradients_are_those_of_a_plain_softmax(name: str) -> None:
    """Of O and of LSE, with groups of query heads and unequal lengths; sinks have one as well."""
    function, options = DOORS[name]
    leaves: tuple[Any, ...] = operands()
    if "sinks" in name:
        leaves = *leaves, leaf(HEADS, dtype=torch.float32)
    results, truth = function(*leaves), plain(*leaves, **options)
    near(results, truth)
    near(gradients(results, leaves), gradients(truth, leaves))


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)], ids=["O", "LSE", "both"])
def test_one_result_may_have_no_gradient(which: tuple[int, ...]) -> None:
    leaves = operands(8, 8)
    results, truth = am.attention(*leaves, return_lse=True), plain(*leaves)
    found, expected = ([x[i] for i in which] for x in (results, truth))
    if which == (1,):
        leaves = leaves[:2]
    near(gradients(found, leaves), gradients(expected, leaves))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaled_dot_product_attention(dtype: Any) -> None:
    """With a head size that 8 does not divide, and operands that no kernel reads where they lie."""
    leaves = tuple(leaf(2, 2, DIM + 4, 16, dtype=dtype) for _ in range(3))
    q, k, v = (x.mT for x in leaves)
    o = at.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)
    wide = [x.double() for x in (q, k, v)]
    truth = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, scale=0.2)
    near([o], [truth])
    near(gradients([o], leaves), gradients([truth], leaves))


def test_sequences_one_behind_the_other() -> None:
    """Packed, with an empty one; the gradient is that of the packed tensor."""
    ends = torch.tensor([0, 7, 7, 40], dtype=torch.int32)
    qkv = leaf(40, 3, 2, DIM)
    o, lse, _ = flash.flash_attn_varlen_qkvpacked_func(
        qkv, ends, 33, causal=True, return_attn_probs=True
    )
    parts = [plain(*qkv[None, a:b].unbind(2), causal=True) for a, b in ((0, 7), (7, 40))]
    truth = torch.cat([x[0][0] for x in parts]), torch.cat([x[1][0] for x in parts], 1)
    near((o, lse), truth)
    near(gradients((o, lse), [qkv]), gradients(truth, [qkv]))


@pytest.mark.parametrize("kv", ["kv", "qkv"])
def test_packed(kv: str) -> None:
    if kv == "qkv":
        leaves = (leaf(1, 16, 3, 2, DIM),)
        o, parts = flash.flash_attn_qkvpacked_func(*leaves), leaves[0].unbind(2)
    else:
        leaves = leaf(1, SQ, HEADS, DIM), leaf(1, SK, 2, KV_HEADS, DIM)
        o, parts = flash.flash_attn_kvpacked_func(*leaves), (leaves[0], *leaves[1].unbind(2))
    near(gradients([o], leaves), gradients([plain(*parts)[0]], leaves))


@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_no_sequence_have_no_gradient(packed: bool) -> None:
    """Those past `seqused`: not what memory held."""
    used = {"seqused_q": [5, 16], "seqused_k": [16, 3]}
    lengths = {name: torch.tensor(x, dtype=torch.int32) for name, x in used.items()}
    leaves = tuple(leaf(2, 16, 2, DIM) for _ in range(3))
    given = leaves
    if packed:
        ends = torch.tensor([0, 16, 32], dtype=torch.int32)
        lengths |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        given = tuple(x.flatten(0, 1) for x in leaves)
    o = am.attention(*given, **lengths).view(2, 16, 2, DIM)
    written = [o[b, :rows] for b, rows in enumerate(used["seqused_q"])]
    found = torch.autograd.grad(torch.cat(written).float().square().sum(), leaves)
    for b, (sq, sk) in enumerate(zip(*used.values(), strict=True)):
        parts = leaves[0][b : b + 1, :sq], leaves[1][b : b + 1, :sk], leaves[2][b : b + 1, :sk]
        expected = torch.autograd.grad(plain(*parts)[0].square().sum(), leaves)
        near([x[b] for x in found], [x[b] for x in expected])


def test_a_gradient_of_zero_strides_or_other_order() -> None:
    """That of a sum has strides of 0; that of a transposed O is transposed; that of LSE is too."""
    leaves = operands(16, 16)
    o, lse = am.attention(*leaves, return_lse=True)
    truth = plain(*leaves)
    for reduced in (lambda o, _: o.sum(), lambda o, lse: o.transpose(1, 3).sin().sum() + lse.sum()):
        found, expected = reduced(o, lse), reduced(*truth)
        near(
            torch.autograd.grad(found, leaves, retain_graph=True),
            torch.autograd.grad(expected, leaves, retain_graph=True),
        )
    do = torch.randn(1, 16, DIM, HEADS).bfloat16().mT
    near(
        torch.autograd.grad(o, leaves, do), torch.autograd.grad(truth[0], leaves, do.double()),
    )  # fmt: skip


@pytest.mark.parametrize("which", [(0,), (1, 2), (2,)])
def test_only_what_requires_a_gradient_has_one(which: tuple[int, ...]) -> None:
    given = [x.detach() for x in operands(8, 8)]
    leaves = [given[i].requires_grad_() for i in which]
    am.attention(*given).float().sum().backward()
    assert [x.grad is not None for x in given] == [i in which for i in range(3)]
    near([x.grad for x in leaves], torch.autograd.grad(plain(*given)[0].sum(), leaves))


def test_a_checkpoint_gives_the_same_bits() -> None:
    leaves = tuple(x.transpose(1, 2) for x in operands(16, 16))

    def layer(q: Any, k: Any, v: Any) -> Any:
        return at.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sin()

    whole = gradients([layer(*leaves)], leaves)
    again = gradients([checkpoint(layer, *leaves, use_reentrant=False)], leaves)
    assert all(torch.equal(x, y) for x, y in zip(whole, again, strict=True))


def test_autocast() -> None:
    """Parameters of 32 bits get gradients of 32 bits."""
    leaves = tuple(leaf(1, 2, 16, DIM, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        o = at.scaled_dot_product_attention(*leaves)
    found = gradients([o], leaves)
    assert o.dtype == torch.bfloat16
    assert all(x.dtype == torch.float32 for x in found)
    truth = torch.nn.functional.scaled_dot_product_attention(*leaves)
    near(found, gradients([truth], leaves))


MODIFIED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "score_mod": (lambda *x: at.flex_attention(*x, score_mod=softcap(2.0)), {"cap": 2.0}),
    "mask_mod": (
        lambda *x: at.flex_attention(*x, mask_mod=lambda b, h, i, j: i >= j),
        {"causal": True, "top": True},
    ),
    "is_causal": (
        lambda *x: at.scaled_dot_product_attention(*x, is_causal=True),
        {"causal": True, "top": True},
    ),
}


@pytest.mark.parametrize("name", MODIFIED)
def test_modifiers(name: str) -> None:
    """Eagerly and in a graph, with the same bits."""
    function, options = MODIFIED[name]

    def door(q: Any, k: Any, v: Any) -> Any:
        return function(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    leaves = tuple(leaf(1, rows, 2, DIM) for rows in (SQ, SK, SK))
    called, found = compiled(door, leaves)
    assert called == ["attn_mlir.attention", "attn_mlir.attention_backward_call"]
    near(found, gradients([plain(*leaves, **options)[0]], leaves))
    eager = gradients([door(*leaves)], leaves)
    assert all(torch.equal(x, y) for x, y in zip(found, eager, strict=True))


def test_captured_tensors_that_change_are_noticed() -> None:
    bias = torch.zeros(HEADS)
    o = am.attention(*operands(8, 8), score_mod=lambda score, b, h, i, j: score + bias[h])
    bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def compiled(door: Callable[..., Any], leaves: Any) -> tuple[list[str], tuple[Any, ...]]:
    """The operators of both graphs of a door, which is one graph, and its gradients."""
    called: list[str] = []

    def note(module: Any, _: Any) -> Any:
        called.extend(str(node.target) for node in module.graph.nodes)
        return module

    one = torch.compile(
        door, fullgraph=True, backend=aot_autograd(fw_compiler=note, bw_compiler=note)
    )
    found = gradients([one(*leaves)], leaves)
    names = [name.removesuffix(".default") for name in called]
    return [name for name in names if name in OPERATORS], found


IN_GRAPHS: dict[str, tuple[str, Callable[..., Any]]] = {
    "sdpa": ("attention", lambda q, k, v: at.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True).mT),
    "attention": ("attention_call", lambda q, k, v: am.attention(q, k, v, mask=am.causal())),
    "flash": ("attention_call", lambda q, k, v: flash.flash_attn_func(q, k, v, window_size=(4, 0))),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_both_passes_are_one_operator_in_a_graph(name: str) -> None:
    operator, door = IN_GRAPHS[name]
    leaves = operands(16, 16)
    called, found = compiled(door, leaves)
    assert called == [f"attn_mlir.{operator}", "attn_mlir.attention_backward_call"]
    eager = gradients([door(*leaves)], leaves)
    assert all(torch.equal(x, y) for x, y in zip(found, eager, strict=True))


def test_a_device_breaks_the_graph_and_trains() -> None:
    leaves = operands(8, 8)

    def door(q: Any, k: Any, v: Any) -> Any:
        return am.attention(q * 1, k, v, device="emulator").sin()

    found = gradients([torch.compile(door, backend="eager")(*leaves)], leaves)
    near(found, gradients([plain(*leaves)[0].sin()], leaves))


OPERATOR_CALLS: dict[str, Any] = {
    "attention": (attention_op, ([], "", "causal", 0.2, True), {}),
    "attention_call": (attention_call_op, ([], "", "full", ""), {"return_lse": True}),
}


@pytest.mark.parametrize("name", OPERATOR_CALLS)
def test_opcheck(name: str) -> None:
    operator, others, options = OPERATOR_CALLS[name]
    torch.library.opcheck(operator, (*operands(9, 9), *others), options, atol=0.02, rtol=0.02)


def test_operands_changed_in_place_are_noticed() -> None:
    q, k, v = operands(8, 8)
    o = am.attention(q, k, v)
    with torch.no_grad():
        k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_there_is_no_second_derivative() -> None:
    """The first one may be recorded; it is refused where it would be differentiated."""
    q, k, v = operands(8, 8)
    for o in (am.attention(q, k, v), at.flex_attention(q, k[:, :1], v[:, :1], enable_gqa=True)):
        (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
        assert dq.requires_grad
        with pytest.raises(SpecError, match="attention has no second derivative"):
            dq.sum().backward()


def test_operands_that_are_copied_have_no_second_derivative_either() -> None:
    q, k, v = (leaf(1, 8, HEADS, DIM + 1)[..., :DIM] for _ in range(3))
    with launching_on(IdleDevice("sm_90a")):
        o, _ = attention_op(q, k, v, [], "", "full", 0.1)
        (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
        with pytest.raises(SpecError, match="attention has no second derivative"):
            dq.sum().backward()


def test_lengths_of_queries_without_a_gradient() -> None:
    q, k, v = operands(8, 8)
    with launching_on(IdleDevice("sm_90a")):
        o = am.attention(q.detach(), k, v, seqused_q=i32(5))
        found = torch.autograd.grad(o.sum(), (k, v))
    assert [x.shape for x in found] == [k.shape, v.shape]


def test_without_a_gradient_nothing_is_recorded() -> None:
    given = operands(8, 8)
    with torch.no_grad():
        assert am.attention(*given).grad_fn is None
        assert at.flex_attention(*(x.detach() for x in given[:1] * 3)).grad_fn is None
    assert not am.attention(*(x.detach() for x in given)).requires_grad


def refused(**options: Any) -> Callable[..., Any]:
    return lambda *x: am.attention(*x, **options)


DISTANCES = torch.ones(16, requires_grad=True)
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "captured": (
        refused(
            score_mod=lambda score, b, h, i, j: score + DISTANCES[i - j + 8] * DISTANCES[0],
            deterministic=True,
        ),
        "DISTANCES requires a gradient",
    ),
    "k_offset": (refused(k_offset=3), "q requires a gradient, .*: k_offset has no kernel"),
    "out": (refused(out=torch.empty(1, 8, HEADS, DIM).bfloat16()), "q requires .*: out has no k"),
    "out_dtype": (refused(out_dtype="f32"), "q requires a gradient, .*: out_dtype f32 has no k"),
    "cache": (lambda q, k, v: am.attention(q, am.ContiguousKV(k, v, None)), "k of a ContiguousKV"),
    "large heads": (
        lambda *x: flash.flash_attn_func(*(torch.cat([y] * 8, -1) for y in x)), "got 256; call und",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_is_refused_by_the_call(name: str, no_compiler: Any) -> None:
    """Before anything is launched; without a gradient it is taken."""
    call, message = REFUSED[name]
    given = operands(8, 8)
    with pytest.raises(SpecError, match=message):
        call(*given)
    with torch.no_grad(), pytest.raises(no_compiler):
        call(*given)


def test_forward_mode_is_refused_by_name() -> None:
    q, k, v = operands(8, 8)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q.detach(), torch.ones_like(q))
        with pytest.raises(SpecError, match=r"q has a tangent.*pass q\.detach\(\)"):
            am.attention(dual, k, v)
    with pytest.raises(SpecError, match="requires a gradient"):
        torch.func.grad(lambda x: am.attention(x, k, v).sum())(q)


def test_calls_that_are_alike_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict(zip("qkv", operands(8, 8), strict=True))
    DIFFERENTIABLE.check_gradients(given, {"mask": am.causal()})

    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(type(DIFFERENTIABLE), "_plan", fail)
    DIFFERENTIABLE.check_gradients(given, {"mask": am.causal()})
    with pytest.raises(AssertionError):
        DIFFERENTIABLE.check_gradients(given, {"mask": am.full()})
