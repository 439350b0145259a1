"""mbarrier state machine and encoding."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.mbarrier import (
    MAX_COUNT,
    MBarrier,
    MBarrierTable,
    pending_count,
    raw_state,
)

B = 0x408


def test_raw_encoding_of_init_1():
    assert raw_state(MBarrier(0, 1, 1)) == 0x7FFFF800001FFFFE


def test_fresh_barrier_parities():
    table = MBarrierTable()
    table.init(B, 1)
    assert table.test_parity(B, 1)
    assert not table.test_parity(B, 0)
    table.arrive(B)
    assert table.test_parity(B, 0) and not table.test_parity(B, 1)
    table.arrive(B)
    assert table.test_parity(B, 1) and not table.test_parity(B, 0)


def test_tokens_name_their_phase():
    table = MBarrierTable()
    table.init(B, 2)
    first = table.arrive(B)
    assert pending_count(first) == 2
    assert not table.test(B, first)
    second = table.arrive(B)
    assert pending_count(second) == 1
    assert table.test(B, first) and table.test(B, second)
    third = table.arrive(B)
    assert not table.test(B, third)


def test_transactions_hold_the_phase_open_and_may_come_first():
    changes: list[int] = []
    table = MBarrierTable(changes.append)
    table.init(B, 1)
    table.complete_tx(B, 4096)
    assert table.get(B).tx == -4096 and changes == []
    table.arrive_expect_tx(B, 8192)
    assert table.get(B).phase == 0 and table.get(B).pending == 0
    table.complete_tx(B, 4096)
    assert table.get(B).phase == 1 and table.get(B).pending == 1 and table.get(B).tx == 0
    assert changes == [B]


def test_expect_tx_without_arrival_keeps_phase():
    table = MBarrierTable()
    table.init(B, 1)
    table.expect_tx(B, 16)
    table.complete_tx(B, 16)
    assert table.get(B).phase == 0
    table.arrive(B)
    assert table.get(B).phase == 1


def test_drop_lowers_later_phases():
    table = MBarrierTable()
    table.init(B, 3)
    table.arrive_drop(B)
    assert table.get(B).expected == 2 and table.get(B).pending == 2
    table.arrive(B, 2)
    assert (table.get(B).phase, table.get(B).pending) == (1, 2)
    with pytest.raises(Fault):
        table.arrive_drop(B, 3)


def test_a_barrier_that_everyone_dropped_expects_nobody():
    table = MBarrierTable()
    table.init(B, 1)
    table.arrive_drop(B)
    barrier = table.get(B)
    assert (barrier.phase, barrier.expected, barrier.pending) == (1, 0, 0)
    table.expect_tx(B, 16)
    table.complete_tx(B, 16)
    assert barrier.phase == 2


def test_add_pending_and_no_complete():
    table = MBarrierTable()
    table.init(B, 2)
    table.add_pending(B)
    assert table.get(B).pending == 3
    table.arrive_no_complete(B, 2)
    with pytest.raises(Fault, match="would end the phase"):
        table.arrive_no_complete(B)
    table.arrive(B)
    assert table.get(B).pending == 2


@pytest.mark.parametrize("count", [0, MAX_COUNT + 1])
def test_init_count_limits(count: int):
    table = MBarrierTable()
    with pytest.raises(Fault, match="init count"):
        table.init(B, count)
    table.init(B, 1)
    table.init(B + 8, MAX_COUNT)


def test_init_of_a_live_barrier():
    table = MBarrierTable()
    table.init(B, 2)
    table.init(B, 2)
    with pytest.raises(Fault, match="without inval: .* new count 3"):
        table.init(B, 3)
    table.arrive(B)
    with pytest.raises(Fault, match="1 of 2 arrivals pending"):
        table.init(B, 2)
    table.inval(B)
    table.init(B, 3)
    assert table.get(B).expected == 3


def test_misuse_faults():
    table = MBarrierTable()
    with pytest.raises(Fault) as error:
        table.arrive(B)
    assert error.value.kind == "mbarrier" and error.value.address == B
    with pytest.raises(Fault) as error:
        table.init(B + 4, 1)
    assert error.value.kind == "misaligned"
    table.init(B, 1)
    with pytest.raises(Fault, match="too many"):
        table.arrive(B, 2)
    with pytest.raises(Fault, match="parity"):
        table.test_parity(B, 2)
    with pytest.raises(Fault, match="arrive count"):
        table.arrive(B, 0)
    table.expect_tx(B, MAX_COUNT)
    with pytest.raises(Fault, match="tx-count"):
        table.expect_tx(B, 1)
    table.arrive(B)
    with pytest.raises(Fault, match="too many"):
        table.arrive(B)
    assert "1048575 B pending" in table.get(B).describe()
    table.inval(B)
    with pytest.raises(Fault, match="live barriers: none"):
        table.test_parity(B, 0)
    with pytest.raises(Fault):
        table.inval(B)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_matches_the_rules_written_out(data: st.DataObject):
    """Random legal operations against the pseudo-code of the specification, on plain integers."""
    count = data.draw(st.integers(1, 4))
    table = MBarrierTable()
    table.init(B, count)
    phase, expected, pending, tx = 0, count, count, 0
    for _ in range(data.draw(st.integers(1, 30))):
        operations = ["expect", "complete"]
        if pending:
            operations += ["arrive", "arrive_expect"]
        if pending and expected > 1:
            operations.append("drop")
        match data.draw(st.sampled_from(operations)):
            case "expect":
                table.expect_tx(B, 16)
                tx += 16
                continue
            case "complete":
                table.complete_tx(B, 16)
                tx -= 16
            case "arrive":
                table.arrive(B)
                pending -= 1
            case "arrive_expect":
                table.arrive_expect_tx(B, 32)
                tx += 32
                pending -= 1
            case _:
                table.arrive_drop(B)
                expected -= 1
                pending -= 1
        if pending == 0 and tx == 0:
            phase, pending = phase + 1, expected
        barrier = table.get(B)
        assert (barrier.phase, barrier.expected, barrier.pending, barrier.tx) == (
            phase,
            expected,
            pending,
            tx,
        )
        assert table.test_parity(B, 0) == (phase % 2 == 1)
