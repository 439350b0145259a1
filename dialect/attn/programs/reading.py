"""Reads the region of `attn.mha` back as a program: the inverse of `expression`, for kernels made
from text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.programs.expression import FLOAT_OPS, FLOAT_PREDICATES, INTEGER_OPS
from attn_mlir.dialect.attn.programs.program import (
    ARGUMENTS,
    COMPARISONS,
    TENSOR_DTYPES,
    TYPES,
    CapturedTensor,
    Node,
    Program,
    load_type,
)
from attn_mlir.element_types import name_of_mlir

Value = Any

_FLOATS = {kind.OPERATION_NAME: name for name, kind in FLOAT_OPS.items()}
_INTEGERS = {kind.OPERATION_NAME: name for name, kind in INTEGER_OPS.items()}
_OF_FLOATS = {
    int(getattr(arith.CmpFPredicate, text)): name for name, text in FLOAT_PREDICATES.items()
}
_OF_INTEGERS = {
    int(getattr(arith.CmpIPredicate, name if name in ("eq", "ne") else f"s{name}")): name
    for name in COMPARISONS
}
_CASTS = {  # (operation, type of its operand)
    *(("arith.fptosi", "f32"), ("arith.extsi", "i32"), ("arith.trunci", "i64")),
    *(("arith.sitofp", "i32"), ("arith.sitofp", "i64")),
    *(("arith.extui", "i1"), ("arith.uitofp", "i1")),
}
_OF_ELEMENTS = {  # what `load` does itself
    *(("arith.extf", "bf16"), ("arith.extf", "f16"), ("arith.truncf", "f64")),
    ("arith.extsi", "i16"),
}
_OF_TRUTH = ("and", "or", "xor", "eq", "ne")  # integer operations that programs do with i1


class Unread(Exception):
    """An operation that no program has; its name is the message."""


def read_program(block: Any, names: Mapping[Value, str]) -> Program | None:
    """The program of a score modifier's block; None for one that leaves scores as they are.

    Args:
      block: of (score, batch, head, q, k).
      names: what callers call the tensors that the block may read.

    Raises:
      Unread: the block does what no program can say.
    """
    reader = _Reader(block.arguments, names)
    for op in block.operations:
        reader.read(op)
    program = reader.program()
    is_identity = program.score == 0 and not program.keeps and program.sink is None
    return None if is_identity else program


class _Reader:
    """Reads operations one by one."""

    def __init__(self, arguments: Sequence[Value], names: Mapping[Value, str]):
        self._names = names
        self._nodes: list[Node] = []
        self._numbers: dict[Value, int] = {}  # value -> its node
        self._elements: set[Value] = set()  # values of a type that a load converts from
        self._coordinates: dict[Value, Value] = {}  # index -> the integer that it is
        self._tensors: list[CapturedTensor] = []
        self._keeps: list[int] = []
        self._sink: int | None = None
        self._score = 0
        for name, value in zip(ARGUMENTS, arguments, strict=True):
            self._add(value, Node("argument", "f32" if name == "score" else "i32", value=name))

    def program(self) -> Program:
        """The program read so far."""
        return Program(
            tuple(self._nodes), self._score, tuple(self._keeps), tuple(self._tensors), self._sink
        )

    def read(self, op: Any) -> None:
        """Reads one operation.

        Raises:
          Unread: no program has it.
        """
        special: dict[str, Callable[[Any], None]] = {
            "arith.constant": self._constant,
            "arith.index_cast": self._index,
            "tensor.extract": self._load,
            "attn.keep": lambda op: self._keeps.append(self._number(op.operands[0])),
            "attn.sink": self._set_sink,
            "attn.yield": self._set_score,
        }
        name = op.operation.name
        if name in special:
            special[name](op)
        elif (name, self._kind(op)) in _OF_ELEMENTS:
            self._convert(op)
        else:
            self._value(op, self._meaning(op))

    def _kind(self, op: Any) -> str:
        """The type of the first operand, that of the last one of `arith.select`."""
        operands = list(op.operands)
        return str(operands[-1].type) if operands else ""

    def _convert(self, op: Any) -> None:
        """Makes an element the number that `load` gives."""
        element, value = op.operands[0], op.results[0]
        number = self._numbers.get(element)
        if number is None or str(value.type) != self._nodes[number].type:
            raise Unread(f"{op.operation.name} to {value.type}")
        self._numbers[value] = number

    def _meaning(self, op: Any) -> str:
        """The operation of programs that an operation is."""
        name, kind = op.operation.name, self._kind(op)
        if name == "arith.select":
            return "where"
        if name == "arith.divf":
            return "div"
        if name in ("arith.cmpf", "arith.cmpi"):
            known = _OF_FLOATS if name == "arith.cmpf" else _OF_INTEGERS
            found = known.get(ir.IntegerAttr(op.operation.attributes["predicate"]).value)
        elif (name, kind) in _CASTS:
            found = "cast"
        else:
            found = (_FLOATS if kind == "f32" else _INTEGERS).get(name)
        if kind == "i1" and found not in (*_OF_TRUTH, "cast"):
            found = None
        if found is None:
            raise Unread(name)
        return found

    def _value(self, op: Any, meaning: str) -> None:
        args = tuple(self._number(operand) for operand in op.operands)
        self._add(op.results[0], Node(meaning, self._type(op, op.results[0]), args))

    def _add(self, value: Value, node: Node) -> None:
        self._numbers[value] = len(self._nodes)
        self._nodes.append(node)

    def _number(self, value: Value) -> int:
        """The node of an operand."""
        if value not in self._numbers or value in self._elements:
            raise Unread(f"a value of type {value.type} from outside")
        return self._numbers[value]

    def _type(self, op: Any, value: Value) -> str:
        if str(value.type) not in TYPES:
            raise Unread(f"{op.operation.name} of {value.type}")
        return str(value.type)

    def _constant(self, op: Any) -> None:
        attribute = op.operation.attributes["value"]
        kind = str(op.results[0].type)
        if kind == "index":
            raise Unread("arith.constant of index")
        is_float = self._type(op, op.results[0]) == "f32"
        value = ir.FloatAttr(attribute).value if is_float else ir.IntegerAttr(attribute).value
        self._add(
            op.results[0], Node("constant", kind, value=bool(value) if kind == "i1" else value)
        )

    def _index(self, op: Any) -> None:
        self._coordinates[op.results[0]] = op.operands[0]

    def _load(self, op: Any) -> None:
        """An element; a coordinate below 0 is moved to 0, where that of a program counts from the
        end.
        """
        source, *indices = op.operands
        dtype = name_of_mlir(str(source.type.element_type))
        if source not in self._names or dtype not in TENSOR_DTYPES:
            raise Unread(f"tensor.extract of {source.type}")
        tensor = CapturedTensor(self._names[source], dtype, len(indices))
        if tensor not in self._tensors:
            self._tensors.append(tensor)
        args = tuple(self._inside(index) for index in indices)
        element = op.results[0]
        kind = load_type(dtype)
        self._add(element, Node("load", kind, args, self._tensors.index(tensor)))
        if str(element.type) != kind:
            self._elements.add(element)

    def _inside(self, index: Value) -> int:
        if index not in self._coordinates:
            raise Unread(f"tensor.extract at {index.type}")
        coordinate = self._coordinates[index]
        number = self._number(coordinate)
        kind = self._nodes[number].type
        if self._nodes[number].op == "argument":
            return number
        self._nodes += [
            Node("constant", kind, value=0),
            Node("max", kind, (number, len(self._nodes))),
        ]
        return len(self._nodes) - 1

    def _set_sink(self, op: Any) -> None:
        self._sink = self._number(op.operands[0])

    def _set_score(self, op: Any) -> None:
        self._score = self._number(op.operands[0])
