"""Every form of tcgen05.mma, cp and shift in PTX, against products of small integers."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.emulator.ptx_bench import module, run_module, wait
from attn_mlir.validation.emulator.tensor_bench import (
    METADATA,
    SFA,
    SFB,
    SHARED,
    SIDE_COLUMN,
    Operands,
    cores,
    descriptor,
    run,
)

Array = np.ndarray[Any, np.dtype[Any]]
ROWS, COLUMNS = 128, 32
MMA = "tcgen05.mma.cta_group::1.kind::"
SCHEDULES = [("fair", 0), ("adversarial", 1)]


def _idesc(d: int, a: int, b: int, columns: int = COLUMNS, rows: int = ROWS) -> int:
    return d << 4 | a << 7 | b << 10 | columns >> 3 << 17 | rows >> 4 << 24


def _integers(seed: int, shape: tuple[int, int], limit: int = 3) -> Array:
    return np.random.default_rng(seed).integers(-limit, limit + 1, shape)


DTYPES: dict[str, tuple[Any, int]] = {  # type, code in the instruction descriptor
    "f16": (np.float16, 0),
    "bf16": (ml_dtypes.bfloat16, 1),
    "tf32": (np.float32, 2),
    "e4m3": (ml_dtypes.float8_e4m3fn, 0),
    "e5m2": (ml_dtypes.float8_e5m2, 1),
}


def _dense(kind: str, a_type: str, b_type: str, seed: int = 0) -> tuple[Operands, Array, int]:
    """Operands, A times B transposed, and the instruction descriptor."""
    (a_dtype, a_code), (b_dtype, b_code) = DTYPES[a_type], DTYPES[b_type]
    depth = 32 // np.dtype(a_dtype).itemsize
    a, b = _integers(seed, (ROWS, depth)), _integers(seed + 1, (COLUMNS, depth))
    return Operands(a.astype(a_dtype), b.astype(b_dtype)), a @ b.T, _idesc(1, a_code, b_code)


@pytest.mark.parametrize(
    ("kind", "a_type", "b_type"),
    [
        ("f16", "f16", "f16"),
        ("f16", "bf16", "bf16"),
        ("tf32", "tf32", "tf32"),
        ("f8f6f4", "e4m3", "e5m2"),
        ("f8f6f4", "e5m2", "e5m2"),
    ],
)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_dense_kinds(kind: str, a_type: str, b_type: str, schedule: str, seed: int) -> None:
    operands, product, idesc = _dense(kind, a_type, b_type)
    text = f"{MMA}{kind} [r1], rd10, rd11, {idesc}, p4;"
    assert (run(text, operands, schedule=schedule, seed=seed).view(np.float32) == product).all()
    text = f"{MMA}{kind} [r1], [r40], rd11, {idesc}, p3;"
    got = run(text, operands, schedule=schedule, seed=seed).view(np.float32)
    assert (got == product + 8).all()


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_kind(saturate: bool) -> None:
    a, b = _integers(1, (ROWS, 32), 100).astype(np.int8), np.abs(_integers(2, (COLUMNS, 32), 100))
    operands = Operands(a, b.astype(np.uint8), initial=np.int32(2**31 - 5))
    idesc = _idesc(2, 1, 0) | saturate << 3
    got = run(f"{MMA}i8 [r1], rd10, rd11, {idesc}, p3;", operands).view(np.int32)
    exact = a.astype(np.int64) @ b.T + (2**31 - 5)
    want = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact.astype(np.int32)
    assert (got == want).all() and (exact > 2**31 - 1).any()


def test_scale_of_the_input_and_collectors() -> None:
    operands, product, idesc = _dense("f16", "f16", "f16")
    text = f"{MMA}f16 [r1], rd10, rd11, {idesc}, p3, 3;"
    assert (run(text, operands).view(np.float32) == product + 1).all()
    for collector in ("fill", "use", "lastuse", "discard"):
        text = f"{MMA}f16.collector::a::{collector} [r1], rd10, rd11, {idesc}, p4;"
        assert (run(text, operands).view(np.float32) == product).all()


def test_masked_lanes_keep_what_they_had() -> None:
    operands, product, idesc = _dense("f16", "f16", "f16")
    text = f"""
    mov.b32 r50, 0x80000001; mov.b32 r51, 0; mov.b32 r52, 0xffffffff; mov.b32 r53, 0xf0;
    {MMA}f16 [r1], rd10, rd11, {idesc}, {{r50, r51, r52, r53}}, p4;"""
    got = run(text, operands).view(np.float32)
    kept = [0, 31, *range(64, 96), 100, 101, 102, 103]
    written = [row for row in range(ROWS) if row not in kept]
    assert (got[kept] == 8).all() and (got[written] == product[written]).all()


def test_ashift_moves_rows_up() -> None:
    operands, product, idesc = _dense("f16", "f16", "f16")
    got = run(f"{MMA}f16.ashift [r1], [r40], rd11, {idesc}, p4;", operands).view(np.float32)
    assert (got == np.concatenate([product[1:], product[-1:]])).all()


# ---- block scales


def _scaled(kind: str, per_row: int) -> tuple[Operands, Array, int]:
    """Operands with power-of-two scales, the scaled product, and the instruction descriptor."""
    is_mx8 = kind == "mxf8f6f4"
    depth = 32 if is_mx8 else 64
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, -1.0, -2.0], np.float32)
    rng = np.random.default_rng(per_row)
    a, b = (values[rng.integers(0, 8, (rows, depth))] for rows in (ROWS, COLUMNS))
    a_scale, b_scale = (rng.integers(-2, 3, (rows, per_row)) for rows in (ROWS, COLUMNS))
    group = depth // per_row
    product = (a * np.repeat(2.0**a_scale, group, axis=1)) @ (
        b * np.repeat(2.0**b_scale, group, axis=1)
    ).T
    if is_mx8:
        packed = [x.astype(ml_dtypes.float8_e4m3fn) for x in (a, b)]
        idesc = _idesc(0, 0, 0) | 1 << 23
    else:
        codes = [x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 0xF for x in (a, b)]
        packed = [c[:, ::2] | c[:, 1::2] << 4 for c in codes]
        idesc = _idesc(0, 1, 1) | 1 << 23
    side = np.zeros((128, 16), np.uint32)
    for first, scale in ((SFA, a_scale), (SFB, b_scale)):
        for row, exponents in enumerate(scale):
            word = sum(int(exponent + 127) << 8 * j for j, exponent in enumerate(exponents))
            for partition in range(4):
                side[row % 32 + 32 * partition, first - SFA + row // 32] = word
    return Operands(packed[0], packed[1], side=side), product, idesc


@pytest.mark.parametrize(
    ("kind", "per_row", "form"),
    [
        ("mxf8f6f4", 1, "scale_vec::1X"),
        ("mxf8f6f4", 1, "block32"),
        ("mxf4", 2, "scale_vec::2X"),
        ("mxf4nvf4", 2, "scale_vec::2X"),
        ("mxf4nvf4", 4, "scale_vec::4X"),
        ("mxf4nvf4", 4, "block16"),
    ],
)
@pytest.mark.parametrize("in_tmem", [False, True])
def test_block_scales(kind: str, per_row: int, form: str, in_tmem: bool) -> None:
    operands, product, idesc = _scaled(kind, per_row)
    a = "[r40]" if in_tmem else "rd10"
    text = f"""
    add.u32 r42, r2, {SFA}; add.u32 r43, r2, {SFB};
    {MMA}{kind}.block_scale.{form} [r1], {a}, rd11, {idesc}, [r42], [r43], p4;"""
    assert (run(text, operands).view(np.float32) == product).all()


# ---- sparse and ws


def _sparse(nibble: int) -> tuple[Operands, Array, int]:
    """A with two of four elements stored, at the places that a metadata nibble names."""
    a, b = _integers(5, (ROWS, 16)), _integers(6, (COLUMNS, 32))
    dense = np.zeros((ROWS, 32), int)
    for position in (0, 1):
        dense[:, (nibble >> 2 * position & 3) :: 4] = a[:, position::2]
    side = np.zeros((128, 16), np.uint32)
    side[:, METADATA - SFA] = nibble * 0x11111111
    operands = Operands(a.astype(np.float16), b.astype(np.float16), side=side)
    return operands, dense @ b.T, _idesc(1, 0, 0) | 4


@pytest.mark.parametrize("nibble", [0x4, 0x8, 0x9, 0xC, 0xD, 0xE])
@pytest.mark.parametrize("in_tmem", [False, True])
def test_sparse(nibble: int, in_tmem: bool) -> None:
    operands, product, idesc = _sparse(nibble)
    a = "[r40]" if in_tmem else "rd10"
    text = f"""
    add.u32 r44, r2, {METADATA};
    tcgen05.mma.sp.cta_group::1.kind::f16 [r1], {a}, rd11, [r44], {idesc}, p4;"""
    assert (run(text, operands).view(np.float32) == product).all()


def test_sparse_with_block_scales() -> None:
    rng = np.random.default_rng(3)
    a, b = _integers(7, (ROWS, 32)), _integers(8, (COLUMNS, 64))
    a_scale, b_scale = rng.integers(-2, 3, ROWS), rng.integers(-2, 3, COLUMNS)
    dense = np.zeros((ROWS, 64), int)
    dense[:, 0::4], dense[:, 1::4] = a[:, 0::2], a[:, 1::2]
    side = np.zeros((128, 16), np.uint32)
    side[:, METADATA - SFA] = side[:, METADATA - SFA + 1] = 0x44444444
    for first, scale in ((SFA, a_scale), (SFB, b_scale)):
        for row, exponent in enumerate(scale):
            side[row % 32 :: 32, first - SFA + row // 32] = exponent + 127
    fp8 = ml_dtypes.float8_e4m3fn
    operands = Operands(a.astype(fp8), b.astype(fp8), side=side)
    text = f"""
    add.u32 r42, r2, {SFA}; add.u32 r43, r2, {SFB}; add.u32 r44, r2, {METADATA};
    tcgen05.mma.sp.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X
        [r1], rd10, rd11, [r44], {_idesc(0, 0, 0) | 1 << 23 | 4}, [r42], [r43], p4;"""
    want = (dense @ b.T) * 2.0 ** a_scale[:, None] * 2.0 ** b_scale[None, :]
    assert (run(text, operands).view(np.float32) == want).all()


@pytest.mark.parametrize("in_tmem", [False, True])
def test_weight_stationary(in_tmem: bool) -> None:
    a, b = _integers(9, (ROWS, 16)), _integers(10, (64, 16))
    operands, idesc = Operands(a.astype(np.float16), b.astype(np.float16)), _idesc(1, 0, 0, 64)
    form, left, mask = ("", "rd10", "")
    if in_tmem:  # zero columns: the first of every two, by the mask descriptor
        form, left, mask = ".collector::b1::fill", "[r40]", ", rd12"
    zero = 1 << 39 | 1 << 32  # enabled, bank 0 begins with a span that is skipped, spans of one
    text = f"""
    mov.b64 rd12, {zero};
    tcgen05.mma.ws.cta_group::1.kind::f16{form} [r1], {left}, rd11, {idesc}, p4{mask};"""
    product = a @ b.T
    if in_tmem:
        product[:, 0::2] = 0
    assert (run(text, operands).view(np.float32) == product[:, :32]).all()


def test_weight_stationary_sparse() -> None:
    operands, _, _ = _sparse(0x9)
    a, b = operands.a.astype(int), _integers(11, (64, 32))
    dense = np.zeros((ROWS, 32), int)
    dense[:, 1::4], dense[:, 2::4] = a[:, 0::2], a[:, 1::2]
    operands.b = b.astype(np.float16)
    text = f"""
    add.u32 r44, r2, {METADATA};
    tcgen05.mma.ws.sp.cta_group::1.kind::f16 [r1], rd10, rd11, [r44], {_idesc(1, 0, 0, 64) | 4}, p4;"""
    assert (run(text, operands).view(np.float32) == (dense @ b.T)[:, :32]).all()


# ---- cp, shift, commit


def _blocks(shape: str) -> tuple[int, int]:
    rows, bits = shape.split("x")
    return int(rows), int(bits[:-1]) // 8


@pytest.mark.parametrize(
    ("form", "lanes"),
    [
        ("128x256b", lambda r: [r]),
        ("128x128b", lambda r: [r]),
        ("4x256b", lambda r: [32 * r]),
        ("64x128b.warpx2::02_13", lambda r: [r, r + 64]),
        ("64x128b.warpx2::01_23", lambda r: [64 * (r // 32) + r % 32 + 32 * q for q in (0, 1)]),
        ("32x128b.warpx4", lambda r: [r + 32 * q for q in range(4)]),
    ],
)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_copies_to_tensor_memory(form: str, lanes: Any, schedule: str, seed: int) -> None:
    rows, width = _blocks(form.split(".")[0])
    source = np.random.default_rng(rows).integers(0, 256, (128, 32), np.uint8)
    operands = Operands(source, np.zeros((8, 16), np.uint8), initial=np.float32(0))
    text = f"tcgen05.cp.cta_group::1.{form} [r1], rd10;"
    got = run(text, operands, 8, schedule=schedule, seed=seed)
    want = np.zeros((128, 8), np.uint32)
    for row in range(rows):
        for lane in lanes(row):
            want[lane, : width // 4] = source[row, :width].copy().view(np.uint32)
    assert (got == want).all()


@pytest.mark.parametrize("form", ["b6x16_p32", "b4x16_p64"])
def test_copies_that_unpack(form: str) -> None:
    source = np.random.default_rng(4).integers(0, 256, (128, 32), np.uint8)
    operands = Operands(source, np.zeros((8, 16), np.uint8))
    got = run(f"tcgen05.cp.cta_group::1.128x256b.b8x16.{form} [r1], rd10;", operands, 8)
    want = np.zeros((128, 32), np.uint8)
    bits = np.unpackbits(source.reshape(128, 2, 16), axis=2, bitorder="little")
    width = 6 if form.startswith("b6") else 4
    codes = bits[:, :, : 16 * width].reshape(128, 2, 16, width)
    want = (codes << np.arange(width)).sum(axis=3).astype(np.uint8).reshape(128, 32)
    assert (got.view(np.uint8) == (want if width == 6 else want << 2)).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_shift_moves_one_partition_down(schedule: str, seed: int) -> None:
    operands = Operands(np.zeros((128, 16), np.uint8), np.zeros((8, 16), np.uint8))
    operands.side = np.arange(128 * 16, dtype=np.uint32).reshape(128, 16)
    text = "add.u32 r42, r41, 0x400000; tcgen05.shift.cta_group::1.down [r42];"
    got = run(text, operands, 8, read=SIDE_COLUMN, schedule=schedule, seed=seed)
    want = operands.side[:, :8].copy()
    want[64:95] = want[65:96]
    assert (got == want).all()


def test_commit_by_generic_address() -> None:
    operands, product, idesc = _dense("f16", "f16", "f16")
    commit = """
    cvt.u64.u32 rd21, r4; cvta.shared.u64 rd20, rd21;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [rd20];"""
    got = run(f"{MMA}f16 [r1], rd10, rd11, {idesc}, p4;", operands, commit=commit)
    assert (got.view(np.float32) == product).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_copies_and_shifts_of_a_pair(schedule: str, seed: int) -> None:
    """The leader's cp and shift act in both CTAs, each on its own memory."""
    source = np.arange(2 * 32 * 4, dtype=np.uint32).reshape(2, 32, 4)
    blob = np.stack([np.frombuffer(cores(part), np.uint32) for part in source]).copy()
    out = np.zeros((2, 128, 4), np.uint32)
    text = f"""
    mov.u32 r60, %tid.x; mov.u32 r61, %cluster_ctarank; shr.u32 r62, r60, 5;
    mov.u32 r3, data; mov.u32 r4, bar; mov.u32 r5, cell;
    setp.eq.u32 p1, r60, 0; setp.eq.u32 p2, r62, 0; setp.lt.u32 p3, r60, 32;
    ld.param.u64 rd1, [blob]; mad.wide.u32 rd1, r61, 512, rd1; mad.wide.u32 rd2, r60, 16, rd1;
    mad.lo.u32 r6, r60, 16, r3;
    @p3 ld.global.v4.b32 {{r10, r11, r12, r13}}, [rd2]; @p3 st.shared.v4.b32 [r6], {{r10, r11, r12, r13}};
    fence.proxy.async.shared::cta;
    @p1 mbarrier.init.shared::cta.b64 [r4], 1;
    fence.mbarrier_init.release.cluster;
    @p2 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [r5], 32;
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    tcgen05.fence::after_thread_sync;
    ld.shared.b32 r2, [r5];
    mov.b32 r20, 0; shl.b32 r21, r62, 21; or.b32 r63, r2, r21;
    tcgen05.st.sync.aligned.32x32b.x8.b32 [r63], {{r20, r20, r20, r20, r20, r20, r20, r20}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.fence::before_thread_sync;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    tcgen05.fence::after_thread_sync;
    setp.eq.and.u32 p4, r61, 0, p1;
    @!p4 bra WAIT;
    shr.u32 r7, r3, 4; cvt.u64.u32 rd4, r7; or.b64 rd10, rd4, {descriptor(16)};
    tcgen05.cp.cta_group::2.32x128b.warpx4 [r2], rd10;
    add.u32 r8, r2, 0x200000;
    tcgen05.shift.cta_group::2.down [r8];
    mov.u16 h1, 3;
    tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r4], h1;
    WAIT:
    {wait("r4", 0)}
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {{r10, r11, r12, r13}}, [r63];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 rd6, [out]; mad.wide.u32 rd6, r61, 2048, rd6; mad.wide.u32 rd6, r60, 16, rd6;
    st.global.v4.b32 [rd6], {{r10, r11, r12, r13}};
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @p2 tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
    @p2 tcgen05.dealloc.cta_group::2.sync.aligned.b32 r2, 32;
    """
    run_module(
        module(text, ".param .u64 blob, .param .u64 out", before=SHARED),
        [blob, out],
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        block=(128, 1, 1),
        schedule=schedule,
        seed=seed,
    )
    want = np.tile(source, (1, 4, 1))
    want[:, 32:63] = want[:, 33:64]
    assert (out == want).all()


# ---- ld and st

_ACCESSES: dict[str, Any] = {  # form: (registers, lanes, cell of register r in thread t)
    "32x32b.x2": (2, 32, lambda t, r: (t, r)),
    "16x64b.x2": (2, 16, lambda t, r: (t // 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1))),
    "16x128b.x2": (4, 16, lambda t, r: (t // 4 + 8 * (r & 1), 4 * (r >> 1) + (t & 3))),
    "16x256b.x2": (
        8,
        16,
        lambda t, r: (t // 4 + 8 * (r >> 1 & 1), 8 * (r >> 2) + 2 * (t & 3) + (r & 1)),
    ),
    "16x32bx2.x2": (2, 16, lambda t, r: (t % 16, r + t // 16 * 5)),
}


def _access(form: str, is_store: bool, source: Array, registers: int) -> Array:
    """Run an ld or st of every warp on each half of its lanes that it needs.

    For a store, source holds uint32[128, 2, registers] and the result is the first 16 columns of
    tensor memory; for a load, it is the other way round.
    """
    halves = 1 if form.startswith("32") else 2
    half_offset = ", 5" if "32bx2" in form else ""
    kind = form
    if form == "pack":
        kind, halves = f"32x32b.x2.{'un' * is_store}pack::16b", 1
    whole = ", ".join(f"r{10 + n}" for n in range(16))
    part = ", ".join(f"r{30 + n}" for n in range(registers))
    loads = "".join(f"ld.global.b32 r{10 + n}, [rd2+{4 * n}];" for n in range(16))
    body = """
    mov.u32 r60, %tid.x; shr.u32 r61, r60, 5; shl.b32 r62, r61, 21; mov.u32 r5, cell;
    setp.eq.u32 p2, r61, 0; mov.b32 r9, 0;
    @p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r5], 32;
    tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
    ld.shared.b32 r2, [r5]; or.b32 r63, r2, r62;
    ld.param.u64 rd1, [src]; mad.wide.u32 rd2, r60, 64, rd1;
    """
    if is_store:
        body += f"tcgen05.st.sync.aligned.32x32b.x16.b32 [r63], {{{', '.join(['r9'] * 16)}}};\n"
    else:
        body += f"{loads} tcgen05.st.sync.aligned.32x32b.x16.b32 [r63], {{{whole}}};\n"
    body += (
        "tcgen05.wait::st.sync.aligned; ld.param.u64 rd3, [out]; mad.wide.u32 rd4, r60, 64, rd3;\n"
    )
    for half in range(halves):
        body += f"add.u32 r8, r63, {half << 20};\n"
        words = [f"[rd{{}}+{4 * (half * registers + n)}]" for n in range(registers)]
        if is_store:
            body += "".join(f"ld.global.b32 r{30 + n}, {w.format(2)};" for n, w in enumerate(words))
            body += f"tcgen05.st.sync.aligned.{kind}.b32 [r8]{half_offset}, {{{part}}};"
            body += "tcgen05.wait::st.sync.aligned;\n"
        else:
            body += f"tcgen05.ld.sync.aligned.{kind}.b32 {{{part}}}, [r8]{half_offset};"
            body += "tcgen05.wait::ld.sync.aligned;\n"
            body += "".join(f"st.global.b32 {w.format(4)}, r{30 + n};" for n, w in enumerate(words))
    if is_store:
        body += f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{whole}}}, [r63]; tcgen05.wait::ld.sync.aligned;"
        body += "".join(f"st.global.b32 [rd4+{4 * n}], r{10 + n};" for n in range(16))
    body += """
    bar.sync 0; @p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    @p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r2, 32;
    """
    out = np.zeros((128, 16), np.uint32)
    text = module(body, ".param .u64 src, .param .u64 out", before=SHARED)
    run_module(text, [source, out], block=(128,))
    return out


@pytest.mark.parametrize("form", list(_ACCESSES))
def test_shapes_of_loads_and_stores(form: str) -> None:
    registers, lanes, cell = _ACCESSES[form]
    source = np.random.default_rng(registers).integers(1, 1 << 32, (128, 16), np.uint32)
    loaded, stored = _access(form, False, source, registers), _access(form, True, source, registers)
    want_loaded, want_stored = np.zeros_like(source), np.zeros_like(source)
    for thread in range(128):
        for half in range(32 // lanes):
            for r in range(registers):
                lane, column = cell(thread % 32, r)
                place = (thread // 32 * 32 + 16 * half + lane, column)
                want_loaded[thread, half * registers + r] = source[place]
                want_stored[place] = source[thread, half * registers + r]
    assert (loaded == want_loaded).all() and (stored == want_stored).all()


def test_packed_loads_and_unpacked_stores() -> None:
    source = np.random.default_rng(0).integers(1, 1 << 32, (128, 16), np.uint32)
    loaded, stored = _access("pack", False, source, 2), _access("pack", True, source, 2)
    low = source & 0xFFFF
    assert (loaded[:, :2] == (low[:, 0:4:2] | low[:, 1:4:2] << 16)).all()
    assert (stored[:, 0:4:2] == low[:, :2]).all() and (
        stored[:, 1:4:2] == source[:, :2] >> 16
    ).all()
    assert (stored[:, 4:] == 0).all()
