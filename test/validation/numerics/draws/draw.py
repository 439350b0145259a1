"""From a seed to a problem: one choice per axis."""

from __future__ import annotations

from collections.abc import Mapping

from .axes import AXES
from .problem import Problem

REPLAY = "python test/validation/numerics/draws/replay.py"


def draw(seed: int, fixed: Mapping[str, str] | None = None) -> tuple[dict[str, str], Problem]:
    """The choices of a seed, by axis, and the problem that they make.

    Args:
      seed: any integer from 0 on.
      fixed: choices that are not left to chance, by axis; others stay what they were, unless they
        do not fit any more.

    Raises:
      ValueError: an axis or a choice that there is not, or one that does not fit.
    """
    fixed = dict(fixed or {})
    unknown = fixed.keys() - {axis.name for axis in AXES}
    if unknown:
        raise ValueError(f"no axis {sorted(unknown)}: there are {', '.join(a.name for a in AXES)}")
    problem = Problem(seed)
    names: dict[str, str] = {}
    for axis in AXES:
        if axis.name in fixed:
            choice = axis.choice(fixed[axis.name])
            if not choice.fits(problem):
                raise ValueError(f"{axis.name} = {choice.name} does not fit {names}")
        elif axis.plain and problem.random(f"{axis.name} at all").random() < axis.plain:
            choice = axis.choices[0]
        else:
            order = problem.random(axis.name).permutation(len(axis.choices))
            drawn = (choice for i in order if (choice := axis.choices[i]).fits(problem))
            choice = next(drawn, axis.choices[0])  # plain ones may exceed the cost
        choice.apply(problem)
        names[axis.name] = choice.name
    return names, problem


def plain(seed: int, chosen: Mapping[str, str]) -> Problem:
    """The problem with these choices, by axis, and plain ones everywhere else.

    Args:
      seed: of the numbers.

    Raises:
      ValueError: as `draw`.
    """
    return draw(seed, {axis.name: axis.choices[0].name for axis in AXES} | dict(chosen))[1]


def interesting(names: Mapping[str, str]) -> dict[str, str]:
    """The choices that are not plain."""
    plain = {axis.name: axis.choices[0].name for axis in AXES}
    return {name: value for name, value in names.items() if value != plain[name]}


def command(seed: int, fixed: Mapping[str, str] | None = None) -> str:
    """What repeats a draw."""
    settings = [f"--set '{name}={value}'" for name, value in (fixed or {}).items()]
    return " ".join([REPLAY, str(seed), *settings])


def failure(seed: int, fixed: Mapping[str, str] | None = None) -> str:
    """Runs a draw: what is wrong, with the command that repeats it; empty if nothing is."""
    names, problem = draw(seed, fixed)
    text = ", ".join(f"{name}: {value}" for name, value in names.items())
    try:
        wrong = problem.run().wrong
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if not wrong:
        return ""
    return f"{command(seed, fixed)}\n  {text}\n  {wrong}"


def shrunk(seed: int) -> tuple[dict[str, str], str]:
    """A failing draw with as many plain choices as it fails with, and how that fails."""
    names, _ = draw(seed)
    wrong = failure(seed)
    for axis in AXES:
        plain = axis.choices[0].name
        if names[axis.name] == plain:
            continue
        trial = {**names, axis.name: plain}
        try:
            found = failure(seed, trial)
        except ValueError:  # what is left does not fit
            continue
        if found:
            names, wrong = trial, found
    return names, wrong
