"""The instruction table: which emitter handles a mnemonic, and what generated code may call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..ptx.ast import Instruction
from ..ptx.emit import Emitter
from ..ptx.errors import PtxError

Emit = Callable[[Emitter, Instruction], None]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Entry:
    """How one mnemonic is translated.

    Attributes:
      emit: writes its code.
      boundary: it begins a segment, because it may block or because other warps may run between
        it and what precedes it.
      modifiers: the allowed further parts of the opcode; None allows any, and the emitter checks.
      types: what its last part may be; None leaves that to the emitter.
      needs: modifiers that it cannot be without.
    """

    emit: Emit
    boundary: bool
    modifiers: frozenset[str] | None
    types: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()


TABLE: dict[tuple[str, ...], Entry] = {}
RUNTIME: dict[str, Any] = {}
_CACHE: dict[str, Entry] = {}  # entries by the whole opcode, of those asked for

_LONGEST_KEY = 6
COMMON_TYPES = frozenset(
    "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64 f32x2 "
    "pred".split()
)


INTEGERS = "u16 u32 u64 s16 s32 s64"
FLOATS = "f16 f16x2 bf16 bf16x2 f32 f64"


def instruction(
    *mnemonics: str,
    modifiers: str | None = None,
    types: str | None = None,
    needs: str = "",
    boundary: bool = False,
) -> Callable[[Emit], Emit]:
    """Register an emitter for mnemonics such as `add` or `mbarrier.try_wait`.

    Args:
      modifiers: space-separated opcode parts that may follow; None for any.
      types: space-separated last parts; any type when None.
      needs: space-separated opcode parts that have to follow, in any order.
      boundary: see `Entry`.
    """
    last = None if types is None else tuple(types.split())
    required = tuple(needs.split())
    allowed = None
    if modifiers is not None:
        allowed = frozenset((*modifiers.split(), *required)) | COMMON_TYPES

    def register(emit: Emit) -> Emit:
        for mnemonic in mnemonics:
            key = tuple(mnemonic.split("."))
            assert key not in TABLE, f"{mnemonic} is registered twice"
            TABLE[key] = Entry(emit, boundary, allowed, last, required)
        return emit

    return register


def runtime(function: _F) -> _F:
    """Make a function callable from generated code under its own name."""
    name = function.__name__
    assert name not in RUNTIME, f"{name} is registered twice"
    RUNTIME[name] = function
    return function


def find(text: str, instruction_: Instruction) -> Entry:
    """The table entry of an instruction: that of its longest registered mnemonic.

    Raises:
      PtxError: no entry, or a modifier that the entry does not know.
    """
    entry = _CACHE.get(instruction_.opcode)
    if entry is None:
        entry = _CACHE[instruction_.opcode] = _search(text, instruction_)
    return entry


def _search(text: str, instruction_: Instruction) -> Entry:
    parts, spelled = instruction_.parts, tuple(instruction_.opcode.split("."))
    for length in range(min(_LONGEST_KEY, len(parts)), 0, -1):
        entry = TABLE.get(parts[:length])
        if entry is None or parts[:length] != spelled[:length]:
            continue
        if entry.modifiers is not None:
            for part in parts[length:]:
                if part not in entry.modifiers and part not in (entry.types or ()):
                    raise _unknown(text, instruction_, f"modifier '.{part}' of")
        for part in entry.needs:
            if part not in parts[length:]:
                raise PtxError.at(text, instruction_.line, f"'{instruction_.opcode}' needs .{part}")
        if entry.types is not None and parts[-1] not in entry.types:
            allowed = ", ".join(f".{name}" for name in entry.types)
            raise PtxError.at(
                text, instruction_.line, f"the type of '{instruction_.opcode}' must be {allowed}"
            )
        return entry
    raise _unknown(text, instruction_, "instruction")


def _unknown(text: str, instruction_: Instruction, what: str) -> PtxError:
    return PtxError.at(text, instruction_.line, f"unknown {what} '{instruction_.opcode}'")
