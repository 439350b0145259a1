"""FlashInfer's decoding and prefill wrappers against their documented meaning, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.flashinfer import planned as planned_calls  # noqa: E402
from attn_mlir.validation.hosts.flashinfer_cache import (  # noqa: E402
    BF16,
    BOTH,
    DIM,
    HEADS,
    HND,
    K_PAGES,
    KEYS,
    KV_HEADS,
    LENGTHS,
    MASKS,
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
    packed,
    sequence,
    split,
    truth,
)
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

DECODES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}, {}),
    "window and cap": (
        {"window_left": 9, "logits_soft_cap": 3.0}, {}, {"window_left": 9, "cap": 3.0}),
    "scales": (
        {"sm_scale": 0.2}, {"q_scale": 2.0, "k_scale": 0.5, "v_scale": 3.0}, {"scale": 0.2}),
    "sinks": ({}, {"sinks": torch.linspace(-1, 2, HEADS)}, {"sinks": torch.linspace(-1, 2, HEADS)}),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODES)
@pytest.mark.long("nothing", "sinks")
def test_decode(name: str) -> None:
    planned, run, meaning = DECODES[name]
    layout = "HND" if name == "scales" else "NHD"
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, layout)
    wrapper.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16, **planned)
    q = normal(4, HEADS, DIM)
    pool = (K_PAGES, V_PAGES) if layout == "NHD" else HND
    found = wrapper.run(q, pool, return_lse=True, **run)
    want = truth(split(q, [1] * 4), KEYS, VALUES, **meaning)
    check(found, (want[0] * run.get("v_scale", 1.0), want[1]))


def test_decode_of_several_tokens_and_memory_of_the_caller() -> None:
    """Queries are causal at the last key; other pages without another plan of sizes."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.begin_forward(*ROWS, *SIZES, PAGE, q_data_type="bfloat16", q_len_per_req=3)
    q = normal(12, HEADS, DIM)
    out, lse = torch.empty(12, HEADS, DIM, dtype=BF16), torch.empty(12, HEADS)
    found = wrapper.run_return_lse(q, BOTH, out=out, lse=lse)
    assert found[0] is out and found[1] is lse
    check(found, truth(split(q, [3] * 4), KEYS, VALUES, causal=True))
    wrapper.plan(offsets([2]), i32(4, 1).long(), i32(7), *SIZES, PAGE, q_data_type=BF16)
    found = wrapper.run(q[:1], BOTH, return_lse=True)
    rows = [[sequence(pool, [4, 1], 23)] for pool in (K_PAGES, V_PAGES)]
    check(found, truth([q[:1]], *rows))


def test_graphs_read_what_was_planned_last() -> None:
    """The batch stays, pages and lengths change: in buffers that a captured graph would read."""
    buffers = (i32(*[0] * 5), i32(*[0] * 20), i32(*[0] * 4))
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        WORKSPACE, "NHD", True, False, *buffers, backend="auto"
    )
    q = normal(4, HEADS, DIM)
    for turn in (0, 1):
        pages, lengths = PAGES[turn:] + PAGES[:turn], LENGTHS[turn:] + LENGTHS[:turn]
        last = i32(*((n - 1) % PAGE + 1 if n else 0 for n in lengths))
        indices = i32(*itertools.chain(*pages))
        wrapper.plan(
            offsets([len(x) for x in pages]), indices, last, *SIZES, PAGE, q_data_type=BF16
        )
        assert torch.equal(buffers[1][: len(indices)], indices)
        keys, values = (x[turn:] + x[:turn] for x in (KEYS, VALUES))
        check(wrapper.run(q, BOTH, return_lse=True), truth(split(q, [1] * 4), keys, values))
    with pytest.raises(SpecError, match=r"^paged_kv_indptr_buffer has 5 entries, plan was given 2"):
        wrapper.plan(i32(0, 1), i32(4), i32(7), *SIZES, PAGE, q_data_type=BF16)


PREFILLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({"causal": True}, {"causal": True}),
    "window, cap and no parts": (
        {"window_left": 5, "logits_soft_cap": 2.0, "disable_split_kv": True},
        {"window_left": 5, "cap": 2.0},
    ),
    "a mask": ({"custom_mask": torch.cat([x.flatten() for x in MASKS])}, {"masks": MASKS}),
    "bits": ({"packed_custom_mask": packed(MASKS), "causal": True}, {"masks": MASKS}),
}


@pytest.mark.parametrize("name", PREFILLS)
@pytest.mark.long("causal")
def test_prefill_with_pages(name: str) -> None:
    planned, meaning = PREFILLS[name]
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, "NHD")
    wrapper.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, q_data_type=BF16, **planned)
    q = normal(sum(QUERIES), HEADS, DIM)
    found = wrapper.run(q, BOTH, return_lse=True)
    check(found, truth(split(q, QUERIES), KEYS, VALUES, **meaning))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_prefill_with_ragged_keys(layout: str) -> None:
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, layout)
    wrapper.plan(
        offsets(QUERIES),
        offsets(LENGTHS),
        *SIZES,
        causal=True,
        q_data_type=BF16,
        o_data_type="float32",
    )
    q, k, v = normal(sum(QUERIES), HEADS, DIM), torch.cat(KEYS), torch.cat(VALUES)
    given = (k, v) if layout == "NHD" else (k.transpose(0, 1).contiguous(), v.transpose(0, 1))
    found = wrapper.run_return_lse(q, *given)
    assert found[0].dtype == torch.float32
    check(found, truth(split(q, QUERIES), KEYS, VALUES, causal=True))


@pytest.mark.long
def test_parts_of_a_size_do_not_depend_on_the_batch() -> None:
    """The same bits alone as beside a sequence that has more parts."""
    lengths = [140, 260]
    pages = [list(range(b, 34, 2)) for b in range(2)]
    pools = [normal(34, PAGE, KV_HEADS, DIM) for _ in "kv"]
    q = normal(2, HEADS, DIM)

    def decoded(batch: list[int]) -> Any:
        used = [pages[b][: -(-lengths[b] // PAGE)] for b in batch]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        rows = (offsets([len(x) for x in used]), i32(*itertools.chain(*used)))
        last = i32(*((lengths[b] - 1) % PAGE + 1 for b in batch))
        wrapper.plan(*rows, last, *SIZES, PAGE, fixed_split_size=8, q_data_type=BF16)
        return wrapper.run(q[batch], tuple(pools), return_lse=True)

    found = decoded([0, 1])
    rows = ([sequence(x, p, n) for p, n in zip(pages, lengths, strict=True)] for x in pools)
    check(found, truth(split(q, [1] * 2), *rows))
    assert all(torch.equal(x[:1], y) for x, y in zip(found, decoded([0]), strict=True))


def test_parts_of_a_size_in_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that do not go by the longest queries of a batch; one part is one part."""
    asked: dict[str, Any] = {}

    def attention(q: Any, *_: Any, **options: Any) -> Any:
        asked.update(options)
        return q

    monkeypatch.setattr(planned_calls, "_ATTENTION", attention)
    q, k, v = normal(sum(QUERIES), HEADS, DIM), torch.cat(KEYS), torch.cat(VALUES)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
    rows = (offsets(QUERIES), offsets(LENGTHS), *SIZES)
    wrapper.plan(*rows, q_data_type=BF16, fixed_split_size=128)
    wrapper.run(q, k, v)
    assert asked["split_size"] == 128 and asked["num_splits"] == 1
    assert asked["schedule"] == "mha-streaming"
    paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    parts: dict[str, Any] = {"fixed_split_size": 8, "disable_split_kv": True}
    paged.plan(offsets(QUERIES), *ROWS, *SIZES, PAGE, q_data_type=BF16, **parts)
    paged.run(q, BOTH)
    assert asked["split_size"] is None and asked["num_splits"] == 1
    with pytest.raises(SpecError, match="^fixed_split_size must be a multiple of 128 pages of 1,"):
        wrapper.plan(*rows, q_data_type=BF16, fixed_split_size=64)
