"""Operands of instructions."""

from dataclasses import replace

from .ast import Kernel, Mem, Name, Not, Operand, Pair, Register, Special, Sym, Vec
from .cursor import Cursor
from .lexer import Token
from .scopes import Scope


class Operands:
    """Parses the operands of one kernel's instructions.

    Args:
      cursor: in its body.
      kernel: it gets the registers of a numbered range when they are used, and the names in
        operands.
    """

    def __init__(self, cursor: Cursor, kernel: Kernel):
        self.cursor = cursor
        self.kernel = kernel
        self.registers = kernel.registers

    def predicate(self, scope: Scope) -> Register:
        token = self.cursor.next()
        register = scope.register(token.text, self.registers)
        if register is None or register.type != "pred":
            is_what = "unknown" if register is None else f"of type .{register.type}"
            raise self.cursor.error(f"expected a predicate, '{token.text}' is {is_what}", token)
        return register

    def operand(self, scope: Scope, is_label: bool = False) -> Operand:
        cursor = self.cursor
        token = cursor.tokens[cursor.at]
        if token.kind == "word" and not is_label:
            register = scope.register(token.text, self.registers)
            if register is not None and cursor.tokens[cursor.at + 1].text != "|":
                cursor.at += 1
                return register
        if cursor.accept("["):
            with cursor.nested():
                return self.memory(scope)
        for opening, closing in ("{}", "()"):
            if cursor.accept(opening):
                with cursor.nested():
                    return self.vector(scope, closing)
        if cursor.accept("!"):
            return Not(self.predicate(scope))
        number = cursor.number()
        if number is not None:
            return number
        token = cursor.next()
        if token.kind != "word":
            raise cursor.error(f"expected an operand, got '{token.text}'", token)
        result: Operand = Name(token.text) if is_label else self.resolve(scope, token)
        if cursor.accept("|"):
            with cursor.nested():
                return Pair(result, self.operand(scope))
        if isinstance(result, Sym) and cursor.peek() in ("+", "-"):
            cursor.accept("+")
            return replace(result, offset=cursor.integer())
        return result

    def vector(self, scope: Scope, close: str) -> Vec:
        items: list[Operand] = []
        while not self.cursor.accept(close):
            items.append(self.operand(scope))
            self.cursor.accept(",")
        return Vec(tuple(items))

    def memory(self, scope: Scope) -> Mem:
        cursor = self.cursor
        base = self.operand(scope)
        offset = 0
        if isinstance(base, Sym):
            base, offset = Sym(base.variable), base.offset
        while cursor.peek() in ("+", "-"):
            cursor.accept("+")
            offset += cursor.integer()
        coordinates: Vec | None = None
        if cursor.accept(","):
            cursor.expect("{")
            coordinates = self.vector(scope, "}")
        cursor.expect("]")
        return Mem(base, offset, coordinates)

    def resolve(self, scope: Scope, token: Token) -> Operand:
        name = token.text
        register = scope.register(name, self.registers)
        if register is not None:
            return register
        vector = scope.vector(name)
        if vector is not None:
            return vector
        variable = scope.variable(name)
        if variable is not None:
            self.kernel.named.add(variable)
            return Sym(variable)
        if name.startswith("%") or name == "WARP_SZ":
            return Special(name)
        self.kernel.functions.add(name)
        return Name(name)
