"""Tensor maps that kernels make: every field of tensormap.replace, and a map made, published and used."""

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.runtime.emulator import Emulator, KernelFault, PtxError
from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.mapfields import replaced
from attn_mlir.runtime.emulator.machine.tensormap import decode
from attn_mlir.validation.emulator.ptx_bench import module, run_module, tensor_map_bytes, wait

SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2), ("adversarial", 3)]
SHARED = ".shared .align 1024 .b8 tile[8192];\n.shared .align 8 .b8 bar[64];\n.shared .align 128 .b8 scratch[128];"
REPLACE = "tensormap.replace.tile."


def made(*fields: tuple[str, int, int], start: bytes = bytes(128)) -> bytes:
    """A map from (field, dimension, value) in order."""
    for field, ordinal, value in fields:
        start = replaced(start, field, ordinal, value)
    return start


def test_fields_give_the_map_that_the_driver_would_encode() -> None:
    got = made(
        ("global_address", 0, 0x12_3456_7890),
        ("rank", 0, 2),
        *(("box_dim", axis, size) for axis, size in enumerate((64, 256, 3))),
        *(("global_dim", axis, size) for axis, size in enumerate((1000, 77, 5))),
        *(("global_stride", axis, size) for axis, size in enumerate((2000, 0x12_3456_7890))),
        *(("element_stride", axis, 1) for axis in range(3)),
        ("elemtype", 0, 10),
        ("swizzle_mode", 0, 3),
    )
    want = tensor_map_bytes(
        0x12_3456_7890, (1000, 77, 5), (2000, 0x12_3456_7890), (64, 256, 3), swizzle=3
    )
    assert got[:60] == want[:60]


@pytest.mark.parametrize(
    ("code", "name", "row_bytes"),
    [
        *[(0, "u8", 64), (1, "u16", 128), (2, "u32", 256), (3, "s32", 256), (4, "u64", 512)],
        *[(5, "s64", 512), (6, "f16", 128), (7, "f32", 256), (8, "f32.ftz", 256), (9, "f64", 512)],
        *[(10, "bf16", 128), (11, "tf32", 256), (12, "tf32.ftz", 256), (13, "b4x16", 32)],
        *[(14, "b4x16_p64", 64), (15, "b6x16_p32", 64)],
    ],
)
def test_element_types(code: int, name: str, row_bytes: int) -> None:
    base = tensor_map_bytes(0x1000, (128, 16), (1024,), (64, 8))
    tmap = decode(replaced(base, "elemtype", 0, code))
    assert (tmap.element, tmap.shared_row_bytes) == (name, row_bytes)


def test_a_map_of_tf32_stays_one() -> None:
    """On an H200 the flag of tf32 is set with the type and never cleared."""
    base = tensor_map_bytes(0x1000, (128, 16), (1024,), (64, 8))
    as_tf32 = replaced(base, "elemtype", 0, 11)
    assert decode(replaced(as_tf32, "elemtype", 0, 7)).element == "tf32"
    assert decode(replaced(as_tf32, "elemtype", 0, 8)).element == "tf32.ftz"
    with pytest.raises(Fault, match="the tf32 flag is set on elements of type bf16"):
        decode(replaced(as_tf32, "elemtype", 0, 10))


def test_the_other_modes() -> None:
    base = tensor_map_bytes(0x1000, (128, 16), (1024,), (64, 8), swizzle=3)
    swizzles = ["128B", "128B_atom32B", "128B_atom32B_flip8B", "128B_atom64B"]
    for code, name in enumerate(swizzles):
        assert decode(replaced(base, "swizzle_atomicity", 0, code)).swizzle == name
    assert decode(replaced(base, "fill_mode", 0, 1)).oob_nan
    assert decode(replaced(base, "element_stride", 1, 3)).element_strides == (1, 3)
    with pytest.raises(Fault, match="interleaved"):
        decode(replaced(base, "interleave_layout", 0, 1))


@pytest.mark.parametrize(
    ("field", "ordinal", "value", "what"),
    [
        ("rank", 0, 5, "rank - 1 5: 0..4 allowed"),
        ("box_dim", 0, 0, "box_dim 0: 1..256 allowed"),
        ("box_dim", 4, 257, "box_dim 257"),
        ("box_dim", 5, 1, "dimension of box_dim 5: 0..4 allowed"),
        ("global_stride", 4, 16, "dimension of global_stride 4: 0..3 allowed"),
        ("global_stride", 0, 24, "global_stride 24: multiples of 16 below"),
        ("element_stride", 1, 9, "element_stride 9: 1..8 allowed"),
        ("elemtype", 0, 16, "elemtype 16: 0..15 allowed"),
        ("swizzle_mode", 0, 4, "swizzle_mode 4: 0..3 allowed"),
        ("fill_mode", 0, 2, "fill_mode 2: 0..1 allowed"),
    ],
)
def test_values_that_no_field_holds(field: str, ordinal: int, value: int, what: str) -> None:
    with pytest.raises(Fault, match=what):
        replaced(bytes(128), field, ordinal, value)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_map_made_in_shared_memory_loads_a_tile(schedule: str, seed: int) -> None:
    rows, columns = 20, 96
    source = np.arange(rows * columns).astype(ml_dtypes.bfloat16).reshape(rows, columns)
    maps = np.full(128, 0xFF, np.uint8)
    out = np.zeros((16, 64), ml_dtypes.bfloat16)
    emulator = Emulator(schedule=schedule, seed=seed, check="all")  # type: ignore[arg-type]
    steps = "\n".join(
        f"    @p1 {REPLACE}{text};"
        for text in (
            "global_address.shared::cta.b1024.b64 [rd6], rd2",
            "rank.shared::cta.b1024.b32 [rd6], 1",
            "box_dim.shared::cta.b1024.b32 [rd6], 0, 64",
            "box_dim.shared::cta.b1024.b32 [rd6 + 0], 0x1, r7",
            f"global_dim.shared::cta.b1024.b32 [rd6], 0, {columns}",
            f"global_dim.shared::cta.b1024.b32 [rd6], 1, {rows}",
            "global_stride.shared::cta.b1024.b64 [rd6], 0, rd5",
            "element_stride.shared::cta.b1024.b32 [rd6], 0, 1",
            "element_stride.shared::cta.b1024.b32 [rd6], 1, 1",
            "elemtype.shared::cta.b1024.b32 [rd6], 0xa",
        )
    )
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r2, tile; mov.u32 r6, scratch; cvt.u64.u32 rd6, r6;
    ld.param.u64 rd2, [source]; ld.param.u64 rd3, [maps]; mov.u64 rd5, {2 * columns};
    mov.u32 r7, 16; setp.eq.u32 p1, r60, 0; setp.lt.u32 p2, r60, 32;
    @p1 mbarrier.init.shared::cta.b64 [r1], 1;
    mov.u32 r8, 0; mad.lo.u32 r9, r60, 4, r6; @p2 st.shared.b32 [r9], r8;
    fence.mbarrier_init.release.cluster; bar.sync 0;
{steps}
    bar.warp.sync -1;
    @p2 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [rd3], [rd6], 128;
    @p2 fence.proxy.tensormap::generic.acquire.gpu [rd3], 128;
    bar.sync 0;
    @!p1 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 2048;
    mov.u32 r3, 40; mov.u32 r4, 10;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r2], [rd3, {{r3, r4}}], [r1];
    ISSUED:
    {wait("r1", 0)}
    mad.lo.u32 r5, r60, 16, r2; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 16, rd1;
    ld.shared.v4.b32 {{r10, r11, r12, r13}}, [r5]; st.global.v4.b32 [rd1], {{r10, r11, r12, r13}};
    """
    params = ".param .u64 source, .param .u64 maps, .param .u64 out"
    run_module(
        module(body, params, before=SHARED),
        [source, maps, out],
        block=(128, 1, 1),
        emulator=emulator,
    )
    padded = np.zeros((rows + 16, columns + 64), ml_dtypes.bfloat16)
    padded[:rows, :columns] = source
    assert (out == padded[10:26, 40:104]).all()
    assert decode(maps).dims == (columns, rows)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("color.shared::cta.b1024.b32 [r1], 1", "knows no field 'color'"),
        ("rank.shared::cta.b1024.b64 [r1], rd1", r"the value of rank is \.b32, got \.b64"),
        ("rank.shared::cta.b1024.b32 [r1], 0, 1", "takes 2 operands, got 3"),
        ("box_dim.shared::cta.b1024.b32 [r1], r2, 1", "the dimension must be an immediate"),
        ("rank.shared::cluster.b1024.b32 [r1], 1", "unknown modifier '.shared::cluster'"),
    ],
)
def test_bad_spellings(text: str, what: str) -> None:
    with pytest.raises(PtxError, match=what):
        run_module(module(f"    {REPLACE}{text};"), [])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("mov.u32 r1, scratch; add.u32 r1, r1, 32;", "misaligned|64-byte aligned"),
        ("mov.u32 r1, 0x30000;", "shared memory"),
    ],
)
def test_maps_that_are_not_there(body: str, what: str) -> None:
    text = module(f"{body} {REPLACE}rank.shared::cta.b1024.b32 [r1], 1;", before=SHARED)
    with pytest.raises(KernelFault, match=what):
        run_module(text, [])
