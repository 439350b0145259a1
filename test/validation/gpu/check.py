"""What a check of a GPU is: a function, the chips it is for, and the kernels that it asks for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_mlir.runtime.devices import driver

HOPPER, BLACKWELL = "sm_90a", "sm_100a"


class Skipped(Exception):
    """A check has nothing to do here; the text says why."""


@dataclass(frozen=True)
class Machine:
    """The GPU that is checked, and the target that its kernels are compiled for."""

    gpu: driver.Gpu
    target: str


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
      name: of the function.
      run: raises AssertionError where the GPU is wrong, Skipped where it cannot tell.
      targets: chips that it is for.
      asks: asks for its kernels for a target, on a machine that may have no GPU.
      is_long: runs where its name is given, not along with all others.
    """

    name: str
    run: Callable[[Machine], None]
    targets: tuple[str, ...]
    asks: Callable[[str], object]
    is_long: bool = False


CHECKS: list[Check] = []


def check(
    *,
    targets: tuple[str, ...] = (HOPPER, BLACKWELL),
    asks: Callable[[str], object] = lambda target: None,
    is_long: bool = False,
) -> Callable[[Callable[[Machine], None]], Callable[[Machine], None]]:
    """Declares a check, see `Check`."""

    def declare(run: Callable[[Machine], None]) -> Callable[[Machine], None]:
        CHECKS.append(Check(run.__name__, run, targets, asks, is_long))
        return run

    return declare


def checks(only: str = "") -> list[Check]:
    """Those whose names contain a text; without one, all but the long ones."""
    return [check for check in CHECKS if only in check.name and (only or not check.is_long)]


def module(name: str) -> Any:
    """A library that a machine may lack.

    Raises:
      Skipped: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skipped(f"{name} cannot be imported: {error}") from error


def refused(call: Callable[[], object], error: type[Exception], *words: str) -> None:
    """Asserts that a call raises an error whose text has these words in it."""
    try:
        call()
    except error as raised:
        missing = [word for word in words if word not in str(raised)]
        assert not missing, f"{missing} not in the message: {raised}"
        return
    raise AssertionError(f"{error.__name__} was not raised")
