"""Copies by tensor maps under the checkers: each kernel is right, and wrong with one line more, less or changed."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.runtime.emulator.checkers.lanecopies import LaneCopies
from attn_mlir.validation.emulator.checked import program
from attn_mlir.validation.emulator.ptx_bench import run_module, tensor_map_bytes, wait

SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
PARAMS = ".param .align 64 .b8 map[128], .param .align 64 .b8 moved[128]"
FRONT_ROWS = 8  # without memory, with which the tensor of the map `moved` begins
TILE_BYTES = 256  # 8 rows of 8 floats
WAIT = wait("r1", 0).replace("\n", " ")
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
# r7 is the rank, p4 true in the even CTA and p5 in its first thread; [rd21] and [rd22] the maps
START = f"""
    mov.u64 rd20, map; cvta.param.u64 rd21, rd20; mov.u64 rd20, moved; cvta.param.u64 rd22, rd20; mov.u32 r7, %cluster_ctarank; setp.eq.u32 p4, r7, 0; and.pred p5, p1, p4;
    mov.u32 r40, 0; mov.u32 r41, 1; mov.u32 r42, 2; mov.u32 r43, 5; shl.b32 r44, r7, 3; mov.u16 h1, 3; mov.u32 r45, EXPECTED;
    @p1 mbarrier.init.shared::cta.b64 [r1], 1; fence.mbarrier_init.release.cluster; {MEET}
"""
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], r45;"
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global"
END = "mbarrier::complete_tx::bytes"
# name -> (bytes that each phase takes, body, check)
KERNELS = {
    "a pair's loads, whose bytes the even CTA waits for": (
        2 * TILE_BYTES,
        f"""
        @p5 {EXPECT} {MEET} and.b32 r46, r1, 0xFEFFFFFF;
        @p1 {LOAD}.tile.{END}.cta_group::2 [r2], [rd21, {{r40, r44}}], [r46];
        @!p4 bra OTHER; {WAIT}
        OTHER: bar.warp.sync -1;
        <right> {MEET}
        ld.shared.b32 r6, [r3]; {MEET}
        """,
        "race",
    ),
    "a pair's loads, of which the barrier counts one": (
        TILE_BYTES,
        f"""
        <right> add.u32 r45, r45, {TILE_BYTES};
        @p5 {EXPECT} {MEET} and.b32 r46, r1, 0xFEFFFFFF;
        @p1 {LOAD}.tile.{END}.cta_group::2 [r2], [rd21, {{r40, r44}}], [r46];
        @!p4 bra OTHER; {WAIT}
        OTHER: bar.warp.sync -1; {MEET}
        """,
        "mbarrier",
    ),
    "a multicast that one CTA does not wait for": (
        TILE_BYTES,
        f"""
        @p1 {EXPECT} {MEET}
        @p5 {LOAD}.tile.{END}.multicast::cluster [r2], [rd21, {{r40, r40}}], [r1], h1;
        <wrong> @!p4 bra OTHER;
        {WAIT}
        <wrong> OTHER: bar.warp.sync -1;
        ld.shared.b32 r6, [r3];
        <wrong> {WAIT}
        {MEET}
        """,
        "race",
    ),
    "a multicast into a tile that the other CTA reads": (
        TILE_BYTES,
        f"""
        @p1 {EXPECT} st.shared.b32 [r3], r40; fence.proxy.async.shared::cta; {MEET} ld.shared.b32 r6, [r3];
        fence.proxy.async.shared::cta;
        <right> {MEET}
        @p5 {LOAD}.tile.{END}.multicast::cluster [r2], [rd21, {{r40, r40}}], [r1], h1;
        {WAIT} {MEET}
        """,
        "race",
    ),
    "gathered rows that are read before the wait": (
        4 * 32,
        f"""
        @p1 {EXPECT}
        @p1 {LOAD}.tile::gather4.{END} [r2], [rd21, {{r40, r41, r42, r43, r43}}], [r1];
        <right> {WAIT}
        bar.warp.sync -1; setp.lt.u32 p6, r60, 32; @p6 ld.shared.b32 r6, [r3];
        <wrong> {WAIT}
        {MEET}
        """,
        "race",
    ),
    "gathered rows over what is read": (
        4 * 32,
        f"""
        @p1 {EXPECT} setp.lt.u32 p6, r60, 32; st.shared.b32 [r3], r40; fence.proxy.async.shared::cta; bar.sync 0;
        @p6 ld.shared.b32 r6, [r3]; fence.proxy.async.shared::cta;
        <right> bar.sync 0;
        @p1 {LOAD}.tile::gather4.{END} [r2], [rd21, {{r40, r41, r42, r43, r43}}], [r1];
        {WAIT} {MEET}
        """,
        "race",
    ),
    "a sum by a map without a proxy fence": (
        0,
        f"""
        st.shared.b32 [r3], r40;
        <right> fence.proxy.async.shared::cta;
        bar.sync 0; @!p5 bra OTHER;
        cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [rd21, {{r40, r40}}], [r2];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        OTHER: bar.warp.sync -1; {MEET}
        """,
        "proxy",
    ),
    "a sum by a map whose source is overwritten": (
        0,
        f"""
        st.shared.b32 [r3], r40; fence.proxy.async.shared::cta; bar.sync 0; @!p5 bra OTHER;
        cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [rd21, {{r40, r40}}], [r2];
        cp.async.bulk.commit_group;
        <right> cp.async.bulk.wait_group.read 0;
        st.shared.b32 [r2], r40; cp.async.bulk.wait_group.read 0;
        OTHER: bar.warp.sync -1; {MEET}
        """,
        "race",
    ),
    "a load of nothing by a map whose base has no memory": (
        TILE_BYTES,
        f"""
        @p1 {EXPECT}
        <wrong> mov.u32 r46, 24;
        <right> mov.u32 r46, 23;
        @p1 {LOAD}.tile.{END} [r2], [rd22, {{r40, r46}}], [r1];
        {WAIT} {MEET}
        """,
        "out-of-bounds",
    ),
    "a load of nothing in front of a map's tensor": (
        TILE_BYTES,
        f"""
        @p1 {EXPECT} mov.u32 r46, -8;
        <wrong> mov.u64 rd21, rd22;
        @p1 {LOAD}.tile.{END} [r2], [rd21, {{r40, r46}}], [r1];
        {WAIT} {MEET}
        """,
        "out-of-bounds",
    ),
}


def _found(name: str, cut: str, schedule: str, seed: int) -> list[str]:
    """What the checkers, or the machine, find once the lines of `cut` are left out."""
    expected, body, _ = KERNELS[name]
    cut = cut if f"<{cut}>" in body else ""
    emulator = Emulator("sm_100a", schedule, seed, check="all", check_mode="collect")  # type: ignore[arg-type]
    rows = 1 if "gather" in name else 8
    source = np.zeros((16, 32), np.float32)
    base = emulator.map(source)
    maps = [
        tensor_map_bytes(base - 128 * front, (32, 16 + front), (128,), (8, rows), element=7)
        for front in (0, FRONT_ROWS)
    ]
    text = program(START.replace("EXPECTED", str(expected)) + body, cut, PARAMS)
    try:
        run_module(
            text, maps, grid=(2, 1, 1), cluster=(2, 1, 1), block=(64, 1, 1), emulator=emulator
        )
    except KernelFault as fault:
        if not emulator.findings:
            return [fault.kind]
    return [finding.check for finding in emulator.findings]


@pytest.mark.parametrize("name", KERNELS)
def test_the_wrong_one_is_found_out(name: str) -> None:
    assert KERNELS[name][-1] in _found(name, "right", "fair", 0)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_right_one_is_not(name: str, schedule: str, seed: int) -> None:
    assert _found(name, "wrong", schedule, seed) == []


def test_the_line_of_a_lanes_copy_is_found_by_its_step() -> None:
    copies = LaneCopies(100)
    copies.issue(np.array([0, 1]), 7)
    copies.issue(np.array([1]), 8)
    assert [copies.line_of(*key) for key in ((0, 1), (1, 1), (1, 2), (0, 2))] == [7, 7, 8, None]
    copies.issue(np.array([0, 2]), 9)
    assert [copies.line_of(*key) for key in ((0, 1), (0, 2), (2, 1), (2, 2))] == [7, 9, 9, None]
