"""tcgen05.mma that the machine refuses, and what it reads and leaves unwritten."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.memory import SharedMemory
from attn_mlir.runtime.emulator.machine.operands import smem_operand
from attn_mlir.runtime.emulator.machine.tensorcore import TensorCore
from attn_mlir.runtime.emulator.machine.tmem import POISON
from attn_mlir.validation.emulator.placed_products import (
    FakeCta,
    descriptor,
    idesc,
    plain_op,
)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"d": 16 << 16}, "layout D .* lane 16; allowed: 0"),
        ({"idesc": idesc(64, 32, 1, 1, 1), "d": 8 << 16}, "allowed: 0 or 16"),
        ({"d": 496}, "accumulator D uses columns 496"),
        ({"a_in_tmem": True, "a": 400}, "operand A reads 1024 tensor-memory cells"),
        ({"a_in_tmem": True, "a": 16 << 16 | 400}, "they must agree"),
        ({"idesc": idesc(128, 32, 1, 1, 1, tr_a=1), "a_in_tmem": True, "a": 400}, "K-major"),
        ({"lane_mask": (1, 2)}, "2 words, 4 are needed"),
        ({"scale_d": 16}, r"0\.\.15"),
        ({"b": descriptor(0x20000, 16, 1024, 2)}, "operand B leaves shared memory"),
        ({"cta_group": 2}, "M=128|got 1 CTA"),
        ({"ashift": True}, "ashift needs A in tensor memory"),
    ],
)
def test_faults_change_nothing(changes: dict[str, object], text: str):
    cta = FakeCta()
    with pytest.raises(Fault, match=text):
        TensorCore().mma(plain_op(**changes), [cta])
    assert (cta.tmem.cells == POISON).all() and not cta.tmem.written.any()


@pytest.mark.parametrize(
    ("element", "used"), [("e2m1", 8), ("e2m3", 12), ("e3m2", 12), ("e4m3", 16)]
)
def test_padding_of_packed_operands_is_not_read(element: str, used: int):
    shared = SharedMemory(0x1000, track_initialised=True)
    assert shared.initialised is not None

    def fetch() -> None:
        smem_operand(
            shared,
            (descriptor(0x400, 128, 256, 0),),
            architecture="sm_100",
            element=element,
            mn_major=False,
            mn_count=8,
            k_bytes=32,
            what="operand A",
        )

    units = shared.initialised.reshape(-1, 16)[0x40:]
    units[:, :used] = True
    fetch()
    units[3, used - 1] = False
    with pytest.raises(Fault, match="operand A reads bytes never written"):
        fetch()


def test_what_is_added_to_cells_never_written_stays_unwritten():
    """Only the columns that something read later would be undefined; the first half is written here."""
    cta = FakeCta()
    columns = plain_op().idesc >> 17 << 3 & 0xFF
    cta.tmem.store("32x32b", columns // 2, 0, 0, np.zeros((columns // 2, 32), np.uint32))
    TensorCore().mma(plain_op(enable_d=True), [cta])
    TensorCore().mma(plain_op(enable_d=True), [cta])
    written = cta.tmem.written[:32, :columns]
    assert written[:, : columns // 2].all() and not written[:, columns // 2 :].any()
    assert (cta.tmem.load("32x32b", columns // 2, 0, 0) == 0).all()
    with pytest.raises(Fault, match="all of them never written"):
        cta.tmem.load("32x32b", columns // 2, columns // 2, 0)
    TensorCore().mma(plain_op(enable_d=False), [cta])
    assert cta.tmem.written[:, :columns].all()


def test_uninitialised_operand_is_found_when_tracked():
    cta = FakeCta(SharedMemory(0x10000, track_initialised=True))
    cta.shared.fill(0x400, 0x4000)
    with pytest.raises(Fault, match="operand B reads bytes never written"):
        TensorCore().mma(plain_op(), [cta])
    cta.shared.fill(0x8400, 0x1000)
    TensorCore().mma(plain_op(), [cta])
