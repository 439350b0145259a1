"""Lets the verifiers of our operations rely on what the fields of the class declare."""

import types
import typing
from typing import Any, NamedTuple, TypeVar

from attn_mlir.dialect._mlir import ext, irdl

OPERAND_SEGMENTS = "operandSegmentSizes"
RESULT_SEGMENTS = "resultSegmentSizes"


class _Parts(NamedTuple):
    """The fields of an operation class, by what they declare."""

    operands: list[Any]
    attributes: list[Any]
    results: list[Any]
    regions: list[Any]


def guard_verifier(op_class: Any) -> None:
    """Makes the `verify_invariants` of a class see only operations that fit its fields.

    MLIR calls it before the checks that follow from the fields, so that the operation may lack an
    operand or an attribute, or hold another kind of type. Such an operation passes here, and the
    declared checks, which come next, refuse it in their own words. They let one thing through: an
    operation that does not say how its operands are split into fields; that is refused here.
    """
    if "_is_guarded" in op_class.__dict__:
        return
    verify = getattr(op_class, "verify_invariants", None)
    parts = _Parts(*ext.partition_fields(op_class._fields))
    segments = _segment_attributes(parts)
    if verify is None and not segments:
        return

    def guarded(op: Any) -> bool:
        for name in segments:
            if name not in op.attributes:
                op.location.emit_error(f"'{op.OPERATION_NAME}' op expects attribute '{name}'")
                return False
        return verify(op) if verify is not None and _fits_fields(op, parts) else True

    op_class._is_guarded = True
    op_class.verify_invariants = staticmethod(guarded)


def _segment_attributes(parts: _Parts) -> list[str]:
    """Returns which of the attributes that split operands and results a class needs."""
    single = irdl.Variadicity.single
    return [
        name
        for name, fields in ((OPERAND_SEGMENTS, parts.operands), (RESULT_SEGMENTS, parts.results))
        if any(field.variadicity != single for field in fields)
    ]


def _fits_fields(op: Any, parts: _Parts) -> bool:
    """Whether an operation has the operands, results, regions and attributes of its class."""
    attributes = op.attributes
    if len(op.regions) != len(parts.regions):
        return False
    for field in parts.attributes:
        if field.name not in attributes:
            return False
        if not _satisfies(field.constraint, attributes[field.name]):
            return False
    return _fit(parts.operands, op.operands, attributes, OPERAND_SEGMENTS) and _fit(
        parts.results, op.results, attributes, RESULT_SEGMENTS
    )


def _fit(fields: Any, values: Any, attributes: Any, segments: str) -> bool:
    """Whether values are as many as their fields say, and of the types that they say."""
    counts = list(attributes[segments]) if segments in attributes else [1] * len(fields)
    if len(counts) != len(fields) or sum(counts) != len(values):
        return False
    constraints = [
        field.constraint for field, count in zip(fields, counts, strict=True) for _ in range(count)
    ]
    return all(
        _satisfies(constraint, value.type)
        for constraint, value in zip(constraints, values, strict=True)
    )


def _satisfies(constraint: Any, got: Any) -> bool:
    """Whether a type or attribute is of the class of a constraint; parameters are not compared."""
    if constraint is Any or isinstance(constraint, TypeVar):
        return True
    origin = typing.get_origin(constraint)
    if origin in (types.UnionType, typing.Union):
        return any(_satisfies(option, got) for option in typing.get_args(constraint))
    return isinstance(got, origin or constraint)
