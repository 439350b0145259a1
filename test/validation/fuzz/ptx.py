"""Damaged PTX texts and launches: each ends in a run or in a typed error, within its limits.

`attempt(number)` is one of them, drawn from its number alone.
"""

from __future__ import annotations

import random
import re
import resource
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from attn_mlir.errors import AttnError
from attn_mlir.runtime.emulator import Emulator, KernelFault
from attn_mlir.validation.fuzz.fuzz_limits import address_space
from attn_mlir.validation.fuzz.ptx_samples import Sample, samples

COUNT = 500
INSTRUCTION_LIMIT = 20_000
MEMORY_BYTES = 1 << 30  # that an attempt may take beyond what the process has

_TOKEN = re.compile(r"//[^\n]*|\s+|[\w.%$:]+|.", re.DOTALL)
_REGISTER = re.compile(r"%?[a-z]+\d+")
_OPCODE = re.compile(r"[a-z]\w*(\.[\w:]+)+")
_NUMBERS = (
    "0", "1", "-1", "3", "7", "17", "31", "32", "33", "255", "256", "1023", "65535", "4294967295",
    "4294967296", "9223372036854775808", "18446744073709551615", "99999999999999999999999", "089",
    "0x", "0xffffffff", "0f7FC00000", "0f3F800000", "0d3FF0000000000000", "1.5", "1e999", "-0.0",
)  # fmt: skip
_PARTS = (
    "f16", "bf16", "f16x2", "f32", "f64", "f32x2", "b8", "b16", "b32", "b64", "b128", "u8", "s16",
    "u32", "s64", "pred", "v2", "v4", "v8", "wide", "hi", "lo", "sat", "rn", "rz", "ftz", "cc",
    "global", "shared", "shared::cluster", "local", "param", "const", "volatile", "relaxed", "gpu",
    "x1", "x4", "x128", "m16n8k16", "m64n64k16", "16x256b", "kind::i8", "cta_group::2", "ws", "sp",
    "aligned", "sync", "add", "cas", "trans", "multicast::cluster", "noinc", "e4m3x2", "x", "",
)  # fmt: skip
_MARKS = ("{", "}", "[", "]", "(", ")", ",", ";", "|", "!", "@p1 ", "@!p1 ", "+", "-", "_", '"')
_WHOLE = ("{" * 3000, "[" * 3000, "}" * 5, "(" * 200, "p0|" * 2000, "\x00", "\u00e9", "/*", "\n")
_ODD: tuple[Any, ...] = (
    None, "", "x", b"", 0, -1, 1, 2, 33, 1025, 2**25, 2**31, 2**64, 10**5000, 1.5, float("nan"),
    float("inf"), 1e300, [], (), (0,), (1, 2, 3, 4), {}, object(), True, 1j, np.float32(2), b"x" * 16,
    np.zeros(2, np.float32), np.array([None]), [None], range(3), (2**25,), (1, 65536), (1, 1, 65),
)  # fmt: skip


def attempt(number: int) -> str:
    """Damage a launch and run it.

    Returns:
      How it ended: "ran" or the error's class and the beginning of its message.

    Raises:
      Exception: one that is no error of ours.
    """
    rng = random.Random(f"ptx:{number}")
    sample = rng.choice(samples())
    text: Any = sample.ptx
    if rng.random() < 0.85:
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            text = rng.choice(_DAMAGE)(text, rng)
    options: dict[str, Any] = {
        "target": sample.target,
        "schedule": rng.choice(("fair", "adversarial")),
        "seed": rng.randrange(100),
        "check": rng.choice(("all", "none")),
        "check_mode": rng.choice(("raise", "collect")),
        "instruction_limit": INSTRUCTION_LIMIT,
    }
    with _limited_memory():
        try:
            if rng.random() < 0.05:
                options[rng.choice(list(options))] = rng.choice(_ODD)
                options["instruction_limit"] = INSTRUCTION_LIMIT
            emulator = Emulator(**options)
            passed = arguments(emulator, sample, text)
            if rng.random() < 0.2:
                _damage_arguments(passed, rng)
            stats = emulator.launch(**passed)
        except KernelFault as fault:
            if fault.kind == "internal":
                assert fault.__cause__ is not None
                raise fault.__cause__ from None
            return _shortened(fault)
        except AttnError as error:
            return _shortened(error)
    assert stats.warp_instructions <= 2 * INSTRUCTION_LIMIT
    return "ran"


def arguments(emulator: Emulator, sample: Sample, text: str) -> dict[str, Any]:
    """What `Emulator.launch` gets of a sample, with another text."""
    buffers = [np.frombuffer(data, np.uint8).copy() for data in sample.buffers]
    addresses = [emulator.map(buffer) for buffer in buffers]
    maps = [
        struct.pack("<Q", addresses[buffer] + int.from_bytes(data[:8], "little")) + data[8:]
        for buffer, data in sample.maps
    ]
    others = [2.5, bytes(16)] if sample.target == "sm_100a" else []
    return {
        "ptx_text": text,
        "entry": sample.entry,
        "grid": sample.grid,
        "block": sample.block,
        "cluster": sample.cluster,
        "shared_bytes": sample.shared_bytes,
        "params": [*addresses, *maps, *others],
    }


def _damage_arguments(arguments: dict[str, Any], rng: random.Random) -> None:
    name = rng.choice(list(arguments))
    value = arguments[name]
    if isinstance(value, tuple | list) and value and rng.random() < 0.7:
        damaged = list(value)
        damaged[rng.randrange(len(damaged))] = rng.choice(_ODD)
        arguments[name] = damaged
    else:
        arguments[name] = rng.choice(_ODD)


@contextmanager
def _limited_memory() -> Generator[None]:
    """No more than MEMORY_BYTES of address space beyond what the process has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space(MEMORY_BYTES), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _shortened(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first[:120]}"


# ---- damage to the text


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _body_token(text: str, rng: random.Random) -> tuple[list[str], int]:
    """The tokens of a text and the place of one that is no blank, mostly in the kernel."""
    tokens = _tokens(text)
    first = 0 if rng.random() < 0.1 else len(tokens) // 8
    places = [n for n in range(first, len(tokens)) if not tokens[n].isspace()]
    return tokens, rng.choice(places) if places else 0


def _at_token(change: Callable[[list[str], int, random.Random], None]) -> Any:
    def damage(text: str, rng: random.Random) -> str:
        tokens, at = _body_token(text, rng)
        if tokens:
            change(tokens, at, rng)
        return "".join(tokens)

    return damage


def _drop(tokens: list[str], at: int, rng: random.Random) -> None:
    del tokens[at : at + rng.choice((1, 1, 2, 4))]


def _repeat(tokens: list[str], at: int, rng: random.Random) -> None:
    tokens[at] = f"{tokens[at]}{rng.choice((' ', ', ', '; '))}{tokens[at]}"


def _other(tokens: list[str], at: int, rng: random.Random) -> None:
    tokens[at] = rng.choice(tokens)


def _mark(tokens: list[str], at: int, rng: random.Random) -> None:
    tokens[at] = rng.choice((rng.choice(_MARKS), f"{rng.choice(_MARKS)}{tokens[at]}"))


def _insert(tokens: list[str], at: int, rng: random.Random) -> None:
    tokens[at] = rng.choice(_WHOLE) + tokens[at]


def _matching(
    pattern: re.Pattern[str], replacement: Callable[[str, list[str], random.Random], str]
):
    """Damage to a token that matches."""

    def damage(text: str, rng: random.Random) -> str:
        tokens = _tokens(text)
        places = [n for n, token in enumerate(tokens) if pattern.fullmatch(token)]
        if places:
            at = rng.choice(places)
            others = [tokens[n] for n in places]
            tokens[at] = replacement(tokens[at], others, rng)
        return "".join(tokens)

    return damage


def _part(token: str, others: list[str], rng: random.Random) -> str:
    """An opcode with a part changed, added or left out."""
    parts = token.split(".")
    at = rng.randrange(1, len(parts))
    what = rng.randrange(3)
    if what == 0:
        parts[at] = rng.choice(_PARTS)
    elif what == 1:
        parts.insert(at, rng.choice(_PARTS))
    else:
        del parts[at]
    return ".".join(parts)


def _lines(change: Callable[[list[str], int, random.Random], None]) -> Any:
    """Damage to statements."""

    def damage(text: str, rng: random.Random) -> str:
        statements = text.split(";")
        change(statements, rng.randrange(len(statements)), rng)
        return ";".join(statements)

    return damage


def _move(statements: list[str], at: int, rng: random.Random) -> None:
    statements.insert(rng.randrange(len(statements)), statements.pop(at))


def _copy(statements: list[str], at: int, rng: random.Random) -> None:
    statements.insert(rng.randrange(len(statements)), statements[at])


def _stranger(statements: list[str], at: int, rng: random.Random) -> None:
    """A statement of another sample."""
    theirs = rng.choice(samples()).ptx.split(";")
    statements[at] = f"\n{rng.choice(theirs)}"


def _without(statements: list[str], at: int, rng: random.Random) -> None:
    del statements[at]


def _guarded(statements: list[str], at: int, rng: random.Random) -> None:
    statements[at] = f"\n{rng.choice(('@p0', '@!p0', '@p1', '@%p1'))} {statements[at].strip()}"


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


_DAMAGE: tuple[Callable[[str, random.Random], str], ...] = (
    *map(_at_token, (_drop, _drop, _repeat, _other, _mark, _insert)),
    *[_matching(_OPCODE, _part)] * 5,
    _matching(_OPCODE, lambda _, others, rng: rng.choice(others)),
    *[_matching(re.compile(r"\d\w*"), lambda _, __, rng: rng.choice(_NUMBERS))] * 3,
    *[_matching(_REGISTER, lambda _, others, rng: rng.choice(others))] * 3,
    _matching(_REGISTER, lambda _, __, rng: rng.choice(_NUMBERS)),
    *map(_lines, (_move, _copy, _stranger, _stranger, _without, _guarded)),
    _cut,
)
