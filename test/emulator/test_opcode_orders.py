"""Modifiers stand in any order that ptxas takes, and mean the same in all of them.

The PTX ISA writes one order for each instruction (its "Syntax") and says of no other that it is refused, so that the
assembler decides: `test_every_order_that_ptxas_takes_means_the_same` asks it.
"""

import itertools
import re
import subprocess
from pathlib import Path

import pytest
from coverage_page import TARGETS, families, kernel_text

from attn_mlir.errors import TargetError
from attn_mlir.runtime.emulator.isa.translate import Translation
from attn_mlir.runtime.emulator.ptx.errors import PtxError
from attn_mlir.runtime.emulator.ptx.opcodes import split_opcode
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.tools import find_ptxas

PHASES = 12  # ptxas reports the errors of one phase, then stops


def _spellings(example: str) -> set[str]:
    """The instruction with one part of its opcode elsewhere; of short opcodes all orders."""
    opcode, _, operands = example.rstrip(";").partition(" ")
    head, *parts = opcode.split(".")
    orders: set[tuple[str, ...]] = set()
    if len(parts) <= 4:
        orders.update(itertools.permutations(parts))
    for start, end in itertools.product(range(len(parts)), repeat=2):
        moved = [*parts]
        moved.insert(end, moved.pop(start))
        orders.add(tuple(moved))
    return {f"{'.'.join((head, *order))} {operands};" for order in orders}


def _code(example: str, target: str) -> list[str] | None:
    """The code that is made for an instruction, without its spelling; None where it is refused."""
    module = parse(kernel_text(example, target))
    try:
        program = Translation(module, module.kernels["k"])
        program.translate_all()
    except PtxError:
        return None
    opcode = example.split(" ")[0].rstrip(";")
    return sorted(made.source.replace(opcode, "") for made in program._generated.values())


def _types(example: str) -> list[str]:
    """The parts whose order among each other has a meaning."""
    parts = example.rstrip(";").split(" ")[0].split(".")
    return [part for part in parts if split_opcode(f"x.{part}.sync")[1] == "sync"]


CUTE = [  # as C++ headers spell them
    ("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {r1, r2, r3, r4}, [r5];", "m8n8.x4.shared"),
    ("ldmatrix.sync.aligned.x2.trans.m8n8.shared.b16 {r1, r2}, [r5];", "m8n8.x2.trans.shared"),
    ("stmatrix.sync.aligned.x4.m8n8.shared.b16 [r5], {r1, r2, r3, r4};", "m8n8.x4.shared"),
    ("stmatrix.sync.aligned.x1.trans.m8n8.shared.b16 [r5], {r1};", "m8n8.x1.trans.shared"),
]


@pytest.mark.parametrize(("spelled", "middle"), CUTE)
def test_matrices_as_cpp_headers_spell_them(spelled: str, middle: str) -> None:
    plain = re.sub(r"aligned\.(.*)\.b16", f"aligned.{middle}.b16", spelled)
    assert plain != spelled
    assert _code(spelled, "sm_90a") == _code(plain, "sm_90a") is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("shfl.bfly.b32.sync", "shfl.sync.bfly.b32 r1, r2, 1, 31, r3;"),
        ("cp.async.shared::cta.cg.global", "cp.async.cg.shared::cta.global [r1], [rd1], 16;"),
        ("cvt.satfinite.f16x2.rs.f32", "cvt.rs.satfinite.f16x2.f32 r1, r2, r3, r4;"),
        ("fence.release.cluster.mbarrier_init", "fence.mbarrier_init.release.cluster;"),
        ("ld.b32.shared", "ld.shared.b32 r1, [r2];"),
        ("setp.f32.ftz.lt", "setp.lt.ftz.f32 p1, r1, r2;"),
        ("prmt.f4e.b32", "prmt.b32.f4e r1, r2, r3, r4;"),
        ("cvt.pack.s8.s32.sat.b32", "cvt.pack.sat.s8.s32.b32 r1, r2, r3, r4;"),
        ("cvt.pack.u16.s32.sat", "cvt.pack.sat.u16.s32 r1, r2, r3;"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.s8",
            "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite "
            "{r1, r2, r3, r4}, rd1, rd2, p1;",
        ),
        ("bar.red.u32.popc", "bar.red.popc.u32 r1, 1, p1;"),
    ],
)
def test_order_of_modifiers_has_no_meaning(one: str, other: str) -> None:
    spelled = re.sub(r"^[\w.:]+", one, other)
    target = "sm_90a" if one.startswith("wgmma") else "sm_100a"
    assert _code(spelled, target) == _code(other, target) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        "mbarrier.b64.init.shared::cta [r1], 1;",  # within the mnemonic
        "cvt.rn.f32.bf16x2 r1, r2, r3;",  # types change places
        "mma.sync.aligned.m16n8k8.col.row.f32.f16.f16.f32 {r1, r2, r3, r4}, {r5, r6}, {r9}, "
        "{r11, r12, r13, r14};",
        "ldmatrix.aligned.m8n8.x1.shared.b16 {r1}, [r5];",  # without .sync
        "shfl.sync.b32 r1, r2, 1, 31, r3;",  # without its mode
    ],
)
def test_what_is_no_order_is_refused(wrong: str) -> None:
    assert _code(wrong, "sm_100a") is None


def _accepted(program: Path, spellings: list[str], target: str, folder: Path) -> list[str]:
    """Those that ptxas takes."""
    head, _, _ = kernel_text("", target).partition(".visible")
    for _ in range(PHASES):
        lines = [head.replace(".version 9.0", ".version 9.3")]
        where: dict[int, str] = {}
        for number, spelled in enumerate(spellings):
            body = kernel_text(spelled, target).partition("tile[1024];")[2]
            lines.append(body.replace("entry k(", f"entry k{number}(").replace("\n", " "))
            where[head.count("\n") + 1 + number + 1] = spelled
        (folder / "k.ptx").write_text("\n".join(lines))
        command = [program, f"-arch={target}", "-O0", folder / "k.ptx", "-o", folder / "k.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        refused = {where[int(line)] for line in re.findall(r"line (\d+); +error", said.stderr)}
        spellings = [spelled for spelled in spellings if spelled not in refused]
        if not refused:
            assert said.returncode == 0, said.stderr
            return spellings
    raise AssertionError(f"ptxas still finds errors after {PHASES} runs")


@pytest.mark.ptxas
@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_every_order_that_ptxas_takes_means_the_same(target: str, tmp_path: Path) -> None:
    try:
        program = find_ptxas()
    except TargetError as error:
        pytest.skip(str(error))
    for section in sorted({row.section for row in families()}):
        plain: dict[str, str] = {}
        for row in families():
            if row.section == section and target in row.targets and not row.reason:
                plain.update(dict.fromkeys(_spellings(row.example), row.example))
        taken = _accepted(program, sorted(plain), target, tmp_path)
        assert len(taken) >= len(set(plain.values()))
        for spelled in taken:
            if _types(spelled) == _types(plain[spelled]):
                assert _code(spelled, target) == _code(plain[spelled], target) is not None, spelled
