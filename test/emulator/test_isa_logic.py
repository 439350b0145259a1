"""lop3, prmt, mov, setp, selp and address conversion."""

import numpy as np
import pytest

from attn_mlir.runtime.emulator import PtxError
from attn_mlir.validation.emulator.ptx_bench import f32, module, run_lanes, run_module

RNG = np.random.default_rng(11)
WORDS = RNG.integers(0, 1 << 32, (3, 64), dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize(
    "table", [0x00, 0x80, 0xFE, 0x96, 0xEA, 0xF8, 0xCA, 0xE8, 0x1B, 0x57, 0xFF]
)
def test_lop3(table: int) -> None:
    (x,) = run_lanes(f"lop3.b32 x, a, b, c, {table};", list(WORDS), [np.uint32])
    for lane in range(64):
        a, b, c = (int(row[lane]) for row in WORDS)
        want = 0
        for bit in range(32):
            index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1
            want |= (table >> index & 1) << bit
        assert int(x[lane]) == want


def _permuted(a: int, b: int, selector: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for j in range(4):
        nibble = selector >> 4 * j & 15
        byte = source[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * j
    return result


@pytest.mark.parametrize("selector", [0x5410, 0x7632, 0x1032, 0x3210, 0xFEDC, 0x4321, 0x0088])
def test_prmt_with_a_constant(selector: int) -> None:
    a, b, _ = WORDS
    (x,) = run_lanes(f"prmt.b32 x, a, b, {selector};", [a, b], [np.uint32])
    assert x.tolist() == [_permuted(int(p), int(q), selector) for p, q in zip(a, b, strict=True)]


def test_prmt_with_a_register() -> None:
    a, b, c = WORDS
    (x,) = run_lanes("prmt.b32 x, a, b, c;", [a, b, c], [np.uint32])
    for lane in range(64):
        assert int(x[lane]) == _permuted(int(a[lane]), int(b[lane]), int(c[lane]) & 0xFFFF)


@pytest.mark.parametrize(
    ("mode", "selectors"),
    [
        ("f4e", (0x3210, 0x4321, 0x5432, 0x6543)),
        ("b4e", (0x5670, 0x6701, 0x7012, 0x0123)),
        ("rc8", (0x0000, 0x1111, 0x2222, 0x3333)),
        ("ecl", (0x3210, 0x3211, 0x3222, 0x3333)),
        ("ecr", (0x0000, 0x1110, 0x2210, 0x3210)),
        ("rc16", (0x1010, 0x3232, 0x1010, 0x3232)),
    ],
)
def test_prmt_modes(mode: str, selectors: tuple[int, ...]) -> None:
    a, b, _ = WORDS
    n = np.arange(64, dtype=np.uint32)
    (x,) = run_lanes(f"prmt.b32.{mode} x, a, b, c;", [a, b, n], [np.uint32])
    for lane in range(64):
        assert int(x[lane]) == _permuted(int(a[lane]), int(b[lane]), selectors[lane & 3])


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("op", list(COMPARISONS))
def test_integer_comparisons(op: str) -> None:
    a = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 5], np.uint32)
    b = np.array([0, 2, 0x80000000, 0x7FFFFFFF, 0, 5], np.uint32)
    body = f"setp.{op}.s32 p1, a, b; selp.b32 x, 1, 0, p1; setp.{op}.u32 p2, a, b; selp.b32 y, 1, 0, p2;"
    if op in ("eq", "ne"):
        body = body.replace("u32 p2", "b32 p2")
    x, y = run_lanes(body, [a, b], [np.uint32] * 2)
    oracle = COMPARISONS[op]
    assert x.tolist() == oracle(a.view(np.int32), b.view(np.int32)).astype(int).tolist()
    assert y.tolist() == oracle(a, b).astype(int).tolist()


@pytest.mark.parametrize("op", list(COMPARISONS))
def test_float_comparisons_with_nan(op: str) -> None:
    a = f32(1.0, 2.0, np.nan, 1.0, np.nan, -0.0, np.inf)
    b = f32(2.0, 1.0, 1.0, np.nan, np.nan, 0.0, np.inf)
    body = f"setp.{op}.f32 p1, a, b; selp.b32 x, 1, 0, p1; setp.{op}u.f32 p2, a, b; selp.b32 y, 1, 0, p2;"
    body += (
        "setp.num.f32 p3, a, b; selp.b32 z, 1, 0, p3; setp.nan.f32 p4, a, b; selp.b32 w, 1, 0, p4;"
    )
    x, y, z, w = run_lanes(body, [a, b], [np.uint32] * 4)
    unordered = np.isnan(a) | np.isnan(b)
    holds = COMPARISONS[op](a, b)
    assert x.tolist() == (holds & ~unordered).astype(int).tolist()
    assert y.tolist() == (holds | unordered).astype(int).tolist()
    assert z.tolist() == (~unordered).astype(int).tolist()
    assert w.tolist() == unordered.astype(int).tolist()


def test_setp_with_two_results_and_a_third_operand() -> None:
    a = np.array([0, 1, 2, 3], np.uint32)
    body = """
    setp.eq.u32 p3, a, 2;
    setp.lt.and.u32 p1|p2, a, 3, p3;
    selp.b32 x, 1, 0, p1; selp.b32 y, 1, 0, p2;
    setp.lt.or.u32 p4, a, 1, !p3;
    selp.b32 z, 1, 0, p4;
    """
    x, y, z = run_lanes(body, [a], [np.uint32] * 3)
    assert x.tolist() == [0, 0, 1, 0]
    assert y.tolist() == [0, 0, 0, 0]
    assert z.tolist() == [1, 1, 0, 1]


def test_set_and_slct() -> None:
    a = np.array([-2, 0, 3], np.int32)
    x, y, z = run_lanes(
        "set.gt.u32.s32 x, a, 0; set.gt.f32.s32 y, a, 0; slct.b32.s32 z, 10, 20, a;",
        [a],
        [np.uint32, np.float32, np.uint32],
    )
    assert x.tolist() == [0, 0, 0xFFFFFFFF]
    assert y.tolist() == [0.0, 0.0, 1.0]
    assert z.tolist() == [20, 10, 10]


def test_predicates_are_values() -> None:
    a = np.array([0, 1, 2, 3], np.uint32)
    body = """
    setp.eq.u32 p1, a, 1; setp.ge.u32 p2, a, 1;
    and.pred p3, p1, p2; or.pred p4, p1, p2; xor.pred p5, p1, p2; not.pred p6, p2;
    selp.b32 r1, 1, 0, p3; selp.b32 r2, 2, 0, p4; selp.b32 r3, 4, 0, p5; selp.b32 r4, 8, 0, p6;
    or.b32 r1, r1, r2; or.b32 r3, r3, r4; or.b32 x, r1, r3;
    mov.pred p7, p1; selp.b32 y, 1, 0, p7;
    """
    x, y = run_lanes(body, [a], [np.uint32] * 2)
    assert x.tolist() == [8, 3, 6, 6]
    assert y.tolist() == [0, 1, 0, 0]


def test_guards_keep_other_lanes() -> None:
    a = np.arange(32, dtype=np.uint32)
    body = """
    mov.b32 x, 7; mov.b32 y, 7;
    setp.lt.u32 p1, a, 10;
    @p1 add.u32 x, a, 100;
    @!p1 mul.lo.u32 y, a, 2;
    """
    x, y = run_lanes(body, [a], [np.uint32] * 2)
    assert (x == np.where(a < 10, a + 100, 7)).all()
    assert (y == np.where(a < 10, 7, a * 2)).all()


def test_packing_moves() -> None:
    a, b, _ = WORDS
    body = """
    mov.b64 rd1, {a, b}; mov.b64 {r1, r2}, rd1; add.u32 x, r1, r2;
    mov.b32 {h1, h2}, a; mov.b32 y, {h2, h1};
    mov.b64 {h3, h4, h5, h6}, rd1; mov.b64 z, {h6, h5, h4, h3};
    """
    x, y, z = run_lanes(body, [a, b], [np.uint32, np.uint32, np.uint64])
    assert (x == a + b).all()
    assert (y == (a >> 16 | a << 16)).all()
    halves = np.stack([a, b], axis=1).view(np.uint16)
    assert (z.view(np.uint16).reshape(-1, 4) == halves[:, ::-1]).all()


def test_float_literals() -> None:
    a = np.zeros(1, np.uint32)
    body = "mov.b32 x, 0f3FC00000; mov.b32 y, 0x40000000; mov.b64 z, 0d3FF8000000000000;"
    x, y, z = run_lanes(body, [a], [np.float32, np.float32, np.float64])
    assert (x[0], y[0], z[0]) == (1.5, 2.0, 1.5)


def test_special_registers() -> None:
    body = """
    mov.u32 r1, %ctaid.x; mov.u32 r2, %ctaid.y; mov.u32 r3, %nctaid.x; mad.lo.u32 r4, r2, r3, r1;
    mov.u32 r5, %ntid.x; mov.u32 r6, %tid.x; mov.u32 r7, %tid.y; mov.u32 r8, %ntid.y;
    mad.lo.u32 r9, r7, r5, r6; mul.lo.u32 r10, r5, r8; mad.lo.u32 r11, r4, r10, r9;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r11, 8, rd1;
    mov.u32 r12, %laneid; mov.u32 r13, %warpid; mov.u32 r14, %lanemask_lt; mad.lo.u32 r12, r13, 100, r12;
    st.global.v2.b32 [rd1], {r12, r14};
    """
    out = np.zeros((3 * 2 * 48, 2), np.uint32)
    run_module(module(body, ".param .u64 out"), [out], grid=(3, 2, 1), block=(8, 6, 1))
    thread = np.arange(out.shape[0]) % 48
    assert (out[:, 0] == thread // 32 * 100 + thread % 32).all()
    assert (out[:, 1] == (np.uint64(1) << (thread % 32).astype(np.uint64)) - np.uint64(1)).all()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("frobnicate.b32 r1, r2;", "unknown instruction 'frobnicate.b32'"),
        ("add.fancy.u32 r1, r2, r3;", "modifier '.fancy'"),
        ("mov.u32 r1, %nothing;", "unknown special register"),
        ("mov.u32 r1, %tid.x_;", "unknown special register '%tid.x_'"),
        ("mov.u32 r1, %tid;", "unknown special register '%tid'"),
        ("add.u32 r1, r2, %laneid.x;", "unknown special register '%laneid.x'"),
        ("cvt.rn.f32.q9 r1, r2;", "unknown conversion"),
        ("lop3.b32 r1, r2, r3, r4, r5;", "immediate"),
        ("add.u32 r1, r2;", "does not take these 2 operands"),
        ("ld.global.b32 r1, r2;", "expected an address in brackets"),
    ],
)
def test_unknown_forms_are_errors_with_their_line(text: str, what: str) -> None:
    kernel = module(f"    mov.u32 r1, 0;\n    {text}")
    line = 1 + kernel[: kernel.index(text)].count("\n")
    with pytest.raises(PtxError, match=what) as raised:
        run_module(kernel, [])
    assert raised.value.line == line
    assert text in str(raised.value)
