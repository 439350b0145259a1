"""lit configuration: tests of the IR, run as `lit -v test`; nothing is configured beforehand."""

import ctypes
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import lit.formats

HERE = Path(__file__).parent
PYTHON = os.environ.get("ATTN_MLIR_TEST_PYTHON", sys.executable)
FORWARDED = (
    "ATTN_MLIR_PTXAS",
    "ATTN_MLIR_LOG",
    "CUDA_VISIBLE_DEVICES",
    "HOME",
    "PYTHONPATH",
    "XDG_CACHE_HOME",
)


def find_filecheck() -> str:
    """Returns the command: `$FILECHECK`, LLVM's on PATH, or PyPI's beside this Python."""
    given = os.environ.get("FILECHECK") or shutil.which("FileCheck")
    if given:
        return given
    beside = Path(sys.executable).with_name("filecheck")
    found = str(beside) if beside.exists() else shutil.which("filecheck")
    if not found:
        lit_config.fatal("no FileCheck: set FILECHECK, or pip install filecheck")  # noqa: F821
    return found


def has_ptxas() -> bool:
    """Whether the assembler is installed, as a wheel or by path."""
    if os.environ.get("ATTN_MLIR_PTXAS"):
        return True
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    return any(Path(folder).glob("cu*/bin/ptxas") for folder in folders or ())


def compute_capability() -> int:
    """Returns the first GPU's capability as in `sm_90`, 0 without a GPU or a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return 0
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)  # CU_DEVICE_ATTRIBUTE_COMPUTE_
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)  # CAPABILITY_MAJOR and _MINOR
    return 10 * major.value + minor.value


def test_format() -> lit.formats.ShTest:
    """Tests in which the programs of this Python are forks; shell tests where it is not the tests'."""
    if PYTHON != sys.executable or not hasattr(os, "fork"):
        return lit.formats.ShTest(execute_external=False)
    sys.path.append(str(HERE))  # workers find the module by its name
    from forked import ForkedTest

    return ForkedTest()


config.name = "attn-mlir"  # noqa: F821
config.test_format = test_format()  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = str(HERE)  # noqa: F821
config.test_exec_root = os.environ.get("ATTN_MLIR_LIT_OUTPUT", str(HERE / "Output"))  # noqa: F821
config.excludes = ["Output", "Inputs"]  # noqa: F821

attn_opt = f'"{PYTHON}" -m attn_mlir.passes.attn_opt'
config.substitutions += [  # noqa: F821
    ("%python", f'"{PYTHON}"'),
    ("%roundtrip", f"{attn_opt} --split-input-file %s | {attn_opt} --split-input-file -"),
    (r"\battn-opt\b", attn_opt),
    (r"\bFileCheck\b", find_filecheck()),
]
config.environment["FILECHECK_OPTS"] = "--enable-var-scope"  # noqa: F821
for name in FORWARDED:
    if name in os.environ:
        config.environment[name] = os.environ[name]  # noqa: F821

if has_ptxas():
    config.available_features.add("ptxas")  # noqa: F821
capability = compute_capability()
if capability:
    config.available_features |= {"gpu", f"sm_{capability}"}  # noqa: F821
