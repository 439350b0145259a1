"""Runs programs on the emulator."""

from __future__ import annotations

from attn_mlir.runtime.emulator import Emulator
from attn_mlir.validation.differential.case import ENTRY, Bytes, Program
from attn_mlir.validation.differential.tensormaps import relocated


def run(program: Program, adversary: int | None = None, *, native: bool = True) -> dict[int, Bytes]:
    """The bytes of every buffer that the program's columns name.

    Args:
      adversary: the seed of an adversarial schedule that every checker watches; None for a fair
        schedule and no checkers.
      native: arithmetic runs as native code where that is possible.

    Tensor maps are the bytes that the driver made where the program was on a GPU, moved to the
    addresses here; else those of `tensormaps.encode`.
    """
    if adversary is None:
        emulator = Emulator(target="sm_90a", numeric="fused", check="none", native=native)
    else:
        emulator = Emulator(
            target="sm_90a",
            numeric="fused",
            schedule="adversarial",
            seed=adversary,
            check="all",
            native=native,
        )
    buffers = [buffer.copy() for buffer in program.buffers]
    addresses = [emulator.map(buffer) for buffer in buffers]
    maps = [
        relocated(program, index, addresses[spec.buffer] + spec.offset)
        for index, spec in enumerate(program.maps)
    ]
    emulator.launch(
        program.ptx,
        ENTRY,
        grid=(program.grid, program.grid_y, program.grid_z),
        block=(program.block, 1, 1),
        shared_bytes=program.shared_bytes,
        params=[*addresses, *maps],
    )
    return {index: buffers[index] for index in program.outputs}
