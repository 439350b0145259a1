"""The integers of a kernel as expressions over what it does not compute itself.

A name stands for a run-time size, a scalar of the call, an element of an input, or a block argument
that `Integers.name` has named. An element of an input is the same value wherever it is read, since
nobody writes inputs: `ends[tile2 + 1]` names it by its coordinates.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.scalars import is_plain_division
from attn_mlir.expr import Expr, names

from .sums import Sums, text

Value = Any

OPERATORS = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.floordivsi": "floordiv",
    "arith.ceildivsi": "ceildiv",
    "arith.divui": "divui",
    "arith.ceildivui": "ceildivui",
    "arith.maxsi": "max",
    "arith.minsi": "min",
}
_SIGNED_DIVISIONS = {"arith.floordivsi": "divui", "arith.ceildivsi": "ceildivui"}
"""Divisions that the code does unsigned where their operands are promised not to be negative."""
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge")


RANK = "rank"  # the name of a CTA's number in its cluster


class NoExpressionError(Exception):
    """A value that no expression can be written for; `owner` is the operation that computes it."""

    def __init__(self, owner: Any):
        super().__init__(str(owner))
        self.owner = owner


class Integers:
    """Expressions of the i32 and i1 values of one kernel."""

    def __init__(self, kernel: ws.KernelOp):
        self._arguments: list[Value] = list(kernel.body.blocks[0].arguments)
        self._names = kernel.names
        self._roles = kernel.io_roles
        self._dims = kernel.dims
        self._found: dict[Value, Expr] = {}
        self._moving: set[str] = {RANK}
        self._sums = Sums({}, {*sizes(kernel), RANK})

    def __len__(self) -> int:
        """How many values have been named or composed."""
        return len(self._found)

    def name(self, argument: Value, name: str, *, moves: bool = False) -> str:
        """Names a block argument; `moves` if its value changes within a work tile, as an index."""
        self._found[argument] = name
        if moves:
            self._moving.add(name)
        return name

    def __call__(self, value: Value) -> Expr:
        """The expression of an i32 or i1.

        Raises:
          NoExpressionError: it depends on something else.
        """
        if value not in self._found:
            self._found[value] = self._compose(value)
        return self._found[value]

    def _compose(self, value: Value) -> Expr:
        if value in self._arguments and not isinstance(value.type, ir.MemRefType):
            return self._names[self._arguments.index(value)]
        owner = value.owner
        if isinstance(owner, arith.ConstantOp):
            return int(ir.IntegerAttr(owner.value).value)
        if isinstance(owner, ws.ExtentOp):
            return self._extent(owner)
        if isinstance(owner, ws.RankOp):
            return RANK
        operation = owner.operation.name if hasattr(owner, "operation") else ""
        if operation in OPERATORS:
            left, right = (self(operand) for operand in owner.operation.operands)
            name = OPERATORS[operation]
            if operation in _SIGNED_DIVISIONS and is_plain_division(owner):
                name = _SIGNED_DIVISIONS[operation]
            return name, left, right
        if isinstance(owner, arith.CmpIOp):
            predicate = arith.CmpIPredicate(owner.predicate.value).name
            if predicate in PREDICATES:
                return predicate, self(owner.lhs), self(owner.rhs)
        if isinstance(owner, ws.ElementOp):
            return self._element(owner)
        raise NoExpressionError(owner)

    def _extent(self, op: ws.ExtentOp) -> Expr:
        """The name of a run-time size, or a static size itself."""
        name = self._dims[self._arguments.index(op.source)][op.dim.value]
        return name or ir.MemRefType(op.source.type).get_dim_size(op.dim.value)

    def _element(self, op: ws.ElementOp) -> Expr:
        """The name of an element of an input, whose coordinates must not move within a work
        tile.
        """
        number = self._arguments.index(op.source) if op.source in self._arguments else None
        if number is None or self._roles[number] != "in":
            raise NoExpressionError(op)
        coords = [self(coord) for coord in op.coords]
        if any(names(coord) & self._moving for coord in coords):
            raise NoExpressionError(op)
        return f"{self._names[number]}[{', '.join(text(self._sums(coord)) for coord in coords)}]"


def is_element(name: str) -> bool:
    """Whether a name is that of an input's element."""
    return name.endswith("]")


def sizes(kernel: ws.KernelOp) -> set[str]:
    """Names of run-time sizes, which are never negative."""
    return {name for dims in kernel.dims for name in dims if name}


def known_at_launch(kernel: ws.KernelOp) -> set[str]:
    """Names of run-time sizes and of scalars."""
    roles = zip(kernel.names, kernel.io_roles, strict=True)
    return sizes(kernel) | {name for name, role in roles if role == "scalar"}
