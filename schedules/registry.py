"""The table of schedules, which build the kernels of policies.

A schedule is a class under `@register` in a module that `MODULES` lists, or in one of another
project, which is imported before it is asked for. It names its policy, by which it is chosen
(`attn_mlir.schedules.choice`). Passes use this table and name no schedule.
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

MODULES = (
    "append.kernel",
    "attention.keys_in_rows.kernel",
    "attention.streaming.kernel",
    "attention.tensor_memory.kernel",
    "attention.warpgroups.kernel",
    "backward.accumulators",
    "backward.delta",
    "backward.fused",
    "backward.kernel",
    "backward.sums",
    "backward.tensor_memory.kernel",
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
"""Kernels without an operation of `attn`: the module below `attn_mlir.schedules`, and its function.
"""


class Schedule(Protocol):
    """One way to compute one operation.

    Attributes:
      policy: how it is chosen and set.
      operation: the class of the operation.
    """

    policy: ClassVar[Policy]
    operation: ClassVar[type[Any]]

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
    """Class decorator that adds a Schedule to the table, and its policy to those that are asked."""
    policy = cls.policy
    known = _schedules.setdefault(policy.name, cls())
    assert type(known).__qualname__ == cls.__qualname__, f"two schedules are named {policy.name}"
    note(cls.__module__)
    if policy not in POLICIES:
        POLICIES.append(policy)
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
