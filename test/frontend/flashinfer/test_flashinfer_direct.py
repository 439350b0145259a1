"""FlashInfer's calls without a plan, shared prefixes and `BatchAttention`, against float64."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.validation.hosts.flashinfer_cache import (  # noqa: E402
    BF16,
    BOTH,
    DIM,
    HEADS,
    HND,
    INDICES,
    INDPTR,
    K_PAGES,
    KEYS,
    KV_HEADS,
    LENGTHS,
    PAGE,
    PAGES,
    QUERIES,
    ROWS,
    SIZES,
    V_PAGES,
    VALUES,
    WORKSPACE,
    check,
    offsets,
    split,
    truth,
)
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

BATCH = len(LENGTHS)
TABLE = torch.tensor([[*pages, *[0] * (4 - len(pages))] for pages in PAGES], dtype=torch.int32)
SEQ_LENS = i32(*LENGTHS)
SINKS = torch.linspace(-1, 2, HEADS)
CALL = (WORKSPACE, TABLE, SEQ_LENS, max(LENGTHS))


def decode(query: Any, pool: Any = HND, **options: Any) -> Any:
    return flashinfer.trtllm_batch_decode_with_kv_cache(query, pool, *CALL, **options)


DECODES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "both pools": (HND, {"bmm1_scale": 0.3, "bmm2_scale": 2.0}, {"scale": 0.3}),
    "a pair": ((K_PAGES, V_PAGES), {"kv_layout": "NHD", "window_left": 9}, {"window_left": 9}),
    "sinks": (BOTH, {"kv_layout": "NHD", "sinks": [SINKS]}, {"sinks": SINKS}),
}


@pytest.mark.parametrize("name", DECODES)
def test_decode(name: str) -> None:
    pool, options, meaning = DECODES[name]
    q, lse = normal(BATCH, HEADS, DIM), torch.zeros(BATCH, HEADS)
    options = {"bmm1_scale": DIM**-0.5, **options}
    found = decode(q, pool, lse=lse, return_lse=True, **options)
    assert found[1] is lse
    want = truth(split(q, [1] * BATCH), KEYS, VALUES, **meaning)
    check(found, (want[0] * options.get("bmm2_scale", 1.0), want[1]))


def test_decode_of_several_tokens() -> None:
    """Queries are causal at the last key, as many of each sequence or by offsets."""
    for counts, told in (
        ([2] * BATCH, {"q_len_per_req": 2}),
        (QUERIES, {"cum_seq_lens_q": offsets(QUERIES), "max_q_len": max(QUERIES)}),
    ):
        q = normal(sum(counts), HEADS, DIM)
        found = decode(q, return_lse=True, bmm1_scale=DIM**-0.5, **told)
        check(found, truth(split(q, counts), KEYS, VALUES, causal=True))


def test_scales_of_8_bits_are_tensors() -> None:
    """Factors on a GPU are not read back: they are those of K and of V."""
    pool = (HND.float() * 2).to(torch.float8_e4m3fn)
    q = normal(BATCH, HEADS, DIM)
    scales = {"bmm1_scale": torch.tensor([0.25]), "bmm2_scale": torch.tensor([0.5])}
    o, lse = decode(q, pool, return_lse=True, **scales)
    keys, values = (
        [pool[torch.tensor(p, dtype=torch.long), i].transpose(1, 2).flatten(0, 1)[:n].float()
         for p, n in zip(PAGES, LENGTHS, strict=True)]
        for i in (0, 1)
    )  # fmt: skip
    want = truth(split(q, [1] * BATCH), keys, values, scale=0.25)
    check((o, lse), (want[0] * 0.5, want[1]))


def test_one_pool_of_keys_and_values_and_tables_of_both() -> None:
    q = normal(BATCH, HEADS, DIM)
    found = decode(q, HND[:, :1], return_lse=True, bmm1_scale=DIM**-0.5)
    check(found, truth(split(q, [1] * BATCH), KEYS, KEYS))
    tables = torch.stack([TABLE, TABLE.flip(0)], 1)
    values = [
        V_PAGES[torch.tensor(x, dtype=torch.long)].flatten(0, 1)[:n]
        for x, n in zip(TABLE.flip(0).tolist(), LENGTHS, strict=True)
    ]
    found = flashinfer.trtllm_batch_decode_with_kv_cache(
        q, HND, WORKSPACE, tables, SEQ_LENS, 64, DIM**-0.5,
        uses_shared_paged_kv_idx=False, return_lse=True,
    )  # fmt: skip
    check(found, truth(split(q, [1] * BATCH), KEYS, values))


@pytest.mark.parametrize("causal", [True, False])
def test_context(causal: bool) -> None:
    q, out = normal(sum(QUERIES), HEADS, DIM), torch.empty(sum(QUERIES), HEADS, DIM, dtype=BF16)
    found = flashinfer.trtllm_batch_context_with_kv_cache(
        q, HND, WORKSPACE, TABLE, SEQ_LENS, max(QUERIES), max(LENGTHS), DIM**-0.5, 1.0, BATCH,
        offsets(QUERIES), offsets(LENGTHS), out=out, causal=causal, return_lse=True,
    )  # fmt: skip
    assert found[0] is out
    check(found, truth(split(q, QUERIES), KEYS, VALUES, causal=causal))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bmm1_scale": torch.tensor([0.5])}, "^bmm1_scale must be a finite number"),
        ({"bmm1_scale": 0.0}, "^bmm1_scale must be finite and greater than 0"),
        ({"q_len_per_req": 2}, "^query has 4 rows: 4 sequences of 2 queries have 8"),
        ({"cum_seq_lens_q": offsets([1] * BATCH)}, "^cum_seq_lens_q and max_q_len must be given"),
        ({"sinks": [SINKS, SINKS]}, "^sinks must be a tensor or a list of one"),
        ({"cp_world": 2}, "^cp_world must be 1, got 2: pass q_offset and k_offset"),
        ({"kv_cache_sf": (SINKS, SINKS)}, "^kv_cache_sf must be None"),
    ],
)
def test_calls_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        decode(normal(BATCH, HEADS, DIM), **given)


def test_calls_with_other_pools_are_refused() -> None:
    q = normal(BATCH, HEADS, DIM)
    with pytest.raises(SpecError, match=r"^kv_cache must be \[pages, 1 or 2, ...\]"):
        decode(q, torch.cat([HND, HND], 1))
    with pytest.raises(SpecError, match="^batch_size is 3, cum_seq_lens_q has 4 sequences"):
        flashinfer.trtllm_batch_context_with_kv_cache(
            q, HND, *CALL[:3], 1, 49, 1.0, 1.0, 3, offsets([1] * BATCH), None
        )


PREFIX = (normal(21, KV_HEADS, DIM), normal(21, KV_HEADS, DIM))


@pytest.mark.parametrize("kind", ["Decode", "Prefill"])
def test_shared_prefixes(kind: str) -> None:
    wrapper: Any = getattr(flashinfer, f"Batch{kind}WithSharedPrefixPagedKVCacheWrapper")
    layout, pool = ("HND", HND) if kind == "Decode" else ("NHD", BOTH)
    shared = [x.transpose(0, 1) if layout == "HND" else x for x in PREFIX]
    wrapper = wrapper(WORKSPACE, layout)
    keys, values = (
        [torch.cat([p, x]) for x in y] for p, y in zip(PREFIX, (KEYS, VALUES), strict=True)
    )
    if kind == "Decode":
        q = normal(BATCH, HEADS, DIM)
        wrapper.begin_forward(*ROWS, *SIZES, PAGE, BF16)
        o, counts, meaning = wrapper.forward(q, *shared, pool), [1] * BATCH, {}
    else:
        q = normal(sum(QUERIES), HEADS, DIM)
        wrapper.begin_forward(offsets(QUERIES), *ROWS, *SIZES, PAGE, data_type=BF16)
        o = wrapper.forward(q, *shared, pool, causal=True, sm_scale=0.2)
        counts, meaning = QUERIES, {"scale": 0.2, "masks": [
            torch.arange(21 + n)[None] <= 20 + torch.arange(n - m + 1, n + 1)[:, None]
            for m, n in zip(QUERIES, LENGTHS, strict=True)
        ]}  # fmt: skip
        for mask in meaning["masks"]:
            mask[:, :21] = True
    want, _ = truth(split(q, counts), keys, values, **meaning)
    assert o.dtype == BF16 and (o.double() - want).abs().max() < 0.03


def test_batch_attention() -> None:
    """Lengths may end before the pages that are listed do."""
    lengths = [40, 3, 0, 33]
    wrapper = flashinfer.BatchAttention(device="cpu")
    rows = (offsets(QUERIES), INDPTR, INDICES, i32(*lengths))
    wrapper.plan(*rows, *SIZES, DIM, PAGE, causal=True, logits_soft_cap=3.0)
    q = normal(sum(QUERIES), HEADS, DIM)
    keys, values = ([x[:n] for x, n in zip(y, lengths, strict=True)] for y in (KEYS, VALUES))
    found = wrapper.run(q, BOTH, logits_soft_cap=3.0)
    check(found, truth(split(q, QUERIES), keys, values, causal=True, cap=3.0))
    with pytest.raises(SpecError, match="^logits_soft_cap is 2.0, plan was told 3.0"):
        wrapper.run(q, BOTH, logits_soft_cap=2.0)
    with pytest.raises(SpecError, match=r"^kv_len_arr\[1\] is 17: the 1 pages of sequence 1"):
        wrapper.plan(*rows[:3], i32(40, 17, 0, 33), *SIZES, DIM, PAGE)


def test_sinks_of_a_wrapper_that_declares_them() -> None:
    wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(
        WORKSPACE, backend="fa2", q_data_type=BF16, head_dim_qk=DIM, head_dim_vo=DIM, window_left=9
    )
    wrapper.plan(
        offsets(QUERIES), *ROWS, *SIZES, PAGE, causal=True, window_left=9, q_data_type=BF16
    )
    q = normal(sum(QUERIES), HEADS, DIM)
    meaning: dict[str, Any] = {"causal": True, "window_left": 9, "sinks": SINKS, "scale": 0.2}
    found = wrapper.run(q, BOTH, SINKS, 0.2, return_lse=True)
    check(found, truth(split(q, QUERIES), KEYS, VALUES, **meaning))
