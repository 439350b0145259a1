"""The same answer in every mode in which PyTorch makes a call: eager, compiled, exported, fake, traced, under autocast.

A door is a function with arrays as arguments alone; a mode makes one call of it. What it gives is compared bit by
bit with a call outside of every mode, of the same kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 # pyright: ignore
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir import flash, flash_mla  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("graphs_afresh"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
HEADS, SEQ, DIM, PAGE, LATENT = 2, 16, 16, 64, 576


def normal(*shape: int) -> Any:
    return torch.randn(shape).bfloat16()


def dense() -> tuple[Any, ...]:
    return tuple(normal(1, SEQ, HEADS, DIM) for _ in range(3))


def heads_first() -> tuple[Any, ...]:
    return tuple(x.transpose(1, 2) for x in dense())


def rows() -> tuple[Any, ...]:
    offsets = whole(0, 5, SEQ)
    return *(x[0] for x in dense()), offsets, offsets.clone()


def whole(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def pages() -> tuple[Any, ...]:
    return normal(2, PAGE, HEADS, DIM), normal(2, PAGE, HEADS, DIM), whole(1, 0)[None], whole(70)


def modified(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(q: Any, k: Any, v: Any, bias: Any, ids: Any) -> Any:
        return function(
            q,
            k,
            v,
            score_mod=lambda score, b, h, i, j: score + bias[h] * (i - j),
            mask_mod=lambda b, h, i, j: ids[i] >= ids[j],
        )

    return call


def appended(k_pages: Any, v_pages: Any, table: Any, lengths: Any, k: Any, v: Any) -> Any:
    cache = am.PagedKV(k_pages, v_pages, table, lengths)
    am.append_kv(cache, k, v, whole(3, 66), batch_indices=whole(0, 0))
    return am.attention(k[None], cache)


def decoded(q: Any, latent: Any, table: Any, lengths: Any) -> Any:
    cache = am.PagedKV(latent, page_table=table, seqused=lengths)
    return am.mla_decode(q, cache, scale=0.1, num_splits=1)[0]


DOORS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "sdpa": (at.scaled_dot_product_attention, heads_first),
    "sdpa, masked": (
        at.scaled_dot_product_attention,
        lambda: (*heads_first(), torch.eye(SEQ).bool() | (torch.rand(SEQ, SEQ) > 0.5)),
    ),
    "flex": (
        modified(at.flex_attention),
        lambda: (*heads_first(), torch.randn(HEADS), torch.arange(SEQ) // 3),
    ),
    "attention": (am.attention, dense),
    "attention_backward": (
        lambda *x: am.attention_backward(*x, mask=am.causal()).dk,
        lambda: (*dense(), normal(1, SEQ, HEADS, DIM), torch.zeros(1, HEADS, SEQ), normal(1, SEQ, HEADS, DIM)),
    ),
    "attention, modified": (
        modified(am.attention),
        lambda: (*dense(), torch.randn(HEADS), torch.arange(SEQ) // 3),
    ),
    "attention, paged": (
        lambda q, *cache: am.attention(q, am.PagedKV(*cache)),
        lambda: (dense()[0], *pages()),
    ),
    "append_kv": (appended, lambda: (*pages(), normal(2, HEADS, DIM), normal(2, HEADS, DIM))),
    "mla_decode": (
        decoded,
        lambda: (normal(1, 1, 64, LATENT), normal(1, PAGE, 1, LATENT), whole(0)[None], whole(40)),
    ),
    "sparse_mla": (
        lambda q, kv, lists: am.sparse_mla(q, kv, lists, scale=0.1)[0],
        lambda: (normal(1, 64, LATENT), normal(8, 1, LATENT), torch.arange(64).int()[None] % 8),
    ),
    "flash_attn_func": (lambda q, k, v: flash.flash_attn_func(q, k, v, causal=True), dense),
    "flash_attn_varlen_func": (
        lambda *x: flash.flash_attn_varlen_func(*x, max_seqlen_q=11, max_seqlen_k=11),
        rows,
    ),
    "flash_mla.flash_attn_varlen_func": (
        lambda *x: flash_mla.flash_attn_varlen_func(*x, max_seqlen_qo=11, max_seqlen_kv=11)[0],
        rows,
    ),
    "flash_attn_with_kvcache": (
        lambda q, k, v, lengths: flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths),
        lambda: (normal(1, 1, HEADS, DIM), normal(1, 128, HEADS, DIM), normal(1, 128, HEADS, DIM), whole(70)),
    ),
}  # fmt: skip


class Module(torch.nn.Module):
    """A door as a module, which export asks for."""

    def __init__(self, door: Callable[..., Any]):
        super().__init__()
        self.door = door

    def forward(self, *arrays: Any) -> Any:
        return self.door(*arrays)


def exported(door: Any, arrays: tuple[Any, ...], strict: bool) -> Any:
    return torch.export.export(Module(door), arrays, strict=strict).module()(*arrays)


def within(context: Callable[[], Any]) -> Callable[..., Any]:
    def call(door: Any, arrays: tuple[Any, ...]) -> Any:
        with context():
            return door(*arrays)

    return call


def as_fakes(door: Any, arrays: tuple[Any, ...]) -> Any:
    """Shape, strides and dtype are the answer."""
    mode = FakeTensorMode()
    arrays = tuple(map(mode.from_tensor, arrays))
    with mode:
        return door(*arrays)


MODES: dict[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "compiled": lambda door, x: torch.compile(door, fullgraph=True, backend="eager")(*x),
    "compiled, dynamic": lambda door, x: torch.compile(
        door, fullgraph=True, backend="aot_eager", dynamic=True
    )(*x),
    "exported": lambda door, x: exported(door, x, False),
    "exported, strict": lambda door, x: exported(door, x, True),
    "make_fx": lambda door, x: make_fx(door)(*x)(*x),
    "make_fx, before dispatch": lambda door, x: make_fx(door, pre_dispatch=True)(*x)(*x),
    "make_fx, fake": lambda door, x: make_fx(door, tracing_mode="fake")(*x)(*x),
    "make_fx, symbolic": lambda door, x: make_fx(door, tracing_mode="symbolic")(*x)(*x),
    "jit": lambda door, x: torch.jit.trace(door, x, check_trace=False)(*x),
    "fake": as_fakes,
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "inference_mode": within(torch.inference_mode),
    "enable_grad": within(torch.enable_grad),
}


ALWAYS = {
    "sdpa, masked": (
        "compiled, dynamic",
        "exported",
        "make_fx, symbolic",
        "jit",
        "fake",
        "autocast",
    ),
    "attention, modified": ("exported", "make_fx", "make_fx, before dispatch", "jit", "fake"),
    "attention_backward": ("exported",),
    "append_kv": ("exported", "jit"),
    "flash_attn_func": ("make_fx, fake",),
}  # the other pairs are `long`


def pairs() -> Iterator[Any]:
    for name in DOORS:
        for mode in MODES:
            marks = () if mode in ALWAYS.get(name, ()) else pytest.mark.long
            yield pytest.param(name, mode, id=f"{name}-{mode}", marks=marks)


@functools.cache
def outside_of_modes(name: str) -> Any:
    door, make = DOORS[name]
    return door(*make())


@pytest.mark.parametrize(("name", "mode"), pairs())
def test_same_answer(name: str, mode: str) -> None:
    wanted = outside_of_modes(name)
    torch.manual_seed(0)
    door, make = DOORS[name]
    made = MODES[mode](lambda *arrays: door(*arrays), make())
    assert (made.shape, made.dtype, made.stride()) == (wanted.shape, wanted.dtype, wanted.stride())
    if mode != "fake":
        assert torch.equal(made, wanted)
