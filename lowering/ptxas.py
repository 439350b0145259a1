"""`ptxas`: from PTX text to machine code with its registers and spills."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attn_mlir.errors import TargetError
from attn_mlir.files import scratch_folder
from attn_mlir.tools import find_ptxas, run_tool

if TYPE_CHECKING:
    import subprocess

SETARCH = "setarch"  # a program of util-linux
SPARING = "--register-usage-level=3"
"""Option by which ptxas rematerialises values instead of keeping them in registers, such as the
base of shared memory (0 to 3 gave the same code, 4 and 5 too: ptxas 13.5). Used only if a kernel
spills without it.
"""

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SLOW = re.compile(r"\((C75(?:0[89]|1[0-8]))\) (.*)")
"""Notes about slow code: products of a warpgroup that are serialised, for any of ten reasons, or
ignored `setmaxnreg` (C7508); texts of ptxas 13.0 and 13.5."""
_VERSION = re.compile(rb"release [\d.]+, V([\d.]+)")  # version text in the section .note.nv.tkinfo


@dataclass(frozen=True)
class Assembled:
    """Machine code, with its registers and spills.

    Attributes:
      cubin: the object file.
      registers: per thread at launch.
      spill_bytes: bytes of spill stores plus bytes of spill loads.
      version: of the ptxas, such as 13.5.37, as the object file has it; or `unknown`.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    version: str


def _run_at_fixed_addresses(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Runs a program without address randomisation, if it is allowed to switch that off.

    Register assignment of ptxas 13.5 depends on where its heap lies (measured: one text gave two
    cubins in 40 runs, one without randomisation); the same input is to give the same bytes.

    Raises:
      TargetError: it cannot be started.
    """
    try:
        process = run_tool([SETARCH, os.uname().machine, "-R", *command])
    except TargetError:
        return run_tool(command)
    was_started = not (process.returncode and process.stderr.startswith(f"{SETARCH}:"))
    return process if was_started else run_tool(command)


def assemble(ptx: str, chip: str) -> Assembled:
    """Runs ptxas; where it spills registers, once more with `SPARING`, and takes what spills less.

    Args:
      ptx: the text, of one kernel.
      chip: as `-arch` takes it.

    Raises:
      TargetError: ptxas is missing or refuses the text, or says that it makes slow code of it (the
        message has its words), or temporary files cannot be written.
    """
    plain = _assembled(ptx, chip)
    if not plain.spill_bytes:
        return plain
    try:
        sparing = _assembled(ptx, chip, SPARING)
    except TargetError:  # a ptxas without the option, or one that makes slow code with it
        return plain
    return min(plain, sparing, key=lambda one: one.spill_bytes)


def _assembled(ptx: str, chip: str, *options: str) -> Assembled:
    """Runs ptxas once; arguments and errors as of `assemble`."""
    program = find_ptxas()
    with scratch_folder() as folder:
        source, target = folder / "kernel.ptx", folder / "kernel.cubin"
        source.write_text(ptx)
        command = [program, "-v", f"-arch={chip}", *options, source, "-o", target]
        process = _run_at_fixed_addresses(command)
        if process.returncode:
            raise TargetError(f"{program} refuses the PTX for {chip}: {process.stderr.strip()}")
        if notes := _SLOW.findall(process.stderr):
            reasons = "; ".join(f"{code} {text}" for code, text in notes)
            raise TargetError(f"{program} has to make the kernel slow for {chip}: {reasons}")
        cubin = target.read_bytes()
    registers = _REGISTERS.search(process.stderr)
    spills = _SPILLS.search(process.stderr)
    version = _VERSION.search(cubin)
    return Assembled(
        cubin=cubin,
        registers=int(registers[1]) if registers else 0,
        spill_bytes=sum(map(int, spills.groups())) if spills else 0,
        version=version[1].decode() if version else "unknown",
    )
