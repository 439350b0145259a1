"""ldmatrix, stmatrix, movmatrix, mma.sync and wgmma against the tables, element by element."""

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.formats import FORMATS, encode
from attn_mlir.runtime.emulator.machine.fragments import (
    join_registers,
    ldmatrix,
    movmatrix,
    split_registers,
    stmatrix,
)
from attn_mlir.runtime.emulator.machine.memory import SharedMemory
from attn_mlir.runtime.emulator.machine.warpmma import Wgmma, mma_sync, wgmma

Bytes = npt.NDArray[np.uint8]


def random_shared() -> SharedMemory:
    shared = SharedMemory(0x8000)
    shared.data[0x400:] = np.random.default_rng(0).integers(0, 256, shared.data.size - 0x400)
    return shared


def scattered_rows(seed: int = 1) -> npt.NDArray[np.uint32]:
    """32 distinct 16-byte row addresses in odd order."""
    order = np.random.default_rng(seed).permutation(256)[:32]
    return (0x400 + 16 * order).astype(np.uint32)


def register_bytes(registers: npt.NDArray[np.uint32], r: int, t: int) -> list[int]:
    return registers[r, t : t + 1].view(np.uint8).tolist()


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_m8n8(count: int, transpose: bool):
    shared, rows = random_shared(), scattered_rows()
    got = ldmatrix(shared, rows, count, transpose)
    assert got.shape == (count, 32)
    for i in range(count):
        for t in range(32):
            for e in range(2):
                row, col = t // 4, 2 * (t % 4) + e
                if transpose:
                    row, col = col, row
                at = int(rows[8 * i + row]) + 2 * col
                assert (
                    register_bytes(got, i, t)[2 * e : 2 * e + 2]
                    == shared.data[at : at + 2].tolist()
                )


@pytest.mark.parametrize("count", [1, 2])
def test_ldmatrix_m16n16_b8(count: int):
    shared, rows = random_shared(), scattered_rows()
    got = ldmatrix(shared, rows, count, True, "m16n16")
    for r in range(2 * count):
        for t in range(32):
            for j in range(4):
                row = 4 * (t % 4) + j
                at = int(rows[16 * (r >> 1) + row]) + t // 4 + 8 * (r & 1)
                assert register_bytes(got, r, t)[j] == shared.data[at]


@pytest.mark.parametrize("source_format", ["b4x16_p64", "b6x16_p32"])
def test_ldmatrix_expands_packed_rows(source_format: str):
    shared, rows = random_shared(), scattered_rows()
    got = ldmatrix(shared, rows, 4, False, "m8n16", source_format)
    bits = int(source_format[1])
    for i in range(4):
        for t in range(32):
            unit = shared.data[int(rows[8 * i + t // 4]) :][: 2 * bits].tobytes()
            word = int.from_bytes(unit, "little")
            expected = [word >> bits * (4 * (t % 4) + j) & ((1 << bits) - 1) for j in range(4)]
            assert register_bytes(got, i, t) == expected


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_inverts_ldmatrix(count: int, transpose: bool):
    shared, rows = random_shared(), scattered_rows()
    values = np.random.default_rng(5).integers(0, 1 << 32, (count, 32), np.uint32)
    before = shared.data.copy()
    stmatrix(shared, rows, values, transpose)
    assert (ldmatrix(shared, rows, count, transpose) == values).all()
    changed = np.flatnonzero(shared.data != before)
    allowed = {int(a) + i for a in rows[: 8 * count] for i in range(16)}
    assert set(changed.tolist()) <= allowed


def test_stmatrix_m16n8_b8():
    shared, rows = random_shared(), scattered_rows()
    values = np.random.default_rng(5).integers(0, 1 << 32, (4, 32), np.uint32)
    stmatrix(shared, rows, values, True, "m16n8")
    for i in range(4):
        for t in range(32):
            for j in range(4):
                at = int(rows[8 * i + 2 * (t % 4) + (j & 1)]) + t // 4 + 8 * (j >> 1)
                assert shared.data[at] == register_bytes(values, i, t)[j]


def test_movmatrix_transposes():
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    fragment = matrix.view(np.uint32).reshape(32)
    assert (movmatrix(fragment).view(np.uint16).reshape(8, 8) == matrix.T).all()


def test_matrix_moves_reject_unknown_forms():
    shared, rows = random_shared(), scattered_rows()
    with pytest.raises(Fault, match="1, 2, 4 allowed"):
        ldmatrix(shared, rows, 3)
    with pytest.raises(Fault, match="m8n8, m8n16 or m16n16"):
        ldmatrix(shared, rows, 1, shape="m4n4")
    with pytest.raises(Fault, match="m8n8 or m16n8"):
        stmatrix(shared, rows, np.zeros((1, 32), np.uint32), shape="m4n4")
    with pytest.raises(Fault) as error:
        ldmatrix(shared, rows + 8, 1)
    assert error.value.kind == "misaligned"


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_registers_split_and_join(bits: int):
    registers = np.random.default_rng(0).integers(0, 1 << 32, (4, 32), np.uint32)
    elements = split_registers(registers, bits)
    assert elements.shape == (4 * 32 // bits, 32)
    assert elements[1, 3] == (registers[0, 3] >> bits if bits < 32 else registers[1, 3]) & (
        (1 << bits) - 1
    )
    assert (join_registers(np.ascontiguousarray(elements)) == registers).all()


def a_index(k: int, bits: int, i: int, t: int) -> tuple[int, int]:
    g, q = t // 4, t % 4
    return {
        (16, 16): (g + 8 * ((i >> 1) & 1), 2 * q + (i & 1) + 8 * (i >= 4)),
        (8, 16): (g + 8 * (i >= 2), 2 * q + (i & 1)),
        (8, 32): (g + 8 * (i & 1), q + 4 * (i >= 2)),
        (32, 8): (g + 8 * ((i >> 2) & 1), 4 * q + (i & 3) + 16 * (i >= 8)),
    }[(k, bits)]


def b_index(k: int, bits: int, i: int, t: int) -> tuple[int, int]:
    """(k, n) of element i."""
    g, q = t // 4, t % 4
    return {
        (16, 16): (2 * q + (i & 1) + 8 * (i >= 2), g),
        (8, 16): (2 * q + i, g),
        (8, 32): (q + 4 * i, g),
        (32, 8): (4 * q + (i & 3) + 16 * (i >= 4), g),
    }[(k, bits)]


def pack(codes: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    """Element codes [elements, 32] packed low to high into registers."""
    per = 32 // bits
    out = np.zeros((codes.shape[0] // per, 32), np.uint32)
    for i in range(codes.shape[0]):
        out[i // per] |= codes[i] << np.uint32(bits * (i % per))
    return out


def code_of(name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    if name == "u8":
        return values.astype(np.uint32)
    if name == "s8":
        return values.astype(np.int8).view(np.uint8).astype(np.uint32)
    return encode(name, values)


CASES = [
    ("m16n8k16", "f32", "bf16", "bf16"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "f16", "f16"),
    ("m16n8k8", "f32", "tf32", "tf32"),
    ("m16n8k32", "f32", "e4m3", "e5m2"),
    ("m16n8k32", "s32", "u8", "s8"),
]


@pytest.mark.parametrize("numeric", ["float32", "fused"])
@pytest.mark.parametrize(("shape", "d_format", "a_format", "b_format"), CASES)
def test_mma_sync(shape: str, d_format: str, a_format: str, b_format: str, numeric: str):
    k = int(shape.removeprefix("m16n8k"))
    bits = FORMATS[a_format].bits if a_format in FORMATS else 8
    rng = np.random.default_rng(0)
    low = 0 if a_format == "u8" else -4
    a = rng.integers(low, 5, (16, k)).astype(np.float32)
    b = rng.integers(-4, 5, (k, 8)).astype(np.float32)
    c = rng.integers(-9, 10, (16, 8)).astype(np.float32)
    lanes = range(32)
    a_codes = np.array(
        [[code_of(a_format, a)[a_index(k, bits, i, t)] for t in lanes] for i in range(k // 2)]
    )
    b_codes = np.array(
        [[code_of(b_format, b)[b_index(k, bits, i, t)] for t in lanes] for i in range(k // 4)]
    )

    def accumulator(matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
        words = {
            "f32": lambda: matrix.astype(np.float32).view(np.uint32),
            "f16": lambda: matrix.astype(np.float16).view(np.uint16).astype(np.uint32),
            "s32": lambda: matrix.astype(np.int32).view(np.uint32),
        }[d_format]()
        elements = np.array(
            [[words[t // 4 + 8 * (i >= 2), 2 * (t % 4) + (i & 1)] for t in lanes] for i in range(4)]
        )
        return pack(elements, 16) if d_format == "f16" else elements

    got = mma_sync(
        shape, d_format, a_format, b_format, d_format,
        pack(a_codes, bits), pack(b_codes, bits), accumulator(c), numeric=numeric,
    )  # fmt: skip
    assert (got == accumulator(a @ b + c)).all()


def test_mma_sync_rejects_other_shapes():
    zero = np.zeros((4, 32), np.uint32)
    for shape, element in (("m16n8k4", "bf16"), ("m8n8k4", "f16"), ("m16n8k16", "e2m1")):
        with pytest.raises(Fault) as error:
            mma_sync(shape, "f32", element, element, "f32", zero, zero, zero)
        assert error.value.kind == "unsupported"


def sm90_descriptor(start: int, lbo: int, sbo: int) -> int:
    return 1 << 62 | (sbo >> 4) << 32 | (lbo >> 4) << 16 | start >> 4


def swizzled(address: int) -> int:
    return address ^ (((address >> 7) & 7) << 4)


def d_registers(matrix: npt.NDArray[np.uint32], half: bool) -> npt.NDArray[np.uint32]:
    """Accumulator words [64, n] as registers [4, r, 32], from the table of section 9."""
    n = matrix.shape[1]
    out = np.zeros((4, n // 2, 32), np.uint32)
    for w in range(4):
        for i in range(n // 2):
            for t in range(32):
                row = 16 * w + t // 4 + 8 * ((i >> 1) & 1)
                out[w, i, t] = matrix[row, 8 * (i >> 2) + 2 * (t % 4) + (i & 1)]
    return np.stack([pack(part, 16) for part in out]) if half else out


@pytest.mark.parametrize("numeric", ["float32", "fused"])
@pytest.mark.parametrize(
    ("element", "d_format", "n", "transpose_b", "a_registers"),
    [
        ("bf16", "f32", 64, False, False),
        ("bf16", "f32", 64, True, True),
        ("f16", "f16", 24, False, True),
        ("tf32", "f32", 16, False, True),
        ("e4m3", "f32", 32, False, True),
        ("s8", "s32", 24, False, False),
    ],
)
def test_wgmma(
    element: str, d_format: str, n: int, transpose_b: bool, a_registers: bool, numeric: str
):
    op = Wgmma(n, d_format, element, element, negate_b=element == "bf16", transpose_b=transpose_b)
    k = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "s8": 32}[element]
    bits = 256 // k
    assert op.k == k
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (64, k)), rng.integers(-4, 5, (n, k))
    c = rng.integers(-9, 10, (64, n))
    a, b, c = (x.astype(np.float32) for x in (a, b, c))
    storage = {8: np.uint8, 16: np.uint16, 32: np.uint32}[bits]
    shared = SharedMemory(0x4000)

    def place(matrix: npt.NDArray[np.float32], start: int) -> int:
        data = code_of(element, matrix).astype(storage).view(np.uint8)
        for r in range(matrix.shape[0]):
            for x in range(32):
                shared.data[swizzled(start + r % 8 * 128 + r // 8 * 1024 + x)] = data[r, x]
        return sm90_descriptor(start, 16, 1024)

    if transpose_b:
        data = code_of(element, np.ascontiguousarray(b.T)).astype(storage).view(np.uint8)
        for kk in range(k):
            for x in range(2 * n):
                at = 0x2400 + kk % 8 * 128 + kk // 8 * 1024 + x // 128 * 2048 + x % 128
                shared.data[swizzled(at)] = data[kk, x]
        b_desc = sm90_descriptor(0x2400, 2048, 1024)
    else:
        b_desc = place(b, 0x2400)
    left: int | npt.NDArray[np.uint32] = place(a, 0x400)
    if a_registers:
        codes = code_of(element, a)
        left = np.stack(
            [
                pack(
                    np.array(
                        [
                            [codes[16 * w :][a_index(k, bits, i, t)] for t in range(32)]
                            for i in range(k // 2)
                        ]
                    ),
                    bits,
                )
                for w in range(4)
            ]
        )
    words = {
        "f32": lambda m: m.astype(np.float32).view(np.uint32),
        "f16": lambda m: m.astype(np.float16).view(np.uint16).astype(np.uint32),
        "s32": lambda m: m.astype(np.int32).view(np.uint32),
    }[d_format]
    before = d_registers(words(c), d_format == "f16")
    sign = -1 if op.negate_b else 1
    for scale_d in (True, False):
        got = wgmma(shared, op, left, b_desc, before, scale_d, numeric=numeric)
        expected = d_registers(words(sign * a @ b.T + scale_d * c), d_format == "f16")
        assert got.shape == (4, op.d_registers, 32)
        if d_format == "s32":
            assert (got == expected).all()
        else:
            kind = np.float16 if d_format == "f16" else np.float32
            assert (got.view(kind) == expected.view(kind)).all()


def test_wgmma_fp8_keeps_13_fraction_bits_in_fused_mode():
    shared = SharedMemory(0x4000)
    code = {v: int(encode("e4m3", np.array([v]))[0]) for v in (1.0, 2.0**-6)}
    for r in range(64):
        shared.data[swizzled(0x400 + r % 8 * 128 + r // 8 * 1024)] = code[1.0]
        shared.data[swizzled(0x400 + r % 8 * 128 + r // 8 * 1024 + 1)] = code[2.0**-6]
    for r in range(8):
        shared.data[swizzled(0x2400 + r * 128)] = code[1.0]
        shared.data[swizzled(0x2400 + r * 128 + 1)] = code[2.0**-6]
    op = Wgmma(8, "f32", "e4m3", "e4m3")
    d = np.full((4, 4, 32), np.float32(2.0**-14).view(np.uint32), np.uint32)
    descs = sm90_descriptor(0x400, 16, 1024), sm90_descriptor(0x2400, 16, 1024)
    fused = wgmma(shared, op, *descs, d, True, numeric="fused").view(np.float32)
    exact = wgmma(shared, op, *descs, d, True).view(np.float32)
    assert (fused == 1 + 2.0**-12).all()
    assert (exact == 1 + 2.0**-12 + 2.0**-14).all()
    d[...] = np.float32(2 + 2.0**-12).view(np.uint32)
    fused = wgmma(shared, op, *descs, d, True, numeric="fused").view(np.float32)
    assert (fused == 3 + 2.0**-11).all()
    d[...] = np.float32(1.5 - 2.0**-12 + 2.0**-13).view(np.uint32)
    fused = wgmma(shared, op, *descs, d, True, numeric="fused").view(np.float32)
    assert (fused == 2.5).all()


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (Wgmma(12, "f32", "bf16", "bf16"), "wgmma n12"),
        (Wgmma(40, "s32", "s8", "s8"), "wgmma n40"),
        (Wgmma(16, "f32", "tf32", "tf32", transpose_b=True), "K-major only"),
        (Wgmma(16, "f32", "bf16", "bf16", transpose_a=True), "cannot transpose A"),
    ],
)
def test_wgmma_faults(op: Wgmma, text: str):
    registers = np.zeros((4, 4, 32), np.uint32)
    with pytest.raises(Fault, match=text):
        wgmma(
            SharedMemory(0x4000), op, registers, sm90_descriptor(0x400, 16, 1024), registers, False
        )
