"""Two pieces of PTX that are the same but for names, and the loop that is compared."""

from __future__ import annotations

import pytest

from attn_mlir.bench.machine_code.same import canonical, code_lines, differing_lines, softmax_loop

BODY = ["$L_1:", "add.s32 \t%r5, %r6, %r5;", "@%p1 bra $L_1;"]


def loop(label: str, selects: int, exponentials: int = 64) -> str:
    lines = [f"{label}:", ".loc 1 2 3", "ex2.approx.f32 %f1, %f2; // a note"]
    lines += ["ex2.approx.f32 %f1, %f2;"] * (exponentials - 1)
    lines += ["selp.f32 %f1, %f2, %f3, %p1;"] * selects
    return "\n".join([*lines, f"@%p2 bra {label};"])


def test_names_do_not_count() -> None:
    renamed = ["$L_7:", "add.s32 \t%r1, %r0, %r1;", "@%p3 bra $L_7;"]
    assert canonical(BODY) == canonical(renamed)
    assert canonical(BODY)[1] == "add.s32 \t%r#0, %r#1, %r#0;"
    assert differing_lines(BODY, renamed) == 0


@pytest.mark.parametrize(
    "other",
    [
        ["$L_1:", "sub.s32 \t%r5, %r6, %r5;", "@%p1 bra $L_1;"],  # another opcode
        ["$L_1:", "add.s32 \t%r5, %r6, %r6;", "@%p1 bra $L_1;"],  # another register
        ["$L_1:", "add.s32 \t%r5, %r6, 4;", "@%p1 bra $L_1;"],  # a number
        [*BODY[:2], "mov.b32 %r5, %r6;", BODY[2]],
    ],
)
def test_everything_else_counts(other: list[str]) -> None:
    assert differing_lines(BODY, other) == 1


def test_the_loop_that_selects_least_is_found() -> None:
    text = "\n".join([loop("$L_1", 128), loop("$L_2", 3), loop("$L_3", 0, exponentials=9)])
    found = softmax_loop(text)
    assert found[0] == "$L_2:" and found[-1] == "@%p2 bra $L_2;"
    assert len(found) == 1 + 64 + 3 + 1


def test_no_such_loop() -> None:
    with pytest.raises(ValueError, match="no loop has 64 exponentials"):
        softmax_loop(loop("$L_1", 0, exponentials=63))


def test_notes_and_comments_are_no_code() -> None:
    assert code_lines("\t.loc 1 2\n // x\n mov.b32 %r1, %r2; // y\n") == ["mov.b32 %r1, %r2;"]
