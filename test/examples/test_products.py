"""The products of `examples/products`: compiled, proved, and run on the emulator against float64."""

from __future__ import annotations

import functools
import re
import runpy
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.bench._sass import disassemble
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel, load

pytestmark = pytest.mark.ptxas

BF16 = ml_dtypes.bfloat16
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "products"
FILES = sorted(path.stem for path in FOLDER.glob("*.py"))
RUNS = [  # each example for each of its targets
    (file, target)
    for file in FILES
    for target in runpy.run_path(str(FOLDER / f"{file}.py"))["TARGETS"]
]
MAX_LINES = 120
MACHINE_WORDS = re.compile(r"tma|tcgen05|wgmma|mbarrier|tmem|nvvm|nvgpu|cp\.async")
MULTIPROCESSORS = 3  # few, so that a persistent CTA has several tiles

SHAPES = [(8, 8, 8), (1, 8, 64), (8, 520, 200)]
MORE_SHAPES = [(128, 128, 64), (136, 264, 72), (520, 8, 136), (300, 264, 328)]
MORE_WITH_FEW_ROWS = [(16, 64, 256), (24, 136, 584), (40, 72, 1032)]


def shapes(file: str) -> list[tuple[int, int, int]]:
    """M, N and K with edges in all of them, of whole tiles, of less than one, and of many turns."""
    return SHAPES + (MORE_WITH_FEW_ROWS if file == "warps" else MORE_SHAPES)


@functools.cache
def product(file: str, target: str, order: str = "persistent", **options: int) -> Kernel:
    """The kernel of an example, ready to be called."""
    example = runpy.run_path(str(FOLDER / f"{file}.py"))
    build = functools.partial(example["product"], order, **options)
    return load(compile_kernel(example["NAME"], build, target=target))


def check(kernel: Kernel, m: int, n: int, k: int, device: EmulatorDevice) -> None:
    """Runs a product of drawn matrices; every element within the error of f32 sums and bf16."""
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, BF16)
    kernel(a, b, c, device=device)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact, sizes = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    sums = k * float(np.finfo(np.float32).eps) * sizes
    allowed = 2.0**-8 * (np.abs(exact) + sums) + sums  # bf16 has 8 significant bits
    assert (np.abs(c.astype(np.float64) - exact) <= allowed).all()


@pytest.mark.parametrize(
    ("file", "target", "shape"),
    [(*run, shape) for run in RUNS for shape in shapes(run[0])],
    ids=str,
)
def test_any_shape(file: str, target: str, shape: tuple[int, int, int]) -> None:
    check(product(file, target), *shape, EmulatorDevice(multiprocessors=MULTIPROCESSORS))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("file", "target"), RUNS)
def test_late_and_reordered_machines(file: str, target: str, seed: int) -> None:
    device = EmulatorDevice("adversarial", seed, multiprocessors=MULTIPROCESSORS)
    shape = (24, 136, 584) if file == "warps" else (264, 136, 328)
    check(product(file, target), *shape, device)


@pytest.mark.parametrize(("file", "target"), RUNS)
def test_one_tile_for_each_cta(file: str, target: str) -> None:
    shape = (24, 136, 72) if file == "warps" else (136, 264, 72)
    check(product(file, target, "single"), *shape, EmulatorDevice())


@pytest.mark.parametrize(
    ("file", "target", "option"),
    [
        ("registers", "sm_90a", ("ctas", 2)),
        ("registers", "sm_90a", ("ctas", 4)),
        ("tensor_memory", "sm_100a", ("ctas", 2)),
        ("tensor_memory", "sm_100a", ("ctas", 4)),
        ("pairs", "sm_100a", ("pairs", 1)),
    ],
)
def test_other_clusters(file: str, target: str, option: tuple[str, int]) -> None:
    name, count = option
    device = EmulatorDevice("adversarial", count, multiprocessors=8)
    check(product(file, target, **{name: count}), 300, 264, 136, device)


def test_products_into_registers_run_on(tmp_path: Path) -> None:
    """One wait for the four instructions of a step, and nothing that the assembler put there."""
    cubin = tmp_path / "product.cubin"
    cubin.write_bytes(product("registers", "sm_90a").bundle.cubin)
    (function,) = disassemble(cubin)
    assert function.count("HGMMA") == 4 and function.count("WARPGROUP.DEPBAR") == 1
    assert function.count("LDL", "STL") == 0


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_products_of_warps_spill_nothing(target: str, tmp_path: Path) -> None:
    """A step is 32 products of 16 x 8 x 16 and 20 loads of four matrices: 4 of A and 16 of B."""
    kernel = product("warps", target)
    assert kernel.bundle.ptx.count("mma.sync.aligned.m16n8k16") == 32
    assert len(re.findall(r"ldmatrix\S*x4\.shared", kernel.bundle.ptx)) == 4
    assert len(re.findall(r"ldmatrix\S*x4\.trans", kernel.bundle.ptx)) == 16
    cubin = tmp_path / "product.cubin"
    cubin.write_bytes(kernel.bundle.cubin)
    (function,) = disassemble(cubin)
    assert function.count("LDL", "STL") == 0


@pytest.mark.parametrize("file", FILES)
def test_examples_are_short_and_name_no_machine(file: str) -> None:
    text = (FOLDER / f"{file}.py").read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert not MACHINE_WORDS.findall(text)


@pytest.mark.parametrize("file", FILES)
def test_examples_are_commands(file: str, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(FOLDER / f"{file}.py"), *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "C = A B" in run("--help").stdout and not list(tmp_path.iterdir())
    assert run(str(tmp_path), "sm_80").returncode == 2
    nowhere = run(str(tmp_path / "no" / "folder"))
    assert nowhere.returncode == 1 and nowhere.stderr.startswith("SpecError: cannot write")
