"""The assembler: how it is found, what it says, and the words in which it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from attn_mlir import env, files
from attn_mlir.errors import TargetError
from attn_mlir.lowering import ptxas
from attn_mlir.tools import find_ptxas

pytestmark = pytest.mark.ptxas

PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry nothing() { ret; }
"""


def name_ptxas(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> None:
    settings = env.read({} if path is None else {"ATTN_MLIR_PTXAS": str(path)})
    monkeypatch.setattr(env, "settings", lambda: settings)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_assembles() -> None:
    assembled = ptxas.assemble(PTX, "sm_100a")
    assert assembled.cubin[:4] == b"\x7fELF"
    assert assembled.registers > 0 and assembled.spill_bytes == 0
    told = subprocess.run([find_ptxas(), "--version"], capture_output=True, text=True, check=True)
    assert f"V{assembled.version}\n" in told.stdout


@pytest.mark.parametrize(
    "setarch", ["exit(print('setarch: not permitted', file=sys.stderr) or 1)", None]
)
def test_where_addresses_cannot_be_fixed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setarch: str | None
) -> None:
    """It is not permitted, or there is no such program."""
    name_ptxas(monkeypatch, find_ptxas())
    if setarch is not None:
        script(tmp_path / ptxas.SETARCH, f"import sys\nsys.{setarch}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ptxas.assemble(PTX, "sm_100a").registers > 0


def test_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name_ptxas(monkeypatch, tmp_path / "none")
    with pytest.raises(TargetError, match="ATTN_MLIR_PTXAS names .*none, which is not a program"):
        ptxas.assemble(PTX, "sm_100a")
    (tmp_path / "data").write_text("text")
    name_ptxas(monkeypatch, tmp_path / "data")
    with pytest.raises(TargetError, match="data, which is not a program"):
        find_ptxas()


def test_no_program_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    name_ptxas(monkeypatch, None)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TargetError, match="no ptxas: install the package nvidia-cuda-nvcc, or put"):
        find_ptxas()
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    assert find_ptxas() == Path("/somewhere/ptxas")


def test_a_program_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "ptxas"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o755)
    name_ptxas(monkeypatch, broken)
    with pytest.raises(TargetError, match="cannot be run|refuses the PTX"):
        ptxas.assemble(PTX, "sm_100a")


def test_refused_text_is_told_with_the_line() -> None:
    with pytest.raises(TargetError, match=r"refuses the PTX for sm_100a: .*line 5.*nonsense"):
        ptxas.assemble(PTX.replace("ret;", "nonsense;"), "sm_100a")


def test_another_chip_is_refused() -> None:
    with pytest.raises(TargetError, match="refuses the PTX for sm_42"):
        ptxas.assemble(PTX, "sm_42")


def test_costs_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stores and loads of spilled registers are added up; a version nobody knows is said so."""
    program = script(
        tmp_path / "ptxas",
        "import sys\n"
        "open(sys.argv[-1], 'wb').write(b'code')\n"
        "print('    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads\\n'\n"
        "      'ptxas info    : Used 168 registers, used 1 barriers', file=sys.stderr)\n",
    )
    name_ptxas(monkeypatch, program)
    assert ptxas.assemble(PTX, "sm_100a") == ptxas.Assembled(b"code", 168, 64, "unknown")


@pytest.mark.parametrize(
    ("sparing", "taken"),
    [("spills(50)", 96), ("spills(8)", 16), ("exit('no such option')", 96)],
    ids=["spills more", "spills less", "is refused"],
)
def test_what_spills_is_assembled_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sparing: str, taken: int
) -> None:
    """With an option that spares registers, if the assembler has it; what spills less is taken."""
    program = script(
        tmp_path / "ptxas",
        "import sys\n"
        "def spills(n): print(f'{n} bytes spill stores, {n} bytes spill loads', file=sys.stderr)\n"
        "open(sys.argv[-1], 'wb').write(b'code')\n"
        f"{sparing} if '{ptxas.SPARING}' in sys.argv else spills(48)\n",
    )
    name_ptxas(monkeypatch, program)
    assert ptxas.assemble(PTX, "sm_100a").spill_bytes == taken


def test_a_full_temporary_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find_ptxas()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(TargetError, match="temporary files cannot be written .* TMPDIR"):
        ptxas.assemble(PTX, "sm_100a")


def test_what_killed_processes_left_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, young, other = (
        tmp_path / name for name in ("attn-mlir-old", "attn-mlir-new", "of-others")
    )
    for folder in (old, young, other):
        folder.mkdir()
        (folder / "kernel.ptx").write_text(PTX)
    for folder in (old, other):
        os.utime(folder, (0, 0))
    files._remove_scratch.cache_clear()
    assert ptxas.assemble(PTX, "sm_100a").registers
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attn-mlir-new", "of-others"]


SUMS = ", ".join(f"%f{i}" for i in range(4))
PRODUCT = (
    f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{SUMS}}}, %rd0, %rd0, 1, 1, 1, 0, 0;"
)
ISSUE = f"wgmma.fence.sync.aligned; {PRODUCT} wgmma.commit_group.sync.aligned;"
SETTLE = "wgmma.wait_group.sync.aligned 0;"


def warpgroup_kernel(body: str, limits: str = ".reqntid 128 .minnctapersm 1") -> str:
    """PTX of a kernel with sums in %f0 to %f3 and a descriptor in %rd0, which it stores in the end."""
    zeros = " ".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(4))
    stores = " ".join(f"st.global.f32 [%rd1+{4 * i}], %f{i};" for i in range(4))
    return f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry product(.param .u64 o, .param .u64 d) {limits} {{
.reg .f32 %f<4>; .reg .b64 %rd<2>;
ld.param.u64 %rd1, [o]; ld.param.u64 %rd0, [d]; {zeros}
{body}
{stores} ret;
}}
"""


def test_products_that_run_on_are_fine() -> None:
    text = warpgroup_kernel(f"setmaxnreg.inc.sync.aligned.u32 240; {ISSUE} {SETTLE}")
    assert ptxas.assemble(text, "sm_90a").spill_bytes == 0


@pytest.mark.parametrize(
    ("body", "limits", "code"),
    [
        ("setmaxnreg.inc.sync.aligned.u32 240;", "", "C7508"),
        (f"{ISSUE} add.f32 %f0, %f1, %f2; {ISSUE} {SETTLE}", ".reqntid 128", "C75(17|11)"),
        (f"{ISSUE} st.global.f32 [%rd1], %f0; {SETTLE}", ".reqntid 128", "C75(14|17)"),
    ],
    ids=["registers", "written", "read"],
)
def test_code_that_the_assembler_makes_slow(body: str, limits: str, code: str) -> None:
    """It is no error for ptxas, but nothing that anybody wants to run."""
    with pytest.raises(TargetError, match=rf"has to make the kernel slow for sm_90a: {code} .*'"):
        ptxas.assemble(warpgroup_kernel(body, limits), "sm_90a")
