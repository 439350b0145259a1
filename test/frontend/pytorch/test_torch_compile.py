"""`torch.compile` over attention: modifiers are traced into the graph, and what cannot be breaks it cleanly."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import (  # noqa: E402 # pyright: ignore
    AuxRequest,
    create_block_mask,
    flex_attention,
)

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir import flash  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.mods import softcap  # noqa: E402
from attn_mlir.validation.effects import only_planned  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("graphs_afresh"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]
HEADS, SQ, SK, DIM = 2, 24, 40, 16
TABLE = torch.linspace(-2, 2, 2 * HEADS * SQ).reshape(HEADS, 2 * SQ)


def operands() -> tuple[Any, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(1, HEADS, n, DIM).to(torch.bfloat16) for n in (SQ, SK, SK))


class Layer(torch.nn.Module):
    """What a modifier may read: a buffer, a parameter, a module's number, a global, an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor([0.3, -0.2]))
        self.register_buffer("ids", torch.arange(SK) // 25)
        self.cap = 5.0

    def mods(self, gain: Any) -> tuple[Any, Any]:
        def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            distance = q_idx - kv_idx
            score = score + self.slopes[h] * distance + TABLE[h, distance] + gain[h][-1]
            return self.cap * torch.tanh(score / self.cap)

        def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return (self.ids[q_idx] == self.ids[kv_idx]) | (kv_idx < 3)

        return score_mod, mask_mod

    def forward(self, q: Any, k: Any, v: Any, gain: Any) -> Any:
        score_mod, mask_mod = self.mods(gain)
        o, lse = at.flex_attention(
            q * 2, k, v, score_mod, mask_mod=mask_mod, return_lse=True, scale=0.3
        )
        return o + 1, lse

    def truth(self, q: Any, k: Any, v: Any, gain: Any) -> Any:
        """The same by PyTorch, in float64."""
        score_mod, mask_mod = self.mods(gain)
        blocks = create_block_mask(mask_mod, 1, HEADS, SQ, SK, device="cpu")
        q, k, v = (x.double() for x in (q * 2, k, v))
        aux = AuxRequest(lse=True)
        o, found = flex_attention(q, k, v, score_mod, blocks, scale=0.3, return_aux=aux)
        return o + 1, found.lse


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.long("aot_eager")
def test_modifiers_stay_in_the_graph(backend: str) -> None:
    layer, gain = Layer(), torch.tensor([[9.0, 0.5], [9.0, -0.5]])
    compiled = torch.compile(layer, backend=backend, fullgraph=True)

    def check() -> None:
        made, truth = compiled(*operands(), gain), layer.truth(*operands(), gain)
        assert made[0].shape == truth[0].shape and made[0].dtype == torch.bfloat16
        assert (made[0] - truth[0]).abs().max() < 0.02
        assert (made[1] - truth[1]).abs().max() < 0.01

    check()
    layer.cap = 2.0  # a number of Python is guarded
    check()
    layer.ids[: SK // 2] = 7  # a tensor is an argument
    check()


def test_functions_with_masks_stay_in_the_graph() -> None:
    """Masks, PyTorch's BlockMask, causal masks from the top, and modifiers of this package."""
    q, k, v = operands()
    mask = torch.rand(HEADS, SQ, SK) < 0.7
    blocks = create_block_mask(lambda b, h, i, j: i + 3 >= j, 1, 1, SQ, SK, device="cpu")

    def function(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        return (
            at.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            at.scaled_dot_product_attention(q, k, v, is_causal=True),
            at.flex_attention(q, k, v, softcap(2.0), blocks),
        )

    made = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)(q, k, v)
    for compiled, plain in zip(made, function(q, k, v), strict=True):
        assert torch.equal(compiled, plain)


def unknown_to_the_compiler(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + 0.0 * time.monotonic()


@pytest.mark.parametrize("name", ["a device", "modifier", "block mask"])
@pytest.mark.long("block mask")
def test_breaks_are_clean(name: str) -> None:
    """What PyTorch's compiler cannot trace is called as it is, between two graphs."""
    q, k, v = operands()
    blocks = am.block_mask(None, 1, HEADS, SQ, SK, mask=am.causal())
    calls: dict[str, Any] = {
        "a device": lambda q: am.attention(
            *(x.transpose(1, 2) for x in (q, k, v)), device="emulator"
        ),
        "modifier": lambda q: at.flex_attention(q, k, v, unknown_to_the_compiler),
        "block mask": lambda q: at.flex_attention(q, k, v, block_mask=blocks),
    }

    def function(q: Any) -> Any:
        return calls[name](q * 2) + 1

    assert torch.equal(torch.compile(function, backend="eager")(q), function(q))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, backend="eager", fullgraph=True)(q)


def by_head(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * 0.5 - h * (q_idx - kv_idx) * 0.01


OFFSETS: dict[str, tuple[bool, dict[str, Any]]] = {
    "queries": (False, {"mask": am.causal(), "q_offset": 5}),
    "keys": (False, {"mask": am.causal(), "q_offset": torch.tensor([7]).int(), "k_offset": 3}),
    "heads": (True, {"score_mod": by_head, "head_offset": 2}),
    "heads without modifiers": (True, {"head_offset": 2}),
    "multiprocessors": (True, {"sm_margin": 2}),
    "all": (False, {"q_offset": 9, "head_offset": 2, "sm_margin": 1, "score_mod": by_head}),
}


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.long("all")
def test_positions_break_the_graph_and_other_offsets_stay_in_it(name: str) -> None:
    stays, options = OFFSETS[name]
    q, k, v = (x.transpose(1, 2) for x in operands())

    def function(q: Any) -> Any:
        return am.attention(q * 2, k, v, **options) + 1

    found = torch.compile(function, backend="eager")(q)
    assert torch.equal(found, function(q))
    plain = {name: x for name, x in options.items() if not name.endswith("_offset")}
    if "score_mod" in options or "q_offset" in options:
        assert not torch.equal(found, am.attention(q * 2, k, v, **plain) + 1)
    torch._dynamo.reset()
    whole = torch.compile(function, backend="eager", fullgraph=True)
    if stays:
        assert torch.equal(whole(q), found)
    else:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            whole(q)


@pytest.mark.parametrize("name", ["q_offset", "k_offset"])
def test_tracers_without_breaks_refuse_positions(name: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = (x.transpose(1, 2) for x in operands())
    with pytest.raises(SpecError, match=f"^{name} cannot be recorded by torch.jit.trace, make_fx"):
        make_fx(lambda q: am.attention(q, k, v, **{name: 3}))(q)


def test_what_reaches_a_backend() -> None:
    """One operator of attention, with its program as a constant."""
    from torch._dynamo.backends.common import aot_autograd  # pyright: ignore

    seen: list[str] = []

    def keep(module: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    mask = torch.rand(SQ, SK) < 0.7
    compiled = torch.compile(
        lambda q, k, v: at.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        backend=aot_autograd(fw_compiler=keep),
        fullgraph=True,
    )
    compiled(*operands())
    assert seen.count("attn_mlir.attention.default") == 1
    assert not [name for name in seen if "flex" in name]


DOORS: list[Any] = [
    lambda *given: am.attention(*(x.transpose(1, 2) for x in given), q_offset=3),
    lambda *given: am.attention(*(x.transpose(1, 2) for x in given), k_offset=3),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("which", range(3))
def test_a_gradient_that_no_kernel_has_is_refused_in_a_graph(door: Any, which: int) -> None:
    """Where it would else be dropped."""
    given = list(operands())
    given[which].requires_grad_()
    with torch.enable_grad(), pytest.raises(SpecError, match="requires a gradient"):
        torch.compile(door, backend="eager")(*given)


def test_the_number_of_parts_makes_no_other_graph() -> None:
    """It is chosen when the graph runs, by sizes that are dynamic there."""

    def attend(q: Any, k: Any, lengths: Any) -> Any:
        o = am.attention(q, k, k, num_splits=0)
        return o + flash.flash_attn_with_kvcache(q, k, k, cache_seqlens=lengths)

    compiled = torch.compile(attend, fullgraph=True, backend="eager", dynamic=True)
    counts: list[int] = []
    with only_planned() as plans:
        for batch, keys in ((5, 100), (7, 600), (3, 1300), (9, 3000)):
            q, k = (torch.zeros(batch, n, 4, 64).to(torch.bfloat16) for n in (2, keys))
            compiled(q, k, torch.full((batch,), keys, dtype=torch.int32))
            counts += [sum(x.shape[0] for x in plan.workspace[:1]) // batch for plan in plans[-2:]]
    assert counts == [0, 0, 5, 5, 11, 11, 4, 4]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


SHAPES = [
    (1, 16, 16),
    (2, 24, 40),
    (1, 1, 64),
    (3, 12, 12),
    (2, 7, 30),
    (1, 64, 1),
    (4, 33, 65),
    (2, 20, 50),
]
HEADED: dict[str, Any] = {
    "attention": lambda q, k, v, bias, scale: am.attention(q, k, v, scale=scale),
    "attention, causal": lambda q, k, v, bias, scale: am.attention(
        q, k, v, mask=am.causal(), scale=scale
    ),
    "attention, modified": lambda q, k, v, bias, scale: am.attention(
        q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h], scale=scale
    ),
    "sdpa": lambda q, k, v, bias, scale: at.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), scale=scale
    ),
    "flex": lambda q, k, v, bias, scale: at.flex_attention(
        *(x.transpose(1, 2) for x in (q, k, v)),
        lambda score, b, h, i, j: score + bias[h],
        scale=scale,
    ),
}


def graphs_of(function: Any, calls: list[tuple[Any, ...]]) -> int:
    """How many graphs these calls make; nothing is computed."""
    made: list[Any] = []

    def keep(module: Any, _: Any) -> Any:
        made.append(module)
        (output,) = module.graph.find_nodes(op="output")
        return lambda *_: [torch.empty(0) for _ in output.args[0]]

    compiled = torch.compile(function, backend=keep, fullgraph=True)
    for arguments in calls:
        compiled(*arguments)
    return len(made)


@pytest.mark.parametrize("name", HEADED)
def test_few_graphs_for_many_sizes(name: str) -> None:
    """PyTorch makes 8 at most; one of static sizes, one of dynamic ones, and those for extents of 1."""
    calls = [
        (*(torch.zeros(b, n, HEADS, DIM).bfloat16() for n in (sq, sk, sk)), torch.zeros(HEADS), 0.5)
        for b, sq, sk in SHAPES
    ]
    assert graphs_of(HEADED[name], calls) <= 4


@pytest.mark.parametrize("name", HEADED)
def test_two_graphs_for_many_scales(name: str) -> None:
    q = torch.zeros(1, SQ, HEADS, DIM).bfloat16()
    scales = [0.1, 0.25, 0.3, 0.7, 1.5]
    assert graphs_of(HEADED[name], [(q, q, q, torch.zeros(HEADS), scale) for scale in scales]) <= 2


def test_a_scale_that_changes_is_checked_when_the_graph_runs() -> None:
    q = operands()[0]
    compiled = torch.compile(
        lambda q, scale: at.scaled_dot_product_attention(q, q, q, scale=scale),
        backend="eager",
        fullgraph=True,
    )
    for scale in (0.25, 0.5, 0.7):
        wanted = at.scaled_dot_product_attention(q, q, q, scale=scale)
        assert torch.equal(compiled(q, scale), wanted)
    with pytest.raises(SpecError, match="^scale must be finite and greater than 0"):
        compiled(q, -0.5)


def test_masks_of_many_numbers() -> None:
    """A mask is text in a graph, whatever it is made of; its numbers are constants, one graph for each."""
    q = torch.zeros(1, SQ, HEADS, DIM).bfloat16()
    makers: list[Any] = [lambda n: am.sliding_window(n, 0), am.chunked, am.prefix_lm]
    makers.append(lambda n: ~(am.causal() | am.sliding_window(n, None)))
    for make in makers:
        masks = [(q, make(n)) for n in (3, 4, 5)]
        torch._dynamo.reset()
        assert graphs_of(lambda q, mask: am.attention(q, q, q, mask=mask), masks) == 3


def test_samples_under_a_modifier_come_out_of_a_graph() -> None:
    """`vmap` has no rule for what traces modifiers in a graph: the call is an operator then."""
    k = torch.zeros(2, 9, 4, 64).to(torch.bfloat16)

    def attend(q: Any) -> Any:
        return am.attention(q, k, k, score_mod=softcap(3.0))

    with only_planned():
        o = torch.compile(torch.vmap(attend), backend="eager")(k.new_zeros(3, 2, 8, 4, 64))
    assert o.shape == (3, 2, 8, 4, 64)
