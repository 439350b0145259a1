"""Checks our operations against the fields of their classes, with errors that name the field.

MLIR calls `verify_invariants` before its own checks of the declared fields, on operations that may
lack an operand or attribute, or have one of another type. Therefore the classes of all fields are
checked here first; the numbers of operands, results and regions are left to MLIR's checks, which
come last. The parser accepts any parameters for our types: a type class says what is wrong with
them in `misfit() -> str`, which is empty if nothing is.

The binding cannot declare a field of class DenseI32ArrayAttr and its like: such a field is `Any`,
and the operation class says so in `ATTRIBUTE_CLASSES = {"dims": ir.DenseI32ArrayAttr}`. Nor can it
declare an attribute that may be absent: the class names those in `OPTIONAL_ATTRIBUTES`, likewise.
"""

import functools
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from attn_mlir.dialect._mlir import ext, ir, irdl

OPERAND_SEGMENTS = "operandSegmentSizes"
RESULT_SEGMENTS = "resultSegmentSizes"


_ANY = 1 << 31
_COUNTS = {
    irdl.Variadicity.single: ("1", 1, 1),
    irdl.Variadicity.optional: ("0 or 1", 0, 1),
    irdl.Variadicity.variadic: ("any", 0, _ANY),
}
"""The number of values of a field: in words, and the least and most of them."""


class _Field(NamedTuple):
    """A field of an operation class, and what verified operations must have in it.

    Attributes:
      declared: the binding's description of the field.
      constraint: the class that a type or attribute must have.
      test: whether a type or attribute is of that class.
      misfit: what is wrong with the parameters of a type of ours; None for others.
    """

    declared: Any
    constraint: Any
    test: Callable[[Any], bool]
    misfit: Callable[[Any], str] | None


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
    """An operation that does not fit its class; messages put the operation's name before the text."""


def guard_verifier(op_class: Any) -> None:
    """Puts the checks of this module in front of the `verify_invariants` of a class, once."""
    if "_is_guarded" in op_class.__dict__:
        return
    operands, attributes, results, regions = ext.partition_fields(op_class._fields)
    classes = op_class.__dict__.get("ATTRIBUTE_CLASSES", {})
    fields = _Fields(
        _values("operand", OPERAND_SEGMENTS, operands),
        [_field(field, classes.get(field.name, field.constraint)) for field in attributes],
        _values("result", RESULT_SEGMENTS, results),
        len(regions),
    )
    optional = op_class.__dict__.get("OPTIONAL_ATTRIBUTES", {})
    verify = getattr(op_class, "verify_invariants", None)

    def guarded(op: Any) -> bool:
        try:
            for name, kind in optional.items():
                if name in op.attributes:
                    _check_attribute(name, kind, op.attributes[name])
            is_countable = _check(op, fields)
        except _Misfit as misfit:
            op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {misfit}")
            return False
        return verify(op) if verify is not None and is_countable else True

    op_class._is_guarded = True
    op_class.verify_invariants = staticmethod(guarded)


def _field(declared: Any, constraint: Any) -> _Field:
    misfit = getattr(constraint, "misfit", None)
    return _Field(declared, constraint, _test(constraint), misfit)


def _values(kind: str, segments: str, declared: list[Any]) -> _Values:
    fields = [_field(field, field.constraint) for field in declared]
    is_fixed = all(field.variadicity == irdl.Variadicity.single for field in declared)
    return _Values(kind, segments, fields, is_fixed)


def _check(op: Any, fields: _Fields) -> bool:
    """Checks the classes of attributes, operand types and result types.

    Returns:
      Whether the numbers of operands, results and regions are those that the fields declare.

    Raises:
      _Misfit: an attribute is missing, or something is of another class.
    """
    attributes = op.attributes
    for field in fields.attributes:
        name = field.declared.name
        if name not in attributes:
            raise _Misfit(f"attribute '{name}'")
        if not field.test(got := attributes[name]):
            raise _Misfit(f"attribute '{name}' of {_words(field.constraint)}, got {got}")
    return (
        _check_values(fields.operands, op.operands, attributes)
        and _check_values(fields.results, op.results, attributes)
        and len(op.regions) == fields.region_count
    )


def _check_attribute(name: str, constraint: Any, got: Any) -> None:
    if not _test(constraint)(got):
        raise _Misfit(f"attribute '{name}' of {_words(constraint)}, got {got}")


def _check_values(declared: _Values, values: Any, attributes: Any) -> bool:
    """Checks the types of operands or results; returns whether their number is as declared."""
    owners = declared.fields
    if not declared.is_fixed:
        counts = _segments(declared.segments, [field.declared for field in owners], attributes)
        owners = [field for field, count in zip(owners, counts, strict=True) for _ in range(count)]
    if len(owners) != len(values):
        return False
    for field, value in zip(owners, values, strict=True):
        got = value.type
        if not field.test(got):
            what = f"{declared.kind} '{field.declared.name}'"
            raise _Misfit(f"{what} of {_words(field.constraint)}, got {got}")
        if field.misfit is not None and (text := field.misfit(got)):
            raise _Misfit(f"{declared.kind} '{field.declared.name}' {text}, got {got}")
    return True


def _segments(name: str, fields: list[Any], attributes: Any) -> list[int]:
    """The number of values of each field, from the operation's attribute `name`."""
    if name not in attributes:
        raise _Misfit(f"attribute '{name}'")
    got = attributes[name]
    if isinstance(got, ir.DenseI32ArrayAttr):
        counts = [int(count) for count in got]
        if len(counts) == len(fields) and all(map(_is_count, fields, counts)):
            return counts
    names = ", ".join(f"{field.name} ({_COUNTS[field.variadicity][0]})" for field in fields)
    raise _Misfit(f"attribute '{name}' with an i32 count for each of {names}, got {got}")


def _is_count(field: Any, count: int) -> bool:
    """Whether a field may have `count` values."""
    return _COUNTS[field.variadicity][1] <= count <= _COUNTS[field.variadicity][2]


@functools.cache
def _test(constraint: Any) -> Callable[[Any], bool]:
    """A predicate: whether a type or attribute fits a constraint, an integer also its width."""
    if constraint is Any or isinstance(constraint, TypeVar):
        return lambda got: True
    origin = typing.get_origin(constraint)
    if origin in (types.UnionType, typing.Union):
        tests = [_test(option) for option in typing.get_args(constraint)]
        return lambda got: any(test(got) for test in tests)
    kind = origin or constraint
    if origin is ir.IntegerType:
        width = typing.get_args(constraint)[0]
        return lambda got: isinstance(got, kind) and got.width == width
    return lambda got: isinstance(got, kind)


def _words(constraint: Any) -> str:
    """A constraint's name for messages: `i32`, `!ws.ring`, `IntegerAttr`."""
    origin = typing.get_origin(constraint)
    if origin is ir.IntegerType:
        return f"i{typing.get_args(constraint)[0]}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_words(option) for option in typing.get_args(constraint))
    kind = origin or constraint
    if issubclass(kind, ext.Type):
        return f"!{kind.type_name}"
    if issubclass(kind, ext.Attribute):
        return f"#{kind.attr_name}"
    return kind.__name__
