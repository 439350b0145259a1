"""Functions with another library's names and arguments: what becomes of each argument.

An argument is used, or it asks for nothing here and is taken at the values that do: a table says at
which, and what to do in the place of another one. Whatever else is passed is refused by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import as_float, flag

NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Neutral:
    """An argument without effect.

    Attributes:
      values: at which it is taken; the first one counts where it is left out.
      instead: what to do in the place of another value.
    """

    values: tuple[object, ...]
    instead: str


Table = Mapping[str, Neutral]
Arguments = Mapping[str, Neutral | None]  # of a function: None where it is used


def neutral(names: str, *values: object, instead: str) -> dict[str, Neutral]:
    """Rows of a table.

    Args:
      names: of the arguments, apart by spaces.
    """
    return dict.fromkeys(names.split(), Neutral(values, instead))


def adapter(
    table: Table, positions: str, by_name: str = "", *, options: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a function the other library's arguments in the place of those that it uses.

    Args:
      table: arguments without effect. One that the function has itself is used.
      positions: the other library's arguments in its order, apart by spaces.
      by_name: further ones that have no effect.
      options: what `**options` of the function is passed on to: its arguments by name are used as
        well.
    """

    def adapted(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = _signature(function, table, positions.split(), by_name.split(), options)
        used = _used(function, options)
        taken = {name: table[name] for name in signature.parameters if name not in used}
        order = positions.split()
        called, own = function.__qualname__, int(order[:1] == ["self"])

        @functools.wraps(function)
        def call(*arguments: Any, **given: Any) -> Any:
            if len(arguments) > len(order):
                most, count = len(order) - own, len(arguments) - own
                raise SpecError(f"{called} takes at most {most} arguments by position, got {count}")
            named = dict(zip(order, arguments, strict=False))
            for name in given:
                if name in named:
                    raise SpecError(f"{called} got {name} twice, by position and by name")
            kept: dict[str, Any] = {}
            for name, value in (named | given).items():
                if name in used:
                    kept[name] = value
                elif name in taken:
                    check_neutral(name, value, taken[name])
                else:
                    raise SpecError(f"{called} has no argument {name}")
            return function(**kept)

        vars(call).update(
            __signature__=signature,
            arguments={name: taken.get(name) for name in signature.parameters},
        )
        return call

    return adapted


def arguments_of(function: Callable[..., Any]) -> Arguments:
    """What becomes of each argument of a public function; those that no `adapter` made use all."""
    found: Arguments | None = getattr(function, "arguments", None)
    return dict.fromkeys(inspect.signature(function).parameters) if found is None else found


def check_neutral(name: str, value: object, row: Neutral) -> None:
    """Refuses a value that asks for something.

    Raises:
      SpecError: says what is allowed and what to do.
    """
    if not any(_is_same(value, x) for x in row.values):
        allowed = " or ".join(map(str, row.values))
        raise SpecError(f"{name} must be {allowed}, got {shown(value, 40)}: {row.instead}")


def _is_same(value: object, wanted: object) -> bool:
    if wanted is None:
        return value is None
    if isinstance(wanted, str):
        return isinstance(value, str) and value == wanted
    if isinstance(wanted, bool):
        try:
            return flag("", value) is wanted
        except SpecError:
            return False
    return as_float(value) == wanted


def _used(
    function: Callable[..., Any], options: Callable[..., Any] | None
) -> Mapping[str, Parameter]:
    """The arguments that a function uses, by name."""
    own = inspect.signature(function).parameters
    used = {name: x for name, x in own.items() if x.kind in NAMED}
    if options is not None:
        further = inspect.signature(options).parameters
        used |= {name: x for name, x in further.items() if x.kind is Parameter.KEYWORD_ONLY}
    return used


def _signature(
    function: Callable[..., Any],
    table: Table,
    positions: list[str],
    by_name: list[str],
    options: Callable[..., Any] | None,
) -> Signature:
    """The arguments of the other library, and those that only this package has."""
    used = _used(function, options)

    def parameter(name: str, kind: Any) -> Parameter:
        default = used[name].default if name in used else table[name].values[0]
        return Parameter(name, kind, default=default)

    first = [parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in positions]
    others = [name for name in (*used, *by_name) if name not in positions]
    return Signature([*first, *(parameter(name, Parameter.KEYWORD_ONLY) for name in others)])
