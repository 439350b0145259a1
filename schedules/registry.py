"""The table of schedules, which build the kernels of policies.

A schedule is a class under `@register` that names its policy, by which it is chosen
(`attn_mlir.schedules.choice`); it lies in a module beside the policy, which is imported when a
kernel is built. Passes use this table and name no schedule.
"""

import importlib
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from attn_mlir.dialect import ws
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.errors import SpecError
from attn_mlir.extensions import note
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.policy.registry import POLICIES

KERNELS = MappingProxyType({"tma_copy": ("copy.kernel", "schedule_tma_copy")})
"""Kernels without an operation of `attn`: the module below `attn_mlir.schedules`, and its function.
"""


class Schedule(Protocol):
    """One way to compute one operation.

    Attributes:
      policy: how it is chosen and set.
    """

    policy: ClassVar[Policy]

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


def register(cls: _ScheduleT) -> _ScheduleT:
    """Class decorator that adds a Schedule to the table, and its policy to those that are asked."""
    policy = cls.policy
    known = _schedules.setdefault(policy.name, cls())
    assert type(known).__qualname__ == cls.__qualname__, f"two schedules are named {policy.name}"
    note(cls.__module__)
    if policy not in POLICIES:
        POLICIES.append(policy)
    return cls


def schedule_of(policy: Policy) -> Schedule:
    """The schedule that builds the kernels of a policy."""
    if policy.name not in _schedules:
        beside = type(policy).__module__.rpartition(".")[0]
        importlib.import_module(f"{beside}.{policy.kernel}")
    return _schedules[policy.name]


def kernel_named(name: str) -> Callable[[str], ws.KernelOp]:
    """The function that builds a kernel of `KERNELS`, given the name of its entry, at the insertion
    point.

    Raises:
      SpecError: there is no such kernel.
    """
    if name not in KERNELS:
        raise SpecError(f"no kernel is named {name}: known are {', '.join(KERNELS)}")
    module, function = KERNELS[name]
    return getattr(importlib.import_module(f"attn_mlir.schedules.{module}"), function)
