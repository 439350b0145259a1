"""Matrix instructions of warps and warpgroups in PTX, element by element from the tables of spec 9, 10."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.emulator.ptx_bench import module, run_module

Array = np.ndarray[Any, np.dtype[Any]]
Place = Callable[[int, int, int], tuple[int, int]]  # (group, position in it, element) -> place
WORDS = "r10 r11 r12 r13 r14 r15 r16 r17 r18 r19".split()


def _types(name: str) -> Any:
    return {
        "bf16": ml_dtypes.bfloat16,
        "f16": np.float16,
        "tf32": np.float32,
        "f32": np.float32,
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "s8": np.int8,
        "u8": np.uint8,
        "s32": np.int32,
    }[name]


def _fragment(matrix: Array, per_thread: int, place: Place) -> Array:
    """uint32[32, registers]: the elements of each thread, packed."""
    rows = [[matrix[place(t // 4, t % 4, i)] for i in range(per_thread)] for t in range(32)]
    return np.array(rows, matrix.dtype).view(np.uint32).reshape(32, -1)


def _accumulator(g: int, q: int, i: int) -> tuple[int, int]:
    return g + 8 * (i >= 2), 2 * q + (i & 1)


A_PLACES: dict[str, Place] = {
    "m16n8k16": lambda g, q, i: (g + 8 * (i >> 1 & 1), 2 * q + (i & 1) + 8 * (i >= 4)),
    "m16n8k8": lambda g, q, i: (g + 8 * (i >= 2), 2 * q + (i & 1)),
    "m16n8k8 tf32": lambda g, q, i: (g + 8 * (i & 1), q + 4 * (i >= 2)),
    "m16n8k32": lambda g, q, i: (g + 8 * (i >> 2 & 1), 4 * q + (i & 3) + 16 * (i >= 8)),
}
B_PLACES: dict[str, Place] = {
    "m16n8k16": lambda g, q, i: (2 * q + (i & 1) + 8 * (i >= 2), g),
    "m16n8k8": lambda g, q, i: (2 * q + i, g),
    "m16n8k8 tf32": lambda g, q, i: (q + 4 * i, g),
    "m16n8k32": lambda g, q, i: (4 * q + (i & 3) + 16 * (i >= 4), g),
}


@pytest.mark.parametrize(
    ("shape", "d", "a", "b"),
    [
        ("m16n8k16", "f32", "bf16", "bf16"),
        ("m16n8k16", "f16", "f16", "f16"),
        ("m16n8k8", "f32", "f16", "f16"),
        ("m16n8k8", "f32", "tf32", "tf32"),
        ("m16n8k32", "f32", "e4m3", "e5m2"),
        ("m16n8k32", "s32", "s8", "u8"),
    ],
)
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_products_of_a_warp(shape: str, d: str, a: str, b: str, target: str) -> None:
    depth = int(shape.rpartition("k")[2])
    rng = np.random.default_rng(depth)
    low = 0 if b == "u8" else -4
    left, right = rng.integers(-4, 5, (16, depth)), rng.integers(low, 5, (depth, 8))
    start = rng.integers(-9, 10, (16, 8))
    key = shape + (" tf32" if a == "tf32" else "")
    fragments = [
        _fragment(left.astype(_types(a)), 16 * depth // 32, A_PLACES[key]),
        _fragment(right.astype(_types(b)), 8 * depth // 32, B_PLACES[key]),
        _fragment(start.astype(_types(d)), 4, _accumulator),
    ]
    counts = [f.shape[1] for f in fragments]
    names = [f"r{10 + n}" for n in range(sum(counts))]
    loads = "".join(f"ld.global.b32 {name}, [rd2+{4 * n}];" for n, name in enumerate(names))
    lists = [", ".join(names[sum(counts[:k]) : sum(counts[: k + 1])]) for k in range(3)]
    results = [f"r{40 + n}" for n in range(counts[2])]
    stores = "".join(f"st.global.b32 [rd3+{4 * n}], {r};" for n, r in enumerate(results))
    body = f"""
    mov.u32 r60, %tid.x; ld.param.u64 rd1, [src]; mad.wide.u32 rd2, r60, {4 * sum(counts)}, rd1; {loads}
    mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d} {{{", ".join(results)}}}, {{{lists[0]}}}, {{{lists[1]}}}, {{{lists[2]}}};
    ld.param.u64 rd3, [out]; mad.wide.u32 rd3, r60, {4 * counts[2]}, rd3; {stores}
    """
    out = np.zeros((32, counts[2]), np.uint32)
    text = module(body, ".param .u64 src, .param .u64 out", target=target)
    run_module(text, [np.concatenate(fragments, axis=1).copy(), out], target=target)
    want = _fragment((left @ right + start).astype(_types(d)), 4, _accumulator)
    assert (out == want).all()


# ---- ldmatrix, stmatrix

TILE = ".shared .align 16 .b8 tile[1024];"


def _load_matrix(opcode: str, registers: int, source: Array) -> Array:
    """uint8[32, registers, 4] of an ldmatrix whose lane k names row k % 16."""
    names = ", ".join(WORDS[:registers])
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r2, tile; ld.param.u64 rd1, [src]; mad.wide.u32 rd2, r60, 32, rd1;
    mad.lo.u32 r3, r60, 32, r2; ld.global.v4.b32 {{r4, r5, r6, r7}}, [rd2]; st.shared.v4.b32 [r3], {{r4, r5, r6, r7}};
    ld.global.v4.b32 {{r4, r5, r6, r7}}, [rd2+16]; st.shared.v4.b32 [r3+16], {{r4, r5, r6, r7}};
    bar.sync 0; mad.lo.u32 r8, r60, 16, r2;
    {opcode} {{{names}}}, [r8];
    ld.param.u64 rd3, [out]; mad.wide.u32 rd3, r60, {4 * registers}, rd3;
    """ + "".join(f"st.global.b32 [rd3+{4 * n}], {w};" for n, w in enumerate(WORDS[:registers]))
    out = np.zeros((32, registers), np.uint32)
    run_module(module(body, ".param .u64 src, .param .u64 out", before=TILE), [source, out])
    return out.view(np.uint8).reshape(32, registers, 4)


def test_ldmatrix_of_halves() -> None:
    source = np.arange(1024, dtype=np.uint8) * np.uint8(7)
    rows = source[: 32 * 16].view(np.uint16).reshape(4, 8, 8)
    got = _load_matrix("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16", 4, source)
    turned = _load_matrix("ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16", 2, source)
    for t in range(32):
        for i in range(4):
            row, column = t // 4, 2 * (t % 4)
            assert got[t, i].view(np.uint16).tolist() == rows[i, row, column : column + 2].tolist()
            if i < 2:
                want = rows[i, column : column + 2, row]
                assert turned[t, i].view(np.uint16).tolist() == want.tolist()


def test_ldmatrix_of_bytes() -> None:
    source = np.random.default_rng(0).integers(0, 256, 1024, np.uint8)
    rows = source.reshape(64, 16)
    got = _load_matrix("ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8", 4, source)
    for t in range(32):
        for r in range(4):
            for j in range(4):
                row, column = 4 * (t % 4) + j, t // 4 + 8 * (r & 1)
                assert got[t, r, j] == rows[16 * (r >> 1) + row, column]


@pytest.mark.parametrize(("form", "width"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_ldmatrix_that_unpacks(form: str, width: int) -> None:
    source = np.random.default_rng(width).integers(0, 256, 1024, np.uint8)
    bits = np.unpackbits(source.reshape(64, 16), axis=1, bitorder="little")[:, : 16 * width]
    codes = (bits.reshape(64, 16, width) << np.arange(width)).sum(axis=2)
    got = _load_matrix(f"ldmatrix.sync.aligned.m8n16.x1.shared::cta.b8x16.{form}", 1, source)
    turned = _load_matrix(
        f"ldmatrix.sync.aligned.m16n16.x1.trans.shared::cta.b8x16.{form}", 2, source
    )
    for t in range(32):
        assert got[t, 0].tolist() == codes[t // 4, 4 * (t % 4) : 4 * (t % 4) + 4].tolist()
        for r in range(2):
            for j in range(4):
                row, column = 4 * (t % 4) + j, t // 4 + 8 * r
                assert turned[t, r, j] == codes[row, column]


@pytest.mark.parametrize(
    ("opcode", "count"),
    [
        ("m8n8.x4.shared::cta.b16", 4),
        ("m8n8.x2.trans.shared::cta.b16", 2),
        ("m16n8.x1.trans.shared::cta.b8", 1),
        ("m16n8.x4.trans.shared::cta.b8", 4),
    ],
)
def test_stmatrix(opcode: str, count: int) -> None:
    values = np.random.default_rng(count).integers(0, 1 << 32, (32, 4), np.uint32)
    out = np.zeros(512, np.uint8)
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r2, tile; ld.param.u64 rd1, [src]; mad.wide.u32 rd2, r60, 16, rd1;
    ld.global.v4.b32 {{r10, r11, r12, r13}}, [rd2]; mad.lo.u32 r8, r60, 16, r2;
    mov.b32 r9, 0; st.shared.v4.b32 [r8], {{r9, r9, r9, r9}}; bar.sync 0;
    stmatrix.sync.aligned.{opcode} [r8], {{{", ".join(WORDS[:count])}}};
    bar.sync 0; ld.shared.v4.b32 {{r4, r5, r6, r7}}, [r8];
    ld.param.u64 rd3, [out]; mad.wide.u32 rd3, r60, 16, rd3; st.global.v4.b32 [rd3], {{r4, r5, r6, r7}};
    """
    run_module(module(body, ".param .u64 src, .param .u64 out", before=TILE), [values, out])
    is_bytes, turned = opcode.endswith("b8"), "trans" in opcode
    want = np.zeros((32, 16), np.uint8)
    for t in range(32):
        for i in range(count):
            raw = values[t, i : i + 1].view(np.uint8)
            for j in range(4):
                if is_bytes:
                    row, byte = 2 * (t % 4) + (j & 1), t // 4 + 8 * (j >> 1)
                else:
                    row, column = t // 4, 2 * (t % 4) + (j >> 1)
                    row, column = (column, row) if turned else (row, column)
                    byte = 2 * column + (j & 1)
                want[8 * i + row, byte] = raw[j]
    assert (out.reshape(32, 16) == want).all()


# ---- wgmma


@pytest.mark.parametrize(
    ("d", "a", "b", "tail"),
    [
        ("f32", "bf16", "bf16", ", 1, 1, 0, 0"),
        ("f16", "f16", "f16", ", 1, -1, 0, 0"),
        ("f32", "tf32", "tf32", ", 1, 1"),
        ("f32", "e4m3", "e5m2", ", 1, 1"),
        ("s32", "s8", "u8", ""),
        ("s32.satfinite", "s8", "s8", ""),
    ],
)
def test_products_of_a_warpgroup(d: str, a: str, b: str, tail: str) -> None:
    depth = 32 // np.dtype(_types(a)).itemsize
    low = 0 if b == "u8" else -4
    rng = np.random.default_rng(depth)
    left, right = rng.integers(-4, 5, (64, depth)), rng.integers(low, 5, (8, depth))
    start = 2**31 - 20 if "satfinite" in d else 3
    result, _, saturate = d.partition(".")
    raw = [x.astype(_types(t)).view(np.uint8) for x, t in ((left, a), (right, b))]
    cores = [r.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).reshape(-1) for r in raw]
    blob = np.concatenate([*cores, np.zeros(4096 - 2304, np.uint8)])
    count = 2 if result == "f16" else 4
    initial = np.full(4 // count, start, _types(result)).view(np.uint32)[0]
    names = [f"r{20 + n}" for n in range(count)]
    opcode = f"m64n8k{depth}.{result}.{a}.{b}" + (f".{saturate}" if saturate else "")
    word = (128 >> 4) << 16 | (256 >> 4) << 32  # no swizzle: LBO 128, SBO 256
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r2, tile; ld.param.u64 rd1, [src]; mad.wide.u32 rd2, r60, 32, rd1;
    mad.lo.u32 r3, r60, 32, r2;
    ld.global.v4.b32 {{r4, r5, r6, r7}}, [rd2]; st.shared.v4.b32 [r3], {{r4, r5, r6, r7}};
    ld.global.v4.b32 {{r4, r5, r6, r7}}, [rd2+16]; st.shared.v4.b32 [r3+16], {{r4, r5, r6, r7}};
    fence.proxy.async.shared::cta; bar.sync 0;
    shr.u32 r8, r2, 4; cvt.u64.u32 rd5, r8; or.b64 rd6, rd5, {word}; add.u64 rd7, rd6, {2048 >> 4};
    {"".join(f"mov.b32 {name}, {initial};" for name in names)}
    setp.eq.u32 p2, r60, r60;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.{opcode} {{{", ".join(names)}}}, rd6, rd7, p2{tail};
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    ld.param.u64 rd3, [out]; mad.wide.u32 rd3, r60, {4 * count}, rd3;
    """ + "".join(f"st.global.b32 [rd3+{4 * n}], {name};" for n, name in enumerate(names))
    before = ".shared .align 1024 .b8 tile[4096];"
    out = np.zeros((128, count), np.uint32)
    text = module(body, ".param .u64 src, .param .u64 out", before=before, target="sm_90a")
    run_module(text, [blob, out], block=(128,), target="sm_90a")
    product = (left @ right.T) * (-1 if "-1" in tail else 1) + np.int64(start)
    if saturate:
        product = np.minimum(product, 2**31 - 1)
    got = out.view(_types(result)).reshape(4, 32, 4)
    for w in range(4):
        for t in range(32):
            for i in range(4):
                row, column = 16 * w + t // 4 + 8 * (i >> 1), 2 * (t % 4) + (i & 1)
                assert got[w, t, i] == product[row, column]


def test_named_barriers_and_collectives_in_other_spellings() -> None:
    out = np.zeros((64, 3), np.uint32)
    body = """
    mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; setp.eq.u32 p1, r61, 0; and.b32 r62, r60, 31;
    @p1 bra FIRST; barrier.cta.sync 1, 64; bra MEET;
    FIRST: barrier.cta.arrive.aligned 1, 64; MEET:
    shr.u32 r10, r62, 2; cvt.u64.u32 rd10, r10; shl.b64 rd10, rd10, 33;
    match.all.sync.b64 r11|p2, rd10, 0xffffffff; selp.b32 r12, 1, 0, p2;
    match.any.sync.b64 r13, rd10, 0xffffffff;
    sub.u32 r14, r62, 20; cvt.rn.f32.s32 r14, r14;
    redux.sync.max.abs.NaN.f32 r15, r14, 0xffffffff;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 12, rd1;
    st.global.b32 [rd1], r12; st.global.b32 [rd1+4], r13; st.global.b32 [rd1+8], r15;
    """
    run_module(module(body, ".param .u64 out"), [out], block=(64,))
    lanes = np.arange(64) % 32
    assert (out[:, 0] == 0).all() and (out[:, 1] == 0xF << (lanes // 4 * 4)).all()
    assert (out[:, 2].view(np.float32) == 20).all()


def test_cp_async_with_a_policy_and_a_short_source() -> None:
    source, out = np.arange(1, 9, dtype=np.uint32), np.full(8, 9, np.uint32)
    body = """
    mov.u32 r2, tile; ld.param.u64 rd1, [src]; mov.b64 rd9, 0; mov.b32 r9, 4;
    cp.async.cg.shared::cta.global.L2::cache_hint [r2], [rd1], 16, rd9;
    cp.async.cg.shared::cta.global [r2+16], [rd1+16], 16, r9;
    cp.async.commit_group; cp.async.wait_group 0;
    ld.shared.v4.b32 {r4, r5, r6, r7}, [r2]; ld.shared.v4.b32 {r10, r11, r12, r13}, [r2+16];
    ld.param.u64 rd3, [out]; st.global.v4.b32 [rd3], {r4, r5, r6, r7}; st.global.v4.b32 [rd3+16], {r10, r11, r12, r13};
    """
    text = module(body, ".param .u64 src, .param .u64 out", before=TILE)
    run_module(text, [source, out], block=(1,))
    assert out.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
