"""Masks and attention for models of `transformers`: what a query sees is what the package's `eager` shows it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
hf: Any = pytest.importorskip("transformers", minversion="5.23")

import attn_mlir as am  # noqa: E402
import attn_mlir.transformers as door  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.trace import trace  # noqa: E402
from attn_mlir.transformers import attention as layers  # noqa: E402
from attn_mlir.transformers import masks  # noqa: E402
from attn_mlir.validation.effects import Change, Subject, complaint  # noqa: E402

host: Any = pytest.importorskip("transformers.masking_utils")

BATCH, SLOTS, WINDOW, CHUNK = 2, 16, 4, 3
LEFT, RIGHT = (0, 3), (0, -2)  # tokens of each sequence that are padding, on the left or the right
SPANS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1, -1], [0, 0, -1, -1, -1, 2, 2, -1, 3]])

TWICE = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]] * 2)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    door.register()


def config(**options: Any) -> Any:
    """Of a model of one layer."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 97}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    return hf.MistralConfig(**{"sliding_window": WINDOW, **sizes, **heads, **options})


def padded(length: int, where: tuple[int, int]) -> Any:
    """Of [batch, length], 1 where there is no padding."""
    found = torch.ones(BATCH, length, dtype=torch.long)
    for row, count in zip(found, where, strict=True):
        row[slice(0, count) if count >= 0 else slice(count, None)] = 0
    return found


def cache_with(kind: Any, tokens: int, setup: Any) -> Any:
    """A cache that holds some tokens."""
    is_static = kind is hf.StaticCache
    made = kind(config=setup, max_cache_len=SLOTS) if is_static else kind(config=setup)
    if tokens:
        new = torch.zeros(BATCH, 1, tokens, 64)
        made.update(new, new, 0)
    return made


def visible(keys: masks.VisibleKeys) -> Any:
    """The definition of what is visible, [batch, sq, sk]."""
    batch, _, sq, sk = keys.shape
    q, k = torch.arange(sq)[:, None], torch.arange(sk)[None, :]
    found: list[Any] = []
    for b in range(batch):
        length = sk if keys.seqused is None else int(keys.seqused[b])
        seen = torch.as_tensor(keys.mask.visible(q, k, sq, length)) & (k < length)
        if keys.predicate is not None:
            seen = seen & keys.predicate(torch.tensor(b), torch.tensor(0), q, k)
        found.append(seen.expand(sq, sk))
    return torch.stack(found)


def both(make: Callable[..., Any], setup: Any, sq: int, **given: Any) -> tuple[Any, Any]:
    """Our mask, and what the package's eager attention shows."""
    found: list[Any] = []
    for name in (door.NAME, "eager"):
        setup._attn_implementation = name
        embeds = torch.zeros(BATCH, sq, 8)
        given.setdefault("past_key_values", None)
        found.append(make(config=setup, inputs_embeds=embeds, **given))
    keys, eager = found
    shown = torch.ones(keys.shape, dtype=torch.bool) if eager is None else eager == 0
    return keys, shown[:, 0].expand(BATCH, -1, -1)


def custom(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k % 3 != q % 2


MAKERS = {
    "causal": (host.create_causal_mask, {}),
    "window": (host.create_sliding_window_causal_mask, {}),
    "chunks": (host.create_chunked_causal_mask, {"attention_chunk_size": CHUNK}),
    "both ways": (host.create_bidirectional_mask, {}),
    "window both ways": (host.create_bidirectional_sliding_window_mask, {}),
    "not causal": (host.create_causal_mask, {"is_causal": False}),
}
GIVEN: dict[str, Callable[[int], dict[str, Any]]] = {
    "all": lambda n: {"attention_mask": None},
    "ones": lambda n: {"attention_mask": padded(n, (0, 0))},
    "left": lambda n: {"attention_mask": padded(n, LEFT)},
    "right": lambda n: {"attention_mask": padded(n, RIGHT)},
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_mask_without_a_cache_shows_what_eager_shows(maker: str, given: str) -> None:
    make, options = MAKERS[maker]
    keys, eager = both(make, config(**options), 9, **GIVEN[given](9))
    assert torch.equal(visible(keys), eager)
    is_closed = given in ("all", "ones")
    assert (keys.predicate is None) == is_closed and keys.seqused is None


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("tokens, new", [(0, 5), (5, 1), (5, 3), (SLOTS - 2, 2)])
@pytest.mark.parametrize("kind", [hf.StaticCache, hf.DynamicCache])
@pytest.mark.parametrize("maker", ["causal", "window", "chunks", "both ways", "window both ways"])
def test_a_mask_over_a_cache_shows_what_eager_shows(
    maker: str, kind: Any, tokens: int, new: int, given: str
) -> None:
    """Queries stand behind the tokens so far, not at the cache's last slot."""
    make, options = MAKERS[maker]
    is_full = maker in ("causal", "both ways", "window both ways")
    setup = config(**({"sliding_window": None} if is_full else {}), **options)
    cache = cache_with(kind, tokens, setup)
    setup.sliding_window = WINDOW  # of the mask, whatever the cache is
    keys, eager = both(make, setup, new, past_key_values=cache, **GIVEN[given](tokens + new))
    assert torch.equal(visible(keys), eager)
    if maker == "causal" and given in ("all", "ones"):  # what a kernel skips, instead of testing it
        assert keys.predicate is None and keys.mask == am.causal()
        assert kind is hf.DynamicCache or keys.seqused.tolist() == [tokens + new] * BATCH


def test_where_queries_are_is_kept_while_a_cache_counts_on() -> None:
    setup = config(sliding_window=None)
    cache = cache_with(hf.StaticCache, 5, setup)
    spans = torch.zeros(BATCH, 8, dtype=torch.long)
    given = {"attention_mask": None, "block_sequence_ids": spans}
    keys, eager = both(host.create_causal_mask, setup, 3, past_key_values=cache, **given)
    cache.update(*[torch.zeros(BATCH, 1, 3, 64)] * 2, 0)
    assert torch.equal(visible(keys), eager)


@pytest.mark.parametrize("given", [{"block_sequence_ids": SPANS}, {}], ids=["spans", "padding"])
@pytest.mark.parametrize("kind", [hf.StaticCache, hf.DynamicCache])
@pytest.mark.parametrize("maker", ["causal", "window"])
def test_one_kernel_serves_every_step(maker: str, kind: Any, given: dict[str, Any]) -> None:
    """Where queries and keys begin is data of a kernel, and no part of its code."""
    make, _ = MAKERS[maker]
    setup = config(**({"sliding_window": None} if maker == "causal" else {}))
    setup._attn_implementation = door.NAME
    programs: set[str] = set()
    for tokens in (5, 6, 7):
        keys = make(
            config=setup,
            inputs_embeds=torch.zeros(BATCH, 1, 8),
            attention_mask=padded(tokens + 1, LEFT),
            past_key_values=cache_with(kind, tokens, setup),
            **given,
        )
        program, _ = trace(None, keys.predicate)
        programs.add(program.canonical())
    assert len(programs) == 1


@pytest.mark.parametrize("maker", ["causal", "window", "chunks"])
def test_packed_sequences_do_not_see_each_other(maker: str) -> None:
    make, options = MAKERS[maker]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 0, 1, 0, 1, 2, 3, 4, 5]])
    given = {"attention_mask": None, "position_ids": positions}
    keys, eager = both(make, config(**options), 9, **given)
    assert torch.equal(visible(keys), eager)
    windows = {"causal": am.causal(), "window": am.sliding_window(WINDOW - 1, 0)}
    assert keys.mask == windows.get(maker, am.causal())  # keys that no sequence sees are skipped


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(
    "further",
    [
        {"block_sequence_ids": SPANS},
        {"or_mask_function": custom},
        {"and_mask_function": custom},
        {"or_mask_function": custom, "block_sequence_ids": SPANS},
    ],
    ids=["spans", "or", "and", "or and spans"],
)
@pytest.mark.parametrize("maker", ["causal", "window"])
def test_functions_of_a_model_are_predicates(
    maker: str, further: dict[str, Any], given: str
) -> None:
    make, _ = MAKERS[maker]
    keys, eager = both(make, config(), 9, **GIVEN[given](9), **further)
    assert torch.equal(visible(keys), eager)
    assert keys.predicate is not None


@pytest.mark.parametrize(
    "further",
    [{}, {"block_sequence_ids": SPANS}, {"or_mask_function": custom, "position_ids": TWICE}],
    ids=["", "spans", "or and packed"],
)
@pytest.mark.parametrize("maker", MAKERS)
def test_where_closures_are_hidden_masks_are_the_same(
    maker: str, further: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch's compiler calls; nothing is compiled."""
    make, options = MAKERS[maker]
    if "both" in maker and further:
        return
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    keys, eager = both(make, config(**options), 9, attention_mask=None, **further)
    assert torch.equal(visible(keys), eager)


@pytest.mark.parametrize("q_offset, kv_offset", [(4, 0), (5, 2), (2, 4)])
@pytest.mark.parametrize(
    "function",
    [
        host.causal_mask_function,
        host.sliding_window_causal_mask_function(WINDOW),
        host.sliding_window_bidirectional_mask_function(WINDOW),
        host.remap_positions_for_packed_sequence(host.causal_mask_function, TWICE),
    ],
    ids=["causal", "window", "both sides", "renumbered"],
)
def test_queries_may_be_anywhere(function: Any, q_offset: int, kv_offset: int) -> None:
    """Also behind the last key, or before the first."""
    sizes = {"batch_size": BATCH, "q_length": 2, "kv_length": 3, "mask_function": function}
    places = {"q_offset": q_offset, "kv_offset": kv_offset}
    keys = door.attention_mask(**sizes, **places)
    shown = host.sdpa_mask(**sizes, **places, allow_is_causal_skip=False)
    assert torch.equal(visible(keys), shown[:, 0])
    assert keys.seqused is None or set(keys.seqused.tolist()) <= {
        0,
        1,
        2,
        3,
    }  # of the keys there are


def test_a_mask_made_before_is_taken_for_its_own_sizes_only() -> None:
    setup = config(sliding_window=None)
    cache = cache_with(hf.StaticCache, 5, setup)
    setup._attn_implementation = door.NAME

    def mask(new: int, given: Any) -> Any:
        embeds = torch.zeros(BATCH, new, 8)
        return host.create_causal_mask(
            config=setup, inputs_embeds=embeds, attention_mask=given, past_key_values=cache
        )

    made = mask(1, padded(6, LEFT)).contiguous()
    assert mask(1, made) is made
    with pytest.raises(SpecError, match="this step has"):
        mask(2, made)


def expected(q: Any, k: Any, v: Any, seen: Any, **options: Any) -> Any:
    """What the package's eager functions compute, in float64; [batch, sq, heads, head_dim]."""
    scores = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT / 8
    if (cap := options.get("softcap")) is not None:
        scores = torch.tanh(scores / cap) * cap
    scores = scores + options.get("position_bias", 0.0)
    scores = torch.where(seen, scores, -torch.inf)
    if (sinks := options.get("s_aux")) is not None:
        last = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, last], -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]]
    return (weights @ v.double().repeat_interleave(q.shape[1] // k.shape[1], 1)).transpose(1, 2)


def drawn(*extents: int) -> Any:
    return torch.randn(*extents, generator=torch.Generator().manual_seed(sum(extents)))


LAYERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "spans": ("causal", {"block_sequence_ids": SPANS}, {}),
    "changes": ("causal", {}, {"softcap": 2.0, "position_bias": drawn(1, 2, 9, 9), "s_aux": drawn(2)}),
    "spans in windows": ("window", {"block_sequence_ids": SPANS, "or_mask_function": custom}, {}),
    "chunks after padding": ("chunks", {"attention_mask": padded(9, LEFT)}, {}),
    "spans over a cache": ("causal", {"block_sequence_ids": SPANS, "tokens": 5}, {}),
    "packed": ("window", {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5]] * 2)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.long("spans in windows", "chunks after padding", "spans over a cache", "packed")
def test_kernels_evaluate_what_masks_say(case: str) -> None:
    maker, told, options = LAYERS[case]
    make, changes = MAKERS[maker]
    setup, given, sq, sk = config(**changes), {"attention_mask": None, **told}, 9, 9
    if (tokens := given.pop("tokens", None)) is not None:
        setup, sq, sk = config(sliding_window=None), 4, SLOTS
        given["past_key_values"] = cache_with(hf.StaticCache, tokens, setup)
    keys, seen = both(make, setup, sq, **given)
    q, k, v = (drawn(BATCH, heads, n, 64).bfloat16() for heads, n in ((2, sq), (1, sk), (1, sk)))
    with torch.no_grad():
        o, weights = door.attention_forward(SimpleNamespace(), q, k, v, keys, **options)
    truth = expected(q, k, v, seen[:, None], **options)
    rows = seen.any(-1)  # eager gives others the mean of V
    assert weights is None and (o.double() - truth)[rows].abs().max() < 0.02
    assert not o[~rows].any()


@pytest.mark.parametrize("is_bool", [True, False], ids=["bool", "float"])
@pytest.mark.long("float")
def test_a_mask_of_the_caller_is_taken(is_bool: bool) -> None:
    seen = (drawn(BATCH, 1, 3, 5) > 0) | (torch.arange(5) == 2)
    mask = seen if is_bool else torch.where(seen, 0.0, torch.finfo(torch.bfloat16).min).bfloat16()
    q, k, v = (drawn(BATCH, 2, n, 64).bfloat16() for n in (3, 5, 5))
    o, _ = door.attention_forward(SimpleNamespace(), q, k, v, mask)
    assert (o.double() - expected(q, k, v, seen)).abs().max() < 0.02


def logits(model: Any, name: str, call: Any, tokens: Any, mask: Any, *, as_generate: bool) -> Any:
    """Of a prompt and of the tokens behind it, over a cache that is allocated at once.

    With `as_generate` masks are made outside of `call`, as `generate` makes them for such a cache.
    """
    model.set_attn_implementation(name)
    known = {"past_key_values": hf.StaticCache(config=model.config, max_cache_len=12)}
    found = [model(input_ids=tokens[:, :4], attention_mask=mask[:, :4], **known).logits]
    for end in range(5, tokens.shape[1] + 1):
        given = {"attention_mask": mask[:, :end], "use_cache": True, **known}
        if as_generate:
            whole = tokens[:, :end]
            given = model.prepare_inputs_for_generation(whole, next_sequence_length=1, **given)
        else:
            given["input_ids"] = tokens[:, end - 1 : end]
        found.append(call(**given).logits)
    return torch.cat(found, 1)[mask.bool()].float()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("window", [None, 3])
def test_compiled_logits_over_a_static_cache_are_those_of_eager(
    window: int | None, graphs_afresh: None
) -> None:
    setup = config(sliding_window=window, initializer_range=0.125)
    model = hf.MistralForCausalLM(setup).to(torch.bfloat16).eval()
    tokens = torch.randint(97, (BATCH, 7))
    mask, as_generate = padded(7, LEFT), window is None
    call = torch.compile(model, fullgraph=True, backend="eager")
    ours = logits(model, door.NAME, call, tokens, mask, as_generate=as_generate)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 1 or not as_generate  # of windows the package counts tokens in Python
    eager = logits(model, "eager", model, tokens, mask, as_generate=as_generate)
    truth = logits(model.float(), "eager", model, tokens, mask, as_generate=as_generate)
    allowed = 2 * (eager - truth).abs().max()
    assert 0 < (ours - truth).abs().max() <= allowed < 0.2 < eager.abs().max()


@pytest.mark.slow
def test_generate_with_a_static_cache_computes_what_eager_computes() -> None:
    torch.manual_seed(0)
    model = hf.MistralForCausalLM(config(sliding_window=None, initializer_range=0.125))
    model = model.to(torch.bfloat16).eval()
    given = {"input_ids": torch.randint(97, (BATCH, 5)), "attention_mask": padded(5, LEFT)}
    asked = {"max_new_tokens": 3, "do_sample": False, "output_logits": True}
    made: list[Any] = []
    for name, cache in ((door.NAME, "static"), ("eager", "dynamic")):
        model.set_attn_implementation(name)
        options = {**asked, "return_dict_in_generate": True, "cache_implementation": cache}
        made.append(torch.stack(model.generate(**given, **options).logits))
    ours, eager = made
    assert (ours - eager).abs().max() < 0.1 < 1 < eager.abs().max()


def attend(mask: Any = None, *, is_causal: bool = True, sk: int = 3, **options: Any) -> Any:
    q = torch.zeros(1, 2, 3, 64, dtype=torch.bfloat16)
    k = torch.zeros(1, 2, sk, 64, dtype=torch.bfloat16)
    setup = SimpleNamespace(_attn_implementation=door.NAME)
    layer = SimpleNamespace(is_causal=is_causal, config=setup)
    return door.attention_forward(layer, q, k, k, mask, **options)


def test_a_layer_without_a_mask_has_the_window_that_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[am.Mask] = []
    monkeypatch.setattr(layers, "attention", lambda *_, mask, **__: asked.append(mask))
    attend()
    attend(sliding_window=2)
    attend(is_causal=False)
    assert asked == [am.causal(), am.sliding_window(1, 0), am.full()]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dropout": 0.1}, "dropout must be 0, got 0.1"),
        ({"output_attentions": True}, "output_attentions is not offered"),
        ({"cache": object()}, "cache is not offered"),
        ({"indices": torch.zeros(2)}, "indices is not offered"),
        ({"position_bias": torch.zeros(1, 3, 3, 3)}, "position_bias has shape"),
        ({"position_bias": torch.zeros(1, 2, 3, 3, dtype=torch.int32)}, "position_bias is torch.int32"),
        ({"mask": torch.ones(1, 3, dtype=torch.bool)}, "attention_mask has shape"),
        ({"mask": torch.ones(1, 1, 3, 3, dtype=torch.int64)}, "attention_mask is torch.int64"),
        ({"mask": "causal"}, "attention_mask must be a tensor"),
        ({"sk": 5}, "attention_mask is missing"),
        ({"is_causal": False, "sliding_window": 2}, "needs a mask"),
        ({"mask": masks.VisibleKeys((1, 1, 3, 4), am.causal())}, "the layer has"),
    ],
)  # fmt: skip
def test_what_would_be_left_out_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        attend(**options)


def test_a_causal_mask_and_a_call_that_is_not_contradict_each_other() -> None:
    keys, _ = both(host.create_causal_mask, config(), 3, attention_mask=None)
    q = torch.zeros(BATCH, 2, 3, 64, dtype=torch.bfloat16)
    with pytest.raises(SpecError, match="contradict each other"):
        door.attention_forward(SimpleNamespace(), q, q, q, keys, is_causal=False)


def test_a_name_without_a_mask_function_is_refused() -> None:
    hf.AttentionInterface.register("attn_mlir_alone", door.attention_forward)
    model = hf.MistralForCausalLM(config()).to(torch.bfloat16).eval()
    model.set_attn_implementation("attn_mlir_alone")
    with pytest.raises(SpecError, match="'attn_mlir_alone' has no mask function"):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long))
    for name in ("attn_mlir_flash", "", 3):
        with pytest.raises(SpecError, match="name must be an identifier"):
            door.register(name)  # pyright: ignore[reportArgumentType]


def test_a_package_out_of_bounds_is_refused() -> None:
    for version in ("4.57.1", "5.22.9", "5.9.0", "6.0.0", "6.1"):
        message = f"needs transformers 5.23 or newer, below 6.0, got {version}"
        with pytest.raises(ImportError, match=message):
            door.check_version(version)
    for version in ("5.23.0", "5.23.0.dev0", "5.99.1"):
        door.check_version(version)


TOLD = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor([0, 3, 5]))
OPERANDS = {"query": (1, 2, 5, 64), "key": (1, 1, 5, 64), "value": (1, 1, 5, 64)}
LAYER = Subject(
    door.attention_forward,
    lambda: {
        "module": SimpleNamespace(is_causal=True),
        **{name: drawn(*shape).bfloat16() for name, shape in OPERANDS.items()},
        "attention_mask": None,
    },
    {
        "module": Change(SimpleNamespace(is_causal=False)),
        **{name: Change(drawn(*shape).bfloat16() + 1) for name, shape in OPERANDS.items()},
        "attention_mask": Change(masks.VisibleKeys((1, 1, 5, 5), am.full())),
        "scaling": Change(0.5),
        "dropout": Change(0.5, refused=True),
        "sliding_window": Change(2),
        "softcap": Change(3.0),
        "is_causal": Change(False),
        "s_aux": Change(drawn(2)),
        "position_bias": Change(drawn(1, 2, 5, 5)),
        **{
            name: Change(torch.tensor([0, 1, 5]), TOLD)
            for name in ("cu_seq_lens_q", "cu_seq_lens_k")
        },
        **{f"max_length_{side}": Change(4, TOLD) for side in "qk"},
        "deterministic": Change(True, nothing=True),  # of gradients
    },
)


@pytest.mark.parametrize("argument", LAYER.changes)
def test_every_argument_of_a_layer_does_something(argument: str) -> None:
    assert {*LAYER.changes, "options"} == {*inspect.signature(LAYER.function).parameters}
    assert complaint(LAYER, argument) == ""


def test_every_argument_of_the_package_is_accounted_for() -> None:
    """Of masks, those of its own mask functions; of layers, those that models may pass on."""
    ours = {*inspect.signature(door.attention_mask).parameters, *masks.NEUTRAL, "kwargs"}
    for own in (host.sdpa_mask, host.eager_mask, host.flex_attention_mask):
        assert set(inspect.signature(own).parameters) <= ours
    with pytest.raises(SpecError, match="later of a mask of transformers is not known"):
        door.attention_mask(1, 3, 3, later=1)
    used = {*inspect.signature(door.attention_forward).parameters}
    known = {*used, *layers.NEUTRAL, *layers.INSTEAD}
    from transformers.utils import TransformersKwargs

    assert set(TransformersKwargs.__annotations__) <= known
    for own in ("sdpa", "flash_attention_2"):
        function = hf.modeling_utils.ALL_ATTENTION_FUNCTIONS[own]
        assert set(inspect.signature(function).parameters) <= {*known, "kwargs"}
