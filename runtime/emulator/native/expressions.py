"""Lane expressions to native operations.

The emitters of `isa/` say what an instruction does by Python statements over numpy arrays, such as
`R[5] = flush(R[3] * R[4])`. Many are assignments of expressions for which there are native
operations. A statement's form is its text with numbered operands, `_0 = flush(_1 * _2)`. There are
some hundreds of forms, so each is looked into once for each choice of kinds. A form that is not
understood here is left to Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from .machine import machine
from .operations import OPERATIONS

# Bytes of one row of a kind.
ROW_BYTES = {
    "pred": 32,
    "u8": 32,
    "s8": 32,
    "u16": 64,
    "s16": 64,
    "f16": 64,
    "u32": 128,
    "s32": 128,
}
ROW_BYTES.update({"f32": 128, "u64": 256, "s64": 256, "f64": 256})
_KINDS = {
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"s{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
}
_OPERAND = re.compile(r"(R\[[0-9]+\]|\b(?:C_\w+|t[0-9]+(?:\[[0-9]+\])?|SHFL_\w+\[0\]|[mg]\b))")


class NotNative(Exception):
    """A statement has no native form."""


class Kind(NamedTuple):
    """The kind of an operand: an element kind, and rows of 32 of them (2 for a packed pair)."""

    element: str
    rows: int = 1

    @property
    def byte_count(self) -> int:
        """Bytes of all rows."""
        return ROW_BYTES[self.element] * self.rows


# An operand of the form (>= 0) or a temporary (< 0), and a byte offset in it.
Place = tuple[int, int]


@dataclass(frozen=True)
class Value:
    """A value of an expression, at a place."""

    kind: Kind
    place: Place


@dataclass(frozen=True)
class Step:
    """One operation: its name, where its result goes, and its operands."""

    name: str
    result: Place
    operands: tuple[Place, ...]


Recorder = Callable[[list[int], list[int], int], None]


@dataclass(frozen=True)
class Plan:
    """The operations of a statement.

    Attributes:
      kind: of the result, which the first operand of the form receives.
      temporary_bytes: of the temporaries; temporary -1 - n lies at offset n.
      reads_result: the former value of operand 0 counts.
      record: appends the records to a list, three words each, for places of the operands and of the
        temporaries.
    """

    steps: tuple[Step, ...]
    kind: Kind
    temporary_bytes: int
    reads_result: bool
    record: Recorder


def _recorder(steps: list[Step]) -> Recorder:
    """A function for `Plan.record`: `words += (address, result | a << 32, b | c << 32, ...)`."""
    target = machine()
    assert target is not None
    words: list[str] = []
    for step in steps:
        at = ["0", "0", "0", "0"]
        for number, (base, offset) in enumerate((step.result, *step.operands)):
            place = f"places[{base}]" if base >= 0 else f"room + {-1 - base}"
            at[number] = f"({place} + {offset})"
        words += (str(target.addresses[step.name]), f"{at[0]} | {at[1]} << 32")
        words.append(f"{at[2]} | {at[3]} << 32")
    scope: dict[str, Recorder] = {}
    exec(f"def record(words, places, room):\n    words += ({', '.join(words)},)", scope)
    return scope["record"]


def parts_of(statement: str) -> tuple[tuple[str, ...], list[str]]:
    """The texts between the operands of a statement, and the operands."""
    parts = _OPERAND.split(statement)
    return tuple(parts[::2]), parts[1::2]


def _form(texts: tuple[str, ...], numbers: tuple[int, ...]) -> str:
    """Texts with numbered operands between them."""
    between = (f"_{number}" for number in numbers)
    return "".join(text + operand for text, operand in zip(texts, (*between, ""), strict=True))


@cache
def _root(form: str) -> ast.expr:
    """The expression that a form assigns to its operand 0."""
    try:
        (statement,) = ast.parse(form.strip()).body
    except (SyntaxError, ValueError):
        raise NotNative from None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        raise NotNative
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or target.id != "_0":
        raise NotNative
    return statement.value


@cache
def plan_of(
    texts: tuple[str, ...], numbers: tuple[int, ...], kinds: tuple[Kind | None, ...]
) -> Plan | None:
    """How to execute a statement; None if there is no native way.

    Args:
      texts, numbers: what lies between its operands, and the number of each; equal operands have
        equal numbers.
      kinds: of the operands by number; None for a local that gets its kind here.
    """
    try:
        return Planner(kinds).plan(_root(_form(texts, numbers)))
    except NotNative:
        return None


_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "shr",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}


def _unsigned(kind: str) -> str:
    return f"u{kind[1:]}" if kind[0] == "s" else kind


Function = Callable[["Planner", str, list[ast.expr]], "Value"]
FUNCTIONS: dict[str, Function] = {}  # of generated code, by name; functions.py has them


class Planner:
    """Collects the operations of one expression."""

    def __init__(self, kinds: tuple[Kind | None, ...]):
        self.kinds = kinds
        self.steps: list[Step] = []
        self.used = 0

    def plan(self, root: ast.expr) -> Plan:
        """The plan of an expression whose value operand 0 receives."""
        value = self.value(root)
        expected = self.kinds[0]
        if expected is not None and expected != value.kind:
            raise NotNative
        if not self.redirect(value):
            self.copy(value, (0, 0))
        reads_result = any(base == 0 for step in self.steps for base, _ in step.operands)
        record = _recorder(self.steps)
        return Plan(tuple(self.steps), value.kind, self.used, reads_result, record)

    def redirect(self, value: Value) -> bool:
        """Makes a value's operations write operand 0; False where that may disturb others."""
        base, offset = value.place
        makers = [at for at, step in enumerate(self.steps) if step.result[0] == base]
        if base >= 0 or offset or not makers:
            return False
        if len(makers) > 1 or makers[0] != len(self.steps) - 1:
            if any(place[0] in (0, base) for step in self.steps for place in step.operands):
                return False
        for at in makers:
            step = self.steps[at]
            self.steps[at] = Step(step.name, (0, step.result[1]), step.operands)
        return True

    # ---- values

    def room(self, kind: Kind) -> Place:
        """A new temporary."""
        place = (-1 - self.used, 0)
        self.used += -(-kind.byte_count // 64) * 64
        return place

    def step(self, name: str, kind: Kind, *operands: Value) -> Value:
        """The value of an operation."""
        operation = OPERATIONS.get(name)
        if operation is None or len(operation.operands) != len(operands):
            raise NotNative
        result = Value(kind, self.room(kind))
        places = tuple(operand.place for operand in operands)
        self.steps.append(Step(name, result.place, places))
        return result

    def copy(self, value: Value, place: Place) -> None:
        """Copies all rows of a value."""
        element, rows = value.kind.element, value.kind.rows
        name = "copy_pred" if element == "pred" else f"copy_u{ROW_BYTES[element] // 4}"
        if rows == 2 and ROW_BYTES[element] == 128:
            self.steps.append(Step("copy_u32*2", place, (value.place,)))
            return
        for row in range(rows):
            skip = row * ROW_BYTES[element]
            to, source = (place[0], place[1] + skip), (value.place[0], value.place[1] + skip)
            self.steps.append(Step(name, to, (source,)))

    def value(self, node: ast.expr) -> Value:
        """The value of an expression."""
        match node:
            case ast.Name(id=name) if name[0] == "_" and name[1:].isdigit():
                return self.operand(int(name[1:]))
            case ast.BinOp(left, operator, right):
                return self.binary(_BINARY.get(type(operator), ""), left, right)
            case ast.Compare(left, [operator], [right]):
                return self.compare(_COMPARE.get(type(operator), "?"), left, right)
            case ast.UnaryOp(ast.Invert(), inner):
                value = self.value(inner)
                return self.step(f"not_{_unsigned(value.kind.element)}", value.kind, value)
            case ast.UnaryOp(ast.USub(), inner):
                return self.unary("neg", self.value(inner))
            case ast.Subscript(base, ast.Constant(int() as row)):
                return self.row(self.value(base), row)
            case ast.Subscript(base, index):
                return self.gather(self.value(base), self.value(index))
            case ast.Call(ast.Attribute(base, "view"), [ast.Name(name)], []):
                return self.view(self.value(base), name)
            case ast.Call(ast.Attribute(base, "astype"), [ast.Name(name)], []):
                return self.converted(self.value(base), _KINDS.get(name, ""))
            case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
                return FUNCTIONS[name](self, name, arguments)
            case _:
                raise NotNative

    def operand(self, number: int) -> Value:
        """An operand of the form."""
        kind = self.kinds[number]
        if kind is None:
            raise NotNative
        return Value(kind, (number, 0))

    def row(self, value: Value, row: int) -> Value:
        """A row of a packed pair."""
        if value.kind.rows < 2 or row >= value.kind.rows:
            raise NotNative
        element = value.kind.element
        number, offset = value.place
        return Value(Kind(element), (number, offset + row * ROW_BYTES[element]))

    def view(self, value: Value, dtype: str) -> Value:
        """The same bits as elements of another kind."""
        kind = _KINDS.get(dtype, "")
        if value.kind.element == "pred" or ROW_BYTES.get(kind) != ROW_BYTES[value.kind.element]:
            raise NotNative
        return Value(Kind(kind, value.kind.rows), value.place)

    def converted(self, value: Value, kind: str) -> Value:
        """`astype` between integers; bits above a narrower type go, signed ones are extended."""
        have = value.kind.element
        if kind[:1] not in ("u", "s") or have[0] not in "usp" or value.kind.rows != 1:
            raise NotNative
        if have == "pred":
            return self.step(f"widen_pred_{_unsigned(kind)}", Kind(kind), value)
        low, high = ROW_BYTES[kind], ROW_BYTES[have]
        if low == high:
            return Value(Kind(kind), value.place)
        first, second = _unsigned(have), _unsigned(kind)
        if low < high:
            return self.step(f"trunc_{first}_{second}", Kind(kind), value)
        extend = "sext" if have[0] == "s" else "zext"
        return self.step(f"{extend}_{first}_{second}", Kind(kind), value)

    # ---- arithmetic

    def same(self, *nodes: ast.expr) -> list[Value]:
        """Values of one kind."""
        values = [self.value(node) for node in nodes]
        if any(value.kind != values[0].kind for value in values):
            raise NotNative
        return values

    def float_name(self, name: str, kind: Kind) -> str:
        """An operation on float32 lanes or packed pairs."""
        if kind.element != "f32" or kind.rows > 2:
            raise NotNative
        return f"{name}_{'f32' if kind.rows == 1 else 'pair'}"

    def unary(self, name: str, value: Value) -> Value:
        """neg or abs."""
        element = value.kind.element
        if element == "f32":
            return self.step(self.float_name(name, value.kind), value.kind, value)
        if element[0] == "u" and name == "abs":
            return value
        if element[0] not in "us" or value.kind.rows != 1:
            raise NotNative
        return self.step(f"{name}_{_unsigned(element)}", value.kind, value)

    def binary(self, name: str, left: ast.expr, right: ast.expr) -> Value:
        """An operator of two values of one kind."""
        a, b = self.same(left, right)
        kind, element = a.kind, a.kind.element
        if element == "f32" and name in ("add", "sub", "mul", "div"):
            return self.step(self.float_name(name, kind), kind, a, b)
        if kind.rows != 1 or element[0] == "f" or name == "div":
            raise NotNative
        if name == "shr":
            name = "shr_s" if element[0] == "s" else "shr_u"
        return self.step(f"{name}_{_unsigned(element)}", kind, a, b)

    def compare(self, name: str, left: ast.expr, right: ast.expr) -> Value:
        """A comparison."""
        a, b = self.same(left, right)
        element = a.kind.element
        if a.kind.rows != 1 or element == "pred":
            raise NotNative
        if element[0] != "f" and name not in ("eq", "ne"):
            name = f"{'s' if element[0] == 's' else 'u'}{name}"
        return self.step(f"{name}_{_unsigned(element)}", Kind("pred"), a, b)

    def gather(self, value: Value, index: Value) -> Value:
        """The elements of other lanes."""
        if value.kind != Kind("u32") or index.kind != Kind("s64"):
            raise NotNative
        return self.step("gather_u32", value.kind, value, index)
