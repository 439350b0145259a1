"""The sources that PTX names: `.file` and `.loc`, and messages that quote what a line comes from."""

from __future__ import annotations

import pytest

from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.runtime.emulator.ptx.parser import parse

PTX = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k()
{
.reg .b32 %r<3>;
.loc 1 2 4
mov.b32 %r1, 1;
add.s32 %r1, %r1, 1;
.loc 1 0 4
mov.b32 %r2, 1;
.loc 2 1 0, function_name $L__info_string0, inlined_at 1 2 4
trap;
ret;
}
.file 1 "kernel.mlir"
.file 2 "other.py", 1700000000, 100
"""
SOURCES = {"kernel.mlir": 'module {\n  "ws.wait"() : () -> ()\n}'}


def test_lines_of_a_text():
    """A mark holds up to the next one; source line 0 is no source."""
    lines = parse(PTX).lines
    of = {number: lines.of(number) for number in (4, 8, 9, 11, 13)}
    assert of == {
        4: None,
        8: ("kernel.mlir", 2),
        9: ("kernel.mlir", 2),
        11: None,
        13: ("other.py", 1),
    }


def test_inline_assembly_belongs_to_the_statement_before_it():
    """LLVM numbers the lines of the assembly on from the statement's own line."""
    text = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k()
{
.reg .pred %p1;
.loc 1 7 4
// begin inline asm
{
.loc 1 8 4
waiting:
.loc 1 9 4
mbarrier.try_wait.parity.shared::cta.b64 %p1, [0], 0;
@!%p1 bra.uni waiting;
}
// end inline asm
trap;
.loc 1 10 4
ret;
}
.file 1 "kernel.mlir"
"""
    lines = parse(text).lines
    of = [lines.of(number) for number in (13, 14, 17, 19)]
    assert of == [("kernel.mlir", line) for line in (7, 7, 7, 10)]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [({}, "kernel.mlir:2"), (SOURCES, 'kernel.mlir:2: "ws.wait"() : () -> ()')],
)
def test_a_fault_names_its_source(sources: dict[str, str], expected: str):
    """With the source's text its line is quoted as well."""
    ptx = PTX.replace(".loc 2 1 0, function_name $L__info_string0, inlined_at 1 2 4", ".loc 1 2 3")
    with pytest.raises(KernelFault) as caught:
        Emulator("sm_100a").launch(ptx, "k", grid=(1,), block=(32,), sources=sources)
    assert caught.value.origin == expected
    assert str(caught.value).endswith(expected)
