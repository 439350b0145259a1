"""The table of schedules, and the choice of one for an operation on a target.

A schedule is a class under `@register` in a module that `MODULES` lists, or in one of another project,
which is imported before it is asked for. It says which operation it
computes and which features of a target it needs, chooses its configuration and builds its kernel. Passes
use this table and name no schedule.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.extensions import note
from attn_mlir.schedules.policy.tiling import SCHEDULE_NAMES

SCHEDULE = "attn.schedule"  # attribute of an operation: the name of its schedule
MODULES = (
    "append.kernel",
    "attention.keys_in_rows.kernel",
    "attention.streaming.kernel",
    "attention.tensor_memory.kernel",
    "attention.warpgroups.kernel",
    "combine.kernel",
    "latent.decode.kernel",
    "latent.decode.kernel_pair",
    "latent.decode.kernel_streaming",
    "latent.decode.kernel_warpgroups",
    "latent.prefill.kernel",
    "latent.sparse.kernel",
    "latent.sparse.kernel_pair",
    "latent.sparse.kernel_pair_threads",
)
"""Where the schedules are, below `attn_mlir.schedules`."""
KERNELS = MappingProxyType({"tma_copy": ("copy.kernel", "schedule_tma_copy")})
"""Kernels without an operation of `attn`: the module below `attn_mlir.schedules`, and its function."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a schedule that has none."""


class Schedule(Protocol):
    """One way to compute one operation.

    Attributes:
      name: for messages.
      operation: the class of the operation.
      options: a frozen dataclass whose fields, all with defaults and described under `Attributes:`,
        become options of `attn-configure`.
      needs: the features without which a target cannot run its kernels.
    """

    name: ClassVar[str]
    operation: ClassVar[type[Any]]
    options: ClassVar[type[Any]]
    needs: ClassVar[frozenset[Feature]]

    def takes(self, op: Any, target: Target) -> bool:
        """Whether an operation that names no schedule gets this one; one of a target at most."""
        ...

    def configure(self, op: Any, target: Target, options: Mapping[str, Any]) -> None:
        """Chooses tiles and budgets and stores them on the operation.

        Args:
          options: what `attn-configure` was given, by the names of `options`.

        Raises:
          VerifyError: no kernel for this operation, or an impossible configuration.
        """
        ...

    def build(self, function: Any, op: Any, target: Target) -> ws.KernelOp:
        """Builds the kernel at the insertion point.

        Args:
          function: holds the operation and no other computation.

        Raises:
          VerifyError: the function has a form that the kernel does not cover.
        """
        ...


_ScheduleT = TypeVar("_ScheduleT", bound=type[Any])

_schedules: dict[str, Schedule] = {}
_is_complete = False


def register(cls: _ScheduleT) -> _ScheduleT:
    """Class decorator that adds a Schedule to the table, and its name to those that requests take."""
    known = _schedules.setdefault(cls.name, cls())
    assert type(known).__qualname__ == cls.__qualname__, f"two schedules are named {cls.name}"
    note(cls.__module__)
    operation = cls.operation.OPERATION_NAME.removeprefix("attn.")
    if (names := SCHEDULE_NAMES.get(operation)) is not None:
        names.setdefault(cls.name, cls.name.replace("-", "_"))
    return cls


def schedules() -> list[Schedule]:
    """Every schedule, by name."""
    global _is_complete
    if not _is_complete:
        for module in MODULES:
            importlib.import_module(f"attn_mlir.schedules.{module}")
        _is_complete = True
    return [_schedules[name] for name in sorted(_schedules)]


def operations() -> tuple[type[Any], ...]:
    """The classes of operations that have a schedule for any target."""
    return tuple(dict.fromkeys(schedule.operation for schedule in schedules()))


def schedule_for(op: Any, target: Target) -> Schedule:
    """The schedule of an operation.

    Raises:
      TargetError: no schedule applies to the target, or the one that the operation names does not;
        says what each would need.
      VerifyError: no schedule takes the operation, or several do, or it names an unknown one.
    """
    name = op.operation.name
    of_kind = [schedule for schedule in schedules() if isinstance(op, schedule.operation)]
    if (named := _named(op)) is not None:
        of_kind = [schedule for schedule in of_kind if schedule.name == named]
        if not of_kind:
            known = ", ".join(s.name for s in schedules() if isinstance(op, s.operation))
            raise op_error(op, f"expects {SCHEDULE} of {known}, got {named}")
    applying = [schedule for schedule in of_kind if schedule.needs <= target.features]
    if not applying:
        lacking = [f"{s.name} needs {target.missing(s.needs)}" for s in of_kind]
        missing = "; ".join(lacking) or "there is none"
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
    """The name of the schedule in the attribute of an operation; "" if it names none."""
    attributes = op.operation.attributes
    return ir.StringAttr(attributes[SCHEDULE]).value if SCHEDULE in attributes else None


def kernel_named(name: str) -> Callable[[str], ws.KernelOp]:
    """The function that builds a kernel of `KERNELS`, given the name of its entry, at the insertion point.

    Raises:
      SpecError: there is no such kernel.
    """
    if name not in KERNELS:
        raise SpecError(f"no kernel is named {name}: known are {', '.join(KERNELS)}")
    module, function = KERNELS[name]
    return getattr(importlib.import_module(f"attn_mlir.schedules.{module}"), function)
