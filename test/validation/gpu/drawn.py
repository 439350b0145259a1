"""Problems of the draws on a GPU, judged as on the emulator.

A problem is for the chip that its draw names. The kernels of those that run along with all other
checks are in one archive with theirs, so that few are drawn:

    python -m attn_mlir.validation.gpu.bundles build/draws.zip --only many_drawn
    python3 -m attn_mlir.validation.gpu.run build/draws.zip --only many_drawn

runs 300, and `many_drawn_gradients` as many calls of `attention_backward`. `small_launches` and `small_gradients` are
those that a checker of the machine's own can watch, which makes a launch take minutes where there are many threads:

    compute-sanitizer --tool racecheck python3 -m attn_mlir.validation.gpu.run ... --only small_
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module

if TYPE_CHECKING:
    from attn_mlir.validation.numerics.draws.problem import Problem

FEW, MANY = 30, 300  # draws
WATCHED = 12  # of the gradients, under a checker of the machine
LATENT = 10  # of latent attention
KERNELS = ("in registers", "for sm_90a")  # choices of the axis `kernel`, the first that fits

STREAMED = {"kernel": "for sm_90a", "heads": "8/1", "keys": "300", "mask": "& causal"}
HELD = {"kernel": "in registers", "queries": "200", "keys": "300", "mask": "& causal"}
SMALL = (
    STREAMED,
    {**STREAMED, "batch": "2", "queries": "2", "lengths": "ragged", "cache": "pages of 16, heads first"},
    {**STREAMED, "cache": "pages of 64", "parts of the keys": "3", "sinks": "f32"},
    {**STREAMED, "keys": "640", "parts of the keys": "chosen", "head sizes": "128x128"},
    {**STREAMED, "keys and values": "e4m3 under 16 bits", "factors": "per head"},
    {**STREAMED, "score_mod": "alibi", "cache": "padded rows", "queries": "7"},
    HELD,
    {**HELD, "head sizes": "128x128", "keys": "256"},
    {**HELD, "head sizes": "192x128", "keys": "129", "cache": "pages of 64"},
    {**HELD, "batch": "2", "keys": "256", "lengths": "ragged", "tile order": "persistent"},
    {**HELD, "score_mod": "softcap", "mask_mod": "documents", "parts of the keys": "3"},
    {**HELD, "head sizes": "256x256", "queries": "128", "keys": "256"},
)  # fmt: skip

Named = Iterable[tuple[str, "Problem"]]


def _families(target: str) -> Iterator[tuple[str, Problem]]:
    """Those of the numerics that are for a chip."""
    from attn_mlir.validation.numerics import families

    return families.problems(target)


def _draws(count: int) -> Iterator[tuple[str, Problem]]:
    """So many, of the first seeds that have one; as `_families`."""
    from attn_mlir.validation.numerics.draws.draw import draw

    def found() -> Iterator[tuple[str, Problem]]:
        for seed in itertools.count():
            for kernel in KERNELS:
                try:
                    _, problem = draw(seed, {"kernel": kernel})
                except ValueError:  # the kernel does not fit what else was drawn
                    continue
                yield f"draw {seed}, {kernel}", problem
                break

    return itertools.islice(found(), count)


def small() -> Iterator[tuple[str, Problem]]:
    """What each of `SMALL` chooses, and the problem."""
    from attn_mlir.validation.numerics.draws.draw import plain

    for number, choices in enumerate(SMALL):
        yield ", ".join(choices.values()), plain(FEW + number, choices)


def _ask(problems: Named, target: str) -> None:
    """Asks for every kernel."""
    for _, problem in problems:
        problem.launched_on(IdleDevice(target))


def _judge(problems: Named) -> None:
    """Every element of O and LSE of every problem."""
    outcomes = {name: problem.wrong_on("cuda") for name, problem in problems}
    print(f"{len(outcomes)} problems")
    wrong = [f"{name}: {found}" for name, found in outcomes.items() if found]
    assert not wrong, "; ".join(wrong)


@check(asks=lambda target: _ask(_families(target), target))
def families_of_the_numerics(machine: Machine) -> None:
    """One small problem for each family of our attention kernels."""
    module("ml_dtypes")
    _judge(_families(machine.target))


@check(targets=(HOPPER,), asks=lambda target: _ask(_draws(FEW), target))
def drawn_problems(machine: Machine) -> None:
    """The first draws."""
    module("ml_dtypes")
    _judge(_draws(FEW))


@check(targets=(HOPPER,), asks=lambda target: _ask(_draws(MANY), target), is_long=True)
def many_drawn_problems(machine: Machine) -> None:
    """As many draws as the emulator judges in `make numerics`."""
    module("ml_dtypes")
    _judge(_draws(MANY))


def _ask_gradients(count: int, target: str) -> None:
    """Asks for the kernels of the first calls of `attention_backward` that are drawn."""
    from attn_mlir.validation.numerics.gradient_draws import attempt

    for number in range(count):
        attempt(number, IdleDevice(target), target, is_judged=False)


def _judge_gradients(count: int, target: str) -> None:
    """Every element of the gradients."""
    from attn_mlir.validation.numerics.gradient_draws import attempt

    wrong: list[str] = []
    for number in range(count):
        try:
            attempt(number, "cuda", target)
        except AssertionError as error:
            wrong.append(f"draw {number}: {error}")
    print(f"{count} calls")
    assert not wrong, "; ".join(wrong)


@check(targets=(HOPPER,), asks=lambda target: _ask_gradients(FEW, target))
def drawn_gradients(machine: Machine) -> None:
    """The first drawn calls of `attention_backward`."""
    module("ml_dtypes")
    _judge_gradients(FEW, machine.target)


@check(targets=(HOPPER,), asks=lambda target: _ask_gradients(MANY, target), is_long=True)
def many_drawn_gradients(machine: Machine) -> None:
    """As many of them as the emulator judges in `make numerics`."""
    module("ml_dtypes")
    _judge_gradients(MANY, machine.target)


def _ask_latent_gradients(target: str) -> None:
    """Asks for the kernels of the first calls of `mla_backward` that are drawn."""
    from attn_mlir.validation.numerics.latent_gradient_draws import drawn

    for number in range(LATENT):
        replace(drawn(number), target=target).run(IdleDevice(target), is_judged=False)


@check(targets=(HOPPER,), asks=_ask_latent_gradients)
def drawn_latent_gradients(machine: Machine) -> None:
    """The first drawn calls of `mla_backward`: every element, and the same bits twice."""
    module("ml_dtypes")
    from attn_mlir.validation.numerics.latent_gradient_draws import drawn

    for number in range(LATENT):
        found, again = (drawn(number).run("cuda") for _ in range(2))
        for one, other in zip(found, again, strict=True):
            for name, gradient in one.items():
                assert gradient.tobytes() == other[name].tobytes(), f"draw {number}: {name}"


@check(targets=(HOPPER,), asks=lambda target: _ask(small(), target))
def small_launches(machine: Machine) -> None:
    """Each schedule with what its threads share: caches, parts, tables of work, 8 bits."""
    module("ml_dtypes")
    _judge(small())


@check(targets=(HOPPER,), asks=lambda target: _ask_gradients(WATCHED, target))
def small_gradients(machine: Machine) -> None:
    """The first of the drawn calls of `attention_backward`, whose launches are small."""
    module("ml_dtypes")
    _judge_gradients(WATCHED, machine.target)
