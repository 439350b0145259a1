"""What the GPU taught the emulator, each difference reduced to one instruction.

Operands and results are those of an H200; the emulator differed, or did not know the form.
"""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.emulator import Emulator
from attn_mlir.validation.differential.case import HEAD

# opcode, widths of result and sources ("h" 16, "r" 32, "d" 64 bits, "p" predicate), operands, result
CASES = [
    # NaN to an integer: 2^(n-1) from f64, 0 from f32
    ("cvt.rni.s32.f64", "rd", (0xFFF8000000001234,), 0x80000000),
    ("cvt.rmi.u16.f64", "hd", (0x7FF0000000000001,), 0x8000),
    ("cvt.rzi.s8.f64", "rd", (0x7FF8000000000000,), 0xFFFFFF80),
    ("cvt.rzi.s32.f32", "rr", (0x7F800001,), 0),
    ("cvt.rzi.u64.f16", "dh", (0x7E00,), 0x8000000000000000),
    # directed roundings of f64
    ("cvt.rz.f64.u64", "dd", (0xFFFFFFFFFFFFFFFF,), 0x43EFFFFFFFFFFFFF),
    ("cvt.rp.f64.u64", "dd", (0xFFFFFFFFFFFFFFFF,), 0x43F0000000000000),
    ("add.rm.f64", "ddd", (0x3FF0000000000000, 0xBFF0000000000000), 0x8000000000000000),
    ("add.rp.f64", "ddd", (0x3FF0000000000000, 0x0000000000000001), 0x3FF0000000000001),
    ("mul.rz.f64", "ddd", (0x7FEFFFFFFFFFFFFF, 0x4000000000000000), 0x7FEFFFFFFFFFFFFF),
    # .ftz looks at a result before it is rounded, and conversions to f16 ignore it
    ("cvt.rp.ftz.f32.f64", "rd", (0x380FFFFFE0000000,), 0x00000000),
    ("cvt.rm.ftz.f16.f32", "hr", (0x80000001,), 0x8001),
    ("slct.ftz.s32.f32", "rrrr", (1, 2, 0x80000001), 1),
    ("neg.ftz.f16x2", "rr", (0x00010002,), 0x80008000),
    # .relu makes +0 of -0; .satfinite
    ("cvt.rn.relu.f16.f32", "hr", (0x80000000,), 0x0000),
    ("cvt.rn.relu.tf32.f32", "rr", (0x80000000,), 0x00000000),
    ("cvt.rn.relu.f16x2.e5m2x2", "rh", (0x8080,), 0x00000000),
    ("cvt.rn.satfinite.f16.f32", "hr", (0xFF800000,), 0xFBFF),
    ("cvt.rz.satfinite.bf16.f32", "hr", (0x7F800000,), 0x7F7F),
    ("cvt.rna.satfinite.tf32.f32", "rr", (0xFF800000,), 0xFF7FE000),
    # an exact zero is -0 when rounding down
    ("fma.rm.f32", "rrrr", (0x3F800000, 0x3F800000, 0xBF800000), 0x80000000),
    ("mad.rn.f64", "dddd", (0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x7FF0000000000000),
     0x7FF0000000000000),
    # comparisons
    ("set.leu.f16.f16", "hhh", (0x3C00, 0x7E00), 0x3C00),
    ("set.gt.f16x2.f16x2", "rrr", (0x40003C00, 0x3C003C00), 0x3C000000),
    ("max.xorsign.abs.f16", "hhh", (0xC000, 0x3C00), 0xC000),
    # outside the range that has a quotient, and only the high words of f64
    ("div.approx.f32", "rrr", (0xE84248FA, 0xFEA5DE03), 0x00000000),
    ("rcp.approx.ftz.f64", "dd", (0xFFEFFFFFFFFFFFFF,), 0x8000000000000000),
    ("rcp.approx.ftz.f64", "dd", (0x7FF0000000000001,), 0x0000000000000000),
    ("rsqrt.approx.ftz.f64", "dd", (0x0000000000000001,), 0x7FF0000000000000),
    ("ex2.approx.ftz.bf16x2", "rr", (0xC303C303,), 0x00000000),
    # forms that were unknown
    ("sad.s32", "rrrr", (-5 % 2**32, 7, 100), 112),
    ("mad.hi.sat.s32", "rrrr", (0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF), 0x7FFFFFFF),
    ("dp2a.hi.s32.u32", "rrrr", (0x0002FFFF, 0x03040000, 10), 12),
    ("bmsk.clamp.b32", "rrr", (4, 40), 0xFFFFFFF0),
    ("bmsk.wrap.b32", "rrr", (36, 40), 0x00000FF0),
    ("szext.wrap.s32", "rrr", (0x0000008F, 4), 0xFFFFFFFF),
    ("szext.clamp.u32", "rrr", (0xDEADBEEF, 40), 0xDEADBEEF),
    ("fns.b32", "rrrr", (0b10110, 1, 2), 2),
    ("cvt.pack.sat.s8.s32.b32", "rrrr", (-1000 % 2**32, 1000, 0x1234), 0x1234807F),
]  # fmt: skip
_BITS = {"h": 16, "r": 32, "d": 64}


def run(opcode: str, widths: str, operands: tuple[int, ...]) -> int:
    """The result's bits of one instruction on one set of operands."""
    loads = "\n".join(
        f"mov.b{_BITS[w]} {w}{i + 1}, {value};"
        for i, (w, value) in enumerate(zip(widths[1:], operands, strict=True))
    )
    sources = ", ".join(f"{w}{i + 1}" for i, w in enumerate(widths[1:]))
    d = widths[0]
    ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 out)
{{
  .reg .b16 h<6>; .reg .b32 r<6>; .reg .b64 d<6>; .reg .b64 at;
  ld.param.u64 at, [out];
  {loads}
  {opcode} {d}0, {sources};
  st.global.b{_BITS[d]} [at], {d}0;
  ret;
}}
"""
    out = np.zeros(1, f"u{_BITS[d] // 8}")
    emulator = Emulator(target="sm_90a")
    emulator.launch(ptx, "kernel", grid=(1,), block=(1,), params=[emulator.map(out)])
    return int(out[0])


@pytest.mark.parametrize(("opcode", "widths", "operands", "result"), CASES)
def test_measured_result(opcode: str, widths: str, operands: tuple[int, ...], result: int):
    assert hex(run(opcode, widths, operands)) == hex(result)


def _atomic(space: str, opcode: str, old: int, operand: int, bits: int) -> int:
    base = "at" if space == "global" else "bar"
    ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 out)
{{
  .reg .b32 r<4>; .reg .b64 d<4>; .reg .b16 h<4>; .reg .b64 at;
  .shared .align 8 .b64 bar;
  ld.param.u64 at, [out];
  mov.b{bits} {"hrd"[bits // 32]}0, {operand};
  ld.global.b64 d1, [at];
  st.shared.b64 [bar], d1;
  {opcode} [{base}], {"hrd"[bits // 32]}0;
  ld.{space}.b64 d1, [{base}];
  st.global.b64 [at], d1;
  ret;
}}
"""
    out = np.array([old], np.uint64)
    emulator = Emulator(target="sm_90a")
    emulator.launch(ptx, "kernel", grid=(1,), block=(1,), params=[emulator.map(out)])
    return int(out[0])


@pytest.mark.parametrize(
    ("space", "opcode", "old", "operand", "bits", "result"),
    [
        # f32: subnormals are flushed in global memory only; NaN is canonical
        ("global", "red.global.add.f32", 0x1, 0x807FFFFF, 32, 0x0),
        ("shared", "red.shared.add.f32", 0x807FFFFF, 0x80000000, 32, 0x807FFFFF),
        ("shared", "red.shared.add.f32", 0x46917903, 0x7F800001, 32, 0x7FFFFFFF),
        # f64: a signalling NaN stays as it is in global memory
        ("global", "red.global.add.f64", 0x41DFFFFFFFC00000, 0x7FF0000000000001, 64,
         0x7FF0000000000001),
        # minima drop a NaN, signalling ones too
        ("global", "red.global.add.noftz.f16", 0x3C00, 0x7C01, 16, 0x7FFF),
    ],
)  # fmt: skip
def test_measured_atomic(space: str, opcode: str, old: int, operand: int, bits: int, result: int):
    assert hex(_atomic(space, opcode, old, operand, bits)) == hex(result)
