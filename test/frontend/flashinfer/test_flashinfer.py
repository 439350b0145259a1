"""FlashInfer's wrappers and functions against their documented meaning, in float64."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.api import plan as plans  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.flashinfer import merging  # noqa: E402
from attn_mlir.flashinfer import planned as planned_calls  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 64, 16
PAGES = [[3, 1, 5], [0], [], [8, 7, 6, 2]]  # of four sequences, one of which is empty
LENGTHS = [40, 16, 0, 49]
SIZES = (HEADS, KV_HEADS, DIM)
BF16 = torch.bfloat16


def offsets(counts: list[int]) -> Any:
    return i32(0, *itertools.accumulate(counts))


torch.manual_seed(3)
K_PAGES, V_PAGES = normal(9, PAGE, KV_HEADS, DIM), normal(9, PAGE, KV_HEADS, DIM)
BOTH = torch.stack([K_PAGES, V_PAGES], 1)  # NHD
HND = BOTH.transpose(2, 3).contiguous()
INDPTR, INDICES = offsets([len(pages) for pages in PAGES]), i32(*itertools.chain(*PAGES))
LAST = i32(*((n - 1) % PAGE + 1 if n else 0 for n in LENGTHS))
ROWS = (INDPTR, INDICES, LAST)
WORKSPACE = torch.empty(64, dtype=torch.uint8)


def sequence(pool: Any, pages: list[int], length: int) -> Any:
    """Keys or values of one sequence, [positions, kv_heads, D]."""
    return pool[torch.tensor(pages, dtype=torch.long)].flatten(0, 1)[:length]


KEYS = [sequence(K_PAGES, pages, n) for pages, n in zip(PAGES, LENGTHS, strict=True)]
VALUES = [sequence(V_PAGES, pages, n) for pages, n in zip(PAGES, LENGTHS, strict=True)]


def truth(
    queries: list[Any],
    keys: list[Any],
    values: list[Any],
    *,
    causal: bool = False,
    window_left: int = -1,
    cap: float = 0.0,
    scale: float = DIM**-0.5,
    masks: list[Any] | None = None,
    sinks: Any = None,
) -> tuple[Any, Any]:
    """O [tokens, heads, D] and LSE [tokens, heads] in base 2 of all sequences."""
    outputs: list[Any] = []
    sums: list[Any] = []
    for b, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        own = torch.arange(len(q))[:, None] + len(k) - len(q)
        column = torch.arange(len(k))
        seen = torch.ones(len(q), len(k), dtype=torch.bool)
        seen &= (column <= own) | (not causal)
        seen &= (column >= own - window_left) | (window_left < 0)
        seen &= True if masks is None else masks[b]
        scores = scores.masked_fill(~seen, -torch.inf)
        logits = scores
        if sinks is not None:
            more = sinks.double()[:, None, None].expand(-1, len(q), 1)
            logits = torch.cat([scores, more], -1)
        weights = logits.softmax(-1).nan_to_num()[..., : len(k)]
        sums.append(logits.logsumexp(-1).T / math.log(2))
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(outputs), torch.cat(sums)


def check(found: Any, want: tuple[Any, Any]) -> None:
    for got, wanted, most in zip(found, want, (0.02, 0.01), strict=True):
        assert got.shape == wanted.shape
        assert torch.equal(got.isinf(), wanted.isinf())
        finite = wanted.isfinite()
        assert (got.double()[finite] - wanted[finite]).abs().max() < most


def split(q: Any, counts: list[int]) -> list[Any]:
    return list(q.split(counts))


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


QUERIES = [5, 1, 2, 4]
MASKS = [torch.rand(n, m) < 0.6 for n, m in zip(QUERIES, LENGTHS, strict=True)]


def packed(masks: list[Any]) -> Any:
    """Eight to a byte from the lowest bit on, each sequence from a byte of its own."""
    made: list[int] = []
    for mask in masks:
        bits = mask.flatten().tolist()
        made += [
            sum(bit << i for i, bit in enumerate(bits[at : at + 8]))
            for at in range(0, len(bits), 8)
        ]
    return torch.tensor(made, dtype=torch.uint8)


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

    monkeypatch.setattr(planned_calls, "attention", attention)
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


def test_single_sequences() -> None:
    k, v = KEYS[0], VALUES[0]
    q = normal(7, HEADS, DIM)
    one = flashinfer.single_decode_with_kv_cache(q[0], k, v, return_lse=True)
    check([x[None] for x in one], truth([q[:1]], [k], [v]))
    turned = (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
    hnd = flashinfer.single_decode_with_kv_cache(q[0], *turned, "HND", return_lse=True)
    assert all(torch.equal(x, y) for x, y in zip(hnd, one, strict=True))
    found = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, return_lse=True)
    check(found, truth([q], [k], [v], causal=True))
    mask = torch.rand(7, 40) < 0.5
    found = flashinfer.single_prefill_with_kv_cache(q, k, v, custom_mask=mask, return_lse=True)
    check(found, truth([q], [k], [v], masks=[mask]))


def test_merged_states() -> None:
    """States of parts become that of the whole; a mask keeps rows as they are."""
    k, v, q = KEYS[3], VALUES[3], normal(6, HEADS, DIM)
    ends = [0, 20, 20, 49]
    parts = [truth([q], [k[i:j]], [v[i:j]]) for i, j in itertools.pairwise(ends)]
    states = [(o.to(BF16), s.float()) for o, s in parts]
    want = truth([q], [k], [v])
    outputs, sums = (torch.stack(x, 1) for x in zip(*states, strict=True))
    check(flashinfer.merge_states(outputs, sums), want)
    pair = (*states[0], *states[2])
    check(flashinfer.merge_state(*pair), want)
    o, s = (x.clone() for x in states[0])
    mask = torch.tensor([True, False] * 3)
    flashinfer.merge_state_in_place(o, s, *states[2], mask)
    check((o[mask], s[mask]), (want[0][mask], want[1][mask]))
    assert torch.equal(o[~mask], states[0][0][~mask]) and torch.equal(s[~mask], states[0][1][~mask])


def test_merged_states_without_keys() -> None:
    """Parts that saw none, with the LSE of our kernels or of FlashMLA's; O of such a part is not read."""
    sums = torch.tensor(
        [[1.0, -torch.inf, torch.inf, torch.inf], [-torch.inf, 2.0, 3.0, -torch.inf]]
    )
    outputs = torch.arange(2.0)[:, None, None].expand(2, HEADS, DIM) + 1
    outputs = torch.where(sums.isinf()[..., None], torch.nan, outputs)
    found = flashinfer.merge_state(outputs[0][None], sums[0][None], outputs[1][None], sums[1][None])
    assert found[0][0, :, 0].tolist() == [1.0, 2.0, 2.0, 0.0]
    assert found[1][0].tolist() == [1.0, 2.0, 3.0, -torch.inf]


@pytest.mark.parametrize("largest", [0.0, 6e4, 3.5e5, -3.5e5])
def test_merged_states_with_large_sums(largest: float) -> None:
    """A part of twice the weight of the other one, wherever their sums lie."""
    outputs = torch.stack([torch.zeros(1, HEADS, DIM), torch.ones(1, HEADS, DIM)], 1)
    sums = torch.tensor([largest, largest - 1])[None, :, None].expand(1, 2, HEADS)
    o, lse = flashinfer.merge_states(outputs, sums)
    assert (o.double() - 1 / 3).abs().max() < 1e-6
    assert torch.equal(lse, torch.full((1, HEADS), largest + math.log2(1.5)))


def test_cascade() -> None:
    """Two levels: pages that all share, and pages of each."""
    shared, own = [8, 7], [[3, 1], [0]]
    lengths, counts = [25, 9], [3, 2]
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
    wrapper.plan(
        [offsets([5]), offsets(counts)],
        [offsets([2]), offsets([2, 1])],
        [i32(*shared), i32(3, 1, 0)],
        [i32(PAGE), i32(9, 9)],
        *SIZES,
        PAGE,
        causal=True,
        q_data_type=BF16,
    )
    q = normal(5, HEADS, DIM)
    keys, values = (
        [
            torch.cat([sequence(pool, shared, 32), sequence(pool, pages, n)])
            for pages, n in zip(own, lengths, strict=True)
        ]
        for pool in (K_PAGES, V_PAGES)
    )
    o = wrapper.run(q, BOTH)
    assert o.dtype == BF16
    want, _ = truth(split(q, counts), keys, values, causal=True)
    assert (o.double() - want).abs().max() < 0.02


@pytest.mark.parametrize(
    ("q_dtype", "head_dim", "of_levels", "of_o"),
    [
        ("bfloat16", 256, None, BF16),
        ("bfloat16", 192, "f32", BF16),
        ("float8_e4m3fn", 128, "f32", BF16),
    ],
)
def test_types_of_levels(
    q_dtype: str, head_dim: int, of_levels: str | None, of_o: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels keep O in f32 where there is a kernel for it; O is q's, or bf16 where q has 8 bits."""
    seen: list[Any] = []

    def attend(problem: Any, q: Any, *_: Any, **__: Any) -> Any:
        seen.append(problem.out_dtype)
        return q.float(), q.float()[..., 0]

    monkeypatch.setattr(planned_calls.Problem, "attend", attend)
    monkeypatch.setattr(
        merging, "flash_attn_combine", lambda o, s, out_dtype: (o[0].to(out_dtype), s[0])
    )
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
    rows = ([offsets([1])] * 2, [offsets([1])] * 2, [i32(0), i32(1)], [i32(PAGE)] * 2)
    wrapper.plan(*rows, HEADS, KV_HEADS, head_dim, PAGE, q_data_type=q_dtype)
    dtype = getattr(torch, q_dtype)
    q, pool = (torch.zeros(*n, head_dim).to(dtype) for n in ((1, HEADS), (2, 2, PAGE, KV_HEADS)))
    assert wrapper.run(q, pool).dtype == of_o and seen == [of_levels] * 2


def test_windows_over_levels_are_refused() -> None:
    """Each level would count the window over its own keys; one level has all keys."""
    for count in (1, 2):
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(count, WORKSPACE)
        rows = [[offsets([1])] * count, [offsets([1])] * count, [i32(0)] * count, [i32(9)] * count]
        wrapper.plan(*rows, *SIZES, PAGE)
        if count == 1:
            wrapper.plan(*rows, *SIZES, PAGE, window_left=3)
            continue
        with pytest.raises(SpecError, match="^window_left must be -1 with 2 levels, got 3: each"):
            wrapper.plan(*rows, *SIZES, PAGE, window_left=3)


@pytest.mark.parametrize(
    ("given", "dtypes"),
    [
        ({"data_type": "float8_e4m3fn", "q_data_type": "float16"}, ("f16", "e4m3")),
        ({"data_type": BF16, "q_data_type": None}, ("bf16", "bf16")),
        ({"data_type": BF16, "q_data_type": None, "kv_data_type": "float8_e5m2"}, ("bf16", "e5m2")),
        ({"q_data_type": BF16}, ("bf16", "bf16")),
        ({}, ("f16", "f16")),
    ],
)
def test_one_type_fills_what_is_left_out(given: dict[str, Any], dtypes: tuple[str, str]) -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(*ROWS, *SIZES, PAGE, **given)
    problem = vars(wrapper)["_problem"]
    assert (problem.dtype, problem.kv_dtype) == dtypes


@pytest.mark.parametrize("kind", [int, np.int64, np.array, torch.tensor])
def test_windows_are_numbers_of_any_library(kind: Any, asked: Asked) -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    plan = (*ROWS, *SIZES, PAGE)
    options: dict[str, Any] = {"q_data_type": BF16, "q_len_per_req": kind(3)}
    wrapper.plan(*plan, window_left=kind(5), window_right=kind(2), **options)
    wrapper.run(normal(12, HEADS, DIM), BOTH)
    assert asked["mask"] == am.sliding_window(5, 2)
    for wrong in (kind(-2), True, None, "1", 1.0):
        for name in ("window_left", "window_right"):
            if wrong is not None or name == "window_left":
                with pytest.raises(SpecError, match=f"^{name} must be -1 or more, got "):
                    wrapper.plan(*plan, **options, **{name: wrong})


@pytest.mark.parametrize(("cap", "meaning"), [(-1.0, 0.0), (0, 0.0), (None, 0.0), (2.5, 2.5)])
def test_soft_caps_that_are_none(cap: float | None, meaning: float) -> None:
    """FlashInfer's kernels cap where the number is greater than 0."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
    wrapper.plan(*ROWS, *SIZES, PAGE, logits_soft_cap=cap)
    assert vars(wrapper)["_problem"].cap == meaning


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("bad input must be refused before anything is compiled")

    monkeypatch.setattr(plans, "compile", fail)


def decode(made: dict[str, Any], planned: dict[str, Any], run: dict[str, Any]) -> None:
    """A call of the wrapper for decoding with some arguments changed."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        **{"float_workspace_buffer": WORKSPACE, **made}
    )
    if "plan" not in planned:
        rows = dict(zip(("indptr", "indices", "last_page_len"), ROWS, strict=True))
        sizes = {
            "num_qo_heads": HEADS,
            "num_kv_heads": KV_HEADS,
            "head_dim": DIM,
            "page_size": PAGE,
        }
        wrapper.plan(**{**rows, **sizes, "q_data_type": BF16, **planned})
    wrapper.run(**{"q": normal(4, HEADS, DIM), "paged_kv_cache": BOTH, **run})


BUFFERS = {"indptr": 5, "indices": 3000, "last_page_len": 4}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "backend": ({"backend": "fa3"}, {}, {}, "^backend must be auto, got 'fa3'"),
    "kernels of the caller": ({"jit_args": []}, {}, {}, "^jit_args must be None"),
    "layout": ({"kv_layout": "NDH"}, {}, {}, "^kv_layout must be NHD or HND, got 'NDH'"),
    "workspace": ({"float_workspace_buffer": None}, {}, {}, "^float_workspace_buffer must be a tensor"),
    "no buffers": ({"use_cuda_graph": True}, {}, {}, "^paged_kv_indptr_buffer must be a tensor"),
    "rotation": ({}, {"pos_encoding_mode": "ROPE_LLAMA"}, {}, "^pos_encoding_mode must be NONE"),
    "slopes": ({}, {"pos_encoding_mode": "ALIBI"}, {}, "^pos_encoding_mode must be NONE"),
    "theta": ({}, {"rope_theta": 1e6}, {}, "^rope_theta must be None or 10000.0"),
    "size of parts": ({}, {"fixed_split_size": 4}, {}, "^fixed_split_size must be a multiple of 8 pages of 16"),
    "many parts": (
        {"use_cuda_graph": True, **{f"paged_kv_{x}_buffer": i32(*[0] * n) for x, n in BUFFERS.items()}},
        {"fixed_split_size": 8}, {}, "^fixed_split_size 8 makes 375 parts of 48000 keys, allowed are 256"),
    "a table": ({}, {"block_tables": INDPTR}, {}, "^block_tables must be None"),
    "offsets that fall": ({}, {"indptr": i32(0, 3, 2, 4, 8)}, {}, "^indptr must not decrease"),
    "offsets beyond": ({}, {"indptr": i32(0, 3, 4, 4, 9)}, {}, "^indptr goes from 0 to 9"),
    "a batch": ({}, {"last_page_len": i32(1, 2)}, {}, "^last_page_len has 2 entries"),
    "a last page": ({}, {"last_page_len": i32(8, 17, 0, 1)}, {}, r"^last_page_len\[1\] is 17"),
    "floats as indices": ({}, {"indices": INDICES.float()}, {}, "^indices must be of int32"),
    "no page size": ({}, {"page_size": 0}, {}, "^page_size must be an integer from 1"),
    "a dtype": ({}, {"q_data_type": torch.float64}, {}, "^q_data_type"),
    "a window": ({}, {"window_left": -2}, {}, "^window_left must be -1 or more"),
    "no plan": ({}, {"plan": None}, {}, "^plan has not been called"),
    "rows of q": ({}, {}, {"q": normal(3, HEADS, DIM)}, "^q has 3 rows, plan was told 4:"),
    "heads of q": ({}, {}, {"q": normal(4, 8, DIM)}, r"^q must be \[tokens, 4, 64\] as planned"),
    "another dtype": ({}, {"q_data_type": "float16"}, {}, "^q is torch.bfloat16, plan was told"),
    "heads of the cache": ({}, {"num_kv_heads": 4}, {}, "^paged_kv_cache has 2 heads of 64, plan was told 4"),
    "pages of the cache": ({}, {"page_size": 32}, {}, "^paged_kv_cache has pages of 16, plan was told 32"),
    "another window": ({}, {}, {"window_left": -2}, "^window_left must be -1 or more, got -2"),
    "other queries": ({}, {}, {"q_len_per_req": 2}, "^q_len_per_req is 2, plan was told 1"),
    "4 bits": ({}, {}, {"kv_cache_sf": BOTH}, "^kv_cache_sf must be None"),
    "scores left out": (
        {}, {}, {"skip_softmax_threshold_scale_factor": 1.0}, "^skip_softmax_threshold_scale_factor must"),
    "one pool": ({}, {}, {"paged_kv_cache": K_PAGES}, "^paged_kv_cache must be a tensor of rank 5"),
    "three pools": ({}, {}, {"paged_kv_cache": (K_PAGES,) * 3}, "^paged_kv_cache must be a tensor or a pair"),
    "memory for LSE": ({}, {}, {"lse": torch.empty(3, 4), "return_lse": True}, r"^lse must have shape \[4, 4\], got \[3, 4\]"),
}  # fmt: skip


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    made, planned, run, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        decode(made, planned, run)


@pytest.mark.usefixtures("no_launch")
def test_prefills_are_refused() -> None:
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
    plan = (offsets(QUERIES), *ROWS, *SIZES, PAGE)
    for given, message in (
        ({"custom_mask": torch.ones(3, dtype=torch.bool)}, r"^custom_mask must be \[412\]"),
        ({"custom_mask": torch.ones(412)}, "^custom_mask must be a tensor of rank 1 of bool"),
        ({"use_fp16_qk_reduction": True}, "^use_fp16_qk_reduction must be False"),
        ({"prefix_len_ptr": INDPTR}, "^prefix_len_ptr must be None"),
    ):
        with pytest.raises(SpecError, match=message):
            wrapper.plan(*plan, q_data_type=BF16, **given)
    with pytest.raises(SpecError, match="^qo_indptr has 1 sequences, those of keys are 4"):
        wrapper.plan(offsets([3]), *plan[1:])
    wrapper.plan(*plan, q_data_type=BF16)
    with pytest.raises(SpecError, match="^q has 3 rows, plan was told 12"):
        wrapper.run(normal(3, HEADS, DIM), BOTH)
    with pytest.raises(SpecError, match="Wrapper.run takes at most 2 arguments by position, got 3"):
        wrapper.run(normal(12, HEADS, DIM), BOTH, 1.0)
    with pytest.raises(SpecError, match="^custom_mask_buf must be None"):
        flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, custom_mask_buf=INDPTR)
    with pytest.raises(SpecError, match="^scale_k and k_scale are two names"):
        flashinfer.single_prefill_with_kv_cache(
            normal(3, HEADS, DIM), KEYS[0], VALUES[0], scale_k=1.0, k_scale=1.0
        )
    with pytest.raises(SpecError, match=r"^s must be \[2, 3, 4\] as v"):
        flashinfer.merge_states(normal(2, 3, 4, 64), torch.zeros(2, 3, 5))
    with pytest.raises(SpecError, match="^v has 0 parts, allowed are 1 to 256"):
        flashinfer.merge_states(normal(2, 0, 4, 64), torch.zeros(2, 0, 4))
    with pytest.raises(SpecError, match="^qo_indptr_arr must be a list of 2"):
        cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
        cascade.plan([INDPTR], [INDPTR], [INDICES], [LAST], *SIZES, PAGE)


Asked = dict[str, Any]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The options of the last call of `attention`, which computes nothing."""
    options: Asked = {}

    def attention(q: Any, *_: Any, **given: Any) -> Any:
        options.update(given)
        lse = torch.zeros(HEADS, len(q)) if q.dim() == 3 else torch.zeros(len(q), HEADS, q.shape[1])
        return (q, lse) if given["return_lse"] else q

    monkeypatch.setattr(planned_calls, "attention", attention)
    return options


PLANNED: dict[str, Any] = {"window_left": 5, "logits_soft_cap": 2.0, "sm_scale": 0.5}


def planned(kind: str) -> tuple[Any, list[Any]]:
    """A wrapper with scores of its own, and the operands of its calls."""
    if kind == "decode":
        wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16, **PLANNED)
        return wrapper, [normal(4, HEADS, DIM), BOTH]
    q = normal(sum(QUERIES), HEADS, DIM)
    if kind == "paged":
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(
            offsets(QUERIES), *ROWS, *SIZES, PAGE, q_data_type=BF16, causal=True, **PLANNED
        )
        return wrapper, [q, BOTH]
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
    rows = (offsets(QUERIES), offsets(LENGTHS))
    wrapper.plan(*rows, *SIZES, q_data_type=BF16, causal=True, **PLANNED)
    return wrapper, [q, torch.cat(KEYS), torch.cat(VALUES)]


@pytest.mark.parametrize("kind", ["decode", "paged", "ragged"])
def test_forward_has_scores_of_its_own(kind: str, asked: Asked) -> None:
    """As FlashInfer's: what it is not told is the default, and `run` keeps what it was told."""
    wrapper, operands = planned(kind)
    assert isinstance(wrapper.forward(*operands), torch.Tensor)
    assert asked["mask"] == am.full() and asked["score_mod"] is None
    assert asked["scale"] == DIM**-0.5
    causal = {} if kind == "decode" else {"causal": True}
    scores = {"window_left": 3, "logits_soft_cap": 4.0, "sm_scale": 0.25, **causal}
    _, lse = wrapper.forward_return_lse(*operands, pos_encoding_mode="NONE", **scores)
    assert lse.shape == (len(operands[0]), HEADS)
    for call in (lambda: None, lambda: wrapper.run(*operands)):
        call()
        assert asked["mask"] == am.sliding_window(3, 0 if causal else None)
        assert asked["scale"] == 0.25 and asked["score_mod"] is not None
    with pytest.raises(SpecError, match="^rope_theta must be None or 10000.0, got 5.0: rotate q"):
        wrapper.forward(*operands, rope_theta=5.0)
    with pytest.raises(SpecError, match="^window_left must be -1 or more"):
        wrapper.forward(*operands, window_left=-3)
    wrapper.run(*operands)
    assert asked["mask"] == am.sliding_window(3, 0 if causal else None)


def test_forward_counts_factors(asked: Asked) -> None:
    wrapper, operands = planned("decode")
    wrapper.forward(*operands, q_scale=2.0, k_scale=3.0)
    assert asked["scale"] == pytest.approx(6 * DIM**-0.5)
    wrapper, operands = planned("paged")
    wrapper.forward(*operands, k_scale=3.0, sm_scale=0.5)
    assert asked["scale"] == pytest.approx(1.5)


@pytest.mark.parametrize("kind", ["decode", "paged"])
def test_windows_of_one_call(kind: str, asked: Asked) -> None:
    wrapper, operands = planned(kind)
    right = None if kind == "decode" else 0
    for window, left in ((9, 9), (None, 5), (5, 5), (-1, None)):
        wrapper.run(*operands, window_left=window)
        assert asked["mask"] == am.sliding_window(left, right)


@pytest.mark.parametrize(
    ("given", "mask"),
    [({}, am.causal()), ({"is_causal": True}, am.causal()), ({"is_causal": False}, am.full())],
)
def test_whether_several_tokens_are_causal(
    given: dict[str, Any], mask: am.Mask, asked: Asked
) -> None:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, use_tensor_cores=True)
    wrapper.plan(*ROWS, *SIZES, PAGE, q_data_type=BF16, q_len_per_req=3, **given)
    wrapper.run(normal(12, HEADS, DIM), BOTH)
    assert asked["mask"] == mask and wrapper.use_tensor_cores is True


def test_positions_are_those_of_flashinfer() -> None:
    def names(function: Any, count: int) -> list[str]:
        return list(inspect.signature(function).parameters)[1 : count + 1]

    decode, prefill = (
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
    )
    assert names(decode.plan, 9) == [
        *(
            "indptr",
            "indices",
            "last_page_len",
            "num_qo_heads",
            "num_kv_heads",
            "head_dim",
            "page_size",
        ),
        *("pos_encoding_mode", "window_left"),
    ]
    assert names(prefill.plan, 12) == [
        *("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"),
        *("num_qo_heads", "num_kv_heads", "head_dim_qk", "page_size", "head_dim_vo", "custom_mask"),
        *("packed_custom_mask", "causal"),
    ]
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper
    assert names(ragged.plan, 6) == [
        *("qo_indptr", "kv_indptr", "num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo"),
    ]
    for wrapper in (decode, prefill, ragged):
        assert {"out", "lse", "return_lse", "enable_pdl"} <= set(
            inspect.signature(wrapper.run).parameters
        )
