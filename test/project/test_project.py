"""The project's own promises: packaging, layers, what an import costs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import attn_mlir
from attn_mlir.bench.measuring.checkout import folders

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = folders()
TEXTS = ("frontend", "dialect", "schedules", "passes", "lowering", "runtime", "bench", "examples")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_package_list_is_complete() -> None:
    found = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert sorted(found) == PROJECT["tool"]["setuptools"]["packages"]


def test_the_wheel_has_the_product_alone(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")  # what pyproject.toml wants; as torch does
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, checkout, ignore=ignored)
    left = checkout / "build/lib/attn_mlir/bench/old.py"  # by an earlier build
    left.parent.mkdir(parents=True)
    left.touch()
    command = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(tmp_path), str(checkout)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    top = {name.split("/")[1] for name in zipfile.ZipFile(wheel).namelist() if name.count("/") > 1}
    assert {"dialect", "lowering", "passes", "runtime", "schedules"} <= top
    assert not top & {"bench", "validation"}


def test_every_package_says_what_it_is() -> None:
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), f"{path} of {package} is in no package"


def test_lines_have_a_hundred_columns() -> None:
    folders = ("frontend", "dialect", "schedules", "passes", "lowering", "runtime")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py*"))]
    texts = {path: path.read_text() for path in files if path.suffix in (".py", ".pyi")}
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > 100
    ]
    assert long == [] and {path.relative_to(ROOT).parts[0] for path in texts} == set(folders)


def test_docstrings_begin_with_their_subject() -> None:
    """None begins with What, Who, Whose or Of, whose subject a reader would have to look for."""
    beginning = re.compile(r'^\s*[a-z]?"""(?:What|Who|Whose|Of) ', re.MULTILINE)
    found = [path for folder in TEXTS for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in found if beginning.search(path.read_text())] == []
    assert found


def test_version() -> None:
    assert attn_mlir.__version__ == PROJECT["project"]["version"]


def test_mlir_and_the_tools_are_pinned() -> None:
    project = PROJECT["project"]
    pinned = {"numba-cuda-mlir", "nvidia-cuda-nvcc"}
    pinned |= {"pytest", "hypothesis", "lit", "filecheck", "ruff", "pyright"}
    listed = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        listed += extra
    exact = {re.split(r"[\[=<>]", requirement)[0] for requirement in listed if "==" in requirement}
    assert pinned <= exact


def test_what_make_test_leaves_out_is_run_by_numerics() -> None:
    done = subprocess.run(
        ["make", "-n", "numerics"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.search(r"-m pytest .*-m long test$", done.stdout, re.MULTILINE)


def test_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert all(f"\n   {number}. " in text for number in range(1, 10))


def imported_by(statement: str) -> set[str]:
    """Top-level names of what a fresh interpreter has imported after a statement."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"numba_cuda_mlir", "mlir", "numpy", "rich", "cuda", "torch", "ml_dtypes"}


@pytest.mark.parametrize(
    "statement",
    [
        "import attn_mlir",
        "import attn_mlir as am; am.mha(heads=1, head_dim=64, mask=am.causal())",
        "import attn_mlir.compiling.compiler, attn_mlir.runtime.file.bundle, attn_mlir.runtime.file.cache",
        "from attn_mlir import cli",
    ],
)
def test_light_imports(statement: str) -> None:
    assert not imported_by(statement) & HEAVY


def test_a_compile_needs_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts threads that take more of a cold compile than all of our modules."""
    monkeypatch.setenv("ATTN_MLIR_NO_CACHE", "1")
    statement = "import attn_mlir as am; am.compile(am.mha(heads=1, head_dim=64, mask=am.causal()))"
    assert "numba_cuda_mlir" in (found := imported_by(statement))
    assert not found & {"numpy", "ml_dtypes"}


def test_the_runtime_needs_no_compiler() -> None:
    statement = (
        "import attn_mlir.runtime.kernel, attn_mlir.runtime.doctor, attn_mlir.runtime.file.cache, "
        "attn_mlir.reference, attn_mlir.api.attention"
    )
    assert not imported_by(statement) & {"numba_cuda_mlir", "mlir", "torch", "cuda", "rich"}
