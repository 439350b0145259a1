"""What a traced function depends on goes into the key of a call, or the function is traced every time."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api import functions
from attn_mlir.api.plan_cache import READER
from attn_mlir.runtime.call.signatures import Signature
from attn_mlir.runtime.call.tensors import view
from attn_mlir.trace import trace, where

SHIFT, OTHERS = 1.0, types.ModuleType("others")


class Modifier:
    """A score modifier of everything that a function depends on, each of which may change."""

    def __init__(self) -> None:
        self.number: Any = 1.0
        self.tables = [np.zeros(4, np.float32), np.zeros((2, 3), np.int32)]
        self.is_inner = False
        self.default: Any = 2.0
        self.keyword: Any = 3
        self.shared = self.is_first = False

    def made(self) -> Callable[..., Any]:
        """A new function, the one before is gone."""
        number, (slopes, ids) = self.number, self.tables
        second = ids if self.shared else ids.copy()
        third = ids if self.is_first else second

        def inner(x: Any) -> Any:
            return x * number if self_is_inner else x + number

        self_is_inner = self.is_inner

        def modified(
            score: Any, b: Any, h: Any, q: Any, k: Any, x: Any = 0.0, *, y: Any = 0
        ) -> Any:
            same = (ids[b, 0] == second[b, 1]) & (third[b, 0] == 0)
            return where(same, inner(score) + x, score * slopes[h] - y + SHIFT)

        modified.__defaults__, modified.__kwdefaults__ = (self.default,), {"y": self.keyword}
        return modified

    def change(self, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
        """Changes one thing, perhaps back to what it was."""
        numbers = (0.0, -0.0, 1.0, 1, True, 2.5, np.float32(2.5), np.float64(2.5), np.int64(1))
        pick: Callable[[Any], Any] = lambda values: values[random.integers(len(values))]  # noqa: E731
        match random.integers(9):
            case 0:
                self.number = pick(numbers)
            case 1:
                self.default = pick(numbers)
            case 2:
                self.keyword = pick(numbers)
            case 3:
                self.is_inner = not self.is_inner
            case 4:
                self.shared = not self.shared
            case 7:
                self.is_first = not self.is_first
            case 5:
                dtype, length = pick((np.float32, np.float16)), pick((4, 5))
                self.tables[0] = np.zeros(length + 4, dtype)[pick((0, 1, 2)) :][:length]
            case 6:
                self.tables[1] = (
                    np.zeros((3, 2), np.int32).T if random.random() < 0.5 else self.tables[1].copy()
                )
            case _:
                monkeypatch.setitem(globals(), "SHIFT", pick(numbers))


def key_of(function: Any) -> tuple[Any, ...] | None:
    """What of a function goes into the key of a call, and None where it cannot be told."""
    signature = Signature()
    is_read = READER.add(signature, (function,))
    return tuple(signature.key) if is_read else None


def traced(function: Any) -> tuple[Any, ...]:
    """What tracing makes of a function: the program, and which array of its signature each of its own is."""
    signature = Signature()
    assert READER.add(signature, (function,))
    program, arrays = trace(function)
    assert program is not None
    places = [signature.addresses.index(view(x, name).address) for name, x in arrays.items()]
    return program.canonical(), places


@pytest.mark.parametrize("seed", range(4))
def test_functions_of_one_key_are_traced_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn: everything that a function depends on changes, and comes back, in new functions."""
    random, modifier, again = np.random.default_rng(seed), Modifier(), 0
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for _ in range(150):
        if random.random() < 0.7:
            modifier.change(random, monkeypatch)
        made = modifier.made()
        key, found = key_of(made), traced(made)
        assert key is not None
        again += key in known
        assert known.setdefault(key, found) == found
        del made, found  # so that the next function may have the address of this one
    assert again > 30 and len(set(map(repr, known.values()))) > 20


def test_a_key_follows_what_is_set_anew() -> None:
    """The code, the defaults and the attributes of a function."""
    factor: Any = 1.0

    def scaled(score: Any, b: Any, h: Any, q: Any, k: Any, x: Any = 0.0) -> Any:
        return score * factor + x

    def other(score: Any, b: Any, h: Any, q: Any, k: Any, x: Any = 0.0) -> Any:
        return score - factor * x

    before = key_of(scaled)
    scaled.__defaults__ = (1.0,)
    assert key_of(scaled) not in (before, None)
    scaled.__defaults__, scaled.__code__ = (0.0,), other.__code__
    assert key_of(scaled) not in (before, None)
    vars(other)["extents"] = (am.mods.Extents("ids", (2, 5), ("batch", "sk")),)
    assert key_of(other) not in (key_of(scaled), None)


def nothing(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score


def importing(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    import math

    return score * math.pi


def of_module(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * OTHERS.number


def of_random(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * np.random.random()


def holding(held: Any) -> Callable[..., Any]:
    return lambda score, b, h, q, k: score + q * (held is None)


UNREAD: dict[str, Callable[..., Any]] = {
    "a list": holding([2.0]),
    "an object": holding(types.SimpleNamespace(x=2.0)),
    "a dictionary": holding({"x": 2.0}),
    "a method": holding(Modifier().made),
    "a function with a list": holding(lambda y, held=[2.0]: y * held[0]),
    "a function of an object": holding(np.random.default_rng(0).random),
    "a module": of_module,
    "a random number": of_random,
    "an import": importing,
    "wraps": functools.wraps(np.where)(holding([2.0])),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_may_change_unseen_is_traced_every_time(name: str) -> None:
    assert key_of(UNREAD[name]) is None and key_of(nothing) is not None


def test_tuples_of_values_are_told_by_their_contents() -> None:
    """Equal ones are the same in keys, whatever object they are, and those with arrays are not kept."""
    array = np.zeros(4, np.float32)

    def holding(held: Any) -> Any:
        def modified(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return score + held[0]

        return key_of(modified)

    def code_of(value: Any) -> Any:
        found = holding(value)
        assert found is not None
        return found

    base, *again = (code_of((1.0, ("a", (number, True)))) for number in (2, 2))
    assert again == [base]
    for other in (
        (1.0, ("a", (2, 1))),
        (1, ("a", (2, True))),
        (1.0, ["a"]),
        (-1.0, ("a", (2, True))),
    ):
        assert holding(other) != base
    assert code_of((0.0,)) != code_of((-0.0,))
    met = len(functions._tuples)  # pyright: ignore[reportPrivateUsage]
    assert code_of((array, 1)) != code_of((array, 2))
    assert len(functions._tuples) == met  # pyright: ignore[reportPrivateUsage]
