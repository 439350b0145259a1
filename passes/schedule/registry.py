"""The schedules there are, and which one an operation takes on a target.

A schedule is a module of `kernels/` that calls `register`. It says for which operation and for
which properties of a target it is, chooses its configuration and builds its kernel; passes walk
this table and know none of them. The modules are found by looking into the folder.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import TargetError
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.target.limits import Target

SCHEDULE = "attn.schedule"  # attribute of an operation: the name of its schedule
KERNELS = "attn_mlir.passes.schedule.kernels"  # the package whose modules are schedules


@dataclass(frozen=True)
class NoOptions:
    """Of a schedule without a choice."""


class Schedule(Protocol):
    """One way to compute one operation.

    Attributes:
      name: for messages.
      operation: the class of the operation.
      options: a frozen dataclass whose fields, all with defaults and described under `Attributes:`,
        become options of `attn-configure`.
    """

    name: ClassVar[str]
    operation: ClassVar[type[Any]]
    options: ClassVar[type[Any]]

    def lacks(self, target: Target) -> str:
        """What a target would need and has not; "" where the schedule applies."""
        ...

    def takes(self, op: Any, target: Target) -> bool:
        """Whether the schedule is for an operation that names none. At most one of a target may be."""
        ...

    def configure(self, op: Any, target: Target, options: Mapping[str, Any]) -> None:
        """Chooses tiles and budgets and leaves them on the operation.

        Args:
          options: what `attn-configure` was given, by the names of `options`.

        Raises:
          VerifyError: no kernel for this operation, or a configuration that cannot be.
        """
        ...

    def build(self, function: Any, op: Any, target: Target) -> ws.KernelOp:
        """Builds the kernel at the insertion point.

        Args:
          function: holds the operation and nothing that computes besides it.

        Raises:
          VerifyError: the function has a form that the kernel does not cover.
        """
        ...


_ScheduleT = TypeVar("_ScheduleT", bound=type[Any])

_schedules: dict[str, Schedule] = {}
_is_complete = False


def register(cls: _ScheduleT) -> _ScheduleT:
    """Class decorator: makes a Schedule known."""
    known = _schedules.setdefault(cls.name, cls())
    assert type(known).__qualname__ == cls.__qualname__, f"two schedules are named {cls.name}"
    return cls


def schedules() -> list[Schedule]:
    """Every schedule, by name."""
    global _is_complete
    if not _is_complete:
        folder = importlib.import_module(KERNELS)
        for found in pkgutil.iter_modules(folder.__path__):
            importlib.import_module(f"{KERNELS}.{found.name}")
        _is_complete = True
    return [_schedules[name] for name in sorted(_schedules)]


def operations() -> tuple[type[Any], ...]:
    """The classes of operations that have a schedule, on whatever target."""
    return tuple(dict.fromkeys(schedule.operation for schedule in schedules()))


def schedule_for(op: Any, target: Target) -> Schedule:
    """The schedule of an operation.

    Raises:
      TargetError: none applies to the target, or not the one that the operation names; says what
        each would need.
      VerifyError: none takes the operation, or several do, or the one that it names is not known.
    """
    name = op.operation.name
    of_kind = [schedule for schedule in schedules() if isinstance(op, schedule.operation)]
    if (named := _named(op)) is not None:
        of_kind = [schedule for schedule in of_kind if schedule.name == named]
        if not of_kind:
            known = ", ".join(s.name for s in schedules() if isinstance(op, s.operation))
            raise op_error(op, f"expects {SCHEDULE} of {known}, got {named}")
    applying = [schedule for schedule in of_kind if not schedule.lacks(target)]
    if not applying:
        missing = "; ".join(f"{s.name} needs {s.lacks(target)}" for s in of_kind) or "there is none"
        raise TargetError(f"no schedule of {name} applies to {target.chip}: {missing}")
    if named is not None:
        return applying[0]
    taking = [schedule for schedule in applying if schedule.takes(op, target)]
    if len(taking) != 1:
        names = ", ".join(schedule.name for schedule in (taking or applying))
        count = "several schedules" if taking else "no schedule"
        raise op_error(op, f"has {count} on {target.chip}: {names}")
    return taking[0]


def _named(op: Any) -> str | None:
    """The schedule that an operation asks for."""
    attributes = op.operation.attributes
    return ir.StringAttr(attributes[SCHEDULE]).value if SCHEDULE in attributes else None
