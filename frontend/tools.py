"""NVIDIA's programs from PyPI packages: where they lie, and the disassembler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from attn_mlir.errors import TargetError


def find_tool(name: str, package: str) -> Path:
    """The program of a PyPI package, else the one on PATH.

    Args:
      name: such as `nvdisasm`.
      package: that brings it, for the message.

    Raises:
      TargetError: there is none.
    """
    for entry in sys.path:
        for folder in ("cu13", "cuda_nvcc", name):
            path = Path(entry or ".", "nvidia", folder, "bin", name)
            if os.access(path, os.X_OK):
                return path
    found = shutil.which(name)
    if found is None:
        raise TargetError(f"{name} is missing: pip install {package}, or put it on PATH")
    return Path(found)


def disassemble(cubin: bytes) -> str:
    """The machine code as text.

    Raises:
      TargetError: nvdisasm is missing or does not take the cubin.
    """
    tool = find_tool("nvdisasm", "nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"nvdisasm failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
