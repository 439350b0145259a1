"""Training with the doors of PyTorch: which kernels of gradients each asks for, and what a step costs the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402 # pyright: ignore
from torch.utils.checkpoint import checkpoint  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir import flash  # noqa: E402
from attn_mlir.api.plan import Plan  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.runtime.devices.idle import IdleDevice  # noqa: E402
from attn_mlir.runtime.kernel import launching_on  # noqa: E402
from attn_mlir.validation.effects import only_planned  # noqa: E402

BATCH, HEADS, LENGTH, DIM = 2, 2, 24, 32
FREE = ["delta", "zero_rows", "gradients", "round_rows"]
SAME = ["delta", "zero_rows", "gradients in turn", "round_rows"]
HOPPER = am.EmulatorDevice(target="sm_90a")


@pytest.fixture(autouse=True)
def recorded() -> Iterator[None]:
    """Gradients are recorded, of the same random numbers each time; PyTorch does as it is asked."""
    torch.manual_seed(0)
    with torch.enable_grad():
        yield
    torch.use_deterministic_algorithms(False)


def leaves() -> tuple[Any, ...]:
    """q, k and v as `attn_mlir.attention` takes them."""
    shape = (BATCH, LENGTH, HEADS, DIM)
    return tuple(torch.randn(shape).bfloat16().requires_grad_() for _ in range(3))


def of_torch(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function of [batch, heads, rows, head_dim], for operands as `attn_mlir.attention` has them."""
    return lambda *x: function(*(y.transpose(1, 2) for y in x), **options).transpose(1, 2)


def plain(q: Any, k: Any, v: Any, change: Callable[..., Any] = lambda scores: scores) -> Any:
    """O in float64, with a change of the scores [batch, heads, queries, keys]."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    return (change(q @ k.mT / DIM**0.5).softmax(-1) @ v).transpose(1, 2)


def near(found: Any, truth: Any) -> None:
    """Each element is off by 2% of the largest at most."""
    for got, expected in zip(found, truth, strict=True):
        error = (got.double() - expected.double()).abs().max()
        assert error <= 0.02 * expected.double().abs().max()


def asked(function: Callable[..., Any], operands: Any, wanted: Any = None) -> list[str]:
    """The kernels of a backward pass on a Hopper GPU, by what they do."""
    with only_planned() as plans, launching_on(IdleDevice("sm_90a")):
        o = function(*operands)
        plans.clear()
        torch.autograd.grad(o, operands if wanted is None else wanted, torch.ones_like(o))
    return launched(plans)


def launched(plans: list[Plan]) -> list[str]:
    """What the kernels of plans do."""
    requests = [step.request for plan in plans for step in plan.steps]
    is_in_turn = [x.kernel_name.endswith("_in_turn") for x in requests]
    return [x.operation + " in turn" * one for x, one in zip(requests, is_in_turn, strict=True)]


FOLLOWS: dict[str, Callable[..., Any]] = {
    "attention": lambda *x: am.attention(*x, mask=am.causal()),
    "sdpa": of_torch(at.scaled_dot_product_attention, is_causal=True),
    "flex": of_torch(at.flex_attention),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_the_form_of_gradients_is_what_pytorch_is_asked_for(name: str) -> None:
    assert asked(FOLLOWS[name], leaves()) == FREE
    torch.use_deterministic_algorithms(True)
    assert asked(FOLLOWS[name], leaves()) == SAME


@pytest.mark.parametrize("by_pytorch", [False, True])
@pytest.mark.parametrize("function", [flash.flash_attn_func, am.attention])
def test_the_form_of_gradients_is_that_of_the_call(function: Any, by_pytorch: bool) -> None:
    """As in FlashAttention, whatever PyTorch is asked for."""
    torch.use_deterministic_algorithms(by_pytorch)
    for value, kernels in ((False, FREE), (True, SAME)):
        door = lambda *x, value=value: function(*x, deterministic=value)  # noqa: E731
        assert asked(door, leaves()) == kernels
    if function is flash.flash_attn_func:
        assert asked(function, leaves()) == FREE


def test_sequences_and_packed_operands_have_the_form_of_the_call() -> None:
    ends = torch.tensor([0, 7, 24], dtype=torch.int32)
    packed = torch.randn(LENGTH, 3, HEADS, DIM).bfloat16().requires_grad_()
    for value, kernels in ((False, FREE), (True, SAME)):
        door = lambda x, value=value: flash.flash_attn_varlen_qkvpacked_func(  # noqa: E731
            x, ends, 17, deterministic=value
        )
        assert asked(door, (packed,)) == kernels


def test_the_backward_pass_by_itself_has_a_form() -> None:
    q, k, v = (x.detach() for x in leaves())
    lse = torch.zeros(BATCH, HEADS, LENGTH)
    for options, kernels in (({}, FREE), ({"deterministic": True}, SAME)):
        with only_planned() as plans, launching_on(IdleDevice("sm_90a")):
            gradients = [torch.empty_like(q) for _ in range(3)]
            flash._flash_attn_backward(q, q, k, v, q, lse, *gradients, **options)
        assert launched(plans) == kernels


def test_the_same_bits_with_other_work_in_another_order() -> None:
    torch.use_deterministic_algorithms(True)
    given = leaves()
    found: list[Any] = []
    for seed in range(3):
        device = am.EmulatorDevice(target="sm_90a", schedule="adversarial", seed=seed)
        with launching_on(device):
            o = FOLLOWS["sdpa"](*given)
            found.append(torch.autograd.grad(o, given, torch.ones_like(o)))
    for others in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], others, strict=True))


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize(
    ("which", "kernels"),
    [
        ((0,), ["delta", "q_gradients"]),
        ((1,), ["delta", "kv_gradients"]),
        ((1, 2), ["delta", "kv_gradients"]),
        ((0, 2), SAME),
    ],
)
@pytest.mark.long("which0-*-True", "which1-*", "which2-*-False")
def test_only_kernels_of_gradients_that_are_wanted(
    which: tuple[int, ...], kernels: list[str], is_deterministic: bool
) -> None:
    """Those of operands that require one."""
    torch.use_deterministic_algorithms(is_deterministic)
    given = leaves()
    wanted = [given[i] for i in which]
    kernels = FREE if which == (0, 2) and not is_deterministic else kernels
    others = [x if i in which else x.detach() for i, x in enumerate(given)]
    assert asked(am.attention, others, wanted) == kernels
    with launching_on(HOPPER):
        found = torch.autograd.grad(am.attention(*others).double().sin().sum(), wanted)
    near(found, torch.autograd.grad(plain(*given).sin().sum(), wanted))


def test_sinks_alone() -> None:
    sinks = torch.randn(HEADS).requires_grad_()
    given = [x.detach() for x in leaves()]

    def door(x: Any) -> Any:
        return am.attention(*given, sinks=x)

    assert asked(door, (sinks,)) == ["sink_delta", "sum_rows", "sum_parts"]


BLOCKS = {
    "torch": lambda mod: create_block_mask(
        mod, BATCH, HEADS, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8
    ),
    "ours": lambda mod: am.block_mask(mod, BATCH, HEADS, LENGTH, LENGTH, block_size=(8, 8)),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_block_masks_have_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks that no query sees, and keys without queries."""

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (k >= 3) & (q - k < 9 + h)

    given, blocks = leaves(), BLOCKS[kind](seen)
    heads, rows = torch.arange(HEADS)[:, None, None], torch.arange(LENGTH)
    visible = seen(0, heads, rows[:, None], rows)
    with launching_on(HOPPER):
        o = of_torch(at.flex_attention, block_mask=blocks)(*given)
        found = torch.autograd.grad(o[:, 3:].double().sin().sum(), given)
        monkeypatch.setattr(am.BlockMask, "from_kv_blocks", None)  # lists are converted once
        assert torch.equal(of_torch(at.flex_attention, block_mask=blocks)(*given), o)
    assert not o[:, :3].any()
    truth = plain(*given, lambda x: x.masked_fill(~visible, -1e9))
    near(found, torch.autograd.grad(truth[:, 3:].sin().sum(), given))


@pytest.mark.parametrize("kv_heads", [HEADS, 1])
@pytest.mark.long
@pytest.mark.usefixtures("graphs_afresh")
def test_block_masks_have_gradients_in_graphs(kv_heads: int) -> None:
    """The same bits as without a graph, also of what the modifier captures, where one head of keys
    serves several, which see other blocks."""
    slopes, (q, *_) = torch.randn(HEADS), leaves()
    k, v = (torch.randn(BATCH, LENGTH, kv_heads, DIM).bfloat16() for _ in range(2))
    given = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)] + [
        slopes.requires_grad_()
    ]

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + slopes[h] * (k - q)

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (k // 8 <= q // 8 - h)

    blocks = BLOCKS["torch"](seen)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return at.flex_attention(q, k, v, score_mod, blocks, enable_gqa=True)

    with torch.enable_grad():
        eager = torch.autograd.grad(attend(*given[:3]).float().sin().sum(), given)
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        found = torch.autograd.grad(compiled(*given[:3]).float().sin().sum(), given)
    for one, other in zip(found, eager, strict=True):
        assert torch.equal(one, other) and one.any()


@pytest.mark.usefixtures("graphs_afresh")
def test_block_masks_in_graphs_ask_for_their_kernels() -> None:
    given, blocks = leaves(), BLOCKS["torch"](lambda b, h, q, k: q >= k)
    with torch.enable_grad(), only_planned() as plans, launching_on(IdleDevice("sm_90a")):
        function = of_torch(at.flex_attention, block_mask=blocks)
        o = torch.compile(function, fullgraph=True, backend="aot_eager")(*given)
        plans.clear()
        torch.autograd.grad(o, given, torch.ones_like(o))
    assert launched(plans) == ["delta", "kv_gradients", "q_gradients"]
    assert all(x.request.block for x in plans[0].steps[1:])


def test_tensors_that_modifiers_capture_have_gradients() -> None:
    """Under the names that they have where the function is written; another one stays without."""
    slopes, gate = (torch.randn(*x).requires_grad_() for x in ((HEADS,), (BATCH, HEADS)))
    fixed, given = torch.randn(HEADS), leaves()

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score * gate[b, h] + slopes[h] * (k - q) + fixed[h]

    far = torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]
    truth = plain(
        *given, lambda x: x * gate[..., None, None] + slopes[:, None, None].double() * far
    )
    wanted = (*given, slopes, gate)
    expected = torch.autograd.grad(truth.sin().sum(), wanted)
    with launching_on(HOPPER):
        for door in (am.attention, of_torch(at.flex_attention, score_mod=score_mod)):
            options = {"score_mod": score_mod} if door is am.attention else {}
            near(
                torch.autograd.grad(door(*given, **options).double().sin().sum(), wanted), expected
            )
        o = am.attention(*given, score_mod=score_mod).double().sin().sum()
        near(torch.autograd.grad(o, (gate,)), expected[-1:])


def test_a_bias_that_is_learned() -> None:
    """By query and key, of every head, as `attn_mask`."""
    bias, given = torch.randn(HEADS, LENGTH, LENGTH).requires_grad_(), leaves()
    wanted = (*given, bias)
    truth = plain(*given, lambda x: x + bias.double())
    with launching_on(HOPPER):
        o = of_torch(at.scaled_dot_product_attention, attn_mask=bias)(*given)
        found = torch.autograd.grad(o.double().sin().sum(), wanted)
    near(found, torch.autograd.grad(truth.sin().sum(), wanted))


def test_captured_tensors_in_a_graph() -> None:
    """One node for each pass; the gradient of the capture is a result of the second."""
    slopes, given = torch.randn(HEADS).requires_grad_(), leaves()

    def door(slopes: Any, *x: Any) -> Any:
        return of_torch(
            at.flex_attention, score_mod=lambda score, b, h, q, k: score + slopes[h] * (k - q)
        )(*x)

    wanted = (slopes, *given)
    with launching_on(HOPPER):
        eager = torch.autograd.grad(door(slopes, *given).double().sin().sum(), wanted)
        one = torch.compile(door, fullgraph=True, backend="aot_eager")
        found = torch.autograd.grad(one(slopes, *given).double().sin().sum(), wanted)
    assert all(torch.equal(x, y) for x, y in zip(found, eager, strict=True))


def test_a_captured_tensor_without_a_kernel_is_named() -> None:
    bias, given = torch.randn(LENGTH, LENGTH, dtype=torch.float64).requires_grad_(), leaves()
    with launching_on(HOPPER), pytest.raises(SpecError, match="bias"):
        am.attention(*given, score_mod=lambda score, b, h, q, k: score + bias[q, k])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.long("aot_eager")  # as test_torch_gradients.py has it
def test_one_graph_with_both_passes(backend: str) -> None:
    if backend == "inductor":
        pytest.importorskip("torch._inductor.cpp_builder")
    given = leaves()
    door = FOLLOWS["sdpa"]
    eager = torch.autograd.grad(door(*given).sum(), given)
    one = torch.compile(door, fullgraph=True, backend=backend)
    found = torch.autograd.grad(one(*given).sum(), given)
    assert all(torch.equal(x, y) for x, y in zip(found, eager, strict=True))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", FOLLOWS)
@pytest.mark.long(but=("attention-False", "sdpa-True", "flex-False"))
def test_checkpoints(name: str, use_reentrant: bool) -> None:
    given, door = leaves(), FOLLOWS[name]
    door(*given).sin().sum().backward()
    whole = [x.grad for x in given]
    for x in given:
        x.grad = None
    checkpoint(door, *given, use_reentrant=use_reentrant).sin().sum().backward()
    assert all(torch.equal(x.grad, y) for x, y in zip(given, whole, strict=True))


SLOPES = torch.ones(HEADS, requires_grad=True)
STEPS: dict[str, Callable[..., Any]] = {
    **FOLLOWS,
    "captured": lambda *x: am.attention(
        *x, score_mod=lambda score, b, h, q, k: score + SLOPES[h] * (k - q)
    ),
    "flash": lambda *x: flash.flash_attn_func(*x, causal=True),
    "modified": of_torch(at.flex_attention, mask_mod=lambda b, h, q, k: q >= k),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_comes_again_is_not_planned_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it wait for a device, or allocate otherwise than by PyTorch: a CUDA graph may record it."""
    given = leaves()
    wanted = (*given, SLOPES) if name == "captured" else given

    def step() -> None:
        o = STEPS[name](*given)
        torch.autograd.grad(o, wanted, torch.ones_like(o))

    def fail(*_: Any, **_options: Any) -> Any:
        raise AssertionError

    with launching_on(IdleDevice("sm_90a")):
        for _ in range(3):
            step()
        monkeypatch.setattr(Plan, "execute", fail)
        for owner, names in (
            (torch.Tensor, ("item", "cpu", "numpy", "tolist", "__bool__", "__dlpack__")),
            (torch.cuda, ("synchronize",)),
            (np, ("empty", "zeros")),
        ):
            for waiting in names:
                monkeypatch.setattr(owner, waiting, fail)
        step()


@pytest.mark.parametrize(
    "function", [flash.flash_attn_func, of_torch(at.scaled_dot_product_attention, dropout_p=0.1)]
)
def test_dropout_is_refused_by_name(function: Any) -> None:
    options = {"dropout_p": 0.1} if function is flash.flash_attn_func else {}
    with pytest.raises(SpecError, match="dropout_p must be 0"):
        function(*leaves(), **options)


@pytest.mark.parametrize("name", FOLLOWS)
def test_autocast(name: str) -> None:
    """The doors of PyTorch convert; `attention` takes what it is given."""
    given = tuple(x.detach().float().requires_grad_() for x in leaves())
    context = nullcontext() if name != "attention" else pytest.raises(SpecError, match="q has dty")
    with torch.autocast("cpu", torch.bfloat16), context:
        found = torch.autograd.grad(FOLLOWS[name](*given).float().sum(), given)
        assert all(x.dtype == torch.float32 for x in found)
