"""Drawn problems of latent attention after absorption on a GPU, judged as on the emulator."""

from __future__ import annotations

from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module

DRAWS = 12


def _ask(target: str) -> None:
    """Asks for every kernel."""
    from attn_mlir.validation.numerics.decode_draws import drawn

    for seed in range(DRAWS):
        problem = drawn(seed, target)
        problem.launched(problem.made(), IdleDevice(target))


@check(targets=(HOPPER,), asks=_ask)
def decode_problems(machine: Machine) -> None:
    """Every element of O and LSE of the first draws; a second run gives the same bits."""
    module("ml_dtypes")
    from attn_mlir.validation.numerics.decode_draws import drawn

    wrong: list[str] = []
    for seed in range(DRAWS):
        problem = drawn(seed, machine.target)
        made = problem.made()
        o, lse = problem.launched(made, "cuda")
        if found := problem.wrong(made, o, lse):
            wrong.append(f"draw {seed}: {found}")
        again = problem.launched(made, "cuda")
        if [x.tobytes() for x in again] != [o.tobytes(), lse.tobytes()]:
            wrong.append(f"draw {seed}: other bits in a second run")
    print(f"{DRAWS} problems")
    assert not wrong, "; ".join(wrong)
