"""Functions with another library's arguments: which value of which kind of object is taken."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from attn_mlir.adapters import adapter, arguments_of, neutral
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
