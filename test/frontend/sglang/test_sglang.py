"""SGLang's backend: batches on the emulator through its class over a recorded interface, and its name."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attn_mlir import sglang  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.sglang import batches  # noqa: E402
from attn_mlir.validation.hosts import sglang_double as double  # noqa: E402

HEADS, KV_HEADS, DIM, PLACES = 4, 2, 64, 112
LENGTHS, NEW = (37, 20, 3), (1, 5, 3)


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture
def backend() -> Iterator[Any]:
    with double.installed():
        yield importlib.import_module("attn_mlir.sglang.backend").AttnMlirBackend


def runner(page: int, dtype: Any = torch.bfloat16) -> Any:
    """A runner whose requests have pages in any order, from the second page on."""
    order = torch.randperm(PLACES // page - 1, generator=torch.Generator().manual_seed(page)) + 1
    tokens = torch.zeros(5, 48, dtype=torch.int32)
    first = 0
    for row, length in enumerate(LENGTHS):
        count = -(-length // page)
        places = order[first : first + count, None] * page + torch.arange(page)
        tokens[row + 1, :length] = places.reshape(-1)[:length].to(torch.int32)
        first += count
    buffers = (torch.full((PLACES, KV_HEADS, DIM), float("nan")).to(dtype) for _ in range(2))
    return SimpleNamespace(
        token_to_kv_pool=double.Pool(*buffers), req_to_token_pool=SimpleNamespace(req_to_token=tokens),
        page_size=page, model_config=SimpleNamespace(context_len=48), device="cpu", use_mla_backend=False,
    )  # fmt: skip


def step(made: Any, name: str, new: tuple[int, ...]) -> Any:
    """A step of all requests, in an order of their own."""
    rows = torch.tensor([1, 2, 3])
    tokens = made.req_to_token_pool.req_to_token
    places = [tokens[row, n - m : n] for row, n, m in zip(rows, LENGTHS, new, strict=True)]
    lengths = torch.tensor(LENGTHS)
    return SimpleNamespace(
        forward_mode=double.Mode(name), req_pool_indices=rows, seq_lens=lengths, seq_lens_cpu=lengths,
        extend_seq_lens=torch.tensor(new), extend_seq_lens_cpu=list(new), out_cache_loc=torch.cat(places).long(),
        spec_info=None,
    )  # fmt: skip


def filled(made: Any, new: tuple[int, ...], scale: float = 1.0) -> tuple[Any, Any]:
    """Keys and values of each request, whose earlier ones are in the pool, and those of this step."""
    whole = [normal(3, max(LENGTHS), KV_HEADS, DIM, seed=seed) for seed in (1, 2)]
    tokens, pool = made.req_to_token_pool.req_to_token, made.token_to_kv_pool
    for row, (n, m) in enumerate(zip(LENGTHS, new, strict=True)):
        old = tokens[row + 1, : n - m].long()
        for buffer, x in zip(pool.buffers, whole, strict=True):
            buffer[old] = (x[row, : n - m] / scale).to(buffer.dtype)
    return whole, [
        torch.cat([x[row, n - m : n] for row, (n, m) in enumerate(zip(LENGTHS, new, strict=True))])
        for x in whole
    ]


def truth(
    q: Any, whole: Any, new: tuple[int, ...], window: int, cap: float, sinks: Any, causal: bool
) -> Any:
    rows, first = [], 0
    for row, (n, m) in enumerate(zip(LENGTHS, new, strict=True)):
        k, v = (
            x[row, :n].float().transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0)
            for x in whole
        )
        s = q[first : first + m].float().transpose(0, 1) @ k.transpose(1, 2) * DIM**-0.5
        s = cap * torch.tanh(s / cap) if cap else s
        i, j = torch.arange(m)[:, None] + n - m, torch.arange(n)
        hidden = (j > i) & causal
        if window >= 0:
            hidden |= j < i - window
        s = s.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            s = torch.cat([s, sinks.float()[:, None, None].expand(-1, m, 1)], -1)
        rows.append((torch.softmax(s, -1)[..., :n] @ v).transpose(0, 1))
        first += m
    return torch.cat(rows).flatten(1)


CASES: dict[str, dict[str, Any]] = {
    "decoding, the default page": {"step": "decode"},
    "decoding, a window": {"step": "decode", "page": 16, "layer": {"sliding_window_size": 9}},
    "extension, the default page": {},
    "extension, a cap and sinks": {"page": 4, "layer": {"logit_cap": 5.0}, "sinks": True},
    "an encoder": {"page": 16, "layer": {"attn_type": "encoder_only"}},
    "8 bits": {
        "step": "decode", "dtype": torch.float8_e4m3fn, "tolerance": 0.2,
        "layer": {"k_scale": torch.tensor(0.5), "v_scale": torch.tensor(0.5)},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_through_the_class(name: str, backend: Any) -> None:
    """New keys are written into the pool, then attended to with those before; nothing else is read."""
    case = {
        "step": "extend",
        "page": 1,
        "layer": {},
        "dtype": torch.bfloat16,
        "tolerance": 2e-2,
        **CASES[name],
    }
    made, options, new = runner(case["page"], case["dtype"]), case["layer"], NEW
    if case["step"] == "decode":
        new = (1, 1, 1)
    whole, tokens = filled(made, new, float(options.get("k_scale", 1.0)))
    one = double.layer(HEADS, KV_HEADS, DIM, **options)
    ours, forward = backend(made), step(made, case["step"], new)
    q, sinks = normal(sum(new), HEADS * DIM), normal(HEADS) if case.get("sinks") else None
    ours.init_forward_metadata(forward)
    out = ours.forward(q, *tokens, one, forward, **({} if sinks is None else {"sinks": sinks}))
    wanted = truth(
        q.view(-1, HEADS, DIM), whole, new, one.sliding_window_size, one.logit_cap, sinks,
        one.attn_type == "decoder",
    )  # fmt: skip
    assert torch.allclose(out.float(), wanted, atol=case["tolerance"], rtol=case["tolerance"])


def test_batches_of_graphs_stay_where_they_are(backend: Any) -> None:
    """A graph that was recorded for a batch serves the next one, whose lengths and pages differ."""
    made = runner(1)
    ours, new = backend(made), (1, 1, 1)
    ours.init_cuda_graph_state(4, 4)
    forward = step(made, "decode", new)
    ours.init_forward_metadata_out_graph(forward, in_capture=True)
    recorded = ours.forward_metadata
    assert recorded.page_table.shape == (3, 48) and ours.get_cuda_graph_seq_len_fill_value() == 1
    whole, tokens = filled(made, new)
    forward.seq_lens = torch.tensor([1, 1, 1])
    ours.init_forward_metadata_out_graph(forward)
    assert recorded.cache_seqlens.tolist() == [1, 1, 1]
    forward.seq_lens = torch.tensor(LENGTHS)
    ours.init_forward_metadata_out_graph(forward)
    ours.forward_metadata = recorded
    q = normal(3, HEADS * DIM)
    out = ours.forward(q, *tokens, double.layer(HEADS, KV_HEADS, DIM), forward)
    wanted = truth(q.view(-1, HEADS, DIM), whole, new, -1, 0.0, None, True)
    assert torch.allclose(out.float(), wanted, atol=2e-2)


def test_what_is_refused(backend: Any) -> None:
    made = runner(1)
    with pytest.raises(SpecError, match="use_mla_backend must be False"):
        backend(SimpleNamespace(**{**vars(made), "use_mla_backend": True}))
    with pytest.raises(SpecError, match="pass --disable-hybrid-swa-memory"):
        pool = SimpleNamespace(translate_loc_from_full_to_swa=None)
        backend(SimpleNamespace(**{**vars(made), "token_to_kv_pool": pool}))
    ours, forward = backend(made), step(made, "decode", (1, 1, 1))
    q = normal(3, HEADS * DIM)
    with pytest.raises(SpecError, match="init_forward_metadata comes first"):
        ours.forward(q, None, None, double.layer(HEADS, KV_HEADS, DIM), forward)
    with pytest.raises(SpecError, match="graphs are of decoding, after init_cuda_graph_state"):
        ours.init_forward_metadata_out_graph(forward)
    ours.init_forward_metadata(forward)
    with pytest.raises(SpecError, match="q_rope must be None: it is not offered"):
        ours.forward(q, None, None, double.layer(HEADS, KV_HEADS, DIM), forward, q_rope=q)
    with pytest.raises(SpecError, match="is_cross_attention must be False"):
        ours.forward(
            q, None, None, double.layer(HEADS, KV_HEADS, DIM, is_cross_attention=True), forward
        )
    forward.spec_info = object()
    with pytest.raises(SpecError, match="spec_info must be None"):
        ours.init_forward_metadata(forward)
    with pytest.raises(
        SpecError,
        match=r"key_buffer must be a tensor \[places, kv_heads, head_dim\] of whole pages of 5",
    ):
        batches.attend(q, *made.token_to_kv_pool.buffers, ours.forward_metadata, 5, scaling=0.1)


def test_errors_of_a_step_have_the_names_of_the_engine(backend: Any) -> None:
    made = runner(1)
    ours, forward = backend(made), step(made, "decode", (1, 1, 1))
    ours.init_forward_metadata(forward)
    q, keys = normal(3, HEADS, DIM), made.token_to_kv_pool.buffers[0]
    for buffers, message in (
        ((keys.half(), keys.half()), "key_buffer is f16, q is bf16"),
        ((keys, keys.half()), "value_buffer is f16"),
    ):
        with pytest.raises(SpecError, match=message):
            batches.attend(q, *buffers, ours.forward_metadata, 1, scaling=0.1)


USUAL: dict[str, Any] = {
    "seq_lens": torch.tensor(LENGTHS), "new_lens": torch.tensor(NEW), "longest": (5, 37),
    "req_to_token": torch.zeros(5, 48, dtype=torch.int32), "req_pool_indices": torch.tensor([1, 2, 3]),
    "page_size": 1,
}  # fmt: skip
WRONG: dict[str, tuple[str, Any]] = {
    "seq_lens must be a tensor of rank 1 of int32 or int64, got None": ("seq_lens", None),
    "seq_lens must be .* got .3. of torch.float32": ("seq_lens", torch.tensor(LENGTHS).float()),
    "seq_lens must be .* got .1, 3.": ("seq_lens", torch.tensor(LENGTHS)[None]),
    "extend_seq_lens must be a tensor": ("new_lens", list(NEW)),
    "extend_seq_lens has 2 requests, seq_lens has 3": ("new_lens", torch.tensor(NEW[:2])),
    "req_to_token must be a tensor of rank 2": ("req_to_token", torch.zeros(48, dtype=torch.int32)),
    "req_to_token must be .* of torch.float32": ("req_to_token", torch.zeros(5, 48)),
    "req_pool_indices must be a tensor .* got None": ("req_pool_indices", None),
    "req_pool_indices must be .* of torch.bool": ("req_pool_indices", torch.ones(3) > 0),
    "req_pool_indices has 2 requests, seq_lens has 3": ("req_pool_indices", torch.tensor([1, 2])),
    "page_size must be an integer": ("page_size", 0),
}


@pytest.mark.parametrize("message", WRONG)
def test_invalid_lengths_and_slots(message: str) -> None:
    """PyTorch's indexing would accept some of them, and make a batch of other requests."""
    name, value = WRONG[message]
    batches.batch_of(**USUAL)
    with pytest.raises(SpecError, match=message):
        batches.batch_of(**{**USUAL, name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": None}, "scaling must be a number, got None"),
        ({"k_scale": 0.5}, "k_scale must be a tensor of one element, got 0.5"),
        ({"v_scale": torch.ones(2)}, "v_scale must be a tensor of one element"),
        ({"page_size": None}, "page_size must be an integer"),
        ({"batch": None}, "batch must be a Batch, got None"),
        ({"lengths": None}, "seq_lens must be a tensor of rank 1"),
        ({"lengths": 3}, "seq_lens must be a tensor of rank 1"),
        ({"key_buffer": np.zeros((16, 2, DIM))}, "key_buffer must be a tensor"),
    ],
)
def test_invalid_arguments_of_a_layer(
    options: dict[str, Any], message: str, no_compiler: type[Exception]
) -> None:
    lengths = options.pop("lengths", torch.tensor([5, 9], dtype=torch.int32))
    starts, table = torch.arange(3, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32)
    usual = {
        "key_buffer": normal(16, 2, DIM),
        "value_buffer": normal(16, 2, DIM),
        "batch": batches.Batch(starts, lengths, table, 1),
        "page_size": 16,
        "scaling": 0.1,
    }
    with pytest.raises(SpecError, match=message):
        batches.attend(normal(2, HEADS, DIM), **{**usual, **options})


def test_a_step_without_requests(backend: Any) -> None:
    ours = backend(runner(1))
    ours.init_forward_metadata(SimpleNamespace(forward_mode=double.Mode("idle")))
    assert ours.forward_metadata is None


def test_registration_by_name_and_again() -> None:
    with double.installed() as (backends, choices):
        sglang.register()
        sglang.register()
        assert choices == ["triton", "fa3", "attn_mlir"]
        made = backends["attn_mlir"](runner(1))
        assert type(made).__name__ == "AttnMlirBackend" and isinstance(made, double.Backend)
        with pytest.raises(SpecError, match="name must be an identifier, got 'a b'"):
            sglang.register("a b")


@pytest.mark.parametrize("version", ["0.5.22", "0.6.0", "1.0"])
def test_other_versions_are_told(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("attn_mlir.versions.env.log_once", lambda _, text: told.append(text))
    with double.installed(version) as (backends, _):
        with pytest.raises(
            ImportError, match=f"needs sglang 0.5.23 or newer, below 0.6, got {version}"
        ):
            sglang.register()
        sglang.plug_in()
        assert not backends and "attn_mlir is not registered" in told[0]


def test_the_entry_point_names_a_function() -> None:
    found = importlib.metadata.EntryPoint(
        "attn_mlir", "attn_mlir.sglang:plug_in", "sglang.srt.plugins"
    )
    assert found.load() is sglang.plug_in
