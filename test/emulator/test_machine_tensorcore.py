"""tcgen05.mma of 16 bits against operands placed, and results read, cell by cell."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.emulator.machine.formats import decode, encode
from attn_mlir.runtime.emulator.machine.tensorcore import Mma, TensorCore
from attn_mlir.runtime.emulator.machine.tmem import POISON
from attn_mlir.validation.emulator.placed_products import (
    MODES,
    FakeCta,
    bf16_bytes,
    bf16_setup,
    d_cell,
    descriptor,
    idesc,
    place_k_major,
    place_mn_major,
    read_d,
    small_integers,
    write_d,
)

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
