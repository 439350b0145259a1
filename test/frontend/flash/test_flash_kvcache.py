"""`flash_attn_with_kvcache` against its documented meaning, written in numpy and float64."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.api import plan as plans
from attn_mlir.api.plan import Plan
from attn_mlir.errors import SpecError
from attn_mlir.flash import flash_attn_with_kvcache
from attn_mlir.flash.rotary import full_like, positions_of, rotated
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.flash_formula import check, truth
from attn_mlir.validation.numerics.operands import i32

Array = npt.NDArray[Any]
BF16 = ml_dtypes.bfloat16
BATCH, HEADS, KV_HEADS, DIM, PAGE = 3, 4, 2, 64, 16
ROOM = 48  # positions of a sequence
TABLE = np.array([[3, 1, 5], [0, 2, 4], [8, 7, 6]], np.int32)
LENGTHS = np.array([40, 17, 48], np.int32)
RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(BF16)


K_PAGES, V_PAGES = normal(9, PAGE, KV_HEADS, DIM), normal(9, PAGE, KV_HEADS, DIM)
K_ROWS, V_ROWS = (pages[TABLE].reshape(BATCH, ROOM, KV_HEADS, DIM) for pages in (K_PAGES, V_PAGES))
QUERIES = normal(BATCH, 4, HEADS, DIM)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)


def sequences(lengths: Any = LENGTHS, begin: Any = (0, 0, 0), order: Any = (0, 1, 2)) -> Any:
    """Keys and values of each sequence: positions of its row from begin[b] to before lengths[b]."""
    rows = list(zip(order, begin, lengths, strict=True))
    return [K_ROWS[r, i:n] for r, i, n in rows], [V_ROWS[r, i:n] for r, i, n in rows]


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window_size": (9, 3)},
    "causal window": {"causal": True, "window_size": (9, -1)},
    "chunk": {"causal": True, "attention_chunk": 16},
    "cap and scale": {"softcap": 3.0, "softmax_scale": 0.3},
    "slopes": {"alibi_slopes": SLOPES},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.long("window", "chunk", "slopes", "nothing")
def test_options(name: str) -> None:
    """Of the scores, for pages under either name of their table."""
    options = OPTIONS[name]
    table = {"block_table" if options else "page_table": TABLE}
    found = flash_attn_with_kvcache(
        QUERIES,
        K_PAGES,
        V_PAGES,
        cache_seqlens=LENGTHS,
        return_softmax_lse=True,
        **table,
        **options,
    )
    check(found, truth(list(QUERIES), *sequences(), **options))


@pytest.mark.parametrize(
    ("given", "begin", "order", "lengths"),
    [
        ({"cache_seqlens": LENGTHS}, (0, 0, 0), (0, 1, 2), LENGTHS),
        ({"cache_seqlens": 33}, (0, 0, 0), (0, 1, 2), (33, 33, 33)),
        ({}, (0, 0, 0), (0, 1, 2), (ROOM, ROOM, ROOM)),
        (
            {"cache_seqlens": LENGTHS, "cache_batch_idx": i32(2, 0, 1)},
            (0, 0, 0), (2, 0, 1), LENGTHS,
        ),
        (
            {"cache_seqlens": LENGTHS, "cache_leftpad": i32(7, 0, 20)},
            (7, 0, 20), (0, 1, 2), LENGTHS,
        ),
    ],
)  # fmt: skip
@pytest.mark.long("given3-*")
def test_rows(given: dict[str, Any], begin: Any, order: Any, lengths: Any) -> None:
    """A cache without a table: lengths, rows by index, padding; with slopes, which see positions."""
    options: dict[str, Any] = {"causal": True, "alibi_slopes": SLOPES}
    found = flash_attn_with_kvcache(
        QUERIES, K_ROWS, V_ROWS, **given, **options, return_softmax_lse=True
    )
    check(found, truth(list(QUERIES), *sequences(lengths, begin, order), **options))


@pytest.mark.parametrize(
    "options",
    [{"causal": True, "alibi_slopes": SLOPES}, {"causal": True, "window_size": (9, -1)}, {}],
)
@pytest.mark.long("options1")
def test_rows_and_padding_of_pages(options: dict[str, Any]) -> None:
    """Rows of the table by index; sequences that begin within their pages."""
    order, begin = i32(2, 0, 1), i32(7, 0, 20)
    found = flash_attn_with_kvcache(
        QUERIES, K_PAGES, V_PAGES, page_table=TABLE, cache_seqlens=LENGTHS, cache_batch_idx=order,
        cache_leftpad=begin, return_softmax_lse=True, **options,
    )  # fmt: skip
    check(found, truth(list(QUERIES), *sequences(LENGTHS, begin, order), **options))


def test_new_keys_of_padded_pages() -> None:
    """They are written behind the padding and the keys of the row that is told."""
    k_pages, v_pages = K_PAGES.copy(), V_PAGES.copy()
    k, v = normal(BATCH, 4, KV_HEADS, DIM), normal(BATCH, 4, KV_HEADS, DIM)
    order, begin, lengths = i32(2, 0, 1), i32(7, 0, 3), i32(40, 17, 30)
    found = flash_attn_with_kvcache(
        QUERIES, k_pages, v_pages, k, v, page_table=TABLE, cache_seqlens=lengths, causal=True,
        cache_batch_idx=order, cache_leftpad=begin, return_softmax_lse=True,
    )  # fmt: skip
    old = sequences(lengths, begin, order)
    keys, values = (
        [np.concatenate(pair) for pair in zip(x, new, strict=True)]
        for x, new in zip(old, (k, v), strict=True)
    )
    check(found, truth(list(QUERIES), keys, values, causal=True))
    for pages, new in ((k_pages, k), (v_pages, v)):
        for b, row in enumerate(order):
            there = pages[TABLE[row]].reshape(ROOM, KV_HEADS, DIM)
            assert (there[lengths[b] : lengths[b] + 4] == new[b]).all()


def test_ragged_queries_and_parts() -> None:
    ends = i32(0, 3, 4, 9)
    q = normal(9, HEADS, DIM)
    queries = [q[i:j] for i, j in itertools.pairwise(ends)]
    given = {"cu_seqlens_q": ends, "max_seqlen_q": 5, "cache_seqlens": LENGTHS, "causal": True}
    want = truth(queries, *sequences(), causal=True)
    found = flash_attn_with_kvcache(
        q,
        K_PAGES,
        V_PAGES,
        page_table=TABLE,
        **given,
        num_splits=3,
        return_softmax_lse=True,
    )
    check(found, want)
    o = flash_attn_with_kvcache(q, K_PAGES, V_PAGES, page_table=TABLE, **given)
    assert abs(o.astype(np.float64) - np.concatenate(want[0])).max() < 0.02


@pytest.mark.parametrize("is_interleaved", [True, False])
def test_rotation(is_interleaved: bool) -> None:
    """Pairs as complex numbers, for dense and ragged rows."""
    columns, rows = 16, 40
    angle = RANDOM.uniform(0, 6, (rows, columns))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, ends = i32(3, 30, 0), i32(0, 2, 2, 6)
    dense = positions_of(first, 4, grows=True)
    assert dense.tolist() == [[3, 4, 5, 6], [30, 31, 32, 33], [0, 1, 2, 3]]
    assert positions_of(first, 4, grows=False).tolist() == [[3] * 4, [30] * 4, [0] * 4]
    assert positions_of(first, 6, ends, grows=True).tolist() == [3, 4, 0, 1, 2, 3]
    assert positions_of(first, 6, ends, grows=False).tolist() == [3, 3, 0, 0, 0, 0]
    made = rotated(QUERIES, cos, sin, dense, is_interleaved=is_interleaved).astype(np.float64)
    wide = QUERIES.astype(np.float64)
    x, y = slice(0, columns), slice(columns, 2 * columns)
    if is_interleaved:
        x, y = slice(0, 2 * columns, 2), slice(1, 2 * columns, 2)
    turned = (wide[..., x] + 1j * wide[..., y]) * np.exp(1j * angle)[dense][:, :, None]
    assert abs(made[..., x] - turned.real).max() < 0.02
    assert abs(made[..., y] - turned.imag).max() < 0.02
    assert (made[..., 2 * columns :] == wide[..., 2 * columns :]).all()


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("bad input must be refused before anything is compiled")

    monkeypatch.setattr(plans, "compile", fail)


NEW = {"k": K_ROWS[:, :4], "v": V_ROWS[:, :4]}
ANGLES = {"rotary_cos": np.ones((ROOM, 16), BF16), "rotary_sin": np.ones((ROOM, 16), BF16)}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a part of q": ({"qv": QUERIES}, "^qv must be None"),
    "a plan": ({"scheduler_metadata": SLOPES}, "^scheduler_metadata must be None or an array of i32"),
    "packing": ({"pack_gqa": 2}, "^pack_gqa must be None or False or True, got 2"),
    "a version": ({"ver": 1}, "^ver must be 3 or 2 or 4, got 1"),
    "two sinks": ({"sinks": SLOPES, "s_aux": SLOPES}, "^s_aux and sinks are two names"),
    "multiprocessors": ({"sm_margin": -1}, "^sm_margin must be an integer from 0 to "),
    "two tables": ({"page_table": TABLE, "block_table": TABLE}, "^page_table and block_table are two"),
    "a row that is none": (
        {"page_table": TABLE, "cache_batch_idx": i32(0, 1, 3)},
        r"^cache_batch_idx\[2\] is 3: the table has rows 0 to 2"),
    "rows of a few": ({"page_table": TABLE, "cache_batch_idx": i32(0, 1)}, r"^cache_batch_idx must be \[3\]"),
    "padding of a few": ({"page_table": TABLE, "cache_leftpad": i32(0, 1)}, r"^cache_leftpad must be \[3\]"),
    "padded chunks": (
        {"page_table": TABLE, "cache_leftpad": i32(0, 1, 2), "attention_chunk": 8},
        "^attention_chunk must be 0 with cache_leftpad"),
    "odd new keys": (
        {"k": NEW["k"][..., :60], "v": NEW["v"], "cache_seqlens": i32(1, 2, 3)}, "^k has 60 elements per head"),
    "keys alone": ({"k": NEW["k"], "cache_seqlens": LENGTHS}, "^v is missing: k comes with it"),
    "values alone": ({"v": NEW["v"], "cache_seqlens": LENGTHS}, "^k is missing: v comes with it"),
    "cosines alone": (
        {**NEW, "rotary_cos": ANGLES["rotary_cos"], "cache_seqlens": LENGTHS}, "^rotary_sin is missing"),
    "angles without keys": ({**ANGLES, "cache_seqlens": LENGTHS}, "^rotary_cos is for new keys"),
    "keys behind nothing": (NEW, "^cache_seqlens is missing: k and v are written behind"),
    "odd angles": (
        {**NEW, "cache_seqlens": LENGTHS, **{n: x[:, :12] for n, x in ANGLES.items()}},
        r"^rotary_cos must be \[positions, rotary_dim / 2\] for a rotary_dim of 16 or a multiple"),
    "other sines": (
        {**NEW, "cache_seqlens": LENGTHS, **ANGLES, "rotary_sin": ANGLES["rotary_sin"][1:]},
        r"^rotary_sin must be \[48, 16\] as rotary_cos, got \[47, 16\]"),
    "a length that is none": ({"cache_seqlens": 1.5}, "^cache_seqlens must be an integer"),
    "a negative length": ({"cache_seqlens": -1}, "^cache_seqlens must be an integer from 0"),
    "beyond the room": ({"cache_seqlens": i32(1, 2, 49)}, r"^cache_seqlens\[2\] is 49: sequence 2 of k_cache has 48"),
    "a chunk": ({"attention_chunk": -1}, "^attention_chunk must be an integer from 0"),
    "a window": ({"window_size": 3}, "^window_size must be"),
    "a scale": ({"softmax_scale": float("nan")}, "^softmax_scale must be finite and greater than 0"),
    "heads of new keys": (
        {n: x[:, :, :1] for n, x in NEW.items()} | {"cache_seqlens": i32(1, 2, 3)}, "^k has 1 heads, k_cache has"),
    "a page that is none": ({"page_table": TABLE + 99, "cache_seqlens": LENGTHS}, r"^page_table\[.*: k_cache has pages"),
    "the other name of the pages": (
        {"block_table": TABLE[0], "cache_seqlens": LENGTHS}, r"^block_table must be \[batch, columns\]"),
    "a flag for slopes": ({"alibi_slopes": True}, "^alibi_slopes must be a numpy array"),
    "too few slopes": ({"alibi_slopes": np.ones(1, np.float32)}, r"^alibi_slopes has shape \[1\]"),
    "a flag": ({"causal": "yes"}, "^causal must be True or False"),
    "ragged queries": ({"cu_seqlens_q": i32(0, 1, 2, 3)}, "^q must be an array of rank 3"),
}  # fmt: skip


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, message = REFUSED[name]
    is_paged = not given.keys().isdisjoint(("page_table", "block_table"))
    cache = (K_PAGES, V_PAGES) if is_paged else (K_ROWS, V_ROWS)
    with pytest.raises(SpecError, match=message):
        flash_attn_with_kvcache(QUERIES, *cache, **given)


@pytest.mark.usefixtures("no_launch")
def test_names_are_no_words_of_sentences() -> None:
    """Which of them are named otherwise: factors and the scale, and no word of the same letters."""
    narrow: Any = [x.astype(ml_dtypes.float8_e4m3fn) for x in (QUERIES, K_ROWS, V_ROWS)]
    one, large = np.ones(1, np.float32), np.full(1, 2.0**100, np.float32)
    message = (
        r"^k_descale makes scales of scores from 1.6.*e\+60 to .* with softmax_scale = 1.268e\+30"
    )
    with pytest.raises(SpecError, match=message):
        flash_attn_with_kvcache(
            *narrow, q_descale=one, k_descale=large, v_descale=one, softmax_scale=2.0**100
        )


def test_positions_are_those_of_flash_attention_3() -> None:
    parameters = inspect.signature(flash_attn_with_kvcache).parameters
    positions = [x.name for x in parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]
    assert positions == [
        *("q", "k_cache", "v_cache", "k", "v", "qv", "rotary_cos", "rotary_sin", "cache_seqlens"),
        *("cache_batch_idx", "cache_leftpad", "page_table", "cu_seqlens_q", "cu_seqlens_k_new"),
        *("max_seqlen_q", "rotary_seqlens", "q_descale", "k_descale", "v_descale", "softmax_scale"),
        *("causal", "window_size", "attention_chunk", "softcap", "rotary_interleaved"),
        *("scheduler_metadata", "num_splits", "pack_gqa", "sm_margin", "return_softmax_lse"),
    ]
    assert {"block_table", "alibi_slopes"} <= set(parameters) - set(positions)


@pytest.mark.long
def test_in_a_graph() -> None:
    """The function stays in the graph of `torch.compile`."""
    torch: Any = pytest.importorskip("torch")
    q, k, v = (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in (QUERIES, K_PAGES, V_PAGES)
    )
    table, lengths = torch.from_numpy(TABLE), torch.from_numpy(LENGTHS)

    def function(q: Any) -> Any:
        return flash_attn_with_kvcache(
            q, k, v, None, None, None, None, None, lengths, None, None, table,
            causal=True, return_softmax_lse=True,
        )  # fmt: skip

    torch._dynamo.reset()
    o, lse = torch.compile(function, fullgraph=True, backend="aot_eager")(q)
    check((o.double().numpy(), lse.numpy()), truth(list(QUERIES), *sequences(), causal=True))


class OnGpu:
    """An array of which everything but its elements can be seen: it is in a GPU's memory."""

    def __init__(self, dtype: str, *shape: int):
        self.shape = shape
        self.__cuda_array_interface__ = {
            "version": 3, "typestr": dtype, "shape": shape, "data": (1 << 20, False), "strides": None,
        }  # fmt: skip


def test_offsets_on_the_device_are_not_read() -> None:
    """The longest sequence is then the caller's to say, and part of the launch."""
    pages = OnGpu("<f2", 9, PAGE, KV_HEADS, DIM)
    call: dict[str, Any] = {
        "q": OnGpu("<f2", 7, HEADS, DIM),
        "k_cache": pages,
        "v_cache": pages,
        "page_table": OnGpu("<i4", BATCH, 3),
        "cache_seqlens": OnGpu("<i4", BATCH),
        "cu_seqlens_q": OnGpu("<i4", BATCH + 1),
        "device": EmulatorDevice(),
    }
    with pytest.raises(
        SpecError, match="^max_seqlen_q must be given where cu_seqlens_q is on a GPU"
    ):
        flash_attn_with_kvcache(**call)
    noted: list[Plan] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "execute", lambda plan: noted.append(plan) or {"o": None})
        flash_attn_with_kvcache(**call, max_seqlen_q=5)
    (plan,) = noted
    assert plan.steps[0].arguments["max_seqlen_q"] == 5
    assert plan.steps[0].arguments["cu_seqlens_q"] is call["cu_seqlens_q"]


def test_lengths_are_made_where_the_queries_are() -> None:
    torch = pytest.importorskip("torch")
    found = full_like(torch.empty(1, device="meta"), 2, 3)
    assert (found.device.type, tuple(found.shape)) == ("meta", (2,))
