"""`ptxas`: from PTX text to machine code, and what it says about it."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
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


def ptxas_version(program: Path) -> str:
    """Version of a ptxas, such as 13.5.37."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    match = _VERSION.search(answer.stdout)
    return match[1] if match else "unknown"


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
        command = [str(program), "-v", f"-arch={chip}", str(source), "-o", str(target)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
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
