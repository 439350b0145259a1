"""Integers of 8 and 16 bits in modifiers: the traced program against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attn_mlir import trace as tr  # noqa: E402
from attn_mlir.arrays import host_arrays  # noqa: E402
from attn_mlir.dialect.attn.programs.evaluation import evaluate  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402

DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool)

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "window": lambda x, y: x - y <= 3,
    "distance": lambda x, y: torch.abs(x - y),
    "mul": lambda x, y: torch.mul(x, y),
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "alpha": lambda x, y: torch.add(x, y, alpha=3),
    "rsub": lambda x, y: torch.rsub(x, y),
    "bits": lambda x, y: (x & y) | ~(x ^ y),
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y) + x,
    "type_as": lambda x, y: x.type_as(y) + y,
    "masked": lambda x, y: torch.where(x == y, x + x, x * y),
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "numbers outside the type": lambda x: (x + 300) - (1000 * x),
    "bits outside the type": lambda x: (x & -1) ^ 300,
    "by a number outside the type": lambda x: x // 300 + x % 77,
    "alpha": lambda x: torch.add(x, 50, alpha=3),
    "square": lambda x: torch.square(x) + x.pow(3) + x**2.0,
    "neg": lambda x: torch.neg(x) - abs(x),
    "invert": lambda x: torch.bitwise_not(x) * 2,
    "methods": lambda x: x.byte() - x.char() * 2 + x.short() * 300,
    "int": lambda x: x.int() * 1000 + x.long(),
    "to": lambda x: x.to(torch.int8) + x.to(torch.uint8),
    "full": lambda x: torch.full_like(x, 100) + torch.ones_like(x) * 100,
    "sign": lambda x: torch.sign(x) + 127,
    "relu": lambda x: torch.relu(x) * 2,
    "clamp": lambda x: x.clamp(2, 90) * 3,
    "a number shifted": lambda x: torch.bitwise_left_shift(1, x & 7),
    "a truth value": lambda x: x + (x > 3) + True,
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "where": lambda x: torch.where(x > 3, x, 70000),
    "clamp": lambda x: x.clamp(max=70000),
    "full": lambda x: torch.full_like(x, 70000),
    "masked_fill": lambda x: x.masked_fill(x > 3, 70000),
}
DISPUTED: dict[str, Callable[[Any], Any]] = {  # torch wraps the number around, numpy does not
    "less": lambda x: x < 70000,
    "equal": lambda x: x == -70000,
}


def numbers(dtype: Any) -> Any:
    """Numbers of a type: its ends, and those between that wrap in other types."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    info = torch.iinfo(dtype)
    middle = (0, 1, 2, 3, 44, 100, 127, 128, 200, 255, 300, -1, -2, -77, -128, -3000, -32768)
    return torch.tensor([x for x in middle if info.min <= x <= info.max], dtype=dtype)


def traced(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """What the program of a function of one element of each tensor gives, [len(x), len(y)]."""
    program, arrays = tr.trace(lambda s, b, h, q, k: s * 0 + function(x[q], y[k]))
    assert program is not None
    at: dict[str, Any] = {
        "score": torch.zeros(len(x), len(y), dtype=torch.float64).numpy(), "batch": 0, "head": 0,
        "q": torch.arange(len(x))[:, None].numpy(), "k": torch.arange(len(y))[None, :].numpy(),
    }  # fmt: skip
    return torch.from_numpy(evaluate(program, at, host_arrays(arrays)).score)


@pytest.mark.parametrize("name", BINARY)
def test_pairs_of_types_as_torch(name: str) -> None:
    function = BINARY[name]
    for left in DTYPES:
        for right in DTYPES:
            x, y = numbers(left), numbers(right)
            if torch.int32 in (left, right) and {left, right} <= {torch.int32, torch.bool}:
                continue  # neither integers of 8 or 16 bits nor truth values alone
            y = y[y != 0] if name in ("floor", "trunc", "remainder", "fmod") else y
            try:
                direct = function(x[:, None].expand(-1, len(y)), y[None, :].expand(len(x), -1))
            except RuntimeError:  # torch subtracts no truth values
                continue
            made = traced(function, x, y)
            assert torch.equal(made, direct.double()), (left, right, made, direct)


@pytest.mark.parametrize("name", UNARY)
def test_numbers_as_torch(name: str) -> None:
    function = UNARY[name]
    for dtype in DTYPES[:3]:
        x = numbers(dtype)
        direct = function(x)
        made = traced(lambda one, _: function(one), x, x[:1])[:, 0]
        assert torch.equal(made, direct.double()), (dtype, made, direct)


@pytest.mark.parametrize("name", [*REFUSED, *DISPUTED])
@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_numbers_that_the_type_does_not_hold_are_refused(name: str, dtype: Any) -> None:
    function = (REFUSED | DISPUTED)[name]
    x = numbers(dtype)
    if name in REFUSED:
        with pytest.raises(RuntimeError, match="without overflow"):
            function(x)
    with pytest.raises(SpecError, match=r"uses -?70000 with a number of u?int.*, which goes from"):
        traced(lambda one, _: function(one), x, x[:1])
