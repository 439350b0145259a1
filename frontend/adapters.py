"""Functions with another library's names and arguments, declared by tables.

An argument is used, under our name or as part of a meaning (`Used`), or it is neutral: it has no
effect and is taken at some values alone (`Neutral`). Anything else is refused by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, cast

from attn_mlir import env
from attn_mlir.errors import SpecError, shown
from attn_mlir.naming import rename
from attn_mlir.runtime.call.scalars import as_float, flag

REQUIRED = Parameter.empty  # the default of an argument that has none
I32_ARRAY = "an array of i32"  # a value of `Neutral`: any such array
ANYTHING = "anything"  # a value of `Neutral`: it is not looked at
NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Neutral:
    """An argument without effect.

    Attributes:
      values: at which it is taken; the first one counts where it is left out.
      instead: what to do in the place of another value.
      is_logged: whether the log says once that a value other than the first is not followed.
    """

    values: tuple[object, ...]
    instead: str
    is_logged: bool = False


@dataclass(frozen=True)
class Used:
    """Arguments that are one argument of ours.

    Attributes:
      ours: our name of it.
      defaults: their arguments, each with the value that counts where it is left out.
      meaning: makes ours of theirs; None: these are names of one argument, which is passed on.
    """

    ours: str
    defaults: Mapping[str, object]
    meaning: Callable[..., Any] | None = None

    def named(self, arguments: Mapping[str, Any]) -> str:
        """The name under which the argument was passed.

        Raises:
          SpecError: it was passed under two names.
        """
        names = [name for name in self.defaults if arguments.get(name) is not None]
        if len(names) > 1:
            raise SpecError(f"{names[0]} and {names[1]} are two names of one argument: pass one")
        return names[0] if names else next(iter(self.defaults))

    def value(self, arguments: Mapping[str, Any]) -> Any:
        """Our argument, from those of theirs that were given."""
        if self.meaning is None:
            name = self.named(arguments)
            return arguments.get(name, self.defaults[name])
        return self.meaning(*[arguments.get(name, x) for name, x in self.defaults.items()])


Table = Mapping[str, Neutral]
Arguments = Mapping[str, Neutral | None]  # of a function: None where it is used


def neutral(
    names: str, *values: object, instead: str, is_logged: bool = False
) -> dict[str, Neutral]:
    """Rows of a table.

    Args:
      names: of the arguments, apart by spaces.
    """
    return dict.fromkeys(names.split(), Neutral(values, instead, is_logged))


def used(ours: str, meaning: Callable[..., Any] | None = None, **defaults: object) -> Used:
    """A row of `Options`; see `Used`."""
    return Used(ours, defaults, meaning)


def passed(names: str, default: object = None) -> list[Used]:
    """Rows for arguments that have our names, which are apart by spaces."""
    return [Used(name, {name: default}) for name in names.split()]


class Options:
    """The used options of several functions of another library.

    Attributes:
      rows: one for each argument of ours.
    """

    def __init__(self, rows: Sequence[Used]) -> None:
        """Sorts the rows once: graphs of PyTorch trace no cached property."""
        self.rows = rows
        named = [row for row in rows if row.meaning is None and len(row.defaults) == 1]
        # of arguments that are passed on: our name, theirs, and the default
        self._named = [(row.ours, *next(iter(row.defaults.items()))) for row in named]
        self._others = [row for row in rows if row not in named]
        # our names of those that are passed on, if they are not None
        self._optional = frozenset(ours for ours, _, default in self._named if default is None)

    @property
    def defaults(self) -> dict[str, object]:
        """Their arguments, each with the value that counts where it is left out."""
        return {name: x for row in self.rows for name, x in row.defaults.items()}

    def ours(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Our arguments by name, from those of theirs that were given."""
        found = {ours: arguments.get(name, default) for ours, name, default in self._named}
        return found | {row.ours: row.value(arguments) for row in self._others}

    def names(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Their names of our arguments, where these differ."""
        names = {row.ours: row.named(arguments) for row in self.rows if row.meaning is None}
        return {ours: name for ours, name in names.items() if ours != name}

    def call(
        self, function: Callable[..., Any], *operands: Any, given: Mapping[str, Any], **others: Any
    ) -> Any:
        """Calls a function of ours; its errors name arguments as they were given.

        Args:
          given: their options by name.
          others: further arguments of ours.
        """
        optional, ours = self._optional, self.ours(given) | others
        ours = {name: x for name, x in ours.items() if x is not None or name not in optional}
        try:
            return function(*operands, **ours)
        except SpecError as error:
            rename(error, self.names(given))
            raise


def check_needs(arguments: Mapping[str, object], rows: Sequence[tuple[str, str, str]]) -> None:
    """Refuses arguments without another one that they need.

    Args:
      arguments: arguments by name; None: left out.
      rows: an argument, the one that it needs, and the message.

    Raises:
      SpecError: with the message of the first such row.
    """
    for name, needed, message in rows:
        if arguments[name] is not None and arguments[needed] is None:
            raise SpecError(message)


def adapter(
    table: Table,
    positions: str,
    by_name: str = "",
    *,
    options: Options | Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a function the other library's arguments in the place of those that it uses.

    Args:
      table: arguments without effect. One that the function has itself is used.
      positions: the other library's arguments in its order, apart by spaces.
      by_name: further ones that have no effect.
      options: used as well: a table, or a function whose arguments by name these are.
    """

    def adapted(function: Callable[..., Any]) -> Callable[..., Any]:
        used, order = _used(function, options), positions.split()
        signature = _signature(used, table, order, by_name.split())
        accepted = {name: table[name] for name in signature.parameters if name not in used}
        required = [name for name, x in signature.parameters.items() if x.default is REQUIRED]
        name_of, self_count = function.__qualname__, int(order[:1] == ["self"])

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if len(arguments) > len(order):
                most, count = len(order) - self_count, len(arguments) - self_count
                raise SpecError(
                    f"{name_of} takes at most {most} arguments by position, got {count}"
                )
            positional = dict(zip(order, arguments, strict=False))
            for name in keywords:
                if name in positional:
                    raise SpecError(f"{name_of} got {name} twice, by position and by name")
            used_values: dict[str, Any] = {}
            for name, value in (positional | keywords).items():
                if name in used:
                    used_values[name] = value
                elif name in accepted:
                    check_neutral(name, value, accepted[name])
                    if accepted[name].is_logged and not _is_same(value, accepted[name].values[0]):
                        instead = accepted[name].instead
                        got = shown(value, 40)
                        env.log_once("info", f"{name_of} does not follow {name}={got}: {instead}")
                else:
                    raise SpecError(f"{name_of} has no argument {name}")
            if missing := [repr(name) for name in required if name not in used_values]:
                count = f"{len(missing)} required argument{'s' if len(missing) > 1 else ''}"
                raise TypeError(f"{name_of}() missing {count}: {', '.join(missing)}")
            return function(**used_values)

        vars(call).update(
            __signature__=signature,
            arguments={name: accepted.get(name) for name in signature.parameters},
        )
        return call

    return adapted


def arguments_of(function: Callable[..., Any]) -> Arguments:
    """The meaning of each argument of a public function; without an `adapter` all are used."""
    table: Arguments | None = getattr(function, "arguments", None)
    return dict.fromkeys(inspect.signature(function).parameters) if table is None else table


def check_neutral(name: str, value: object, row: Neutral) -> None:
    """Refuses a value that asks for something.

    Raises:
      SpecError: says what is allowed and what to do.
    """
    if not any(_is_same(value, x) for x in row.values):
        allowed = " or ".join(map(str, row.values))
        raise SpecError(f"{name} must be {allowed}, got {shown(value, 40)}: {row.instead}")


def _is_same(value: object, allowed: object) -> bool:
    if allowed is None:
        return value is None
    if allowed is ANYTHING:
        return True
    if allowed is I32_ARRAY:
        return str(getattr(value, "dtype", "")).rpartition(".")[2] == "int32"
    if isinstance(allowed, str):
        return isinstance(value, str) and value == allowed
    if isinstance(allowed, tuple):
        return isinstance(value, tuple | list) and tuple(cast("list[object]", value)) == allowed
    if isinstance(allowed, bool):
        try:
            return flag("", value) is allowed
        except SpecError:
            return False
    return as_float(value) == allowed


def _used(
    function: Callable[..., Any], options: Options | Callable[..., Any] | None
) -> Mapping[str, object]:
    """The defaults of the arguments that a function uses, by name."""
    parameters = inspect.signature(function).parameters
    defaults: dict[str, object] = {
        name: x.default for name, x in parameters.items() if x.kind in NAMED
    }
    if isinstance(options, Options):
        return defaults | options.defaults
    if options is not None:
        keywords = inspect.signature(options).parameters.items()
        defaults |= {name: x.default for name, x in keywords if x.kind is Parameter.KEYWORD_ONLY}
    return defaults


def _signature(
    used: Mapping[str, object], table: Table, positions: Sequence[str], by_name: Sequence[str]
) -> Signature:
    """The arguments of the other library, and those that only this package has."""

    def parameter(name: str, kind: Any) -> Parameter:
        default = used[name] if name in used else table[name].values[0]
        return Parameter(name, kind, default=default)

    first = [parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in positions]
    further = dict.fromkeys(name for name in (*used, *by_name) if name not in positions)
    return Signature([*first, *(parameter(name, Parameter.KEYWORD_ONLY) for name in further)])
