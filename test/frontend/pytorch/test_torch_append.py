"""`append_kv` with tensors of PyTorch, and in the graphs of `torch.compile`: one operator, which says what it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import flashinfer  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch.appending import APPEND, append_call_op  # noqa: E402
from attn_mlir.validation.numerics.torch_operands import i32, normal  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("graphs_afresh")]
HEADS, DIM, PAGE, PAGES, ROOM = 2, 64, 16, 9, 48
TABLE = [[3, 1, 5], [0, 2, 4], [8, 7, 6]]
USED = [40, 17, 48]  # the new ones counted
NEW = 2


def turned(x: Any, cos: Any, sin: Any, positions: Any) -> Any:
    """[..., heads, D] with its halves rotated, in float32."""
    c, s = cos[positions][..., None, :], sin[positions][..., None, :]
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


POSITIONS = [[n - NEW + i for i in range(NEW)] for n in USED]
SLOTS = [
    TABLE[b][p // PAGE] * PAGE + p % PAGE for b, row in enumerate(POSITIONS) for p in row
]  # of pages
ANGLE = torch.rand(ROOM, DIM // 2) * 6


def paged(k: Any, v: Any) -> Any:
    return am.PagedKV(k, v, i32(*TABLE), i32(*USED))


def one_pool(k: Any, v: Any) -> Any:
    """Both sides are views of one tensor; `v` is not looked at."""
    return am.PagedKV(k, None, i32(*TABLE), i32(*USED))


def compressed(k: Any, v: Any) -> Any:
    pages = [page for row, n in zip(TABLE, USED, strict=True) for page in row[: -(-n // PAGE)]]
    last = i32(*((n - 1) % PAGE + 1 for n in USED))
    return am.PagedKV(k, v, indptr=i32(0, 3, 5, 8), indices=i32(*pages), last_page_len=last)


def by_lengths(cache: Any, k: Any, v: Any) -> None:
    am.append_kv(cache, k, v)


def by_positions(cache: Any, k: Any, v: Any) -> None:
    index = torch.arange(3, dtype=torch.int32).repeat_interleave(NEW)
    places = i32(*POSITIONS).flatten()
    am.append_kv(cache, k.flatten(0, 1), v.flatten(0, 1), places, batch_indices=index)


def by_slots(cache: Any, k: Any, v: Any) -> None:
    flat = k.flatten(0, 1), v.flatten(0, 1)
    am.append_kv(cache, *flat, slot_mapping=torch.tensor(SLOTS), rotary=None)


def by_offsets_rotated(cache: Any, k: Any, v: Any) -> None:
    am.append_kv(
        cache,
        k_new=k.flatten(0, 1),
        v_new=v.flatten(0, 1),
        cu_seqlens=i32(0, 2, 4, 6),
        rotary=(ANGLE.cos(), ANGLE.sin(), False),
    )


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., None], bool]] = {
    "pages": (paged, by_lengths, False),
    "one pool": (one_pool, by_positions, False),
    "slots": (paged, by_slots, False),
    "compressed rows, rotated": (compressed, by_offsets_rotated, True),
}


def expected(pool: Any, tokens: Any) -> Any:
    """The pool with the tokens [3, NEW, heads, D] where they belong."""
    made = pool.clone().flatten(0, 1)
    made[torch.tensor(SLOTS)] = tokens.flatten(0, 1).to(pool.dtype)
    return made.view_as(pool)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_writes_what_a_reference_writes(name: str, is_compiled: bool) -> None:
    cache_of, call, is_rotated = CALLS[name]
    pools = normal(PAGES, 2, PAGE, HEADS, DIM)
    sides = pools.unbind(1) if cache_of is one_pool else [x.clone() for x in pools.unbind(1)]
    before = [x.clone() for x in sides]
    new = [normal(3, NEW, HEADS, DIM) for _ in range(2)]

    def function(k: Any, v: Any, k_new: Any, v_new: Any) -> Any:
        call(cache_of(k, v), k_new * 2, v_new)
        return k.sum()

    run = torch.compile(function, fullgraph=True, backend="aot_eager") if is_compiled else function
    run(*((pools, None) if cache_of is one_pool else sides), *new)
    keys = new[0] * 2
    if is_rotated:
        keys = turned(keys, ANGLE.cos(), ANGLE.sin(), torch.tensor(POSITIONS))
    for side, old, tokens in zip(sides, before, (keys, new[1]), strict=True):
        wanted = expected(old, tokens)
        assert torch.allclose(side.float(), wanted.float(), rtol=2**-7, atol=2**-9)
        is_old = torch.ones(PAGES * PAGE, dtype=torch.bool)
        is_old[torch.tensor(SLOTS)] = False
        assert torch.equal(side.flatten(0, 1)[is_old], old.flatten(0, 1)[is_old])
        assert is_rotated or torch.equal(side, wanted)


def test_attention_sees_what_was_appended_before_it_in_the_graph() -> None:
    """Nothing is moved past an append, nor is one dropped whose result nobody looks at."""
    k, v = normal(PAGES, PAGE, HEADS, DIM), normal(PAGES, PAGE, HEADS, DIM)
    q, new = normal(3, 1, 4, DIM), [normal(3, NEW, HEADS, DIM) for _ in range(2)]

    def function(k: Any, v: Any) -> tuple[Any, Any]:
        cache = paged(k, v)
        before = am.attention(q, cache)
        am.append_kv(cache, *new)
        return before, am.attention(q, cache)

    sides = [x.clone() for x in (k, v)]
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(k, v)
    wanted = function(*sides)
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(sides, (k, v), strict=True))
    assert not torch.equal(*found)


def test_lengths_that_change_need_no_other_graph() -> None:
    k, v = normal(PAGES, PAGE, HEADS, DIM), normal(PAGES, PAGE, HEADS, DIM)
    cache = paged(k, v)
    compiled = torch.compile(lambda x: am.append_kv(cache, x, x), fullgraph=True, backend="eager")
    for end in (33, 2):
        cache.seqused.copy_(i32(end, end, end))
        new = normal(3, NEW, HEADS, DIM)
        compiled(new)
        for b, row in enumerate(TABLE):
            page, place = row[(end - 1) // PAGE], (end - 1) % PAGE
            assert torch.equal(k[page, place], new[b, -1])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_flashinfers_name_stays_in_the_graph() -> None:
    pools, new = normal(PAGES, 2, PAGE, HEADS, DIM), normal(3, HEADS, DIM)
    rows = (i32(3, 1, 5, 0, 2, 8), i32(0, 3, 5, 6), i32(8, 1, 16))
    index, places = i32(0, 1, 2), i32(39, 16, 15)

    def function(new: Any) -> None:
        flashinfer.append_paged_kv_cache(new, new, index, places, pools, *rows)

    torch.compile(function, fullgraph=True, backend="eager")(new)
    for side in pools.unbind(1):
        found = torch.stack([side[5, 7], side[2, 0], side[8, 15]])
        assert torch.equal(found, new)


REFUSED = {
    "positions of i64": ({"positions": torch.zeros(3, NEW, dtype=torch.int64)}, "positions must be"),
    "a pair of angles": ({"rotary": (ANGLE, ANGLE)}, r"rotary must be \(cos, sin, interleaved\)"),
    "sines of another shape": ({"rotary": (ANGLE, ANGLE[1:], True)}, "rotary's cos and sin must agree"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_fakes_are_refused_as_tensors_are(name: str) -> None:
    options, message = REFUSED[name]
    k, v = normal(PAGES, PAGE, HEADS, DIM), normal(PAGES, PAGE, HEADS, DIM)
    new = normal(3, NEW, HEADS, DIM)

    def function(k: Any, v: Any, new: Any) -> None:
        am.append_kv(paged(k, v), new, new, **options)

    with pytest.raises(SpecError, match=message):
        function(k, v, new)
    with pytest.raises(Exception, match=message):
        torch.compile(function, fullgraph=True, backend="eager")(k, v, new)


def test_the_operator_says_what_it_changes() -> None:
    for name in ("positions", "slot_mapping", "cos", "interleaved", "page_table", "leftpad"):
        assert name in APPEND.arguments
    schema = torch.ops.attn_mlir.append_call.default._schema
    written = [x.name for x in schema.arguments if x.alias_info and x.alias_info.is_write]
    assert written == ["k", "v", "k_scale", "v_scale"] and not schema.returns
    k, v, new = (normal(PAGES, PAGE, HEADS, DIM) for _ in range(3))
    table = {"page_table": i32(*TABLE), "seqused": i32(*USED)}
    with pytest.raises(SpecError, match="^leftpad is no field of PagedKV"):
        append_call_op(k, v, new[:3, :NEW], new[:3, :NEW], "PagedKV", **table, leftpad=i32(0, 0, 0))
    torch.library.opcheck(
        append_call_op,
        (k, v, new[:3, :NEW], new[:3, :NEW], "PagedKV"),
        table,
        test_utils=("test_schema", "test_faketensor"),
    )
