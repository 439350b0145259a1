"""Reading machine code: instructions, edges, loops, and which loop is the unmasked softmax."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_mlir.bench.machine_code import loops, sass


def listing(lines: list[str], name: str = "k") -> str:
    """`nvdisasm -c` text of one function; a line that ends in `:` is a label, others are instructions."""
    text = [f"\t.section\t.text.{name}", f"{name}:", f".text.{name}:"]
    address = 0
    for line in lines:
        if line.endswith(":"):
            text.append(line)
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(text)


def only(lines: list[str]):
    functions = sass.parse(listing(lines))
    assert [function.name for function in functions] == ["k"]
    return functions[0]


def softmax_body(selects: int, exponentials: int = 100, width: str = "x32") -> list[str]:
    return [
        *[f"LDTM.{width} R4, tmem[UR4]"] * 4,
        *["FSEL R1, R2, R3, P0"] * selects,
        *["MUFU.EX2 R4, R4"] * exponentials,
    ]


def test_parts_of_an_instruction():
    function = only(["@!P0 MUFU.EX2 R4, -R5", "EXIT"])
    first = function.instructions[0]
    assert (first.guard, first.opcode, first.base, first.operands) == (
        "!P0",
        "MUFU.EX2",
        "MUFU",
        "R4, -R5",
    )


def test_counting_keeps_opcodes_with_a_common_beginning_apart():
    function = only(["FFMA R0, R0, R0, R0", "FFMA2 R0, R2, R4, R6", "FFMA.FTZ R1, R1, R1, R1"])
    assert function.count("FFMA") == 2
    assert function.count("FFMA2") == 1
    assert function.count("MUFU.EX2", "FFMA2") == 1


def test_edges_of_every_kind_of_branch():
    function = only(
        [
            "@P0 BRA `(.L_x_1)",
            "BRA.U UP4, `(.L_x_2)",
            'BRX R2 -0x790 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)',
            ".L_x_1:",
            "BRA `(.L_x_2)",
            "NOP",
            ".L_x_2:",
            "@P1 EXIT",
            "EXIT",
        ]
    )
    assert [sorted(block.successors) for block in function.blocks] == [
        [1, 3],
        [2, 5],
        [3, 5],
        [5],
        [5],
        [6],
        [],
    ]


def test_loops_nest_and_a_wait_moved_to_the_end_is_inside():
    function = only(
        [
            "NOP",
            ".L_x_0:",  # tiles
            "FADD R0, R0, R0",
            ".L_x_1:",  # keys
            "@!P0 BRA `(.L_x_9)",
            ".L_x_2:",
            "FMUL R0, R0, R0",
            "@P1 BRA `(.L_x_1)",
            "@P2 BRA `(.L_x_0)",
            "EXIT",
            ".L_x_9:",  # the wait that spins, out of line
            "SYNCS.PHASECHK P0, [UR4]",
            "@!P0 BRA `(.L_x_9)",
            "BRA `(.L_x_2)",
        ]
    )
    tiles = loops.loops(function)
    assert len(tiles) == 1
    keys = tiles[0].inner
    assert len(keys) == 1
    waits = keys[0].inner
    assert [len(wait.blocks) for wait in waits] == [1]
    names = [
        item.base for block in keys[0].own_blocks for item in function.blocks[block].instructions
    ]
    assert names == ["BRA", "FMUL", "BRA", "BRA"]


def test_unmasked_loop_is_chosen_beside_a_masked_one():
    function = only(
        [
            ".L_x_0:",
            *softmax_body(selects=128, exponentials=128),
            "@P0 BRA `(.L_x_0)",
            ".L_x_1:",
            *softmax_body(selects=2),
            "@P0 BRA `(.L_x_1)",
            "EXIT",
        ]
    )
    loop = loops.softmax_loop(function)
    assert loop is not None
    assert (loop.scores, loop.exponentials, loop.selects) == (128, 100, 2)
    assert loop.per_score == len(softmax_body(2)) / 128 + 1 / 128
    assert [found.is_masked for found in loops.softmax_candidates(function)] == [True, False]


@pytest.mark.parametrize(
    "body",
    [
        softmax_body(selects=128),
        softmax_body(selects=0, exponentials=15),
        ["MUFU.EX2 R4, R4"] * 100,
    ],
    ids=["masked", "too few exponentials", "no scores"],
)
def test_no_unmasked_softmax_loop(body: list[str]):
    function = only([".L_x_0:", *body, "@P0 BRA `(.L_x_0)", "EXIT"])
    assert loops.softmax_loop(function) is None


def test_straight_line_softmax_is_no_loop():
    assert loops.softmax_candidates(only([*softmax_body(0), "EXIT"])) == []


@pytest.mark.ptxas
def test_real_tools_agree_on_a_small_kernel(tmp_path: Path):
    """ptxas, nvdisasm and cuobjdump together: a loop with 16 exponentials per turn and no spill."""
    loads = "\n".join(
        f"ld.global.f32 %f1, [%a+{4 * i}]; ex2.approx.f32 %f1, %f1; st.global.f32 [%a+{4 * i}], %f1;"
        for i in range(16)
    )
    ptx = tmp_path / "k.ptx"
    ptx.write_text(
        f""".version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n) {{
  .reg .u64 %a; .reg .u32 %n; .reg .f32 %f1; .reg .pred %p;
  ld.param.u64 %a, [p]; ld.param.u32 %n, [n];
LOOP:
  .pragma "nounroll";
  {loads}
  add.u64 %a, %a, 64; sub.u32 %n, %n, 1; setp.gt.u32 %p, %n, 0; @%p bra LOOP;
  ret;
}}"""
    )
    assert sass.spill_bytes(ptx, "sm_100a") == 0
    cubin = tmp_path / "k.cubin"
    sass._run("ptxas", "-arch=sm_100a", str(ptx), "-o", str(cubin))
    (function,) = sass.disassemble(cubin)
    usage = sass.usage(cubin, "k")
    assert usage.local_bytes == usage.stack_bytes == 0 < usage.registers
    count = sass.instruction_count(cubin.read_bytes())
    assert 0 <= count - len(function.instructions) < 16  # some pad the function
    bodies = [
        [item for block in loop.own_blocks for item in function.blocks[block].instructions]
        for loop in loops.loops(function)
    ]
    assert 16 in [sass.count(body, "MUFU.EX2") for body in bodies]
