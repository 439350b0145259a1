"""Makes public functions of planners: one runs the plan, one only returns it.

A planner is a function that checks the arguments of a call and makes its `Plan`. A call is declared
by a dataclass: its fields are the arguments, and the signature, the errors of Python and the
operator of PyTorch follow from them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.api.plan import Plan
from attn_mlir.api.plan_cache import CachingPlanner
from attn_mlir.naming import check_options

BY_POSITION = inspect.Parameter.POSITIONAL_OR_KEYWORD

P = ParamSpec("P")
C = TypeVar("C")
Returns = Callable[[Sequence[Any], Mapping[str, Any]], Any]


def declared_by(
    call: Callable[P, C], *, returns: Returns | None = None
) -> Callable[[Callable[[C], Plan]], Callable[P, Any]]:
    """Makes a public function of one that plans a declared call: it plans and runs.

    Repeated calls are not planned again; see `plan_cache`.

    Args:
      call: a frozen dataclass, whose fields are the function's parameters.
      returns: makes what the function returns, where that is no tuple, of the plan's results and
        the arguments that the call names.
    """

    def public(function: Callable[[C], Plan]) -> Callable[P, Any]:
        vars(call)["__init__"].__qualname__ = function.__qualname__  # which Python's errors name
        kinds = [x for x in inspect.signature(call).parameters.values() if x.kind is BY_POSITION]
        most, least = len(kinds), sum(x.default is inspect.Parameter.empty for x in kinds)
        takes = f"from {least} to {most}" if least < most else most

        @functools.wraps(function)
        def planner(*arguments: P.args, **options: P.kwargs) -> Plan:
            if len(arguments) > most:  # Python would count the object that is made as well
                raise TypeError(
                    f"{function.__name__}() takes {takes} positional arguments but "
                    f"{len(arguments)} were given"
                )
            return function(call(*arguments, **options))

        return _carried_out(_with_parameters(planner, inspect.signature(call), Plan), returns)

    return public


def _carried_out(planner: Callable[P, Plan], returns: Returns | None) -> Callable[P, Any]:
    """A function that plans and runs, with the name, signature and docstring of the planner."""
    cached = CachingPlanner(planner)

    @functools.wraps(planner)
    def call(*arguments: P.args, **options: P.kwargs) -> Any:
        try:
            found = cached(arguments, options)
        except TypeError:
            check_options(planner, options)
            raise
        return found if returns is None else returns(found, options)

    return _with_signature(outside_graphs(call), planner, Any)


def planner_of(function: Callable[P, Any]) -> Callable[P, Plan]:
    """The planner of a function made by `declared_by`; it takes the same arguments."""
    return getattr(function, "planner")  # noqa: B009


def only_planned(function: Callable[P, Any]) -> Callable[P, Plan]:
    """The planner of a function made by `declared_by`, as a function.

    Args:
      function: the function; the planner takes the same arguments.
    """
    planner = planner_of(function)

    def plan(*arguments: P.args, **options: P.kwargs) -> Plan:
        """Returns the launches of a call of `attention`; nothing is compiled or launched.

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
    return _with_parameters(function, inspect.signature(planner), returned)


def _with_parameters(function: Any, signature: inspect.Signature, returned: Any) -> Any:
    function.__signature__ = signature.replace(return_annotation=returned)
    return function
