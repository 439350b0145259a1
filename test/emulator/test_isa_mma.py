"""mma.sync, ldmatrix, stmatrix, movmatrix and wgmma against numpy products."""

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import TargetError
from attn_mlir.runtime.emulator import KernelFault
from attn_mlir.validation.emulator.ptx_bench import Array, module, run_module

RNG = np.random.default_rng(8)
SHARED = ".extern .shared .align 1024 .b8 tiles[];"


def test_mma_from_ldmatrix_to_stmatrix() -> None:
    """D[16, 8] = A[16, 16] B[16, 8] + C: fragments through shared memory, both ways."""
    a = RNG.standard_normal((16, 16)).astype(ml_dtypes.bfloat16)
    b = RNG.standard_normal((16, 8)).astype(ml_dtypes.bfloat16)
    out = np.zeros((16, 8), ml_dtypes.bfloat16)
    body = """
    mov.u32 r60, %tid.x; mov.u32 r2, tiles; ld.param.u64 rd1, [a]; ld.param.u64 rd2, [b];
    mad.wide.u32 rd1, r60, 16, rd1; ld.global.v4.b32 {r10, r11, r12, r13}, [rd1];
    mad.lo.u32 r3, r60, 16, r2; st.shared.v4.b32 [r3], {r10, r11, r12, r13};
    mad.wide.u32 rd2, r60, 8, rd2; ld.global.v2.b32 {r10, r11}, [rd2]; mad.lo.u32 r3, r60, 8, r2; st.shared.v2.b32 [r3+512], {r10, r11};
    bar.warp.sync -1;
    and.b32 r4, r60, 15; shr.u32 r5, r60, 4; mad.lo.u32 r6, r4, 32, r2; mad.lo.u32 r6, r5, 16, r6;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r20, r21, r22, r23}, [r6];
    mad.lo.u32 r7, r4, 16, r2; ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r24, r25}, [r7+512];
    mov.b32 r30, 0f3F800000; mov.b32 r31, 0f3F800000; mov.b32 r32, 0f3F800000; mov.b32 r33, 0f3F800000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {r30, r31, r32, r33}, {r20, r21, r22, r23}, {r24, r25}, {r30, r31, r32, r33};
    cvt.rn.bf16x2.f32 r40, r31, r30; cvt.rn.bf16x2.f32 r41, r33, r32;
    mad.lo.u32 r8, r4, 16, r2; stmatrix.sync.aligned.m8n8.x2.shared.b16 [r8+1024], {r40, r41};
    bar.warp.sync -1;
    mad.lo.u32 r9, r60, 8, r2; ld.shared.v2.b32 {r10, r11}, [r9+1024];
    ld.param.u64 rd3, [out]; mad.wide.u32 rd3, r60, 8, rd3; st.global.v2.b32 [rd3], {r10, r11};
    """
    text = module(body, ".param .u64 a, .param .u64 b, .param .u64 out", before=SHARED)
    run_module(text, [a, b, out], shared_bytes=2048)
    want = a.astype(np.float64) @ b.astype(np.float64) + 1
    assert np.abs(out.astype(np.float64) - want).max() <= 2.0**-8 * np.abs(want).max()


def _registers(matrix: Array, rows: int, columns: int) -> Array:
    """16-bit A fragment registers uint32[4, 32] of [16, 16], from the table of spec-ptx 10."""
    codes = matrix.view(np.uint16)
    result = np.zeros((4, 32, 2), np.uint16)
    for t in range(32):
        for i in range(8):
            row = t // 4 + 8 * (i >> 1 & 1)
            column = 2 * (t % 4) + (i & 1) + 8 * (i >= 4)
            result[i // 2, t, i % 2] = codes[row, column]
    return result.view(np.uint32).reshape(4, 32)


def test_movmatrix_transposes() -> None:
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    fragment = matrix.copy().view(np.uint32).reshape(32)
    out = np.zeros(32, np.uint32)
    body = """
    mov.u32 r60, %tid.x; ld.param.u64 rd1, [a]; mad.wide.u32 rd1, r60, 4, rd1; ld.global.b32 r1, [rd1];
    movmatrix.sync.aligned.m8n8.trans.b16 r2, r1;
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r60, 4, rd2; st.global.b32 [rd2], r2;
    """
    run_module(module(body, ".param .u64 a, .param .u64 out"), [fragment, out])
    assert (out.view(np.uint16).reshape(8, 8) == matrix.T).all()


def test_fragments_gather_a_parted_warp_without_repeating_what_came_before() -> None:
    """Lanes come to movmatrix apart; the addition just before it happens once in each lane."""
    body = """
    mov.u32 r60, %tid.x; ld.param.u64 rd1, [a]; mad.wide.u32 rd1, r60, 4, rd1; ld.global.b32 r1, [rd1];
    mov.u32 r3, 10; setp.lt.u32 p1, r60, 16; setp.gt.u32 p2, r1, 0xFFFFFFF0;
    @p1 bra LOW; add.u32 r3, r3, 5; bra MEET;
    LOW: @p2 bra GONE; add.u32 r3, r3, 5;
    MEET: add.u32 r3, r3, 100;
    movmatrix.sync.aligned.m8n8.trans.b16 r2, r1;
    setmaxnreg.dec.sync.aligned.u32 64;
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r60, 8, rd2; st.global.v2.b32 [rd2], {r2, r3}; ret;
    GONE:
    """
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    out = np.zeros((32, 2), np.uint32)
    fragment = matrix.copy().view(np.uint32).reshape(32)
    run_module(module(body, ".param .u64 a, .param .u64 out"), [fragment, out])
    assert (np.ascontiguousarray(out[:, 0]).view(np.uint16).reshape(8, 8) == matrix.T).all()
    assert (out[:, 1] == 115).all()


def _wgmma(in_registers: bool, steps: int, early: str = "", lag: bool = False) -> str:
    """D[64, 32] over `steps` products of K = 16; A [64, 16 steps] row-major in 32-byte rows.

    Args:
      early: instructions before the wait.
      lag: a group of its own for each product, one of them always in flight.
    """
    between = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;" if lag else ""
    d = ", ".join(f"r{20 + i}" for i in range(16))
    zero = " ".join(f"mov.b32 r{20 + i}, 0f3F000000;" for i in range(16))
    issue = ""
    for step in range(steps):
        if in_registers:
            a_text = "{r40, r41, r42, r43}"
            tail = "p2, 1, 1, 0"
        else:
            a_text = "rd5"
            tail = "p2, 1, -1, 0, 0"
        issue += f"""
        add.u32 r6, r2, {32 * step}; shr.u32 r6, r6, 4; cvt.u64.u32 rd5, r6; or.b64 rd5, rd5, 0x4000004000010000;
        add.u32 r7, r2, {8192 + 32 * step}; shr.u32 r7, r7, 4; cvt.u64.u32 rd6, r7; or.b64 rd6, rd6, 0x4000004000010000;
        wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {{{d}}}, {a_text}, rd6, {tail};
        {between}
        """
    store = "".join(
        f"st.global.v2.b32 [rd2+{32 * (i // 4) + 1024 * (i // 2 % 2)}], {{r{20 + i}, r{21 + i}}};"
        for i in range(0, 16, 2)
    )
    return f"""
    mov.u32 r60, %tid.x; mov.u32 r2, tiles; ld.param.u64 rd1, [src];
    mad.wide.u32 rd1, r60, 96, rd1; mad.lo.u32 r3, r60, 96, r2;
    {"".join(f"ld.global.v4.b32 {{r10, r11, r12, r13}}, [rd1+{o}]; st.shared.v4.b32 [r3+{o}], {{r10, r11, r12, r13}};" for o in range(0, 96, 16))}
    fence.proxy.async.shared::cta; bar.sync 0;
    ld.param.u64 rd3, [frag]; mad.wide.u32 rd3, r60, 16, rd3; ld.global.v4.b32 {{r40, r41, r42, r43}}, [rd3];
    {zero} mov.u32 r5, 1; setp.ne.u32 p2, r5, 0;
    wgmma.fence.sync.aligned;
    {issue}
    wgmma.commit_group.sync.aligned;
    {early}
    wgmma.wait_group.sync.aligned 0;
    shr.u32 r61, r60, 5; and.b32 r62, r60, 31; shr.u32 r8, r62, 2; mad.lo.u32 r8, r61, 16, r8; and.b32 r9, r62, 3;
    ld.param.u64 rd2, [out]; mad.wide.u32 rd2, r8, 128, rd2; mad.wide.u32 rd2, r9, 8, rd2;
    {store}
    """.replace("r61", "r58").replace("r62", "r59")


def _shared_image(a: Array, b: Array) -> Array:
    """A [64, 64] then B [32, 64] bf16, K-major with 128-byte swizzle at offset 0."""
    image = np.zeros(12288, np.uint8)
    for matrix, start in ((a, 0), (b, 8192)):
        rows = matrix.view(np.uint8).reshape(matrix.shape[0], 8, 16)
        for row in range(matrix.shape[0]):
            for chunk in range(8):
                at = start + row * 128 + (chunk ^ (row % 8)) * 16
                image[at : at + 16] = rows[row, chunk]
    return image


PARAMS = ".param .u64 src, .param .u64 frag, .param .u64 out"


@pytest.mark.parametrize(
    ("schedule", "seed"), [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
)
@pytest.mark.parametrize(("in_registers", "lag"), [(False, False), (False, True), (True, False)])
def test_wgmma(in_registers: bool, lag: bool, schedule: str, seed: int) -> None:
    a = RNG.standard_normal((64, 64)).astype(ml_dtypes.bfloat16)
    b = RNG.standard_normal((32, 64)).astype(ml_dtypes.bfloat16)
    fragments = np.zeros((128, 4), np.uint32)
    for warp in range(4):
        part = np.ascontiguousarray(a[16 * warp : 16 * warp + 16, :16])
        fragments[32 * warp : 32 * warp + 32] = _registers(part, 16, 16).T
    out = np.zeros((64, 32), np.float32)
    steps = 1 if in_registers else 4
    text = module(_wgmma(in_registers, steps, lag=lag), PARAMS, before=SHARED, target="sm_90a")
    run_module(
        text,
        [_shared_image(a, b), fragments, out],
        block=(128, 1, 1),
        shared_bytes=12288,
        target="sm_90a",
        schedule=schedule,
        seed=seed,
    )
    depth = 16 * steps
    product = a[:, :depth].astype(np.float64) @ b[:, :depth].astype(np.float64).T
    want = 0.5 + (product if in_registers else -product)
    assert np.abs(out - want).max() < 1e-4


# one reads the accumulator, the other first chooses it in every other lane
EARLY_READS = (
    "add.f32 r44, r20, r20;",
    "and.b32 r45, r60, 1; setp.ne.u32 p3, r45, 0;"
    + "".join(f"selp.f32 r{20 + i}, 0f00000000, r{20 + i}, p3;" for i in range(16))
    + "add.ftz.f32 r44, r20, r20;",
)


@pytest.mark.parametrize("early", EARLY_READS, ids=["read", "chosen"])
def test_wgmma_registers_are_poison_until_the_wait(early: str) -> None:
    image, fragments = np.zeros(12288, np.uint8), np.zeros((128, 4), np.uint32)
    out = np.zeros((64, 32), np.float32)
    text = module(_wgmma(False, 1, early=early), PARAMS, before=SHARED, target="sm_90a")
    with pytest.raises(KernelFault, match="wgmma.wait_group") as raised:
        run_module(
            text, [image, fragments, out], block=(128, 1, 1), shared_bytes=12288, target="sm_90a"
        )
    assert raised.value.kind == "poison"
    assert early.split(";")[-2].strip() in str(raised.value)


def test_ptx_of_another_target_is_refused() -> None:
    with pytest.raises(TargetError, match="sm_90a, this emulator runs sm_100a"):
        run_module(module("", target="sm_90a"), [])
