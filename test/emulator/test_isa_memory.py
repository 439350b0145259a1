"""Loads, stores and atomics in every state space, and their faults."""

from typing import Any

import numpy as np
import pytest

from attn_mlir.runtime.emulator import Emulator, KernelFault, PtxError
from attn_mlir.validation.emulator.ptx_bench import Array, module, run_lanes, run_module

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("b8", np.uint8), ("u8", np.uint8), ("s8", np.int8), ("b16", np.uint16), ("s16", np.int16),
     ("b32", np.uint32), ("f32", np.float32), ("b64", np.uint64), ("f64", np.float64)],
)  # fmt: skip
def test_global_round_trip(kind: str, dtype: Any) -> None:
    width = np.dtype(dtype).itemsize
    source = RNG.integers(0, 256, 32 * width, dtype=np.uint8)
    out = np.zeros_like(source)
    register = {1: "h1", 2: "h1", 4: "r1", 8: "rd1"}[width]
    body = f"""
    mov.u32 r60, %tid.x;
    ld.param.u64 rd30, [src]; ld.param.u64 rd31, [dst];
    mad.wide.u32 rd30, r60, {width}, rd30; mad.wide.u32 rd31, r60, {width}, rd31;
    ld.global.{kind} {register}, [rd30]; st.global.{kind} [rd31], {register};
    """
    run_module(module(body, ".param .u64 src, .param .u64 dst"), [source, out])
    assert (out == source).all()


def test_narrow_loads_extend() -> None:
    a = np.array([0x80, 0x7F, 0xFF, 0x01] * 8, np.uint8)
    out = np.zeros((32, 4), np.uint32)
    body = """
    mov.u32 r60, %tid.x; cvt.u64.u32 rd1, r60;
    ld.param.u64 rd2, [src]; add.u64 rd2, rd2, rd1;
    ld.param.u64 rd3, [dst]; mad.wide.u32 rd3, r60, 16, rd3;
    ld.global.u8 r1, [rd2]; ld.global.s8 r2, [rd2]; ld.global.nc.L1::no_allocate.b8 r3, [rd2];
    ld.global.s8 rd4, [rd2]; cvt.u32.u64 r4, rd4;
    st.global.v4.b32 [rd3], {r1, r2, r3, r4};
    """
    run_module(module(body, ".param .u64 src, .param .u64 dst"), [a, out])
    signed = a.view(np.int8).astype(np.int32).view(np.uint32)
    assert (out == np.stack([a, signed, a, signed], axis=1)).all()


@pytest.mark.parametrize(
    ("vector", "kind"),
    [
        ("", "b16"),
        ("", "b32"),
        ("", "b64"),
        ("v2", "b32"),
        ("v4", "b32"),
        ("v8", "b32"),
        ("v4", "b64"),
        ("v2", "b64"),
        ("v4", "b16"),
    ],
)
def test_vectors(vector: str, kind: str) -> None:
    count, width = int(vector[1:] or 1), int(kind[1:]) // 8
    kind = f"{vector}.{kind}".lstrip(".")
    source = RNG.integers(0, 256, 32 * width * count, dtype=np.uint8)
    out = np.zeros_like(source)
    prefix = {2: "h", 4: "r", 8: "rd"}[width]
    registers = ", ".join(f"{prefix}{n}" for n in range(count))
    body = f"""
    mov.u32 r60, %tid.x;
    ld.param.u64 rd30, [src]; ld.param.u64 rd31, [dst];
    mad.wide.u32 rd30, r60, {width * count}, rd30; mad.wide.u32 rd31, r60, {width * count}, rd31;
    ld.global.{kind} {{{registers}}}, [rd30];
    st.global.{kind} [rd31], {{{registers}}};
    """
    run_module(module(body, ".param .u64 src, .param .u64 dst"), [source, out])
    assert (out == source).all()


def test_b128() -> None:
    source = RNG.integers(0, 1 << 63, 64, dtype=np.uint64)
    out = np.zeros_like(source)
    body = """
    .reg .b128 q;
    mov.u32 r60, %tid.x;
    ld.param.u64 rd30, [src]; ld.param.u64 rd31, [dst];
    mad.wide.u32 rd30, r60, 16, rd30; mad.wide.u32 rd31, r60, 16, rd31;
    ld.global.b128 q, [rd30]; mov.b128 {rd1, rd2}, q; add.u64 rd1, rd1, 1; mov.b128 q, {rd2, rd1};
    st.global.b128 [rd31], q;
    """
    run_module(module(body, ".param .u64 src, .param .u64 dst"), [source, out])
    pairs = source.reshape(-1, 2)
    assert (out.reshape(-1, 2) == np.stack([pairs[:, 1], pairs[:, 0] + 1], axis=1)).all()


def test_shared_memory_starts_above_the_reserved_kib() -> None:
    before = ".shared .align 16 .b8 first[20];\n.shared .align 128 .b8 second[256];\n"
    before += ".extern .shared .align 1024 .b8 dynamic[];"
    body = """
    mov.u32 r1, first; mov.u32 r2, second; mov.u32 r3, dynamic; mov.u32 r4, second+8;
    ld.param.u64 rd1, [out]; st.global.v4.b32 [rd1], {r1, r2, r3, r4};
    """
    out = np.zeros(4, np.uint32)
    run_module(
        module(body, ".param .u64 out", before=before), [out], block=(1, 1, 1), shared_bytes=64
    )
    assert out.tolist() == [0x400, 0x480, 0x800, 0x488]


def test_shared_and_generic_addresses_name_the_same_bytes() -> None:
    body = """
    mov.u32 r60, %tid.x; shl.b32 r1, r60, 2; mov.u32 r2, buffer; add.u32 r3, r2, r1;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1;
    cvt.u64.u32 rd2, r3; cvta.shared.u64 rd3, rd2;
    mul.lo.u32 r4, r60, 3; st.b32 [rd3], r4;
    bar.sync 0;
    xor.b32 r5, r1, 4; add.u32 r5, r2, r5; ld.shared.b32 r6, [r5];
    isspacep.shared p1, rd3; isspacep.global p2, rd1; and.pred p3, p1, p2;
    cvta.to.shared.u64 rd4, rd3; setp.eq.u64 p4, rd4, rd2; and.pred p3, p3, p4;
    selp.b32 r6, r6, 0xFFFF, p3;
    st.b32 [rd1], r6;
    """
    out = np.zeros(64, np.uint32)
    text = module(body, ".param .u64 out", before=".shared .align 4 .b8 buffer[256];")
    run_module(text, [out], block=(64, 1, 1))
    assert (out == (np.arange(64) ^ 1) * 3).all()


def test_local_memory_is_private() -> None:
    body = """
    .local .align 8 .b8 frame[32];
    .reg .b64 SP;
    mov.u64 rd1, frame; cvta.local.u64 SP, rd1;
    mov.u32 r60, %tid.x; mul.lo.u32 r1, r60, 7;
    st.local.b32 [rd1+4], r1; st.b32 [SP+8], r60;
    ld.b32 r2, [SP+4]; ld.local.b32 r3, [rd1+8]; add.u32 r4, r2, r3;
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r60, 4, rd2; st.global.b32 [rd2], r4;
    """
    out = np.zeros(64, np.uint32)
    run_module(module(body, ".param .u64 out"), [out], block=(64, 1, 1))
    assert (out == np.arange(64) * 8).all()


@pytest.mark.parametrize(
    ("target", "is_writeable"),
    [
        ("ld.param.u64 rd1, [out];", False),
        ("mov.b64 rd2, out; cvta.param.u64 rd1, rd2;", True),
        ("mov.u64 rd2, table; cvta.const.u64 rd1, rd2;", True),
    ],
    ids=["input", "parameter", "const"],
)
@pytest.mark.parametrize(
    "write", ["st.b32 [rd1], r1;", "atom.add.u32 r2, [rd1], r1;", "red.add.u32 [rd1], r1;"]
)
def test_memory_that_is_read_only_is_not_written(
    target: str, is_writeable: bool, write: str
) -> None:
    """Also where a generic address leads there, which no state space of the instruction tells."""
    array = np.zeros(64, np.uint32)
    array.flags.writeable = is_writeable
    before = ".const .align 4 .b32 table[4] = {10, 20, 30, 40};"
    text = module(f"mov.u32 r1, 7; {target}\n{write}", ".param .u64 out", before=before)
    with pytest.raises(
        KernelFault, match="a store to memory that is read-only: an input, .const or"
    ):
        run_module(text, [array])


def test_module_variables_live_across_launches() -> None:
    before = ".global .align 4 .b32 counter = 5;\n.const .align 4 .b32 table[4] = {10, 20, 30, 40};"
    body = """
    ld.global.b32 r1, [counter]; add.u32 r2, r1, 1; st.global.b32 [counter], r2;
    ld.const.b32 r3, [table+8]; add.u32 r4, r1, r3;
    mov.u64 rd3, table; ld.const.b32 r5, [rd3+4]; add.u32 r4, r4, r5;
    ld.param.u64 rd1, [out]; st.global.b32 [rd1], r4;
    """
    text = module(body, ".param .u64 out", before=before)
    out = np.zeros(1, np.uint32)
    emulator = Emulator()
    address = emulator.map(out)
    for expected in (55, 56):
        run_module(text, [address], block=(1, 1, 1), emulator=emulator)
        assert out[0] == expected


def test_parameters_of_all_kinds() -> None:
    params = (
        ".param .u8 pa, .param .s16 pb, .param .f32 pc, .param .align 16 .b8 pd[32], .param .u64 pe"
    )
    body = """
    ld.param.u8 r1, [pa]; ld.param.s16 r2, [pb]; ld.param.f32 r3, [pc]; ld.param.v2.b32 {r4, r5}, [pd+16];
    mov.b64 rd5, pd; cvta.param.u64 rd6, rd5; ld.b32 r6, [rd6+28];
    ld.param.u64 rd1, [pe]; st.global.v4.b32 [rd1], {r1, r2, r3, r4}; st.global.v2.b32 [rd1+16], {r5, r6};
    """
    out = np.zeros(6, np.uint32)
    blob = np.arange(32, dtype=np.uint8).tobytes()
    run_module(module(body, params), [200, -3, 1.5, blob, out], block=(1, 1, 1))
    assert out.tolist() == [200, 0xFFFFFFFD, 0x3FC00000, 0x13121110, 0x17161514, 0x1F1E1D1C]


# ---- atomics

INTEGER_OPS = {
    "add": lambda old, v: old + v,
    "min": min,
    "max": max,
    "and": lambda old, v: old & v,
    "or": lambda old, v: old | v,
    "xor": lambda old, v: old ^ v,
    "exch": lambda old, v: v,
    "inc": lambda old, v: 0 if old >= v else old + 1,
    "dec": lambda old, v: v if old == 0 or old > v else old - 1,
}


@pytest.mark.parametrize("op", list(INTEGER_OPS))
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_return_the_old_value(op: str, space: str) -> None:
    kind = "b32" if op in ("and", "or", "xor", "exch") else "u32"
    values = RNG.integers(0, 1000, 32, dtype=np.uint32)
    out = np.zeros(33, np.uint32)
    target = "[rd1]" if space == "global" else "[r9]"
    prepare = (
        ""
        if space == "global"
        else "mov.u32 r9, cell; mov.u32 r8, 500; st.shared.b32 [r9], r8; bar.sync 0;"
    )
    finish = (
        "" if space == "global" else "bar.sync 0; ld.shared.b32 r7, [r9]; st.global.b32 [rd1], r7;"
    )
    body = f"""
    mov.u32 r60, %tid.x; ld.param.u64 rd1, [out]; ld.param.u64 rd2, [vals];
    mad.wide.u32 rd3, r60, 4, rd1; mad.wide.u32 rd4, r60, 4, rd2; ld.global.b32 r1, [rd4];
    {prepare}
    atom.{space}.{op}.{kind} r2, {target}, r1;
    st.global.b32 [rd3+4], r2;
    {finish}
    """
    out[0] = 500
    text = module(body, ".param .u64 out, .param .u64 vals", before=".shared .align 4 .b8 cell[4];")
    run_module(text, [out, values])
    state = 500
    for lane in range(32):
        assert out[1 + lane] == state, lane
        state = INTEGER_OPS[op](state, int(values[lane])) & 0xFFFFFFFF
    assert out[0] == state


def test_compare_and_swap() -> None:
    out = np.zeros(33, np.uint64)
    body = """
    mov.u32 r60, %tid.x; cvt.u64.u32 rd5, r60; add.u64 rd6, rd5, 1;
    ld.param.u64 rd1, [out]; mad.wide.u32 rd3, r60, 8, rd1;
    atom.global.acq_rel.gpu.cas.b64 rd7, [rd1], rd5, rd6; st.global.b64 [rd3+8], rd7;
    """
    run_module(module(body, ".param .u64 out"), [out])
    assert out[0] == 32 and (out[1:] == np.arange(32)).all()


def test_float_reductions() -> None:
    values = RNG.standard_normal(64).astype(np.float32)
    out = np.zeros(4, np.float32)
    body = """
    mov.u32 r60, %tid.x; ld.param.u64 rd1, [out]; ld.param.u64 rd2, [vals];
    mad.wide.u32 rd4, r60, 4, rd2; ld.global.f32 r1, [rd4];
    red.global.add.f32 [rd1], r1;
    add.f32 r2, r1, r1;
    red.relaxed.gpu.global.add.v2.f32 [rd1+8], {r1, r2};
    """
    run_module(module(body, ".param .u64 out, .param .u64 vals"), [out, values], block=(64, 1, 1))
    total = np.float32(0)
    for value in values:
        total += value
    assert out[0] == total == out[2]
    assert out[3] == pytest.approx(2 * total, rel=1e-5)


def test_packed_half_atomics() -> None:
    import ml_dtypes

    out = np.zeros(2, np.uint32)
    body = """
    ld.param.u64 rd1, [out]; mov.b32 r1, 0x3F803F80; mov.b32 r2, 0x3C003C00;
    red.global.add.noftz.bf16x2 [rd1], r1; atom.global.add.noftz.f16x2 r3, [rd1+4], r2;
    """
    run_module(module(body, ".param .u64 out"), [out])
    assert out[:1].view(ml_dtypes.bfloat16).astype(float).tolist() == [32.0, 32.0]
    assert out[1:].view(np.float16).tolist() == [32.0, 32.0]


# ---- faults


def _fault(body: str, params: str, values: list[Any], **options: Any) -> KernelFault:
    with pytest.raises(KernelFault) as raised:
        run_module(
            module(body, params, before=".shared .align 16 .b8 buffer[64];"), values, **options
        )
    return raised.value


def test_out_of_bounds_names_line_warp_and_address() -> None:
    data: Array = np.zeros(40, np.uint32)
    body = "mov.u32 r60, %tid.x;\n ld.param.u64 rd1, [data];\n mad.wide.u32 rd1, r60, 4, rd1;\n st.global.b32 [rd1], r60;"
    fault = _fault(body, ".param .u64 data", [data], block=(64, 1, 1))
    assert fault.kind == "out-of-bounds"
    assert "st.global.b32 [rd1], r60" in str(fault)
    assert "warp 1" in fault.where
    assert (data[:32] == np.arange(32)).all()


def test_misaligned() -> None:
    body = "ld.param.u64 rd1, [data]; ld.global.b32 r1, [rd1+2];"
    assert _fault(body, ".param .u64 data", [np.zeros(40, np.uint32)]).kind == "misaligned"


@pytest.mark.parametrize("offset", [-16, 64])
def test_shared_out_of_bounds(offset: int) -> None:
    fault = _fault(f"mov.u32 r1, buffer; ld.shared.b32 r2, [r1+{offset}];", "", [])
    assert fault.kind == "out-of-bounds"


def test_uninitialised_shared_memory_when_tracked() -> None:
    body = "mov.u32 r1, buffer; st.shared.b32 [r1], r1; ld.shared.b32 r2, [r1+{}];"
    text = module(body.format(0), before=".shared .align 16 .b8 buffer[64];")
    run_module(text, [], track_initialised=True)
    text = module(body.format(4), before=".shared .align 16 .b8 buffer[64];")
    run_module(text, [])
    with pytest.raises(KernelFault, match="uninitialised"):
        run_module(text, [], track_initialised=True)


def test_inputs_may_be_read_only() -> None:
    data = np.zeros(32, np.uint32)
    data.flags.writeable = False
    fault = _fault("ld.param.u64 rd1, [data]; st.global.b32 [rd1], r1;", ".param .u64 data", [data])
    assert "read-only" in str(fault)


def test_stores_to_constant_space_are_refused() -> None:
    with pytest.raises(PtxError, match="cannot store"):
        run_module(module("st.const.b32 [rd1], r1;"), [])


def test_st_bulk_fills_zeros() -> None:
    body = """
    mov.u32 r60, %tid.x; mov.u32 r1, buffer; mad.lo.u32 r2, r60, 4, r1; st.shared.b32 [r2], r60;
    bar.sync 0; setp.eq.u32 p1, r60, 0; mov.u64 rd3, 16; @p1 st.bulk.weak.shared::cta [r1+16], rd3, 0;
    bar.sync 0; ld.shared.b32 r3, [r2];
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1; st.global.b32 [rd1], r3;
    """
    out = np.zeros(16, np.uint32)
    text = module(body, ".param .u64 out", before=".shared .align 16 .b8 buffer[64];")
    run_module(text, [out], block=(16, 1, 1))
    assert out.tolist() == [0, 1, 2, 3, 0, 0, 0, 0, *range(8, 16)]


def test_guarded_access_touches_active_lanes_only() -> None:
    a = np.arange(64, dtype=np.uint32)
    # rd30 still holds the input's address; make it invalid in the lanes that must not read.
    body = "mov.b32 x, 9; setp.lt.u32 p1, a, 40; @!p1 mov.u64 rd30, 0; @p1 ld.global.b32 x, [rd30];"
    (x,) = run_lanes(body, [a], [np.uint32])
    assert (x == np.where(a < 40, a, 9)).all()


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("places", [1, 5, 31, 32])
def test_lanes_of_one_address_come_one_after_the_other(space: str, places: int) -> None:
    """Each lane's old value counts the lanes before it at the same place."""
    body = f"""
    mov.u32 r1, %tid.x; rem.u32 r2, r1, {places}; mov.u32 r3, words; mad.lo.u32 r3, r2, 8, r3;
    mov.u64 rd4, 0; st.shared.b64 [r3], rd4; bar.warp.sync -1;
    ld.param.u64 rd1, [sums]; mad.wide.u32 rd1, r2, 8, rd1; add.u32 r5, r1, 1; cvt.u64.u32 rd5, r5;
    atom.{space}.add.u64 rd6, [{"rd1" if space == "global" else "r3"}], rd5;
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r1, 8, rd2; st.global.b64 [rd2], rd6;
    """
    sums, out = np.zeros(32, np.uint64), np.zeros(32, np.uint64)
    text = module(
        body, ".param .u64 sums, .param .u64 out", before=".shared .align 8 .b8 words[256];"
    )
    run_module(text, [sums, out])
    before = np.zeros(32, np.uint64)
    for lane in range(32):
        assert out[lane] == before[lane % places]
        before[lane % places] += np.uint64(lane + 1)
    assert space == "shared" or (sums == before).all()
