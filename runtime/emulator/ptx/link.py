"""A kernel with the functions that it calls: one list of instructions, one set of registers.

Variables of the `.param` space in a function's body, and a function's own parameters and results,
lie in local memory: each call has a frame there behind its caller's. A function ends in one
instruction that all its `ret` branch to, where its lanes meet again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .ast import (
    Instruction,
    Kernel,
    Label,
    Mem,
    Module,
    Name,
    Not,
    Operand,
    Pair,
    Register,
    Sym,
    Target,
    Variable,
    Vec,
)

FRAME_ALIGNMENT = 16  # bytes, at least; the widest access of local memory
_PARAMS = ("param", "param::func")


@dataclass(slots=True, eq=False)
class CallSite:
    """A call.

    Attributes:
      callee: the function's name.
      start: position of its first instruction; -1 for one that is not in the module, or refused.
      after: position behind the call.
      caller_bytes: of the frame that calls, so that the next one begins behind it.
      frame_bytes: of the function's frame.
      registers: of the function, by index [first, end).
      arguments: (place in the caller's frame, place in the function's, bytes) of each.
      results: (place in the function's frame, place in the caller's, bytes) of each.
      refusal: why it cannot be made, or "".
    """

    callee: str
    start: int
    after: int
    caller_bytes: int
    frame_bytes: int = 0
    registers: tuple[int, int] = (0, 0)
    arguments: tuple[tuple[int, int, int], ...] = ()
    results: tuple[tuple[int, int, int], ...] = ()
    refusal: str = ""


def calls_of(kernel: Kernel) -> Iterable[Instruction]:
    """The calls in a function."""
    return (i for i in kernel.instructions if i.parts[0] == "call")


def linked(module: Module, kernel: Kernel) -> Kernel:
    """The kernel with all that it may call; the kernel itself when it calls nothing."""
    if not kernel.functions or not any(True for _ in calls_of(kernel)):
        return kernel
    return _Linker(module, kernel).link()


class _Linker:
    def __init__(self, module: Module, kernel: Kernel):
        self.module = module
        self.functions = [kernel]
        self.result = replace(
            kernel,
            registers=[],
            instructions=[],
            branch_tables={},
            calls={},
            ends=set(),
            named=set(kernel.named),
        )
        self.starts: dict[str, int] = {}
        self.registers: dict[str, tuple[int, int]] = {}
        self.sites: list[tuple[int, Kernel, Instruction]] = []

    def link(self) -> Kernel:
        for function in self.functions:  # grows while it runs
            _lay_out(function)
            self._append(function)
        self.result.frame_bytes = self.functions[0].frame_bytes
        for position, caller, call in self.sites:
            self.result.calls[position] = self._site(position, caller, call)
        return self.result

    def _append(self, function: Kernel) -> None:
        result, is_entry = self.result, function.is_entry
        shift = len(result.instructions)
        self.starts[function.name] = shift
        first = len(result.registers)
        mine = [Register(r.name, r.type, first + r.index) for r in function.registers]
        result.registers += mine
        self.registers[function.name] = (first, len(result.registers))
        positions: list[int] = []  # of the function's instructions, and of its end
        code: list[Instruction] = []
        for instruction in function.instructions:
            positions.append(shift + len(code))
            is_call = instruction.parts[0] == "call"
            if is_call and instruction.guard is not None:  # lanes whose guard is false go around it
                around = Label("", shift + len(code) + 2)
                code.append(_branch(instruction, around, negated=not instruction.guard_negated))
            if is_call:
                self.sites.append((shift + len(code), function, instruction))
                self._discover(instruction)
                code.append(replace(instruction, guard=None))
            else:
                code.append(instruction)
        positions.append(shift + len(code))
        end = Label("", positions[-1])
        copies = _Copies(mine, positions, function.name)
        for instruction in code:
            if instruction.parts[0] == "ret" and not is_entry:
                instruction = _branch(instruction, end, negated=instruction.guard_negated)
            result.instructions.append(copies.instruction(instruction, is_entry=is_entry))
        for name, labels in function.branch_tables.items():
            result.branch_tables[copies.table(name)] = tuple(map(copies.label, labels))
        if not is_entry:
            result.ends.add(len(result.instructions))
        result.instructions.append(Instruction(function.line, "ret", ("ret",), ()))
        result.named |= function.named

    def _discover(self, call: Instruction) -> None:
        callee = self.module.kernels.get(_callee(call))
        if callee is not None and not callee.is_entry and callee not in self.functions:
            self.functions.append(callee)

    def _site(self, position: int, caller: Kernel, call: Instruction) -> CallSite:
        name = _callee(call)
        at = next((n for n, o in enumerate(call.operands) if isinstance(o, Name)), 0)
        arguments, results = (
            _variables(call.operands[at + 1 : at + 2]),
            _variables(call.operands[:at]),
        )
        callee = self.module.kernels.get(name)
        is_inside = callee is not None and not callee.is_entry
        site = CallSite(name, -1, position + 1, caller.frame_bytes)
        if not name:
            site.refusal = "calls a function that the text does not name, which is not supported"
        elif arguments is None or results is None:
            site.refusal = f"calls '{name}' with other than variables of the .param space"
        elif not is_inside:
            site.arguments = tuple((v.address, 0, v.byte_count) for v in arguments)
            site.results = tuple((0, v.address, v.byte_count) for v in results)
        else:
            assert callee is not None
            site.refusal = _mismatch(callee, arguments, results)
            if not site.refusal:
                site.start, site.frame_bytes = self.starts[name], callee.frame_bytes
                site.registers = self.registers[name]
                site.arguments = _pairs(arguments, callee.params)
                site.results = _pairs(callee.results, results)
        return site


def _pairs(sources: list[Variable], goals: list[Variable]) -> tuple[tuple[int, int, int], ...]:
    return tuple((a.address, b.address, a.byte_count) for a, b in zip(sources, goals, strict=True))


def _mismatch(callee: Kernel, arguments: list[Variable], results: list[Variable]) -> str:
    """Why a call does not fit the function, or ""."""
    if callee.has_register_params:
        return f"calls '{callee.name}', which has parameters in registers"
    for what, have, want in (
        ("arguments", arguments, callee.params),
        ("results", results, callee.results),
    ):
        if [v.byte_count for v in have] != [v.byte_count for v in want]:
            sizes = ", ".join(f"{v.byte_count} B" for v in want) or "none"
            return f"calls '{callee.name}' with others, its {what} are {sizes}"
    return ""


@dataclass(slots=True)
class _Copies:
    """Copies what a function's instructions are made of into the linked kernel.

    Args:
      positions: of each of its instructions there, and of its end.
    """

    registers: list[Register]
    positions: list[int]
    function: str

    def instruction(self, instruction: Instruction, *, is_entry: bool) -> Instruction:
        guard = instruction.guard
        opcode, parts, operands = instruction.opcode, instruction.parts, instruction.operands
        if _is_in_frame(instruction, is_entry=is_entry):
            parts = tuple("local" if part in _PARAMS else part for part in parts)
            opcode = opcode.replace(".param::func", ".local").replace(".param", ".local")
        if parts[0] == "call":
            operands = ()
        elif parts[0] == "brx":
            table = operands[-1]
            assert isinstance(table, Name)
            operands = (*operands[:-1], Name(self.table(table.name)))
        return replace(
            instruction,
            opcode=opcode,
            parts=parts,
            operands=tuple(map(self.operand, operands)),
            guard=None if guard is None else self.registers[guard.index],
            uses=None,
        )

    def table(self, name: str) -> str:
        """The name of a list of labels, which other functions may use for another."""
        return f"{self.function} {name}"

    def label(self, label: Label) -> Label:
        return Label(label.name, self.positions[label.position])

    def operand(self, operand: Operand) -> Operand:
        match operand:
            case Register():
                return self.registers[operand.index]
            case Not():
                return Not(self.registers[operand.register.index])
            case Target():
                label = operand.label
                return Target(self.label(label) if label.name else label)
            case Vec():
                return Vec(tuple(map(self.operand, operand.items)))
            case Pair():
                return Pair(self.operand(operand.first), self.operand(operand.second))
            case Mem():
                inner = operand.coordinates
                coordinates = None if inner is None else Vec(tuple(map(self.operand, inner.items)))
                return Mem(self.operand(operand.base), operand.offset, coordinates)
            case _:
                return operand


def _branch(instruction: Instruction, goal: Label, *, negated: bool) -> Instruction:
    return replace(
        instruction,
        opcode="bra",
        parts=("bra",),
        operands=(Target(goal),),
        guard_negated=negated,
        uses=None,
    )


def _is_in_frame(instruction: Instruction, *, is_entry: bool) -> bool:
    """Whether an access of the param space is to a call's frame."""
    if instruction.parts[0] not in ("ld", "st") or not instruction.has(*_PARAMS):
        return False
    if not is_entry:
        return True
    base = next((o.base for o in instruction.operands if isinstance(o, Mem)), None)
    return isinstance(base, Sym) and base.variable.space == "local"


def _callee(call: Instruction) -> str:
    """The name of the function, which stands behind the list of results if there is one; or ""."""
    is_second = bool(call.operands) and isinstance(call.operands[0], Vec)
    named = call.operands[is_second : is_second + 1]
    return named[0].name if named and isinstance(named[0], Name) else ""


def _variables(lists: tuple[Operand, ...]) -> list[Variable] | None:
    """The arguments or results of a call, in order; None if one is not a variable."""
    items = [
        item for operand in lists for item in (operand.items if isinstance(operand, Vec) else ())
    ]
    variables = [item.variable for item in items if isinstance(item, Sym) and not item.offset]
    is_known = len(variables) == len(items) and all(v.space == "local" for v in variables)
    return variables if is_known else None


def _lay_out(function: Kernel) -> None:
    """Place a function's parameters, results and local variables in its frame."""
    own = [] if function.is_entry else [*function.params, *function.results]
    offset = 0
    for variable in (*own, *(v for v in function.variables if v.space == "local")):
        offset = -(-offset // variable.alignment_bytes) * variable.alignment_bytes
        variable.address = offset
        offset += variable.byte_count
    largest = max((v.alignment_bytes for v in function.variables), default=1)
    unit = max(FRAME_ALIGNMENT, largest)
    function.frame_bytes = -(-offset // unit) * unit
