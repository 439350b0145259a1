"""Assembles PTX with a line table, and reads the machine code of cubins."""

import re
from dataclasses import dataclass

from attn_mlir.errors import TargetError
from attn_mlir.files import scratch_folder
from attn_mlir.tools import find_ptxas, find_tool, run_tool

from .sass import Function, parse

_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Assembled:
    """A cubin whose line table names PTX lines, and the registers of a thread at launch."""

    cubin: bytes
    registers: int


def assemble_with_lines(ptx: str, target: str) -> Assembled:
    """Assembles a PTX text with a line table.

    Raises:
      TargetError: ptxas is missing or refuses the text.
    """
    program = find_ptxas()
    with scratch_folder() as folder:
        source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
        source.write_text(ptx)
        done = run_tool([program, "-v", "-lineinfo", f"-arch={target}", source, "-o", cubin])
        if done.returncode:
            raise TargetError(f"{program} refuses the PTX for {target}: {done.stderr.strip()}")
        used = _REGISTERS.search(done.stderr)
        return Assembled(cubin.read_bytes(), int(used[1]) if used else 0)


def machine_code(cubin: bytes) -> dict[str, Function]:
    """The functions of a cubin, by name, with control fields and PTX lines.

    Raises:
      TargetError: nvdisasm is missing (the message names its package) or refuses the cubin.
    """
    program = find_tool("nvdisasm", "nvidia-cuda-nvdisasm")
    with scratch_folder() as folder:
        path = folder / "kernel.cubin"
        path.write_bytes(cubin)
        done = run_tool([program, "-c", "-gp", "-hex", path])
    if done.returncode:
        raise TargetError(f"nvdisasm refuses the cubin: {done.stderr.strip() or done.returncode}")
    return parse(done.stdout)
