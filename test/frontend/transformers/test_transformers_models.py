"""Models of `transformers` with random weights: logits are those of `eager`, on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
hf: Any = pytest.importorskip("transformers", minversion="5.23")

import attn_mlir.transformers as door  # noqa: E402
from attn_mlir import env  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.transformers import masks  # noqa: E402

WINDOW, PROMPT, LENGTH = 4, 6, 8
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
SIZES |= {"initializer_range": 0.125}
BOTH = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**{**SIZES, **BOTH, "head_dim": 256, "query_pre_attn_scalar": 64})
    ),
    "gpt-oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**SIZES, **BOTH, num_local_experts=2, num_experts_per_tok=1)
    ),
}
CACHES: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda setup: hf.DynamicCache(config=setup),
    "static": lambda setup: hf.StaticCache(config=setup, max_cache_len=12),
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    door.register()
    door.register("attn_mlir_or_sdpa", fallback="sdpa")


def judged(model: Any, logits: Callable[[Any], Any]) -> None:
    """Our logits are as far from those in f32 as the logits of `eager` in bf16 are."""
    found: list[Any] = []
    with torch.no_grad():
        for name, dtype in (("eager", torch.float32), ("eager", torch.bfloat16), (door.NAME, None)):
            model.set_attn_implementation(name)
            found.append(logits(model.to(dtype)).float())
    truth, eager, ours = found
    assert 0 < (ours - truth).abs().max() <= 2 * (eager - truth).abs().max() < truth.abs().max() / 2


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.long("qwen3-*", "gemma3-*", "*-static")
def test_logits_of_a_padded_prompt_and_of_tokens_behind_it(name: str, cache: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    tokens, mask = torch.randint(97, (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :2] = 0

    def logits(model: Any) -> Any:
        kept = CACHES[cache](model.config)
        found: list[Any] = []
        for first, end in ((0, PROMPT), (PROMPT, PROMPT + 1), (PROMPT + 1, LENGTH)):
            given = {"input_ids": tokens[:, first:end], "attention_mask": mask[:, :end]}
            found.append(model(**given, past_key_values=kept).logits)
        return torch.cat(found, 1)[mask.bool()]

    judged(model, logits)


@pytest.mark.slow
def test_hidden_states_of_a_vision_encoder() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 1}
    setup = hf.SiglipVisionConfig(**sizes, num_attention_heads=2, image_size=32, patch_size=8)
    image = torch.randn(1, 3, 32, 32)
    model = hf.SiglipVisionModel(setup).eval()
    judged(model, lambda x: x(pixel_values=image.to(x.dtype)).last_hidden_state)


TOLD = {
    "cu_seq_lens_q": torch.tensor([0, 3, LENGTH]),
    "cu_seq_lens_k": torch.tensor([0, 3, LENGTH]),
    "max_length_q": 5,
    "max_length_k": 5,
}
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.long("2")
def test_logits_of_a_packed_batch(window: int | None) -> None:
    """As a collator that flattens a batch tells of it; `eager` goes by `position_ids`."""
    torch.manual_seed(0)
    model = hf.MistralForCausalLM(hf.MistralConfig(**SIZES, sliding_window=window)).eval()
    tokens = torch.randint(97, (1, LENGTH))

    def logits(model: Any) -> Any:
        given = {} if model.config._attn_implementation == "eager" else TOLD
        return model(input_ids=tokens, position_ids=POSITIONS, use_cache=False, **given).logits

    judged(model, logits)


def drawn(*extents: int) -> Any:
    return torch.randn(*extents, generator=torch.Generator().manual_seed(sum(extents)))


def odd(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k % 3 != q % 2) | (k == q)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mask", "predicate and bias"])
@pytest.mark.long("predicate and bias")
def test_positions_of_a_packed_batch_are_those_of_the_row(case: str) -> None:
    q, k, v = (drawn(1, n, LENGTH, 64).bfloat16() for n in (2, 1, 1))
    first = torch.arange(LENGTH)
    seen = (first[:, None] < 3) == (first[None] < 3)
    mask, bias, options = None, torch.zeros(1, 2, LENGTH, LENGTH), dict(TOLD)
    if case != "mask":
        seen = seen & odd(0, 0, first[:, None], first[None]) & (first[None] != 4)
        padding = (first != 4)[None]
        sizes = {"batch_size": 1, "q_length": LENGTH, "kv_length": LENGTH}
        mask = door.attention_mask(**sizes, mask_function=odd, attention_mask=padding)
        options["position_bias"] = bias = drawn(1, 2, LENGTH, LENGTH)
    layer = SimpleNamespace(is_causal=False)
    o, _ = door.attention_forward(layer, q, k, v, mask, **options)
    scores = q.double() @ k.double().mT / 8 + bias
    weights = torch.where(seen, scores, -torch.inf).softmax(-1)
    truth = (weights.nan_to_num() @ v.double()).transpose(1, 2)
    assert (o.double() - truth).abs().max() < 0.02


@pytest.mark.parametrize(
    "change, message",
    [
        ({"cu_seq_lens_k": None}, "cu_seq_lens_k must be a tensor, got None"),
        ({"batch": 2}, "cu_seq_lens_q needs a batch of one row, got 2"),
        ({"cu_seq_lens_q": torch.zeros(0)}, "cu_seq_lens_q"),
        ({"mask": masks.VisibleKeys((1, 1, LENGTH, LENGTH), masks.causal(), seqused=torch.ones(1))},
         "excludes a cache that is allocated at once"),
    ],
)  # fmt: skip
def test_bad_packed_batches(
    change: dict[str, Any], message: str, no_compiler: type[Exception]
) -> None:
    given = {**TOLD, **change}
    batch, mask = given.pop("batch", 1), given.pop("mask", None)
    x = torch.zeros(batch, 1, LENGTH, 64, dtype=torch.bfloat16)
    with pytest.raises(SpecError, match=message):
        door.attention_forward(SimpleNamespace(is_causal=True), x, x, x, mask, **given)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("cache", CACHES)
def test_refused_layers_go_to_sdpa_and_say_so_once(
    cache: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of models in f32, with gradients: no kernel has them."""
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(env, "log", lambda *told: said.append(told))
    env.log_once.cache_clear()
    torch.manual_seed(0)
    model = hf.MistralForCausalLM(hf.MistralConfig(**SIZES, sliding_window=window)).eval()
    tokens, mask = torch.randint(97, (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :2] = 0
    found: list[Any] = []
    for name in ("eager", "attn_mlir_or_sdpa"):
        model.set_attn_implementation(name)
        kept = CACHES[cache](model.config)
        for first, end in ((0, PROMPT), (PROMPT, LENGTH)):
            given = {"input_ids": tokens[:, first:end], "attention_mask": mask[:, :end]}
            made = model(**given, past_key_values=kept).logits[mask[:, first:end].bool()]
            (gradient,) = torch.autograd.grad(made.square().sum(), model.lm_head.weight)
            found += [made, gradient]
    half = len(found) // 2
    for eager, ours in zip(found[:half], found[half:], strict=True):
        assert torch.allclose(eager, ours, atol=1e-4)
    assert [level for level, text in said if "falls back" in text] == ["warning"]


@pytest.mark.parametrize(
    "options", [{"softcap": 2.0}, {"s_aux": drawn(2)}, {"output_attentions": True}]
)
def test_what_sdpa_would_leave_out_stays_refused(options: dict[str, Any]) -> None:
    x = torch.zeros(1, 2, 3, 64)
    layer = SimpleNamespace(is_causal=True)
    with pytest.raises(SpecError):
        door.attention_or_sdpa(layer, x, x, x, None, **options)
    o, _ = door.attention_or_sdpa(layer, x, x, x, None)
    assert o.shape == (1, 3, 2, 64)
    with pytest.raises(SpecError, match='fallback must be None or "sdpa"'):
        door.register(fallback="eager")
