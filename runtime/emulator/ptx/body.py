"""The body of a function: its statements, blocks, labels and registers."""

from .ast import REGISTER_BITS, Instruction, Kernel, Label, Name, Operand, Register, Target, Vec
from .cursor import Cursor
from .debug import LINE_STATEMENTS, SKIPPED_STATEMENTS, DebugDirectives
from .errors import PtxError
from .lexer import Token
from .opcodes import split_opcode
from .operand_parser import Operands
from .scopes import Scope
from .variables import SPACES, variables


class Body:
    """Parses the statements of one kernel.

    Args:
      cursor: behind its opening brace.
      debug: what parses statements beside the program.
      kernel: what is found is added to it.
      globals_: the scope of the module.

    Attributes:
      used_bytes: what a pragma said about the next instruction.
      parts: of each opcode so far.
    """

    def __init__(self, cursor: Cursor, debug: DebugDirectives, kernel: Kernel, globals_: Scope):
        self.cursor = cursor
        self.debug = debug
        self.kernel = kernel
        self.globals = globals_
        self.operands = Operands(cursor, kernel)
        self.used_bytes: int | None = None
        self.parts: dict[str, tuple[str, ...]] = {}

    def block(self, scope: Scope) -> None:
        """Statements up to the closing brace, and the binding of their label uses."""
        cursor, kernel = self.cursor, self.kernel
        first = len(kernel.instructions)
        tables: list[tuple[str, list[Token]]] = []
        while not cursor.accept("}"):
            token = cursor.next()
            text = token.text
            if text == "{":
                with cursor.nested():
                    self.block(Scope(scope))
            elif text == ".reg":
                self.registers(scope)
            elif text in SPACES:
                for variable in variables(cursor, SPACES[text]):
                    if variable.space == "param":  # of a call: it lies in the caller's frame
                        variable.space = "local"
                    scope.variables[variable.name] = variable
                    kernel.variables.append(variable)
                cursor.expect(";")
            elif text in LINE_STATEMENTS:
                self.debug.line()
            elif text == ".pragma":
                used = self.debug.pragma()
                self.used_bytes = self.used_bytes if used is None else used
            elif text in SKIPPED_STATEMENTS:
                self.debug.skip()
            elif text == ";":
                continue
            elif token.kind == "word" and cursor.peek() == ":":
                cursor.next()
                if cursor.peek() in (".callprototype", ".calltargets"):
                    while cursor.next().text != ";":
                        pass
                elif cursor.accept(".branchtargets"):
                    names = [cursor.next()]
                    while cursor.accept(","):
                        names.append(cursor.next())
                    cursor.expect(";")
                    tables.append((text, names))
                elif text in scope.labels:
                    raise cursor.error(f"label '{text}' is declared twice in one block", token)
                else:
                    scope.labels[text] = Label(text, len(kernel.instructions))
            else:
                cursor.at -= 1
                kernel.instructions.append(self.instruction(scope))
        self.bind_labels(scope, first)
        for name, names in tables:
            labels: list[Label] = []
            for token in names:
                label = scope.label(token.text)
                if label is None:
                    raise cursor.error(f"no label '{token.text}' is visible here", token)
                labels.append(label)
            kernel.branch_tables[name] = tuple(labels)
        if scope.parent is self.globals:
            self.check_tables()

    def bind_labels(self, scope: Scope, first: int) -> None:
        """Bind the branches of this block whose targets are declared in it."""
        is_outermost = scope.parent is self.globals
        for instruction in self.kernel.instructions[first:]:
            if instruction.parts[0] != "bra":
                continue
            target = instruction.operands[0] if len(instruction.operands) == 1 else None
            if not isinstance(target, Name | Target):
                raise self.error("a branch takes one label", instruction)
            if isinstance(target, Name):
                label = scope.labels.get(target.name)
                if label is not None:
                    instruction.operands = (Target(label),)
                elif is_outermost:
                    raise self.error(f"no label '{target.name}' is visible here", instruction)

    def check_tables(self) -> None:
        """Every indexed branch names a list of labels."""
        for instruction in self.kernel.instructions:
            if instruction.parts[0] == "brx":
                table = instruction.operands[-1] if len(instruction.operands) == 2 else None
                if not isinstance(table, Name) or table.name not in self.kernel.branch_tables:
                    known = ", ".join(self.kernel.branch_tables) or "none"
                    raise self.error(
                        f"brx takes an index and a .branchtargets list; lists: {known}", instruction
                    )

    def error(self, message: str, instruction: Instruction) -> PtxError:
        """A PtxError at an instruction."""
        return PtxError.at(self.cursor.text, instruction.line, message)

    def registers(self, scope: Scope) -> None:
        cursor = self.cursor
        word = cursor.next()
        width = 0
        if word.text in (".v2", ".v4"):
            width = int(word.text[2:])
            word = cursor.next()
        kind = word.text[1:]
        if kind not in REGISTER_BITS:
            raise cursor.error(f"unknown register type '{word.text}'", word)
        while True:
            token = cursor.next()
            if cursor.accept("<"):
                if width:
                    raise cursor.error("a vector register cannot be numbered", token)
                scope.ranges[token.text] = (kind, cursor.integer())
                cursor.expect(">")
            elif width:
                parts = [
                    self.new_register(scope, f"{token.text}.{c}", kind) for c in "xyzw"[:width]
                ]
                scope.vectors[token.text] = Vec(tuple(parts))
                for part, colour in zip(parts, "rgba", strict=False):
                    scope.registers[f"{token.text}.{colour}"] = part
            else:
                self.new_register(scope, token.text, kind)
            if not cursor.accept(","):
                break
        cursor.expect(";")

    def new_register(self, scope: Scope, name: str, kind: str) -> Register:
        register = Register(name, kind, len(self.kernel.registers))
        self.kernel.registers.append(register)
        scope.registers[name] = register
        return register

    def instruction(self, scope: Scope) -> Instruction:
        cursor = self.cursor
        guard: Register | None = None
        negated = False
        if cursor.accept("@"):
            negated = cursor.accept("!")
            guard = self.operands.predicate(scope)
        word = cursor.next()
        if word.kind != "word":
            raise cursor.error(f"expected an instruction, got '{word.text}'", word)
        parts = self.parts.get(word.text)
        if parts is None:
            parts = self.parts[word.text] = split_opcode(word.text)
        operands: list[Operand] = []
        if not cursor.accept(";"):
            is_branch = parts[0] in ("bra", "brx")
            known, tokens = scope.registers, cursor.tokens
            while True:
                register = known.get(tokens[cursor.at].text)
                after = tokens[cursor.at + 1].text if register is not None else ""
                if register is not None and after in (",", ";") and not is_branch:
                    cursor.at += 2  # most operands are a register
                    operands.append(register)
                    if after == ";":
                        break
                    continue
                is_label = parts[0] == "bra" or (parts[0] == "brx" and bool(operands))
                operands.append(self.operands.operand(scope, is_label))
                if cursor.accept(";"):
                    break
                cursor.expect(",")
        used, self.used_bytes = self.used_bytes, None
        if parts[0] not in ("ld", "ldu"):
            used = None
        return Instruction(word.line, word.text, parts, tuple(operands), guard, negated, used)
