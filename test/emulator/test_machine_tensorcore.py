"""tcgen05.mma against operands placed, and results read, cell by cell from the tables.

Longer than most modules: one kind of product after the other, all placed and read by the same helpers.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.formats import FORMATS, decode, encode
from attn_mlir.runtime.emulator.machine.memory import SharedMemory
from attn_mlir.runtime.emulator.machine.operands import smem_operand
from attn_mlir.runtime.emulator.machine.tensorcore import Mma, TensorCore
from attn_mlir.runtime.emulator.machine.tmem import POISON, TensorMemory

MODES = ["float32", "fused"]


@dataclass
class FakeCta:
    shared: SharedMemory = field(default_factory=lambda: SharedMemory(0x20000))
    tmem: TensorMemory = field(default_factory=lambda: TensorMemory(track_initialised=True))

    def __post_init__(self) -> None:
        self.tmem.alloc(512)


def descriptor(start: int, lbo: int, sbo: int, swizzle: int) -> int:
    return swizzle << 61 | 1 << 46 | (sbo >> 4) << 32 | (lbo >> 4) << 16 | start >> 4


def idesc(m: int, n: int, d: int, a: int, b: int, **flags: int) -> int:
    value = d << 4 | a << 7 | b << 10 | (n >> 3) << 17 | (m >> 4) << 24
    shifts = {"neg_a": 13, "neg_b": 14, "tr_a": 15, "tr_b": 16, "sparse": 2, "saturate": 3}
    return value | sum(v << shifts[k] for k, v in flags.items())


def swizzled(address: int, bits: int) -> int:
    return address ^ (((address >> 7) & ((1 << bits) - 1)) << 4)


def place_k_major(
    shared: SharedMemory, rows: npt.NDArray[np.uint8], start: int, sbo: int, bits: int = 3
) -> None:
    """rows uint8[r, bytes], bytes <= swizzle span, as a K-major tile of the given swizzle."""
    pitch = 16 << bits
    for r in range(rows.shape[0]):
        for b in range(rows.shape[1]):
            at = start + r % 8 * pitch + r // 8 * sbo + b
            shared.data[swizzled(at, bits)] = rows[r, b]


def place_mn_major(
    shared: SharedMemory, by_k: npt.NDArray[np.uint8], start: int, lbo: int, sbo: int
) -> None:
    """by_k uint8[k, bytes of MN] as an MN-major tile with 128-byte swizzle."""
    for k in range(by_k.shape[0]):
        for x in range(by_k.shape[1]):
            at = start + k % 8 * 128 + k // 8 * sbo + x // 128 * lbo + x % 128
            shared.data[swizzled(at, 3)] = by_k[k, x]


def d_cell(layout: str, m: int, n: int, n_total: int) -> tuple[int, int, int]:
    """(CTA, lane, column) of element (m, n); the table of the specification."""
    half, quarter = n_total // 2, n_total // 4
    return {
        "A": lambda: (m // 128, m % 128, n),
        "B": lambda: (m // 64, m % 64 + 64 * (n >= half), n % half),
        "C": lambda: (m // 64, m % 16 + 32 * (m % 64 // 16), n),
        "D": lambda: (0, m, n),
        "E": lambda: (0, m + 64 * (n >= half), n % half),
        "F": lambda: (0, m % 16 + 32 * (m // 16), n),
        "G": lambda: (0, m + 32 * (n // quarter), n % quarter),
    }[layout]()


def read_d(ctas: list[FakeCta], layout: str, m: int, n: int, d: int) -> npt.NDArray[np.uint32]:
    out = np.zeros((m, n), np.uint32)
    for i in range(m):
        for j in range(n):
            cta, lane, column = d_cell(layout, i, j, n)
            out[i, j] = ctas[cta].tmem.cells[(d >> 16) + lane, (d & 0xFFFF) + column]
    return out


def write_d(ctas: list[FakeCta], layout: str, values: npt.NDArray[np.uint32], d: int) -> None:
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            cta, lane, column = d_cell(layout, i, j, values.shape[1])
            where = ((d >> 16) + lane, (d & 0xFFFF) + column)
            ctas[cta].tmem.cells[where] = values[i, j]
            ctas[cta].tmem.written[where] = True


def bf16_bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return encode("bf16", values).astype(np.uint16).view(np.uint8)


def small_integers(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.integers(-4, 5, shape).astype(np.float32)


def bf16_setup(m: int, n: int, cta_group: int = 1, seed: int = 0, k: int = 16):
    """CTAs with A and B in shared memory (128B swizzle, K-major), and the matrices."""
    rng = np.random.default_rng(seed)
    a, b = small_integers(rng, m, k), small_integers(rng, n, k)
    ctas = [FakeCta() for _ in range(cta_group)]
    for r, cta in enumerate(ctas):
        rows, columns = m // cta_group, n // cta_group
        place_k_major(cta.shared, bf16_bytes(a[r * rows :][:rows]), 0x400, 1024)
        place_k_major(cta.shared, bf16_bytes(b[r * columns :][:columns]), 0x8400, 1024)
    a_desc, b_desc = descriptor(0x400, 16, 1024, 2), descriptor(0x8400, 16, 1024, 2)
    return ctas, a, b, a_desc, b_desc


CASES = [
    ("A", 256, 64, 2, False, 0),
    ("B", 128, 64, 2, False, 0),
    ("D", 128, 40, 1, False, 0),
    ("D", 128, 64, 1, True, 0),
    ("E", 64, 64, 1, True, 0),
    ("F", 64, 48, 1, False, 0),
    ("F", 64, 48, 1, False, 16),
    ("G", 32, 64, 1, True, 0),
]


@pytest.mark.parametrize("numeric", MODES)
@pytest.mark.parametrize(("layout", "m", "n", "cta_group", "ws", "lane"), CASES)
def test_every_dense_layout_from_shared_memory(
    layout: str, m: int, n: int, cta_group: int, ws: bool, lane: int, numeric: str
):
    ctas, a, b, a_desc, b_desc = bf16_setup(m, n, cta_group)
    d = lane << 16 | 32
    op = Mma("f16", idesc(m, n, 1, 1, 1), d, a_desc, b_desc, False, cta_group=cta_group, ws=ws)
    core = TensorCore(numeric)  # type: ignore[arg-type]
    core.mma(op, ctas)
    assert (read_d(ctas, layout, m, n, d).view(np.float32) == a @ b.T).all()
    used = sum(int((cta.tmem.cells != POISON).sum()) for cta in ctas)
    assert used == m * n and sum(int(c.tmem.written.sum()) for c in ctas) == m * n
    c = small_integers(np.random.default_rng(1), m, n)
    write_d(ctas, layout, c.view(np.uint32), d)
    core.mma(Mma(**{f: getattr(op, f) for f in op.__slots__} | {"enable_d": True}), ctas)
    assert (read_d(ctas, layout, m, n, d).view(np.float32) == a @ b.T + c).all()
    assert core.mma_count == 2


def test_golden_layout_cells():
    assert d_cell("F", 37, 0, 128)[1] == 69
    assert d_cell("B", 70, 100, 128) == (1, 70, 36)
    ctas, a, b, a_desc, b_desc = bf16_setup(128, 128, 2)
    TensorCore().mma(
        Mma("f16", idesc(128, 128, 1, 1, 1), 0, a_desc, b_desc, False, cta_group=2), ctas
    )
    assert ctas[1].tmem.cells[70, 36].view(np.float32) == (a @ b.T)[70, 100]


@pytest.mark.parametrize("numeric", MODES)
@pytest.mark.parametrize(("layout", "m", "n", "cta_group", "ws", "lane"), CASES)
def test_a_in_tensor_memory(
    layout: str, m: int, n: int, cta_group: int, ws: bool, lane: int, numeric: str
):
    """Each lane bank multiplies its own A; here the banks differ on purpose."""
    ctas, _, b, _, b_desc = bf16_setup(m, n, cta_group)
    rng = np.random.default_rng(5)
    banks = {"B": 2, "E": 2, "G": 4}.get(layout, 1)
    a = small_integers(rng, banks, m, 16)
    words = bf16_bytes(a).view(np.uint32)
    column0 = 300
    for q in range(banks):
        for i in range(m):
            cta, lane_i, _ = d_cell(layout, i, q * n // banks, n)
            ctas[cta].tmem.cells[lane + lane_i, column0 : column0 + 8] = words[q, i]
            ctas[cta].tmem.written[lane + lane_i, column0 : column0 + 8] = True
    d, a_address = lane << 16 | 32, lane << 16 | column0
    op = Mma(
        "f16", idesc(m, n, 1, 1, 1), d, a_address, b_desc, False,
        a_in_tmem=True, cta_group=cta_group, ws=ws,
    )  # fmt: skip
    TensorCore(numeric).mma(op, ctas)  # type: ignore[arg-type]
    per_bank = n // banks
    expected = np.concatenate(
        [a[q] @ b[q * per_bank : (q + 1) * per_bank].T for q in range(banks)], axis=1
    )
    assert (read_d(ctas, layout, m, n, d).view(np.float32) == expected).all()


def test_worked_gemm_stage_steps_by_2_inside_the_swizzle():
    """Section 15.1: four K-steps, descriptors + 0, 2, 4, 6; one by one and as a sequence."""
    results = []
    for joined in (False, True):
        ctas, a, b, a_desc, b_desc = bf16_setup(128, 64, k=64)
        ops = [
            Mma("f16", idesc(128, 64, 1, 1, 1), 0, a_desc + 2 * i, b_desc + 2 * i, i > 0)
            for i in range(4)
        ]
        core = TensorCore()
        if joined:
            core.mma_sequence(ops, ctas)
        else:
            for op in ops:
                core.mma(op, ctas)
        assert core.mma_count == 4
        results.append(ctas[0].tmem.cells[:, :64].view(np.float32).copy())
        assert (results[-1] == a @ b.T).all()


@pytest.mark.parametrize("transpose_a", [0, 1])
@pytest.mark.parametrize("transpose_b", [0, 1])
def test_mn_major_operands(transpose_a: int, transpose_b: int):
    """Section 15.2: MN-major tiles as boxes of 128 bytes of MN by 64 of K; step is +128."""
    rng = np.random.default_rng(2)
    a, b = small_integers(rng, 128, 64), small_integers(rng, 128, 64)
    cta = FakeCta()
    steps = []
    for matrix, start, transposed in ((a, 0x400, transpose_a), (b, 0x8400, transpose_b)):
        if transposed:
            place_mn_major(
                cta.shared, bf16_bytes(np.ascontiguousarray(matrix.T)), start, 8192, 1024
            )
            steps.append((descriptor(start, 8192, 1024, 2), 128))
        else:
            place_k_major(cta.shared, bf16_bytes(matrix), start, 1024)
            steps.append((descriptor(start, 16, 1024, 2), 2))
    code = idesc(128, 128, 1, 1, 1, tr_a=transpose_a, tr_b=transpose_b)
    ops = [
        Mma("f16", code, 0, steps[0][0] + i * steps[0][1], steps[1][0] + i * steps[1][1], i > 0)
        for i in range(4)
    ]
    TensorCore().mma_sequence(ops, [cta])
    assert (read_d([cta], "D", 128, 128, 0).view(np.float32) == a @ b.T).all()


def test_sequence_splits_at_new_accumulators_and_at_dependences():
    ctas, a, b, a_desc, b_desc = bf16_setup(128, 64, k=64)
    code = idesc(128, 64, 1, 1, 1)
    ops = [
        Mma("f16", code, 0, a_desc, b_desc, False),
        Mma("f16", code, 64, a_desc + 2, b_desc + 2, False),
        Mma("f16", code, 64, a_desc + 4, b_desc + 4, True),
        Mma("f16", code, 64, a_desc + 6, b_desc + 6, False),
    ]
    TensorCore().mma_sequence(ops, ctas)
    parts = [a[:, 16 * i : 16 * i + 16] @ b[:, 16 * i : 16 * i + 16].T for i in range(4)]
    cells = ctas[0].tmem.cells.view(np.float32)
    assert (cells[:, :64] == parts[0]).all() and (cells[:, 64:128] == parts[3]).all()
    # A is read from the columns that the first step overwrites
    cells[:, :64] = np.arange(64)
    ctas[0].tmem.written[:, :64] = True
    tail = [
        Mma("f16", code, 0, 8, b_desc, False, a_in_tmem=True),
        Mma("f16", code, 0, 16, b_desc + 2, True, a_in_tmem=True),
    ]
    copies = [FakeCta(ctas[0].shared), FakeCta(ctas[0].shared)]
    for copy in copies:
        copy.tmem.cells[...] = ctas[0].tmem.cells
        copy.tmem.written[...] = True
    with np.errstate(all="ignore"):
        TensorCore().mma_sequence(tail, [copies[0]])
        for op in tail:
            TensorCore().mma(op, [copies[1]])
    assert (copies[0].tmem.cells == copies[1].tmem.cells).all()


@pytest.mark.parametrize("numeric", MODES)
def test_lane_mask_scale_and_negation(numeric: str):
    ctas, a, b, a_desc, b_desc = bf16_setup(256, 32, 2)
    mask = tuple(int(x) for x in np.random.default_rng(0).integers(0, 1 << 32, 8))
    c = small_integers(np.random.default_rng(1), 256, 32)
    write_d(ctas, "A", c.view(np.uint32), 0)
    code = idesc(256, 32, 1, 1, 1, neg_a=1)
    op = Mma("f16", code, 0, a_desc, b_desc, scale_d=3, lane_mask=mask, cta_group=2)
    TensorCore(numeric).mma(op, ctas)  # type: ignore[arg-type]
    kept = np.array([(mask[i // 32] >> (i % 32)) & 1 for i in range(256)], bool)[:, None]
    expected = np.where(kept, c, c / 8 - a @ b.T)
    assert (read_d(ctas, "A", 256, 32, 0).view(np.float32) == expected).all()
    fresh = [FakeCta(cta.shared) for cta in ctas]
    TensorCore().mma(Mma("f16", code, 0, a_desc, b_desc, False, lane_mask=mask, cta_group=2), fresh)
    for cta, rows in zip(fresh, (kept[:128], kept[128:]), strict=True):
        assert (cta.tmem.written[:, :32] == ~rows).all()
    both = idesc(256, 32, 1, 1, 1, neg_a=1, neg_b=1)
    TensorCore(numeric).mma(  # type: ignore[arg-type]
        Mma("f16", both, 0, a_desc, b_desc, False, cta_group=2), ctas
    )
    assert (read_d(ctas, "A", 256, 32, 0).view(np.float32) == a @ b.T).all()


@pytest.mark.parametrize("numeric", MODES)
def test_f16_accumulator_uses_the_low_half(numeric: str):
    rng = np.random.default_rng(0)
    a, b, c = (small_integers(rng, *s) for s in ((128, 16), (16, 16), (128, 16)))
    cta = FakeCta()
    for matrix, start in ((a, 0x400), (b, 0x8400)):
        place_k_major(cta.shared, matrix.astype(np.float16).view(np.uint8), start, 1024)
    write_d([cta], "D", c.astype(np.float16).view(np.uint16).astype(np.uint32), 0)
    op = Mma(
        "f16", idesc(128, 16, 0, 0, 0), 0,
        descriptor(0x400, 16, 1024, 2), descriptor(0x8400, 16, 1024, 2),
    )  # fmt: skip
    TensorCore(numeric).mma(op, [cta])  # type: ignore[arg-type]
    expected = (a @ b.T + c).astype(np.float16).view(np.uint16)
    assert (cta.tmem.cells[:, :16] == expected).all()


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
    cta.tmem.cells[33, 256] ^= 0xFFFFFFFF
    with pytest.raises(Fault, match="hold different scales"):
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


def test_ws_zero_columns_and_shift():
    ctas, a, b, a_desc, b_desc = bf16_setup(64, 64 + 8)
    # bank 0 starts with 2 skipped, 3 used; bank 1 starts 1 into 3 used
    mask = 0 | 1 << 8 | 1 << 32 | 1 << 39 | (2 - 1) << 40 | (3 - 1) << 48 | 8 << 56
    code = idesc(64, 64, 1, 1, 1) | 1 << 30
    op = Mma("f16", code, 0, a_desc, b_desc, False, ws=True, zero_mask=mask)
    TensorCore().mma(op, ctas)
    expected = a @ b[8:72].T
    for n in range(64):
        q, p = n // 32, n % 32
        zero = p % 5 < 2 if q == 0 else (p + 1) % 5 >= 3
        if zero:
            expected[:, n] = 0
    assert (read_d(ctas, "E", 64, 64, 0).view(np.float32) == expected).all()


def test_ashift_reads_the_next_row():
    ctas, a, b, _, b_desc = bf16_setup(128, 32)
    ctas[0].tmem.cells[:, 100:108] = bf16_bytes(a).view(np.uint32)
    ctas[0].tmem.written[:, 100:108] = True
    op = Mma("f16", idesc(128, 32, 1, 1, 1), 0, 100, b_desc, False, a_in_tmem=True, ashift=True)
    TensorCore().mma(op, ctas)
    moved = np.concatenate([a[1:], a[-1:]])
    assert (ctas[0].tmem.cells[:, :32].view(np.float32) == moved @ b.T).all()


def plain_op(**changes: object) -> Mma:
    values: dict[str, object] = {
        "kind": "f16", "idesc": idesc(128, 32, 1, 1, 1), "d": 0, "enable_d": False,
        "a": descriptor(0x400, 16, 1024, 2), "b": descriptor(0x8400, 16, 1024, 2),
    }  # fmt: skip
    return Mma(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"d": 16 << 16}, "layout D .* lane 16; allowed: 0"),
        ({"idesc": idesc(64, 32, 1, 1, 1), "d": 8 << 16}, "allowed: 0 or 16"),
        ({"d": 496}, "accumulator D uses columns 496"),
        ({"a_in_tmem": True, "a": 400}, "operand A reads 1024 tensor-memory cells"),
        ({"a_in_tmem": True, "a": 16 << 16 | 400}, "they must agree"),
        ({"idesc": idesc(128, 32, 1, 1, 1, tr_a=1), "a_in_tmem": True, "a": 400}, "K-major"),
        ({"lane_mask": (1, 2)}, "2 words, 4 are needed"),
        ({"scale_d": 16}, r"0\.\.15"),
        ({"b": descriptor(0x20000, 16, 1024, 2)}, "operand B leaves shared memory"),
        ({"cta_group": 2}, "M=128|got 1 CTA"),
        ({"ashift": True}, "ashift needs A in tensor memory"),
    ],
)
def test_faults_change_nothing(changes: dict[str, object], text: str):
    cta = FakeCta()
    with pytest.raises(Fault, match=text):
        TensorCore().mma(plain_op(**changes), [cta])
    assert (cta.tmem.cells == POISON).all() and not cta.tmem.written.any()


@pytest.mark.parametrize(
    ("element", "used"), [("e2m1", 8), ("e2m3", 12), ("e3m2", 12), ("e4m3", 16)]
)
def test_padding_of_packed_operands_is_not_read(element: str, used: int):
    shared = SharedMemory(0x1000, track_initialised=True)
    assert shared.initialised is not None

    def fetch() -> None:
        smem_operand(
            shared,
            (descriptor(0x400, 128, 256, 0),),
            architecture="sm_100",
            element=element,
            mn_major=False,
            mn_count=8,
            k_bytes=32,
            what="operand A",
        )

    units = shared.initialised.reshape(-1, 16)[0x40:]
    units[:, :used] = True
    fetch()
    units[3, used - 1] = False
    with pytest.raises(Fault, match="operand A reads bytes never written"):
        fetch()


def test_what_is_added_to_cells_never_written_stays_unwritten():
    """Only the columns that something read later would be undefined; the first half is written here."""
    cta = FakeCta()
    columns = plain_op().idesc >> 17 << 3 & 0xFF
    cta.tmem.store("32x32b", columns // 2, 0, 0, np.zeros((columns // 2, 32), np.uint32))
    TensorCore().mma(plain_op(enable_d=True), [cta])
    TensorCore().mma(plain_op(enable_d=True), [cta])
    written = cta.tmem.written[:32, :columns]
    assert written[:, : columns // 2].all() and not written[:, columns // 2 :].any()
    assert (cta.tmem.load("32x32b", columns // 2, 0, 0) == 0).all()
    with pytest.raises(Fault, match="all of them never written"):
        cta.tmem.load("32x32b", columns // 2, columns // 2, 0)
    TensorCore().mma(plain_op(enable_d=False), [cta])
    assert cta.tmem.written[:, :columns].all()


def test_uninitialised_operand_is_found_when_tracked():
    cta = FakeCta(SharedMemory(0x10000, track_initialised=True))
    cta.shared.fill(0x400, 0x4000)
    with pytest.raises(Fault, match="operand B reads bytes never written"):
        TensorCore().mma(plain_op(), [cta])
    cta.shared.fill(0x8400, 0x1000)
    TensorCore().mma(plain_op(), [cta])


def test_float32_mode_is_close_to_the_exact_product_on_random_data():
    rng = np.random.default_rng(0)
    a, b = (
        decode("bf16", encode("bf16", rng.standard_normal(s)).astype(np.uint16))
        for s in ((128, 64), (64, 64))
    )
    for numeric in MODES:
        cta = FakeCta()
        place_k_major(cta.shared, bf16_bytes(a), 0x400, 1024)
        place_k_major(cta.shared, bf16_bytes(b), 0x8400, 1024)
        ops = [
            Mma(
                "f16", idesc(128, 64, 1, 1, 1), 0, descriptor(0x400, 16, 1024, 2) + 2 * i,
                descriptor(0x8400, 16, 1024, 2) + 2 * i, i > 0,
            )
            for i in range(4)
        ]  # fmt: skip
        TensorCore(numeric).mma_sequence(ops, [cta])  # type: ignore[arg-type]
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        bound = 64 * 2.0**-23 * (np.abs(a) @ np.abs(b).T)
        assert (np.abs(cta.tmem.cells[:, :64].view(np.float32) - exact) <= bound).all()
