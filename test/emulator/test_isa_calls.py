"""Calls: frames, recursion, divergence within functions, and what the runtime of a GPU provides.

PTX ISA, parameter state space and `call`: `.param` variables of a caller hand bytes to a function and take its results;
`call` stores the address of the next instruction, so that a function may be active several times. `vprintf` and
`__assertfail` are system calls of CUDA, which the ISA leaves to the runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import LaunchError
from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.validation.emulator.ptx_bench import module

SCHEDULES = [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
START = "mov.u32 r1, %tid.x; ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r1, 4, rd1;"
CALL = "{{ .param .b32 a; .param .b32 b; st.param.b32 [a+0], {given}; call.uni (b), {name}, (a); ld.param.b32 {taken}, [b+0]; }}"


def call(name: str, given: str, taken: str) -> str:
    return CALL.format(name=name, given=given, taken=taken)


def function(name: str, body: str) -> str:
    """A function of one number `x` that returns `y`, which its body leaves in r9."""
    return f"""
    .func (.param .b32 y) {name}(.param .b32 x)
    {{
    .reg .pred p<4>; .reg .b32 r<16>; .reg .b64 rd<8>;
    ld.param.u32 r1, [x];
    {body}
    st.param.b32 [y+0], r9;
    ret;
    }}
    """


def run(
    functions: str,
    body: str,
    *,
    schedule: str = "fair",
    seed: int = 0,
    threads: int = 64,
    **options: Any,
) -> Any:
    """uint32[threads]: the words that the threads store."""
    out = np.zeros(threads, np.uint32)
    text = module(f"{START} {body}", ".param .u64 out", before=functions)
    emulator = Emulator(schedule=schedule, seed=seed, check="all", **options)  # type: ignore[arg-type]
    emulator.launch(text, "k", grid=(1,), block=(threads,), params=[emulator.map(out)])
    return out


THREAD = np.arange(64)
ODD = function(
    "odd",
    "and.b32 r2, r1, 1; setp.eq.u32 p1, r2, 0; mov.u32 r9, 7; @p1 bra EVEN; add.u32 r9, r1, 100; EVEN:",
)
# Each activation has a variable of its own, to which it points the one that it calls.
SUM = function(
    "sum",
    f"""
    .local .align 8 .b8 mine[8]; .reg .b64 %p;
    st.local.u32 [mine], r1; mov.u32 r9, 0; setp.eq.u32 p1, r1, 0; @p1 bra DONE;
    sub.u32 r2, r1, 1; {call("sum", "r2", "r3")}
    ld.local.u32 r4, [mine]; add.u32 r9, r3, r4;
    DONE:
    """,
)
EARLY = function(
    "early",
    """
    setp.lt.u32 p1, r1, 20; @!p1 bra NEXT; mov.u32 r9, 1; st.param.b32 [y+0], r9; ret;
    NEXT: setp.lt.u32 p2, r1, 40; mov.u32 r9, 2; @p2 st.param.b32 [y+0], r9; @p2 ret; mov.u32 r9, 3;
    """,
)
IS_ODD = function(
    "is_odd",
    f"mov.u32 r9, 0; setp.eq.u32 p1, r1, 0; @p1 bra D; sub.u32 r2, r1, 1; {call('is_even', 'r2', 'r9')} D:",
)
IS_EVEN = function(
    "is_even",
    f"mov.u32 r9, 1; setp.eq.u32 p1, r1, 0; @p1 bra D; sub.u32 r2, r1, 1; {call('is_odd', 'r2', 'r9')} D:",
)
SHUFFLE = function(
    "shuffle",
    "and.b32 r2, r1, 1; setp.eq.u32 p1, r2, 0; mov.u32 r3, 5; @p1 bra E; mov.u32 r3, 6; E: shfl.sync.bfly.b32 r9, r3, 1, 31, -1;",
)
STORE = "st.global.u32 [rd1], r5;"

RIGHT: dict[str, tuple[str, str, Any]] = {
    "a branch on which the lanes differ": (
        ODD,
        f"{call('odd', 'r1', 'r5')} {STORE}",
        np.where(THREAD % 2, THREAD + 100, 7),
    ),
    "in a loop": (
        ODD,
        f"mov.u32 r5, 0; mov.u32 r6, 0; TURN: add.u32 r7, r1, r6; {call('odd', 'r7', 'r8')} add.u32 r5, r5, r8;"
        f" add.u32 r6, r6, 1; setp.lt.u32 p1, r6, 3; @p1 bra TURN; {STORE}",
        sum(np.where((THREAD + n) % 2, THREAD + n + 100, 7) for n in range(3)),
    ),
    "of lanes that diverged before it": (
        ODD,
        f"mov.u32 r5, 1; setp.lt.u32 p1, r1, 9; @p1 bra SKIP; {call('odd', 'r1', 'r5')} SKIP: {STORE}",
        np.where(THREAD < 9, 1, np.where(THREAD % 2, THREAD + 100, 7)),
    ),
    "under a guard": (
        ODD,
        "mov.u32 r5, 1; setp.lt.u32 p1, r1, 9; { .param .b32 a; .param .b32 b; st.param.b32 [a], r1; st.param.b32 [b], r5;"
        f" @!p1 call (b), odd, (a); ld.param.b32 r5, [b]; }} {STORE}",
        np.where(THREAD < 9, 1, np.where(THREAD % 2, THREAD + 100, 7)),
    ),
    "from two places": (
        ODD,
        f"setp.lt.u32 p1, r1, 9; @p1 bra ONE; {call('odd', 'r1', 'r5')} bra END;"
        f" ONE: add.u32 r6, r1, 1; {call('odd', 'r6', 'r5')} END: {STORE}",
        np.where(
            THREAD < 9, np.where(THREAD % 2, 7, THREAD + 101), np.where(THREAD % 2, THREAD + 100, 7)
        ),
    ),
    "that returns in three places": (
        EARLY,
        f"{call('early', 'r1', 'r5')} {STORE}",
        np.select([THREAD < 20, THREAD < 40], [1, 2], 3),
    ),
    "recursion of other depth in each lane": (
        SUM,
        f"and.b32 r6, r1, 15; {call('sum', 'r6', 'r5')} {STORE}",
        THREAD % 16 * (THREAD % 16 + 1) // 2,
    ),
    "two functions that call each other": (
        ".func (.param .b32 y) is_even(.param .b32 x);\n" + IS_ODD + IS_EVEN,
        f"and.b32 r6, r1, 7; {call('is_odd', 'r6', 'r5')} {STORE}",
        THREAD % 2,
    ),
    "a shuffle behind lanes that diverged in it": (
        SHUFFLE,
        f"{call('shuffle', 'r1', 'r5')} {STORE}",
        np.where(THREAD % 2, 5, 6),
    ),
    "of a function that calls another": (
        ODD
        + function(
            "twice",
            f"{call('odd', 'r1', 'r2')} add.u32 r3, r1, 1; {call('odd', 'r3', 'r4')} add.u32 r9, r2, r4;",
        ),
        f"{call('twice', 'r1', 'r5')} {STORE}",
        np.where(THREAD % 2, THREAD + 107, THREAD + 108),
    ),
    "without arguments or results": (
        ".global .u32 counter;\n.func count() { .reg .b32 r<2>; .reg .b64 a; mov.u64 a, counter; atom.global.add.u32 r1, [a], 1; ret; }",
        "call count; call.uni count, (); bar.sync 0; mov.u64 rd2, counter; ld.relaxed.gpu.global.u32 r5, [rd2]; "
        + STORE,
        np.full(64, 128),
    ),
    "a table of branches in both": (
        function(
            "pick",
            "and.b32 r2, r1, 1; mov.u32 r9, 3; T: .branchtargets A, B; brx.idx r2, T; A: mov.u32 r9, 4; B:",
        ),
        f"{call('pick', 'r1', 'r4')} and.b32 r6, r1, 3; mov.u32 r5, r4; T: .branchtargets A, B, A, B; brx.idx r6, T;"
        f" A: add.u32 r5, r5, 10; B: {STORE}",
        np.where(THREAD % 2, 3, 14),
    ),
    "that some lanes leave the kernel from": (
        function("quit", "setp.lt.u32 p1, r1, 5; @p1 exit; mov.u32 r9, 8;"),
        f"{call('quit', 'r1', 'r5')} bar.sync 0; {STORE}",
        np.where(THREAD < 5, 0, 8),
    ),
    "the last of a kernel": (
        ODD,
        f"mov.u32 r5, 4; {STORE} {call('odd', 'r1', 'r5')}",
        np.full(64, 4),
    ),
}


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("name", RIGHT)
def test_a_call(name: str, schedule: str, seed: int) -> None:
    functions, body, expected = RIGHT[name]
    assert (run(functions, body, schedule=schedule, seed=seed) == expected).all()


BIG = """
    .func (.param .align 8 .b8 y[24]) swap(.param .align 8 .b8 x[24], .param .b64 z)
    {
    .reg .b64 rd<8>;
    ld.param.v2.u64 {rd1, rd2}, [x]; ld.param::func.u64 rd3, [x+16]; ld.param.u64 rd4, [z];
    add.u64 rd3, rd3, rd4; st.param.u64 [y], rd3; st.param::func.v2.u64 [y+8], {rd1, rd2};
    ret;
    }
"""


def test_aggregates_are_handed_over_and_back() -> None:
    out = run(
        BIG,
        """
        cvt.u64.u32 rd2, r1; mov.u64 rd3, 1000; mov.u64 rd4, 50;
        { .param .align 8 .b8 a[24]; .param .b64 b; .param .align 8 .b8 c[24];
        st.param.v2.u64 [a], {rd2, rd3}; st.param.u64 [a+16], rd4; st.param.b64 [b], rd2; call (c), swap, (a, b);
        ld.param.u64 rd5, [c]; ld.param.v2.u64 {rd6, rd7}, [c+8]; }
        add.u64 rd5, rd5, rd7; cvt.u32.u64 r5, rd5; st.global.u32 [rd1], r5;
        """,
    )
    assert (out == THREAD + 1050).all()


WRONG: dict[str, tuple[str, str, str]] = {
    "a function that nobody has": (
        "",
        "call malloc, ();",
        "calls 'malloc', which is neither in the module nor known",
    ),
    "recursion without an end": (
        function("deep", ".local .b8 wide[4096]; " + call("deep", "r1", "r9")),
        call("deep", "r1", "r5"),
        "calls need .* B of local memory per thread",
    ),
    "an entry": ("", call("k", "r1", "r5"), "calls 'k'"),
    "the arguments' sizes": (
        ODD,
        "{ .param .b64 a; .param .b32 b; st.param.b64 [a], rd1; call (b), odd, (a); }",
        "its arguments are 4 B",
    ),
    "the number of results": (
        ODD,
        "{ .param .b32 a; st.param.b32 [a], r1; call odd, (a); }",
        "its results are 4 B",
    ),
    "registers as arguments": (
        ODD,
        "call (r5), odd, (r1);",
        "calls 'odd' with other than variables of the .param space",
    ),
    "parameters in registers": (
        ".func (.reg .b32 y) old(.reg .b32 x) { ret; }",
        "{ .param .b32 a; .param .b32 b; call (b), old, (a); }",
        "calls 'old', which has parameters in registers",
    ),
    "a function by its address": (
        ODD,
        "P: .callprototype (.param .b32 _) _ (.param .b32 _); { .param .b32 a; .param .b32 b; call (b), rd1, (a), P; }",
        "calls a function that the text does not name",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_called_is_said(name: str) -> None:
    functions, body, says = WRONG[name]
    with pytest.raises(LaunchError, match=says) as raised:
        run(functions, body)
    assert isinstance(raised.value, KernelFault) and "| " in str(raised.value)


def test_what_nobody_calls_may_be_wrong() -> None:
    wrong = ".func (.reg .b32 y) old(.reg .b32 x) { call (y), nobody, (x); ret; }"
    assert (run(wrong, "mov.u32 r5, 3; " + STORE) == 3).all()


def test_a_read_of_what_a_call_did_not_write_is_found() -> None:
    silent = ".func (.param .b32 y) silent(.param .b32 x) { ret; }"
    with pytest.raises(KernelFault, match="local memory read before any write"):
        run(silent, f"{call('silent', 'r1', 'r5')} {STORE}")


PRINTF = """
.extern .func (.param .b32 y) vprintf(.param .b64 form, .param .b64 buffer);
.global .align 1 .b8 form[{size}] = {{{codes}}};
.global .align 1 .b8 word[4] = {{97, 98, 99, 0}};
"""
PRINT = """
    .local .align 8 .b8 buffer[64];
    setp.ne.u32 p1, r1, 37; @p1 bra END;
    mov.u64 rd2, buffer; cvta.local.u64 rd2, rd2; mov.u64 rd3, form; cvta.global.u64 rd3, rd3; mov.u64 rd4, word;
    STORES
    { .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], rd3; st.param.b64 [b], rd2;
    call.uni (c), vprintf, (a, b); ld.param.b32 r5, [c]; st.global.u32 [rd1], r5; }
    END:
"""


def printed(form: str, stores: str) -> tuple[str, int]:
    """What thread 37 prints, and what printf returns."""
    codes = [*form.encode(), 0]
    found: list[str] = []
    text = PRINTF.format(size=len(codes), codes=", ".join(map(str, codes)))
    out = run(text, PRINT.replace("STORES", stores), output=found.append)
    return "".join(found), int(out[37])


@pytest.mark.parametrize(
    ("form", "stores", "expected", "count"),
    [
        ("plain 100%%\n", "", "plain 100%\n", 0),
        ("%d|%5d|%-5d|%05d", "st.local.v4.u32 [buffer], {r1, r1, r1, r1};", "37|   37|37   |00037", 4),
        ("%i %u", "mov.u32 r6, -1; st.local.v2.u32 [buffer], {r6, r6};", "-1 4294967295", 2),
        ("%x %X %#x %o", "mov.u32 r6, 171; st.local.v4.u32 [buffer], {r6, r6, r6, r6};", "ab AB 0xab 253", 4),
        ("%d %lld", "mov.u64 rd5, -5; st.local.u32 [buffer], r1; st.local.u64 [buffer+8], rd5;", "37 -5", 2),
        ("%.2f %g", "mov.f64 rd5, 0d3FF8000000000000; st.local.v2.u64 [buffer], {rd5, rd5};", "1.50 1.5", 2),
        ("%c%s|%6s|%.2s", "mov.u32 r6, 65; st.local.u32 [buffer], r6; st.local.u64 [buffer+8], rd4; st.local.v2.u64 [buffer+16], {rd4, rd4};", "Aabc|   abc|ab", 4),
        ("%*d", "mov.u32 r6, 4; st.local.v2.u32 [buffer], {r6, r1};", "  37", 2),
        ("%p", "mov.u64 rd5, 4096; st.local.u64 [buffer], rd5;", "0x1000", 1),
    ],
)  # fmt: skip
def test_printf(form: str, stores: str, expected: str, count: int) -> None:
    assert printed(form, stores) == (expected, count)


@pytest.mark.parametrize(
    ("form", "says"), [("%y", "'%y' is unknown"), ("%99999d", "a field of 99999 characters")]
)
def test_what_printf_cannot_print_is_said(form: str, says: str) -> None:
    with pytest.raises(KernelFault, match=says):
        printed(form, "st.local.u32 [buffer], r1;")


def test_printf_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    text = PRINTF.format(size=3, codes="104, 105, 0")
    run(text, PRINT.replace("STORES", ""))
    assert capsys.readouterr().out == "hi"


def test_a_failed_assertion_says_which() -> None:
    texts = "".join(
        f".global .align 1 .b8 {name}[8] = {{{', '.join(str(c) for c in [*value.encode(), 0])}}};\n"
        for name, value in (("what", "n > 0"), ("file", "x.cu"))
    )
    body = """
    mov.u64 rd2, what; mov.u64 rd3, file; mov.u32 r6, 12; mov.u64 rd4, 1;
    { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], rd2; st.param.b64 [b], rd3; st.param.b32 [c], r6; st.param.b64 [d], rd3; st.param.b64 [e], rd4;
    call.uni __assertfail, (a, b, c, d, e); }
    """
    with pytest.raises(KernelFault, match=r"assertion failed: n > 0 \(x.cu:12\)") as raised:
        run(texts, body)
    assert raised.value.kind == "trap" and "call.uni __assertfail" in str(raised.value)
