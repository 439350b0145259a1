"""Damaged modules: text of every stage with a few mistakes in it, through the rest of the way down.

A case is a sound text with one to three mutations, run as `attn-opt` runs it: it is accepted, or
it is refused by an exit status of 1 with diagnostics that name a line of the file. Each runs in a
process of its own, so that one that kills the process, or does not end, counts as a failure.
"""

import contextlib
import faulthandler
import functools
import os
import random
import re
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attn_mlir.validation.fuzz.fuzz_limits import address_space

COUNT = 300
LIMIT_SECONDS = 60  # of one case; the longest sound text takes a few
LIMIT_BYTES = 4 << 30  # of address space, of one case

PIPELINES = {
    "attn": "attn-to-nvvm",
    "ws": "ws-verify-rings,ws-plan-memory,convert-ws-to-nvvm",
    "planned": "convert-ws-to-nvvm",
    "nvvm": "nvvm-to-ptx",
}
"""What is left of the way down, by stage."""

RECOVERED = ("nvvm",)
"""Stages below ours, whose passes may end the process: `attn-opt` recovers from that."""

BACKEND = ("'", "LLVM ERROR", "Stack dump", "PLEASE submit", "#", "0.", "1.", "2.", "3.", " ")
"""How lines begin that LLVM prints by itself when it is not content, or dies."""

DIAGNOSTIC = re.compile(r"\S+:\d+:\d+: (error|note|warning|remark): .+")
TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|[%^@#!]?[\w$.]+(?:#\d+)?|->|::|\s+|.', re.DOTALL
)  # names, numbers, strings and signs

ATTRIBUTES = (
    'loc("x":1:2)',
    "loc(unknown)",
    "{}",
    "{a = 1 : i64}",
    "[]",
    '["in", 3 : i64]',
    '"text"',
    "unit",
    "true",
    "1 : i64",
    "-1 : i64",
    "0 : i32",
    "4294967296 : i64",
    "99999999999999999999999999 : i128",
    "1.5 : f32",
    "0x7FC00000 : f32",
    "array<i32>",
    "array<i32: 1>",
    "array<i32: -1, 2>",
    "array<i32: 2147483647, 1>",
    "array<i64: 1, 2, 3>",
    "dense<1> : tensor<2xi32>",
    "dense<(1.0, 2.0)> : tensor<1xcomplex<f32>>",
    "affine_map<(i) -> (i)>",
    "@symbol",
    "f32",
    "() -> ()",
    '!ws.tile<vector<4xi32>, "shared">',
    "#attn.causal",
    "#attn.window<3 : i64, -7 : i64>",
    "#attn.not<3 : i64>",
    "#attn.and<#attn.null, unit>",
    "#attn.chunked<true>",
)
TYPES = (
    "f32",
    "i1",
    "i32",
    "i64",
    "index",
    "none",
    "bf16",
    "f8E4M3FN",
    "tensor<*xf32>",
    "tensor<?x?x2x64xbf16>",
    "tensor<0x0x0x0xf16>",
    "memref<*xf32>",
    "memref<?x64xbf16, strided<[?, 1], offset: ?>>",
    "memref<4xi32, 3>",
    "vector<4xf32>",
    "vector<[4]xf32>",
    "complex<f32>",
    "tuple<f32, i32>",
    "() -> i32",
    "!llvm.ptr",
    '!ws.tile<vector<128x64xf32>, "tensor">',
    '!ws.tile<vector<128xf32>, "moon">',
    '!ws.tile<f32, "shared">',
    '!ws.tile<loc("x":1:2), unit>',
    "!ws.frag<vector<128x64xf32>>",
    "!ws.frag<vector<128x!llvm.ptr>>",
    "!ws.frag<3 : i64>",
    '!ws.ring<!ws.tile<vector<128x64xf32>, "shared">, 3, 2>',
    '!ws.ring<!ws.tile<vector<128x64xf32>, "shared">, 0, -1>',
    '!ws.ring<f32, "a", {}>',
    '!ws.buffer<!ws.tile<vector<8x8xf32>, "tensor">, 99999999999>',
    "!attn.view<tensor<?x?x2x64xbf16>, tensor<?x2x64xbf16>>",
    "!attn.view<f32, f32>",
    "!attn.view<unit, 3>",
)
NUMBERS = (
    "0",
    "1",
    "-1",
    "7",
    "33",
    "256",
    "2147483647",
    "-2147483648",
    "4294967296",
    "1" + "0" * 40,
)
KEYS = (
    "operandSegmentSizes",
    "resultSegmentSizes",
    "attn.config",
    "attn.partial",
    "attn.name",
    "attn.default",
    "ws.plan",
    "mask",
    "order",
    "sym_name",
    "label_name",
    "warps",
    "by",
    "kind",
)


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """(stage, text) of the sound modules: kernels of several kinds, and every operation's example."""
    import attn_mlir as am
    from attn_mlir.dialect._mlir import make_context
    from attn_mlir.dialect.attn import build_module
    from attn_mlir.dialect.attn.masks import CausalMask, NullMask, WindowMask
    from attn_mlir.passes.infrastructure.pipeline import run_pipeline

    kinds: list[dict[str, Any]] = [
        {"head_dim": 64, "mask": CausalMask()},
        {"head_dim": 128, "mask": WindowMask(100, 3) | CausalMask()},
        {"head_dim": 64, "mask": NullMask(), "dtype": "e4m3"},
    ]
    found: list[tuple[str, str]] = []
    for kind in kinds:
        request = am.mha(**{"heads": 4, "kv_heads": 2, "dtype": "bf16"} | kind)
        module = build_module(make_context(), request, name="f")
        found.append(("attn", str(module)))
        run_pipeline(module, "attn-to-ws")
        found.append(("ws", str(module)))
        run_pipeline(module, "ws-plan-memory")
        found.append(("planned", str(module)))
    copy = _copy_kernel()
    for stage, pipeline in (
        ("ws", ""),
        ("planned", "ws-plan-memory"),
        ("nvvm", "convert-ws-to-nvvm"),
    ):
        run_pipeline(copy, pipeline)
        found.append((stage, str(copy)))
    folder = Path(__file__).resolve().parents[3] / "test" / "dialect"
    for file in sorted(folder.glob("**/*.mlir")):
        if "errors" not in file.name:
            stage = "ws" if file.parent.name == "ws" else "attn"
            found += [(stage, chunk) for chunk in file.read_text().split("// -----")]
    return tuple(found)


def _copy_kernel() -> Any:
    """The smallest kernel: a copy through shared memory, whose text is short at every stage."""
    from attn_mlir.dialect._mlir import ir, make_context
    from attn_mlir.schedules.copy.kernel import schedule_tma_copy

    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            schedule_tma_copy("tma_copy")
    return module


Tokens = list[str]
Mutation = Callable[[random.Random, Tokens], None]


def _pick(draw: random.Random, tokens: Tokens, pattern: str) -> int | None:
    """The place of a token of a kind, drawn; None if there is none."""
    places = [n for n, token in enumerate(tokens) if re.fullmatch(pattern, token)]
    return draw.choice(places) if places else None


def _end_of_value(tokens: Tokens, start: int) -> int:
    """Where the attribute or type that begins at `start` ends: at a sign outside of brackets."""
    depth = 0
    for place in range(start, len(tokens)):
        token = tokens[place]
        if depth == 0 and (token in (",", ")", "}", ">", "]", "=") or "\n" in token):
            return place
        depth += (token in "<([{") - (token in ">)]}") if len(token) == 1 else 0
    return len(tokens)


def drop(draw: random.Random, tokens: Tokens) -> None:
    """Leaves out a token."""
    del tokens[draw.randrange(len(tokens))]


def repeat(draw: random.Random, tokens: Tokens) -> None:
    """Says a token twice."""
    place = draw.randrange(len(tokens))
    tokens.insert(place, tokens[place])


def swap(draw: random.Random, tokens: Tokens) -> None:
    """Exchanges two tokens of one kind: values, names, types, numbers."""
    pattern = draw.choice((r"%.*", r'"\w+\.\w+"', r"[!#].*", r"\d+", r"i\d+|f\d+|bf16", r'".*"'))
    one, other = _pick(draw, tokens, pattern), _pick(draw, tokens, pattern)
    if one is not None and other is not None:
        tokens[one], tokens[other] = tokens[other], tokens[one]


def number(draw: random.Random, tokens: Tokens) -> None:
    """Changes a number."""
    if (place := _pick(draw, tokens, r"\d+")) is not None:
        tokens[place] = draw.choice(NUMBERS)


def attribute(draw: random.Random, tokens: Tokens) -> None:
    """Gives an attribute another value, of any kind."""
    if (place := _pick(draw, tokens, "=")) is not None:
        start = place + 1
        while start < len(tokens) and tokens[start].isspace():
            start += 1
        tokens[start : _end_of_value(tokens, start)] = [draw.choice(ATTRIBUTES)]


def key(draw: random.Random, tokens: Tokens) -> None:
    """Adds an attribute, or renames one."""
    if (place := _pick(draw, tokens, r"\{")) is None:
        return
    name = draw.choice(KEYS)
    if draw.random() < 0.3:
        if (named := _pick(draw, tokens, r"[a-z_]+")) is not None:
            tokens[named] = name
    else:
        tokens.insert(place + 1, f"{name} = {draw.choice(ATTRIBUTES)}, ")


def kind(draw: random.Random, tokens: Tokens) -> None:
    """Writes another type."""
    place = _pick(draw, tokens, r"!.*|tensor|memref|vector|i\d+|f\d+|bf16")
    if place is not None:
        is_short = place + 1 >= len(tokens) or tokens[place + 1] != "<"
        end = place + 1 if is_short else _end_of_value(tokens, place)
        tokens[place:end] = [draw.choice(TYPES)]


def region(draw: random.Random, tokens: Tokens) -> None:
    """Empties a region, takes its arguments away or its last line."""
    opened = [n for n in range(len(tokens) - 1) if tokens[n : n + 2] == ["(", "{"]]
    if not opened:
        return
    start = draw.choice(opened) + 2
    depth, end = 1, start
    while end < len(tokens) and depth:
        depth += (tokens[end] == "{") - (tokens[end] == "}")
        end += 1
    body = "".join(tokens[start : end - 1])
    lines = body.splitlines()
    others = (
        "",
        "\n^bb0:\n",
        re.sub(r"\^bb0\(.*?\):", "^bb0:", body),
        "\n".join(lines[:-2]),
        body * 2,
    )
    tokens[start : end - 1] = TOKEN.findall(draw.choice(others))


def line(draw: random.Random, tokens: Tokens) -> None:
    """Leaves out a line, says it twice or moves it."""
    lines = "".join(tokens).splitlines(keepends=True)
    place = draw.randrange(len(lines))
    match draw.randrange(3):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case _:
            lines.insert(draw.randrange(len(lines)), lines.pop(place))
    tokens[:] = TOKEN.findall("".join(lines))


def operation(draw: random.Random, tokens: Tokens) -> None:
    """Turns an operation into another one of ours, or writes it in a form that it does not have."""
    if (place := _pick(draw, tokens, r'"\w+\.\w+"')) is not None:
        from attn_mlir.dialect import attn, ws

        operations: list[Any] = [*attn.DIALECT.operations, *ws.DIALECT.operations]
        name = draw.choice(operations).OPERATION_NAME
        tokens[place] = draw.choice((f'"{name}"', name, tokens[place].strip('"')))


def operands(draw: random.Random, tokens: Tokens) -> None:
    """Changes the operands of an operation: leaves one out or says one twice."""
    if (place := _pick(draw, tokens, r"%.*")) is not None:
        if draw.random() < 0.5:
            tokens.insert(place, tokens[place] + ", ")
        else:
            del tokens[place : place + 2]


MUTATIONS: Sequence[Mutation] = (
    drop,
    repeat,
    swap,
    swap,
    number,
    number,
    attribute,
    attribute,
    attribute,
    key,
    key,
    kind,
    kind,
    region,
    line,
    operation,
    operands,
)


def case(number_of_case: int) -> tuple[str, str]:
    """(stage, text) of a case."""
    draw = random.Random(f"modules:{number_of_case}")
    stage, text = draw.choice(texts())
    tokens: Tokens = TOKEN.findall(text)
    for _ in range(draw.choice((1, 1, 2, 3))):
        draw.choice(MUTATIONS)(draw, tokens)
    return stage, "".join(tokens)


def run(stage: str, text: str) -> str:
    """What becomes of a text; raises AssertionError for a status or output that is none of ours."""
    from attn_mlir.passes import attn_opt

    tool = attn_opt.main if stage in RECOVERED else attn_opt.run
    with tempfile.NamedTemporaryFile("w", suffix=".mlir", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
            with _to_file(1, output), _to_file(2, complaints):
                status = tool([file.name, f"--pass-pipeline={PIPELINES[stage]}"])
            output.seek(0), complaints.seek(0)
            printed, lines = output.read(), complaints.read().splitlines()
        lines = [line for line in lines if not line.startswith(BACKEND)]
        if status == 0:
            assert printed and not any(": error: " in line for line in lines), lines
            return "accepted"
        assert status == 1, f"status {status}: {lines}"
        first = lines[0] if lines else ""
        place = f"{file.name}:"
        assert DIAGNOSTIC.fullmatch(first) and first.startswith(place), lines
        return f"refused: {first.removeprefix(place)}"


@contextlib.contextmanager
def _to_file(descriptor: int, file: Any) -> Iterator[None]:
    """Sends standard output or error to a file, from Python, from C++ and from a child process."""
    redirect = contextlib.redirect_stdout if descriptor == 1 else contextlib.redirect_stderr
    before = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        with redirect(file):
            yield
            file.flush()
    finally:
        os.dup2(before, descriptor)
        os.close(before)


def attempt(number_of_case: int) -> str:
    """Runs one case in a process of its own; returns what became of it in a line.

    Raises:
      RuntimeError: it died, took too long, raised, or said something without a place.
    """
    stage, text = case(number_of_case)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _in_child(writing, lambda: run(stage, text))
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        what = signal.Signals(os.WTERMSIG(status)).name
        raise RuntimeError(f"module {number_of_case} ended the process by {what}:\n{text}")
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"module {number_of_case}: {said}\n{text}")
    return said


def _in_child(writing: int, work: Callable[[], str]) -> None:
    """Does the work within the limits, writes what it returned or raised, and ends the process."""
    status = 1
    try:
        faulthandler.disable()  # what ends the process is told by its status
        limit = address_space(LIMIT_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_SECONDS)
        said = work()
        status = 0
    except BaseException:
        said = traceback.format_exc()
    with contextlib.suppress(OSError):
        os.write(writing, said.encode()[:60000])
    os._exit(status)
