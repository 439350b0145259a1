"""Forms of bulk and tensor copies, cluster accesses and launch control that other tests leave out."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.runtime.emulator import Emulator
from attn_mlir.validation.emulator.ptx_bench import module, run_module, tensor_map_bytes, wait

SHARED = ".shared .align 1024 .b8 tile[8192];\n.shared .align 16 .b8 other[256];\n.shared .align 8 .b8 bar[16];"
SETUP = """
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r2, tile; mov.u32 r3, other;
    setp.eq.u32 p1, r60, 0;
    @p1 mbarrier.init.shared::cta.b64 [r1], 1;
    fence.mbarrier_init.release.cluster; bar.sync 0;
    createpolicy.fractional.L2::evict_first.b64 rd19, 0f3F800000;
"""
MAP = "mov.u64 rd20, map; cvta.param.u64 rd21, rd20; prefetch.tensormap [rd21];"
SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes{more} [r2], [rd21, {{{at}}}], [r1]"
CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def _emulator(schedule: str = "fair", seed: int = 0) -> Emulator:
    return Emulator(schedule=schedule, seed=seed)  # type: ignore[arg-type]


def _copy_out(byte_count: int, threads: int) -> str:
    """Each thread returns its part of `tile`, 4 bytes at a time."""
    part = byte_count // threads
    return f"""
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, {part}, rd1; mad.lo.u32 r5, r60, {part}, r2;
    """ + "\n".join(
        f"ld.shared.b32 r6, [r5+{n}]; st.global.b32 [rd1+{n}], r6;" for n in range(0, part, 4)
    )


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_tensor_loads_of_every_rank(rank: int, hint: bool, schedule: str, seed: int) -> None:
    dims, box = (16, 3, 4, 2, 3)[:rank], (8, 2, 2, 2, 2)[:rank]
    start = (12, -1, 3, 0, 2)[:rank]
    source = np.arange(1, 1 + int(np.prod(dims)), dtype=np.float32).reshape(dims[::-1])
    emulator = _emulator(schedule, seed)
    strides = [4 * int(np.prod(dims[:k])) for k in range(1, rank)]
    tmap = tensor_map_bytes(emulator.map(source), dims, strides, box, element=7)
    out = np.zeros(box[::-1], np.float32)
    more, last = (".L2::cache_hint", ", rd19;") if hint else ("", ";")
    load = LOAD.format(
        rank=rank, mode="tile", more=more, at=", ".join(f"r{10 + k}" for k in range(rank))
    )
    body = f"""{SETUP} {MAP}
    {"".join(f"mov.b32 r{10 + k}, {at};" for k, at in enumerate(start))}
    cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [rd21, {{{", ".join(f"r{10 + k}" for k in range(rank))}}}];
    @!p1 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], {out.nbytes};
    {load}{last}
    ISSUED: {wait("r1", 0)} {_copy_out(out.nbytes, 8)}
    """
    text = module(body, ".param .align 64 .b8 map[128], .param .u64 out", before=SHARED)
    run_module(text, [tmap, out], block=(8, 1, 1), emulator=emulator)
    padded = np.pad(source, [(4, 8)] * rank)
    want = padded[tuple(slice(s + 4, s + 4 + b) for s, b in zip(start, box, strict=True))[::-1]]
    assert (out == want).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_gather_and_scatter_of_rows(schedule: str, seed: int) -> None:
    source = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    target = np.full((16, 32), -1, np.float32)
    emulator = _emulator(schedule, seed)
    maps = [
        tensor_map_bytes(emulator.map(x), (32, 16), (128,), (8, 1), element=7)
        for x in (source, target)
    ]
    rows = (9, 2, 2, 15)
    names = ", ".join(f"r{10 + n}" for n in range(5))
    load = LOAD.format(rank=2, mode="tile::gather4", more="", at=names)
    body = f"""{SETUP} {MAP}
    mov.u64 rd22, map2; cvta.param.u64 rd23, rd22;
    mov.b32 r10, 16; {"".join(f"mov.b32 r{11 + n}, {row};" for n, row in enumerate(rows))}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 128;
    {load};
    {wait("r1", 0)}
    mov.b32 r10, 24; mov.b32 r11, 0; mov.b32 r12, 5; mov.b32 r13, 7; mov.b32 r14, 14;
    cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [rd23, {{{names}}}], [r2];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    """
    params = ".param .align 64 .b8 map[128], .param .align 64 .b8 map2[128]"
    run_module(module(body, params, before=SHARED), maps, block=(1, 1, 1), emulator=emulator)
    want = np.full((16, 32), -1, np.float32)
    want[[0, 5, 7, 14], 24:32] = source[list(rows), 16:24]
    assert (target == want).all()


@pytest.mark.parametrize(
    ("op", "ufunc"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)]
)
def test_tensor_reductions(op: str, ufunc: Any) -> None:
    target = np.arange(-32, 32, dtype=np.int32).reshape(4, 16)
    before = target.copy()
    emulator = _emulator()
    tmap = tensor_map_bytes(emulator.map(target), (16, 4), (64,), (8, 2), element=3)
    body = f"""{SETUP} {MAP}
    mul.lo.u32 r10, r60, 5; sub.u32 r10, r10, 30; mad.lo.u32 r11, r60, 4, r2; st.shared.b32 [r11], r10;
    fence.proxy.async; bar.sync 0; @!p1 bra DONE;
    mov.b32 r12, 4; mov.b32 r13, 1;
    cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group [rd21, {{r12, r13}}], [r2];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;
    DONE:
    """
    text = module(body, ".param .align 64 .b8 map[128]", before=SHARED)
    run_module(text, [tmap], block=(16, 1, 1), emulator=emulator)
    before[1:3, 4:12] = ufunc(before[1:3, 4:12], (np.arange(16) * 5 - 30).reshape(2, 8))
    assert (target == before).all()


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_bulk_multicast(hint: bool, schedule: str, seed: int) -> None:
    source, out = np.arange(64, dtype=np.uint32), np.zeros((2, 64), np.uint32)
    ranks = "" if hint else ".multicast::cluster"
    last = ", rd19;" if hint else ", h1;"
    issues = "p1" if hint else "p3"  # with a hint each CTA for itself, else the first for both
    body = f"""{SETUP} {CLUSTER_SYNC}
    mov.u32 r61, %cluster_ctarank; setp.eq.and.u32 p3, r61, 0, p1; mov.u16 h1, 3;
    @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 256;
    ld.param.u64 rd2, [src]; mov.b32 r10, 256;
    cp.async.bulk.prefetch.L2.global [rd2], r10;
    @{issues} cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{ranks}{".L2::cache_hint" if hint else ""} [r2], [rd2], r10, [r1]{last}
    {wait("r1", 0)}
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r61, 256, rd1; mad.wide.u32 rd1, r60, 8, rd1;
    mad.lo.u32 r5, r60, 8, r2; ld.shared.v2.b32 {{r6, r7}}, [r5]; st.global.v2.b32 [rd1], {{r6, r7}};
    {CLUSTER_SYNC}
    """
    if hint:  # the destination is named in the cluster's window
        body = body.replace("[r2], [rd2]", "[r20], [rd2]").replace("r10, [r1]", "r10, [r21]")
        body = body.replace(
            "mov.b32 r10, 256;",
            "mov.b32 r10, 256; mapa.shared::cluster.u32 r20, r2, r61; mapa.shared::cluster.u32 r21, r1, r61;",
        )
    text = module(body, ".param .u64 src, .param .u64 out", before=SHARED)
    run_module(
        text, [source, out], grid=(2,), cluster=(2,), block=(32,), schedule=schedule, seed=seed
    )
    assert (out == source).all()


@pytest.mark.parametrize("reduction", [False, True])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_bulk_copies_between_ctas(reduction: bool, schedule: str, seed: int) -> None:
    out = np.zeros((2, 32), np.uint32)
    opcode = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    if reduction:
        opcode = opcode.replace("cp.async", "cp.reduce.async") + ".add.u32"
    body = f"""{SETUP}
    mov.u32 r61, %cluster_ctarank; xor.b32 r62, r61, 1;
    mad.lo.u32 r5, r60, 4, r2; mad.lo.u32 r6, r61, 1000, r60; st.shared.b32 [r5], r6;
    mad.lo.u32 r7, r60, 4, r3; st.shared.b32 [r7], 7;
    fence.proxy.async.shared::cta; {CLUSTER_SYNC}
    @!p1 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 128;
    mapa.shared::cluster.u32 r10, r3, r62; mapa.shared::cluster.u32 r11, r1, r62; mov.b32 r12, 128;
    {opcode} [r10], [r2], r12, [r11];
    ISSUED: {wait("r1", 0)}
    ld.shared.b32 r8, [r7];
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r61, 128, rd1; mad.wide.u32 rd1, r60, 4, rd1;
    st.global.b32 [rd1], r8; {CLUSTER_SYNC}
    """
    text = module(body, ".param .u64 out", before=SHARED)
    run_module(text, [out], grid=(2,), cluster=(2,), block=(32,), schedule=schedule, seed=seed)
    want = np.arange(32) + np.array([[1000], [0]]) + (7 if reduction else 0)
    assert (out == want).all()


def test_bulk_stores_with_a_byte_mask_and_reductions() -> None:
    masked = np.zeros(64, np.uint8)
    summed = np.arange(32).astype(ml_dtypes.bfloat16)
    body = f"""{SETUP}
    ld.param.u64 rd1, [masked]; ld.param.u64 rd2, [summed];
    mad.lo.u32 r5, r60, 4, r2; st.shared.b32 [r5], 0x3F803F80;
    fence.proxy.async.shared::cta; bar.sync 0; @!p1 bra DONE;
    mov.b32 r10, 64; mov.u16 h1, 0x8001;
    cp.async.bulk.global.shared::cta.bulk_group.cp_mask [rd1], [r2], r10, h1;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [rd2], [r2], r10;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    DONE:
    """
    text = module(body, ".param .u64 masked, .param .u64 summed", before=SHARED)
    run_module(text, [masked, summed], block=(32,))
    want = np.zeros(64, np.uint8)
    want[0::16], want[15::16] = 0x80, 0x3F
    assert (masked == want).all()
    assert (summed.astype(np.float32) == np.arange(32) + 1).all()


def test_accesses_to_the_other_cta() -> None:
    """st, ld and atom on shared::cluster addresses; a cluster barrier whose arrival is relaxed."""
    out = np.zeros((2, 2), np.uint32)
    body = f"""{SETUP}
    mov.u32 r61, %cluster_ctarank; xor.b32 r62, r61, 1;
    @p1 st.shared.v2.b32 [r2], {{0, 0}}; {CLUSTER_SYNC}
    mapa.shared::cluster.u32 r10, r2, r62; add.u32 r11, r61, 40;
    @p1 st.shared::cluster.b32 [r10], r11;
    atom.shared::cluster.add.u32 r12, [r10+4], 1;
    fence.acq_rel.cluster;
    barrier.cluster.arrive.relaxed; barrier.cluster.wait;
    ld.shared.v2.b32 {{r5, r6}}, [r2];
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r61, 8, rd1; @p1 st.global.v2.b32 [rd1], {{r5, r6}};
    {CLUSTER_SYNC}
    """
    text = module(body, ".param .u64 out", before=SHARED)
    run_module(text, [out], grid=(2,), cluster=(2,), block=(64,))
    assert out.tolist() == [[41, 64], [40, 64]]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_stores_that_signal_the_other_cta(schedule: str, seed: int) -> None:
    """st.async of one and of four words, expected by a remote arrival."""
    out = np.zeros((2, 5), np.uint32)
    body = f"""{SETUP}
    mov.u32 r61, %cluster_ctarank; xor.b32 r62, r61, 1; {CLUSTER_SYNC}
    @!p1 bra ISSUED;
    mapa.shared::cluster.u32 r10, r2, r62; mapa.shared::cluster.u32 r11, r1, r62;
    mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r11], 20;
    add.u32 r20, r61, 1; add.u32 r21, r61, 2; add.u32 r22, r61, 3; add.u32 r23, r61, 4;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [r10], {{r20, r21, r22, r23}}, [r11];
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [r10+16], r61, [r11];
    ISSUED:
    LAB_AGAIN: mov.b32 r30, 0;
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p2, [r1], r30, 1000;
    @!p2 bra LAB_AGAIN;
    ld.shared.v4.b32 {{r5, r6, r7, r8}}, [r2]; ld.shared.b32 r9, [r2+16];
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r61, 20, rd1;
    st.global.b32 [rd1], r5; st.global.b32 [rd1+4], r6; st.global.b32 [rd1+8], r7;
    st.global.b32 [rd1+12], r8; st.global.b32 [rd1+16], r9; {CLUSTER_SYNC}
    """
    text = module(body, ".param .u64 out", before=SHARED)
    run_module(text, [out], grid=(2,), cluster=(2,), block=(2,), schedule=schedule, seed=seed)
    assert out.tolist() == [[2, 3, 4, 5, 1], [1, 2, 3, 4, 0]]


def test_waits_by_token_and_drops() -> None:
    """try_wait on a state, a relaxed arrival, and the three forms of arrive_drop."""
    out = np.zeros(6, np.uint32)
    body = f"""{SETUP}
    mbarrier.inval.shared::cta.b64 [r1]; mbarrier.init.shared::cta.b64 [r1], 6;
    mbarrier.arrive_drop.noComplete.shared::cta.b64 rd2, [r1], 2; mbarrier.pending_count.b64 r10, rd2;
    mbarrier.arrive_drop.expect_tx.shared::cta.b64 rd3, [r1], 16; mbarrier.pending_count.b64 r11, rd3;
    mbarrier.arrive.relaxed.cta.shared::cta.b64 rd4, [r1], 2; mbarrier.pending_count.b64 r12, rd4;
    mbarrier.arrive.shared::cta.b64 rd5, [r1];
    mbarrier.test_wait.shared::cta.b64 p2, [r1], rd5; selp.b32 r13, 1, 0, p2;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r1], 16;
    mbarrier.try_wait.shared::cta.b64 p3, [r1], rd5; selp.b32 r14, 1, 0, p3;
    mbarrier.arrive.shared::cta.b64 rd6, [r1]; mbarrier.pending_count.b64 r15, rd6;
    ld.param.u64 rd1, [out]; st.global.v2.b32 [rd1], {{r10, r11}}; st.global.v2.b32 [rd1+8], {{r12, r13}};
    st.global.v2.b32 [rd1+16], {{r14, r15}};
    """
    run_module(module(body, ".param .u64 out", before=SHARED), [out], block=(1,))
    assert out.tolist() == [6, 4, 3, 0, 1, 3]  # later phases expect three arrivals fewer


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_launch_control_for_a_cluster(schedule: str, seed: int) -> None:
    """Every CTA of the cluster gets the response; the tiles of cancelled clusters are done here."""
    done = np.zeros((3, 2, 2), np.uint32)
    body = f"""
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r3, other; setp.eq.u32 p1, r60, 0;
    mov.u32 r61, %cluster_ctarank; mov.u32 r10, %ctaid.x; mov.u32 r11, %ctaid.y; mov.u32 r12, %ctaid.z;
    mov.b32 r30, 0; setp.eq.and.u32 p4, r61, 0, p1;
    @p1 mbarrier.init.shared::cta.b64 [r1], 1;
    fence.mbarrier_init.release.cluster; {CLUSTER_SYNC}
    NEXT:
    @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 16;
    {CLUSTER_SYNC}
    @p4 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [r3], [r1];
    mad.lo.u32 r13, r12, 2, r11; mad.lo.u32 r13, r13, 2, r10;
    ld.param.u64 rd1, [done]; mad.wide.u32 rd1, r13, 4, rd1; @p1 red.global.add.u32 [rd1], 1;
    {wait("r1", "r30")}
    xor.b32 r30, r30, 1;
    ld.shared.b128 q1, [r3];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p2, q1;
    @!p2 bra DONE;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{r20, r21, r22, _}}, q1;
    add.u32 r10, r20, r61; mov.b32 r11, r21; mov.b32 r12, r22;
    {CLUSTER_SYNC}
    bra NEXT;
    DONE: {CLUSTER_SYNC}
    """
    text = module(".reg .b128 q1;" + body, ".param .u64 done", before=SHARED)
    run_module(
        text, [done], grid=(2, 2, 3), cluster=(2,), block=(32,), schedule=schedule, seed=seed
    )
    assert (done == 1).all()


def test_what_has_no_effect_here() -> None:
    """Hints, dependencies between grids and fences run, and change nothing."""
    memory = np.arange(64, dtype=np.uint32)
    body = """
    ld.param.u64 rd1, [memory];
    griddepcontrol.wait; griddepcontrol.launch_dependents; nanosleep.u32 20;
    discard.global.L2 [rd1], 128; applypriority.global.L2::evict_normal [rd1], 128;
    prefetch.global.L2 [rd1]; fence.acq_rel.gpu; fence.sc.cluster; fence.proxy.async;
    fence.proxy.async.global; fence.proxy.alias; fence.proxy.tensormap::generic.release.gpu;
    fence.proxy.tensormap::generic.acquire.gpu [rd1], 128;
    fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;
    fence.acquire.sync_restrict::shared::cluster.cluster;
    setmaxnreg.inc.sync.aligned.u32 232; setmaxnreg.dec.sync.aligned.u32 40;
    ld.global.b32 r1, [rd1+4]; st.global.b32 [rd1], r1;
    """
    run_module(module(body, ".param .u64 memory"), [memory], block=(32,))
    assert memory[0] == 1 and (memory[1:] == np.arange(1, 64)).all()


@pytest.mark.parametrize("space", ["global", "shared::cta"])
def test_every_field_of_a_tensor_map(space: str) -> None:
    """A map made by tensormap.replace from zeros has the bits that an encoder gives it."""
    base = 0x7000_1234_5600
    want = tensor_map_bytes(
        base, (100, 1 << 20, 7, 2), (256, 1 << 36, 4096), (64, 256, 2, 1), element=10, swizzle=3
    )
    words = np.frombuffer(want, np.uint32).copy()
    words[2] |= 1 << 19 | 1 << 15  # atoms of 32 bytes, NaN fill
    words[13] |= 1 << 3 | 7 << 6  # element strides 2 and 8 of dimensions 1 and 2
    fields = [
        ("global_address", "b64", None, base),
        ("rank", "b32", None, 3),
        *(("box_dim", "b32", k, v) for k, v in enumerate((64, 256, 2, 1))),
        *(("global_dim", "b32", k, v) for k, v in enumerate((100, 1 << 20, 7, 2))),
        *(("global_stride", "b64", k, v) for k, v in enumerate((256, 1 << 36, 4096))),
        *(("element_stride", "b32", k, v) for k, v in enumerate((1, 2, 8, 1))),
        ("elemtype", "b32", None, 10),
        ("interleave_layout", "b32", None, 0),
        ("swizzle_mode", "b32", None, 3),
        ("swizzle_atomicity", "b32", None, 1),
        ("fill_mode", "b32", None, 1),
    ]
    place = "rd2" if space == "global" else "r2"
    replace = "".join(
        f"tensormap.replace.tile.{field}.{space}.b1024.{kind} [{place}], "
        f"{'' if ordinal is None else f'{ordinal}, '}{value};\n"
        for field, kind, ordinal, value in fields
    )
    moves = "".join(
        f"ld.shared.b32 r10, [r2+{n}]; st.global.b32 [rd2+{n}], r10;" for n in range(0, 128, 4)
    )
    clear = "".join(f"st.shared.b32 [r2+{n}], r9;" for n in range(0, 128, 4))
    body = f"""
    mov.u32 r2, tile; mov.b32 r9, 0; ld.param.u64 rd2, [out];
    {clear if space != "global" else ""} {replace} {moves if space != "global" else ""}
    """
    buffer = np.zeros(64, np.uint32)
    emulator = _emulator()
    run_module(
        module(body, ".param .u64 out", before=SHARED),
        [emulator.map(buffer, address=0x10_0000)],
        block=(1,),
        emulator=emulator,
    )
    assert (buffer[:32] == words).all()
