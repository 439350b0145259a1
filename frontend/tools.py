"""Finds and runs NVIDIA's programs from PyPI packages.

A leaf: used by the compiler, which runs the assembler, and by the cache, whose key has its hash.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attn_mlir import env
from attn_mlir.errors import TargetError
from attn_mlir.files import reason, scratch_folder

if TYPE_CHECKING:
    import subprocess


def find_tool(name: str, package: str) -> Path:
    """The path of a program: from a PyPI package, else from PATH.

    Args:
      name: such as `nvdisasm`.
      package: the package that has it, for the message.

    Raises:
      TargetError: there is none.
    """
    for entry in sys.path:
        nvidia = os.path.join(entry or ".", "nvidia")
        for folder in (*_cuda_folders(nvidia), "cuda_nvcc", name):
            path = os.path.join(nvidia, folder, "bin", name)
            if os.access(path, os.X_OK):
                return Path(path)
    path = shutil.which(name)
    if path is None:
        raise TargetError(f"no {name}: install the package {package}, or put it on PATH")
    return Path(path)


def _cuda_folders(nvidia: str) -> list[str]:
    """Folders `cu14`, `cu13`, ..., the newest first."""
    try:
        names = os.listdir(nvidia)
    except OSError:
        return []
    folders = [name for name in names if name.startswith("cu") and name[2:].isdigit()]
    return sorted(folders, key=lambda name: int(name[2:]), reverse=True)


def makes_machine_code() -> bool:
    """Whether kernels are assembled: not with `ATTN_MLIR_PTXAS=none`, for the emulator only."""
    return env.settings().ptxas != "none"


def find_ptxas() -> Path:
    """The assembler: `ATTN_MLIR_PTXAS`, else that of the wheel `nvidia-cuda-nvcc`, else PATH.

    Raises:
      TargetError: there is none, the named one does not exist, or `none` is set.
    """
    setting = env.settings().ptxas
    if setting == "none":
        raise TargetError("no ptxas: ATTN_MLIR_PTXAS=none says that none is to be used; unset it")
    if setting is None:
        return find_tool("ptxas", "nvidia-cuda-nvcc")
    if not (os.path.isfile(setting) and os.access(setting, os.X_OK)):
        raise TargetError(f"ATTN_MLIR_PTXAS names {setting}, which is not a program")
    return setting


def run_tool(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Runs a program and returns its output, whatever its exit status.

    Raises:
      TargetError: it cannot be started.
    """
    import subprocess  # imported here, as cache hits run nothing

    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise TargetError(f"{command[0]} cannot be run: {reason(error)}") from error


def disassemble(cubin: bytes) -> str:
    """The machine code as text.

    Raises:
      TargetError: nvdisasm is missing or refuses the cubin.
    """
    tool = find_tool("nvdisasm", "nvidia-cuda-nvdisasm")
    with scratch_folder() as folder:
        path = folder / "kernel.cubin"
        path.write_bytes(cubin)
        done = run_tool([tool, "-c", path])
    if done.returncode:
        raise TargetError(f"nvdisasm failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
