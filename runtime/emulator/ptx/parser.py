"""PTX tokens to a `Module`.

Longer than most modules: the methods of one recursive descent call each other all the way down.
"""

import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from .ast import (
    REGISTER_BITS,
    Imm,
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
    Space,
    Special,
    Sym,
    Target,
    Variable,
    Vec,
)
from .errors import PtxError
from .lexer import Token, tokenize
from .lines import inline_assembly
from .scopes import Scope

_SPACES: dict[str, Space] = {
    ".global": "global",
    ".const": "const",
    ".shared": "shared",
    ".local": "local",
    ".param": "param",
}
_LINKAGE = frozenset((".visible", ".extern", ".weak", ".common"))
_SKIPPED_STATEMENTS = frozenset((".section", ".pragma", ".alias"))  # .pragma: in front of kernels
_USED_BYTES = "used_bytes_mask"
_LINE_STATEMENTS = frozenset((".loc", ".file"))
_MAX_DEPTH = 64  # braces within braces; more than any compiler writes, less than Python recurses
_MAX_DIGITS = 66  # of an integer: 0b and 64 bits
_SHAPES = frozenset((".reqntid", ".maxntid", ".reqnctapercluster"))  # one to three numbers
_COUNTS = frozenset((".maxclusterrank", ".minnctapersm", ".maxnctapersm", ".maxnreg"))  # one


class Parser:
    """A recursive-descent parser over one PTX text."""

    def __init__(self, text: str):
        self.text = text
        self.tokens = tokenize(text)
        self.inline = inline_assembly(text)
        self.at = 0
        self.depth = 0
        self.globals = Scope()
        self.module = Module(text, "", "", [], {})

    # ---- tokens

    def error(self, message: str, token: Token | None = None) -> PtxError:
        """A PtxError at a token (the current one when not given)."""
        return PtxError.at(self.text, (token or self.tokens[self.at]).line, message)

    def peek(self) -> str:
        return self.tokens[self.at].text

    def next(self) -> Token:
        token = self.tokens[self.at]
        if token.kind == "end":
            raise self.error("the text ends in the middle of a statement")
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.next()
        if token.text != text:
            raise self.error(f"expected '{text}', got '{token.text}'", token)
        return token

    @contextmanager
    def nested(self) -> Generator[None]:
        """What is parsed inside is one level deeper.

        Raises:
          PtxError: that is too deep.
        """
        if self.depth == _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} levels of braces or operands")
        self.depth += 1
        yield
        self.depth -= 1

    def integer(self) -> int:
        negative = self.accept("-")
        token = self.next()
        if token.kind != "int":
            raise self.error(f"expected an integer, got '{token.text}'", token)
        value = self.integer_of(token)
        return -value if negative else value

    def integer_of(self, token: Token) -> int:
        """The value of an integer token: decimal, 0x, 0b, or octal with a leading 0."""
        text = token.text.rstrip("U")
        base = 8 if text[0] == "0" and text.isdigit() else 0
        try:
            value = int(text, base) if len(text) <= _MAX_DIGITS else 1 << 64
        except ValueError:
            raise self.error(f"'{token.text}' is no octal number", token) from None
        if value >> 64:
            raise self.error(f"'{token.text}' does not fit into 64 bits", token)
        return value

    def count(self, what: str, *, least: int = 1) -> int:
        """An integer that may not be less than `least`."""
        token = self.tokens[self.at]
        value = self.integer()
        if value < least:
            raise self.error(f"{what} must be at least {least}, got {value}", token)
        return value

    def skip_statement(self) -> None:
        """Skip a debug or pragma directive: to ';', over its block, or to the end of its line.

        The block of a `.section` may begin on the next line.
        """
        directive = self.tokens[self.at - 1]
        has_block = directive.text == ".section"
        while self.tokens[self.at].kind != "end":
            if self.tokens[self.at].line != directive.line and not (
                has_block and self.peek() == "{"
            ):
                return
            text = self.next().text
            if text == ";":
                return
            if text == "{":
                depth = 1
                while depth:
                    text = self.next().text
                    depth += (text == "{") - (text == "}")
                return

    def pragma(self) -> int | None:
        """The mask of a pragma `used_bytes_mask`, of a load's bytes; None of other pragmas."""
        used: int | None = None
        while not self.accept(";"):
            token = self.next()
            name, _, mask = token.text.strip('"').partition(" ")
            if name != _USED_BYTES:
                continue
            try:
                used = int(mask, 0)
            except ValueError:
                used = -1
            if used not in range(1 << 32):
                raise self.error(f"{_USED_BYTES} takes an integer of 32 bits, got '{mask}'", token)
        return used

    def line_statement(self) -> None:
        """What a `.file` or `.loc` says about the source of what follows."""
        directive = self.tokens[self.at - 1]
        number = self.integer()
        lines = self.module.lines
        if directive.text == ".file":
            lines.files[number] = self.next().text.strip('"')
        elif directive.line not in self.inline:
            lines.mark(directive.line, number, self.integer())
        while self.tokens[self.at].line == directive.line and self.peek() not in ("", "}"):
            self.next()  # a file's time and size, a column, what an inlined function says

    # ---- module

    def parse(self) -> Module:
        while self.tokens[self.at].kind != "end":
            token = self.next()
            if token.text == ".version":
                self.module.version = self.next().text
            elif token.text == ".target":
                self.module.target = self.next().text
                while self.accept(","):
                    self.next()
            elif token.text == ".address_size":
                if self.integer() != 64:
                    raise self.error("only .address_size 64 is supported", token)
            elif token.text in _LINE_STATEMENTS:
                self.line_statement()
            elif token.text in _SKIPPED_STATEMENTS:
                self.skip_statement()
            else:
                self.at -= 1
                self.declaration()
        return self.module

    def declaration(self) -> None:
        is_extern = False
        while self.peek() in _LINKAGE:
            is_extern |= self.next().text == ".extern"
        head = self.next()
        if head.text in (".entry", ".func"):
            self.function(head)
        elif head.text in _SPACES:
            for variable in self.variables(_SPACES[head.text], is_extern):
                self.globals.variables[variable.name] = variable
                self.module.variables.append(variable)
            self.expect(";")
        else:
            raise self.error(f"unknown directive '{head.text}' at module level", head)

    def variables(self, space: Space, is_extern: bool = False) -> list[Variable]:
        """`.align n .type name[dims] = {...}, name ...` after the state space."""
        alignment, width = 0, 1
        while True:
            word = self.next()
            if word.text == ".align":
                alignment = self.alignment()
            elif word.text in (".ptr", ".attribute"):
                raise self.error(f"'{word.text}' before the type", word)
            elif word.text in (".v2", ".v4"):
                width = int(word.text[2:])
            elif word.text[1:] in REGISTER_BITS:
                element = word.text[1:]
                break
            else:
                raise self.error(f"unknown type '{word.text}'", word)
        element_bytes = max(1, REGISTER_BITS[element] // 8)
        result: list[Variable] = []
        while True:
            while self.peek() in (".ptr", ".align", *_SPACES):  # .param .u64 .ptr .align 16 name
                if self.next().text == ".align":
                    self.alignment()
            token = self.next()
            count, is_array = 1, width > 1
            while self.accept("["):
                is_array = True
                count *= 0 if self.peek() == "]" else self.count("an array's length", least=0)
                self.expect("]")
            initial: tuple[int | float, ...] = ()
            if self.accept("="):
                initial = tuple(self.initialiser())
                count = count or len(initial)
            result.append(
                Variable(
                    token.text,
                    space,
                    element,
                    element_bytes,
                    count * width,
                    alignment or element_bytes * width,
                    is_array,
                    is_extern,
                    initial,
                    line=token.line,
                )
            )
            if space == "param" or not self.accept(","):
                return result

    def alignment(self) -> int:
        token = self.tokens[self.at]
        value = self.integer()
        if value < 1 or value & (value - 1):
            raise self.error(f"an alignment is a power of two, got {value}", token)
        return value

    def initialiser(self) -> list[int | float]:
        if self.accept("{"):
            values: list[int | float] = []
            with self.nested():
                while not self.accept("}"):
                    values += self.initialiser()
                    self.accept(",")
            return values
        number = self.number()
        if number is None:
            raise self.error("only numbers are supported as initial values")
        return [number.value]

    # ---- functions

    def function(self, head: Token) -> None:
        if self.peek() == "(":  # return parameter of a .func
            while self.next().text != ")":
                pass
        name = self.next().text
        kernel = Kernel(name, head.line, head.text == ".entry")
        scope = Scope(self.globals)
        if self.accept("("):
            while not self.accept(")"):
                word = self.next()
                if word.text == ".param":
                    for variable in self.variables("param"):
                        kernel.params.append(variable)
                        scope.variables[variable.name] = variable
                elif word.text == ".reg":
                    self.next()
                    self.next()
                elif word.text != ",":
                    raise self.error(f"expected a parameter, got '{word.text}'", word)
        while self.peek() not in ("{", ";"):
            word = self.next()
            if not word.text.startswith("."):
                raise self.error(f"expected a directive or '{{', got '{word.text}'", word)
            numbers: list[int] = []
            while self.tokens[self.at].kind == "int":
                numbers.append(self.integer())
                self.accept(",")
            if self.tokens[self.at].kind == "string":
                self.next()
            most = 3 if word.text in _SHAPES else 1 if word.text in _COUNTS else len(numbers)
            if not min(1, most) <= len(numbers) <= most or (most and min(numbers) < 1):
                raise self.error(f"'{word.text}' takes 1 to {most} positive numbers", word)
            kernel.directives[word.text[1:]] = tuple(numbers)
        if self.accept(";"):
            return
        self.expect("{")
        body = _BodyParser(self, kernel)
        with self.nested():
            body.block(scope)
        _lay_out_params(kernel)
        if name in self.module.kernels:
            raise self.error(f"'{name}' is defined twice", head)
        self.module.kernels[name] = kernel

    # ---- numbers

    def number(self) -> Imm | None:
        """A numeric literal at the cursor, or None."""
        start = self.at
        negative = self.accept("-")
        token = self.tokens[self.at]
        if token.kind == "int":
            self.at += 1
            value = self.integer_of(token)
            return Imm(-value if negative else value)
        if token.kind == "float":
            self.at += 1
            text = token.text
            if text[:2] in ("0f", "0F", "0d", "0D"):
                width = 32 if text[1] in "fF" else 64
                bits = int(text[2:], 16)
                if negative:
                    bits ^= 1 << (width - 1)
                form = "<f" if width == 32 else "<d"
                raw = bits.to_bytes(width // 8, "little")
                return Imm(struct.unpack(form, raw)[0], bits, width)
            value = float(text)
            return Imm(-value if negative else value)
        self.at = start
        return None


class _BodyParser:
    """Parses the statements of one kernel.

    Attributes:
      used_bytes: what a pragma said about the next instruction.
      parts: opcodes so far, split at dots.
    """

    def __init__(self, parser: Parser, kernel: Kernel):
        self.parser = parser
        self.kernel = kernel
        self.used_bytes: int | None = None
        self.parts: dict[str, tuple[str, ...]] = {}

    def block(self, scope: Scope) -> None:
        """Statements up to the closing brace, and the binding of their label uses."""
        parser, kernel = self.parser, self.kernel
        first = len(kernel.instructions)
        tables: list[tuple[str, list[Token]]] = []
        while not parser.accept("}"):
            token = parser.next()
            text = token.text
            if text == "{":
                with parser.nested():
                    self.block(Scope(scope))
            elif text == ".reg":
                self.registers(scope)
            elif text in _SPACES:
                for variable in parser.variables(_SPACES[text]):
                    scope.variables[variable.name] = variable
                    kernel.variables.append(variable)
                parser.expect(";")
            elif text in _LINE_STATEMENTS:
                parser.line_statement()
            elif text == ".pragma":
                used = parser.pragma()
                self.used_bytes = self.used_bytes if used is None else used
            elif text in _SKIPPED_STATEMENTS:
                parser.skip_statement()
            elif text == ";":
                continue
            elif token.kind == "word" and parser.peek() == ":":
                parser.next()
                if parser.accept(".branchtargets"):
                    names = [parser.next()]
                    while parser.accept(","):
                        names.append(parser.next())
                    parser.expect(";")
                    tables.append((text, names))
                elif text in scope.labels:
                    raise parser.error(f"label '{text}' is declared twice in one block", token)
                else:
                    scope.labels[text] = Label(text, len(kernel.instructions))
            else:
                parser.at -= 1
                kernel.instructions.append(self.instruction(scope))
        self.bind_labels(scope, first)
        for name, names in tables:
            labels: list[Label] = []
            for token in names:
                label = scope.label(token.text)
                if label is None:
                    raise parser.error(f"no label '{token.text}' is visible here", token)
                labels.append(label)
            kernel.branch_tables[name] = tuple(labels)
        if scope.parent is parser.globals:
            self.check_tables()

    def bind_labels(self, scope: Scope, first: int) -> None:
        """Bind the branches of this block whose targets are declared in it."""
        is_outermost = scope.parent is self.parser.globals
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
        return PtxError.at(self.parser.text, instruction.line, message)

    def registers(self, scope: Scope) -> None:
        parser = self.parser
        word = parser.next()
        width = 0
        if word.text in (".v2", ".v4"):
            width = int(word.text[2:])
            word = parser.next()
        kind = word.text[1:]
        if kind not in REGISTER_BITS:
            raise parser.error(f"unknown register type '{word.text}'", word)
        while True:
            token = parser.next()
            if parser.accept("<"):
                if width:
                    raise parser.error("a vector register cannot be numbered", token)
                scope.ranges[token.text] = (kind, parser.integer())
                parser.expect(">")
            elif width:
                parts = [
                    self.new_register(scope, f"{token.text}.{c}", kind) for c in "xyzw"[:width]
                ]
                scope.vectors[token.text] = Vec(tuple(parts))
                for part, colour in zip(parts, "rgba", strict=False):
                    scope.registers[f"{token.text}.{colour}"] = part
            else:
                self.new_register(scope, token.text, kind)
            if not parser.accept(","):
                break
        parser.expect(";")

    def new_register(self, scope: Scope, name: str, kind: str) -> Register:
        register = Register(name, kind, len(self.kernel.registers))
        self.kernel.registers.append(register)
        scope.registers[name] = register
        return register

    def instruction(self, scope: Scope) -> Instruction:
        parser = self.parser
        guard: Register | None = None
        negated = False
        if parser.accept("@"):
            negated = parser.accept("!")
            guard = self.predicate(scope)
        word = parser.next()
        if word.kind != "word":
            raise parser.error(f"expected an instruction, got '{word.text}'", word)
        parts = self.parts.get(word.text)
        if parts is None:
            parts = self.parts[word.text] = tuple(word.text.split("."))
        operands: list[Operand] = []
        if not parser.accept(";"):
            is_branch = parts[0] in ("bra", "brx")
            known, tokens = scope.registers, parser.tokens
            while True:
                register = known.get(tokens[parser.at].text)
                after = tokens[parser.at + 1].text if register is not None else ""
                if register is not None and after in (",", ";") and not is_branch:
                    parser.at += 2  # most operands are a register
                    operands.append(register)
                    if after == ";":
                        break
                    continue
                is_label = parts[0] == "bra" or (parts[0] == "brx" and bool(operands))
                operands.append(self.operand(scope, is_label))
                if parser.accept(";"):
                    break
                parser.expect(",")
        used, self.used_bytes = self.used_bytes, None
        if parts[0] not in ("ld", "ldu"):
            used = None
        return Instruction(word.line, word.text, parts, tuple(operands), guard, negated, used)

    def predicate(self, scope: Scope) -> Register:
        token = self.parser.next()
        register = scope.register(token.text, self.kernel.registers)
        if register is None or register.type != "pred":
            is_what = "unknown" if register is None else f"of type .{register.type}"
            raise self.parser.error(f"expected a predicate, '{token.text}' is {is_what}", token)
        return register

    def operand(self, scope: Scope, is_label: bool = False) -> Operand:
        parser = self.parser
        token = parser.tokens[parser.at]
        if token.kind == "word" and not is_label:
            register = scope.register(token.text, self.kernel.registers)
            if register is not None and parser.tokens[parser.at + 1].text != "|":
                parser.at += 1
                return register
        if parser.accept("["):
            with parser.nested():
                return self.memory(scope)
        for opening, closing in ("{}", "()"):
            if parser.accept(opening):
                with parser.nested():
                    return self.vector(scope, closing)
        if parser.accept("!"):
            return Not(self.predicate(scope))
        number = parser.number()
        if number is not None:
            return number
        token = parser.next()
        if token.kind != "word":
            raise parser.error(f"expected an operand, got '{token.text}'", token)
        result: Operand = Name(token.text) if is_label else self.resolve(scope, token)
        if parser.accept("|"):
            with parser.nested():
                return Pair(result, self.operand(scope))
        if isinstance(result, Sym) and parser.peek() in ("+", "-"):
            parser.accept("+")
            return replace(result, offset=parser.integer())
        return result

    def vector(self, scope: Scope, close: str) -> Vec:
        items: list[Operand] = []
        while not self.parser.accept(close):
            items.append(self.operand(scope))
            self.parser.accept(",")
        return Vec(tuple(items))

    def memory(self, scope: Scope) -> Mem:
        parser = self.parser
        base = self.operand(scope)
        offset = 0
        if isinstance(base, Sym):
            base, offset = Sym(base.variable), base.offset
        while parser.peek() in ("+", "-"):
            parser.accept("+")
            offset += parser.integer()
        coordinates: Vec | None = None
        if parser.accept(","):
            parser.expect("{")
            coordinates = self.vector(scope, "}")
        parser.expect("]")
        return Mem(base, offset, coordinates)

    def resolve(self, scope: Scope, token: Token) -> Operand:
        name = token.text
        register = scope.register(name, self.kernel.registers)
        if register is not None:
            return register
        vector = scope.vector(name)
        if vector is not None:
            return vector
        variable = scope.variable(name)
        if variable is not None:
            return Sym(variable)
        if name.startswith("%") or name == "WARP_SZ":
            return Special(name)
        return Name(name)


def _lay_out_params(kernel: Kernel) -> None:
    offset = 0
    for param in kernel.params:
        offset = -(-offset // param.alignment_bytes) * param.alignment_bytes
        param.address = offset
        offset += param.byte_count


def parse(text: str) -> Module:
    """Parse a PTX text.

    Raises:
      PtxError: it is malformed; the message quotes the line.
    """
    return Parser(text).parse()
