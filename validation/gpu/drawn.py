"""Problems of the draws on a GPU, one of each family and some that are drawn, judged as on the emulator.

A problem is for the chip that its draw names. The kernels of all of them are in the archive, so that
few are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module

if TYPE_CHECKING:
    from attn_mlir.validation.numerics.draws.problem import Problem

COUNT = 30  # seeds
KERNELS = ("in registers", "for sm_90a")  # choices of the axis `kernel`, the first that fits


def _problems() -> Iterator[tuple[str, Problem]]:
    """What each says of itself, and the problem."""
    from attn_mlir.validation.numerics import families
    from attn_mlir.validation.numerics.draws.draw import draw

    for number, family in enumerate(families.FAMILIES):
        if family.get("kernel") in KERNELS:
            yield families.name(family), families.problem(number)
    for seed in range(COUNT):
        for kernel in KERNELS:
            try:
                _, problem = draw(seed, {"kernel": kernel})
            except ValueError:
                continue
            yield f"draw {seed}, {kernel}", problem
            break


def _asks(target: str) -> None:
    """Asks for every kernel."""
    module("ml_dtypes")
    for _, problem in _problems():
        problem.launched_on(IdleDevice(target))


@check(targets=(HOPPER,), asks=_asks)
def drawn_problems(machine: Machine) -> None:
    """Every element of O and LSE of every problem."""
    module("ml_dtypes")
    wrong = [
        f"{name}: {found}" for name, problem in _problems() if (found := problem.wrong_on("cuda"))
    ]
    assert not wrong, "; ".join(wrong)
