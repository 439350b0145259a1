"""`attn_mlir.torch.activate`: PyTorch's own calls of attention, computed by the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
host: Any = pytest.importorskip("torch.nn.attention")
varlen: Any = pytest.importorskip("torch.nn.attention.varlen")

import attn_mlir.torch as at  # noqa: E402
from attn_mlir import env  # noqa: E402
from attn_mlir.adapters import ANYTHING, arguments_of, check_neutral  # noqa: E402
from attn_mlir.aten import IMPLEMENTATIONS, operators  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402

HEADS, SQ, SK = 2, 24, 40
sdpa = torch.nn.functional.scaled_dot_product_attention
active = host.current_flash_attention_impl


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    host.restore_flash_attention_impl(_raise_warn=False)


def drawn(*extents: int, seed: int = 0) -> Any:
    return torch.randn(*extents, generator=torch.Generator().manual_seed(seed)).bfloat16()


def operands(sq: int = SQ, sk: int = SK, kv_heads: int = HEADS, size: int = 64) -> list[Any]:
    shapes = ((HEADS, sq), (kv_heads, sk), (kv_heads, sk))
    return [drawn(1, heads, n, size, seed=i) for i, (heads, n) in enumerate(shapes)]


def truth(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return sdpa(q.double(), k.double(), v.double(), **options)


MASK = torch.rand(SQ, SK, generator=torch.Generator().manual_seed(1)) > 0.3
CALLS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal from the top": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool": {"attn_mask": MASK},
    "float": {"attn_mask": torch.where(MASK, 0.5, 0.0)[None, None].bfloat16()},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CALLS)
@pytest.mark.long("scale", "float")
def test_sdpa_is_computed_by_the_emulator(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = operands()
    taken: list[Any] = []
    ours = operators.OPERATORS["cpu"][0]
    watched = [lambda *x, **y: taken.append(x) or ours(*x, **y)]
    watched[0].__name__ = ours.__name__
    monkeypatch.setitem(operators.OPERATORS, "cpu", watched)
    with at.activate("cpu"):
        made = sdpa(q, k, v, **CALLS[case])
    options = {x: y.double() if x == "attn_mask" and y.dtype != torch.bool else y for x, y in CALLS[case].items()}  # fmt: skip
    assert len(taken) == 1
    assert (made.double() - truth(q, k, v, **options)).abs().max() < 0.02
    sdpa(q, k, v)
    assert len(taken) == 1


GRADIENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({"sk": SQ}, {"is_causal": True}),
    "causal from the top": ({}, {"is_causal": True}),
    "bool": ({}, {"attn_mask": MASK}),
    "float": ({}, {"attn_mask": torch.where(MASK, 0.5, 0.0).bfloat16()}),
    "head size": ({"sk": SQ, "size": 36}, {"is_causal": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", GRADIENTS)
@pytest.mark.long("causal from the top", "bool", "float", "head size")
def test_gradients_are_those_of_our_kernels(case: str) -> None:
    """Also where the gradient of O has strides of 0, as that of a sum has."""
    sizes, options = GRADIENTS[case]
    q, k, v = (x.requires_grad_() for x in operands(**sizes))
    with at.activate("cpu"):
        sdpa(q, k, v, **options).sum().backward()
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    known = {x: y.double() if x == "attn_mask" and y.dtype != torch.bool else y for x, y in options.items()}  # fmt: skip
    sdpa(*wide, **known).sum().backward()
    for ours, theirs in zip((q, k, v), wide, strict=True):
        assert ours.grad.shape == theirs.grad.shape
        assert (ours.grad - theirs.grad).abs().max() < 0.02 * max(theirs.grad.abs().max(), 1)


@pytest.mark.slow
def test_gradients_of_sequences() -> None:
    offsets = torch.tensor([0, 5, SQ], dtype=torch.int32)
    q, k, v = (x[0].transpose(0, 1).contiguous().requires_grad_() for x in operands(SQ, SQ))
    with at.activate("cpu"):
        made = varlen.varlen_attn(q, k, v, offsets, offsets, SQ, SQ, window_size=(-1, 0))
        (made * drawn(*made.shape, seed=5)).sum().backward()
    parts = [x.detach().double().requires_grad_() for x in (q, k, v)]
    rows = [[x[a:b].transpose(0, 1) for x in parts] for a, b in ((0, 5), (5, SQ))]
    whole = torch.cat([sdpa(*x, is_causal=True).transpose(0, 1) for x in rows])
    (whole * drawn(*made.shape, seed=5)).sum().backward()
    assert (made.double() - whole).abs().max() < 0.02
    for ours, theirs in zip((q, k, v), parts, strict=True):
        assert (ours.grad.double() - theirs.grad).abs().max() < 0.03


@pytest.mark.slow
def test_sequences_in_pages_with_memory_for_o() -> None:
    """`varlen_attn_out` over a table of pages, with windows, grouped heads and LSE."""
    offsets, used = torch.tensor([0, 3, 8], dtype=torch.int32), [20, 40]
    q, pool = drawn(8, HEADS, 64, seed=1), drawn(8, 16, 2, 1, 64, seed=2)
    table = torch.tensor([[5, 0, 1], [2, 7, 3]], dtype=torch.int32)
    out = torch.empty_like(q)
    sizes = {"cu_seq_q": offsets, "cu_seq_k": None, "max_q": 5, "max_k": 48}
    options = {"seqused_k": torch.tensor(used, dtype=torch.int32), "block_table": table}
    aux = varlen.AuxRequest(lse=True)
    with at.activate("cpu"):
        made, lse = varlen.varlen_attn_out(
            out, q, pool[:, :, 0], pool[:, :, 1], **sizes, **options,
            window_size=(-1, 0), enable_gqa=True, return_aux=aux,
        )  # fmt: skip
    assert made is out
    for b, (first, last) in enumerate(((0, 3), (3, 8))):
        keys = pool[table[b].long()].flatten(0, 1)[: used[b]].double()
        rows, count = q[first:last].double(), last - first
        scores = torch.einsum("qhd,kd->hqk", rows, keys[:, 0, 0]) / 8
        at_end = torch.ones(count, used[b]).tril(used[b] - count).bool()
        scores = torch.where(at_end, scores, -torch.inf)
        o = torch.einsum("hqk,kd->qhd", scores.softmax(-1), keys[:, 1, 0])
        assert (made[first:last].double() - o).abs().max() < 0.02
        assert (lse[:, first:last].double() - scores.logsumexp(-1)).abs().max() < 0.01


@pytest.mark.slow
def test_the_operator_of_gpus_keeps_the_layout_of_queries() -> None:
    """As PyTorch's compiler expects of it; called by its function, as there is no GPU."""
    q, k, v = operands(SQ, SQ)
    for x in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        made = operators.scaled_dot_product_flash_attention(x, k, v, 0.0, True, False)
        assert made[0].stride() == x.stride() and made[2:6] == (None, None, SQ, SQ)
        assert made[1].shape == (1, HEADS, SQ) and made[1].is_contiguous()
        assert (made[0].double() - truth(q, k, v, is_causal=True)).abs().max() < 0.02


@pytest.mark.slow
def test_compiled(graphs_afresh: None) -> None:
    q, k, v = operands(SQ, SQ)
    with at.activate("cpu"):
        made = torch.compile(sdpa, backend="aot_eager", fullgraph=True)(q, k, v, is_causal=True)
    assert (made.double() - truth(q, k, v, is_causal=True)).abs().max() < 0.02


def test_what_was_active_is_restored() -> None:
    assert active() is None
    with at.activate():
        assert active() == "attn_mlir"
        with at.activate("cpu", fallback="sdpa"):
            assert active() == "attn_mlir_emulator_or_sdpa"
        assert active() == "attn_mlir"
    assert active() is None
    with pytest.raises(KeyError), at.activate():
        raise KeyError
    assert active() is None
    at.activate()
    at.deactivate()
    at.deactivate()
    assert active() is None
    assert set(IMPLEMENTATIONS.values()) <= set(host.list_flash_attention_impls())


def test_another_packages_implementation_is_left_active() -> None:
    removed: list[int] = []

    class Handle:
        def remove(self) -> None:
            removed.append(1)

    host.register_flash_attention_impl("another", register_fn=Handle)
    host.activate_flash_attention_impl("another")
    at.deactivate()
    assert active() == "another" and not removed
    with at.activate():
        assert removed
    assert active() == "another"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda q, k, v: sdpa(q.float(), k.float(), v.float()), "query has dtype f32"),
        (
            lambda q, k, v: varlen.varlen_attn(
                *(x[0].transpose(0, 1) for x in (q, k, v)),
                *[torch.tensor([0, SQ], dtype=torch.int32)] * 2, SQ, SQ, window_size=(-2, 0),
            ),
            "left of a sliding window must be",
        ),
    ],
)  # fmt: skip
def test_refusals_are_typed(call: Any, message: str, no_compiler: type[Exception]) -> None:
    with at.activate("cpu"), pytest.raises(SpecError, match=message):
        call(*operands())


@pytest.mark.parametrize("options", [{"device": "xpu"}, {"device": None}, {"fallback": "math"}])
def test_bad_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(options))):
        at.activate(**options)
    assert active() is None


def test_refused_calls_fall_back_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, no_compiler: type[Exception]
) -> None:
    """Gradients as well: those of what PyTorch's kernel computed."""
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(env, "log", lambda *told: said.append(told))
    env.log_once.cache_clear()
    q, k, v = (x.float().requires_grad_() for x in operands())
    wanted = torch.autograd.grad(sdpa(q, k, v).square().sum(), q)[0]
    with at.activate("cpu", fallback="sdpa"):
        for _ in range(2):
            found = torch.autograd.grad(sdpa(q, k, v).square().sum(), q)[0]
    assert torch.equal(found, wanted)
    levels = [level for level, text in said if "falls back" in text]
    assert levels == ["warning"] * 2  # of the operator, and of that for its gradients


@pytest.mark.parametrize(
    "function", dict.fromkeys(operators.OPERATORS["cuda"] + operators.OPERATORS["cpu"])
)
def test_every_argument_of_the_installed_operator_is_accounted_for(function: Any) -> None:
    schema = getattr(torch.ops.aten, f"_{function.__name__}").default._schema
    table = arguments_of(function)
    assert [x.name for x in schema.arguments if not x.kwarg_only] == list(table)[
        : sum(not x.kwarg_only for x in schema.arguments)
    ]
    assert {x.name for x in schema.arguments} == set(table)
    for x in schema.arguments:
        if x.has_default_value() and table[x.name] is not None:
            check_neutral(x.name, x.default_value, table[x.name])


def test_operators_of_a_gpu_by_tensors_of_the_host() -> None:
    """O, LSE and gradients of what SDPA calls on a GPU, whose operands are transposed there too."""
    q, k, v = operands(SQ, SQ)
    do = drawn(*q.shape, seed=5)
    out, lse, *_ = operators.scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    given = (do, q, k, v, out, lse, None, None, SQ, SQ, 0.0, True, None, None)
    found = operators.scaled_dot_product_flash_attention_backward(*given)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    whole = sdpa(*wide, is_causal=True)
    whole.backward(do.double())
    assert (out.double() - whole).abs().max() < 0.02 and lse.shape == q.shape[:3]
    for ours, theirs in zip(found, wide, strict=True):
        assert (ours.double() - theirs.grad).abs().max() < 0.03


def test_dropout_is_refused_by_name() -> None:
    table = arguments_of(operators.scaled_dot_product_flash_attention_backward)
    assert ANYTHING in table["philox_seed"].values  # pyright: ignore
    with pytest.raises(SpecError, match="dropout_p must be 0, got 0.5: there is no dropout"):
        operators.scaled_dot_product_flash_attention(*operands(), 0.5)
