"""The worked kernels of the machine description: TMA, descriptors, MMA and epilogue together."""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.runtime.emulator.machine import (
    GlobalMemory,
    MBarrierTable,
    Mma,
    SharedMemory,
    TensorCore,
    TensorMemory,
    Wgmma,
    decode_tensor_map,
    load_tile,
    store_tile,
    wgmma,
)
from attn_mlir.runtime.emulator.machine.operands import smem_operand

A_AT, B_AT = 0x400, 0x4400


@dataclass
class FakeCta:
    shared: SharedMemory = field(default_factory=lambda: SharedMemory(0x18000))
    tmem: TensorMemory = field(default_factory=TensorMemory)
    barriers: MBarrierTable = field(default_factory=MBarrierTable)


def tensor_map(
    base: int, inner: int, outer: int, row_bytes: int, box: tuple[int, int], swizzle: int = 3
) -> bytes:
    """A bf16 map of rank 2."""
    w = np.zeros(32, np.uint32)
    w[0], w[1] = base & 0xFFFFFFFF, base >> 32
    w[2] = 1 << 4 | 10 << 7 | swizzle << 13
    w[3], w[8], w[9] = row_bytes >> 4, inner - 1, outer - 1
    w[13], w[14] = (box[0] - 1) << 24, box[1] - 1
    return w.tobytes()


def integers(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.integers(-3, 4, shape).astype(np.float32)


def in_bf16(memory: GlobalMemory, values: npt.NDArray[np.float32]) -> int:
    return memory.map(values.astype(ml_dtypes.bfloat16))


def epilogue(tmem: TensorMemory, d: int, columns: int) -> npt.NDArray[np.float32]:
    """Four warps read their lanes 32 columns at a time, as section 15.1 does."""
    out = np.zeros((128, columns), np.float32)
    for warp in range(4):
        for col in range(0, columns, 32):
            registers = tmem.load("32x32b", 32, d + (32 * warp << 16) + col, warp)
            out[32 * warp : 32 * warp + 32, col : col + 32] = registers.T.view(np.float32)
    return out


def test_15_1_gemm_stage_on_one_cta():
    rng = np.random.default_rng(0)
    a, b = integers(rng, 128, 128), integers(rng, 256, 128)
    memory, cta = GlobalMemory(), FakeCta()
    map_a = decode_tensor_map(tensor_map(in_bf16(memory, a), 128, 128, 256, (64, 128)))
    map_b = decode_tensor_map(tensor_map(in_bf16(memory, b), 128, 256, 256, (64, 256)))
    bar = 0x18000
    cta.barriers.init(bar, 1)
    d = cta.tmem.alloc(256)
    assert d == 0
    core = TensorCore()
    for stage in range(2):
        cta.barriers.arrive_expect_tx(bar, 49152)
        k0 = 64 * stage
        cta.barriers.complete_tx(bar, load_tile(map_a, (k0, 0), memory, cta.shared, A_AT))
        assert not cta.barriers.test_parity(bar, stage)
        cta.barriers.complete_tx(bar, load_tile(map_b, (k0, 0), memory, cta.shared, B_AT))
        assert cta.barriers.test_parity(bar, stage)
        desc = 0x4000404000010000
        core.mma_sequence(
            [
                Mma(
                    "f16", 0x08400490, d,
                    desc + (A_AT >> 4) + 2 * i, desc + (B_AT >> 4) + 2 * i, stage + i > 0,
                )
                for i in range(4)
            ],
            [cta],
        )  # fmt: skip
    assert (epilogue(cta.tmem, d, 256) == a @ b.T).all()


def test_15_2_mn_major_b():
    rng = np.random.default_rng(1)
    a, b = integers(rng, 128, 64), integers(rng, 64, 256)
    memory, cta = GlobalMemory(), FakeCta()
    map_a = decode_tensor_map(tensor_map(in_bf16(memory, a), 64, 128, 128, (64, 128)))
    map_b = decode_tensor_map(tensor_map(in_bf16(memory, b), 256, 64, 512, (64, 64)))
    load_tile(map_a, (0, 0), memory, cta.shared, A_AT)
    for box in range(4):
        assert load_tile(map_b, (64 * box, 0), memory, cta.shared, B_AT + 8192 * box) == 8192
    cta.tmem.alloc(256)
    a_desc, b_desc = 0x4000404000010000 | A_AT >> 4, 0x4000404002000000 | B_AT >> 4
    for i in range(4):
        op = Mma("f16", 0x08410490, 0, a_desc + 2 * i, b_desc + 128 * i, i > 0)
        TensorCore().mma(op, [cta])
    assert (epilogue(cta.tmem, 0, 256) == a @ b).all()


def test_15_3_cta_pair():
    rng = np.random.default_rng(2)
    a, b = integers(rng, 256, 64), integers(rng, 256, 64)
    memory, pair = GlobalMemory(), [FakeCta(), FakeCta()]
    map_a = decode_tensor_map(tensor_map(in_bf16(memory, a), 64, 256, 128, (64, 128)))
    map_b = decode_tensor_map(tensor_map(in_bf16(memory, b), 64, 256, 128, (64, 128)))
    leader = pair[0].barriers
    leader.init(0x18000, 1)
    leader.arrive_expect_tx(0x18000, 65536)
    for rank, cta in enumerate(pair):
        cta.tmem.alloc(256)
        for tmap, at in ((map_a, A_AT), (map_b, B_AT)):
            credited = load_tile(tmap, (0, 128 * rank), memory, cta.shared, at)
            leader.complete_tx(0x18000, credited)
    assert leader.test_parity(0x18000, 0)
    desc = 0x4000404000010000
    for i in range(4):
        a_desc, b_desc = desc + (A_AT >> 4) + 2 * i, desc + (B_AT >> 4) + 2 * i
        TensorCore().mma(Mma("f16", 0x10400490, 0, a_desc, b_desc, i > 0, cta_group=2), pair)
    got = np.concatenate([epilogue(cta.tmem, 0, 256) for cta in pair])
    assert (got == a @ b.T).all()


def test_15_4_attention_p_times_v_from_tensor_memory():
    """P goes to tensor memory by 32x32b.x64 stores of packed pairs; V is MN-major."""
    rng = np.random.default_rng(3)
    p, v = integers(rng, 128, 128), integers(rng, 128, 128)
    memory, cta = GlobalMemory(), FakeCta()
    map_v = decode_tensor_map(tensor_map(in_bf16(memory, v), 128, 128, 256, (64, 128)))
    for half in range(2):
        load_tile(map_v, (64 * half, 0), memory, cta.shared, B_AT + 16384 * half)
    cta.tmem.alloc(256)
    p0, o = 0, 128
    packed = p.astype(ml_dtypes.bfloat16).view(np.uint32)
    for warp in range(4):
        registers = np.ascontiguousarray(packed[32 * warp : 32 * warp + 32].T)
        cta.tmem.store("32x32b", 64, (32 * warp << 16) + p0, warp, registers)
    v_desc = 2 << 61 | 1 << 46 | (1024 >> 4) << 32 | (16384 >> 4) << 16 | B_AT >> 4
    ops = [
        Mma("f16", 0x08210490, o, p0 + 8 * i, v_desc + 128 * i, i > 0, a_in_tmem=True)
        for i in range(8)
    ]
    TensorCore().mma_sequence(ops, [cta])
    assert (epilogue(cta.tmem, o, 128) == p @ v).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_hopper_descriptors_read_tma_tiles(transposed: bool):
    rng = np.random.default_rng(4)
    a, b = integers(rng, 64, 64), integers(rng, 64, 128)
    memory, shared = GlobalMemory(), SharedMemory(0x10000)
    map_a = decode_tensor_map(tensor_map(in_bf16(memory, a), 64, 64, 128, (64, 64)))
    load_tile(map_a, (0, 0), memory, shared, A_AT)
    if transposed:
        map_b = decode_tensor_map(tensor_map(in_bf16(memory, b), 128, 64, 256, (64, 64)))
        for half in range(2):
            load_tile(map_b, (64 * half, 0), memory, shared, B_AT + 8192 * half)
        b_desc, step = 1 << 62 | 64 << 32 | (8192 >> 4) << 16 | B_AT >> 4, 128
    else:
        by_n = np.ascontiguousarray(b.T)
        map_b = decode_tensor_map(tensor_map(in_bf16(memory, by_n), 64, 128, 128, (64, 128)))
        load_tile(map_b, (0, 0), memory, shared, B_AT)
        b_desc, step = 0x4000004000010000 + (B_AT >> 4), 2
    d = np.zeros((4, 64, 32), np.uint32)
    op = Wgmma(128, "f32", "bf16", "bf16", transpose_b=transposed)
    for i in range(4):
        a_desc = 0x4000004000010000 + (A_AT >> 4) + 2 * i
        d = wgmma(shared, op, a_desc, b_desc + step * i, d, i > 0)
    out = np.zeros((64, 128), np.float32)
    for w in range(4):
        for i in range(64):
            for t in range(32):
                row, col = (
                    16 * w + t // 4 + 8 * ((i >> 1) & 1),
                    8 * (i >> 2) + 2 * (t % 4) + (i & 1),
                )
                out[row, col] = d[w, i, t].view(np.float32)
    assert (out == a @ b).all()


SPANS = {1: 32, 2: 64, 3: 128}
CODES = {1: 6, 2: 4, 3: 2}


@settings(max_examples=60, deadline=None)
@given(
    swizzle=st.sampled_from([1, 2, 3]),
    rows=st.integers(1, 8).map(lambda n: 8 * n),
    slot=st.integers(0, 15),
    mn_major=st.booleans(),
    seed=st.integers(0, 99),
)
def test_descriptors_read_back_what_tma_wrote(
    swizzle: int, rows: int, slot: int, mn_major: bool, seed: int
):
    """For every swizzle and both majors; tiles start where the pattern does (base offset 0)."""
    span = SPANS[swizzle]
    inner = span // 2
    values = np.random.default_rng(seed).standard_normal((rows, inner)).astype(ml_dtypes.bfloat16)
    memory, shared = GlobalMemory(), SharedMemory(0x8000)
    raw = tensor_map(memory.map(values), inner, rows, span, (inner, rows), swizzle)
    start = 0x400 + slot * 8 * span
    load_tile(decode_tensor_map(raw), (0, 0), memory, shared, start)
    desc = CODES[swizzle] << 61 | 1 << 46 | (8 * span >> 4) << 32 | 1 << 16 | start >> 4
    if mn_major:
        steps = tuple(desc + (16 * span * i >> 4) for i in range(rows // 16))
        if not steps:
            return
        got = smem_operand(
            shared, steps, architecture="sm_100", element="bf16", mn_major=True,
            mn_count=inner, k_bytes=32, what="x",
        )  # fmt: skip
        expected = values[: 16 * len(steps)].T
    else:
        steps = tuple(desc + 2 * i for i in range(span // 32))
        got = smem_operand(
            shared, steps, architecture="sm_100", element="bf16", mn_major=False,
            mn_count=rows, k_bytes=32, what="x",
        )  # fmt: skip
        expected = values
    assert (got == expected.astype(np.float32)).all()


@settings(max_examples=40, deadline=None)
@given(swizzle=st.sampled_from([0, 1, 2, 3, 4, 6]), rows=st.integers(1, 40), slot=st.integers(0, 9))
def test_store_undoes_load(swizzle: int, rows: int, slot: int):
    inner = {0: 48, 1: 16, 2: 32}.get(swizzle, 64)
    source = np.random.default_rng(rows).integers(0, 1 << 16, (rows, inner), np.uint16)
    target = np.zeros_like(source)
    memory, shared = GlobalMemory(), SharedMemory(0x4000)
    maps: list[bytes] = []
    for array in (source, target):
        words = np.frombuffer(
            tensor_map(memory.map(array), inner, rows, 2 * inner, (inner, rows), min(swizzle, 3)),
            np.uint32,
        ).copy()
        words[2] |= max(swizzle - 3, 0) << 19
        maps.append(words.tobytes())
    at = 0x400 + 128 * slot
    load_tile(decode_tensor_map(maps[0]), (0, 0), memory, shared, at)
    store_tile(decode_tensor_map(maps[1]), (0, 0), memory, shared, at)
    assert (target == source).all()
