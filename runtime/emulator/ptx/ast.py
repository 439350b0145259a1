"""The parts of a parsed PTX module: registers, symbols, operands, instructions, kernels."""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Literal

from .lines import SourceLines
from .opcodes import SPACES

REGISTER_BITS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64, 128)},
    "f16": 16,
    "f16x2": 32,
    "bf16": 16,
    "bf16x2": 32,
    "f32": 32,
    "f64": 64,
}

Space = Literal["global", "const", "shared", "local", "param"]


@dataclass(slots=True, eq=False)
class Register:
    """A virtual register: `index` numbers the registers of one kernel over all scopes."""

    name: str
    type: str
    index: int

    @property
    def bits(self) -> int:
        """Width in bits; 1 for a predicate."""
        return REGISTER_BITS[self.type]


@dataclass(slots=True, eq=False)
class Variable:
    """A named piece of memory. Shared, local and param addresses are set when it is laid out.

    Attributes:
      count: number of elements; 0 for an array of unknown length (`.extern .shared x[]`).
      initial: element values in order, shorter than `count` when the rest is zero; a str is the
        name of what it is the address of.
      address: byte offset in its space, or -1 before layout.
      line: 1-based line of the PTX text where it is declared.
    """

    name: str
    space: Space
    element: str
    element_bytes: int
    count: int
    alignment_bytes: int
    is_array: bool
    is_extern: bool = False
    initial: tuple[int | float | str, ...] = ()
    address: int = -1
    line: int = 0

    @property
    def key(self) -> str:
        """Its name among those of all scopes."""
        return f"{self.name}:{self.line}"

    @property
    def byte_count(self) -> int:
        """Bytes that it occupies."""
        return self.element_bytes * self.count


@dataclass(slots=True, eq=False)
class Label:
    """A place in the instruction list; `position` is the index of the instruction after it."""

    name: str
    position: int = -1


@dataclass(frozen=True, slots=True)
class Imm:
    """A number. `bits` is the IEEE pattern of a float written in hex form, with its width."""

    value: int | float
    float_bits: int = 0
    float_width: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register or a predefined constant, such as `%tid.x` or `WARP_SZ`."""

    name: str


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a variable plus a byte offset."""

    variable: Variable
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """A branch target."""

    label: Label


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier that names no register, variable or label: a function or a sink."""

    name: str


@dataclass(frozen=True, slots=True)
class Not:
    """A negated predicate operand, `!%p`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Vec:
    """Operands in braces."""

    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations, `%r|%p`."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Mem:
    """An address in brackets: `[base+offset]`, for tensor copies `[map, {coordinates}]`."""

    base: "Operand"
    offset: int = 0
    coordinates: Vec | None = None


Operand = Register | Imm | Special | Sym | Target | Name | Not | Vec | Pair | Mem


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction.

    Attributes:
      line: 1-based line of the PTX text.
      opcode: its spelling in full.
      parts: the opcode split at single dots, types last: `("mbarrier", "try_wait",
        "parity", "shared::cta", "b64")`.
      guard: the predicate register of `@p` or `@!p`, or None.
      guard_negated: True for `@!p`.
      used_bytes: for a load, a bit for each byte that is used, from the pragma before it; None:
        all.
      uses: bits of the registers that it writes and reads, once `flow` has found them.
    """

    line: int
    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None = None
    guard_negated: bool = False
    used_bytes: int | None = None
    uses: tuple[int, int] | None = None

    def has(self, *modifiers: str) -> bool:
        """Whether one of the modifiers is part of the opcode."""
        return any(modifier in self.parts for modifier in modifiers)

    def first_of(self, modifiers: Container[str]) -> str:
        """The first part that is one of the modifiers, or an empty string."""
        return next((part for part in self.parts[1:] if part in modifiers), "")

    @property
    def spaces(self) -> tuple[str, ...]:
        """The state spaces in the opcode, in order."""
        return tuple(part for part in self.parts[1:] if part in SPACES)

    @property
    def type(self) -> str:
        """The last part, which names the type in almost all instructions."""
        return self.parts[-1]


@dataclass(slots=True, eq=False)
class Kernel:
    """One `.entry`, or one `.func`; behind `link`, an entry with the functions that it calls.

    Attributes:
      results: parameters that a function returns.
      has_register_params: a function has parameters that are registers.
      calls: by position, of a linked kernel; a `CallSite` each.
      ends: positions where functions return, of a linked kernel.
      frame_bytes: of local memory, of a function that is linked.
      named: variables that its operands name.
      functions: other names in its operands, those of functions that it calls among them.
      instructions: in text order; labels point into it.
      branch_tables: label lists of `.branchtargets`, by name.
      directives: performance directives with their numbers, such as {"reqntid": (512, 1, 1)}.
    """

    name: str
    line: int
    is_entry: bool
    params: list[Variable] = field(default_factory=list[Variable])
    results: list[Variable] = field(default_factory=list[Variable])
    has_register_params: bool = False
    calls: dict[int, Any] = field(default_factory=dict[int, Any])
    ends: set[int] = field(default_factory=set[int])
    frame_bytes: int = 0
    registers: list[Register] = field(default_factory=list[Register])
    variables: list[Variable] = field(default_factory=list[Variable])
    named: set[Variable] = field(default_factory=set[Variable])
    functions: set[str] = field(default_factory=set[str])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    branch_tables: dict[str, tuple[Label, ...]] = field(
        default_factory=dict[str, tuple[Label, ...]]
    )
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@dataclass(slots=True, eq=False)
class Module:
    """A parsed PTX text."""

    text: str
    version: str
    target: str
    variables: list[Variable]
    kernels: dict[str, Kernel]
    lines: SourceLines = field(default_factory=SourceLines)
