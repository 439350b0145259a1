"""Drawn problems of latent attention on a GPU, judged as on the emulator."""

from __future__ import annotations

from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module

DRAWS = 40


def _ask(target: str) -> None:
    """Asks for every kernel."""
    from attn_mlir.validation.numerics.latent_draws import drawn

    for seed in range(DRAWS):
        problem = drawn(seed, target)
        problem.launched(problem.sequences(), IdleDevice(target))


@check(targets=(HOPPER,), asks=_ask)
def latent_problems(machine: Machine) -> None:
    """Every element of O and LSE of the first draws."""
    module("ml_dtypes")
    from attn_mlir.validation.numerics.latent_draws import drawn

    wrong: list[str] = []
    for seed in range(DRAWS):
        problem = drawn(seed, machine.target)
        sequences = problem.sequences()
        o, lse = problem.launched(sequences, "cuda")
        if found := problem.wrong(sequences, o, lse):
            wrong.append(f"draw {seed}: {found}")
    print(f"{DRAWS} problems")
    assert not wrong, "; ".join(wrong)
