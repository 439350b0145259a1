"""Bad input ends in an error that names a line or an argument, whatever is wrong with it."""

import random
import re

import numpy as np
import pytest
from ptx_bench import module, run_module, tensor_map_bytes

from attn_mlir.errors import LaunchError
from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.runtime.emulator.ptx.errors import PtxError
from attn_mlir.runtime.emulator.ptx.parser import parse

TEXT = """.version 8.8
.target sm_100a
.address_size 64
.file 1 "x.py"
.extern .shared .align 16 .b8 tiles[];
.global .align 4 .u32 table[4] = {1, 2, 0x3, 4};
.visible .entry k(.param .u64 out, .param .align 64 .b8 map[128])
.maxntid 128, 1, 1
{
    .reg .pred p<2>; .reg .b32 r<8>; .reg .b64 rd<4>;
    .shared .align 8 .b64 bar;
    .loc 1 2 3
    mov.u32 r1, %tid.x; // a comment
    ld.param.u64 rd1, [out]; mad.wide.u32 rd2, r1, 4, rd1; /* another */
    setp.lt.s32 p1, r1, -5;
AGAIN:
    @!p1 bra DONE;
    { .reg .b32 t; add.u32 t, r1, 0f3F800000; mov.b64 {r2, r3}, rd2; }
    ld.global.v2.u32 {r4, r5}, [rd2+8];
    bra.uni AGAIN;
DONE:
    st.global.u32 [rd2], r1;
    ret;
}
"""


def test_every_truncation_is_an_error_with_its_line() -> None:
    body = TEXT.index(".visible")
    end = TEXT.rindex("}")
    for cut in range(body + len(".visible .entry k("), end):
        with pytest.raises(PtxError) as raised:
            parse(TEXT[:cut])
        assert 1 <= raised.value.line <= TEXT[:cut].count("\n") + 1
    assert "k" in parse(TEXT[: end + 1]).kernels


def test_a_text_that_ends_before_its_entry_has_no_entry() -> None:
    for cut in range(TEXT.index(".visible")):
        with pytest.raises(LaunchError, match="line|no entry 'k'; it has: none"):
            Emulator().launch(TEXT[:cut], "k", grid=(1,), block=(32,))


def test_garbled_text_never_ends_in_anything_but_an_error_of_ours() -> None:
    chosen = random.Random(5)
    refused = 0
    for _ in range(500):
        at = chosen.randrange(len(TEXT))
        replacement = chosen.choice(
            ["", ";", "{", "}", ",", "[", "0x", "%", '"', ".b32", "\x00", "é"]
        )
        text = TEXT[:at] + replacement + TEXT[at + 1 :]
        try:
            parse(text)
        except PtxError as error:
            assert error.line >= 1
            refused += 1
    assert refused > 150


@pytest.mark.parametrize(
    ("text", "line", "quoted"),
    [
        (TEXT.replace("setp.lt.s32 p1, r1, -5;", "setp.lt.s32 p1, r1;"), 15, "setp.lt.s32 p1, r1"),
        (TEXT.replace("bra.uni AGAIN;", "brx.idx r1, AGAIN;"), 20, "lists: none"),
        (TEXT.replace("bra.uni AGAIN;", "bra.uni;"), 20, "a branch takes one label"),
        (TEXT.replace("bra.uni AGAIN;", "bra 5;"), 20, "a branch takes one label"),
        (TEXT.replace("add.u32 t", "add.u31 t"), 18, "add.u31"),
    ],
)
def test_malformed_instructions_are_quoted(text: str, line: int, quoted: str) -> None:
    out = np.zeros(64, np.uint32)
    with pytest.raises(PtxError) as raised:
        parse(text)  # or where it is translated
        run_module(text.replace("@!p1 bra", "@p1 bra"), [out, bytes(128)])
    assert raised.value.line == line and quoted in str(raised.value)


COPY = module(
    """.shared .align 8 .b64 bar; mov.u32 r1, bar; mov.u32 r2, tiles; mov.u32 r3, 0;
    mov.b64 rd1, map; setp.ne.u32 p1, %tid.x, 0; @p1 bra END;
    mbarrier.init.shared::cta.b64 [r1], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 256;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r2], [rd1, {r3, r3}], [r1];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 p2, [r1], 0; @!p2 bra WAIT;
    END:""",
    ".param .align 64 .b8 map[128]",
    before=".extern .shared .align 128 .b8 tiles[];",
)


def test_bad_tensor_maps_are_named_where_they_are_used() -> None:
    data = np.zeros((16, 64), np.float16)
    emulator = Emulator()
    good = tensor_map_bytes(emulator.map(data), (64, 16), (128,), (16, 8))
    run_module(COPY, [good], shared_bytes=2048, emulator=emulator)
    garbled = good[:8] + b"\xff" * 8 + good[16:]
    for bad, what in [
        (bytes(128), "tensor"),
        (garbled, "tensor"),
        (tensor_map_bytes(0x1000, (64, 16), (128,), (16, 8)), "0x1000|mapped"),
    ]:
        with pytest.raises(KernelFault, match=what) as raised:
            run_module(COPY, [bad], shared_bytes=2048, emulator=emulator)
        assert "cp.async.bulk.tensor" in str(raised.value) and raised.value.line > 0


@pytest.mark.parametrize(
    "access", ["ld.global.u32 r2, [rd1];", "st.global.u32 [rd1], r2;", "ld.u32 r2, [rd1];"]
)
def test_a_pointer_that_nobody_mapped(access: str) -> None:
    text = module(f"ld.param.u64 rd1, [out]; mov.u32 r2, 1;\n{access}", ".param .u64 out")
    with pytest.raises(KernelFault) as raised:
        run_module(text, [0x7F12_3456_7000])
    message = str(raised.value)
    assert raised.value.kind == "out-of-bounds" and access.rstrip(";") in message
    assert re.search("0x7f1234567000", message, re.IGNORECASE)
