"""Where `.ftz` need not look for subnormal numbers, and that it finds them everywhere else."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attn_mlir.runtime.emulator.isa.arithmetic.rounding import flush
from attn_mlir.runtime.emulator.ptx.normal import normal_registers
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.validation.emulator.ptx_bench import run_lanes

HEAD = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p)
{ .reg .pred q; .reg .b16 h; .reg .b32 a, b, c, d; .reg .f32 f; .reg .b64 v, w; .reg .f64 e;
"""


def normal(body: str) -> set[str]:
    """The registers of the text that never hold a subnormal number, by name."""
    (kernel,) = parse(f"{HEAD}{body} ret; }}").kernels.values()
    bits, named = normal_registers(kernel), set(re.findall(r"\b[a-w]\b", body))
    return {r.name for r in kernel.registers if bits >> r.index & 1 and r.name in named}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("add.ftz.f32 a, b, c; mov.b32 d, a;", "a b c d"),
        ("ld.param.b32 b, [p]; add.ftz.f32 a, b, c; add.f32 d, a, a;", "a c"),
        ("add.rn.ftz.f32x2 v, v, w; mov.b64 {a, b}, v; mov.b64 w, {a, 0f3F800000};", "v w a b"),
        ("mov.u32 c, %tid.x; mov.b64 v, {a, c}; mov.b64 {d, b}, v;", "a"),
        ("mov.b32 a, 0f00000001; mov.b32 b, 0f00800000; mov.b32 c, 1; mov.b32 d, -1;", "b d"),
        ("mov.b64 v, 4294967296; mov.b64 w, -1;", "w"),
        ("mov.f32 f, 1e-40; mov.b64 v, 0d0000000000000001;", ""),
        ("mul.ftz.f32 a, b, b; shl.b32 a, a, 3;", "b"),
        ("max.ftz.f32 a, b, c; add.s32 d, a, a; selp.b32 c, a, d, q; selp.f32 b, a, a, q;", "q a b"),
        ("mov.b32 a, b; mov.b32 b, c; mov.b32 c, d; cvt.rn.f32.f16 d, h;", "h"),
        ("cvt.ftz.f32.f32 a, b; neg.ftz.f32 c, b; mul.rn.f32 d, b, b;", "b c"),
        ("@q fma.rn.ftz.f32 a, b, c, d; @!q ex2.approx.ftz.f32 b, a;", "q a b c d"),
    ],
)  # fmt: skip
def test_registers(body: str, expected: str) -> None:
    assert normal(body) - {"q", "h"} == set(expected.split()) - {"q", "h"}


def test_flushing_is_by_the_exponent_and_keeps_the_sign() -> None:
    """Every exponent and sign with fractions of all kinds, NaN of both kinds among them."""
    fractions = np.array([0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF], np.uint32)
    bits = (np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23) | fractions).ravel()
    with np.errstate(invalid="ignore"):
        for part in (bits, bits[bits & 0x7F800000 != 0], bits.reshape(2, -1)):
            found = flush(part.view(np.float32)).view(np.uint32)
            assert np.array_equal(found, np.where(part & 0x7F800000 == 0, part & 0x80000000, part))


def test_a_subnormal_number_is_found_behind_moves() -> None:
    """A loaded one, through a pair, a choice and a move; and one that an immediate brings."""
    tiny = np.full(32, 0x00400000, np.uint32).view(np.float32)
    x, y = run_lanes(
        """.reg .b64 v; .reg .b32 s, t; .reg .pred q; setp.eq.b32 q, 0, 0;
        mov.b64 v, {a, a}; mov.b64 {s, t}, v; selp.b32 t, t, s, q; mul.ftz.f32 x, t, 0f4B000000;
        mov.b32 s, 0f00400000; mul.ftz.f32 y, s, 0f4B000000;""",
        [tiny],
        [np.float32] * 2,
    )
    assert (x == 0).all() and (y == 0).all()
