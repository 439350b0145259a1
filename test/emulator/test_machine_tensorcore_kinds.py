"""tcgen05.mma of other elements: 8, 6 and 4 bits, tf32, integers, block scales, sparse operands."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.formats import FORMATS, encode
from attn_mlir.runtime.emulator.machine.tensorcore import Mma, TensorCore
from attn_mlir.runtime.emulator.machine.tmem import TensorMemory
from attn_mlir.validation.emulator.placed_products import (
    MODES,
    FakeCta,
    bf16_bytes,
    descriptor,
    idesc,
    place_k_major,
    small_integers,
    write_d,
)


def f8f6f4_bytes(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Codes [rows, 32] in the shared-memory containers of kind f8f6f4: 16 elements per unit."""
    if bits == 8:
        return codes
    out = np.zeros((codes.shape[0], 32), np.uint8)
    for r in range(codes.shape[0]):
        for g in range(2):
            word = sum(int(c) << (bits * i) for i, c in enumerate(codes[r, 16 * g : 16 * g + 16]))
            out[r, 16 * g : 16 * g + 2 * bits] = list(word.to_bytes(2 * bits, "little"))
    return out


FORMAT_CODES = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}


@pytest.mark.parametrize("a_in_tmem", [False, True])
@pytest.mark.parametrize(
    ("a_format", "b_format"),
    [("e4m3", "e5m2"), ("e2m3", "e4m3"), ("e3m2", "e2m1"), ("e2m1", "e2m3"), ("e5m2", "e3m2")],
)
def test_f8f6f4_containers(a_format: str, b_format: str, a_in_tmem: bool):
    rng = np.random.default_rng(0)
    pool = np.array([-1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2])  # in every format
    a, b = rng.choice(pool, (128, 32)), rng.choice(pool, (16, 32))
    codes = [encode(f, x).astype(np.uint8) for f, x in ((a_format, a), (b_format, b))]
    cta = FakeCta()
    place_k_major(cta.shared, f8f6f4_bytes(codes[0], FORMATS[a_format].bits), 0x400, 1024)
    place_k_major(cta.shared, f8f6f4_bytes(codes[1], FORMATS[b_format].bits), 0x8400, 1024)
    a_operand = descriptor(0x400, 16, 1024, 2)
    if a_in_tmem:
        expanded = codes[0] << 2 if a_format == "e2m1" else codes[0]
        cta.tmem.cells[:, 200:208] = expanded.view(np.uint32)
        cta.tmem.written[:, 200:208] = True
        a_operand = 200
    code = idesc(128, 16, 1, FORMAT_CODES[a_format], FORMAT_CODES[b_format])
    op = Mma(
        "f8f6f4", code, 0, a_operand, descriptor(0x8400, 16, 1024, 2), False, a_in_tmem=a_in_tmem
    )
    TensorCore().mma(op, [cta])
    assert (cta.tmem.cells[:, :16].view(np.float32) == a @ b.T).all()


def test_tf32_drops_low_bits_and_reads_mn_major_32_byte_atoms():
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, 128, 8), small_integers(rng, 64, 8)
    cta = FakeCta()
    dirty = a.view(np.uint32) | 0x1FFF
    place_k_major(cta.shared, dirty.view(np.uint8), 0x400, 1024)
    by_k = np.ascontiguousarray(b.T).view(np.uint8)
    lbo, sbo = 2048, 512
    for k in range(8):
        for x in range(256):
            at = 0x8400 + k % 4 * 128 + k // 4 * sbo + x // 128 * lbo + x % 128
            cta.shared.data[at ^ (((at >> 7) & 3) << 5)] = by_k[k, x]
    op = Mma(
        "tf32", idesc(128, 64, 1, 2, 2, tr_b=1), 0,
        descriptor(0x400, 16, 1024, 2), descriptor(0x8400, lbo, sbo, 1), False,
    )  # fmt: skip
    TensorCore().mma(op, [cta])
    assert (cta.tmem.cells[:, :64].view(np.float32) == a @ b.T).all()


@pytest.mark.parametrize("saturate", [0, 1])
def test_i8_accumulates_exactly_and_wraps_or_clamps(saturate: int):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (128, 32)).astype(np.uint8)
    b = rng.integers(-128, 128, (16, 32)).astype(np.int8)
    c = rng.choice(np.array([-(2**31), 2**31 - 1, 0, 77], np.int32), (128, 16))
    cta = FakeCta()
    place_k_major(cta.shared, a, 0x400, 1024)
    place_k_major(cta.shared, b.view(np.uint8), 0x8400, 1024)
    write_d([cta], "D", c.view(np.uint32), 0)
    op = Mma(
        "i8", idesc(128, 16, 2, 0, 1, saturate=saturate), 0,
        descriptor(0x400, 16, 1024, 2), descriptor(0x8400, 16, 1024, 2),
    )  # fmt: skip
    TensorCore().mma(op, [cta])
    exact = a.astype(np.int64) @ b.astype(np.int64).T + c
    expected = np.clip(exact, -(2**31), 2**31 - 1) if saturate else (exact + 2**31) % 2**32 - 2**31
    assert (cta.tmem.cells[:, :16].view(np.int32) == expected).all()


def scale_cells(tmem: TensorMemory, column: int, codes: npt.NDArray[np.uint8], first: int) -> None:
    """Scales uint8[rows, per_row], replicated in all four lane partitions."""
    for r in range(codes.shape[0]):
        for q in range(4):
            cell = tmem.cells[q * 32 + r % 32, column + r // 32 :][:1].view(np.uint8)
            cell[first : first + codes.shape[1]] = codes[r]
            tmem.written[q * 32 + r % 32, column + r // 32] = True


@pytest.mark.parametrize("numeric", MODES)
@pytest.mark.parametrize(
    ("kind", "scale_format", "per_row", "sfa_id", "sfb_id"),
    [
        ("mxf8f6f4", "ue8m0", 1, 0, 3),
        ("mxf4", "ue8m0", 2, 2, 0),
        ("mxf4nvf4", "ue4m3", 4, 0, 0),
        ("mxf4nvf4", "ue8m0", 2, 0, 2),
    ],
)
def test_block_scaled(
    kind: str, scale_format: str, per_row: int, sfa_id: int, sfb_id: int, numeric: str
):
    rng = np.random.default_rng(0)
    k = 32 if kind == "mxf8f6f4" else 64
    pool = np.array([-1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2])
    a, b = rng.choice(pool, (128, k)), rng.choice(pool, (40, k))
    name = "e4m3" if k == 32 else "e2m1"
    cta = FakeCta()
    for matrix, start in ((a, 0x400), (b, 0x8400)):
        codes = encode(name, matrix).astype(np.uint8)
        packed = codes if k == 32 else codes[:, ::2] | codes[:, 1::2] << 4
        place_k_major(cta.shared, packed, start, 1024)
    scale_values = np.array([0.5, 1.0, 2.0, 4.0])
    sa, sb = rng.choice(scale_values, (128, per_row)), rng.choice(scale_values, (40, per_row))
    scale_cells(cta.tmem, 256, encode(scale_format, sa).astype(np.uint8), sfa_id)
    scale_cells(cta.tmem, 264, encode(scale_format, sb).astype(np.uint8), sfb_id)
    code = sfb_id << 4 | (40 >> 3) << 17 | 8 << 24 | sfa_id << 29
    code |= (1 << 23 if scale_format == "ue8m0" else 0) | (0 if k == 32 else 1 << 7 | 1 << 10)
    op = Mma(
        kind, code, 0,  # type: ignore[arg-type]
        descriptor(0x400, 16, 1024, 2), descriptor(0x8400, 16, 1024, 2), False,
        sfa=256, sfb=264, scale_vec=per_row,
    )  # fmt: skip
    TensorCore(numeric).mma(op, [cta])  # type: ignore[arg-type]
    spread = k // per_row
    expected = (a * sa.repeat(spread, 1)) @ (b * sb.repeat(spread, 1)).T
    assert (cta.tmem.cells[:, :40].view(np.float32) == expected).all()
    for quarter in range(4):  # of A a row's scales are read from its own quarter alone
        others = np.arange(4) != quarter
        cta.tmem.cells[32 * quarter : 32 * quarter + 32, 256:260][:, others] ^= 0xFFFFFFFF
        cta.tmem.written[32 * quarter : 32 * quarter + 32, 256:260][:, others] = False
    TensorCore(numeric).mma(op, [cta])  # type: ignore[arg-type]
    assert (cta.tmem.cells[:, :40].view(np.float32) == expected).all()
    cta.tmem.cells[33, 264] ^= 0xFFFFFFFF
    with pytest.raises(Fault, match="scales of B: lane partitions hold different scales"):
        TensorCore().mma(op, [cta])


def test_sparse_f16_places_elements_by_metadata():
    rng = np.random.default_rng(0)
    stored, b = small_integers(rng, 128, 16), small_integers(rng, 32, 32)
    legal = [0x4, 0x8, 0x9, 0xC, 0xD, 0xE]
    codes = rng.choice(legal, (128, 8))
    dense = np.zeros((128, 32), np.float32)
    cta = FakeCta()
    cta.tmem.cells[:, 100:104] = 0
    selector = 1
    for r in range(128):
        for c in range(8):
            code = int(codes[r, c])
            dense[r, 4 * c + (code & 3)] = stored[r, 2 * c]
            dense[r, 4 * c + (code >> 2)] = stored[r, 2 * c + 1]
            lane = r // 32 * 32 + r % 8 + 16 * (r % 32 // 16) + 8 * (c // 4)
            nibble = 4 * (r % 16 // 8) + c % 4
            cta.tmem.cells[lane, 100 + selector] |= np.uint32(code << (4 * nibble))
    cta.tmem.written[:, 100:104] = True
    place_k_major(cta.shared, bf16_bytes(stored), 0x400, 1024)
    place_k_major(cta.shared, bf16_bytes(b), 0x8400, 1024)
    code = idesc(128, 32, 1, 1, 1, sparse=1) | selector
    op = Mma(
        "f16", code, 0, descriptor(0x400, 16, 1024, 2), descriptor(0x8400, 16, 1024, 2), False,
        sparse=True, metadata=100,
    )  # fmt: skip
    TensorCore().mma(op, [cta])
    assert (cta.tmem.cells[:, :32].view(np.float32) == dense @ b.T).all()
    cta.tmem.cells[0, 101] = 0
    with pytest.raises(Fault, match="metadata 0x0 of row 0, chunk 0"):
        TensorCore().mma(op, [cta])


@pytest.mark.parametrize("kind", ["tf32", "i8"])
def test_sparse_kinds_with_other_metadata_maps(kind: str):
    """tf32 keeps one of two; 8-bit kinds keep two of four, with a row's codes in two columns."""
    rng = np.random.default_rng(0)
    k = 8 if kind == "tf32" else 32
    stored, b = small_integers(rng, 128, k), small_integers(rng, 32, 2 * k)
    dense = np.zeros((128, 2 * k), np.float32)
    cta = FakeCta()
    cta.tmem.cells[:, 100:102] = 0
    cta.tmem.written[:, 100:102] = True
    for r in range(128):
        for c in range(8 if kind == "tf32" else 16):
            if kind == "tf32":
                code = int(rng.choice([0x4, 0xE]))
                dense[r, 2 * c + (code == 0xE)] = stored[r, c]
                lane = r // 32 * 32 + r % 8 + 16 * (r % 32 // 16) + 8 * (c // 4)
                column, nibble = 100, 4 * (r % 16 // 8) + c % 4
            else:
                code = int(rng.choice([0x4, 0x8, 0x9, 0xC, 0xD, 0xE]))
                dense[r, 4 * c + (code & 3)] = stored[r, 2 * c]
                dense[r, 4 * c + (code >> 2)] = stored[r, 2 * c + 1]
                lane, column, nibble = r, 100 + c // 8, c % 8
            cta.tmem.cells[lane, column] |= np.uint32(code << (4 * nibble))

    def encoded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        return values.view(np.uint8) if kind == "tf32" else values.astype(np.int8).view(np.uint8)

    place_k_major(cta.shared, encoded(stored), 0x400, 1024)
    place_k_major(cta.shared, encoded(b), 0x8400, 1024)
    types = (1, 2, 2) if kind == "tf32" else (2, 1, 1)
    op = Mma(
        kind, idesc(128, 32, *types, sparse=1), 0,  # type: ignore[arg-type]
        descriptor(0x400, 16, 1024, 2), descriptor(0x8400, 16, 1024, 2), False,
        sparse=True, metadata=100,
    )  # fmt: skip
    TensorCore().mma(op, [cta])
    got = cta.tmem.cells[:, :32].view(np.int32 if kind == "i8" else np.float32)
    assert (got == dense @ b.T).all()
