"""What sm_103a has and sm_100a has not: tcgen05.ld with a reduction. And the other way round.

PTX ISA, tcgen05.ld, target notes: `.red` is for sm_103a and sm_110a and not for sm_100a.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from coverage_page import kernel_text

from attn_mlir.runtime.emulator import Emulator, PtxError
from attn_mlir.runtime.emulator.isa.translate import Translation
from attn_mlir.runtime.emulator.ptx.layout import lay_out_local, lay_out_shared
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.validation.emulator.ptx_bench import module, run_module
from attn_mlir.validation.emulator.tensor_bench import ALLOC, DEALLOC

SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
SHARED = ".shared .align 8 .b8 bar[64];\n.shared .align 4 .b8 slot[16];"
START = "mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; mov.u32 r1, bar; setp.eq.u32 p1, r60, 0;"
COUNT = 8
WAIT = "tcgen05.wait::ld.sync.aligned;"
F32 = ("f32", *(f"f32.{words}" for words in ("abs", "NaN", "abs.NaN")))

Array = npt.NDArray[Any]


def _cells() -> npt.NDArray[np.uint32]:
    """128 rows of numbers, zeros of both signs, infinities and NaN, some rows of NaN alone."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((128, COUNT)).astype(np.float32)
    rows[::3, 2] = np.nan
    rows[5] = np.nan
    rows[7] = [0.0, -0.0] * (COUNT // 2)
    rows[9, 1], rows[10, 1] = np.inf, -np.inf
    return rows.view(np.uint32)


def _loaded(opcode: str, wait: str, schedule: str, seed: int, half: str = "") -> Array:
    """uint32[128, COUNT + 1]: the registers of a load of `_cells`, and what it reduces them to."""
    words = ", ".join(f"r{30 + n}" for n in range(COUNT))
    body = f"""
    {START} {ALLOC}
    ld.param.u64 rd1, [cells]; mad.wide.u32 rd1, r60, {4 * COUNT}, rd1;
    {" ".join(f"ld.global.b32 r{30 + n}, [rd1+{4 * n}];" for n in range(COUNT))}
    tcgen05.st.sync.aligned.32x32b.x{COUNT}.b32 [r22], {{{words}}}; tcgen05.wait::st.sync.aligned;
    {" ".join(f"mov.b32 r{30 + n}, 0;" for n in range(COUNT))}
    {opcode} {{{words}}}, r50, [r22]{half}; {wait}
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r60, {4 * (COUNT + 1)}, rd2;
    {" ".join(f"st.global.b32 [rd2+{4 * n}], r{30 + n};" for n in range(COUNT))}
    st.global.b32 [rd2+{4 * COUNT}], r50; {WAIT}
    {DEALLOC.replace("<free_before>", "").replace("<free_barrier>", "")}
    """.replace("<alloc_after>", "")
    text = module(body, ".param .u64 cells, .param .u64 out", before=SHARED, target="sm_103a")
    out = np.zeros((128, COUNT + 1), np.uint32)
    emulator = Emulator("sm_103a", schedule=schedule, seed=seed, check="all,-unpromised")  # type: ignore[arg-type]
    run_module(text, [_cells(), out], block=(128, 1, 1), emulator=emulator)
    return out


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("wait", [WAIT, ""])
@pytest.mark.parametrize(("op", "kind"), list(product(("min", "max"), (*F32, "u32", "s32"))))
def test_a_load_reduces_the_registers_of_each_thread(
    op: str, kind: str, wait: str, schedule: str, seed: int
) -> None:
    opcode = f"tcgen05.ld.red.sync.aligned.32x32b.x{COUNT}.{op}.{kind}"
    out, cells = _loaded(opcode, wait, schedule, seed), _cells()
    assert (out[:, :COUNT] == cells).all()
    got = out[:, COUNT]
    if not kind.startswith("f32"):
        values = cells.view(np.int32 if kind == "s32" else np.uint32)
        assert (got.view(values.dtype) == getattr(values, op)(axis=1)).all()
        return
    values = cells.view(np.float32)
    values = np.abs(values) if "abs" in kind else values
    keeps = "NaN" in kind
    ignoring = np.where(np.isnan(values), np.float32(np.inf if op == "min" else -np.inf), values)
    expected = getattr(ignoring, op)(axis=1)
    lost = np.isnan(values).any(axis=1) if keeps else np.isnan(values).all(axis=1)
    assert (np.isnan(got.view(np.float32)) == lost).all()
    assert (got[lost] == 0x7FFFFFFF).all()
    assert (got.view(np.float32)[~lost] == expected[~lost]).all()
    negative = op == "min" and "abs" not in kind  # of the row of zeros
    assert got[7] == (0x80000000 if negative else 0)


def test_each_half_of_the_threads_reduces_its_own_half() -> None:
    opcode = f"tcgen05.ld.red.sync.aligned.16x32bx2.x{COUNT // 2}.u32.max"
    out = np.zeros((128, COUNT // 2 + 1), np.uint32)
    words = ", ".join(f"r{30 + n}" for n in range(COUNT // 2))
    body = f"""
    {START} {ALLOC}
    {" ".join(f"add.u32 r{30 + n}, r60, {100 * n};" for n in range(COUNT))}
    tcgen05.st.sync.aligned.32x32b.x{COUNT}.b32 [r22], {{{", ".join(f"r{30 + n}" for n in range(COUNT))}}};
    tcgen05.wait::st.sync.aligned;
    {opcode} {{{words}}}, r50, [r22], {COUNT // 2}; {WAIT}
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r60, {4 * (COUNT // 2 + 1)}, rd2;
    st.global.b32 [rd2+{2 * COUNT}], r50;
    {DEALLOC.replace("<free_before>", "").replace("<free_barrier>", "")}
    """.replace("<alloc_after>", "")
    text = module(body, ".param .u64 out", before=SHARED, target="sm_103a")
    run_module(text, [out], block=(128, 1, 1), emulator=Emulator("sm_103a"))
    thread = np.arange(128)
    lane = thread // 32 * 32 + thread % 16
    last = np.where(thread % 32 < 16, COUNT // 2 - 1, COUNT - 1)
    assert (out[:, -1] == lane + 100 * last).all()


def _refusal(example: str, target: str) -> str:
    """The emulator's error for an instruction, or ""."""
    parsed = parse(kernel_text(example, target))
    kernel = parsed.kernels["k"]
    lay_out_shared(parsed, kernel)
    lay_out_local(kernel)
    try:
        Translation(parsed, kernel).translate_all()
    except PtxError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("example", "target", "says"),
    [
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {r1, r2}, r4, [r3];", "sm_103a", ""),
        (
            "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {r1, r2}, r4, [r3];",
            "sm_100a",
            "needs sm_103a",
        ),
        (
            "tcgen05.mma.cta_group::1.kind::i8 [r1], rd1, rd2, r2, p1;",
            "sm_103a",
            "sm_103a has no",
        ),
        (
            "tcgen05.ld.red.sync.aligned.32x32b.x1.max.f32 {r1}, r4, [r3];",
            "sm_103a",
            "two registers at least",
        ),
        (
            "tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.u32 {r1, r2}, r4, [r3];",
            "sm_103a",
            "for .f32 alone",
        ),
        (
            "tcgen05.ld.red.sync.aligned.32x32b.x2.f32 {r1, r2}, r4, [r3];",
            "sm_103a",
            "needs one of .min, .max",
        ),
        (
            "tcgen05.ld.red.sync.aligned.16x64b.x2.max.f32 {r1, r2}, r4, [r3];",
            "sm_103a",
            "unknown modifier",
        ),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {r1, r2}, [r3];", "sm_103a", "line"),
        ("wgmma.fence.sync.aligned;", "sm_103a", "needs sm_90a"),
        ("tcgen05.wait::ld.sync.aligned;", "sm_90a", "needs sm_100a or sm_103a"),
    ],
)
def test_what_a_target_has(example: str, target: str, says: str) -> None:
    message = _refusal(example, target)
    assert says in message and bool(message) is bool(says)
