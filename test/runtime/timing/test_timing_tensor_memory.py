"""The tensor core of SM100 in the cycle model, beside the microbenchmarks that its source published."""

from __future__ import annotations

import itertools

import pytest

from attn_mlir.runtime.timing.chips import B200
from attn_mlir.runtime.timing.control import decode
from attn_mlir.runtime.timing.engines import Engine
from attn_mlir.runtime.timing.record import Multiplication
from attn_mlir.runtime.timing.sass import Instruction
from attn_mlir.runtime.timing.tensor_memory import TensorQueue, moved_bytes, service_clocks


@pytest.mark.parametrize(
    ("m", "ctas", "a_in_tmem", "clocks"),
    [
        (128, 1, False, {64: 48.6, 80: 52.6, 96: 56.6, 112: 60.6, 128: 64.6, 256: 128.6}),
        (128, 1, True, {64: 32.5, 80: 40.5, 96: 48.5, 112: 56.5, 128: 64.5, 256: 128.5}),
        (64, 1, False, {64: 32.6, 80: 40.6, 96: 48.6, 112: 56.6, 128: 64.6, 256: 128.6}),
        (256, 2, False, {64: 43.7, 80: 46.1, 96: 50.1, 112: 56.7, 128: 64.8, 256: 128.7}),
        (256, 2, True, {64: 32.6, 80: 40.6, 96: 48.6, 112: 56.6, 128: 64.6, 256: 128.6}),
        (128, 2, False, {64: 25.7, 80: 27.7, 96: 29.7, 128: 32.7, 256: 64.7}),
        (128, 2, True, {64: 18.6, 80: 20.7, 96: 24.7, 112: 28.7, 128: 32.7, 256: 64.6}),
    ],
)
def test_products_keep_the_tensor_core_as_long_as_was_measured(
    m: int, ctas: int, a_in_tmem: bool, clocks: dict[int, float]
) -> None:
    for n, measured in clocks.items():
        modelled = service_clocks(Multiplication(m, n, ctas, a_in_tmem))
        assert modelled == pytest.approx(measured, rel=0.06), n


@pytest.mark.parametrize(("a_in_tmem", "fixed"), [(True, 104), (False, 136)])
def test_one_product_is_seen_by_a_waiter_as_late_as_was_measured(
    a_in_tmem: bool, fixed: int
) -> None:
    values = B200.at("nominal")
    done = TensorQueue(values, Engine(), False).multiply(0, Multiplication(128, 128, 1, a_in_tmem))
    seen = done + values["commit_latency"] + values["wake_latency"]
    assert seen == pytest.approx(64 + fixed, abs=1)


def test_products_queue_in_the_order_of_their_issue() -> None:
    queue = TensorQueue(B200.at("nominal"), Engine(), False)
    ends = [queue.multiply(now, Multiplication(128, 128, 1, True)) for now in (0, 1, 2, 3)]
    assert [after - before for before, after in itertools.pairwise(ends)] == [64] * 3


@pytest.mark.parametrize(
    ("opcode", "registers"), [("LDTM.x32", 32), ("STTM.x16", 16), ("LDTM.16dp256bit.x4", 16)]
)
def test_bytes_of_loads_and_stores_of_tensor_memory(opcode: str, registers: int) -> None:
    assert moved_bytes(Instruction(0, "", opcode, "", 0, decode(0))) == 128 * registers
