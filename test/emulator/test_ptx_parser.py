"""Lexer, parser, scopes, control-flow graph and storage choice."""

import pytest

from attn_mlir.runtime.emulator import PtxError
from attn_mlir.runtime.emulator.ptx.ast import (
    Imm,
    Mem,
    Name,
    Pair,
    Register,
    Special,
    Sym,
    Target,
    Vec,
)
from attn_mlir.runtime.emulator.ptx.cfg import EXIT, build_graph
from attn_mlir.runtime.emulator.ptx.layout import lay_out_shared
from attn_mlir.runtime.emulator.ptx.lexer import tokenize
from attn_mlir.runtime.emulator.ptx.loads import awaited_loads, early_reads, stored_loads
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.runtime.emulator.ptx.storage import choose_storage
from attn_mlir.validation.emulator.ptx_bench import module


def test_words_keep_all_their_parts() -> None:
    text = "@!%p1 tcgen05.mma.cta_group::1.kind::f16 [%r1 + -0x10], {%rd1, _}, 0f3F800000, 1.5, -7; // x\n/* y\n */ $L__1: bra $L__1;"
    tokens = tokenize(text)
    assert [t.text for t in tokens] == [
        *("@", "!", "%p1", "tcgen05.mma.cta_group::1.kind::f16", "[", "%r1", "+", "-", "0x10", "]", ","),
        *("{", "%rd1", ",", "_", "}", ",", "0f3F800000", ",", "1.5", ",", "-", "7", ";"),
        *("$L__1", ":", "bra", "$L__1", ";", ""),
    ]  # fmt: skip
    assert [t.line for t in tokens if t.text == "$L__1"] == [3, 3]


def test_a_stray_character_is_an_error_with_its_line() -> None:
    with pytest.raises(PtxError, match="line 3: unexpected character '\\?'"):
        tokenize("mov.u32 a, b;\n\nadd ? b;")


def test_module_header_and_directives() -> None:
    text = """
    .version 9.0
    .target sm_100a, debug
    .address_size 64
    .file 1 "x.cu"
    .global .align 8 .b64 table[2][3] = {{1, 2, 3}, {4, 5, 6}};
    .extern .shared .align 128 .b8 dyn[];
    .func (.param .b32 out) helper(.param .b32 x) { ret; }
    .weak .entry other() { ret; }
    .visible .entry k(
        .param .u64 .ptr .global .align 16 p0,
        .param .align 64 .b8 p1[128],
        .param .f32 p2
    )
    .reqntid 512, 1, 1
    .minnctapersm 1
    .maxnreg 128
    .reqnctapercluster 2, 1, 1
    .explicitcluster
    {
        .loc 1 2 3
        .pragma "nounroll";
        ret;
    }
    .section .debug_str { .b8 1, 2; }
    """
    parsed = parse(text)
    assert (parsed.version, parsed.target) == ("9.0", "sm_100a")
    assert [v.name for v in parsed.variables] == ["table", "dyn"]
    assert (
        parsed.variables[0].initial == (1, 2, 3, 4, 5, 6) and parsed.variables[0].byte_count == 48
    )
    kernel = parsed.kernels["k"]
    assert [(p.name, p.address, p.byte_count) for p in kernel.params] == [
        ("p0", 0, 8),
        ("p1", 64, 128),
        ("p2", 192, 4),
    ]
    assert kernel.directives["reqntid"] == (512, 1, 1)
    assert kernel.directives["explicitcluster"] == ()
    assert parsed.kernels["helper"].is_entry is False and parsed.kernels["other"].is_entry


def test_operand_forms() -> None:
    body = """
    .shared .align 4 .b8 data[64];
    elect.sync r1|p1, -1;
    mov.u32 r2, data+8;
    ld.shared.b32 r3, [data+4];
    ld.global.b32 r4, [rd1+-16];
    mov.u32 r5, %tid.x;
    mov.b64 {r6, r7}, rd2;
    mbarrier.arrive.shared::cta.b64 _, [r1];
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [rd1, {r1, r2}], [r3+64];
    add.f32 r8, r9, 0fBF800000;
    """
    code = parse(module(body)).kernels["k"].instructions
    assert isinstance(code[0].operands[0], Pair)
    symbol = code[1].operands[1]
    assert isinstance(symbol, Sym) and symbol.offset == 8
    shared = code[2].operands[1]
    assert isinstance(shared, Mem) and isinstance(shared.base, Sym) and shared.offset == 4
    address = code[3].operands[1]
    assert isinstance(address, Mem) and isinstance(address.base, Register) and address.offset == -16
    assert code[4].operands[1] == Special("%tid.x")
    assert isinstance(code[5].operands[0], Vec)
    assert code[6].operands[0] == Name("_")
    tensor = code[7].operands[0]
    assert isinstance(tensor, Mem) and tensor.coordinates is not None
    assert len(tensor.coordinates.items) == 2
    assert code[8].operands[2] == Imm(-1.0, 0xBF800000, 32)


def test_blocks_scope_labels_and_registers() -> None:
    body = """
    { .reg .pred P1; .reg .b32 t; LOOP: setp.eq.u32 P1, t, 0; @P1 bra DONE; bra LOOP; DONE: }
    { .reg .pred P1; LOOP: @P1 bra DONE; bra LOOP; DONE: mov.u32 r1, 2; bra OUTER; }
    OUTER: mov.u32 r2, 3;
    """
    kernel = parse(module(body)).kernels["k"]
    code = kernel.instructions
    branches = [i for i in code if i.parts[0] == "bra"]
    goals = []
    for branch in branches:
        target = branch.operands[0]
        assert isinstance(target, Target)
        goals.append(target.label.position)
    first = code.index(branches[0])
    assert goals == [first + 2, first - 1, first + 4, first + 2, first + 6]
    guards = [i.guard for i in code if i.guard is not None]
    assert guards[0] is not guards[1] and guards[0].name == guards[1].name == "P1"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("bra NOWHERE;", "no label 'NOWHERE'"),
        ("{ INNER: mov.u32 r1, 0; } bra INNER;", "no label 'INNER'"),
        ("A: A: mov.u32 r1, 0;", "declared twice"),
        ("@q mov.u32 r1, 0;", "expected a predicate, 'q' is unknown"),
        ("mov.u32 r1 r2;", "expected ','"),
        (".reg .b37 x;", "unknown register type"),
        ("mov.u32 r1, 0", "expected ','|ends in the middle"),
        (".local .align x .b8 y[4];", "expected an integer"),
        (".local .align 3 .b8 y[4];", "an alignment is a power of two, got 3"),
        (".local .b8 y[-4];", "an array's length must be at least 0, got -4"),
        ("mov.u32 r1, 089;", "'089' is no octal number"),
        ("mov.u64 rd1, 18446744073709551616;", "does not fit into 64 bits"),
        (f"mov.u64 rd1, {'9' * 5000};", "does not fit into 64 bits"),
        ("{" * 3000, "more than 64 levels"),
        (f"mov.b64 rd1, {'{' * 3000};", "more than 64 levels"),
        (f"ld.global.b32 r1, {'[' * 3000};", "more than 64 levels"),
        (f"mov.b32 {'r1|' * 3000}r1, r2;", "more than 64 levels"),
        ("@r1 mov.u32 r2, 0;", "expected a predicate, 'r1' is of type .b32"),
        ("and.pred p1, p2, !r1;", "expected a predicate, 'r1' is of type .b32"),
    ],
)
def test_errors_quote_the_line(body: str, what: str) -> None:
    with pytest.raises(PtxError, match=what) as raised:
        parse(module(f"    mov.u32 r1, 1;\n    {body}"))
    assert raised.value.line >= 1


def test_unknown_names_are_errors_where_they_are_used() -> None:
    from attn_mlir.validation.emulator.ptx_bench import run_module

    with pytest.raises(PtxError, match="unknown name 'missing'"):
        run_module(module("mov.u32 r1, missing;"), [])


def _reconvergence(body: str) -> dict[int, int]:
    """First instruction of each block with two ways out -> that of its meeting place."""
    graph = build_graph(parse(module(body)).kernels["k"])
    result = {}
    for block in graph.blocks:
        if len(set(block.successors)) > 1:
            meet = block.reconvergence
            result[block.first] = EXIT if meet == EXIT else graph.blocks[meet].first
    return result


def test_post_dominators() -> None:
    nested = """
    @p1 bra A; mov.u32 r1, 1; @p2 bra B; mov.u32 r1, 2; B: mov.u32 r2, 1; bra C;
    A: mov.u32 r3, 1; C: mov.u32 r4, 1;
    """
    assert _reconvergence(nested) == {0: 7, 1: 4}
    loop = "L: add.u32 r1, r1, 1; @p1 bra OUT; @p2 bra L; mov.u32 r2, 1; bra L; OUT: mov.u32 r3, 1;"
    assert _reconvergence(loop) == {0: 5, 2: 0}
    assert _reconvergence("@p1 bra E; mov.u32 r1, 0; ret; E: mov.u32 r2, 0;") == {0: EXIT}


def test_guarded_exits_and_traps_do_not_part_lanes_for_good() -> None:
    assert _reconvergence("@p1 bra A; @p2 exit; mov.u32 r1, 1; A: mov.u32 r2, 1;") == {0: 3}
    assert _reconvergence("@p1 bra A; mov.u32 r1, 1; bra B; A: trap; B: mov.u32 r2, 1;") == {0: 1}


def test_shared_layout_puts_the_dynamic_window_last() -> None:
    before = ".extern .shared .align 256 .b8 d[];\n.shared .align 2 .b8 s[3];\n.shared .align 64 .f32 t[4];"
    parsed = parse(module("mov.u32 r1, d; mov.u32 r1, t; mov.u32 r1, s;", before=before))
    static_bytes, window = lay_out_shared(parsed, parsed.kernels["k"])
    assert {v.name: v.address for v in parsed.variables} == {"d": 0x500, "s": 0x400, "t": 0x440}
    assert (static_bytes, window) == (0x50, 0x500)


def test_storage_follows_the_typed_uses() -> None:
    body = """
    .reg .b32 f1, f2, i1, i2, m; .reg .b64 q1, q2, q3;
    add.f32 f1, f2, f2; add.s32 i1, i2, 1; mov.b32 m, f1;
    mov.b64 q1, {f1, f2}; add.rn.f32x2 q2, q1, q1; mov.b64 q3, {i1, i2}; add.s64 q3, q3, q3;
    """
    kernel = parse(module(body)).kernels["k"]
    storage = choose_storage(kernel)
    kinds = {register.name: storage[register.index] for register in kernel.registers}
    assert {n: kinds[n] for n in ("f1", "f2", "m")} == dict.fromkeys(("f1", "f2", "m"), "f32")
    assert (kinds["i1"], kinds["i2"]) == ("u32", "u32")
    assert (kinds["q1"], kinds["q2"], kinds["q3"]) == ("pair", "pair", "u64")


def test_vector_registers_are_their_elements() -> None:
    body = """
    { .reg .v4 .s32 v; .reg .v2 .f32 w, u; mov.s32 v.x, 1; mov.s32 v.a, 2; st.v4.s32 [rd1], v;
      mov.b64 rd2, w; mov.f32 u.y, 0f00000000; }
    """
    kernel = parse(module(body)).kernels["k"]
    first, last, store, pack, other = (i.operands for i in kernel.instructions[:5])
    vector = store[1]
    assert isinstance(vector, Vec)
    assert [item.name for item in vector.items if isinstance(item, Register)] == [
        *("v.x", "v.y", "v.z", "v.w")
    ]
    assert (first[0], last[0]) == (vector.items[0], vector.items[3])
    assert isinstance(pack[1], Vec) and len(pack[1].items) == 2
    assert isinstance(other[0], Register) and other[0] not in pack[1].items


def test_a_pragma_names_the_used_bytes_of_the_next_load() -> None:
    load, pragma = "ld.shared.b32 r1, [r2];", '.pragma "nounroll", "used_bytes_mask 0x7";'
    body = f"{load} {pragma} L: {load} {load} {pragma} mov.b32 r1, r2; {load}"
    code = parse(module(body)).kernels["k"].instructions
    used = [None, 7, None, None, None]
    assert [i.used_bytes for i in code if i.opcode != "ret"] == used
    for wrong in ("", " x", " -1", " 0x1ffffffff"):
        with pytest.raises(PtxError, match="used_bytes_mask takes an integer of 32 bits"):
            parse(module(f'.pragma "used_bytes_mask{wrong}"; {load}'))


def test_debug_sections_are_skipped() -> None:
    sections = """
        .file 1 "x.py"
        .section .debug_abbrev
        {
    .b8 1   // one
    .b32 .debug_abbrev
        }
        .section .debug_macinfo { }
        .global .b32 kept;
    """
    assert [v.name for v in parse(module("") + sections).variables] == ["kept"]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (".reg .v4 .b32 v<4>;", "a vector register cannot be numbered"),
        (".reg .v3 .b32 v;", "unknown register type '.v3'"),
    ],
)
def test_bad_vector_registers(body: str, what: str) -> None:
    with pytest.raises(PtxError, match=what):
        parse(module(body))


LOADED = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {r1, r2}, [r9]; "
WAIT_LD = "tcgen05.wait::ld.sync.aligned; "
ARRIVE = "mbarrier.arrive.shared.b64 _, [r4]; "


@pytest.mark.parametrize(
    ("body", "is_early"),
    [
        (LOADED + WAIT_LD + "add.u32 r3, r1, r2;", False),
        (LOADED + "add.u32 r3, r1, r2; " + WAIT_LD, True),
        (LOADED + "mov.b64 rd1, {r3, r2}; " + WAIT_LD, True),
        (LOADED + "st.shared.b32 [r2], r3; " + WAIT_LD, True),
        (LOADED + "mov.b32 r1, 0; " + WAIT_LD, False),
        (LOADED + "@p1 bra L; " + WAIT_LD + "L: add.u32 r3, r1, r2;", True),
        ("L: add.u32 r3, r1, r2; " + LOADED + "@p1 bra L; " + WAIT_LD, True),
        (LOADED, False),
    ],
)
def test_loads_that_are_read_before_their_wait(body: str, is_early: bool) -> None:
    kernel = parse(module(body)).kernels["k"]
    assert bool(early_reads(kernel, build_graph(kernel))) is is_early


@pytest.mark.parametrize(
    ("body", "is_over"),
    [
        (LOADED + ARRIVE, False),
        (LOADED + WAIT_LD + ARRIVE, True),
        (LOADED + "add.u32 r3, r1, r2; " + ARRIVE + "st.shared.b32 [r5], r3;", False),
        (LOADED + "add.u32 r3, r1, r2; st.shared.b32 [r5], r3; " + ARRIVE, True),
        (LOADED + "add.u32 r3, r1, r2; mov.u32 r3, 0; st.shared.b32 [r5], r3; " + ARRIVE, False),
        (LOADED + "@p1 st.shared.b32 [r5], r1; " + ARRIVE, True),
        (LOADED + "@p1 bra L; st.shared.b32 [r5], r1; L: " + ARRIVE, False),
        (LOADED + "setp.eq.u32 p1, r1, 0; @p1 bra L; add.u32 r3, r3, 1; L: " + ARRIVE, True),
        (LOADED + "tcgen05.st.sync.aligned.32x32b.x1.b32 [r9], {r1};", True),
        (LOADED + "tcgen05.st.sync.aligned.32x32b.x1.b32 [r9], {r3};", False),
        (LOADED + "bar.sync 0;", False),
        (LOADED, True),
    ],
)
def test_loads_that_are_over_before_others_are_told(body: str, is_over: bool) -> None:
    kernel = parse(module(body)).kernels["k"]
    assert bool(awaited_loads(kernel, build_graph(kernel))) is is_over


STORE_1 = "tcgen05.st.sync.aligned.32x32b.x1.b32 [r9], {r1};"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (LOADED + STORE_1, 1),
        (LOADED + ARRIVE + "add.u32 r1, r1, r2; " + STORE_1, 1),
        (LOADED + STORE_1.replace("r1}", "r3}") + STORE_1, 1),
        (LOADED + STORE_1.replace("r1}", "r3}"), 0),
        (LOADED + "mov.u32 r1, 0; " + STORE_1, 0),
        (LOADED + "@p1 bra L; mov.u32 r1, 0; L: " + STORE_1, 0),
        (LOADED + WAIT_LD + STORE_1, 0),
    ],
)
def test_stores_of_what_was_loaded(body: str, count: int) -> None:
    kernel = parse(module(body)).kernels["k"]
    assert len(stored_loads(kernel, build_graph(kernel))) == count


def test_octal_numbers_are_octal() -> None:
    imm = parse(module("mov.u32 r1, 017;")).kernels["k"].instructions[0].operands[1]
    assert imm == Imm(15)


@pytest.mark.parametrize(
    "directive", [".reqntid", ".maxntid 0", ".maxnreg 1, 2", ".reqntid 1, 1, 1, 1"]
)
def test_directives_take_positive_numbers(directive: str) -> None:
    with pytest.raises(PtxError, match="positive numbers"):
        parse(module("", directives=directive))
