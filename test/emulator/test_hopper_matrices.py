"""Matrix products and moves on a Hopper GPU and on the emulator, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from attn_mlir.validation.emulator.hopper_twin import (
    HEAD,
    SHARED_BYTES,
    Array,
    Hopper,
    both,
    differing,
)

pytestmark = pytest.mark.sm_90


# ---- operands ------------------------------------------------------------------------------


def random_codes(
    rng: np.random.Generator, element: str, shape: tuple[int, ...], spread: int, specials: bool
) -> Array:
    """Codes of an element type with exponents over a range of 2 * spread, as unsigned integers."""
    if element in ("e4m3", "e5m2", "u8", "s8"):
        codes = rng.integers(0, 256, shape, np.uint8)
        if not specials and element == "e4m3":
            codes[(codes & 0x7F) == 0x7F] = 0
        if not specials and element == "e5m2":
            codes[(codes & 0x7C) == 0x7C] = 0
        return codes
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    x[rng.random(shape) < 0.1] = 0
    if specials:
        for value in (np.inf, -np.inf, np.nan):
            x[rng.random(shape) < 0.004] = value
    if element == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    bits = x.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if element == "bf16" else bits


# ---- mma.sync ------------------------------------------------------------------------------


def registers(prefix: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{first + i}" for i in range(count)) + "}"


def mma_ptx(shape: str, types: str, counts: tuple[int, int, int, int]) -> str:
    """One mma.sync per CTA: A, B and C registers of lane t at [i][t], D likewise."""
    na, nb, nc, nd = counts
    total = na + nb + nc
    loads = "\n".join(f"  ld.global.b32 %r{10 + i}, [%d3+{128 * i}];" for i in range(total))
    stores = "\n".join(f"  st.global.b32 [%d5+{128 * i}], %r{60 + i};" for i in range(nd))
    a, b, c, d = (
        registers("r", first, n)
        for first, n in ((10, na), (10 + na, nb), (10 + na + nb, nc), (60, nd))
    )
    return f"""{HEAD}
.visible .entry kernel(.param .u64 src, .param .u64 dst)
{{
  .reg .b32 %r<80>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [src];
  ld.param.u64 %d2, [dst];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mul.wide.u32 %d6, %r1, 4;
  mad.wide.u32 %d3, %r2, {128 * total}, %d1;
  add.u64 %d3, %d3, %d6;
  mad.wide.u32 %d5, %r2, {128 * nd}, %d2;
  add.u64 %d5, %d5, %d6;
{loads}
  mma.sync.aligned.{shape}.row.col.{types} {d}, {a}, {b}, {c};
{stores}
  ret;
}}
"""


@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("spread", [2, 12])
@pytest.mark.parametrize(
    ("shape", "d", "a", "b", "counts"),
    [
        ("m16n8k16", "f32", "bf16", "bf16", (4, 2, 4, 4)),
        ("m16n8k16", "f32", "f16", "f16", (4, 2, 4, 4)),
        ("m16n8k16", "f16", "f16", "f16", (4, 2, 2, 2)),
        ("m16n8k8", "f32", "bf16", "bf16", (2, 1, 4, 4)),
        ("m16n8k8", "f32", "tf32", "tf32", (4, 2, 4, 4)),
        ("m16n8k32", "s32", "u8", "s8", (4, 2, 4, 4)),
        ("m16n8k32", "f32", "e4m3", "e5m2", (4, 2, 4, 4)),
    ],
)
def test_mma_sync(
    hopper: Hopper,
    shape: str,
    d: str,
    a: str,
    b: str,
    counts: tuple[int, int, int, int],
    spread: int,
    specials: bool,
):
    rng = np.random.default_rng(spread)
    cases = 64
    parts = [
        random_codes(rng, element, (cases, n, 32, 4 // np.dtype(width).itemsize), spread, specials)
        for element, n, width in (
            (a, counts[0], _width(a)),
            (b, counts[1], _width(b)),
            ("u8" if d == "s32" else d, counts[2], np.uint8 if d == "s32" else _width(d)),
        )
    ]
    source = np.concatenate(
        [np.ascontiguousarray(p).view(np.uint32).reshape(cases, -1, 32) for p in parts], axis=1
    )
    result = np.zeros((cases, counts[3], 32), np.uint32)
    arrays = [np.ascontiguousarray(source), result]
    emulated = both(hopper, mma_ptx(shape, f"{d}.{a}.{b}.{d}", counts), cases, 32, arrays)
    assert differing(arrays[1], emulated[1]) == ""


def _width(element: str) -> Any:
    if element in ("bf16", "f16"):
        return np.uint16
    return np.uint32 if element in ("tf32", "f32") else np.uint8


# ---- wgmma ---------------------------------------------------------------------------------


def wgmma_ptx(n: int, types: str, d_count: int, tail: str, a_registers: bool) -> str:
    """One wgmma per CTA: shared memory from an image, descriptors from a table.

    Tables: image bytes, [case] (a, b) descriptors, [case][register][128] D in and out, and
    [case][4][128] A registers.
    """
    d_load = "\n".join(f"  ld.global.b32 %r{100 + i}, [%d5+{512 * i}];" for i in range(d_count))
    d_store = "\n".join(f"  st.global.b32 [%d5+{512 * i}], %r{100 + i};" for i in range(d_count))
    a_load = "\n".join(f"  ld.global.b32 %r{20 + i}, [%d7+{512 * i}];" for i in range(4))
    a = registers("r", 20, 4) if a_registers else "%d10"
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 image, .param .u64 table, .param .u64 data, .param .u64 left)
.reqntid 128, 1, 1
{{
  .reg .b32 %r<{100 + d_count}>;
  .reg .b64 %d<16>;
  .reg .pred %p<4>;
  ld.param.u64 %d1, [image];
  ld.param.u64 %d2, [table];
  ld.param.u64 %d3, [data];
  ld.param.u64 %d4, [left];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  shl.b32 %r3, %r1, 2;
  mov.u32 %r4, window;
  add.u32 %r4, %r4, %r3;
  cvt.u64.u32 %d6, %r3;
  add.u64 %d1, %d1, %d6;
  mov.u32 %r5, 0;
COPY:
  ld.global.b32 %r6, [%d1];
  st.shared.b32 [%r4], %r6;
  add.u64 %d1, %d1, 512;
  add.u32 %r4, %r4, 512;
  add.u32 %r5, %r5, 512;
  setp.lt.u32 %p1, %r5, {SHARED_BYTES};
  @%p1 bra COPY;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mad.wide.u32 %d2, %r2, 16, %d2;
  ld.global.b64 %d10, [%d2];
  ld.global.b64 %d11, [%d2+8];
  mad.wide.u32 %d5, %r2, {512 * d_count}, %d3;
  add.u64 %d5, %d5, %d6;
  mad.wide.u32 %d7, %r2, 2048, %d4;
  add.u64 %d7, %d7, %d6;
{d_load}
{a_load}
  and.b32 %r7, %r2, 3;
  setp.ne.u32 %p2, %r7, 3;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n{n}{types} {registers("r", 100, d_count)}, {a}, %d11, %p2{tail};
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
{d_store}
  ret;
}}
"""


@dataclass(frozen=True)
class Form:
    """A wgmma form: its types and what follows scale-d."""

    d: str
    a: str
    b: str
    k: int

    def text(self) -> str:
        return f"k{self.k}.{self.d}.{self.a}.{self.b}"

    def tail(self, signs: tuple[int, int], transposes: tuple[int, int], in_registers: bool) -> str:
        if self.a in ("u8", "s8"):
            return ""
        text = f", {signs[0]}, {signs[1]}"
        if self.a in ("f16", "bf16"):
            text += f", {transposes[1]}" if in_registers else f", {transposes[0]}, {transposes[1]}"
        return text


BF16 = Form("f32", "bf16", "bf16", 16)
FORMS = [
    BF16,
    Form("f32", "f16", "f16", 16),
    Form("f16", "f16", "f16", 16),
    Form("f32", "tf32", "tf32", 8),
    Form("f32", "e4m3", "e5m2", 32),
    Form("f16", "e5m2", "e4m3", 32),
    Form("s32", "u8", "s8", 32),
]


def image_of(rng: np.random.Generator, element: str, spread: int, specials: bool) -> Array:
    count = SHARED_BYTES // np.dtype(_width(element)).itemsize
    return np.ascontiguousarray(random_codes(rng, element, (count,), spread, specials)).view(
        np.uint8
    )


def run_wgmma(
    hopper: Hopper,
    form: Form,
    n: int,
    descriptors: Array,
    *,
    spread: int = 3,
    specials: bool = False,
    signs: tuple[int, int] = (1, 1),
    transposes: tuple[int, int] = (0, 0),
    in_registers: bool = False,
) -> str:
    """Differences between GPU and emulator over all cases (rows of `descriptors`)."""
    rng = np.random.default_rng(n + spread)
    cases = len(descriptors)
    d_count = n // 4 if form.d == "f16" else n // 2
    image = image_of(rng, form.a, spread, specials)
    if form.a != form.b and form.a not in ("u8", "s8"):
        image[(image & 0x7C) >= 0x78] = 0  # finite in either 8-bit format
    d_element = "u8" if form.d == "s32" else form.d
    data = random_codes(
        rng, d_element, (cases, d_count, 128 * 4 // np.dtype(_width(d_element)).itemsize),
        spread, specials,
    )  # fmt: skip
    left = random_codes(
        rng, form.a, (cases, 4, 128 * 4 // np.dtype(_width(form.a)).itemsize), spread, specials
    )
    arrays = [
        image,
        np.ascontiguousarray(descriptors),
        np.ascontiguousarray(data).view(np.uint32).reshape(cases, d_count, 128),
        np.ascontiguousarray(left).view(np.uint32).reshape(cases, 4, 128),
    ]
    ptx = wgmma_ptx(
        n, form.text(), d_count, form.tail(signs, transposes, in_registers), in_registers
    )
    emulated = both(hopper, ptx, cases, 128, arrays)
    return differing(arrays[2], emulated[2])


def sm90(start: int, lbo: int, sbo: int, swizzle: int) -> int:
    return swizzle << 62 | (sbo >> 4) << 32 | (lbo >> 4) << 16 | start >> 4


def k_major_cases(rng: np.random.Generator, count: int, rows: int) -> list[int]:
    """Descriptors whose `rows` rows stay in the image: every swizzle, random strides, K steps."""
    out: list[int] = []
    groups = rows // 8
    while len(out) < count:
        code = int(rng.integers(0, 4))
        span = {0: 16, 1: 128, 2: 64, 3: 32}[code]
        sbo = 8 * span * int(rng.integers(1, 3)) if code else 16 * int(rng.integers(1, 40))
        lbo = 16 if code else 16 * int(rng.integers(1, 80))
        unit = 8 * span if code else 16
        last = (groups - 1) * sbo + 8 * span + (lbo if not code else 0)
        if last + unit > SHARED_BYTES:
            continue
        slot = int(rng.integers(0, (SHARED_BYTES - last) // unit))
        step = 32 * int(rng.integers(0, span // 32)) if code else 0
        out.append(sm90(0x400 + slot * unit + step, lbo, sbo, code))
    return out


def mn_major_cases(rng: np.random.Generator, count: int, mn_bytes: int) -> list[int]:
    """Descriptors of MN-major operands, K = 16, with strides that keep them in the image."""
    out: list[int] = []
    while len(out) < count:
        code = int(rng.integers(0, 4))
        span = {0: 16, 1: 128, 2: 64, 3: 32}[code]
        unit = 8 * span
        near, far = (unit * int(rng.integers(1, 5)) for _ in range(2))
        groups = max(mn_bytes // span, 1)
        # without swizzle LBO steps over K and SBO over MN, with one the other way round
        lbo, sbo = (near, far) if code else (far, near)
        over_mn, over_k = (lbo, sbo) if code else (sbo, lbo)
        last = (groups - 1) * over_mn + over_k + unit
        if last + unit > SHARED_BYTES or mn_bytes % span:
            continue
        slot = int(rng.integers(0, (SHARED_BYTES - last) // unit))
        out.append(sm90(0x400 + slot * unit, lbo, sbo, code))
    return out


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=Form.text)
def test_wgmma_k_major(hopper: Hopper, form: Form, in_registers: bool):
    """Every K-major layout; operands span the image, which fills all of shared memory."""
    rng = np.random.default_rng(0)
    n = 64
    pairs = zip(k_major_cases(rng, 48, 64), k_major_cases(rng, 48, n), strict=True)
    table = np.array(list(pairs), np.uint64)
    for spread in (2, 12):
        assert run_wgmma(hopper, form, n, table, spread=spread, in_registers=in_registers) == ""


@pytest.mark.parametrize("transpose_b", [0, 1])
@pytest.mark.parametrize("code", [1, 2, 3])
def test_wgmma_base_offset(hopper: Hopper, code: int, transpose_b: int):
    """Tiles that start in any row of the swizzle pattern, with the base offset that says so."""
    pitch = {1: 128, 2: 64, 3: 32}[code]
    cases = [
        [sm90(at + 128 * phase, 512, 8 * pitch, code) | phase << 49 for at in (0x2400, 0x6400)]
        for phase in range(8)
    ]
    table = np.array(cases, np.uint64)
    assert run_wgmma(hopper, BF16, 64, table, transposes=(0, transpose_b)) == ""


@pytest.mark.parametrize(("lbo", "code"), [(0, 0), (0, 1), (768, 1), (0, 2), (768, 3)])
def test_wgmma_k_major_leading_offset(hopper: Hopper, lbo: int, code: int):
    """Unused with a swizzle; taken as it is without one."""
    pitch = {0: 32, 1: 128, 2: 64, 3: 32}[code]
    table = np.array([[sm90(at, lbo, 8 * pitch, code) for at in (0x2400, 0x6400)]], np.uint64)
    assert run_wgmma(hopper, BF16, 64, table) == ""


@pytest.mark.parametrize("form", FORMS[:3], ids=Form.text)
@pytest.mark.parametrize("transposes", [(0, 1), (1, 0), (1, 1)])
def test_wgmma_mn_major(hopper: Hopper, form: Form, transposes: tuple[int, int]):
    rng = np.random.default_rng(1)
    n = 64
    a = mn_major_cases(rng, 48, 128) if transposes[0] else k_major_cases(rng, 48, 64)
    b = mn_major_cases(rng, 48, 2 * n) if transposes[1] else k_major_cases(rng, 48, n)
    table = np.array(list(zip(a, b, strict=True)), np.uint64)
    assert run_wgmma(hopper, form, n, table, transposes=transposes) == ""


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_wgmma_sizes_and_signs(hopper: Hopper, n: int):
    rng = np.random.default_rng(2)
    pairs = zip(k_major_cases(rng, 16, 64), k_major_cases(rng, 16, n), strict=True)
    table = np.array(list(pairs), np.uint64)
    for signs in ((1, 1), (-1, 1), (-1, -1)):
        assert run_wgmma(hopper, BF16, n, table, signs=signs) == ""


@pytest.mark.parametrize("form", FORMS[:4], ids=Form.text)
def test_wgmma_special_values(hopper: Hopper, form: Form):
    rng = np.random.default_rng(3)
    pairs = zip(k_major_cases(rng, 16, 64), k_major_cases(rng, 16, 32), strict=True)
    table = np.array(list(pairs), np.uint64)
    assert run_wgmma(hopper, form, 32, table, spread=40, specials=True) == ""


# ---- ldmatrix, stmatrix, movmatrix ---------------------------------------------------------

MATRIX_PTX = f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 rows, .param .u64 values, .param .u64 dst)
.reqntid 32, 1, 1
{{
  .reg .b32 %r<40>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [rows];
  ld.param.u64 %d2, [values];
  ld.param.u64 %d3, [dst];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %d4, %r1, 4;
  add.u64 %d1, %d1, %d4;
  add.u64 %d2, %d2, %d4;
  add.u64 %d3, %d3, %d4;
  ld.global.b32 %r2, [%d1];
  mov.u32 %r3, window;
  add.u32 %r2, %r2, %r3;
  ld.global.b32 %r10, [%d2];
  ld.global.b32 %r11, [%d2+128];
  ld.global.b32 %r12, [%d2+256];
  ld.global.b32 %r13, [%d2+384];
  stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {{%r10, %r11, %r12, %r13}};
  bar.sync 0;
  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r2];
  bar.sync 0;
  stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r2], {{%r20, %r12}};
  bar.sync 0;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r24, %r25, %r26, %r27}}, [%r2];
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r28, %r29}}, [%r2];
  movmatrix.sync.aligned.m8n8.trans.b16 %r30, %r13;
  st.global.b32 [%d3], %r20;
  st.global.b32 [%d3+128], %r21;
  st.global.b32 [%d3+256], %r22;
  st.global.b32 [%d3+384], %r23;
  st.global.b32 [%d3+512], %r24;
  st.global.b32 [%d3+640], %r25;
  st.global.b32 [%d3+768], %r26;
  st.global.b32 [%d3+896], %r27;
  st.global.b32 [%d3+1024], %r28;
  st.global.b32 [%d3+1152], %r29;
  st.global.b32 [%d3+1280], %r30;
  ret;
}}
"""


def test_matrix_moves(hopper: Hopper):
    rng = np.random.default_rng(0)
    rows = (16 * rng.permutation(256)[:32]).astype(np.uint32)
    values = rng.integers(0, 1 << 32, (4, 32), np.uint32)
    arrays: list[Array] = [rows, values, np.zeros((11, 32), np.uint32)]
    emulated = both(hopper, MATRIX_PTX, 1, 32, arrays)
    assert differing(arrays[2], emulated[2]) == ""
