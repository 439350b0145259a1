"""The writer of one segment's Python function: operands in, lane expressions out.

The instruction families in `isa/` use it to say what an instruction does; it takes care of
storage kinds, immediates, guards (`@p`) and the lanes that are not active.

A generated function has the form `def seg(s, R)`: `s` is the context that runs, `R` its warp's
registers by index. It returns the next segment, BLOCKED when the context has to wait and will come
back to the same segment, or FINISHED.
"""

from collections.abc import Container, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from .ast import (
    Imm,
    Instruction,
    Mem,
    Name,
    Not,
    Operand,
    Pair,
    Register,
    Special,
    Sym,
    Vec,
)
from .errors import PtxError
from .kinds import KINDS, TYPE_KINDS, constant
from .normal import is_normal

CLOCKS = frozenset(("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo"))
_SCALARS = (
    "laneid lanemask_eq lanemask_lt lanemask_le lanemask_gt lanemask_ge warpid nwarpid smid "
    "nsmid gridid cluster_ctarank cluster_nctarank is_explicit_cluster dynamic_smem_size "
    "total_smem_size envreg1 envreg2"
).split()
_VECTORS = "tid ntid ctaid nctaid cluster_ctaid cluster_nctaid clusterid nclusterid".split()
SPECIALS = frozenset(
    (
        *(f"%{name}" for name in _SCALARS),
        *(f"%{name}.{axis}" for name in _VECTORS for axis in "xyz"),
    )
)
BLOCKED = -1
FINISHED = -2


class Emitter:
    """Collects the lines of one generated function.

    Attributes:
      masked: the function runs with some lanes inactive (`m` is the bool[32] of active ones).
      storage: the kind in which each register is kept.
      normal: bits of the registers that never hold a subnormal float32.
      namespace: globals of the generated code; constants are added to it.
      lines, ptx_lines: the body and, for each of its lines, the PTX line that it came from.
      may_block: the current instruction begins the segment, so that it may return BLOCKED.
      k: expression for the active lanes of the current effect: "None" for all 32, or a name.
    """

    def __init__(
        self,
        text: str,
        storage: list[str],
        normal: int,
        namespace: dict[str, Any],
        masked: bool,
    ):
        self.text = text
        self.storage = storage
        self.normal = normal
        self.namespace = namespace
        self.masked = masked
        self.lines: list[str] = []
        self.ptx_lines: list[int] = []
        self.k = "None"
        self.may_block = False
        self._select = ""
        self._indent = "    "
        self._temporaries = 0
        self._instruction: Instruction | None = None
        if masked:
            self.line("m = s.lanes")

    # ---- statements

    def error(self, message: str) -> PtxError:
        """A PtxError that quotes the current instruction."""
        return PtxError.at(self.text, self.line_number, message)

    @property
    def line_number(self) -> int:
        """PTX line of the current instruction."""
        return self._instruction.line if self._instruction else 0

    def line(self, statement: str) -> None:
        """Add a statement."""
        assert self.may_block or f"return {BLOCKED}" not in statement, self._instruction
        self.lines.append(self._indent + statement)
        self.ptx_lines.append(self.line_number)

    def temp(self) -> str:
        """A fresh local name."""
        self._temporaries += 1
        return f"t{self._temporaries}"

    def hold(self, expression: str) -> str:
        """Evaluate once: a local name for the expression."""
        name = self.temp()
        self.line(f"{name} = {expression}")
        return name

    @contextmanager
    def instruction(self, instruction: Instruction) -> Generator[None]:
        """Everything emitted inside belongs to this instruction."""
        self._instruction = instruction
        guard = instruction.guard
        self.k = self._select = "m" if self.masked else "None"
        if self._select == "None":
            self._select = ""
        if guard is not None:
            self._emit_guard(instruction)
            self._select = self.k = "g"
        yield
        self._select, self.k = "", "None"

    def _emit_guard(self, instruction: Instruction) -> None:
        """Compute the lanes whose guard holds, as the local `g`."""
        assert instruction.guard is not None
        value = f"R[{instruction.guard.index}]"
        if instruction.guard_negated:
            value = f"~{value}"
        self.line(f"g = m & {value}" if self.masked else f"g = {value}")

    def refresh_active(self) -> None:
        """Read the context's lanes again, after an instruction at which lanes may have joined."""
        if self.masked:
            self.line("m = s.lanes")
            if self._instruction is not None and self._instruction.guard is not None:
                self._emit_guard(self._instruction)

    @contextmanager
    def effect(self) -> Generator[None]:
        """A block that runs only when some lane is active; `self.k` names the active lanes."""
        if self.k == "g":
            self.line("if any_lane(g):")
            before = self._indent
            self._indent += "    "
            yield
            self._indent = before
        else:
            yield

    # ---- operands

    def const(self, value: int | float, kind: str, bits: int = 0, width: int = 0) -> str:
        """The name of a lane constant."""
        name = f"C_{kind}_{value!r}_{bits}_{width}"
        name = "".join(c if c.isalnum() else "_" for c in name.replace("-", "n"))
        if name not in self.namespace:
            self.namespace[name] = constant(value, kind, bits, width)
        return name

    def bind(self, prefix: str, value: object) -> str:
        """A new global name for a value that belongs to one instruction."""
        name = f"{prefix}_{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def src(self, operand: Operand, kind: str) -> str:
        """An expression for a source operand as lanes of `kind`."""
        if isinstance(operand, Register):
            value = f"R[{operand.index}]"
            storage = self.storage[operand.index]
            return self._as(value, storage, kind)
        if isinstance(operand, Imm):
            return self.const(operand.value, kind, operand.float_bits, operand.float_width)
        if isinstance(operand, Not):
            if kind != "pred":
                raise self.error(f"a negated predicate where {kind} is needed")
            return f"(~R[{operand.register.index}])"
        if isinstance(operand, Special):
            return self.special(operand.name, kind)
        if isinstance(operand, Sym):
            return self._as(self.symbol(operand, KINDS[kind][1]), f"u{8 * KINDS[kind][1]}", kind)
        if isinstance(operand, Vec):
            return self._packed(operand, kind)
        raise self.error(f"cannot read the operand {_spell(operand)}")

    def flushed(self, operand: Operand, kind: str) -> str:
        """As `src` of kind f32 or pair, with zeros for subnormal numbers (`.ftz`)."""
        value = self.src(operand, kind)
        return value if is_normal(operand, self.normal) else f"flush({value})"

    def special(self, name: str, kind: str) -> str:
        """A special register, converted to the width asked for."""
        if name == "WARP_SZ":
            return self.const(32, kind)
        if name not in SPECIALS and name not in CLOCKS:
            raise self.error(f"unknown special register '{name}'")
        dtype = KINDS[kind][0].__name__
        if kind == "pred":
            return f"special(s, {name!r}).astype(bool)"
        return f"special(s, {name!r}).astype({dtype}, copy=False)"

    def symbol(self, operand: Sym, byte_count: int) -> str:
        """The address of a variable in its own space as unsigned lanes."""
        variable = operand.variable
        dtype = "uint64" if byte_count == 8 else "uint32"
        if byte_count not in (4, 8):
            raise self.error(f"an address needs a 32- or 64-bit register, got {8 * byte_count} bit")
        if variable.space not in ("shared", "local") and byte_count == 4:
            raise self.error(f"the address of '{variable.name}' needs a 64-bit register")
        if variable.space in ("shared", "local", "param"):
            place = (variable.address + operand.offset) % (1 << 8 * byte_count)
            return f"symbol_{variable.space}(s, {place}, {dtype})"
        return f"symbol_global(s, {variable.key!r}, {operand.offset}, {dtype})"

    def _packed(self, operand: Vec, kind: str) -> str:
        items = operand.items
        width = KINDS[kind][1] * 8 // len(items)
        if kind in ("pair", "u64", "s64") and len(items) == 2:
            half = "f32" if kind == "pair" else "u32"
            low, high = (self.src(item, half) for item in items)
            if kind == "pair":
                return f"pack_pair({low}, {high})"
            return f"pack_words({low}, {high})" + (".view(int64)" if kind == "s64" else "")
        part = f"u{width}"
        if part not in KINDS:
            raise self.error(f"cannot pack {len(items)} operands into {kind}")
        values = ", ".join(self.src(item, part) for item in items)
        packed = f"pack_many({part!r}, {values})"
        return self._as(packed, f"u{8 * KINDS[kind][1]}", kind)

    def _as(self, value: str, have: str, want: str) -> str:
        if have == want:
            return value
        if "pred" in (have, want) or "u128" in (have, want):
            raise self.error(f"a {have} operand where {want} is needed")
        have_bytes, want_bytes = KINDS[have][1], KINDS[want][1]
        if have == "pair":
            value, have = f"pair_to_bits({value})", "u64"
        if want == "pair" and have_bytes == 8:
            return f"bits_to_pair({value}.view(uint64))"
        if want_bytes < have_bytes and want_bytes in (1, 2, 4, 8):
            raw = f"{value}.view(uint{8 * have_bytes})" if have[0] != "u" else value
            narrow = f"{raw}.astype(uint{8 * want_bytes})"
            return narrow if want[0] == "u" else f"{narrow}.view({KINDS[want][0].__name__})"
        if have_bytes != want_bytes:
            raise self.error(f"a {8 * have_bytes}-bit operand where {want} is needed")
        if have == want:
            return value
        return f"{value}.view({KINDS[want][0].__name__})"

    def address(self, operand: Operand, wide: bool) -> str:
        """The address of a `[...]` operand: uint64 lanes when wide, uint32 otherwise."""
        if not isinstance(operand, Mem):
            raise self.error(f"expected an address in brackets, got {_spell(operand)}")
        kind = "u64" if wide else "u32"
        base = operand.base
        if isinstance(base, Register) and base.bits == 32 and wide:
            value = f"{self.src(base, 'u32')}.astype(uint64)"
        elif isinstance(base, Imm):
            return self.const(int(base.value) + operand.offset, kind)
        elif isinstance(base, Sym):
            return self.src(Sym(base.variable, base.offset + operand.offset), kind)
        else:
            value = self.src(base, kind)
        if operand.offset:
            return f"({value} + {self.const(operand.offset, kind)})"
        return value

    def words(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The 32-bit registers that an operand in braces (or one alone) lists.

        Raises:
          PtxError: they are not `count` registers of 32 bits.
        """
        items = operand.items if isinstance(operand, Vec) else (operand,)
        for item in items:
            if not isinstance(item, Imm) and not (isinstance(item, Register) and item.bits == 32):
                raise self.error(f"expected 32-bit registers, got {_spell(item)}")
        if len(items) != count:
            raise self.error(f"expected {count} registers, got {len(items)}")
        return items

    # ---- results

    def dst(self, operand: Operand, kind: str, expression: str) -> None:
        """Assign lanes of `kind` to a destination; inactive lanes keep their value."""
        if isinstance(operand, Name) and operand.name == "_":
            return
        if isinstance(operand, Pair):
            raise self.error("this instruction has one destination")
        if isinstance(operand, Vec):
            self._unpack(operand, kind, expression)
            return
        if not isinstance(operand, Register):
            raise self.error(f"cannot write the operand {_spell(operand)}")
        storage = self.storage[operand.index]
        value = self._store_as(expression, kind, storage)
        target = f"R[{operand.index}]"
        if self._select:
            self.line(f"{target} = where({self._select}, {value}, {target})")
        else:
            self.line(f"{target} = {value}")

    def _store_as(self, expression: str, kind: str, storage: str) -> str:
        if kind == storage:
            return expression
        if "pred" in (kind, storage):
            raise self.error(f"a {kind} result in a {storage} register")
        have, want = KINDS[kind][1], KINDS[storage][1]
        if kind == "pair":
            expression, kind = f"pair_to_bits({expression})", "u64"
        if have < want and want <= 8:
            if kind[0] == "f":
                expression, kind = f"({expression}).view(uint{8 * have})", f"u{8 * have}"
            if kind[0] == "s":
                wide = f"({expression}).astype(int{8 * want}).view(uint{8 * want})"
            else:
                wide = f"({expression}).astype(uint{8 * want})"
            return self._store_as(wide, f"u{8 * want}", storage)
        if have != want:
            raise self.error(f"a {8 * have}-bit result in a {8 * want}-bit register")
        if kind == storage:
            return expression
        if storage == "pair":
            return f"bits_to_pair(({expression}).view(uint64))"
        return f"({expression}).view({KINDS[storage][0].__name__})"

    def rows(self, operands: Iterable[Operand], kind: str, expression: str) -> None:
        """Assign the rows of an array of lanes of `kind` to destinations."""
        value = self.hold(expression)
        for position, operand in enumerate(operands):
            self.dst(operand, kind, f"{value}[{position}]")

    def _unpack(self, operand: Vec, kind: str, expression: str) -> None:
        count = len(operand.items)
        if kind == "pair" and count == 2:
            self.rows(operand.items, "f32", expression)
            return
        part = f"u{8 * KINDS[kind][1] // count}"
        if part not in KINDS:
            raise self.error(f"cannot unpack {kind} into {count} operands")
        value, dtype = self.hold(expression), KINDS[part][0].__name__
        self.rows(operand.items, part, f"unpack_many({value}, {dtype}, {count})")

    def modifier(self, instruction: Instruction, modifiers: str) -> str:
        """The one of some modifiers, given in words, that the opcode has.

        Raises:
          PtxError: it has none of them.
        """
        name = instruction.first_of(modifiers.split())
        if not name:
            allowed = ", ".join(f".{word}" for word in modifiers.split())
            raise self.error(f"'{instruction.opcode}' needs one of {allowed}")
        return name

    def check_modifiers(
        self, instruction: Instruction, parts: Iterable[str], allowed: Container[str]
    ) -> None:
        """Refuses opcode parts that are not allowed.

        Raises:
          PtxError: naming the first one.
        """
        for part in parts:
            if part not in allowed:
                raise self.error(f"unknown modifier '.{part}' of '{instruction.opcode}'")

    def immediate(self, operand: Operand, what: str) -> int:
        """The value of an operand that must be an immediate integer.

        Raises:
          PtxError: it is not; `what` names it.
        """
        if not isinstance(operand, Imm) or not isinstance(operand.value, int):
            raise self.error(f"{what} must be an immediate integer")
        return operand.value

    def kind_of(self, ptx_type: str) -> str:
        """The lane kind of a PTX type.

        Raises:
          PtxError: the type is not known.
        """
        kind = TYPE_KINDS.get(ptx_type)
        if kind is None:
            raise self.error(f"unknown type '.{ptx_type}'")
        return kind

    def is_sink(self, operand: Operand) -> bool:
        """Whether a destination is `_`."""
        return isinstance(operand, Name) and operand.name == "_"


def _spell(operand: Operand) -> str:
    if isinstance(operand, Register):
        return f"'{operand.name}' of type .{operand.type}"
    return f"'{operand.name}'" if isinstance(operand, Name | Special) else type(operand).__name__
