"""Runs of statements of a segment as native blocks.

The statements of a segment are those that an `Emitter` writes. Neighbours that have a native form
become one block: a builtin function that reads the registers, executes them and puts the results
into the registers' arrays. A register's array is written in place only if nobody else holds it;
otherwise it gets a new one, as in Python.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ptx.kinds import KINDS
from . import driver, functions, operations
from .expressions import ROW_BYTES, Kind, Plan, parts_of, plan_of
from .machine import FRAME_BYTES, Machine

assert functions.FUNCTIONS
_INDENT = "    "
_PAIR = Kind("f32", 2)
_LOCAL = re.compile(r"\bt\d+\b")
_MOST_BYTES = FRAME_BYTES - 65536  # a statement takes far less
_DTYPE_KINDS = {np.dtype(dtype): name for name, (dtype, _) in KINDS.items() if name != "pair"}
_DTYPE_KINDS[np.dtype(np.uint64)], _DTYPE_KINDS[np.dtype(np.int64)] = "u64", "s64"
_DTYPE_KINDS[np.dtype(np.uint8)], _DTYPE_KINDS[np.dtype(np.float32)] = "u8", "f32"
_DTYPES = {name: id(np.dtype(dtype)) for name, (dtype, _) in KINDS.items()}
Compile = Callable[[list[str], list[int], str], Callable[..., Any]]


@dataclass(slots=True)
class _Block:
    """Statements that are executed together.

    Attributes:
      places: in the frame, of everything that the block works on, by name.
      locals: kinds of those that it defines.
      reads, writes: what it takes from outside, and the registers that it writes.
      unwritten: registers that it has only read so far.
      words: of its records, as 64-bit numbers.
      end: of the places in the frame.
    """

    statements: list[str] = field(default_factory=list[str])
    ptx_lines: list[int] = field(default_factory=list[int])
    places: dict[str, int] = field(default_factory=dict[str, int])
    locals: dict[str, Kind] = field(default_factory=dict[str, Kind])
    reads: list[str] = field(default_factory=list[str])
    writes: list[str] = field(default_factory=list[str])
    unwritten: set[str] = field(default_factory=set[str])
    words: list[int] = field(default_factory=list[int])
    end: int = operations.PLACES


class Slow:
    """A block in Python, for inputs that the native function does not take, such as one that is not
    there yet.

    Args:
      make: compiles the block's statements.
      constants: whose addresses the native function has; they live as long as this.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]], constants: list[npt.NDArray[Any]]):
        self._make = make
        self._constants = constants
        self._function: Callable[..., Any] | None = None

    def __call__(self, s: Any, registers: list[Any], *arguments: Any) -> None:
        """Executes the block."""
        if self._function is None:
            self._function = self._make()
        self._function(s, registers, *arguments)


class Weaver:
    """Replaces statements of one segment by calls of blocks.

    Args:
      storage: kinds of the registers.
      namespace: globals of the generated code; blocks are added to it.
      compile: makes a function `(s, R, arguments)` of statements, their PTX lines and argument
        names.
    """

    def __init__(
        self, machine: Machine, storage: list[str], namespace: dict[str, Any], compile: Compile
    ):
        self._machine = machine
        self._storage = storage
        self._namespace = namespace
        self._compile = compile
        self._kinds: dict[str, Kind | None] = {}

    def weave(self, lines: list[str], ptx_lines: list[int]) -> tuple[list[str], list[int]]:
        """The statements of a segment with native runs replaced, and the PTX line of each."""
        in_python: set[int] = set()
        while (blocks := self._blocks(lines, ptx_lines, in_python)) is None:
            pass
        result: list[str] = []
        numbers: list[int] = []
        at = 0
        while at < len(lines):
            block = blocks.get(at)
            numbers.append(ptx_lines[at])
            result.append(lines[at] if block is None else _INDENT + self._call(block))
            at += 1 if block is None else len(block.statements)
        return result, numbers

    # ---- which statements

    def _blocks(
        self, lines: list[str], ptx_lines: list[int], in_python: set[int]
    ) -> dict[int, _Block] | None:
        """The blocks by their first statement; None after adding to the statements that have to
        stay in Python.

        Those are the ones that define a local for another statement in Python.
        """
        blocks: dict[int, _Block] = {}
        definitions: dict[str, int] = {}
        block: _Block | None = None
        nothing = _Block()
        is_complete = True
        for at, line in enumerate(lines):
            if block is not None and block.end > _MOST_BYTES:
                block = None
            planned = None if at in in_python else self._plan(block or nothing, line)
            if planned is None:
                block = None
                for name in _LOCAL.findall(line):
                    if name in definitions:
                        in_python.add(definitions[name])
                        is_complete = False
                continue
            if block is None:
                block = blocks[at] = _Block()
            plan, names = planned
            self._add(block, plan, names)
            if names[0][0] == "t":
                definitions[names[0]] = at
            block.statements.append(line)
            block.ptx_lines.append(ptx_lines[at])
        return blocks if is_complete else None

    def _kind(self, name: str) -> Kind | None:
        """The kind of a register, a constant or lanes;
        None where there are no native operations.
        """
        letter = name[0]
        if letter == "R":
            storage = self._storage[int(name[2:-1])]
            kind = _PAIR if storage == "pair" else Kind(storage)
        elif letter in "mg":
            kind = Kind("pred")
        else:
            constant = self._constant(name)
            kind = Kind(_DTYPE_KINDS[constant.dtype], constant.ndim)
            if kind.rows != 1 and kind != _PAIR:
                return None
        return kind if kind.element in ROW_BYTES else None

    def _constant(self, name: str) -> npt.NDArray[Any]:
        value = self._namespace[name.partition("[")[0]]
        return value[0] if name.endswith("[0]") else value

    def _plan(self, block: _Block, line: str) -> tuple[Plan, list[str]] | None:
        """How to execute a statement in a block, and its operands; None if that needs Python."""
        if line[4] not in "Rt" or "(s," in line:
            return None
        texts, names = parts_of(line)
        if texts[0] != _INDENT or not texts[1].startswith(" = "):
            return None
        numbers = tuple(range(len(names)))
        if len(set(names)) != len(names):
            order = {name: number for number, name in enumerate(dict.fromkeys(names))}
            numbers, names = tuple(order[name] for name in names), list(order)
        cached = self._kinds
        kinds: list[Kind | None] = []
        for name in names:
            if name[0] == "t":
                base, row, _ = name.partition("[")
                kind = block.locals.get(base) if kinds else None
                if kind is None and kinds:
                    return None
                kinds.append(Kind(kind.element) if kind is not None and row else kind)
                continue
            if name not in cached:
                cached[name] = self._kind(name)
            kind = cached[name]
            if kind is None:
                return None
            kinds.append(kind)
        plan = plan_of(texts, numbers, tuple(kinds))
        return None if plan is None else (plan, names)

    def _add(self, block: _Block, plan: Plan, names: list[str]) -> None:
        """Appends a statement's operations to a block."""
        offsets = block.places
        places = [0]
        for name in names[1:]:
            place = offsets.get(name)
            if place is None:
                place = self._first_read(block, name)
            places.append(place)
        result = names[0]
        place = offsets.get(result)
        if place is None or result[0] == "t":
            place = offsets[result] = block.end
            block.end += _room(plan.kind)
            if result[0] == "t":
                block.locals[result] = plan.kind
            else:
                block.writes.append(result)
                if plan.reads_result:
                    block.reads.append(result)
        elif result in block.unwritten:
            block.unwritten.remove(result)
            block.writes.append(result)
        places[0] = place
        plan.record(block.words, places, block.end)
        block.end += plan.temporary_bytes

    def _first_read(self, block: _Block, name: str) -> int:
        """Where an operand lies that the block has not used before."""
        base, row, number = name.partition("[")
        if name[0] == "t" and row:
            element = block.locals[base].element
            place = block.places[base] + int(number[:-1]) * ROW_BYTES[element]
            block.places[name] = place
            return place
        kind = self._kinds[name]
        assert kind is not None
        place = block.places[name] = block.end
        block.end += _room(kind)
        block.reads.append(name)
        if name[0] == "R":
            block.unwritten.add(name)
        return place

    # ---- the native block

    def _call(self, block: _Block) -> str:
        """The statement that runs a block."""
        arguments = [name for name in block.reads if name in ("m", "g")]
        words = [0, 0, 0, 0, 0, 0]
        constants: list[npt.NDArray[Any]] = []
        for name in block.reads:
            kind = self._kinds[name]
            assert kind is not None
            source, index, extra = kind.rows, 0, _DTYPES[kind.element]
            if name[0] == "R":
                index = int(name[2:-1])
            elif name in arguments:
                source, index = driver.ARGUMENT, 1 + arguments.index(name)
            else:
                constants.append(self._constant(name))
                source, extra = driver.CONSTANT, constants[-1].ctypes.data
            size = ROW_BYTES[kind.element] * kind.rows
            words += (source & 0xFFFF_FFFF | index << 32, block.places[name] | size << 32, extra)
        for name in block.writes:
            kind = self._kinds.get(name) or self._kind(name)
            assert kind is not None
            size, index = ROW_BYTES[kind.element] * kind.rows, int(name[2:-1])
            place = block.places[name] | size << 32
            words += (kind.rows | index << 32, place, _DTYPES[kind.element])
        machine, number = self._machine, len(self._namespace)
        words[:6] = (
            machine.frame_address,
            id(np.ndarray),
            id(False),
            id(True),
            len(block.reads) | len(block.writes) << 32,
            len(block.words) // 3,
        )
        words += block.words
        data = struct.pack(f"<{len(words)}Q", *words)
        names = ", ".join(("", *arguments))

        def make() -> Callable[..., Any]:
            return self._compile(block.statements, block.ptx_lines, names)

        self._namespace[f"N_{number}"] = machine.builtin(data)
        self._namespace[f"S_{number}"] = Slow(make, constants)
        return f"if N_{number}(R{names}): S_{number}(s, R{names})"


def _room(kind: Kind) -> int:
    return -(-ROW_BYTES[kind.element] * kind.rows // 64) * 64
