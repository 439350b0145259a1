"""`ptxas`: from PTX text to machine code, and what it says about it."""

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_mlir import env
from attn_mlir.errors import TargetError

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_VERSION = re.compile(r"release [\d.]+, V([\d.]+)")


@dataclass(frozen=True)
class Assembled:
    """Machine code and its cost.

    Attributes:
      cubin: the object file.
      registers: per thread at launch.
      spill_bytes: stored to local memory and loaded from it, added up.
    """

    cubin: bytes
    registers: int
    spill_bytes: int


def find_ptxas() -> Path:
    """Finds the program: `ATTN_MLIR_PTXAS`, else the wheel `nvidia-cuda-nvcc`, else PATH.

    Raises:
      TargetError: there is none, or the one that was named does not exist.
    """
    named = env.settings().ptxas
    if named is not None:
        if not os.access(named, os.X_OK):
            raise TargetError(f"ATTN_MLIR_PTXAS names {named}, which is not a program")
        return named
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(folder).glob("cu*/bin/ptxas"), reverse=True):
            return found
    found_on_path = shutil.which("ptxas")
    if found_on_path is None:
        raise TargetError(
            "no ptxas: install the package nvidia-cuda-nvcc, or name one by ATTN_MLIR_PTXAS"
        )
    return Path(found_on_path)


@functools.cache
def ptxas_version(program: Path) -> str:
    """Version of a ptxas, such as 13.5.37; raises TargetError where it cannot be run."""
    match = _VERSION.search(_run([str(program), "--version"]).stdout)
    return match[1] if match else "unknown"


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TargetError(f"{command[0]} cannot be run: {error.strerror}") from error


@functools.cache
def _fixed_addresses() -> tuple[str, ...]:
    """The command that starts a program without address randomisation, where it may be used.

    Register assignment of ptxas 13.5 depends on where its heap lies (measured: one text gave two
    cubins in 40 runs, one without randomisation); the same input is to give the same bytes.
    """
    command = ("setarch", platform.machine(), "-R")
    try:
        answer = subprocess.run([*command, "true"], capture_output=True, check=False)
    except OSError:
        return ()
    return () if answer.returncode else command


def assemble(ptx: str, chip: str) -> Assembled:
    """Runs ptxas.

    Args:
      ptx: the text, of one kernel.
      chip: as `-arch` takes it.

    Raises:
      TargetError: ptxas is missing, or refuses the text; its own words are in the message.
    """
    program = find_ptxas()
    with tempfile.TemporaryDirectory(prefix="attn-mlir-") as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        options = ["-v", f"-arch={chip}", str(source), "-o", str(target)]
        command = [*_fixed_addresses(), str(program), *options]
        answer = _run(command)
        if answer.returncode:
            raise TargetError(f"{program} refuses the PTX for {chip}: {answer.stderr.strip()}")
        cubin = target.read_bytes()
    registers = _REGISTERS.search(answer.stderr)
    spills = _SPILLS.search(answer.stderr)
    return Assembled(
        cubin=cubin,
        registers=int(registers[1]) if registers else 0,
        spill_bytes=sum(map(int, spills.groups())) if spills else 0,
    )
