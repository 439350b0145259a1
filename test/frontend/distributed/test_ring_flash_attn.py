"""ring-flash-attn's functions: their parts of the sequence, and values on several processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")

import attn_mlir as am  # noqa: E402
from attn_mlir import ring_flash_attn as rfa  # noqa: E402
from attn_mlir.distributed.pieces import Document, Piece  # noqa: E402
from attn_mlir.distributed.problem import Problem  # noqa: E402
from attn_mlir.distributed.ring_variants import OfEveryDocument, Striped  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.validation.arguments.distributed import of_package  # noqa: E402
from attn_mlir.validation.distributed.launch import run  # noqa: E402

SHORT = ("zigzag_ring_flash_attn_varlen_func", "llama3_flash_attn_varlen_kvpacked_func")
ALL = (
    "ring_flash_attn_func",
    "ring_flash_attn_kvpacked_func<",
    "zigzag_ring_flash_attn_qkvpacked_func",
    "zigzag_ring_flash_attn_func!",
    "stripe_flash_attn_func",
    "stripe_flash_attn_qkvpacked_func!",
    "ring_flash_attn_varlen_func",
    "ring_flash_attn_varlen_kvpacked_func!",
    "zigzag_ring_flash_attn_varlen_qkvpacked_func<",
    "llama3_flash_attn_varlen_func",
    "llama3_flash_attn_varlen_func<",
    "llama3_flash_attn_varlen_func!",
    *SHORT,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size, names",
    [
        (2, SHORT),
        *(
            pytest.param(size, ALL[i : i + 2], marks=pytest.mark.long)
            for size in (2, 3)
            for i in range(0, len(ALL), 2)
        ),
    ],
)
def test_functions_compute_attention_of_the_whole_sequence(
    size: int, names: tuple[str, ...]
) -> None:
    for rank, found in enumerate(run("ring_flash.check", size, *names)):
        assert list(found) == list(names), (rank, found)
        for name, errors in found.items():
            assert all(x <= 1 for x in errors.values()), (rank, name, errors)


def scores_of(piece: Piece, rows: list[int], keys: list[int]) -> Iterator[tuple[int, int]]:
    """The scores that a call computes, by the numbers of tokens of both ranks."""
    mask, i, j = piece.mask, piece.rows.start, piece.keys.start
    alone = Document(range(len(piece.rows)), range(len(piece.keys)))
    for document in piece.documents or (alone,):
        for a, q in enumerate(document.queries):
            for b, k in enumerate(document.keys):
                if mask is None or mask.visible(q, k, 99, 99):
                    yield rows[i + a], keys[j + b]
        i, j = i + len(document.queries), j + len(document.keys)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "form, mask",
    [
        *((x, y) for x in ("stripes", "ring", "zigzag") for y in (am.causal(), am.full())),
        *((x, am.sliding_window(5, 0)) for x in ("ring", "zigzag")),
    ],
    ids=str,
)
def test_pieces_compute_each_visible_score_once(form: str, mask: Any, size: int) -> None:
    chunks = (2, 0, 3)  # tokens of documents in a chunk
    count = 1 + (form == "zigzag")
    lengths = [5 * size] if form == "stripes" else [x * size * count for x in chunks]
    begins = [0, *accumulate(lengths)]
    tokens = list[list[int]]()
    for rank in range(size):
        if form == "stripes":
            tokens.append(list(range(rank, 5 * size, size)))
            continue
        own = (rank, 2 * size - 1 - rank)[:count]
        tokens.append(
            [
                b + c * n + i
                for c in own
                for b, n in zip(begins, chunks, strict=False)
                for i in range(n)
            ]
        )
    found = list[tuple[int, int]]()
    for rank in range(size):
        members: Any = SimpleNamespace(rank=rank, size=size)
        shards: Any = SimpleNamespace(most=5)
        problem = Problem(None if form == "stripes" and mask == am.full() else mask)
        if form == "stripes":
            scheme: Any = Striped("f", members, problem, shards)
        else:
            scheme = OfEveryDocument("f", members, problem, shards, chunks, form == "zigzag")
        for step, plan in enumerate(scheme.plans()):
            for piece in plan:
                assert all(
                    len({x.start in piece.rows, x.stop - 1 in piece.rows}) == 1
                    for x in scheme.blocks()
                )
                found += scores_of(piece, tokens[rank], tokens[(rank - step) % size])
    want = [
        (q, k)
        for begin, end in pairwise(begins)
        for q in range(begin, end)
        for k in range(begin, end)
        if mask.visible(q - begin, k - begin, end - begin, end - begin)
    ]
    assert sorted(found) == want


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [(12,), (4, 8), (5, 1, 6), (1, 0, 10, 1), (0, 3, 9)], ids=str)
def test_documents_of_a_rank_are_those_that_it_has_queries_of(
    lengths: tuple[int, ...], causal: bool
) -> None:
    starts = [0, *accumulate(lengths)]
    for size in (1, 2, 3, 4):
        seen = list[tuple[int, int]]()
        for rank in range(size):
            of_q, of_k, most_q, most_k, keys = rfa.llama3_flash_attn_prepare_cu_seqlens(
                torch.tensor(starts, dtype=torch.int32), causal, rank, size
            )
            assert of_q.dtype == of_k.dtype == torch.int32
            rows, columns = of_q.tolist(), of_k.tolist()
            assert rows[-1] == 12 // size and columns[-1] == keys.stop - keys.start
            assert most_q == max(b - a for a, b in pairwise(rows))
            assert most_k == max(b - a for a, b in pairwise(columns))
            for (a, b), (c, d) in zip(pairwise(rows), pairwise(columns), strict=True):
                for i in range(b - a):
                    last = d - (b - a) + i if causal else d - 1
                    q = rank * (12 // size) + a + i
                    seen += [(q, keys.start + k) for k in range(c, last + 1)]
        want = [
            (q, k)
            for begin, end in pairwise(starts)
            for q in range(begin, end)
            for k in range(begin, q + 1 if causal else end)
        ]
        assert sorted(seen) == want


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WINDOW = {"causal": True, "window_size": (5, 0)}
PLANNED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("ring_flash_attn_func", WINDOW, "contiguous", am.sliding_window(5, 0)),
    (
        "ring_flash_attn_qkvpacked_func",
        {"window_size": (2, 3)},
        "contiguous",
        am.sliding_window(2, 3),
    ),
    ("zigzag_ring_flash_attn_kvpacked_func", {"causal": True}, "zigzag", am.causal()),
    ("stripe_flash_attn_func", {"causal": True}, "Striped", am.causal()),
    ("stripe_flash_attn_qkvpacked_func", {}, "Striped", None),
    ("ring_flash_attn_varlen_func", WINDOW, "OfEveryDocument", am.sliding_window(5, 0)),
    ("ring_flash_attn_varlen_kvpacked_func", {}, "OfEveryDocument", am.full()),
    (
        "zigzag_ring_flash_attn_varlen_kvpacked_func",
        {"causal": True},
        "OfEveryDocument",
        am.causal(),
    ),
    ("llama3_flash_attn_varlen_func", WINDOW, "Sliced", am.sliding_window(5, 0)),
    ("llama3_flash_attn_varlen_qkvpacked_func", {}, "Sliced", None),
]  # functions, options, and the layout or scheme and the mask of these


@pytest.mark.parametrize("name, options, wanted, mask", PLANNED)
def test_ranks_compute_what_the_arguments_say(
    name: str,
    options: dict[str, Any],
    wanted: str,
    mask: Any,
    alone: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attention returns q as O here, so O must have the order of q's rows."""
    found: list[Any] = []

    def computed(scheme: Any, operands: Any) -> Any:
        kind = type(scheme).__name__
        found[:] = kind, (scheme.piece if kind == "Sliced" else scheme.problem).mask, operands
        return operands[0], operands[0][..., 0].transpose(1, 2)

    def sharded(_scheme: str, operands: Any, _group: Any, given: Any) -> Any:
        found[:] = given["layout"], given["mask"], operands
        return operands[0], None

    monkeypatch.setattr(rfa, "computed", computed)
    monkeypatch.setattr(rfa, "attend_sharded", sharded)
    function, arrays = of_package(name)
    floats = {
        x: torch.randn(y.shape).bfloat16() for x, y in arrays.items() if y.is_floating_point()
    }
    lengths = {x: torch.tensor([0, 2, 8]) for x in arrays if x.startswith("cu_")}
    o = function(**floats, **lengths, **options)
    rows = [x for y in floats.values() for x in (y.unbind(-3) if y.shape[-3] < 4 else [y])]
    kind, of, operands = found
    assert (kind, of) == (wanted, mask) and torch.equal(o, rows[0])
    if "zigzag" not in name:
        assert all(torch.equal(x.reshape(y.shape), y) for x, y in zip(operands, rows, strict=True))


def test_what_is_refused_by_name(alone: None) -> None:
    x = torch.ones(8, 4, 32).bfloat16()
    dense, starts = [x[None]] * 3, torch.tensor([0, 3, 8])
    sliced = starts, starts, 5, 5, 1, slice(0, 8)
    cases: list[tuple[str, Any]] = [
        ("dropout_p must be 0", lambda: rfa.ring_flash_attn_func(*dense, 0.1)),
        (
            "^softmax_scale must be finite",
            lambda: rfa.ring_flash_attn_func(*dense, softmax_scale=float("nan")),
        ),
        ("alibi_slopes must be None", lambda: rfa.ring_flash_attn_func(*dense, alibi_slopes=x)),
        ("window_size must be .left", lambda: rfa.ring_flash_attn_func(*dense, window_size=3)),
        ("kv must be ", lambda: rfa.ring_flash_attn_kvpacked_func(x[None], x[None])),
        (
            "window_size must be .-1, -1. of stripes",
            lambda: rfa.stripe_flash_attn_func(*dense, causal=True, window_size=(3, 0)),
        ),
        ("even length", lambda: rfa.zigzag_ring_flash_attn_varlen_func(x, x, x, starts, 5)),
        ("max_seqlen must be", lambda: rfa.ring_flash_attn_varlen_func(x, x, x, starts, 4)),
        ("from 0 to 8", lambda: rfa.ring_flash_attn_varlen_func(x, x, x, starts[:2], 5)),
        ("q must be .own", lambda: rfa.ring_flash_attn_varlen_func(*dense, starts, 5)),
        (
            "heads_k_stride must divide the 4 heads",
            lambda: rfa.llama3_flash_attn_varlen_func(x, x, x, *sliced[:4], 3, slice(0, 8)),
        ),
        *(
            (
                "local_k_slice must be slice.start, stop. of integers",
                lambda at=at: rfa.llama3_flash_attn_varlen_func(
                    *[x[:4]] * 3, *[starts[:2]] * 2, 4, 4, 1, at
                ),
            )
            for at in (slice(0, 8, 2), slice("a", 8), slice(True, 8), 8)
        ),
        (
            "as many documents",
            lambda: rfa.llama3_flash_attn_varlen_func(
                x, x, x, starts, starts[[0, 2]], 5, 8, 1, slice(0, 8)
            ),
        ),
        (
            "3 ranks do not divide the 8 tokens",
            lambda: rfa.llama3_flash_attn_prepare_cu_seqlens(starts, True, 0, 3),
        ),
    ]
    for text, call in cases:
        with pytest.raises(SpecError, match=text):
            call()


@pytest.mark.parametrize("name", [x for x in rfa.__all__ if x.endswith("_func")])
def test_a_flag_that_is_none_is_refused_before_anything_is_computed(
    alone: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rfa, "computed", None)
    monkeypatch.setattr(rfa, "attend_sharded", None)
    function, arrays = of_package(name)
    with pytest.raises(SpecError, match="return_attn_probs must be True or False, got 1"):
        function(**arrays, return_attn_probs=1)
