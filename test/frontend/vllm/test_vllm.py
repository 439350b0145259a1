"""vLLM's plug-in: its tensors on the emulator, its classes over a recorded interface, its names."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attn_mlir import vllm  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.validation.hosts import vllm_double as double  # noqa: E402
from attn_mlir.vllm import attention, caches, latent  # noqa: E402

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 64, 16
QUERIES, KEYS = (1, 5, 0, 2), (37, 20, 3, 2)  # a decode, a chunk, a padding request, a prompt
TOLERANCE = 2e-2


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


LAYOUTS = {
    "LBHNC": lambda b, h, n, c: torch.zeros(b, h, n, c),
    "LBNHC": lambda b, h, n, c: torch.zeros(b, n, h, c).transpose(1, 2),
    "LHBNC": lambda b, h, n, c: torch.zeros(h, b, n, c).transpose(0, 1),
    "BLHNC": lambda b, h, n, c: torch.zeros(b, 3, h, n, c)[:, 1],
    "BLNHC": lambda b, h, n, c: torch.zeros(b, 3, n, h, c)[:, 1].transpose(1, 2),
    "BHLNC": lambda b, h, n, c: torch.zeros(b, h, 3, n, c)[:, :, 1],
    "stacked": lambda b, h, n, c: torch.zeros(2, b, n, h, c // 2),
}


def pool(layout: str, dtype: Any, kv_heads: int = KV_HEADS) -> Any:
    made = LAYOUTS[layout](12, kv_heads, BLOCK, 2 * DIM)
    strided = torch.empty_strided(made.shape, made.stride(), dtype=torch.float32)
    return strided.fill_(float("nan")).to(dtype)


def batch(room: int = 3) -> double.CommonMetadata:
    """Requests in blocks of their own, and two tokens of padding behind them."""
    table = torch.zeros(len(KEYS), 5, dtype=torch.int32)
    blocks = iter(torch.randperm(12, generator=torch.Generator().manual_seed(1)).tolist())
    for row, keys in enumerate(KEYS):
        for column in range(-(-keys // BLOCK)):
            table[row, column] = next(blocks)
    slots = [
        int(table[row, at // BLOCK]) * BLOCK + at % BLOCK
        for row, (queries, keys) in enumerate(zip(QUERIES, KEYS, strict=True))
        for at in range(keys - queries, keys)
    ]
    starts = torch.tensor([0, *QUERIES]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(KEYS, dtype=torch.int32)
    tokens = sum(QUERIES)
    return double.CommonMetadata(
        starts,
        lengths,
        len(KEYS),
        tokens,
        max(QUERIES),
        max(KEYS),
        table,
        torch.tensor([*slots, -1, -1]),
    )


def filled(kv_cache: Any, dtype: str, common: Any, scales: tuple[Any, Any]) -> tuple[Any, Any]:
    """Keys and values of each request, f32, of which all but the new ones are in the pool already."""
    heads = kv_cache.shape[3 if kv_cache.ndim == 5 else 1]
    keys, values = (normal(len(KEYS), max(KEYS), heads, DIM, seed=seed) for seed in (1, 2))
    for row, count in enumerate(KEYS):
        old = range(count - QUERIES[row])
        slots = [
            int(common.block_table_tensor[row, at // BLOCK]) * BLOCK + at % BLOCK for at in old
        ]
        caches.update_cache(
            keys[row, : len(slots)], values[row, : len(slots)], kv_cache, torch.tensor(slots, dtype=torch.int64),
            kv_cache_dtype=dtype, k_scale=scales[0], v_scale=scales[1],
        )  # fmt: skip
    return keys, values


def new_tokens(whole: Any) -> Any:
    """Those of this step, with two rows of padding."""
    rows = [
        whole[row, keys - n : keys] for row, (n, keys) in enumerate(zip(QUERIES, KEYS, strict=True))
    ]
    return torch.cat([*rows, torch.full_like(whole[0, :2], float("nan"))])


def truth(
    query: Any, keys: Any, values: Any, scale: float, window: int | None = None, cap: float = 0.0,
    sinks: Any = None, slopes: Any = None, causal: bool = True,
) -> Any:  # fmt: skip
    """Attention of each request by its formula, f32."""
    rows, first = [], 0
    for row, (n, count) in enumerate(zip(QUERIES, KEYS, strict=True)):
        q = query[first : first + n].float().transpose(0, 1)
        group = q.shape[0] // keys.shape[2]
        k, v = (
            x[row, :count].float().transpose(0, 1).repeat_interleave(group, 0)
            for x in (keys, values)
        )
        s = q @ k.transpose(1, 2) * scale
        if cap:
            s = cap * torch.tanh(s / cap)
        i, j = torch.arange(n)[:, None] + count - n, torch.arange(count)[None]
        if slopes is not None:
            s = s - slopes[:, None, None] * (i - j).abs()
        hidden = (j > i) if causal else torch.zeros_like(i + j, dtype=torch.bool)
        if window is not None:
            hidden |= j < i - window + 1
        s = s.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            s = torch.cat([s, sinks.float()[:, None, None].expand(-1, n, 1)], -1)
        rows.append((torch.softmax(s, -1)[..., :count] @ v).transpose(0, 1))
        first += n
    return torch.cat(rows)


@pytest.fixture
def classes() -> Iterator[Any]:
    with double.installed():
        yield importlib.import_module("attn_mlir.vllm.backend")


def layer(k: float = 1.0, v: float = 1.0) -> Any:
    return SimpleNamespace(_k_scale=torch.tensor(k), _v_scale=torch.tensor(v))


CASES: dict[str, dict[str, Any]] = {
    "LBHNC": {},
    "LBNHC": {"layout": "LBNHC", "impl": {"sliding_window": 9}},
    "LHBNC": {"layout": "LHBNC", "impl": {"logits_soft_cap": 5.0}},
    "BLHNC": {"layout": "BLHNC", "sinks": True},
    "BLNHC": {"layout": "BLNHC", "kv_heads": 1},
    "BHLNC": {"layout": "BHLNC", "impl": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]}},
    "stacked": {"layout": "stacked", "causal": False},
    "8 bits": {"dtype": "fp8", "scales": (0.5, 2.0), "tolerance": 0.2},
    "8 bits, stacked, sinks": {
        "dtype": "fp8_e4m3", "layout": "stacked", "sinks": True, "scales": (0.5, 2.0), "tolerance": 0.2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long("LHBNC", "BLNHC", "BHLNC", "8 bits, stacked, sinks")
def test_a_batch_through_the_classes(name: str, classes: Any) -> None:
    """A step of a layer as vLLM makes it: the cache is updated, then attention, with padding behind both."""
    case = {
        "layout": "LBHNC",
        "dtype": "auto",
        "kv_heads": KV_HEADS,
        "impl": {},
        "tolerance": TOLERANCE,
        **CASES[name],
    }
    common, impl = batch(), case["impl"]
    common = replace(common, causal=case.get("causal", True))
    is_narrow = case["dtype"] != "auto"
    kv_cache = pool(
        case["layout"], torch.float8_e4m3fn if is_narrow else torch.bfloat16, case["kv_heads"]
    )
    kv_cache = kv_cache.view(torch.uint8) if is_narrow else kv_cache
    of = layer(*case.get("scales", (1.0, 1.0)))
    keys, values = filled(kv_cache, case["dtype"], common, (of._k_scale, of._v_scale))
    sinks = normal(HEADS) if case.get("sinks") else None
    made = classes.AttnMlirImpl(
        HEADS, DIM, DIM**-0.5, case["kv_heads"], kv_cache_dtype=case["dtype"], sinks=sinks, **impl
    )
    made.process_weights_after_loading(torch.bfloat16)
    spec = SimpleNamespace(block_size=BLOCK)
    builder = classes.AttnMlirBackend.get_builder_cls()(spec, ["0"], None, "cpu")
    metadata = builder.build(0, common)
    query = torch.cat(
        [normal(sum(QUERIES), HEADS, DIM), torch.full((2, HEADS, DIM), float("nan"))]
    ).bfloat16()
    output = torch.full_like(query, 7.0)
    made.do_kv_cache_update(of, new_tokens(keys), new_tokens(values), kv_cache, common.slot_mapping)
    found = made.forward(
        of, query, new_tokens(keys), new_tokens(values), kv_cache, metadata, output
    )
    assert found is output and (output[sum(QUERIES) :] == 7.0).all()
    slopes = torch.tensor(impl["alibi_slopes"]) if "alibi_slopes" in impl else None
    wanted = truth(
        query, keys, values, DIM**-0.5, impl.get("sliding_window"), impl.get("logits_soft_cap", 0.0),
        sinks, slopes, common.causal,
    )  # fmt: skip
    assert torch.allclose(
        output[: sum(QUERIES)].float(), wanted, atol=case["tolerance"], rtol=case["tolerance"]
    )


def test_scores_of_a_layer_are_options_of_flash_attention() -> None:
    slopes, sinks = torch.ones(HEADS), torch.zeros(HEADS)
    scores = attention.Scores(0.5, 9, 5.0, slopes, sinks)
    options = {"softmax_scale": 0.5, "softcap": 5.0, "alibi_slopes": slopes, "s_aux": sinks}
    for is_causal, window in ((True, (8, 0)), (False, (8, 8))):
        more = {"causal": is_causal, "window_size": window}
        assert scores.options(is_causal=is_causal) == options | more


@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_lie_where_the_engine_has_them(layout: str) -> None:
    """In front of the values, columns or pools; each has its own scale."""
    kv_cache = pool(layout, torch.bfloat16)
    keys, values = caches.cache_views(kv_cache, DIM)
    keys.fill_(1.0)
    values.fill_(2.0)
    first, second = kv_cache if layout == "stacked" else kv_cache.split(DIM, -1)
    assert (first == 1.0).all() and (second == 2.0).all()
    scales = caches.cache_scales("fp8", torch.tensor(3.0), torch.ones(KV_HEADS))
    assert [scale.tolist() for scale in scales] == [[3.0], [1.0, 1.0]]
    assert caches.cache_scales("auto", *scales) == (None, None)


def test_metadata_are_views_of_what_a_graph_keeps(classes: Any) -> None:
    common = batch()
    builder = classes.AttnMlirMetadataBuilder(SimpleNamespace(block_size=BLOCK), ["0"], None, "cpu")
    made = builder.build_for_cudagraph_capture(common)
    for ours, theirs in {
        "query_start_loc": common.query_start_loc, "seq_lens": common.seq_lens,
        "block_table": common.block_table_tensor, "slot_mapping": common.slot_mapping,
    }.items():  # fmt: skip
        assert getattr(made, ours).data_ptr() == theirs.data_ptr()
    assert made.block_table.shape == (4, 3)  # of 5 columns, for 37 keys
    other = torch.ones(4, 9, dtype=torch.int32)
    moved = builder.update_block_table(made, other, common.slot_mapping)
    assert moved.block_table.data_ptr() == other.data_ptr() and moved.seq_lens is made.seq_lens
    support = classes.AttnMlirMetadataBuilder._cudagraph_support
    assert support is double.CGSupport.UNIFORM_BATCH


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"causal": torch.ones(4, dtype=torch.bool)}, "causal must be True or False"),
        ({"mm_req_doc_ranges": {0: [(0, 3)]}}, "mm_req_doc_ranges must be None: images"),
        ({"rswa_prefix_lens": torch.zeros(4)}, "rswa_prefix_lens must be None"),
        ({"dcp_local_seq_lens": torch.zeros(4)}, "dcp_local_seq_lens must be None"),
        ({"seq_lens": None}, "seq_lens must be a numpy array or have"),
        ({"block_table_tensor": None}, "block_table_tensor must be a numpy array or have"),
        ({"max_seq_len": None}, "max_seq_len must be an integer from 0"),
        ({"num_actual_tokens": None}, "num_actual_tokens must be an integer from 0"),
    ],
)
def test_batches_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        attention.AttnMlirMetadata.of(replace(batch(), **changes), BLOCK)


def test_cascade_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="common_prefix_len must be 0: no cascade, got 32"):
        attention.AttnMlirMetadata.of(batch(), BLOCK, common_prefix_len=32)


def test_layers_that_are_refused(classes: Any) -> None:
    for arguments, message in (
        ((4, 20, 0.1), "head_size must be a multiple of 8 up to 256, got 20"),
        ((4, 512, 0.1), "head_size must be a multiple of 8 up to 256, got 512"),
        ((4, 64, 0.1, 3), "num_kv_heads must divide num_heads 4, got 3"),
        (
            (4, 72, 0.1, 2, None, None, "fp8"),
            "head_size must be a multiple of 16 up to 256, got 72",
        ),
        ((4, 64, 0.1, 2, None, None, "auto", None, "encoder_decoder"), "attn_type must be decoder"),
    ):
        with pytest.raises(SpecError, match=message):
            classes.AttnMlirImpl(*arguments)
    with pytest.raises(SpecError, match=r"sinks must be \[4\], got \[3\]"):
        classes.AttnMlirImpl(4, 64, 0.1, sinks=torch.zeros(3))
    made = classes.AttnMlirImpl(4, 64, 0.1)
    with pytest.raises(SpecError, match="output_scale must be None: O is not quantised"):
        made.forward(layer(), *[None] * 6, output_scale=torch.ones(1))
    with pytest.raises(SpecError, match=r"kv_cache must be \[blocks, kv_heads, block, 128\] or"):
        caches.cache_views(torch.zeros(3, 2, 16, 64).half(), 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "num_heads must be an integer from 1"),
        ({"num_kv_heads": 0}, "num_kv_heads must be an integer from 1"),
        ({"scale": None}, "scale must be a number, got None"),
        ({"alibi_slopes": [0.5]}, r"alibi_slopes must be \[4\], got \[1\]"),
        ({"sliding_window": 0}, "sliding_window must be an integer from 1 to .* or None, got 0"),
        ({"sliding_window": (3, 3)}, "sliding_window must be an integer"),
        ({"logits_soft_cap": -1.0}, "logits_soft_cap must be 0 or more, or None, got -1.0"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype must be auto, .*, got 'int8'"),
    ],
)
def test_arguments_of_a_layer(changes: dict[str, Any], message: str, classes: Any) -> None:
    usual = {"num_heads": 4, "head_size": 64, "scale": 0.1}
    with pytest.raises(SpecError, match=message):
        classes.AttnMlirImpl(**{**usual, **changes})


def test_errors_of_a_step_have_the_names_of_the_engine(classes: Any) -> None:
    common, kv_cache = batch(), pool("LBHNC", torch.bfloat16)
    query = normal(10, HEADS, DIM)
    usual = {
        "query": query, "kv_cache": kv_cache, "output": torch.zeros_like(query),
        "metadata": attention.AttnMlirMetadata.of(common, BLOCK), "scores": attention.Scores(0.1),
    }  # fmt: skip
    longs = replace(usual["metadata"], seq_lens=common.seq_lens.long())
    narrow = {"kv_cache": pool("LBHNC", torch.float8_e4m3fn), "kv_cache_dtype": "fp8"}
    for changes, message in (
        ({"query": query.float()}, "query has dtype f32"),
        ({"query": query.to("meta")}, "query is a torch.Tensor that is .* on meta"),
        ({"query": torch.zeros(10, 4, 128).bfloat16()[..., ::2]}, "query has strides"),
        ({"query": query[:4]}, "query_start_loc goes from 0 to 8: query has rows 0 to 4"),
        ({"kv_cache": kv_cache.half()}, "kv_cache is f16, query is bf16"),
        ({"output": usual["output"][:4]}, r"output must have shape \[8, 4, 64\]"),
        ({"metadata": longs}, r"seq_lens must be \[batch\] of i32"),
        (narrow, "k_scale must be an array of f32 for kv_cache_dtype fp8"),
        ({**narrow, "k_scale": torch.ones(3), "v_scale": torch.ones(())}, "k_scale must be f32 of"),
    ):
        with pytest.raises(SpecError, match=message):
            attention.attend(**{**usual, **changes})
    with pytest.raises(SpecError, match="output must be a numpy array or have"):
        classes.AttnMlirImpl(4, 64, 0.1).forward(layer(), query, None, None, None, None, None)


def test_what_the_backend_says_before_it_is_chosen(classes: Any) -> None:
    backend = classes.AttnMlirBackend
    assert backend.get_name() == "ATTN_MLIR" and backend.get_impl_cls() is classes.AttnMlirImpl
    assert [backend.supports_head_size(n) for n in (8, 72, 256, 60, 264)] == [True] * 3 + [
        False
    ] * 2
    capabilities = [
        SimpleNamespace(major=a, minor=b) for a, b in ((9, 0), (10, 0), (8, 0), (12, 0))
    ]
    assert [backend.supports_compute_capability(x) for x in capabilities] == [
        True,
        True,
        False,
        False,
    ]
    assert backend.supports_combination(72, torch.bfloat16, "fp8", 16, False) is not None
    assert backend.supports_combination(72, torch.bfloat16, "auto", 16, False) is None
    kinds = ("decoder", "encoder", "encoder_only", "encoder_decoder")
    assert [backend.supports_attn_type(x) for x in kinds] == [True, True, True, False]


def test_the_run_that_measures_memory(classes: Any) -> None:
    output = torch.ones(3, HEADS, DIM).bfloat16()
    made = classes.AttnMlirImpl(HEADS, DIM, 0.1)
    assert (made.forward(layer(), output, output, output, None, None, output) == 0).all()


def test_an_encoder(classes: Any) -> None:
    made = classes.AttnMlirImpl(HEADS, DIM, DIM**-0.5, KV_HEADS, attn_type="encoder_only")
    common = batch()
    metadata = attention.AttnMlirMetadata.of(common, 0)
    tokens = sum(QUERIES)
    query, key, value = (normal(tokens + 2, h, DIM) for h in (HEADS, KV_HEADS, KV_HEADS))
    value, output = value.flip(0), torch.zeros(tokens + 2, HEADS, DIM).bfloat16()
    made.do_kv_cache_update(layer(), key, value, None, common.slot_mapping)  # there is no cache
    made.forward(layer(), query, key, value, None, metadata, output)
    first = 0
    for n in QUERIES:
        part = slice(first, first + n)
        q, k, v = (x[part].float().transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(2, 0) for x in (k, v))
        wanted = torch.softmax(q @ k.transpose(1, 2) * DIM**-0.5, -1) @ v
        assert torch.allclose(output[part].float(), wanted.transpose(0, 1), atol=TOLERANCE)
        first += n


def latent_batch(n: int) -> tuple[Any, Any, Any, Any]:
    """n queries of two requests, the cache, its table and lengths."""
    q, pages = normal(2 * n, 16, 576), normal(6, BLOCK, 576)
    table = torch.tensor([[4, 1, 0], [2, 0, 0]], dtype=torch.int32)
    return q, pages, table, torch.tensor([40, 9], dtype=torch.int32)


@pytest.mark.parametrize(("n", "is_causal"), [(1, True), (2, True), (2, False)])
def test_latent_decoding(n: int, is_causal: bool) -> None:
    q, pages, table, lengths = latent_batch(n)
    with double.installed():
        classes = importlib.import_module("attn_mlir.vllm.latent_backend")
        made = classes.AttnMlirMLAImpl(
            16, 576, 0.1, 1, None, None, "auto", None, "decoder", None, kv_lora_rank=512
        )
        of_decode = SimpleNamespace(block_table=table, seq_lens=lengths)
        parts = (q[..., :512], q[..., 512:])
        o, lse = made.forward_mqa(
            parts, pages, SimpleNamespace(decode=of_decode, causal=is_causal), layer()
        )
    assert o.shape == (2 * n, 16, 512) and lse.shape == (2 * n, 16)
    for row, count in enumerate(lengths.tolist()):
        at = torch.arange(count)
        rows = pages[table[row].long()[at // BLOCK], at % BLOCK].float()
        s = q[row * n : (row + 1) * n].float() @ rows.T * 0.1
        if is_causal:
            i = torch.arange(n)[:, None, None] + count - n
            s = s.masked_fill(at[None, None] > i, float("-inf"))
        wanted = torch.softmax(s, -1) @ rows[:, :512]
        found = slice(row * n, (row + 1) * n)
        assert torch.allclose(o[found].float(), wanted, atol=TOLERANCE)
        assert torch.allclose(lse[found], torch.logsumexp(s, -1), atol=1e-3, rtol=1e-3)


def test_latent_layers_that_are_refused() -> None:
    with double.installed():
        classes = importlib.import_module("attn_mlir.vllm.latent_backend")
        usual = [16, 576, 0.1, 1, None, None, "auto", None, "decoder", None]
        for at, value, message in (
            (4, [0.5], "alibi_slopes must be None"), (5, 7, "sliding_window must be None"),
            (7, 3.0, "logits_soft_cap must be None"), (6, "fp8", "kv_cache_dtype must be of 16 bits, got fp8"),
            (8, "encoder", "attn_type must be decoder, got encoder"),
        ):  # fmt: skip
            wrong = [*usual[:at], value, *usual[at + 1 :]]
            with pytest.raises(SpecError, match=message):
                classes.AttnMlirMLAImpl(*wrong)
    q, pages, table, lengths = latent_batch(1)
    with pytest.raises(SpecError, match="q has 1 tokens, which 2 requests do not share equally"):
        latent.decode(q[:1], pages, table, lengths, 0.1)


def test_latent_prefill_of_new_tokens_and_of_context() -> None:
    with double.installed():
        classes = importlib.import_module("attn_mlir.vllm.latent_backend")
        made = classes.AttnMlirPrefillBackend(2, 0.07)
    offsets, context = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 12], [0, 20, 20]))
    made.prepare_metadata(SimpleNamespace(query_start_loc=offsets, max_query_len=7))
    q, k, v = normal(12, 2, 192), normal(12, 2, 192).flip(0), normal(12, 2, 128)
    out = torch.zeros(12, 2, 128).bfloat16()
    o, lse = made.run_prefill_new_tokens(q, k, v, True, out=out)
    assert o.data_ptr() == out.data_ptr() and lse.shape == (2, 12)
    assert torch.equal(made.run_prefill_new_tokens(q, k, v, False), o)
    for begin, end in ((0, 5), (5, 12)):
        one = [x[begin:end].float().transpose(0, 1) for x in (q, k, v)]
        s = one[0] @ one[1].transpose(1, 2) * 0.07
        s = s.masked_fill(torch.ones(end - begin, end - begin).triu(1).bool(), float("-inf"))
        assert torch.allclose(
            o[begin:end].float(), (torch.softmax(s, -1) @ one[2]).transpose(0, 1), atol=TOLERANCE
        )
        assert torch.allclose(lse[:, begin:end], torch.logsumexp(s, -1), atol=1e-3, rtol=1e-3)
    chunk = SimpleNamespace(
        query_start_loc=offsets, cu_seq_lens=context, max_query_len=7, max_seq_len=20
    )
    o, lse = made.run_prefill_context_chunk(chunk, q, normal(20, 2, 192), normal(20, 2, 128))
    assert o.isfinite().all() and (o[5:] == 0).all() and (lse[:, 5:] == -torch.inf).all()
    with pytest.raises(SpecError, match="output_scale must be None"):
        made.run_prefill_new_tokens(q, k, v, False, output_scale=torch.ones(1))


LATENT_DECODE = dict(
    zip(("q", "kv_c_and_k_pe_cache", "block_table", "seq_lens"), latent_batch(1), strict=True)
)
LATENT_PREFILL: dict[str, Any] = {
    "q": normal(4, 2, 192), "k": normal(6, 2, 192), "v": normal(6, 2, 128),
    "offsets": tuple(torch.tensor(x, dtype=torch.int32) for x in ([0, 4], [0, 6])),
    "longest": (4, 6), "scale": 0.07, "is_causal": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("q", LATENT_DECODE["q"][0], "q must be an array of rank 3"),
        ("kv_c_and_k_pe_cache", None, "kv_c_and_k_pe_cache must be"),
        ("kv_c_and_k_pe_cache", LATENT_DECODE["kv_c_and_k_pe_cache"][0], "of rank 3"),
        ("seq_lens", torch.tensor(3), "seq_lens must be an array of rank 1"),
        ("block_table", LATENT_DECODE["block_table"].long(), "block_table"),
        ("is_causal", None, "causal must be True or False"),
    ],
)
def test_latent_decoding_names_what_is_wrong(
    name: str, value: Any, message: str, no_compiler: type[Exception]
) -> None:
    with pytest.raises(SpecError, match=message):
        latent.decode(**{**LATENT_DECODE, "scale": 0.1, name: value})


@pytest.mark.parametrize(
    ("is_causal", "changes", "message"),
    [
        (True, {"longest": (2.5, 6)}, "max_query_len"),
        (False, {"longest": (4, 2.5)}, "max_seq_len"),
        (True, {"offsets": (LATENT_PREFILL["offsets"][0].float(),) * 2}, "query_start_loc"),
        (False, {"offsets": (LATENT_PREFILL["offsets"][0], torch.zeros(2))}, "cu_seq_lens"),
        (True, {"scale": -1.0}, "^scale must be"),
    ],
)
def test_latent_prefill_has_the_names_of_the_engine(
    is_causal: bool, changes: Any, message: str, no_compiler: type[Exception]
) -> None:
    with pytest.raises(SpecError, match=message):
        latent.prefill(**{**LATENT_PREFILL, **changes, "is_causal": is_causal})


def test_registration_by_name_and_again() -> None:
    with double.installed() as (names, prefills):
        vllm.register()
        vllm.register()
        vllm.register("CUSTOM", "ATTN_MLIR_MLA")
        assert names.paths["ATTN_MLIR"] == names.paths["CUSTOM"]
        for path in (
            names.paths["ATTN_MLIR"],
            names.paths["ATTN_MLIR_MLA"],
            prefills.paths["ATTN_MLIR"],
        ):
            module, _, name = str(path).rpartition(".")
            assert isinstance(getattr(importlib.import_module(module), name), type)
        with pytest.raises(SpecError, match="a name must be an identifier in capitals, got 'mine'"):
            vllm.register("mine")
        with pytest.raises(SpecError, match="need names of their own, got CUSTOM twice"):
            vllm.register("CUSTOM", "CUSTOM")


@pytest.mark.parametrize("version", ["0.32.1", "0.34.0", "1.0"])
def test_other_versions_are_told(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("attn_mlir.versions.env.log_once", lambda _, text: told.append(text))
    with double.installed(version) as (names, _):
        with pytest.raises(
            ImportError, match=f"needs vllm 0.33 or newer, below 0.34, got {version}"
        ):
            vllm.register()
        vllm.plug_in()
        assert "ATTN_MLIR" not in names.paths and "ATTN_MLIR is not registered" in told[0]


def test_the_entry_point_names_a_function() -> None:
    found = importlib.metadata.EntryPoint(
        "attn_mlir", "attn_mlir.vllm:plug_in", "vllm.general_plugins"
    )
    assert found.load() is vllm.plug_in


def test_registration_in_the_package_itself() -> None:
    """Its registry imports beside PyTorch alone; its classes need more of the engine."""
    registry = pytest.importorskip(double.REGISTRY, reason="vLLM is not installed")
    vllm.register()
    vllm.register()
    for name in (vllm.NAME, vllm.LATENT_NAME):
        module, _, made = registry.AttentionBackendEnum[name].get_path().rpartition(".")
        assert module.startswith("attn_mlir.vllm.") and made.startswith("AttnMlir")
