"""Attention problems drawn at random; a failure prints the command that repeats it."""

from __future__ import annotations

import pytest

from attn_mlir.validation.numerics.draws.axes import AXES
from attn_mlir.validation.numerics.draws.draw import command, draw, failure
from attn_mlir.validation.numerics.draws.problem import SMALL_DRAWS

ENOUGH = 1000  # draws, in which every choice should come up; nothing is run
IN_SUITE = 4  # of the small ones; `make numerics` runs 300


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(IN_SUITE))
def test_draws(seed: int) -> None:
    assert IN_SUITE <= SMALL_DRAWS
    assert not (wrong := failure(seed)), wrong


def test_every_choice_comes_up() -> None:
    seen = {(axis, name) for seed in range(ENOUGH) for axis, name in draw(seed)[0].items()}
    assert seen == {(axis.name, choice.name) for axis in AXES for choice in axis.choices}


def test_a_draw_is_repeatable() -> None:
    names, problem = draw(77)
    again, same = draw(77)
    assert names == again
    for one, other in zip(problem.operands(), same.operands(), strict=True):
        assert one.tobytes() == other.tobytes()
    assert command(77).endswith("replay.py 77")


def test_fixed_choices_leave_the_others_alone() -> None:
    names, _ = draw(77)
    fixed, _ = draw(77, {"lse": "no" if names["lse"] == "yes" else "yes"})
    assert [name for name in names if names[name] != fixed[name]] == ["lse"]
    assert command(77, {"lse": "no"}).endswith("77 --set 'lse=no'")


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"colour": "red"}, "no axis .*'colour'.*: there are dtype, "),
        ({"dtype": "f64"}, "dtype is one of bf16, f16, e4m3, e5m2, got 'f64'"),
        ({"head sizes": "256x256", "out_dtype": "f32"}, "out_dtype = f32 does not fit"),
    ],
)
def test_choices_that_there_are_not(fixed: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(0, fixed)


def test_a_failing_draw_is_told_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "attn_mlir.validation.numerics.draws.problem.Problem.run", lambda self: 1 / 0
    )  # pyright: ignore
    lines = failure(5).splitlines()
    assert lines[0] == command(5) and lines[-1].strip() == "ZeroDivisionError: division by zero"
