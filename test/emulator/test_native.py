"""Native blocks against the Python that they replace: the same bits, NaN payloads included."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_mlir.runtime.emulator.isa import families
from attn_mlir.runtime.emulator.isa.registry import RUNTIME
from attn_mlir.runtime.emulator.native import Weaver, machine
from attn_mlir.runtime.emulator.native.machine import _read_object, _write_object
from attn_mlir.runtime.emulator.ptx.kinds import KINDS, constant
from attn_mlir.validation.differential import chains, ops, warps
from attn_mlir.validation.differential.emulate import run

pytestmark = pytest.mark.skipif(machine() is None, reason="there is no native machine here")

assert families.TABLE
ROUNDS = 12
# float32: zeros, ones, smallest and largest subnormal and normal numbers, infinities, quiet and signalling NaN.
_SPECIAL_32 = np.array(
    "00000000 80000000 3f800000 bf800000 00000001 80000001 007fffff 807fffff 00800000 80800000 7f7fffff "
    "ff7fffff 7f800000 ff800000 7fc00000 ffc00000 7fc12345 ffd54321 7f812345 ff854321 7fffffff 7e800000 "
    "7f000000 34000000 b3800000 4b800001 5f000000 df000000".split()
)
SPECIAL = np.array([int(text, 16) for text in _SPECIAL_32], np.uint32)


def drawn(rng: np.random.Generator, storage: str) -> Any:
    """Lanes of random bits; half of the float32 are special values, some are near one another."""
    if storage == "pred":
        return rng.integers(0, 2, 32).astype(bool)
    dtype, byte_count = KINDS[storage]
    raw = rng.integers(0, 256, (32, byte_count), np.uint8)
    if storage in ("f32", "u32", "pair"):
        words = np.ascontiguousarray(raw).view(np.uint32).reshape(-1)
        special = rng.choice(SPECIAL, words.size)
        small = rng.integers(-40, 41, words.size).astype(np.float32).view(np.uint32)
        choice = rng.integers(0, 4, words.size)
        words = np.where(choice < 2, special, np.where(choice == 2, small, words))
        shape = (2, 32) if storage == "pair" else 32
        return np.ascontiguousarray(words.astype(np.uint32).reshape(shape)).view(dtype)
    if storage in ("u16", "u64"):
        unsigned = raw.view(dtype).reshape(32)
        small = rng.integers(0, 70, 32).astype(dtype)
        halves = rng.choice(np.array([0, 0x8000, 1, 0x7C00, 0x7F80, 0x7E01, 0xFC01, 0x7FFF]), 32)
        other = halves.astype(dtype) if storage == "u16" else np.negative(small)
        choice = rng.integers(0, 3, 32)
        return np.where(choice == 0, small, np.where(choice == 1, other, unsigned))
    return np.ascontiguousarray(raw).view(dtype).reshape(32)


def native_and_python(
    statement: str, storage: list[str], registers: list[Any], constants: dict[str, Any]
) -> tuple[list[Any], list[Any], bool]:
    """The registers after a statement, each way, and whether it was native."""
    namespace = {**RUNTIME, **constants}

    def compiled(lines: list[str], _: list[int], arguments: str) -> Callable[..., Any]:
        scope: dict[str, Any] = {}
        exec("\n".join([f"def segment(s, R{arguments}):", *lines]), namespace, scope)
        return scope["segment"]

    found = machine()
    assert found is not None
    lines = [f"    {part}" for part in statement.split("; ")]
    woven, _ = Weaver(found, storage, namespace, compiled).weave(lines, [1] * len(lines))
    results: list[list[Any]] = []
    for source in (woven, lines):
        mine = list(registers)
        with np.errstate(all="ignore"):
            compiled(source, [], "")(None, mine)
        results.append(mine)
    return results[0], results[1], len(woven) == 1 and woven[0].startswith("    if N_")


_FLOAT = ("f32", "pair")
_INTEGER = ("u16", "u32", "u64")
# (statement, storage of its registers): R[0] is the result.
STATEMENTS: list[tuple[str, list[str]]] = [
    *((f"R[0] = R[1] {op} R[2]", [k] * 3) for k in _FLOAT for op in "+-*/"),
    *((f"R[0] = {name}(R[1])", [k] * 2) for k in _FLOAT for name in ("flush", "abs", "-", "saturate", "relu")),
    *(("R[0] = fma_f32(R[1], R[2], R[3])", [k] * 4) for k in _FLOAT),
    *((f"R[0] = {name}_f32_mode(R[1], R[2], {mode!r})", [k] * 3)
      for k in _FLOAT for name in ("add", "mul") for mode in ("rz", "rm", "rp")),
    *((f"R[0] = fma_f32_mode(R[1], R[2], R[3], {mode!r})", [k] * 4) for k in _FLOAT for mode in ("rz", "rm", "rp")),
    *((f"R[0] = {name}_f32(R[1])", ["f32"] * 2)
      for name in ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt")),
    ("R[0] = divide_approximately(R[1], R[2])", ["f32"] * 3),
    ("R[0] = max_f32(R[1], R[2])", ["f32"] * 3),
    ("R[0] = max_f32(R[1], R[2], R[3])", ["f32"] * 4),
    *((f"R[0] = minmax_f32({op!r}, ({nan}, False, False), R[1], R[2])", ["f32"] * 3)
      for op in ("min", "max") for nan in (False, True)),
    *((f"R[0] = (R[1] {op} R[2])", ["pred", k, k])
      for k in ("f32", *_INTEGER) for op in ("==", "!=", "<", "<=", ">", ">=")),
    *((f"R[0] = (R[1].view(int{k[1:]}) {op} R[2].view(int{k[1:]}))", ["pred", k, k])
      for k in _INTEGER for op in ("<", "<=", ">", ">=")),
    *((f"R[0] = R[1] {op} R[2]", [k] * 3)
      for k in _INTEGER for op in ("+", "-", "*", "&", "|", "^", "<<", ">>")),
    *((f"R[0] = (R[1].view(int{k[1:]}) >> R[2].view(int{k[1:]})).view(uint{k[1:]})", [k] * 3) for k in _INTEGER),
    *((f"R[0] = {name}(R[1], R[2])", [k] * 3) for k in _INTEGER for name in ("minimum", "maximum")),
    *((f"R[0] = ({name}(R[1].view(int32), R[2].view(int32))).view(uint32)", ["u32"] * 3)
      for name in ("minimum", "maximum")),
    *((f"R[0] = (abs(R[1].view(int{k[1:]}))).view(uint{k[1:]})", [k] * 2) for k in _INTEGER),
    *((f"R[0] = {op}R[1]", [k] * 2) for k in _INTEGER for op in "~-"),
    *((f"R[0] = {name}(R[1], R[2])", [k, k, "u32"])
      for k in ("u32", "u64") for name in ("shift_left", "shift_right")),
    *(("R[0] = where(R[1], R[2], R[3])", [k, "pred", k, k])
      for k in ("pred", "u16", "u32", "f32", "u64", "pair")),
    *((f"R[0] = R[1] {op} R[2]", ["pred"] * 3) for op in "&|^"),
    ("R[0] = ~R[1]", ["pred"] * 2),
    *((f"R[0] = R[1].astype(uint{b})", [f"u{b}", f"u{a}"]) for a in (16, 32, 64) for b in (16, 32, 64) if a != b),
    ("R[0] = (R[1].view(int32).astype(int64)).view(uint64)", ["u64", "u32"]),
    ("R[0] = (R[1] == R[2]).astype(uint32)", ["u32", "u32", "u32"]),
    *((f"R[0] = divide(R[1], R[2], {rest})", ["u32"] * 3) for rest in (False, True)),
    *((f"R[0] = (divide(R[1].view(int32), R[2].view(int32), {rest})).view(uint32)", ["u32"] * 3)
      for rest in (False, True)),
    ("R[0] = mul_high_64(R[1], R[2], False)", ["u64"] * 3),
    ("R[0] = (mul_high_64(R[1].view(int64), R[2].view(int64), True)).view(uint64)", ["u64"] * 3),
    ("R[0] = permute_bytes(R[1], R[2], R[3])", ["u32"] * 4),
    ("R[0] = pack_pair(R[1], R[2])", ["pair", "f32", "f32"]),
    ("t1 = R[2]; R[0] = t1[0]; R[1] = t1[1]", ["f32", "f32", "pair"]),
    ("R[0] = pair_to_bits(R[1])", ["u64", "pair"]),
    ("R[0] = bits_to_pair(R[1])", ["pair", "u64"]),
    ("R[0] = pack_words(R[1], R[2])", ["u64", "u32", "u32"]),
    ("R[0] = pack_many('u16', R[1], R[2])", ["u32", "u16", "u16"]),
    ("t1 = unpack_many(R[2], uint32, 2); R[0] = t1[0]; R[1] = t1[1]", ["u32", "u32", "u64"]),
    ("t1 = unpack_many(R[2], uint16, 2); R[0] = t1[0]; R[1] = t1[1]", ["u16", "u16", "u32"]),
    *((f"R[0] = integer_to_float(R[1].view(int{k[1:]}), 'f32', 'rn')", ["f32", k]) for k in ("u16", "u32")),
    *(("R[0] = integer_to_float(R[1], 'f32', 'rn')", ["f32", k]) for k in ("u16", "u32")),
    *((f"R[0] = float_to_float(flush_wide(widen(R[1], {name!r})), 'f32', 'rn')", ["f32", "u16"])
      for name in ("f16", "bf16")),
    *((f"R[0] = pack_halves(R[1], R[2], {bf16}, 'rn', ({relu}, False))", ["u32", "f32", "f32"])
      for bf16 in (False, True) for relu in (False, True)),
    ("R[0] = (R[1].view(uint32)[SHFL_x[0]]).view(float32)", ["f32", "f32"]),
    ("R[0] = R[1] + C_u32_n3", ["u32", "u32"]),
    ("R[0] = where(R[1], R[2] + R[3], R[0])", ["u32", "pred", "u32", "u32"]),
]  # fmt: skip


def pairs_of_special(storage: list[str]) -> Iterator[list[Any]]:
    """Registers whose second and third hold every pair of special values, one after the other."""
    first, second = (part.ravel() for part in np.meshgrid(SPECIAL, SPECIAL))
    count = 64 if storage[1] == "pair" else 32
    shape = (2, 32) if storage[1] == "pair" else 32
    rng = np.random.default_rng(5)
    for start in range(0, first.size, count):
        places = np.arange(start, start + count) % first.size
        registers = [drawn(rng, kind) for kind in storage]
        registers[1] = first[places].view(np.float32).reshape(shape)
        registers[2] = second[places].view(np.float32).reshape(shape)
        yield registers


@pytest.mark.parametrize(("statement", "storage"), STATEMENTS)
def test_statements(statement: str, storage: list[str]) -> None:
    """Every kind of statement, on drawn operands; floating-point ones on all pairs of special values."""
    rng = np.random.default_rng(zlib.crc32(statement.encode()))
    shuffled = rng.permutation(32)
    constants = {"SHFL_x": (shuffled, None), "C_u32_n3": constant(-3, "u32")}
    operands = [[drawn(rng, kind) for kind in storage] for _ in range(ROUNDS)]
    if len(storage) > 2 and storage[1] == storage[2] and storage[1] in _FLOAT:
        operands += pairs_of_special(storage)
    for registers in operands:
        got, want, is_native = native_and_python(statement, storage, registers, constants)
        assert is_native
        for index, (a, b) in enumerate(zip(got, want, strict=True)):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes(), (index, registers)


CHAINS = {
    "integer": ops.integer_ops,
    "float": ops.float_ops,
    "half": ops.half_ops,
    "convert": ops.convert_ops,
    "approximate": ops.approximate_ops,
}


@pytest.mark.parametrize("family", [*CHAINS, "warp", "control"])
def test_programs(family: str) -> None:
    """Kernels that use every mnemonic with every type and modifier leave the same bytes both ways."""
    if family in CHAINS:
        programs = chains.chains(family, CHAINS[family], 37, 1, 12)
    else:
        programs = (warps.collectives if family == "warp" else warps.control)(37, 20)
    for program in programs:
        got, want = run(program, native=True), run(program, native=False)
        for index, buffer in want.items():
            assert np.array_equal(got[index], buffer), program.ptx


def test_arrays_that_others_hold_do_not_change() -> None:
    """A result goes to a new array where somebody else has the register's."""
    held = np.arange(32, dtype=np.uint32)
    before = held.copy()
    registers = [held, np.full(32, 5, np.uint32)]
    got, want, is_native = native_and_python("R[0] = R[0] + R[1]", ["u32", "u32"], registers, {})
    assert is_native
    assert np.array_equal(held, before)
    assert np.array_equal(got[0], want[0])
    view = np.zeros((2, 32), np.uint32)
    got, _, _ = native_and_python("R[0] = R[1]", ["u32", "u32"], [view[0], registers[1]], {})
    assert not view.any() and got[0][3] == 5


def test_unexpected_operands_are_left_to_python() -> None:
    """Strided lanes, and lanes of another type, are what they are to Python."""
    strided = np.arange(64, dtype=np.uint32)[::2]
    for value in (strided, np.broadcast_to(np.uint32(7), 32)):
        registers = [np.zeros(32, np.uint32), value]
        got, want, _ = native_and_python("R[0] = R[1] + R[1]", ["u32", "u32"], registers, {})
        assert np.array_equal(got[0], want[0])
    with pytest.raises(TypeError):
        native_and_python("R[0] = R[1] + R[1]", ["u32", "u32"], [strided, None], {})


def test_a_local_of_python_stays_in_python() -> None:
    """A value that a later statement in Python needs is not hidden in a block."""
    statement = "t1 = R[1] + R[1]; R[2] = t1; R[0] = t1[::-1].copy()"
    registers = [np.zeros(32, np.uint32), np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)]
    got, want, _ = native_and_python(statement, ["u32"] * 3, registers, {})
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert got[0][0] == 62


def test_damaged_object_code_is_not_used(tmp_path: Path) -> None:
    """A cached file whose digest differs counts as none."""
    path = tmp_path / "emulator" / "code.o"
    _write_object(path, b"some object code")
    assert _read_object(path) == b"some object code"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert _read_object(path) is None
    assert _read_object(tmp_path / "none") is None
