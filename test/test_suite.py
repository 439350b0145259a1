"""The suite itself: without the optional packages, and again for what was skipped without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TEST = Path(__file__).resolve().parent

# Packages that a newcomer does not have: `pip install '.[test]'` brings none of them.
OPTIONAL = (
    "cupy", "cutlass", "diffusers", "flash_attn", "flash_mla", "jax", "onnx", "onnxruntime", "quack",
    "torch", "transformers", "triton", "vllm",
)  # fmt: skip

# Imports each module that is named, with those packages hidden; prints each that fails, and why.
IMPORT_ALL = f"""
import importlib.util, sys, traceback
import pytest
sys.modules.update(dict.fromkeys({OPTIONAL!r}))
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("module_under_test", path)
    sys.modules["module_under_test"] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except pytest.skip.Exception:
        pass
    except BaseException as error:
        print(path, traceback.format_exception_only(error)[-1], end="")
"""


def failures(*paths: Path) -> str:
    """The modules that cannot be imported without the optional packages, each with the reason."""
    command = [sys.executable, "-c", IMPORT_ALL, *map(str, paths)]
    places = ["docs/tools", os.environ.get("PYTHONPATH", "")]  # as in pyproject.toml
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(
        command, cwd=TEST.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_is_imported_without_the_optional_packages() -> None:
    assert failures(*sorted(TEST.rglob("test_*.py"))) == ""


def test_an_import_of_an_optional_package_is_found(tmp_path: Path) -> None:
    module = tmp_path / "test_hasty.py"
    module.write_text("import torch\n")
    assert "test_hasty.py ModuleNotFoundError: import of torch halted" in failures(module)
    module.write_text("import pytest\ntorch = pytest.importorskip('torch')\n")
    assert failures(module) == ""


def test_what_was_skipped_is_run_again(pytester: pytest.Pytester) -> None:
    """Modules and tests; those that are `long` stay out unless one of them is named."""
    pytester.makeconftest((TEST / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers = long: slow")
    pytester.makepyfile(
        test_one="""
            import os, pytest
            def test_runs(): pass
            def test_waits():
                if "ADDED" not in os.environ: pytest.skip("not there")
        """,
        test_two="""
            import os, pytest
            if "ADDED" not in os.environ: pytest.skip("not there", allow_module_level=True)
            def test_all(): pass
            @pytest.mark.long
            def test_long(): pass
        """,
    )
    noted = pytester.path / "build" / "skipped.txt"
    options = ["--import-mode=importlib", "-p", "no:cacheprovider"]
    pytester.runpytest_subprocess(*options, f"--skipped-to={noted}").assert_outcomes(
        passed=1, skipped=2
    )
    assert noted.read_text() == "test_one.py::test_waits\ntest_two.py\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADDED", "1")
        again = pytester.runpytest_subprocess(*options, f"@{noted}")
        again.assert_outcomes(passed=2, deselected=1)


def test_which_cases_are_long(pytester: pytest.Pytester) -> None:
    """Those that a mark names, or all but those that it names."""
    pytester.makeconftest((TEST / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers = long: slow")
    pytester.makepyfile(
        test_one="""
            import pytest
            each = pytest.mark.parametrize("name", ["a", "b-1", "b-2"])
            @each
            @pytest.mark.long("b-*")
            def test_named(name): assert name == "a"
            @each
            @pytest.mark.long(but=("b-2",))
            def test_others(name): assert name == "b-2"
        """,
    )
    options = ["--import-mode=importlib", "-p", "no:cacheprovider"]
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2, deselected=4)
