"""Errors name the arguments of a call as its caller does."""

from __future__ import annotations

import pytest

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.naming import in_words, renamed


def test_words_are_whole_and_replaced_at_once() -> None:
    names = {"k": "k_cache", "k_new": "k", "k_scale": "k_descale"}
    message = "k_new[0] is no k of k_scale_table, like k and k_scale: pass k="
    wanted = "k[0] is no k_cache of k_scale_table, like k_cache and k_descale: pass k_cache="
    assert in_words(message, names) == wanted
    assert in_words(message, {}) == message


def test_what_is_refused_keeps_its_place_and_other_errors_their_words() -> None:
    def refuses(q: int) -> int:
        if q < 0:
            raise TargetError("no q")
        if q > 1:
            raise SpecError(f"q must be 0 or 1, got {q}")
        return q

    called = renamed(refuses, q="query")
    assert called.__name__ == "refuses" and called(1) == 1
    with pytest.raises(SpecError, match="^query must be 0 or 1, got 2") as caught:
        called(2)
    assert caught.traceback[-1].name == "refuses" and caught.value.__cause__ is None
    with pytest.raises(TargetError, match="^no q"):
        called(-1)
