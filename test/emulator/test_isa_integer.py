"""Integer instructions against Python integers."""

from collections.abc import Callable

import numpy as np
import pytest

from attn_mlir.validation.emulator.ptx_bench import as_int, run_lanes

EDGES = [0, 1, 2, 3, 5, 7, 31, 32, 33, 63, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000]
EDGES_32 = [*EDGES, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x12345678, 0xDEADBEEF]
EDGES_64 = [*EDGES_32, 0x7FFF_FFFF_FFFF_FFFF, 0x8000_0000_0000_0000, 0xFFFF_FFFF_FFFF_FFFF]

Oracle = Callable[[int, int, int], int]


def _operands(bits: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(bits)
    edges = [e & ((1 << bits) - 1) for e in (EDGES_64 if bits == 64 else EDGES_32)]
    result = []
    for place in range(count):
        values = [edges[(i * (place * 2 + 1) + place) % len(edges)] for i in range(64)]
        values += [int(v) for v in rng.integers(0, 1 << 63, 64, dtype=np.uint64)]
        masked = [v & ((1 << bits) - 1) for v in values]
        result.append(np.array(masked, np.dtype(f"u{bits // 8}")))
    return result


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


BINARY: list[tuple[str, str, Oracle]] = [
    *((f"add.{t}", t, lambda a, b, n: a + b) for t in ("u16", "s32", "u32", "s64", "u64")),
    *((f"sub.{t}", t, lambda a, b, n: a - b) for t in ("s16", "s32", "u32", "s64")),
    *((f"mul.lo.{t}", t, lambda a, b, n: a * b) for t in ("u16", "s32", "u32", "s64", "u64")),
    *((f"mul.hi.{t}", t, lambda a, b, n: a * b >> n) for t in ("u16", "s32", "u32", "s64", "u64")),
    *((f"min.{t}", t, lambda a, b, n: min(a, b)) for t in ("u16", "s16", "s32", "u32", "s64")),
    *((f"max.{t}", t, lambda a, b, n: max(a, b)) for t in ("u16", "s16", "s32", "u32", "u64")),
    *(
        (f"div.{t}", t, lambda a, b, n: _truncated(a, b) if b else -1)
        for t in ("s32", "u32", "s64")
    ),
    *(
        (f"rem.{t}", t, lambda a, b, n: a - _truncated(a, b) * b if b else -1)
        for t in ("s32", "u32", "u64")
    ),
    *((f"and.{t}", t, lambda a, b, n: a & b) for t in ("b16", "b32", "b64")),
    *((f"or.{t}", t, lambda a, b, n: a | b) for t in ("b16", "b32", "b64")),
    *((f"xor.{t}", t, lambda a, b, n: a ^ b) for t in ("b16", "b32", "b64")),
    ("add.sat.s32", "s32", lambda a, b, n: min(max(a + b, -(2**31)), 2**31 - 1)),
    ("sub.sat.s32", "s32", lambda a, b, n: min(max(a - b, -(2**31)), 2**31 - 1)),
]


@pytest.mark.parametrize(("opcode", "kind", "oracle"), BINARY, ids=[b[0] for b in BINARY])
def test_binary(opcode: str, kind: str, oracle: Oracle) -> None:
    bits, signed = int(kind[1:]), kind[0] == "s"
    a, b = _operands(bits, 2)
    (x,) = run_lanes(f"{opcode} x, a, b;", [a, b], [a.dtype])
    for lane in range(a.size):
        p, q = as_int(a[lane], bits, signed), as_int(b[lane], bits, signed)
        assert int(x[lane]) == as_int(oracle(p, q, bits), bits, False), (p, q)


UNARY: list[tuple[str, str, Callable[[int, int], int]]] = [
    ("neg.s32", "s32", lambda a, n: -a),
    ("neg.s64", "s64", lambda a, n: -a),
    ("abs.s32", "s32", lambda a, n: abs(a)),
    ("not.b32", "b32", lambda a, n: ~a),
    ("not.b64", "b64", lambda a, n: ~a),
    ("cnot.b32", "b32", lambda a, n: int(a == 0)),
    ("brev.b32", "b32", lambda a, n: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64", "b64", lambda a, n: int(f"{a:064b}"[::-1], 2)),
]


@pytest.mark.parametrize(("opcode", "kind", "oracle"), UNARY, ids=[u[0] for u in UNARY])
def test_unary(opcode: str, kind: str, oracle: Callable[[int, int], int]) -> None:
    bits, signed = int(kind[1:]), kind[0] == "s"
    (a,) = _operands(bits, 1)
    (x,) = run_lanes(f"{opcode} x, a;", [a], [a.dtype])
    for lane in range(a.size):
        want = oracle(as_int(a[lane], bits, signed), bits)
        assert int(x[lane]) == as_int(want, bits, False), hex(int(a[lane]))


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits: int) -> None:
    (a,) = _operands(bits, 1)
    body = f"popc.b{bits} x, a; clz.b{bits} y, a; bfind.u{bits} z, a; bfind.s{bits} w, a;"
    x, y, z, w = run_lanes(body, [a], [np.uint32] * 4)
    for lane, value in enumerate(int(v) for v in a):
        assert int(x[lane]) == value.bit_count()
        assert int(y[lane]) == bits - value.bit_length()
        assert int(z[lane]) == (value.bit_length() - 1) & 0xFFFF_FFFF
        signed = as_int(value, bits, True)
        magnitude = ~signed if signed < 0 else signed
        assert int(w[lane]) == (magnitude.bit_length() - 1) & 0xFFFF_FFFF


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_product_and_sum(kind: str) -> None:
    bits, signed = int(kind[1:]), kind[0] == "s"
    a, b = _operands(bits, 2)
    (c,) = _operands(2 * bits, 1)
    body = f"mul.wide.{kind} x, a, b; mad.wide.{kind} y, a, b, c;"
    x, y = run_lanes(body, [a, b, c], [c.dtype, c.dtype])
    for lane in range(a.size):
        product = as_int(a[lane], bits, signed) * as_int(b[lane], bits, signed)
        assert int(x[lane]) == as_int(product, 2 * bits, False)
        assert int(y[lane]) == as_int(product + int(c[lane]), 2 * bits, False)


def test_mad_lo() -> None:
    a, b, c = _operands(32, 3)
    (x,) = run_lanes("mad.lo.s32 x, a, b, c;", [a, b, c], [np.uint32])
    want = (a.astype(np.uint64) * b + c) & 0xFFFF_FFFF
    assert (x == want).all()


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp(bits: int) -> None:
    (a,) = _operands(bits, 1)
    amounts = np.resize(
        np.array([0, 1, 7, 15, 16, 31, 32, 33, 63, 64, 65, 255, 2**31], np.uint32), 128
    )
    body = f"shl.b{bits} x, a, b; shr.u{bits} y, a, b; shr.s{bits} z, a, b;"
    x, y, z = run_lanes(body, [a, amounts], [a.dtype] * 3)
    for lane in range(a.size):
        value, n = int(a[lane]), int(amounts[lane])
        assert int(x[lane]) == ((value << n) & ((1 << bits) - 1) if n < bits else 0)
        assert int(y[lane]) == (value >> n if n < bits else 0)
        want = as_int(value, bits, True) >> min(n, bits - 1)
        assert int(z[lane]) == as_int(want, bits, False)


def test_shifts_by_constants() -> None:
    (a,) = _operands(32, 1)
    x, y, z = run_lanes(
        "shl.b32 x, a, 5; shr.u32 y, a, 40; shr.s32 z, a, 31;", [a], [np.uint32] * 3
    )
    assert (x == (a.astype(np.uint64) << 5 & 0xFFFF_FFFF)).all()
    assert not y.any()
    assert (z == np.where(a >> 31, 0xFFFF_FFFF, 0)).all()


def test_funnel_shift() -> None:
    a, b = _operands(32, 2)
    n = np.resize(np.array([0, 1, 16, 31, 32, 33, 40], np.uint32), 128)
    body = (
        "shf.l.wrap.b32 x, a, b, c; shf.r.wrap.b32 y, a, b, c;"
        "shf.l.clamp.b32 z, a, b, c; shf.r.clamp.b32 w, a, b, c;"
    )
    x, y, z, w = run_lanes(body, [a, b, n], [np.uint32] * 4)
    for lane in range(128):
        wide = int(b[lane]) << 32 | int(a[lane])
        wrapped, clamped = int(n[lane]) & 31, min(int(n[lane]), 32)
        assert int(x[lane]) == wide << wrapped >> 32 & 0xFFFF_FFFF
        assert int(y[lane]) == wide >> wrapped & 0xFFFF_FFFF
        assert int(z[lane]) == wide << clamped >> 32 & 0xFFFF_FFFF
        assert int(w[lane]) == wide >> clamped & 0xFFFF_FFFF


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    bits, signed = int(kind[1:]), kind[0] == "s"
    a, b = _operands(bits, 2)
    position = np.resize(np.array([0, 1, 4, 16, 31, 32, 60, 70], np.uint32), 128)
    length = np.resize(np.array([0, 1, 3, 8, 16, 31, 32, 64, 200], np.uint32), 128)
    body = f"bfe.{kind} x, a, c, d; bfi.b{bits} y, a, b, c, d;"
    x, y = run_lanes(body, [a, b, position, length], [a.dtype] * 2)
    for lane in range(128):
        value, base = int(a[lane]), int(b[lane])
        start, count = int(position[lane]), int(length[lane])
        sign = (value >> min(start + count - 1, bits - 1) & 1) if signed and count else 0
        want = 0
        for bit in range(bits):
            here = value >> (start + bit) & 1 if bit < count and start + bit < bits else sign
            want |= here << bit
        assert int(x[lane]) == want, (hex(value), start, count)
        inserted = base
        for bit in range(count):
            if start + bit < bits:
                at = start + bit
                inserted = inserted & ~(1 << at) | (value >> bit & 1) << at
        assert int(y[lane]) == inserted, (hex(value), start, count)


def test_carry_chain() -> None:
    a, b = _operands(64, 2)
    body = """
    mov.b64 {r1, r2}, a; mov.b64 {r3, r4}, b;
    add.cc.u32 r5, r1, r3; addc.u32 r6, r2, r4; mov.b64 x, {r5, r6};
    sub.cc.u32 r7, r1, r3; subc.u32 r8, r2, r4; mov.b64 y, {r7, r8};
    """
    x, y = run_lanes(body, [a, b], [np.uint64] * 2)
    assert (x == a + b).all()
    assert (y == a - b).all()


def test_byte_dot_product() -> None:
    a, b, c = _operands(32, 3)
    x, y = run_lanes(
        "dp4a.u32.u32 x, a, b, c; dp4a.s32.u32 y, a, b, c;", [a, b, c], [np.uint32] * 2
    )
    for lane in range(128):
        p, q = a[lane : lane + 1].view(np.uint8), b[lane : lane + 1].view(np.uint8)
        unsigned = sum(int(i) * int(j) for i, j in zip(p, q, strict=True))
        mixed = sum(int(i) * int(j) for i, j in zip(p.view(np.int8), q, strict=True))
        assert int(x[lane]) == (int(c[lane]) + unsigned) & 0xFFFF_FFFF
        assert int(y[lane]) == (int(c[lane]) + mixed) & 0xFFFF_FFFF


def test_packed_halfwords() -> None:
    a, b = _operands(32, 2)
    x, y, z = run_lanes(
        "add.u16x2 x, a, b; max.s16x2 y, a, b; min.u16x2 z, a, b;", [a, b], [np.uint32] * 3
    )
    p, q = a.view(np.uint16), b.view(np.uint16)
    assert (x.view(np.uint16) == p + q).all()
    assert (y.view(np.int16) == np.maximum(p.view(np.int16), q.view(np.int16))).all()
    assert (z.view(np.uint16) == np.minimum(p, q)).all()
