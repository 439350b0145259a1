"""Names of an attention function: what users call its arguments and results.

A bundle passes tensors and scalars by these names. They stand for the operands of the operation, so
that a name at the place of another operand is a mistake and not a choice.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn import (
    AppendOp,
    CombineOp,
    DeltaOp,
    GradientsOp,
    KvGradientsOp,
    MhaOp,
    MlaDecodeOp,
    MlaKvGradientsOp,
    MlaOp,
    MlaQGradientsOp,
    QGradientsOp,
    RoundRowsOp,
    SinkDeltaOp,
    SparseMlaOp,
    SumPartsOp,
    SumRowsOp,
    ZeroRowsOp,
)
from attn_mlir.dialect.attn.builder import ARGUMENT_DEFAULT, ARGUMENT_NAME, RESULT_NAME
from attn_mlir.dialect.diagnostics import op_error

NAME = re.compile(r"[A-Za-z_][\w.]{0,254}", re.ASCII)  # of an argument, a result or a kernel


def check_names(function: Any, *, all_named: bool = False) -> None:
    """Refuses names that are wrong or there twice and, if all must have one, missing names.

    Raises:
      VerifyError: names the argument or result.
    """
    places = _places(function, len(function.arguments), "arg_attrs", ARGUMENT_NAME, "argument")
    wanted = list(_operands(function))
    wanted += [None] * (len(places) - len(wanted))
    results = _places(function, len(function.type.results), "res_attrs", RESULT_NAME, "result")
    returned = field_names(operation_of(function), ext.Result)[: len(results)]
    taken: dict[str, str] = {name: f"result {i}" for i, name in enumerate(returned)}
    for (place, name), expected in zip(results, returned, strict=False):
        if name not in (None, expected):
            raise op_error(
                function, f'expects {RESULT_NAME} = "{expected}" on {place}, got "{name}"'
            )
    for (place, name), expected in zip(places, wanted, strict=False):
        if name is None and not all_named:
            continue
        if name is None or (expected is not None and name != expected):
            required = "a name" if expected is None else f'"{expected}"'
            got = "none" if name is None else f'"{name}"'
            raise op_error(function, f"expects {ARGUMENT_NAME} = {required} on {place}, got {got}")
        if name in taken:
            raise op_error(
                function,
                f'expects different names, got {ARGUMENT_NAME} = "{name}" on {place} and '
                f"{taken[name]}",
            )
        taken[name] = place


def default_of(function: Any, name: str) -> float | None:
    """The default value of the scalar argument that is the operand `name` of the operation.

    Raises:
      VerifyError: it is no finite number above 0.
    """
    position = operand_names(function).index(name)
    found = _attributes(function, len(function.arguments), "arg_attrs")[position]
    if ARGUMENT_DEFAULT not in found:
        return None
    attribute = found[ARGUMENT_DEFAULT]
    value = ir.FloatAttr(attribute).value if isinstance(attribute, ir.FloatAttr) else math.nan
    if not (0.0 < value < math.inf):
        raise op_error(
            function,
            f"expects {ARGUMENT_DEFAULT} on argument {position} to be a finite float above 0, got "
            f"{attribute}",
        )
    return value


def names_of(function: Any) -> list[str | None]:
    """The name of each argument, None where it has none."""
    count = len(function.arguments)
    return [name for _, name in _places(function, count, "arg_attrs", ARGUMENT_NAME, "argument")]


def _operands(function: Any) -> tuple[str, ...]:
    """The names that the first arguments must have, up to the first operand that may be absent."""
    declared, names = get_type_hints(operation_of(function)), operand_names(function)
    chosen = [name for name in names if get_origin(declared[name]) is Sequence]
    if len(chosen) > 1:
        names = names[: names.index(chosen[0])]
    return names[: len(function.arguments)]


def operand_names(function: Any) -> tuple[str, ...]:
    """The names of the operands that are arguments of their own:
    not of values in the rows of keys.
    """
    operation = operation_of(function)
    names = field_names(operation, ext.Operand)
    body = list(function.body.blocks[0].operations) if function.body.blocks else []
    is_shared = any(isinstance(op, MhaOp) and op.shares_rows for op in body)
    return tuple(name for name in names if not (is_shared and name == "v"))


def operation_of(function: Any) -> type:
    """The class of the operation that a function is for: `attn.mha` where it has no other."""
    body = list(function.body.blocks[0].operations) if function.body.blocks else []
    sums = (DeltaOp, SinkDeltaOp, SumRowsOp, SumPartsOp)
    gradients = (*sums, GradientsOp, KvGradientsOp, QGradientsOp, MlaKvGradientsOp, MlaQGradientsOp)
    others = (
        CombineOp,
        AppendOp,
        SparseMlaOp,
        MlaOp,
        MlaDecodeOp,
        *gradients,
        RoundRowsOp,
        ZeroRowsOp,
    )
    found = (kind for op in body for kind in others if isinstance(op, kind))
    return next(found, MhaOp)


def field_names(operation: type, kind: Any) -> tuple[str, ...]:
    """The names of an operation's operands or results, in the order of their declaration, those of
    its bases first.

    Args:
      kind: `ext.Operand` or `ext.Result`; a field may be a sequence of these.
    """
    return tuple(
        name
        for name, declared in get_type_hints(operation).items()
        if kind in (get_origin(declared), *map(get_origin, get_args(declared)))
    )


def _attributes(function: Any, count: int, label: str) -> list[Any]:
    """The attribute dictionary of each argument or result."""
    attributes = function.operation.attributes
    if label not in attributes:
        return [ir.DictAttr.get({})] * count
    return [ir.DictAttr(entry) for entry in ir.ArrayAttr(attributes[label])]


def _places(
    function: Any, count: int, label: str, attribute: str, kind: str
) -> list[tuple[str, str | None]]:
    """For each argument or result, the words that messages use for it, and its name."""
    found: list[tuple[str, str | None]] = []
    for position, entries in enumerate(_attributes(function, count, label)):
        place = f"{kind} {position}"
        name = entries[attribute] if attribute in entries else None
        text = ir.StringAttr(name).value if isinstance(name, ir.StringAttr) else None
        if name is not None and (text is None or not NAME.fullmatch(text)):
            raise op_error(
                function,
                f"expects {attribute} on {place} to be a name of letters, digits, _ and ., got "
                f"{name}",
            )
        found.append((place, text))
    return found
