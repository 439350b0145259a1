"""Agreement of two ranks, which are threads of this process: what is told when, and who failed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")

from attn_mlir.distributed import layouts, members  # noqa: E402
from attn_mlir.distributed.members import Members  # noqa: E402
from attn_mlir.errors import RankError, SpecError  # noqa: E402

Call = Callable[[], Any]


class Pair:
    """Two ranks over one store, whose calls wait for each other for half a second."""

    def __init__(self) -> None:
        options = SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=0.5)))

        def backend(_: Any) -> Any:
            return options

        given: dict[str, Any] = {"_device_types": ["cpu"], "_get_backend": backend}
        self.ranks: list[Any] = [Members(SimpleNamespace(rank=x, **given)) for x in (0, 1)]

    def each(self, call: Callable[[Members], Any]) -> list[Any]:
        """What both return or raise."""
        return self.both(*(lambda rank=rank: call(rank) for rank in self.ranks))

    @staticmethod
    def both(*calls: Call) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            made = [pool.submit(call) for call in calls]
            return [x.exception() or x.result() for x in made]

    def agree(self, *tokens: Any, follows: bool, **shared: Any) -> list[Any]:
        """Both make a call of so many tokens."""
        first, second = (
            lambda rank=rank, own=own: rank.agree("f", shared, own, follows=follows)
            for rank, own in zip(self.ranks, tokens, strict=True)
        )
        return self.both(first, second)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    store, names = dist.HashStore(), ("PrefixStore", "DistError")

    def store_of(_: Any) -> Any:
        return store

    def rank_of(group: Any) -> int:
        return group.rank

    def two(_: Any) -> int:
        return 2

    ours = {"get_rank": rank_of, "get_world_size": two, **{x: getattr(dist, x) for x in names}}
    monkeypatch.setattr(members, "dist", SimpleNamespace(**ours))
    monkeypatch.setattr(members, "c10d", SimpleNamespace(_get_process_group_store=store_of))
    return Pair()


def test_tokens_are_told_in_each_call_unless_they_follow(pair: Pair) -> None:
    assert pair.agree(4, 5, follows=False) == [(4, 5)] * 2
    assert pair.agree(4, 6, follows=False) == [(4, 6)] * 2
    assert pair.agree(4, 4, follows=True, length=8) == [(4, 4)] * 2
    for rank in pair.ranks:  # one after the other: nobody waits
        assert rank.agree("f", {"length": 8}, 4, follows=True) == (4, 4)
    assert pair.agree(4, 3, follows=True, length=7) == [(4, 3)] * 2


def test_kernels_are_made_anew_where_another_rank_has_other_tokens(pair: Pair) -> None:
    made: list[int] = []
    for tokens, count in (((4, 5), 2), ((4, 5), 2), ((4, 6), 4), ((4, 6), 4)):
        assert pair.agree(*tokens, follows=False) == [tokens] * 2
        assert pair.each(lambda x: x.prepare(lambda: made.append(x.rank))) == [None] * 2
        assert len(made) == count


def test_what_differs_is_named_on_both_ranks(pair: Pair) -> None:
    first, second = (lambda rank=x: rank.agree("f", {"x": rank.rank}, 4) for x in pair.ranks)
    for error in pair.both(first, second):
        assert isinstance(error, SpecError)
        assert str(error) == "x must be the same on all ranks: rank 0 has 0, rank 1 has 1"


@pytest.mark.parametrize("refusing", [0, 1])
def test_after_a_refusal_the_call_is_compared_again(pair: Pair, refusing: int) -> None:
    """In the check of arguments, and in the preparation of kernels."""

    def refuse() -> None:
        raise ValueError("mine")

    def check(rank: Members) -> Any:
        with rank.checked():
            if rank.rank == refusing:
                refuse()
        return rank.agree("f", {"other": 1}, 4)

    def prepare(rank: Members) -> None:
        rank.prepare(refuse if rank.rank == refusing else lambda: None)

    for call in (check, prepare):
        assert pair.agree(4, 4, follows=True) == [(4, 4)] * 2
        found = pair.each(call)
        assert isinstance(found[refusing], ValueError)
        assert isinstance(other := found[1 - refusing], RankError)
        assert str(other) == f"rank {refusing} refused the call: ValueError: mine"
        before = [rank._calls for rank in pair.ranks]
        assert pair.agree(4, 4, follows=True) == [(4, 4)] * 2
        assert [rank._calls for rank in pair.ranks] == [x + 1 for x in before]
        assert len(set(before)) == 1


@pytest.mark.parametrize("calling", [0, 1])
def test_a_rank_that_makes_no_call_is_named(pair: Pair, calling: int) -> None:
    text = f"^rank {1 - calling} did not make call 1 of the group within 0.5 s"
    with pytest.raises(RankError, match=text):
        pair.ranks[calling].agree("f", {}, 4)


def test_what_all_have_read_is_deleted(pair: Pair) -> None:
    for tokens in range(9):
        assert pair.agree(tokens, 1, follows=False) == [(tokens, 1)] * 2
    kept = {key for rank in pair.ranks for key in rank._posted}
    every = [f"call/{call}/{rank}" for call in range(20) for rank in (0, 1)]
    assert {x for x in every if pair.ranks[0]._store.check([x])} == kept and len(kept) == 2


def test_a_length_that_is_told_is_compared_and_is_not_asked_again(pair: Pair) -> None:
    def length(rank: Members, tokens: int, told: int | None) -> Any:
        return layouts.agreed_length(rank, "f", {}, tokens, "contiguous", told)

    def found(tokens: tuple[int, int], *told: int | None) -> list[Any]:
        return pair.each(lambda x: length(x, tokens[x.rank], told[x.rank]))

    text = "length must be the same on all ranks: rank 0 has 7, rank 1 has 8"
    assert [str(x) for x in found((4, 4), 7, 8)] == [text] * 2
    assert found((4, 3), None, None) == [7, 7]
    assert found((4, 4), None, None) == [8, 8]
    assert found((4, 3), 7, 7) == [7, 7]
    assert [length(x, 4 - x.rank, 7) for x in pair.ranks] == [7, 7]
    for told, tokens in ((None, (3, 4)), (7, (3, 4)), (7, (4, 4))):
        for error in found(tokens, told, told):
            assert isinstance(error, SpecError)
            assert f"the ranks have {list(tokens)} tokens, which are no shards of 7" in str(error)
