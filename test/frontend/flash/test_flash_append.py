"""`flash_attn_with_kvcache` with new keys and values: what it writes, and what attention then sees."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.api import plan as plans
from attn_mlir.errors import SpecError
from attn_mlir.flash import flash_attn_with_kvcache
from attn_mlir.validation.gpu.pytorch_graphs import replayed_steps
from attn_mlir.validation.numerics import kvcache_draws
from attn_mlir.validation.numerics.flash_formula import check, truth
from attn_mlir.validation.numerics.operands import i32

Array = npt.NDArray[Any]
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
BATCH, HEADS, KV_HEADS, DIM, PAGE, ROOM = 3, 4, 2, 64, 16, 64
TABLE = np.array([[3, 1, 5, 9], [0, 2, 4, 11], [8, 7, 6, 10]], np.int32)
LENGTHS = np.array([36, 13, 47], np.int32)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
RANDOM = np.random.default_rng(11)
ANGLES = RANDOM.uniform(0, 6, (ROOM, DIM // 2))


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
      new: new keys of each sequence; queries likewise unless told.
      queries: queries of each sequence.
      ragged: whether new keys, and whether queries, lie one behind the other.
      first: of each sequence, the row of the angles for its first new token.
      columns: that are rotated, 0 for none.
      begin, order: of each sequence, where it begins in its row, and which row that is.
      given: further arguments.
      options: arguments that the formula has as well.
    """

    new: tuple[int, ...] = (4, 4, 4)
    queries: tuple[int, ...] = (4, 4, 4)
    ragged: tuple[bool, bool] = (False, False)
    columns: int = 0
    interleaved: bool = True
    first: tuple[int, ...] = tuple(LENGTHS.tolist())
    paged: bool = True
    begin: tuple[int, ...] = (0, 0, 0)
    order: tuple[int, ...] = (0, 1, 2)
    scales: tuple[float, float] | None = None
    given: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=lambda: {"causal": True})


CASES = {
    "pages": Case(),
    "one token": Case((1, 1, 1), (1, 1, 1), given={"num_splits": 2}),
    "more keys than queries": Case((9, 9, 9), (2, 2, 2)),
    "more queries than keys": Case((2, 2, 2), (5, 5, 5), columns=32),
    "neighbours rotated": Case(columns=32),
    "halves rotated": Case(columns=64, interleaved=False),
    "all queries by one row": Case(columns=32, options={}),
    "own within a window": Case(columns=32, options={"window_size": (9, 3)}),
    "slopes, a cap and a chunk": Case(
        columns=16,
        options={"causal": True, "alibi_slopes": SLOPES, "softcap": 3.0, "attention_chunk": 32},
    ),
    "other rows": Case(columns=32, first=(5, 0, 20), given={"rotary_seqlens": i32(5, 0, 20)}),
    "rows by index": Case(
        paged=False, order=(2, 0, 1), columns=32, given={"cache_batch_idx": i32(2, 0, 1)}
    ),
    "padding counts": Case(
        paged=False, begin=(7, 0, 20), columns=32, given={"cache_leftpad": i32(7, 0, 20)}
    ),
    "ragged": Case((5, 0, 2), (5, 0, 2), (True, True), columns=32, interleaved=False),
    "ragged with slopes": Case((5, 0, 2), (5, 0, 2), (True, True), options={"alibi_slopes": SLOPES}),
    "ragged keys": Case((9, 3, 17), ragged=(True, False), columns=32),
    "ragged, each its own": Case(
        (1, 17, 3), (2, 3, 0), (True, True), columns=32, first=(5, 0, 20),
        given={"rotary_seqlens": i32(5, 0, 20)},
    ),
    "8 bits": Case(columns=32, scales=(0.5, 0.25), paged=False),
    "pages of 8 bits": Case(scales=(0.5, 2.0)),
}  # fmt: skip


def turned(x: Array, rows: Array, case: Case) -> Array:
    """[n, heads, D] with the pairs of its first columns as complex numbers, times those of its rows."""
    if not case.columns:
        return x
    first, second = slice(0, case.columns // 2), slice(case.columns // 2, case.columns)
    if case.interleaved:
        first, second = slice(0, case.columns, 2), slice(1, case.columns, 2)
    wide = x.astype(np.float64)
    angles = ANGLES[rows][:, None, : case.columns // 2]
    pairs = (wide[..., first] + 1j * wide[..., second]) * np.exp(1j * angles)
    wide[..., first], wide[..., second] = pairs.real, pairs.imag
    return wide.astype(x.dtype)


def parts(packed: Array, counts: tuple[int, ...]) -> list[Array]:
    return np.split(packed, np.cumsum(counts)[:-1])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(
    "8 bits",
    "all queries by one row",
    "own within a window",
    "ragged, each its own",
    "pages",
    "slopes, a cap and a chunk",
    "more keys than queries",
)
def test_new_tokens(name: str) -> None:
    """The cache has them where they belong and is elsewhere what it was; attention sees them."""
    case = CASES[name]
    dtype = BF16 if case.scales is None else E4M3
    sides = [RANDOM.standard_normal((12, PAGE, KV_HEADS, DIM)).astype(dtype) for _ in range(2)]
    if not case.paged:
        sides = [side.reshape(BATCH, ROOM, KV_HEADS, DIM) for side in sides]
    new = [RANDOM.standard_normal((sum(case.new), KV_HEADS, DIM)).astype(BF16) for _ in range(2)]
    q = RANDOM.standard_normal((sum(case.queries), HEADS, DIM)).astype(BF16)
    before = [side.copy() for side in sides]
    given: dict[str, Any] = {"cache_seqlens": LENGTHS, **case.given, **case.options}
    keys_are_ragged, queries_are_ragged = case.ragged
    offsets = [np.cumsum([0, *counts]).astype(np.int32) for counts in (case.new, case.queries)]
    if keys_are_ragged:
        given["cu_seqlens_k_new"] = offsets[case.new == case.queries]
    if queries_are_ragged:
        given |= {"cu_seqlens_q": offsets[1], "max_seqlen_q": max(case.queries)}
    if case.paged:
        given["page_table"] = TABLE
    if case.columns:
        angles = ANGLES[:, : case.columns // 2].astype(np.float32)
        given |= {"rotary_cos": np.cos(angles), "rotary_sin": np.sin(angles)}
        given["rotary_interleaved"] = case.interleaved
    scales = case.scales or (1.0, 1.0)
    if case.scales is not None:
        names = ("k_descale", "v_descale")
        given |= {n: np.array([x], np.float32) for n, x in zip(names, scales, strict=True)}
    found = flash_attn_with_kvcache(
        q if queries_are_ragged else q.reshape(BATCH, -1, HEADS, DIM),
        *sides,
        *(x if keys_are_ragged else x.reshape(BATCH, -1, KV_HEADS, DIM) for x in new),
        return_softmax_lse=True,
        **given,
    )

    steps = case.options.get("causal") or "window_size" in case.options
    queries = [
        turned(x, start + np.arange(len(x)) * bool(steps), case)
        for x, start in zip(parts(q, case.queries), case.first, strict=True)
    ]
    stored: list[list[Array]] = []
    for side, old, tokens, scale in zip(sides, before, new, scales, strict=True):
        rows, wanted = side, old
        if case.paged:
            rows, wanted = (x[TABLE].reshape(BATCH, ROOM, KV_HEADS, DIM) for x in (side, old))
        sequences: list[Array] = []
        for b, x in enumerate(parts(tokens, case.new)):
            if tokens is new[0]:
                x = turned(x, case.first[b] + np.arange(len(x)), case)
            row, begin, end = case.order[b], LENGTHS[b], LENGTHS[b] + len(x)
            wide = rows[row].astype(np.float64) * scale
            near = 0.02 if case.scales is None else 0.07  # of bf16 twice rounded, and of e4m3
            difference = abs(wide[begin:end] - x.astype(np.float64))
            assert (difference <= near * np.maximum(abs(x.astype(np.float64)), 0.1)).all()
            wanted[row, begin:end] = rows[row, begin:end]
            sequences.append(wide[case.begin[b] : end])
        assert (rows.view(np.uint8) == wanted.view(np.uint8)).all()
        stored.append(sequences)
    check(found, truth(queries, *stored, **case.options))


TURNED = {n: np.ones((ROOM, 16), BF16) for n in ("rotary_cos", "rotary_sin")}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "over the end": ({"cache_seqlens": i32(36, 13, 61)}, r"^cache_seqlens\[2\] is 61, 65 with the new"),
    "another dtype": ({"k": np.zeros((BATCH, 4, KV_HEADS, DIM), np.float16)}, "^k is f16, k_cache is bf16"),
    "other heads": ({"v": np.zeros((BATCH, 4, 1, DIM), BF16)}, "^v has 1 heads, v_cache has 2"),
    "another batch": (
        {n: np.zeros((2, 4, KV_HEADS, DIM), BF16) for n in "kv"}, "^k has batch 2, k_cache has 3"),
    "few angles": (
        {n: np.ones((50, 16), BF16) for n in ("rotary_cos", "rotary_sin")}, "^rotary needs angles of position 50"),
    "few angles for queries": (
        {"causal": True, **{n: np.ones((50, 16), BF16) for n in ("rotary_cos", "rotary_sin")}},
        r"^cache_seqlens\[2\] is 47, with 4 tokens behind it: rotary_cos has rows 0 to 49"),
    "rows without angles": ({**TURNED, "rotary_seqlens": i32(5, 0, -1)}, r"^rotary_seqlens\[2\] is -1"),
    "integers as angles": (
        {n: np.ones((ROOM, 16), np.int32) for n in ("rotary_cos", "rotary_sin")}, "^rotary_cos has dtype int32"),
    "rotated keys of another batch": (
        {**TURNED, "rotary_seqlens": i32(5, 0, 9), "k": np.zeros((2, 4, KV_HEADS, DIM), BF16)},
        r"^k must be of 3 sequences and 64 columns, got \[2, 4, 2, 64\]"),
    "other lengths": ({"cache_seqlens": i32(1, 2)}, r"^cache_seqlens must be \[3\], got \[2\]"),
    "no lengths": ({"cache_seqlens": np.ndarray}, "^cache_seqlens must be an integer from 0 to"),
    "a list as keys": ({"k": [1]}, "^k must be an array of numpy, torch or cupy"),
    "a flag": (
        {"rotary_interleaved": 2, **{n: np.ones((ROOM, 16), BF16) for n in ("rotary_cos", "rotary_sin")}},
        "^rotary_interleaved must be True or False"),
    "of attention": ({"softcap": -1.0}, "^cap of a softcap must be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, message = REFUSED[name]
    monkeypatch.setattr(plans, "compile", lambda *_, **__: pytest.fail("it was compiled"))
    k, v = (np.zeros((BATCH, ROOM, KV_HEADS, DIM), BF16) for _ in range(2))
    tokens = {n: np.ones((BATCH, 4, KV_HEADS, DIM), BF16) for n in "kv"}
    q = np.zeros((BATCH, 4, HEADS, DIM), BF16)
    with pytest.raises(SpecError, match=message):
        flash_attn_with_kvcache(q, k, v, **{**tokens, "cache_seqlens": LENGTHS, **changes})


def test_drawn() -> None:
    """Slopes, and one array of offsets for queries and new keys."""
    assert not kvcache_draws.DRAWS.failure(0)


def test_in_a_graph() -> None:
    """Two steps in the graph of `torch.compile`: the second one sees what the first one wrote."""
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(3)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape).to(torch.bfloat16)

    table, lengths = torch.from_numpy(TABLE), torch.from_numpy(LENGTHS)
    angles = torch.from_numpy(ANGLES).float()
    pools = [normal(12, PAGE, KV_HEADS, DIM) for _ in range(2)]
    steps = [(normal(3, 2, HEADS, DIM), *(normal(3, 2, KV_HEADS, DIM) for _ in "kv")) for _ in "ab"]

    def function(k_pool: Any, v_pool: Any, lengths: Any) -> list[Any]:
        found: list[Any] = []
        for number, (q, k, v) in enumerate(steps):
            o = flash_attn_with_kvcache(
                q, k_pool, v_pool, k, v, rotary_cos=angles.cos(), rotary_sin=angles.sin(),
                cache_seqlens=lengths + 2 * number, page_table=table, causal=True,
            )  # fmt: skip
            found.append(o)
        return found

    torch._dynamo.reset()
    mine, theirs = ([pool.clone() for pool in pools] for _ in range(2))
    with torch.no_grad():
        wanted = function(*mine, lengths)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        found = compiled(*theirs, lengths)
    pairs = itertools.chain(zip(found, wanted, strict=True), zip(mine, theirs, strict=True))
    assert all(torch.equal(x, y) for x, y in pairs)
    assert not torch.equal(mine[0], pools[0])


def test_steps_that_are_checked_on_a_gpu() -> None:
    torch: Any = pytest.importorskip("torch")
    torch._dynamo.reset()
    replayed_steps(torch, "cpu")
