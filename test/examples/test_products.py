"""The products of `examples/products`: compiled, proved, and run on the emulator against float64."""

from __future__ import annotations

import functools
import re
import runpy
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.bench.machine_code.sass import disassemble
from attn_mlir.errors import SpecError
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
MORE_WITH_FEW_ROWS = [(16, 64, 256), (24, 136, 328), (40, 8, 1032)]


def shapes(file: str) -> list[tuple[int, int, int]]:
    """M, N and K with edges in all of them, of whole tiles, of less than one, and of many turns."""
    return SHAPES + (MORE_WITH_FEW_ROWS if file == "warps" else MORE_SHAPES)


@functools.cache
def product(file: str, target: str, order: str = "persistent", **options: int) -> Kernel:
    """The kernel of an example, ready to be called."""
    example = runpy.run_path(str(FOLDER / f"{file}.py"))
    build = functools.partial(example["product"], order, **options)
    return load(compile_kernel(example["NAME"], build, target=target))


def check(
    kernel: Kernel, m: int, n: int, k: int, device: EmulatorDevice, parts: int = 2, rows: int = 0
) -> bytes:
    """Runs a product of drawn matrices; every element within the error of f32 sums and bf16.

    Args:
      parts: of K, for a kernel that adds up the sums of several CTAs.
      rows: of b, for a kernel with a table; as many as K where they are 0.

    Returns:
      The bits of the product.
    """
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m, k), (rows or k, n)))
    c, wide_a, wide_b = np.full((m, n), np.nan, BF16), a.astype(np.float64), b.astype(np.float64)
    if "table" in (tensor.name for tensor in kernel.bundle.manifest.tensors):
        table = rng.integers(-3, len(b) + 3, k, dtype=np.int32)  # some entries name no row
        is_row = (table >= 0) & (table < len(b))
        wide_b = np.where(is_row[:, None], wide_b[table.clip(0, len(b) - 1)], 0.0)
        sums = np.full((parts, m, n), np.nan, np.float32)
        arrived = np.zeros((-(-m // 16), -(-n // 128), 4), np.int32)
        for _ in range(2):  # the second finds the counters as the first has left them
            c[:] = np.nan
            kernel(a, b, table, c, sums, arrived, device=device)
            assert not arrived.any()
    else:
        kernel(a, b, c, device=device)
    exact, sizes = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    sums = k * float(np.finfo(np.float32).eps) * sizes
    allowed = 2.0**-8 * (np.abs(exact) + sums) + sums  # bf16 has 8 significant bits
    assert (np.abs(c.astype(np.float64) - exact) <= allowed).all()
    return c.tobytes()


@pytest.mark.parametrize(
    ("file", "target", "shape"),
    [(*run, shape) for run in RUNS for shape in shapes(run[0])],
    ids=str,
)
@pytest.mark.long(
    "warps-sm_100a-(40, 8, 1032)",
    "warps-sm_100a-(24, 136, 328)",
    "warps-sm_100a-(8, 520, 200)",
    "warps-sm_90a-(40, 8, 1032)",
    "warps-sm_90a-(8, 520, 200)",
    "registers-sm_90a-(520, 8, 136)",
    "registers-sm_90a-(136, 264, 72)",
    "registers-sm_90a-(8, 520, 200)",
)
def test_any_shape(file: str, target: str, shape: tuple[int, int, int]) -> None:
    check(product(file, target), *shape, EmulatorDevice(multiprocessors=MULTIPROCESSORS))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("file", "target"), RUNS)
@pytest.mark.long("warps-sm_100a-?", "warps-sm_90a-0", "registers-sm_90a-0")
def test_late_and_reordered_machines(file: str, target: str, seed: int) -> None:
    device = EmulatorDevice("adversarial", seed, multiprocessors=MULTIPROCESSORS)
    shape = (24, 136, 328) if file == "warps" else (264, 136, 328)
    check(product(file, target), *shape, device)


@pytest.mark.parametrize(("file", "target"), RUNS)
@pytest.mark.long("warps-sm_100a")
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
@pytest.mark.long("registers-sm_90a-option1", "tensor_memory-sm_100a-option2")
def test_other_clusters(file: str, target: str, option: tuple[str, int]) -> None:
    name, count = option
    device = EmulatorDevice("adversarial", count, multiprocessors=8)
    check(product(file, target, **{name: count}), 264, 264, 136, device)


@pytest.mark.parametrize(("parts", "rows"), [(1, 700), (3, 1), (7, 700)])
def test_parts_and_tables_of_any_size(parts: int, rows: int) -> None:
    """Parts of unequal length, and of none; fewer rows than entries, and more."""
    shape = (8, 136, 584)
    check(product("warps", "sm_90a"), *shape, EmulatorDevice(), parts=parts, rows=rows)


def test_sums_do_not_depend_on_who_is_last() -> None:
    devices = (EmulatorDevice("adversarial", seed) for seed in range(2))
    kernel = product("warps", "sm_90a", "single")
    assert len({check(kernel, 8, 136, 328, device, parts=3) for device in devices}) == 1


def test_rows_of_pieces() -> None:
    """A kernel that moves rows in pieces would write to what is between the rows of C."""
    between = np.zeros((8, 16), BF16)
    a, b, table = np.zeros((8, 8), BF16), np.zeros((8, 12), BF16), np.zeros(8, np.int32)
    sums, arrived = np.zeros((1, 8, 12), np.float32), np.zeros((1, 1, 4), np.int32)
    with pytest.raises(SpecError, match="b has 12 elements in a row: .* multiples of 8"):
        product("warps", "sm_90a")(a, b, table, between[:, :12], sums, arrived, device="emulator")
    assert product("warps", "sm_90a").bundle.manifest.programmatic


def test_products_into_registers_run_on(tmp_path: Path) -> None:
    """One wait for the four instructions of a step, and nothing that the assembler put there."""
    cubin = tmp_path / "product.cubin"
    cubin.write_bytes(product("registers", "sm_90a").bundle.cubin)
    (function,) = disassemble(cubin)
    assert function.count("HGMMA") == 4 and function.count("WARPGROUP.DEPBAR") == 1
    assert function.count("LDL", "STL") == 0


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_products_of_warps_spill_nothing(target: str, tmp_path: Path) -> None:
    """A step is 32 products of 16 x 8 x 16 and 18 loads of four matrices: 2 of A and 16 of B."""
    kernel = product("warps", target)
    assert kernel.bundle.ptx.count("mma.sync.aligned.m16n8k16") == 32
    assert len(re.findall(r"ldmatrix\S*x4\.shared", kernel.bundle.ptx)) == 2
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
def test_examples_are_commands(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> object:
        monkeypatch.setattr(sys, "argv", [f"{file}.py", *words])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(FOLDER / f"{file}.py"), run_name="__main__")
        return stop.value.code

    monkeypatch.chdir(tmp_path)
    assert run("--help") == 0 and "C = A B" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert run(str(tmp_path), "sm_80") == 2
    capsys.readouterr()
    assert run(str(tmp_path / "no" / "folder")) == 1
    assert capsys.readouterr().err.startswith("SpecError: cannot write")
