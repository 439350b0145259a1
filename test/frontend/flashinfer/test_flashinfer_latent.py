"""FlashInfer's latent attention over pages, and the rows of new tokens, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import calls, flashinfer  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.validation.hosts.flashinfer_cache import BF16, WORKSPACE, check, offsets  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

PAGE, HEADS, SCALE = 16, 8, 0.05
PAGES, LENGTHS = [[3, 1], [0, 4]], [21, 7]  # the second sequence's last page is not used yet
POOL = normal(5, PAGE, 576)
ROWS = (i32(0, 2, 4), i32(3, 1, 0, 4), i32(*LENGTHS))
KEYS = [POOL[x].flatten(0, 1)[:n] for x, n in zip(PAGES, LENGTHS, strict=True)]
SIZES = (512, 64, PAGE)
SINKS = torch.linspace(-1, 2, HEADS)


def truth(
    queries: list[Any], keys: list[Any], *, causal: bool = False, scale: float = SCALE, sinks: Any = None
) -> tuple[Any, Any]:  # fmt: skip
    """O [tokens, heads, 512] and LSE [tokens, heads] in base 2."""
    results: list[tuple[Any, Any]] = []
    for q, k in zip(queries, keys, strict=True):
        scores = torch.einsum("qhd,kd->hqk", q.double(), k.double()) * scale
        own = torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill((torch.arange(len(k)) > own) & causal, -torch.inf)
        logits = scores
        if sinks is not None:
            more = sinks.double()[:, None, None].expand(-1, len(q), 1)
            logits = torch.cat([scores, more], -1)
        weights = logits.softmax(-1)[..., : len(k)]
        o = torch.einsum("hqk,kd->qhd", weights, k.double()[:, :512])
        results.append((o, logits.logsumexp(-1).T / math.log(2)))
    o, lse = (torch.cat(x) for x in zip(*results, strict=True))
    return o, lse


def planned(counts: list[int], heads: int = HEADS, **options: Any) -> Any:
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE, backend="fa2")
    given: dict[str, Any] = {"causal": True, "sm_scale": SCALE} | options
    dtypes = {"q_data_type": BF16, "kv_data_type": BF16}
    wrapper.plan(offsets(counts), *ROWS, heads, *SIZES, **given | dtypes)
    return wrapper


@pytest.mark.parametrize("counts", [[1, 1], [3, 1]])
def test_wrapper_with_parts_of_one_array(counts: list[int]) -> None:
    """Neither equal numbers of queries are needed nor a copy of the cache."""
    q = normal(sum(counts), HEADS, 576)
    lse = torch.zeros(sum(counts), HEADS)
    out = torch.zeros(sum(counts), HEADS, 512, dtype=BF16)
    found = planned(counts).run(
        q[..., :512], q[..., 512:], POOL[..., :512], POOL[..., 512:], out, lse, True
    )
    assert found[0] is out and found[1] is lse
    check(found, truth(list(q.split(counts)), KEYS, causal=True))


def test_wrapper_with_separate_parts_and_few_heads() -> None:
    q = normal(2, 3, 576)
    parts = [x.contiguous() for x in (q[..., :512], q[..., 512:], POOL[..., :512], POOL[..., 512:])]
    wrapper = planned([1, 1], 3, causal=False)
    o, lse = wrapper.run(*parts, return_lse=True, return_lse_base_on_e=True, sinks=SINKS[:3])
    want = truth(list(q.split([1, 1])), KEYS, sinks=SINKS[:3])
    assert o.is_contiguous() and o.shape == (2, 3, 512)
    check((o, lse / math.log(2)), want)


def test_wrapper_with_a_table_and_whole_arrays() -> None:
    q = normal(2, HEADS, 576)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE)
    wrapper.plan(
        cum_seq_lens_q=i32(0, 1, 2), block_tables=i32(3, 1, 0, 4).view(2, 2), seq_lens=ROWS[2],
        num_heads=HEADS, head_dim_ckv=512, head_dim_kpe=64, page_size=PAGE, causal=True, sm_scale=9.0,
        q_data_type=BF16, kv_data_type=BF16, lse_mode="base2",
    )  # fmt: skip
    found = wrapper.run(query=q, kv_cache=POOL, bmm1_scale=SCALE, bmm2_scale=2.0, return_lse=True)
    o, lse = truth(list(q.split([1, 1])), KEYS)
    check(found, (2 * o, lse))


def test_graphs_read_what_was_planned_last() -> None:
    buffers = (i32(0, 0, 0), i32(0, 0, 0), i32(*[0] * 9), i32(0, 0))
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE, True, *buffers)
    rest: dict[str, Any] = {"causal": False, "sm_scale": SCALE, "q_data_type": BF16}
    q = normal(2, HEADS, 576)
    parts = (q[..., :512], q[..., 512:], POOL[..., :512], POOL[..., 512:])
    for rows, keys in (
        (ROWS, KEYS),
        ((i32(0, 1, 3), i32(0, 3, 1), i32(7, 21)), KEYS[::-1]),
    ):
        wrapper.plan(i32(0, 1, 2), *rows, HEADS, *SIZES, kv_data_type=BF16, **rest)
        memory = [x.data_ptr() for x in wrapper._pages().values()]
        assert buffers[3].tolist() == rows[2].tolist()
        check(wrapper.run(*parts, return_lse=True), truth(list(q.split([1, 1])), keys))
    assert memory == [x.data_ptr() for x in wrapper._pages().values()]
    with pytest.raises(SpecError, match="^sequences have 2 queries, those of a wrapper for graphs"):
        wrapper.plan(i32(0, 2, 4), *ROWS, HEADS, *SIZES, kv_data_type=BF16, **rest)
    with pytest.raises(SpecError, match="^qo_indptr of a wrapper for graphs must have equal"):
        wrapper.plan(i32(0, 2, 3), *ROWS, HEADS, *SIZES, kv_data_type=BF16, **rest)


def test_without_a_plan() -> None:
    table, q = i32(3, 1, 0, 4).view(2, 2), normal(2, 3, HEADS, 576)
    arguments = (WORKSPACE, 128, 512, 64)
    found = flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        q, POOL[:, None], *arguments, table, ROWS[2], 21, bmm1_scale=SCALE, return_lse=True
    )
    o, lse = truth(list(q), KEYS, causal=True)
    check((found[0].flatten(0, 1), found[1]), (o, lse))
    rows = torch.tensor([[[48, 50, -1]], [[0, 5, 1]]], dtype=torch.int32)
    out = torch.zeros(2, 1, HEADS, 512, dtype=BF16)
    found = flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        q[:, :1], POOL, *arguments, rows, None, 21, 3, out, SCALE, sinks=[SINKS], return_lse=True,
        sparse_mla_top_k_lens=i32(3, 2), return_lse_base="basee",
    )  # fmt: skip
    assert found[0] is out
    flat = POOL.flatten(0, 1)
    want = truth(list(q[:, :1]), [flat[[48, 50]], flat[[0, 5]]], sinks=SINKS)
    check((out[:, 0], found[1] / math.log(2)), want)


def test_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of 8 bits are widened, which loses nothing; kernels for such caches are SM100's."""
    pool, q = POOL.to(torch.float8_e4m3fn), normal(2, 1, HEADS, 576).to(torch.float8_e4m3fn)
    device = am.EmulatorDevice(target="sm_100a")
    from attn_mlir.flashinfer.latent import operands as latent

    def on_sm100(*operands: Any, **options: Any) -> Any:
        return calls.mla_decode(*operands, device=device, **options)

    monkeypatch.setattr(latent, "mla_decode", on_sm100)
    o, lse = flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        q, pool, WORKSPACE, 128, 512, 64, i32(3, 1, 0, 4).view(2, 2), ROWS[2], 21,
        bmm1_scale=SCALE, bmm2_scale=0.5, return_lse=True,
    )  # fmt: skip
    keys = [pool[x].flatten(0, 1)[:n].float() for x, n in zip(PAGES, LENGTHS, strict=True)]
    want, sums = truth(list(q.float()), keys)
    assert o.dtype == BF16
    check((o.flatten(0, 1), lse), (want * 0.5, sums))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a scale": ({"sm_scale": None}, "^sm_scale must be given"),
    "columns": ({"head_dim_ckv": 256}, "^head_dim_ckv must be 512, got 256"),
    "lengths": ({"kv_len_arr": i32(33, 7)}, r"^kv_len_arr\[0\] is 33: the 2 pages of sequence 0"),
    "queries": ({"qo_indptr": i32(0, 1)}, "^qo_indptr has 1 sequences, those of keys are 2"),
    "tables": ({"seq_lens": i32(1)}, "^pass cum_seq_lens_q, block_tables and seq_lens, or kv_"),
    "metadata": ({"metadata": 1}, "^metadata must be None, got 1: pass qo_indptr"),
    "scales of rows": ({"scale_mode": "kv-per-tensor"}, "^scale_mode must be default or"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_plans_are_refused(name: str) -> None:
    changed, message = REFUSED[name]
    names = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
    right = dict(zip(names, (i32(0, 1, 2), *ROWS), strict=True)) | {
        "num_heads": HEADS, "head_dim_ckv": 512, "head_dim_kpe": 64, "page_size": PAGE,
        "causal": True, "sm_scale": SCALE, "q_data_type": BF16, "kv_data_type": BF16,
    }  # fmt: skip
    with pytest.raises(SpecError, match=message):
        flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE).plan(**{**right, **changed})


def test_runs_are_refused() -> None:
    q = normal(2, HEADS, 576)
    with pytest.raises(SpecError, match="^plan has not been called"):
        flashinfer.BatchMLAPagedAttentionWrapper(WORKSPACE).run(query=q, kv_cache=POOL)
    wrapper = planned([1, 1])
    for given, message in (
        ({"query": q[:1], "kv_cache": POOL}, r"^query must end in \[2, 8, 576\] of bf16"),
        ({"query": q, "kv_cache": POOL.half()}, r"^kv_cache must end in \[576\] of bf16"),
        ({"kv_cache": POOL}, "^pass query, or q_nope and q_pe"),
        ({"query": q, "kv_cache": POOL, "sinks": SINKS[:3]}, r"^sinks must be \[8\]"),
        ({"query": q, "kv_cache": POOL, "bmm1_scale": 0.0}, "^bmm1_scale|^sm_scale must be finite"),
        ({"query": (q, q[:1]), "kv_cache": POOL}, r"^query\[1\] must be \[2, 8\] rows"),
        ({"query": q, "kv_cache": POOL, "ckv_scale": 2.0}, "^ckv_scale must be None or 1.0"),
    ):
        with pytest.raises(SpecError, match=message):
            wrapper.run(**given)


@pytest.mark.parametrize("whole", [True, False])
def test_new_rows(whole: bool) -> None:
    """Into columns of one array, or into two; what has no sequence is left out."""
    pool = torch.zeros(5, PAGE, 576, dtype=BF16)
    caches = [pool[..., :512], pool[..., 512:]]
    caches = caches if whole else [x.contiguous() for x in caches]
    rows = normal(4, 576)
    flashinfer.append_paged_mla_kv_cache(
        rows[:, :512], rows[:, 512:], i32(0, 0, 1, -1), i32(15, 16, 2, 3), *caches,
        i32(3, 1, 0), i32(0, 2, 3), i32(1, 3),
    )  # fmt: skip
    want = torch.zeros(5, PAGE, 576, dtype=BF16)
    want[3, 15], want[1, 0], want[0, 2] = rows[:3]
    assert torch.equal(torch.cat(caches, -1), want)


def test_new_rows_are_refused() -> None:
    pool, rows = torch.zeros(5, PAGE, 576, dtype=BF16), normal(1, 576)
    where = (i32(0), i32(0), pool[..., :512], pool[..., 512:], i32(3), i32(0, 1), i32(1))
    with pytest.raises(SpecError, match=r"^append_ckv must have 2 dimensions, got \[1, 1, 512\]"):
        flashinfer.append_paged_mla_kv_cache(rows[:, None, :512], rows[:, 512:], *where)
    with pytest.raises(SpecError, match=r"^append_ckv and append_kpe have \[512, 32\] columns"):
        flashinfer.append_paged_mla_kv_cache(rows[:, :512], rows[:, :32], *where)
    with pytest.raises(
        SpecError, match="^a row of 512 and 8 columns has no kernel: multiples of 16"
    ):
        flashinfer.append_paged_mla_kv_cache(
            rows[:, :512], rows[:, :8], *where[:3], pool[..., :8], *where[4:]
        )
