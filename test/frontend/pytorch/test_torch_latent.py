"""Latent attention in the graphs of `torch.compile`: one operator for each function, sizes dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import flash_mla  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch.latent.operators import mla_decode_call_op  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("graphs_afresh")]
HEADS, PAGE, PAGES, SCALE = 8, 16, 6, 0.05
TABLE = [[3, 1], [0, 2], [4, 1], [5, 3]]
LENGTHS = [20, 17, 32, 1]
BATCHES = 3, 4  # neither the size of something else


def rows_of(pool: Any, sequence: int) -> Any:
    """The rows of a sequence, float64."""
    return pool[torch.tensor(TABLE[sequence])].flatten(0, 2)[: LENGTHS[sequence]].double()


def attended(q: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """O and LSE of [queries, heads, D] over [keys, D], in float64."""
    scores = torch.einsum("qhd,kd->qhk", q.double(), keys.double()) * SCALE
    return torch.einsum("qhk,kd->qhd", scores.softmax(-1), values), scores.logsumexp(-1)


def in_one_graph(function: Callable[..., Any], *calls: tuple[Any, ...]) -> list[Any]:
    """What one graph of dynamic sizes gives for each call."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    results = [compiled(*call) for call in calls]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    return results


def test_dense_prefill_with_the_rope_of_a_cache() -> None:
    """Of 640 bytes a row, of which only those of rope are numbers."""
    pool = normal(PAGES, PAGE, 1, 576)
    packed = torch.full((PAGES, PAGE, 1, 640), 0xFF, dtype=torch.uint8)
    packed[..., 512:] = pool[..., 512:].contiguous().view(torch.uint8)

    def function(q: Any, rope: Any, k: Any, v: Any, table: Any, used: Any) -> tuple[Any, Any]:
        cache = am.PagedKV(packed, None, table, used)
        options: dict[str, Any] = {"out_dtype": torch.float32, "return_lse": True}
        options["kv_format"] = "e4m3_rope16"
        return am.mla(q, rope, k, cache, v, scale=SCALE, **options)

    def call(batch: int, queries: int) -> tuple[Any, ...]:
        q, rope = normal(batch, queries, 1, 64), normal(batch, queries, 1, 64)
        k, v = normal(batch, 2 * PAGE, 1, 64), normal(batch, 2 * PAGE, 1, 64)
        return q, rope, k, v, i32(*TABLE[:batch]), i32(*LENGTHS[:batch])

    calls = call(BATCHES[0], 5), call(BATCHES[1], 7)
    for (q, rope, k, v, _, lengths), (o, lse) in zip(
        calls, in_one_graph(function, *calls), strict=True
    ):
        assert o.dtype == torch.float32
        for b, used in enumerate(lengths.tolist()):
            keys = torch.cat([k[b, :used, 0].double(), rows_of(pool, b)[:, 512:]], -1)
            both = torch.cat([q[b], rope[b]], -1)
            wanted, sums = attended(both, keys, v[b, :used, 0].double())
            assert (o[b] - wanted).abs().max() < 0.02
            assert (lse[b] - sums.T).abs().max() < 0.01


def test_dense_prefill_with_rope_of_8_bits() -> None:
    pool, factors = (
        normal(PAGES, PAGE, 1, 576).to(torch.float8_e4m3fn),
        torch.rand(PAGES, PAGE, 1, 1),
    )

    def function(q: Any, rope: Any, k: Any, v: Any, k_rope: Any, told: Any) -> tuple[Any, Any]:
        cache = am.PagedKV(pool, None, i32(*TABLE[: q.shape[0]]), k_scale=factors)
        first = am.mla(q, rope, k, cache, v, scale=SCALE)
        return first, am.mla(q, rope, k, k_rope, v, scale=SCALE, k_rope_descale=told)

    def call(batch: int) -> tuple[Any, ...]:
        keys = torch.tensor(TABLE[:batch])
        rows, told = pool.float()[keys].flatten(1, 2), factors[keys].flatten(1)
        q, rope = normal(batch, 5, 1, 64), normal(batch, 5, 1, 64)
        k, v = normal(batch, 2 * PAGE, 1, 64), normal(batch, 2 * PAGE, 1, 64)
        return q, rope, k, v, rows[..., 512:].to(torch.float8_e4m3fn), told

    given = call(BATCHES[0])
    ((of_cache, of_tensor),) = in_one_graph(function, given)
    assert torch.equal(of_cache, of_tensor)
    q, rope, k, v, k_rope, told = given
    for b in range(BATCHES[0]):
        wide = k_rope[b, :, 0].double() * told[b, :, None].double()
        keys = torch.cat([k[b, :, 0].double(), wide], -1)
        wanted, _ = attended(torch.cat([q[b], rope[b]], -1), keys, v[b, :, 0].double())
        assert (of_tensor[b] - wanted).abs().max() < 0.03


def test_sparse_prefill_with_pages_and_sinks() -> None:
    """Queries of a graph may be any number, and entries that count any; of f16, and unsigned lists."""
    pool, sinks = normal(PAGES, PAGE, 1, 512).half(), torch.full((HEADS,), -torch.inf)

    def function(q: Any, indices: Any, counts: Any, sequences: Any) -> tuple[Any, ...]:
        options: dict[str, Any] = {"page_table": i32(*TABLE), "batch_of_query": sequences}
        options |= {"topk_length": counts, "sinks": sinks, "out_dtype": torch.float32}
        return am.sparse_mla(q, pool, indices, scale=SCALE, **options)

    def call(queries: int) -> tuple[Any, ...]:
        sequences = torch.arange(queries, dtype=torch.int32) % 3
        indices = torch.randint(0, 17, (queries, 24), dtype=torch.int32)
        lists = indices.view(torch.uint32), i32(*range(9, 9 + queries)).view(torch.uint32)
        return normal(queries, HEADS, 512).half(), *lists, sequences

    calls = call(3), call(5)
    for (q, indices, counts, sequences), found in zip(
        calls, in_one_graph(function, *calls), strict=True
    ):
        for i, query in enumerate(q):
            rows = rows_of(pool, int(sequences[i]))[indices[i].long()[: int(counts[i])]]
            o, lse = attended(query[None], rows, rows)
            assert found[0].dtype == torch.float32
            assert (found[0][i] - o[0]).abs().max() < 0.005
            assert (found[1][i] - lse[0]).abs().max() < 0.01


def test_decoding_whole_sequences_and_lists() -> None:
    """A cache is made in the graph; lists beside compressed rows, whose `indices` are other ones."""
    pool = normal(PAGES, PAGE, 1, 576)

    def function(q: Any, table: Any, used: Any, lists: Any) -> tuple[Any, ...]:
        cache = am.PagedKV(pool, None, table, used)
        whole = am.mla_decode(q, cache, scale=SCALE, mask=am.causal(), num_splits=0)
        other = am.PagedKV(pool, None, indptr=i32(0, 1), indices=i32(2), last_page_len=i32(3))
        return *whole, *am.mla_decode(q, other, scale=SCALE, indices=lists)

    def call(batch: int) -> tuple[Any, ...]:
        lists = torch.randint(0, PAGES * PAGE, (batch, 1, 9), dtype=torch.int32)
        return normal(batch, 1, HEADS, 576), i32(*TABLE[:batch]), i32(*LENGTHS[:batch]), lists

    calls = [call(batch) for batch in BATCHES]
    for (q, _, _, lists), found in zip(calls, in_one_graph(function, *calls), strict=True):
        for b, query in enumerate(q):
            for at, rows in ((0, rows_of(pool, b)), (2, pool.flatten(0, 2)[lists[b, 0].long()])):
                o, lse = attended(query, rows, rows[:, :512].double())
                assert (found[at][b] - o).abs().max() < 0.02
                assert (found[at + 1][b] - lse.T).abs().max() < 0.01


def test_flashmlas_decoding_stays_in_the_graph() -> None:
    """With lists there are no lengths of a cache; metadata are noted by the graph."""
    pool, (metadata, _) = normal(2, 4, 1, 512), flash_mla.get_mla_metadata()

    def function(q: Any, lists: Any, counts: Any) -> tuple[Any, Any]:
        told: dict[str, Any] = {"indices": lists, "topk_length": counts, "softmax_scale": SCALE}
        return flash_mla.flash_mla_with_kvcache(q, pool, None, None, 512, metadata, **told)

    q, lists = normal(2, 1, HEADS, 512), torch.randint(0, 8, (2, 1, 5), dtype=torch.int32)
    ((o, lse),) = in_one_graph(function, (q, lists, i32(3, 0)))
    rows = pool.flatten(0, 2)[lists[0, 0, :3].long()].double()
    wanted, sums = attended(q[0], rows, rows)
    assert (o[0] - wanted).abs().max() < 0.02 and (lse[0] - sums.T).abs().max() < 0.01
    assert not o[1].any() and torch.isposinf(lse[1]).all()
    assert metadata.config is not None and metadata.config["topk"] == 5


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a table of i64": (
        lambda q: am.mla_decode(q, am.PagedKV(normal(5, 16, 1, 576), None, i32([3, 1]).long()), scale=1.0),
        "page_table",
    ),
    "values": (
        lambda q: am.mla_decode(q, am.PagedKV(normal(5, 16, 1, 576), normal(5, 16, 1, 576), i32([3, 1])), scale=1.0),
        "v_pages must be None",
    ),
    "rows of another size": (
        lambda q: am.sparse_mla(q[0], normal(9, 1, 512), i32([0]), scale=1.0),
        "kv must be",
    ),
    "another number of rope columns": (
        lambda q: am.mla(q[..., :64], q[..., :64], q[..., :64], q[..., :1, :32], q, scale=1.0),
        "k_rope must be",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_fakes_are_refused_as_tensors_are(name: str) -> None:
    function, message = REFUSED[name]
    q = normal(1, 1, HEADS, 576)
    with pytest.raises(SpecError, match=message):
        function(q)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=message):
        torch.compile(function, fullgraph=True, backend="eager")(q)


def test_the_operator_is_one_of_pytorch() -> None:
    q, pool = normal(2, 1, HEADS, 576), normal(PAGES, PAGE, 1, 576)
    options = {"page_table": i32(*TABLE[:2]), "seqused": i32(*LENGTHS[:2])}
    with pytest.raises(SpecError, match="^leftpad is no field of PagedKV"):
        mla_decode_call_op(q, pool, SCALE, "full", "PagedKV", leftpad=i32(0, 0), **options)
    torch.library.opcheck(
        mla_decode_call_op,
        (q, pool, SCALE, "full", "PagedKV"),
        options,
        test_utils=("test_schema", "test_faketensor"),
    )
