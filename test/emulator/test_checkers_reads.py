"""Reads of shared memory that an engine's write may overtake: what is excused, and what comes first."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.emulator.checkers.state import GlobalSpaces
from attn_mlir.runtime.emulator.machine.memory import GlobalMemory
from attn_mlir.validation.emulator.kinds import Kind, run, spin
from attn_mlir.validation.emulator.pairs_reads import LDMATRIX, PAIRS, WRITTEN, slot


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_reads_are_excused_on_request_and_writes_are_not(pair: Kind) -> None:
    found = run(pair, is_wrong=True, strict_reads=False)
    assert all(WRITTEN in finding.message for finding in found)
    assert bool(found) == (pair.says == WRITTEN)


def test_a_race_comes_before_a_missing_fence() -> None:
    """Who arrives knows of all that was read by ldmatrix, and not of what other lanes read after it."""
    body = slot(f"{LDMATRIX} bar.warp.sync -1; @!p1 ld.shared.b32 r14, [r4]; @!p1 bra END;")
    body = body.replace("[r1+8], 32;", "[r1+8], 1;")
    kind = Kind("", "race", body)
    for strict_reads in (True, False):
        found = run(kind, is_wrong=True, strict_reads=strict_reads)
        assert [finding.check for finding in found] == ["race"]


def test_stores_to_another_cta_write_through_the_generic_proxy() -> None:
    """st.async over what the other CTA has read."""
    meet = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    body = f"""
        mov.u32 r7, %cluster_ctarank; xor.b32 r8, r7, 1; mapa.shared::cluster.u32 r9, r2, r8;
        mapa.shared::cluster.u32 r10, r1, r8; @p1 mbarrier.init.shared::cta.b64 [r1], 1;
        @p1 st.shared.b32 [r2], r7; fence.proxy.async; fence.mbarrier_init.release.cluster; {meet}
        @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 4;
        @p1 ld.shared.b32 r11, [r2]; {meet}
        @p1 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [r9], r7, [r10];
        {spin("r1", 0)} {meet}
    """
    assert run(Kind("", "proxy", body, ctas=2), is_wrong=False) == []


def test_lanes_of_several_mappings_are_in_none() -> None:
    """Some of them may be written, and what a load reads there is followed."""
    memory, operand = GlobalMemory(), np.zeros(32, np.uint32)
    operand.flags.writeable = False
    at = np.array([memory.map(operand, 0x7F0000000000), memory.map(operand.copy(), 0x7F0000001000)])
    spaces = GlobalSpaces(memory, orders_clusters=False, native=None)
    assert [spaces.is_writeable(at[x], 4) for x in ([0], [1], [0, 1])] == [False, True, None]
