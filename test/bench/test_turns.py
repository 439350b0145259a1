"""Turns of loops: the cheapest way that does the work, and what latent attention takes by it."""

from __future__ import annotations

import pytest

from attn_mlir.bench.costs import latent
from attn_mlir.bench.machine_code import loops, sass
from attn_mlir.bench.machine_code.sass import Function, Instruction
from attn_mlir.bench.machine_code.turns import Turn, Worker, workers

GATHER = "UTMALDG.2D.GATHER4 [UR8], [UR16]"
WAIT = [".L_x_1:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", "@!P0 BRA `(.L_x_1)"]
ONE_AT_A_TIME = [".L_x_4:", "ELECT P2, URZ, PT", GATHER, "@P0 BRA.U.ANY `(.L_x_4)"]
TURN = [
    ".L_x_0:",
    "UIADD3 UR4, UR4, 0x8, URZ",
    *WAIT,
    "@P1 BRA `(.L_x_3)",  # to where nothing is gathered
    GATHER,
    "@P2 BRA `(.L_x_2)",
    *["NOP"] * 5,
    ".L_x_2:",
    *ONE_AT_A_TIME,
    ".L_x_3:",
    "@P3 BRA `(.L_x_0)",
]
SOFTMAX = [
    ".L_x_5:",
    *["LDTM.x32 R4, tmem[UR4]"],
    *["MUFU.EX2 R4, R4"] * 32,
    "@P0 BRA `(.L_x_6)",
    *["MUFU.EX2 R4, R4", "FMUL R4, R4, R4"],
    ".L_x_6:",
    "@P1 BRA `(.L_x_5)",
]
KEEPING = [
    ".L_x_7:",
    "@P0 BRA `(.L_x_8)",
    "LDTM.x32 R4, tmem[UR4]",
    "STTM.x32 tmem[UR4], R4",
    ".L_x_8:",
    "@P1 BRA `(.L_x_7)",
]


def function(*lines: str) -> Function:
    text, address = ["\t.section\t.text.k", "k:", ".text.k:"], 0
    for line in (*lines, "EXIT"):
        if line.endswith(":"):
            text.append(line)
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    (found,) = sass.parse("\n".join(text))
    return found


def gathers(item: Instruction) -> int:
    return int("GATHER4" in item.opcode)


def only(made: Function) -> Worker:
    (found,) = workers(made, loops.loops(made), gathers, 2)
    return found


def test_the_cheapest_way_with_all_of_the_work() -> None:
    worker = only(function(*TURN))
    # an addition, the branch over what gathers, a copy, the branch over five others, a copy and two around it, the branch back
    assert worker.turn() == Turn(1 + 1 + 1 + 1 + 3 + 1, 2)
    assert worker.turn(enough=0) == Turn(3, 0)
    assert worker.turn(enough=7) == worker.turn()


def test_a_loop_is_left_out_where_an_inner_one_does_the_work() -> None:
    made = function(".L_x_9:", GATHER, GATHER, *TURN, "@P4 BRA `(.L_x_9)")
    assert only(made).turn() == only(function(*TURN)).turn()
    assert not workers(made, loops.loops(made), gathers, 5)


def test_other_threads_that_keep_o_in_step_count() -> None:
    alone = latent.per_score(function(*SOFTMAX), 32 * 128)
    assert alone == {"per_score": 35 / 32, "exponentials": 1.0}
    both = latent.per_score(function(*SOFTMAX, *KEEPING), 32 * 128)
    assert both["per_score"] == (35 + 2) / 32
    with pytest.raises(ValueError, match="k has no loop that makes weights"):
        latent.per_score(function(*KEEPING), 32 * 128)


def test_what_a_row_takes() -> None:
    made = function(".L_x_0:", *[GATHER] * 16, *["NOP"] * 15, "@P0 BRA `(.L_x_0)")
    assert latent.per_entry(made, 1024) == 32 / 16 * 2
