"""Arguments of one rank: refused by name before anything is sent, or computed as they look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")

import attn_mlir as am  # noqa: E402
from attn_mlir import distributed as ad  # noqa: E402
from attn_mlir import mods  # noqa: E402
from attn_mlir.compiling.compiler import RequestedKernel, recording  # noqa: E402
from attn_mlir.distributed.members import Members  # noqa: E402
from attn_mlir.distributed.problem import Problem  # noqa: E402
from attn_mlir.distributed.ulysses import attend_heads  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.runtime.devices.idle import IdleDevice  # noqa: E402
from attn_mlir.runtime.kernel import launching_on  # noqa: E402
from attn_mlir.validation.arguments.distributed import GRID  # noqa: E402

SCHEMES = ("ring", "gather", "ulysses")
OPTIONS: dict[str, Any] = {"mask": am.causal(), "device": "emulator"}


class Subclass(torch.Tensor):
    """A tensor with a meaning of its own."""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process."""
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def operands(dtype: Any = torch.bfloat16) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(1, 16, heads, 32).to(dtype) for heads in (4, 2, 2)]


def replaced(index: int, change: Callable[[Any], Any]) -> list[Any]:
    found = operands()
    found[index] = change(found[index])
    return found


def attend(scheme: str, *given: Any, **options: Any) -> Any:
    return getattr(ad, f"{scheme}_attention")(*given, **{**OPTIONS, **options})


def in_vmap(scheme: str) -> Any:
    q, k, v = operands()
    return torch.vmap(lambda x: attend(scheme, x, k, v))(q[None])


def in_grad(scheme: str) -> Any:
    q, k, v = operands()
    return torch.func.grad(lambda x: attend(scheme, x, k, v).float().sum())(q)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "call, text",
    [
        (lambda s: attend(s, *replaced(0, lambda x: x.float().numpy())), "q must be a tensor"),
        (lambda s: attend(s, *replaced(1, lambda x: x.as_subclass(Subclass))), "k is a .*Subclass"),
        (lambda s: attend(s, *replaced(2, lambda x: x.to("meta"))), "v is fake, on meta"),
        (lambda s: attend(s, *replaced(2, lambda x: x.half())), "v must be bfloat16 or float16"),
        (lambda s: attend(s, *replaced(1, lambda x: x[0])), "k must be .batch, own tokens"),
        (in_vmap, "q is fake, on meta, or in a function that torch.func transforms"),
        (in_grad, "q requires a gradient"),
        (
            lambda s: attend(s, *operands(), layout=np.array(["zigzag", "contiguous"])),
            "layout must be one of",
        ),
        (lambda s: attend(s, *operands(), return_lse=1), "return_lse must be True or False"),
        (lambda s: attend(s, *operands(), scale=float("nan")), "scale must be finite"),
        (lambda s: attend(s, *operands(), length=15), "which are no shards of 15"),
        (lambda s: attend(s, *operands(), length=16.0), "length must be"),
        (lambda s: attend(s, *operands(), length=-1), "length must be"),
        (lambda s: attend(s, *operands(), sinks=np.ones(4)), "sinks must be a tensor"),
        (lambda s: attend(s, *operands(), sinks=torch.ones(3)), r"sinks must be \[4\]"),
        (lambda s: attend(s, *operands(), scale="large"), "scale must be a number"),
        (lambda s: attend(s, *operands(), device="banana"), "device must be"),
        (lambda s: attend(s, *operands(), cu_seqlens=5), "cu_seqlens must be integers"),
        (lambda s: attend(s, *operands(), cu_seqlens=[0, 1.5, 16]), "cu_seqlens must be integers"),
        (lambda s: attend(s, *operands(), score_mod=3), "score_mod must be a function"),
        (
            lambda s: attend(
                s, *operands(), score_mod=mods.alibi(torch.ones(4, requires_grad=True))
            ),
            "slopes requires a gradient",
        ),
    ],
)
def test_an_argument_that_is_not_what_it_looks_like_is_refused_by_name(
    alone: None, scheme: str, call: Callable[[str], Any], text: str
) -> None:
    with pytest.raises(SpecError, match=text):
        call(scheme)


@pytest.mark.parametrize("scheme", ["ring", "gather"])
def test_captured_tensors_have_no_gradient_in_schemes_of_parts(alone: None, scheme: str) -> None:
    slopes = torch.ones(4, requires_grad=True)
    q, k, v = replaced(0, lambda x: x.requires_grad_())
    with pytest.raises(SpecError, match="slopes requires a gradient"):
        attend(scheme, q, k, v, score_mod=mods.alibi(slopes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", ["ring", pytest.param("gather", marks=pytest.mark.long), "ulysses"]
)
def test_shards_of_any_strides_are_read_as_they_look(alone: None, scheme: str) -> None:
    q, k, v = operands()
    want = attend(scheme, q, k, v)
    columns = [x.mT.contiguous().mT for x in (q, k, v)]
    assert torch.equal(attend(scheme, *columns), want)
    one = k[:, :, :1].requires_grad_()
    both = one.expand(-1, -1, 2, -1)
    dense = both.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    o, other = attend(scheme, q, both, v), attend(scheme, q, dense, v)
    assert torch.equal(o, other)
    found = torch.autograd.grad(o.float().sum(), one)[0]
    found_dense = torch.autograd.grad(other.float().sum(), dense)[0]
    assert torch.equal(found, found_dense.sum(2, keepdim=True))


@pytest.mark.parametrize(
    "shape, text",
    [((2, 16, 2, 32), "k must be"), ((1, 16, 3, 32), "k has 3 heads")],
)
def test_keys_that_do_not_fit_are_refused_before_queries_travel(
    alone: None, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], text: str
) -> None:
    monkeypatch.setattr(Members, "watched", None)
    keys = torch.zeros(shape, dtype=torch.bfloat16)
    with pytest.raises(SpecError, match=text):
        ad.pass_q_attention(operands()[0], keys, keys, device="emulator")


def passed(**options: Any) -> Any:
    q, k, v = operands()
    return ad.pass_q_attention(q, k, v, device="emulator", **options)


def in_context(**options: Any) -> None:
    given: dict[str, Any] = {"buffers": [torch.ones(2, 8)], "seq_dims": [1], **options}
    with ad.context_parallel(None, **given):
        raise AssertionError("a context is entered")


MANY = np.array(["a2a", "ring"])
OTHERS: dict[str, Callable[[], Any]] = {
    "return_lse must be True or False, got 1": lambda: passed(return_lse=1),
    r"sinks must be \[4\] of": lambda: passed(sinks=torch.ones(3)),
    "how must be one of": lambda: ad.decode_combine(*operands()[:2], how=MANY),
    "device must be one of PyTorch, got 'banana'": lambda: ad.positions(8, device="banana"),
    "device must be one of PyTorch, got 1.5": lambda: ad.positions(8, device=1.5),
    "scheme must be one of": lambda: in_context(scheme=MANY),
    "buffers must be a list, got Tensor": lambda: in_context(buffers=torch.ones(1, 2, 8)),
    "buffers must be a list, got int": lambda: in_context(buffers=3),
    "seq_dims must be a list, got int": lambda: in_context(seq_dims=1),
    "no_restore_buffers must be a list, got Tensor": lambda: in_context(
        no_restore_buffers=torch.ones(1, 2, 8)
    ),
}


@pytest.mark.parametrize("text", OTHERS)
def test_options_of_other_functions_are_refused_by_name(
    alone: None, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(Members, "watched", None)
    with pytest.raises(SpecError, match=text):
        OTHERS[text]()


@pytest.mark.parametrize("call", [lambda x: ad.unshard(x), lambda x: ad.shard(x)])
def test_shards_are_tensors(alone: None, call: Callable[[Any], Any]) -> None:
    with pytest.raises(SpecError, match="x must be a tensor of torch, got ndarray"):
        call(np.ones((2, 3)))


class Told(Exception):
    """What a rank tells the others, before any of them answers."""


def told(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> dict[str, str]:
    """What a call compares between ranks, by name."""

    def agree(self: Any, name: str, shared: Any, tokens: Any, *, follows: bool = False) -> None:
        del self, name, tokens
        assert follows == (shared.get("length") is not None)
        raise Told({name: str(x) for name, x in shared.items()})

    monkeypatch.setattr(Members, "agree", agree)
    with pytest.raises(Told) as found:
        call()
    return found.value.args[0]


def cut(x: Any) -> Any:
    return x[..., :16]


RESULTS = torch.ones(1, 16, 4, 32).bfloat16(), torch.ones(1, 4, 16)
COMPARED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "mask": (attend, {"mask": am.sliding_window(3, 0)}),
    "layout": (attend, {"layout": "contiguous"}),
    "scale": (attend, {"scale": 0.5}),
    "cu_seqlens": (attend, {"cu_seqlens": [0, 16]}),
    "length": (attend, {"length": 16}),
    "score_mod and mask_mod": (attend, {"score_mod": mods.softcap(5.0)}),
    "sinks": (attend, {"sinks": torch.ones(4)}),
    "gradients": (attend, {"v": operands()[2].requires_grad_()}),
    "dtype": (attend, {x: y.half() for x, y in zip("qkv", operands(), strict=True)}),
    "batch": (attend, {x: y.expand(2, -1, -1, -1) for x, y in zip("qkv", operands(), strict=True)}),
    "heads of q and k": (
        attend,
        {x: y[:, :, :1] for x, y in zip("kv", operands()[1:], strict=True)},
    ),
    "head_dim and v_head_dim": (attend, {"v": cut(operands()[2])}),
    "scale of pass_q": (ad.pass_q_attention, {"scale": 0.5}),
    "new of pass_q": (ad.pass_q_attention, {"new": RESULTS}),
    "sinks of pass_q": (ad.pass_q_attention, {"sinks": torch.ones(4)}),
    "how of decode_combine": (ad.decode_combine, {"how": "ag_rs"}),
    "sinks of decode_combine": (ad.decode_combine, {"sinks": torch.ones(4)}),
    "layout of unshard": (ad.unshard, {"layout": "contiguous"}),
}


@pytest.mark.parametrize("name", COMPARED)
def test_what_ranks_must_have_alike_is_told(
    alone: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    function, options = COMPARED[name]
    named = dict(zip("qkv", operands(), strict=True))
    if function is attend:
        kinds = [
            *(partial(attend, x) for x in SCHEMES),
            partial(ad.ulysses_ring_attention, mesh=GRID),
        ]
        calls = [lambda call=x, **y: call(**{**named, **y}) for x in kinds]
    elif function is ad.pass_q_attention:
        calls = [lambda **y: function(**named, **y)]
    else:
        first = RESULTS if function is ad.decode_combine else RESULTS[:1]
        calls = [lambda **y: function(*first, **y)]
    for call in calls:
        before, after = (told(monkeypatch, partial(call, **x)) for x in ({}, options))
        assert before.keys() == after.keys()
        assert {x for x in after if after[x] != before[x]} == {
            name.partition(" of ")[0] if function is not attend else name
        }


def test_results_to_combine_are_plain_tensors_without_gradient(alone: None) -> None:
    o, lse = torch.ones(3, 4, 32).bfloat16(), torch.ones(4, 3)
    with pytest.raises(SpecError, match="lse must be a tensor"):
        ad.decode_combine(o, lse.numpy())
    with pytest.raises(SpecError, match="o requires a gradient"):
        ad.decode_combine(o.requires_grad_(), lse)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_a_group_the_message_says_to_initialise_one(scheme: str) -> None:
    with pytest.raises(SpecError, match="call init_process_group first"):
        attend(scheme, *operands())


def test_kernels_of_ulysses_add_gradients_in_one_order() -> None:
    kernels: list[str] = []

    def note(requested: RequestedKernel) -> None:
        kernels.append(requested.kernel)

    given = [x.requires_grad_() for x in operands()]
    with recording(note), launching_on(IdleDevice("sm_90a")):
        o, _ = attend_heads(Problem(am.causal()), given, None, 0)
        torch.autograd.grad(o, given, torch.ones_like(o))
    atomic = [x for x in kernels if x.startswith("attn_gradients") and "in_turn" not in x]
    assert any("gradients" in x for x in kernels) and not atomic, kernels
