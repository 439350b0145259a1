"""Checks our operations against the fields of their classes, with errors that name the field.

MLIR calls `verify_invariants` before its own checks of the declared fields, on operations that may
lack an operand or attribute, or have one of another type. Therefore the classes of all fields are
checked here first; the numbers of operands, results and regions are left to MLIR's checks, which
come last. The parser accepts any parameters for our types: a type class says what is wrong with
them in `misfit() -> str`, which is empty if nothing is.

The binding cannot declare a field of class DenseI32ArrayAttr and its like: such a field is `Any`,
and the operation class says so in `ATTRIBUTE_CLASSES = {"dims": ir.DenseI32ArrayAttr}`. Nor can it
declare an attribute that may be absent: the class names those in `OPTIONAL_ATTRIBUTES`, likewise.

The guard is handed the binding's modules by `_mlir`, the module that it serves.
"""

import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

OPERAND_SEGMENTS = "operandSegmentSizes"
RESULT_SEGMENTS = "resultSegmentSizes"

_ANY = 1 << 31


class _Count(NamedTuple):
    """The number of values of a field.

    Attributes:
      words: for messages.
      least, most: bounds of it.
    """

    words: str
    least: int
    most: int


_ONE = _Count("1", 1, 1)


class _Field(NamedTuple):
    """A field of an operation class, and what verified operations must have in it.

    Attributes:
      name: of the field.
      words: the class that a type or attribute must have, for messages.
      test: whether a type or attribute is of that class.
      misfit: what is wrong with the parameters of a type of ours; None for others.
      arity: how many values it has.
    """

    name: str
    words: str
    test: Callable[[Any], bool]
    misfit: Callable[[Any], str] | None
    arity: _Count


class _Values(NamedTuple):
    """The operands or the results of an operation class.

    Attributes:
      kind: for messages.
      segments: the attribute with the number of values of each field, if that varies.
      fields: in order.
      is_fixed: whether each field has exactly one value.
    """

    kind: str
    segments: str
    fields: list[_Field]
    is_fixed: bool


class _Fields(NamedTuple):
    """The fields of an operation class, by what they declare."""

    operands: _Values
    attributes: list[_Field]
    results: _Values
    region_count: int


class _Misfit(Exception):
    """An operation that does not fit its class; messages put the operation's name before the
    text.
    """


class Guard:
    """Puts the checks of this module in front of verifiers.

    Args:
      ir, ext, irdl: the binding's modules.
    """

    def __init__(self, ir: Any, ext: Any, irdl: Any):
        self._ir, self._ext = ir, ext
        self._counts = {
            irdl.Variadicity.single: _ONE,
            irdl.Variadicity.optional: _Count("0 or 1", 0, 1),
            irdl.Variadicity.variadic: _Count("any", 0, _ANY),
        }

    def apply(self, op_class: Any) -> None:
        """Puts the checks in front of the `verify_invariants` of a class, once."""
        if "_is_guarded" in op_class.__dict__:
            return
        fields = self._fields(op_class)
        optional = [
            self._field(name, kind)
            for name, kind in op_class.__dict__.get("OPTIONAL_ATTRIBUTES", {}).items()
        ]
        verify = getattr(op_class, "verify_invariants", None)

        def guarded(op: Any) -> bool:
            try:
                for field in optional:
                    if field.name in op.attributes:
                        _check_attribute(field, op.attributes[field.name])
                is_countable = self._check(op, fields)
            except _Misfit as misfit:
                op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {misfit}")
                return False
            return verify(op) if verify is not None and is_countable else True

        op_class._is_guarded = True
        op_class.verify_invariants = staticmethod(guarded)

    def _fields(self, op_class: Any) -> _Fields:
        operands, attributes, results, regions = self._ext.partition_fields(op_class._fields)
        classes = op_class.__dict__.get("ATTRIBUTE_CLASSES", {})
        return _Fields(
            self._values("operand", OPERAND_SEGMENTS, operands),
            [self._field(x.name, classes.get(x.name, x.constraint)) for x in attributes],
            self._values("result", RESULT_SEGMENTS, results),
            len(regions),
        )

    def _field(self, name: str, constraint: Any, arity: _Count = _ONE) -> _Field:
        misfit = getattr(constraint, "misfit", None)
        return _Field(name, self._words(constraint), self._test(constraint), misfit, arity)

    def _values(self, kind: str, segments: str, declared: list[Any]) -> _Values:
        fields = [self._field(x.name, x.constraint, self._counts[x.variadicity]) for x in declared]
        return _Values(kind, segments, fields, all(field.arity == _ONE for field in fields))

    def _check(self, op: Any, fields: _Fields) -> bool:
        """Checks the classes of attributes, operand types and result types.

        Returns:
          Whether the numbers of operands, results and regions are those that the fields declare.

        Raises:
          _Misfit: an attribute is missing, or something is of another class.
        """
        attributes = op.attributes
        for field in fields.attributes:
            if field.name not in attributes:
                raise _Misfit(f"attribute '{field.name}'")
            _check_attribute(field, attributes[field.name])
        return (
            self._check_values(fields.operands, op.operands, attributes)
            and self._check_values(fields.results, op.results, attributes)
            and len(op.regions) == fields.region_count
        )

    def _check_values(self, declared: _Values, values: Any, attributes: Any) -> bool:
        """Checks the types of operands or results; returns whether their number is as declared."""
        owners = declared.fields
        if not declared.is_fixed:
            counts = self._segments(declared.segments, owners, attributes)
            owners = [x for x, count in zip(owners, counts, strict=True) for _ in range(count)]
        if len(owners) != len(values):
            return False
        for field, value in zip(owners, values, strict=True):
            got = value.type
            if not field.test(got):
                raise _Misfit(f"{declared.kind} '{field.name}' of {field.words}, got {got}")
            if field.misfit is not None and (text := field.misfit(got)):
                raise _Misfit(f"{declared.kind} '{field.name}' {text}, got {got}")
        return True

    def _segments(self, name: str, fields: list[_Field], attributes: Any) -> list[int]:
        """The number of values of each field, from the operation's attribute `name`."""
        if name not in attributes:
            raise _Misfit(f"attribute '{name}'")
        got = attributes[name]
        if isinstance(got, self._ir.DenseI32ArrayAttr):
            counts = [int(count) for count in got]
            if len(counts) == len(fields) and all(map(_is_count, fields, counts)):
                return counts
        names = ", ".join(f"{field.name} ({field.arity.words})" for field in fields)
        raise _Misfit(f"attribute '{name}' with an i32 count for each of {names}, got {got}")

    def _test(self, constraint: Any) -> Callable[[Any], bool]:
        """A predicate: whether a type or attribute fits a constraint, an integer also its width."""
        if _is_free(constraint):
            return lambda got: True
        origin = typing.get_origin(constraint)
        if origin in (types.UnionType, typing.Union):
            tests = [self._test(option) for option in typing.get_args(constraint)]
            return lambda got: any(test(got) for test in tests)
        kind = origin or constraint
        if origin is self._ir.IntegerType:
            width = typing.get_args(constraint)[0]
            return lambda got: isinstance(got, kind) and got.width == width
        return lambda got: isinstance(got, kind)

    def _words(self, constraint: Any) -> str:
        """A constraint's name for messages: `i32`, `!ws.ring`, `IntegerAttr`."""
        if _is_free(constraint):
            return "any kind"
        origin = typing.get_origin(constraint)
        if origin is self._ir.IntegerType:
            return f"i{typing.get_args(constraint)[0]}"
        if origin in (types.UnionType, typing.Union):
            return " or ".join(self._words(option) for option in typing.get_args(constraint))
        kind = origin or constraint
        if issubclass(kind, self._ext.Type):
            return f"!{kind.type_name}"
        if issubclass(kind, self._ext.Attribute):
            return f"#{kind.attr_name}"
        return kind.__name__


def _is_free(constraint: Any) -> bool:
    """Whether everything fits a constraint."""
    return constraint is Any or isinstance(constraint, TypeVar)


def _check_attribute(field: _Field, got: Any) -> None:
    if not field.test(got):
        raise _Misfit(f"attribute '{field.name}' of {field.words}, got {got}")


def _is_count(field: _Field, count: int) -> bool:
    """Whether a field may have `count` values."""
    return field.arity.least <= count <= field.arity.most
