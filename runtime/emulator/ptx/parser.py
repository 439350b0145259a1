"""PTX text to a `Module`: what stands outside of functions, and their heads."""

from .ast import Instruction, Kernel, Module, Variable
from .body import Body
from .cursor import Cursor
from .debug import LINE_STATEMENTS, SKIPPED_STATEMENTS, DebugDirectives
from .lexer import Token
from .scopes import Scope
from .variables import SPACES, variables

_LINKAGE = frozenset((".visible", ".extern", ".weak", ".common"))
_SHAPES = frozenset((".reqntid", ".maxntid", ".reqnctapercluster"))  # one to three numbers
_COUNTS = frozenset((".maxclusterrank", ".minnctapersm", ".maxnctapersm", ".maxnreg"))  # one


def parse(text: str) -> Module:
    """Parse a PTX text.

    Raises:
      PtxError: it is malformed; the message quotes the line.
    """
    return _Parser(text).parse()


class _Parser:
    """A recursive descent over one PTX text."""

    def __init__(self, text: str):
        self.cursor = Cursor(text)
        self.globals = Scope()
        self.module = Module(text, "", "", [], {})
        self.debug = DebugDirectives(self.cursor, self.module.lines)

    def parse(self) -> Module:
        cursor = self.cursor
        while cursor.tokens[cursor.at].kind != "end":
            token = cursor.next()
            if token.text == ".version":
                self.module.version = cursor.next().text
            elif token.text == ".target":
                self.module.target = cursor.next().text
                while cursor.accept(","):
                    cursor.next()
            elif token.text == ".address_size":
                if cursor.integer() != 64:
                    raise cursor.error("only .address_size 64 is supported", token)
            elif token.text in LINE_STATEMENTS:
                self.debug.line()
            elif token.text in SKIPPED_STATEMENTS:
                self.debug.skip()
            else:
                cursor.at -= 1
                self._declaration()
        return self.module

    def _declaration(self) -> None:
        cursor = self.cursor
        is_extern = False
        while cursor.peek() in _LINKAGE:
            is_extern |= cursor.next().text == ".extern"
        head = cursor.next()
        if head.text in (".entry", ".func"):
            self._function(head)
        elif head.text in SPACES:
            for variable in variables(cursor, SPACES[head.text], is_extern):
                self.globals.variables[variable.name] = variable
                self.module.variables.append(variable)
            cursor.expect(";")
        else:
            raise cursor.error(f"unknown directive '{head.text}' at module level", head)

    def _function(self, head: Token) -> None:
        cursor = self.cursor
        kernel = Kernel("", head.line, head.text == ".entry")
        scope = Scope(self.globals)
        if cursor.peek() == "(" and not kernel.is_entry:
            kernel.results += self._parameters(kernel, scope)
        name = kernel.name = cursor.next().text
        if cursor.peek() == "(":
            kernel.params += self._parameters(kernel, scope)
        while cursor.peek() not in ("{", ";"):
            word = cursor.next()
            if not word.text.startswith("."):
                raise cursor.error(f"expected a directive or '{{', got '{word.text}'", word)
            numbers: list[int] = []
            while cursor.tokens[cursor.at].kind == "int":
                numbers.append(cursor.integer())
                cursor.accept(",")
            if cursor.tokens[cursor.at].kind == "string":
                cursor.next()
            most = 3 if word.text in _SHAPES else 1 if word.text in _COUNTS else len(numbers)
            if not min(1, most) <= len(numbers) <= most or (most and min(numbers) < 1):
                raise cursor.error(f"'{word.text}' takes 1 to {most} positive numbers", word)
            kernel.directives[word.text[1:]] = tuple(numbers)
        if cursor.accept(";"):
            return
        cursor.expect("{")
        body = Body(cursor, self.debug, kernel, self.globals)
        with cursor.nested():
            body.block(scope)
        if kernel.is_entry:
            _lay_out_params(kernel)
        if not kernel.instructions:
            kernel.instructions.append(Instruction(head.line, "ret", ("ret",), ()))
        if name in self.module.kernels:
            raise cursor.error(f"'{name}' is defined twice", head)
        self.module.kernels[name] = kernel

    def _parameters(self, kernel: Kernel, scope: Scope) -> list[Variable]:
        """The parameters in parentheses of a head; those of a function lie in its frame."""
        cursor = self.cursor
        cursor.expect("(")
        parameters: list[Variable] = []
        while not cursor.accept(")"):
            word = cursor.next()
            if word.text == ".param":
                for variable in variables(cursor, "param"):
                    if not kernel.is_entry:
                        variable.space = "local"
                    parameters.append(variable)
                    scope.variables[variable.name] = variable
            elif word.text == ".reg":
                kernel.has_register_params = True
                cursor.next()
                cursor.next()
            elif word.text != ",":
                raise cursor.error(f"expected a parameter, got '{word.text}'", word)
        return parameters


def _lay_out_params(kernel: Kernel) -> None:
    offset = 0
    for param in kernel.params:
        offset = -(-offset // param.alignment_bytes) * param.alignment_bytes
        param.address = offset
        offset += param.byte_count
