"""`attention` with caches and lengths in the graphs of `torch.compile`: one operator, whatever a call says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch.attention_call import ATTENTION, attention_call_op  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("graphs_afresh")]
HEADS, KV_HEADS, DIM, PAGE, PAGES = 4, 2, 64, 16, 9
TABLE = [[3, 1, 5], [0, 2, 4], [8, 7, 6]]
LENGTHS = [40, 17, 48]


def pools() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return normal(PAGES, PAGE, KV_HEADS, DIM), normal(PAGES, PAGE, KV_HEADS, DIM)


def rows_of(pool: Any) -> Any:
    """The pages of each sequence side by side, [batch, positions, kv_heads, D]."""
    return torch.stack([pool[torch.tensor(pages)].flatten(0, 1) for pages in TABLE])


def truth(q: Any, k: Any, v: Any, lengths: list[int], *, causal: bool = True) -> tuple[Any, Any]:
    """O and LSE in float64 of [batch, sequence, heads, D], keys by lengths, aligned at the last."""
    outputs, sums = [], []
    for b, length in enumerate(lengths):
        keys, values = (
            x[b, :length].double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v)
        )
        scores = torch.einsum("qhd,khd->hqk", q[b].double(), keys) / DIM**0.5
        if causal:
            hidden = torch.ones(scores.shape[1:]).tril(length - q.shape[1]) == 0
            scores = scores.masked_fill(hidden, -torch.inf)
        sums.append(scores.logsumexp(-1))
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
    return torch.stack(outputs), torch.stack(sums)


def paged(k: Any, v: Any) -> Any:
    return am.PagedKV(k, v, i32(*TABLE), i32(*LENGTHS))


def of_one_pool(k: Any, v: Any) -> Any:
    both = torch.stack([k, v], 1).transpose(2, 3).contiguous()
    return am.PagedKV(both, None, i32(*TABLE), i32(*LENGTHS), layout="HND")


def compressed(k: Any, v: Any) -> Any:
    pages = [page for row, n in zip(TABLE, LENGTHS, strict=True) for page in row[: -(-n // PAGE)]]
    ends, last = i32(0, 3, 5, 8), i32(*((n - 1) % PAGE + 1 for n in LENGTHS))
    return am.PagedKV(k, v, indptr=ends, indices=i32(*pages), last_page_len=last)


def contiguous(k: Any, v: Any) -> Any:
    order = i32(2, 0, 1)
    rows = [rows_of(x)[torch.tensor([1, 2, 0])].contiguous() for x in (k, v)]
    return am.ContiguousKV(*rows, i32(*(n - 1 for n in LENGTHS)), batch_idx=order, counts_new=False)


@pytest.mark.parametrize("cache_of", [paged, of_one_pool, compressed, contiguous])
@pytest.mark.long("contiguous", "of_one_pool", "compressed")
def test_caches_stay_in_the_graph(cache_of: Callable[..., Any]) -> None:
    k, v = pools()
    q = normal(3, 1, HEADS, DIM)

    def function(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        return am.attention(q * 2, cache_of(k, v), mask=am.causal(), return_lse=True, num_splits=2)

    o, lse = torch.compile(function, backend="aot_eager", fullgraph=True)(q, k, v)
    assert all(torch.equal(x, y) for x, y in zip((o, lse), function(q, k, v), strict=True))
    want_o, want_lse = truth(q * 2, rows_of(k), rows_of(v), LENGTHS)
    assert (o - want_o).abs().max() < 0.02 and (lse - want_lse).abs().max() < 0.01


def test_a_cache_from_outside_whose_contents_change() -> None:
    """Tables and lengths are arguments of the graph: other numbers in them need no other graph."""
    k, v = pools()
    cache, q = paged(k, v), normal(3, 1, HEADS, DIM)
    compiled = torch.compile(lambda q: am.attention(q, cache) + 1, fullgraph=True, backend="eager")
    for lengths in (LENGTHS, [1, 48, 33]):
        cache.seqused.copy_(i32(*lengths))
        o = compiled(q) - 1
        assert (o - truth(q, rows_of(k), rows_of(v), lengths)[0]).abs().max() < 0.03
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_sizes_may_be_dynamic() -> None:
    """One graph for all batch sizes."""
    k, v = pools()

    def function(q: Any, table: Any, lengths: Any) -> Any:
        return am.attention(q, am.PagedKV(k, v, table, lengths), num_splits=0)

    compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=True)
    for batch in (5, 7):  # none the size of something else
        q, table = normal(batch, 1, HEADS, DIM), i32(*(TABLE * 3)[:batch])
        lengths = i32(*(LENGTHS * 3)[:batch])
        assert torch.equal(compiled(q, table, lengths), function(q, table, lengths))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_sizes_may_be_dynamic_under_a_predicate() -> None:
    """One graph for all numbers of keys, also of the tensor that the predicate reads."""

    def function(q: Any, k: Any, visible: Any) -> Any:
        return am.attention(q, k, k, mask_mod=lambda b, h, q_idx, kv_idx: visible[b, kv_idx])

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    q = normal(2, 1, HEADS, DIM)
    for count in (33, 35):
        k, visible = normal(2, count, KV_HEADS, DIM), torch.arange(count) % 3 < q.new_ones(2, 1)
        assert torch.equal(compiled(q, k, visible), function(q, k, visible))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_lengths_sinks_and_modifiers() -> None:
    """Without a cache: ragged queries and keys, and everything that is data of a call."""
    torch.manual_seed(1)
    q, k, v = normal(30, HEADS, DIM), normal(50, KV_HEADS, DIM), normal(50, KV_HEADS, DIM)
    ends_q, ends_k, sinks = i32(0, 10, 30), i32(0, 30, 50), torch.randn(HEADS)
    bias = torch.randn(HEADS, 50)

    def function(q: Any, bias: Any, sinks: Any) -> tuple[Any, ...]:
        lengths = {"cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k, "max_seqlen_q": 20}
        plain = am.attention(q, k, v, **lengths, out_dtype=torch.float32, mask=am.causal())
        modified = am.attention(
            q,
            k,
            v,
            **lengths,
            score_mod=lambda score, b, h, i, j: score + bias[h, j],
            mask_mod=lambda b, h, i, j: j != 3,
            sinks=sinks,
            return_lse=True,
        )
        return plain, *modified

    found = torch.compile(function, fullgraph=True, backend="eager")(q, bias, sinks)
    wanted = function(q, bias, sinks)
    assert found[0].dtype == torch.float32 and found[2].shape == (HEADS, 30)
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


REFUSED = {
    "a table of i64": (lambda k, v: am.PagedKV(k, v, i32(*TABLE).long(), i32(*LENGTHS)), "page_table"),
    "a batch": (lambda k, v: am.PagedKV(k, v, i32(*TABLE), i32(1, 2)), "seqused has batch 2"),
    "pages of nothing": (lambda k, v: am.PagedKV(k[:, :0], v[:, :0], i32(*TABLE)), "the page size of"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_fakes_are_refused_as_tensors_are(name: str) -> None:
    cache_of, message = REFUSED[name]
    k, v = pools()
    q = normal(3, 1, HEADS, DIM)

    def function(q: Any, k: Any, v: Any) -> Any:
        return am.attention(q, cache_of(k, v))

    with pytest.raises(SpecError, match=message):
        function(q, k, v)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=message):
        torch.compile(function, fullgraph=True, backend="eager")(q, k, v)


def test_the_operator_names_what_a_call_can_say() -> None:
    for name in ("cu_seqlens_q", "seqused_k", "num_splits", "page_table", "leftpad", "layout"):
        assert name in ATTENTION.arguments
    k, v = pools()
    arguments = (normal(3, 1, HEADS, DIM), rows_of(k), rows_of(v), [], "", "full", "")
    with pytest.raises(SpecError, match="^layout is no field of k and v as tensors"):
        attention_call_op(*arguments, layout="NHD")
    torch.library.opcheck(
        attention_call_op,
        (*arguments[:1], k, v, [], "", "causal", "PagedKV"),
        {"page_table": i32(*TABLE), "seqused": i32(*LENGTHS), "return_lse": True},
        test_utils=("test_schema", "test_faketensor"),
    )
