"""Kernels from elsewhere: their own Python environment, and FlashAttention-4 compiled in it.

The packages do not agree with ours about one environment, so they get `.venv-peers` beside the checkout's `.venv`,
made on first use. It needs 3 GB of disk (more where torch brings CUDA) and no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_mlir.bench.measuring.stats import BUILD, ROOT
from attn_mlir.bench.problems.problem import Problem

ENVIRONMENT = ROOT / ".venv-peers"
CHILD = Path(__file__).with_name("fa4_compile.py")
PACKAGES = (
    "torch==2.13.0",
    "nvidia-cutlass-dsl[cu13]==4.8.1",
    "einops==0.8.2",
    "numpy>=2.0",
    # nvcc and what it compiles with.
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-curand==10.4.0.35",
    "nvidia-nvvm==13.0.88",
    # What flashinfer imports, whatever is used of it.
    "click",
    "filelock",
    "jinja2",
    "ninja",
    "nvidia-ml-py",
    "packaging",
    "requests",
    "tabulate",
    "tqdm",
)
PACKAGES_WITHOUT_DEPENDENCIES = (  # their requirements contradict each other
    "flash-attn-4==4.0.0b36",
    "flashinfer-python==0.7.2.post1",
    "quack-kernels==0.6.5",
    "apache-tvm-ffi==0.1.15.post2",
    "torch-c-dlpack-ext==0.1.5",
    "triton==3.9.0",
)


@dataclass(frozen=True)
class PeerKernel:
    """The output of the peer's compiler, and how long the whole process and its parts took (seconds)."""

    ptx: Path
    cubin: Path
    entry: str
    wall_seconds: float
    stages: dict[str, float]


def python() -> Path:
    """The interpreter of the peers' environment."""
    return ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin") / "python"


def prepare(tell: Callable[[str], None]) -> None:
    """Makes the environment unless it is complete; `tell` gets a line per step. Exits when pip fails."""
    stamp = ENVIRONMENT / ".installed"
    wanted = json.dumps([*PACKAGES, *PACKAGES_WITHOUT_DEPENDENCIES])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if not python().exists():
        tell(f"making {ENVIRONMENT.name}")
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    _install(tell, *PACKAGES)
    _install(tell, *PACKAGES_WITHOUT_DEPENDENCIES, "--no-deps", "--pre")
    stamp.write_text(wanted)


def _install(tell: Callable[[str], None], *arguments: str) -> None:
    tell(f"pip install {' '.join(arguments)}")
    command = [str(python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"pip failed in {ENVIRONMENT}:\n{done.stderr.strip()}")


def compile_fa4(
    problem: Problem, folder: Path = BUILD / "fa4", options: Sequence[str] = ()
) -> PeerKernel:
    """One cold compile of FlashAttention-4's forward kernel in a process of its own; its files stay in `folder`.

    `options` are further ones of `fa4_compile.py`. Its persistent cache is off. Wall seconds run from the start of the
    process to its end. Exits when it fails.
    """
    command = [
        str(python()),
        str(CHILD),
        f"--name={problem.name}",
        f"--head-dim={problem.head_dim}",
        f"--dtype={problem.dtype}",
        f"--heads={problem.heads}",
        f"--kv-heads={problem.kv_heads}",
        f"--target={problem.target}",
        f"--out={folder}",
        *(["--causal"] if problem.is_causal else []),
        *options,
    ]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"FlashAttention-4 did not compile:\n{done.stderr.strip()[-4000:]}")
    record = json.loads(done.stdout.splitlines()[-1])
    return PeerKernel(
        folder / f"{problem.name}.ptx",
        folder / f"{problem.name}.cubin",
        record["entry"],
        wall,
        record["seconds"],
    )


def fa4_cubin(
    problem: Problem,
    tell: Callable[[str], None],
    folder: Path = BUILD / "fa4",
    options: Sequence[str] = (),
) -> Path:
    """FlashAttention-4's cubin for the problem, compiled only when it is not there yet; arguments as `compile_fa4`."""
    cubin = folder / f"{problem.name}.cubin"
    if not cubin.exists():
        prepare(tell)
        tell("compiling FlashAttention-4")
        compile_fa4(problem, folder, options)
    return cubin


def record_fa4(problem: Problem, batch: int, length: int, tell: Callable[[str], None]) -> Path:
    """FlashAttention-4's PTX and its launch for these sizes, made when not there yet.

    Returns the common stem of `STEM.ptx` and `STEM.launch.json`. Needs a C compiler.
    """
    folder = BUILD / "fa4" / f"b{batch}_s{length}"
    stem = folder / problem.name
    if not stem.with_name(stem.name + ".launch.json").exists():
        prepare(tell)
        tell("compiling FlashAttention-4 and recording its launch")
        sizes = (f"--batch={batch}", f"--sq={length}", f"--sk={length}")
        compile_fa4(problem, folder, (*sizes, "--record"))
    return stem
