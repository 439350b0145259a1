"""Functions with another library's arguments: which value of which kind of object is taken."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from attn_mlir.adapters import (
    REQUIRED,
    Options,
    adapter,
    arguments_of,
    check_needs,
    neutral,
    passed,
    used,
)
from attn_mlir.errors import SpecError

TABLE = {
    **neutral("dropout_p", 0, instead="there is none"),
    **neutral("mode", "NONE", instead="do it before"),
    **neutral("flag", False, instead="leave it"),
    **neutral("table hint", None, instead="leave it out"),
}


def attend(operands: Any, *, scale: float = 1.0) -> Any:
    return operands, scale


@adapter(TABLE, "q mode k dropout_p flag", "table", options=attend)
def function(q: Any, k: Any = 5, *, own: Any = None, **options: Any) -> Any:
    """A function that knows nothing of what has no effect."""
    return attend((q, k, own), **options)


def test_arguments_of_the_other_library() -> None:
    assert function(1, "NONE", 2, own=3, table=None, scale=4.0) == ((1, 2, 3), 4.0)
    assert str(inspect.signature(function)) == (
        "(q, mode='NONE', k=5, dropout_p=0, flag=False, *, own=None, scale=1.0, table=None)"
    )
    assert function.__doc__ == "A function that knows nothing of what has no effect."
    found = {name for name, row in arguments_of(function).items() if row is None}
    assert found == {"q", "k", "own", "scale"}
    assert arguments_of(attend) == {"operands": None, "scale": None}


@pytest.mark.parametrize(
    "given",
    [
        {"dropout_p": 0.0},
        {"dropout_p": np.float32(0)},
        {"dropout_p": np.zeros((), np.int64)},
        {"dropout_p": -0.0},
        {"flag": np.False_},
        {"flag": np.zeros((), bool)},
        {"mode": "".join(["NO", "NE"])},
    ],
)
def test_what_asks_for_nothing(given: dict[str, Any]) -> None:
    assert function(1, **given) == ((1, 5, None), 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dropout_p": None}, "^dropout_p must be 0, got None: there is none"),
        ({"dropout_p": False}, "^dropout_p must be 0, got False"),
        ({"dropout_p": "0"}, "^dropout_p must be 0, got '0'"),
        ({"dropout_p": np.zeros(1)}, "^dropout_p must be 0, got array"),
        ({"dropout_p": float("nan")}, "^dropout_p must be 0, got nan"),
        ({"flag": 0}, "^flag must be False, got 0: leave it"),
        ({"flag": None}, "^flag must be False, got None"),
        ({"flag": True}, "^flag must be False, got True"),
        ({"mode": "none"}, "^mode must be NONE, got 'none': do it before"),
        ({"mode": np.array(["NONE"])}, "^mode must be NONE, got array"),
        ({"table": np.ones(2)}, "^table must be None, got array.*: leave it out"),
        ({"hint": None}, "^function has no argument hint"),
        ({"k_scale": 1.0}, "^function has no argument k_scale"),
        ({"q": 1}, "^function got q twice, by position and by name"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        function(1, **given)


def test_positions() -> None:
    with pytest.raises(SpecError, match="^function takes at most 5 arguments by position, got 6"):
        function(*range(6))
    with pytest.raises(TypeError, match="missing 1 required"):
        function(k=1)


def ours(*operands: Any, scale: Any, side: Any, **others: Any) -> Any:
    """A function of ours, which refuses a scale of 0."""
    if scale == 0:
        raise SpecError("scale must not be 0, as sinks may be")
    return operands, {"scale": scale, "side": side, **others}


def both(left: int, right: int) -> tuple[int, int]:
    return left, right


OPTIONS = Options(
    [
        used("scale", softmax_scale=REQUIRED),
        used("side", both, left=1, right=2),
        used("sinks", sink=None, s_aux=None),
        *passed("stream device", 7),
    ]
)


@adapter(TABLE, "q softmax_scale mode", options=OPTIONS)
def by_table(q: Any, **given: Any) -> Any:
    return OPTIONS.call(ours, q, given=given, further=3)


def test_options_by_table() -> None:
    """Names, meanings of several arguments, two names of one argument, and defaults."""
    assert str(inspect.signature(by_table)) == (
        "(q, softmax_scale, mode='NONE', *, left=1, right=2, sink=None, s_aux=None, stream=7, device=7)"
    )
    defaults = {"scale": 2, "side": (1, 2), "sinks": None, "stream": 7, "device": 7, "further": 3}
    assert by_table(0, 2) == ((0,), defaults)
    given = {"right": 5, "s_aux": "s", "device": None}
    changed = {"side": (1, 5), "sinks": "s", "device": None}
    assert by_table(0, softmax_scale=2, **given) == ((0,), defaults | changed)


def test_errors_name_what_was_given() -> None:
    with pytest.raises(SpecError, match="^softmax_scale must not be 0, as sink may be$"):
        by_table(0, 0)
    with pytest.raises(SpecError, match="^softmax_scale must not be 0, as s_aux may be$"):
        by_table(0, 0, s_aux=1)
    with pytest.raises(SpecError, match="^sink and s_aux are two names of one argument: pass one$"):
        by_table(0, 1, sink=1, s_aux=1)
    with pytest.raises(
        TypeError, match="by_table\\(\\) missing 1 required argument: 'softmax_scale'"
    ):
        by_table(0)
    missing = "by_table\\(\\) missing 2 required arguments: 'q', 'softmax_scale'"
    with pytest.raises(TypeError, match=missing):
        by_table()


def test_arguments_that_need_another() -> None:
    rows = (("k", "v", "v is missing"), ("cos", "k", "cos is for k"))
    check_needs({"k": 0, "v": 0, "cos": None}, rows)
    for given, message in (({"k": 1}, "v is missing"), ({"v": 1, "cos": 1}, "cos is for k")):
        with pytest.raises(SpecError, match=f"^{message}$"):
            check_needs({"k": None, "v": None, "cos": None} | given, rows)
