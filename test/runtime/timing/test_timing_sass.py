"""Control fields and the text of the disassembler."""

from __future__ import annotations

import pytest

from attn_mlir.errors import TargetError
from attn_mlir.runtime.timing import assembly, machine_code
from attn_mlir.runtime.timing.control import decode
from attn_mlir.runtime.timing.sass import parse

TEXT = """
.text.kernel:
\t//## File ".nv_debug_ptx_txt", line 51
        /*0000*/                   S2R R15, SR_TID.X ;        /* 0x00000000000f7919 */
                                                              /* 0x000e620000002100 */
\t//## File ".nv_debug_ptx_txt", line 52
        /*0010*/                   SHF.R.U32.HI R0, RZ, 0x5, R15 ;  /* 0x00000005ff007819 */
                                                                    /* 0x002fc8000001160f */
        /*0020*/               @!P0 BRA `(.L_x_1) ;           /* 0x0000000400140947 */
                                                              /* 0x000fea0003800000 */
.L_x_0:
        /*0030*/                   BRA `(.L_x_0) ;            /* 0x0000000400140947 */
                                                              /* 0x000fea0003800000 */
.L_x_1:
        /*0040*/                   EXIT ;                     /* 0x000000000000794d */
                                                              /* 0x000fea0003800000 */
"""


def test_fields_of_the_control_word() -> None:
    shift = decode(0x002FC8000001160F)
    assert (shift.stall, shift.yields, shift.write, shift.read) == (4, True, None, None)
    assert shift.waits == (1,)
    read = decode(0x000E620000002100)
    assert (read.stall, read.yields, read.write, read.waits) == (1, False, 1, ())


def test_a_stall_of_none_is_one_clock() -> None:
    assert decode(0).stall == 1
    assert decode(15 << 41).stall == 15


def test_every_scoreboard_can_be_waited_for() -> None:
    assert decode(63 << 52).waits == (0, 1, 2, 3, 4, 5)
    assert decode(4 << 46).write == 4
    assert decode(5 << 49).read == 5
    assert decode(9 << 58).reuse == 9


def test_blocks_edges_and_lines() -> None:
    function = parse(TEXT)["kernel"]
    assert [one.line for one in function.instructions] == [51, 52, 52, 52, 52]
    assert [block.successors for block in function.blocks] == [[2, 1], [1], []]
    branch = function.blocks[0].last
    assert (branch.base, branch.guard, branch.is_conditional) == ("BRA", "!P0", True)
    assert not function.blocks[1].last.is_conditional


def test_text_without_words_is_refused() -> None:
    with pytest.raises(TargetError, match="no instructions with their words"):
        parse(".text.kernel:\n        /*0000*/  EXIT ;\n")


@pytest.mark.ptxas
def test_a_missing_disassembler_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TargetError, match="nvidia-cuda-nvdisasm"):
        machine_code(b"")


@pytest.mark.ptxas
def test_what_is_no_cubin_is_refused() -> None:
    from attn_mlir.validation.emulator.timed_kernels import needs_tools

    needs_tools()
    with pytest.raises(TargetError, match="nvdisasm refuses"):
        assembly.machine_code(b"no cubin")
