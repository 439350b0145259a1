"""Public functions made of planners: one that carries the plan out, and one that only returns it.

A planner is a function that checks the arguments of a call and makes its `Plan`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.plan import Plan
from attn_mlir.api.repeated import Repeated
from attn_mlir.naming import check_options

P = ParamSpec("P")


def carried_out(planner: Callable[P, Plan]) -> Callable[P, Any]:
    """A function that plans and runs, with the name, signature and docstring of the planner.

    Repeated calls are not planned again; see `repeated`.
    """
    repeated = Repeated(planner)

    @functools.wraps(planner)
    def call(*arguments: P.args, **options: P.kwargs) -> Any:
        try:
            return repeated(arguments, options)
        except TypeError:
            check_options(planner, options)
            raise

    return _with_signature(outside_graphs(call), planner, Any)


def only_planned(function: Callable[P, Any]) -> Callable[P, Plan]:
    """The planner of a function made by `carried_out`, as a function.

    Args:
      function: the function; the planner takes the same arguments.
    """
    planner: Callable[P, Plan] = getattr(function, "planner")  # noqa: B009

    def plan(*arguments: P.args, **options: P.kwargs) -> Plan:
        """What `attention` would launch with these arguments; nothing is compiled or launched.

        Arguments and errors as `attention`. The plan can be printed, and run any number of times.
        """
        try:
            return planner(*arguments, **options)
        except TypeError:
            check_options(planner, options)
            raise

    return _with_signature(outside_graphs(plan), planner, Plan)


def _with_signature(function: Any, planner: Callable[..., Plan], returned: Any) -> Any:
    """The function with the planner's signature and another return type."""
    function.planner = planner
    signature = inspect.signature(planner)
    function.__signature__ = signature.replace(return_annotation=returned)
    return function
