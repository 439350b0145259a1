"""TMA tensors, bulk copies and cp.async end to end: copy, signal, wait, use."""

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.validation.emulator.ptx_bench import module, run_module, tensor_map_bytes, wait

SHARED = ".shared .align 1024 .b8 tile[8192];\n.shared .align 8 .b8 bar[64];"
SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2), ("adversarial", 3)]
SETUP = """
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r2, tile; mov.u64 rd20, map; cvta.param.u64 rd21, rd20;
    setp.eq.u32 p1, r60, 0;
    @p1 mbarrier.init.shared::cta.b64 [r1], 1;
    fence.mbarrier_init.release.cluster; bar.sync 0;
"""
MAP_PARAM = ".param .align 64 .b8 map[128], .param .u64 out"
COPY_OUT = """
    mad.lo.u32 r5, r60, 16, r2; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 16, rd1;
    ld.shared.v4.b32 {r10, r11, r12, r13}, [r5]; st.global.v4.b32 [rd1], {r10, r11, r12, r13};
"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_tensor_load_with_swizzle_and_edges(schedule: str, seed: int) -> None:
    rows, columns = 20, 96
    source = np.arange(rows * columns).astype(ml_dtypes.bfloat16).reshape(rows, columns)
    emulator = Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    tmap = tensor_map_bytes(
        emulator.map(source), (columns, rows), (2 * columns,), (64, 16), swizzle=3
    )
    out = np.zeros((16, 64), ml_dtypes.bfloat16)
    body = f"""{SETUP}
    @!p1 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 2048;
    mov.u32 r3, 40; mov.u32 r4, 10;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r2], [rd21, {{r3, r4}}], [r1];
    ISSUED:
    {wait("r1", 0)}
    {COPY_OUT}
    """
    run_module(
        module(body, MAP_PARAM, before=SHARED), [tmap, out], block=(128, 1, 1), emulator=emulator
    )
    padded = np.zeros((rows + 16, columns + 64), ml_dtypes.bfloat16)
    padded[:rows, :columns] = source
    box = padded[10:26, 40:104].copy().view(np.uint8).reshape(16, 8, 16)
    want = np.empty_like(box)
    for row in range(16):
        for chunk in range(8):
            want[row, chunk ^ (row % 8)] = box[row, chunk]
    assert (out.view(np.uint8).reshape(want.shape) == want).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_tensor_store_waits_and_clips(schedule: str, seed: int) -> None:
    target = np.full((20, 96), -1, np.float32)
    emulator = Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    tmap = tensor_map_bytes(emulator.map(target), (96, 20), (384,), (32, 8), element=7)
    out = np.zeros(1, np.uint32)
    body = f"""{SETUP}
    cvt.rn.f32.u32 r10, r60; mad.lo.u32 r11, r60, 4, r2; st.shared.b32 [r11], r10;
    fence.proxy.async.shared::cta; bar.sync 0;
    @!p1 bra END;
    mov.u32 r3, 80; mov.u32 r4, 16;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [rd21, {{r3, r4}}], [r2];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    ld.param.u64 rd1, [out]; mov.u32 r5, 1; st.global.b32 [rd1], r5;
    END:
    """
    run_module(
        module(body, MAP_PARAM, before=SHARED), [tmap, out], block=(256, 1, 1), emulator=emulator
    )
    want = np.full((20, 96), -1, np.float32)
    want[16:20, 80:96] = np.arange(256, dtype=np.float32).reshape(8, 32)[:4, :16]
    assert (target == want).all() and out[0] == 1


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_reading_wait_frees_the_source(schedule: str, seed: int) -> None:
    """After wait_group.read the shared bytes may change without changing what is stored."""
    target = np.zeros((8, 32), np.float32)
    emulator = Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    tmap = tensor_map_bytes(emulator.map(target), (32, 8), (128,), (32, 8), element=7)
    body = f"""{SETUP}
    mov.b32 r10, 0f40000000; mad.lo.u32 r11, r60, 4, r2; st.shared.b32 [r11], r10;
    fence.proxy.async.shared::cta; bar.sync 0;
    @!p1 bra STORED;
    mov.u32 r3, 0;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [rd21, {{r3, r3}}], [r2];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
    STORED: bar.sync 0;
    mov.b32 r10, 0f41000000; st.shared.b32 [r11], r10;
    """
    run_module(
        module(body, MAP_PARAM, before=SHARED),
        [tmap, np.zeros(1)],
        block=(256, 1, 1),
        emulator=emulator,
    )
    assert (target == 2.0).all()


def test_tensor_reduction_adds() -> None:
    target = np.ones((8, 32), np.float32)
    emulator = Emulator()
    tmap = tensor_map_bytes(emulator.map(target), (32, 8), (128,), (32, 8), element=7)
    body = f"""{SETUP}
    cvt.rn.f32.u32 r10, r60; mad.lo.u32 r11, r60, 4, r2; st.shared.b32 [r11], r10;
    fence.proxy.async.shared::cta; bar.sync 0;
    @!p1 bra END;
    mov.u32 r3, 0;
    cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [rd21, {{r3, r3}}], [r2];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:
    """
    run_module(
        module(body, MAP_PARAM, before=SHARED),
        [tmap, np.zeros(1)],
        block=(256, 1, 1),
        emulator=emulator,
    )
    assert (target.reshape(-1) == 1 + np.arange(256)).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_multicast_fills_every_cta_of_the_mask(schedule: str, seed: int) -> None:
    source = np.arange(256, dtype=np.float32).reshape(8, 32)
    emulator = Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    tmap = tensor_map_bytes(emulator.map(source), (32, 8), (128,), (32, 8), element=7)
    out = np.zeros((4, 256), np.float32)
    body = f"""{SETUP}
    mov.u32 r20, %cluster_ctarank; setp.eq.u32 p2, r20, 1; and.pred p2, p2, p1; setp.ne.u32 p3, r20, 2;
    @!p1 bra ARMED; @!p3 bra ARMED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 1024;
    ARMED:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @!p2 bra ISSUED;
    mov.u32 r3, 0; mov.u16 h1, 11;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [r2], [rd21, {{r3, r3}}], [r1], h1;
    ISSUED:
    @!p3 bra END;
    {wait("r1", 0)}
    mad.lo.u32 r5, r60, 4, r2; ld.shared.b32 r6, [r5];
    mad.lo.u32 r7, r20, 256, r60; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r7, 4, rd1; st.global.b32 [rd1], r6;
    END:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    run_module(
        module(body, MAP_PARAM, before=SHARED),
        [tmap, out],
        grid=(4, 1, 1),
        cluster=(4, 1, 1),
        block=(256, 1, 1),
        emulator=emulator,
    )
    for rank in range(4):
        assert (out[rank] == (0 if rank == 2 else source.reshape(-1))).all()


_ROWS = {
    "tile": "[rd21, {r3, r4}]",
    "tile::gather4": "[rd21, {r3, r4, r5, r6, r7}]",  # the first four of eight rows
}


@pytest.mark.parametrize("mode", _ROWS)
@pytest.mark.parametrize("space", ["shared::cluster", "shared::cta"])
def test_pair_load_signals_the_even_barrier(space: str, mode: str) -> None:
    """PTX ISA, cp.async.bulk.tensor: with .cta_group::2 the mbarrier's address says which CTA of the pair is signalled."""
    source = np.arange(512, dtype=np.float32).reshape(16, 32)
    emulator = Emulator()
    height = 8 if mode == "tile" else 1
    tmap = tensor_map_bytes(emulator.map(source), (32, 16), (128,), (32, height), element=7)
    load = (
        f"cp.async.bulk.tensor.2d.{space}.global.{mode}.mbarrier::complete_tx::bytes.cta_group::2"
        f" [DST], {_ROWS[mode]}, [r21];"
    )
    loads = load.replace("DST", "r2")
    if mode != "tile":
        following = "add.u32 r4, r4, 4; add.u32 r5, r5, 4; add.u32 r6, r6, 4; add.u32 r7, r7, 4;"
        loads += f"{following} {load.replace('DST', 'r2+512')}"
    out = np.zeros((2, 256), np.float32)
    body = f"""{SETUP}
    mov.u32 r20, %cluster_ctarank; setp.eq.u32 p2, r20, 0; and.pred p3, p1, p2;
    @p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 2048;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @!p1 bra ISSUED;
    mov.u32 r3, 0; shl.b32 r4, r20, 3; and.b32 r21, r1, 0xFEFFFFFF;
    add.u32 r5, r4, 1; add.u32 r6, r4, 2; add.u32 r7, r4, 3;
    {loads}
    ISSUED:
    @!p2 bra OTHER;
    {wait("r1", 0)}
    OTHER:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mad.lo.u32 r5, r60, 4, r2; ld.shared.b32 r6, [r5];
    mad.lo.u32 r7, r20, 256, r60; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r7, 4, rd1; st.global.b32 [rd1], r6;
    """
    run_module(
        module(body, MAP_PARAM, before=SHARED),
        [tmap, out],
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        block=(256, 1, 1),
        emulator=emulator,
    )
    assert (out.reshape(-1) == source.reshape(-1)).all()


@pytest.mark.parametrize(
    ("pair", "barrier"),
    [("", "0xFEFFFFFF"), (".cta_group::1", "0xFEFFFFFF"), (".cta_group::2", "0xFDFFFFFF")],
)
def test_a_load_signals_no_other_barrier(pair: str, barrier: str) -> None:
    """PTX ISA, cp.async.bulk.tensor: the mbarrier is in the destination's CTA, with .cta_group::2 in its pair."""
    tmap = tensor_map_bytes(
        (emulator := Emulator()).map(np.zeros((8, 32), np.float32)),
        (32, 8),
        (128,),
        (32, 8),
        element=7,
    )
    body = f"""{SETUP}
    mov.u32 r20, %cluster_ctarank; setp.eq.u32 p2, r20, 3; and.pred p3, p1, p2;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 r3, 0; and.b32 r21, r1, {barrier};
    @p3 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{pair} [r2], [rd21, {{r3, r3}}], [r21];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    with pytest.raises(KernelFault, match="the data goes to 3") as raised:
        run_module(
            module(body, MAP_PARAM, before=SHARED),
            [tmap, np.zeros(1, np.float32)],
            grid=(4, 1, 1),
            cluster=(4, 1, 1),
            block=(32, 1, 1),
            emulator=emulator,
        )
    assert raised.value.kind == "mbarrier"


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_bulk_copies_in_and_out(schedule: str, seed: int) -> None:
    source = np.arange(512, dtype=np.uint32)
    target = np.zeros(512, np.uint32)
    body = """
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r2, tile; setp.eq.u32 p1, r60, 0;
    ld.param.u64 rd1, [src]; ld.param.u64 rd2, [dst];
    @!p1 bra END;
    mbarrier.init.shared::cta.b64 [r1], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 2048;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [rd1], 1024, [r1];
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r2+1024], [rd1+1024], 1024, [r1];
    WAITING: mbarrier.try_wait.parity.shared::cta.b64 p2, [r1], 0; @!p2 bra WAITING;
    cp.async.bulk.global.shared::cta.bulk_group [rd2], [r2+1024], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [rd2+1024], [r2], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 1; cp.async.bulk.wait_group 0;
    END:
    """
    text = module(body, ".param .u64 src, .param .u64 dst", before=SHARED)
    run_module(text, [source, target], schedule=schedule, seed=seed)
    assert (target == np.concatenate([source[256:], source[:256]])).all()


def test_bulk_reduction() -> None:
    target = np.arange(64, dtype=np.float32)
    body = """
    mov.u32 r60, %tid.x; mov.u32 r2, tile; ld.param.u64 rd2, [dst];
    mov.b32 r3, 0f3F000000; mad.lo.u32 r4, r60, 4, r2; st.shared.b32 [r4], r3;
    fence.proxy.async.shared::cta; bar.sync 0; setp.eq.u32 p1, r60, 0; @!p1 bra END;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [rd2], [r2], 256;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:
    """
    run_module(module(body, ".param .u64 dst", before=SHARED), [target], block=(64, 1, 1))
    assert (target == np.arange(64) + 0.5).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_cp_async_groups(schedule: str, seed: int) -> None:
    source = np.arange(256, dtype=np.uint32)
    out = np.zeros(256, np.uint32)
    body = """
    mov.u32 r60, %tid.x; mov.u32 r2, tile; ld.param.u64 rd1, [src]; ld.param.u64 rd2, [dst];
    mad.wide.u32 rd3, r60, 16, rd1; mad.lo.u32 r3, r60, 16, r2;
    cp.async.cg.shared.global [r3], [rd3], 16; cp.async.commit_group;
    mov.u32 r4, 8;
    cp.async.ca.shared::cta.global [r3+512], [rd3+512], 16, r4; cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.v4.b32 {r10, r11, r12, r13}, [r3];
    cp.async.wait_all;
    ld.shared.v4.b32 {r14, r15, r16, r17}, [r3+512];
    mad.wide.u32 rd4, r60, 16, rd2; st.global.v4.b32 [rd4], {r10, r11, r12, r13};
    st.global.v4.b32 [rd4+512], {r14, r15, r16, r17};
    """
    text = module(body, ".param .u64 src, .param .u64 dst", before=SHARED)
    run_module(text, [source, out], schedule=schedule, seed=seed)
    second = source[128:].reshape(-1, 4).copy()
    second[:, 2:] = 0
    assert (out[:128] == source[:128]).all() and (out[128:] == second.reshape(-1)).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_cp_async_wait_all_without_a_group(schedule: str, seed: int) -> None:
    """wait_all covers all copies that no commit_group closed, not only until one is there."""
    source, out = np.arange(1, 33, dtype=np.uint32), np.zeros(32, np.uint32)
    copies = "\n".join(
        f"@p1 cp.async.cg.shared.global [r2+{at}], [rd1+{at}], 16;" for at in range(0, 128, 16)
    )
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r2, tile; ld.param.u64 rd1, [src]; ld.param.u64 rd2, [dst];
    setp.eq.u32 p1, r60, 0;
    {copies}
    @p1 cp.async.wait_all;
    bar.warp.sync -1;
    mad.lo.u32 r3, r60, 4, r2; ld.shared.b32 r10, [r3];
    mad.wide.u32 rd4, r60, 4, rd2; st.global.b32 [rd4], r10;
    """
    text = module(body, ".param .u64 src, .param .u64 dst", before=SHARED)
    run_module(text, [source, out], schedule=schedule, seed=seed, check="all")
    assert (out == source).all()


@pytest.mark.parametrize("noinc", [True, False])
def test_cp_async_arrives_on_an_mbarrier(noinc: bool) -> None:
    source = np.arange(128, dtype=np.uint32)
    out = np.zeros(128, np.uint32)
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r2, tile; ld.param.u64 rd1, [src]; ld.param.u64 rd2, [dst];
    setp.eq.u32 p1, r60, 0; @p1 mbarrier.init.shared::cta.b64 [r1], {32 if noinc else 1}; bar.sync 0;
    mad.wide.u32 rd3, r60, 16, rd1; mad.lo.u32 r3, r60, 16, r2;
    cp.async.cg.shared.global [r3], [rd3], 16;
    cp.async.mbarrier.arrive{".noinc" if noinc else ""}.shared::cta.b64 [r1];
    {"" if noinc else "bar.warp.sync -1; @p1 mbarrier.arrive.shared::cta.b64 _, [r1];"}
    {wait("r1", 0)}
    xor.b32 r4, r3, 16; ld.shared.v4.b32 {{r10, r11, r12, r13}}, [r4];
    mad.wide.u32 rd4, r60, 16, rd2; st.global.v4.b32 [rd4], {{r10, r11, r12, r13}};
    """
    text = module(body, ".param .u64 src, .param .u64 dst", before=SHARED)
    for schedule, seed in SCHEDULES:
        out[:] = 0
        run_module(text, [source, out], schedule=schedule, seed=seed)
        assert (out.reshape(-1, 4) == source.reshape(-1, 4)[np.arange(32) ^ 1]).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_asynchronous_stores_to_a_peer(schedule: str, seed: int) -> None:
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r2, tile; mov.u32 r20, %cluster_ctarank; setp.eq.u32 p1, r60, 0;
    @p1 mbarrier.init.shared::cta.b64 [r1], 1; mov.u32 r9, 1000; mad.lo.u32 r3, r60, 16, r2; st.shared.b32 [r3+8], r9;
    @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 384;
    fence.mbarrier_init.release.cluster; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 r21, r20, 1; mapa.shared::cluster.u32 r4, r3, r21; mapa.shared::cluster.u32 r5, r1, r21;
    mad.lo.u32 r6, r20, 100, r60; add.u32 r7, r6, 7;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [r4], {{r6, r7}}, [r5];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [r4+8], r6, [r5];
    {wait("r1", 0)}
    ld.shared.v2.b32 {{r10, r11}}, [r3]; ld.shared.b32 r12, [r3+8]; mov.u32 r13, 0;
    mad.lo.u32 r8, r20, 32, r60; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r8, 16, rd1;
    st.global.v4.b32 [rd1], {{r10, r11, r12, r13}};
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    out = np.zeros((2, 32, 4), np.uint32)
    text = module(body, ".param .u64 out", before=SHARED)
    run_module(text, [out], grid=(2, 1, 1), cluster=(2, 1, 1), schedule=schedule, seed=seed)
    for rank in range(2):
        sent = 100 * (rank ^ 1) + np.arange(32)
        want = np.stack([sent, sent + 7, sent + 1000, 0 * sent], axis=1)
        assert (out[rank] == want).all()


def test_late_loads_are_seen_by_readers_that_do_not_wait() -> None:
    """The adversarial schedule shows the race: somewhere the data is not there yet."""
    source = np.ones(256, np.float32).reshape(8, 32)
    body = f"""{SETUP}
    @!p1 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 1024;
    mov.u32 r3, 0;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [r2], [rd21, {{r3, r3}}], [r1];
    ISSUED: bar.sync 0;
    {COPY_OUT}
    {wait("r1", 0)}
    """
    seen = set()
    for seed in range(12):
        emulator = Emulator(schedule="adversarial", seed=seed)
        tmap = tensor_map_bytes(emulator.map(source), (32, 8), (128,), (32, 8), element=7)
        out = np.full(128, 7, np.float32)
        run_module(module(body, MAP_PARAM, before=SHARED), [tmap, out], emulator=emulator)
        seen.add(float(out.sum()))
    assert 0.0 in seen


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"rd21": "rd22"}, "tensor map|out-of-bounds|misaligned"),
        ({"[r2]": "[r2+8]"}, "misaligned"),
        ({"{r3, r3}": "{r3}", ".2d": ".1d"}, "tensor-map"),
        ({"[r1];\n    ISSUED": "[r1+8];\n    ISSUED"}, "no initialised mbarrier"),
    ],
)
def test_faults_of_loads_name_the_instruction(change: dict[str, str], what: str) -> None:
    emulator = Emulator()
    source = np.ones((8, 32), np.float32)
    tmap = tensor_map_bytes(emulator.map(source), (32, 8), (128,), (32, 8), element=7)
    load = """cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [r2], [rd21, {r3, r3}], [r1];
    ISSUED"""
    for old, new in change.items():
        load = load.replace(old, new)
    body = f"{SETUP} mov.u64 rd22, 64; @!p1 bra ISSUED; mov.u32 r3, 0;\n    {load}:"
    with pytest.raises(KernelFault, match=what) as raised:
        run_module(module(body, MAP_PARAM, before=SHARED), [tmap, np.zeros(1)], emulator=emulator)
    assert "cp.async.bulk.tensor" in str(raised.value)
