"""Bad input ends in an error that names a line or an argument, whatever is wrong with it."""

import random
import re
import resource
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import LaunchError
from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.runtime.emulator.isa import registry
from attn_mlir.runtime.emulator.ptx.errors import PtxError
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.validation.emulator.ptx_bench import module, run_module, tensor_map_bytes
from attn_mlir.validation.fuzz import ptx
from attn_mlir.validation.fuzz.ptx_samples import samples

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


PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
WARPGROUP = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
FOUR = "{r1, r2, r3, r4}"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("and.f16 h1, h2, h3;", "the type of 'and.f16' must be .pred, .b16, .b32, .b64"),
        ("popc.u32 r1, r2;", "must be .b32, .b64"),
        ("add.b32 r1, r2, r3;", "the type of 'add.b32' must be .u16"),
        ("ld.global.f32x2 rd1, [rd2];", "the type of 'ld.global.f32x2' must be"),
        ("ld.global.v4.b32 {r1, r2, r3, r4, r5}, [rd1];", "moves 4 elements per thread, got 5"),
        ("ld.global.b32 {r1, r2}, [rd1];", "moves 1 elements per thread, got 2"),
        ("st.global.v4.b32 [rd1], {r1, r2};", "moves 4 elements per thread, got 2"),
        ("st.global.v8.b64 [rd1], {rd1, rd1, rd1, rd1, rd1, rd1, rd1, rd1};", "more than 32 bytes"),
        (f"{PRODUCT} {FOUR}, {FOUR}, {{r1}}, {FOUR};", "expected 2 registers, got 1"),
        (f"{PRODUCT} {FOUR}, {FOUR}, {{r1, rd1}}, {FOUR};", "expected 32-bit registers, got 'rd1'"),
        (
            PRODUCT.replace("k16", "k32") + f" {FOUR}, {FOUR}, {{r1, r2}}, {FOUR};",
            "m16n8k8, m16n8k16",
        ),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r1}, [r2];", "expected 2 registers, got 1"),
        ("stmatrix.sync.aligned.m8n8.shared.b16 [r2], {r1};", "needs .x1, .x2 or .x4"),
        ("tcgen05.ld.sync.aligned.16x256b.x1.b32 {r1, r2}, [r3];", "expected 4 registers, got 2"),
        ("tcgen05.ld.sync.aligned.16x256b.x64.b32 {r1, r2}, [r3];", "a power of two up to 32"),
        ("mov.b128 q1, {q1, q1};", "a u128 operand where u64 is needed"),
        ("mov.u32 r1, out;", "the address of 'out' needs a 64-bit register"),
        ("tcgen05.st.sync.aligned.32x32b.x1.b32;", "does not take these 0 operands"),
        ("cvt r1, r2;", "'cvt'"),
        ("add r1, r2, r3;", "the type of 'add' must be"),
    ],
)
def test_operands_that_do_not_fit_are_named_with_their_line(line: str, what: str) -> None:
    text = module(f".reg .b128 q1;\n{line}", ".param .u64 out")
    with pytest.raises(PtxError, match=re.escape(what)) as raised:
        run_module(text, [0])
    assert raised.value.line == text[: text.index(line)].count("\n") + 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (f"{WARPGROUP} {FOUR}, rd1, rd2, p1, 1, 1, 0, 0;", ""),
        (f"{WARPGROUP} {{r1, r2, r3}}, rd1, rd2, p1, 1, 1, 0, 0;", "expected 4 registers, got 3"),
        (f"{WARPGROUP} {{r1, r2, r3, r3}}, rd1, rd2, p1, 1, 1, 0, 0;", "listed twice"),
        (f"{WARPGROUP} {FOUR}, {{r5}}, rd2, p1, 1, 1, 0;", "expected 4 registers, got 1"),
        (WARPGROUP.replace("n8", "n12") + f" {FOUR}, rd1, rd2, p1;", "allowed"),
        (WARPGROUP.replace("f16.f16", "f16.e4m3") + f" {FOUR}, rd1, rd2, p1;", "f16 by e4m3"),
        (f"{WARPGROUP} {FOUR}, rd1;", "does not take these 2 operands"),
    ],
)
def test_operands_of_wgmma(line: str, what: str) -> None:
    text = module(
        f"mov.b64 rd1, 0x40; mov.b64 rd2, 0x40;\n{line}\nwgmma.commit_group.sync.aligned;",
        before=".extern .shared .align 1024 .b8 tiles[];",
        target="sm_90a",
    )
    launch = {"block": (128, 1, 1), "shared_bytes": 8192, "target": "sm_90a"}
    if not what:
        run_module(text, [], **launch)
        return
    with pytest.raises(PtxError, match=re.escape(what)) as raised:
        run_module(text, [], **launch)
    assert raised.value.line == text[: text.index(line)].count("\n") + 1


def test_an_indexed_branch_beyond_its_list() -> None:
    body = "T: .branchtargets A, B;\nmov.u32 r1, %tid.x;\nbrx.idx r1, T;\nA: B:"
    with pytest.raises(KernelFault, match="lane 2 branches to number 2 of a list of 2") as raised:
        run_module(module(body), [])
    assert raised.value.kind == "out-of-bounds" and "brx.idx r1, T" in str(raised.value)
    run_module(module(body), [], block=(2, 1, 1))


@pytest.mark.parametrize("count", [3 * 10**9, 10**15, 2**63])
def test_variables_that_no_memory_holds(count: int) -> None:
    body, before = "mov.u64 rd1, big;", f".global .b8 big[{count}];"
    space = resource.RLIMIT_AS
    soft, hard = resource.getrlimit(space)
    resource.setrlimit(space, (16 << 30, hard))
    try:
        if count < 16 << 30:
            run_module(module(body, before=before), [])  # zeros take no memory
        else:
            with pytest.raises(PtxError, match="'big' of .* does not fit into this process"):
                run_module(module(body, before=before), [])
    finally:
        resource.setrlimit(space, (soft, hard))
    with pytest.raises(LaunchError, match="of local memory per thread"):
        run_module(module(f".local .b8 big[{count}];"), [])
    with pytest.raises(LaunchError, match="of shared memory"):
        run_module(module(f".shared .b8 big[{count}]; mov.u32 r1, big;"), [])


FUNCTION = ".func f() { ret; }"


def test_initial_values_that_do_not_fit() -> None:
    for before, what in [
        (".global .u32 x[2] = {1, 2, 3};", "3 values for 2 elements"),
        (".global .u32 x = 1e999;", "of type .u32 cannot hold inf"),
        (".global .f32 x = 1e300;", "of type .f32 cannot hold 1e[+]300"),
        (f"{FUNCTION} .global .u64 x[] = {{0, f}};", "has the address of 'f' as a value"),
        (f"{FUNCTION} .global .u64 x = generic(f);", "has the address of 'f' as a value"),
    ]:
        with pytest.raises(PtxError, match=what):
            run_module(module("mov.u64 rd1, x;", before=before), [])
        run_module(module("", before=before), [])  # an entry that does not use it


@pytest.mark.parametrize("value", ["{0, f}", "{f+8, generic(f), generic(f+8)}", "{0xff(f), 0}"])
def test_tables_of_functions_harm_no_entry_that_does_not_use_them(value: str) -> None:
    """PTX ISA, initializers: a variable may hold addresses of variables and functions."""
    before = f"{FUNCTION} .global .align 8 .u64 table[] = {value}; .global .u32 y = 7;"
    body = "ld.param.u64 rd1, [a]; ld.global.u32 r1, [y]; st.global.u32 [rd1], r1;"
    found = np.zeros(1, np.uint32)
    run_module(module(body, ".param .u64 a", before=before), [found], block=(1,))
    assert found[0] == 7


@pytest.mark.parametrize(
    "value", ["{0, generic(}", "{0, generic(3)}", "0xff(f", "[f]", '"f"', "f+g"]
)
def test_initial_values_that_are_none(value: str) -> None:
    with pytest.raises(PtxError):
        run_module(module("", before=f".global .u64 x[] = {value};"), [])


def test_what_nobody_foresaw_has_the_line_and_keeps_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(a: Any) -> Any:
        raise KeyError("inside")

    monkeypatch.setitem(registry.RUNTIME, "population", broken)
    with pytest.raises(KernelFault, match="popc.b32 r1, r2") as raised:
        run_module(module("popc.b32 r1, r2; // by a broken emulator"), [])
    assert raised.value.kind == "internal" and isinstance(raised.value.__cause__, KeyError)


def test_what_is_damaged_runs_when_it_is_not() -> None:
    for sample in samples():
        if sample.target == "sm_100a":
            emulator = Emulator(check="all")
            emulator.launch(**ptx.arguments(emulator, sample, sample.ptx))
