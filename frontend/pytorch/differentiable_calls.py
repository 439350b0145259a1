"""Calls of `api` as nodes of PyTorch's autograd.

A call whose gradient is requested is one node of autograd's graph. Outside of tracers `apply` makes
the node; operators get their backward formula by `register`. Every node saves the operands, O and
LSE, and calls the function of the gradients in the backward pass. A call whose gradients have no
kernel is refused before its forward kernel is launched.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from attn_mlir.api.plan_cache import READER
from attn_mlir.api.planners import planner_of
from attn_mlir.caches import CACHES
from attn_mlir.errors import AttnError, SpecError, no_kernel
from attn_mlir.pytorch.graph_calls import GraphCall
from attn_mlir.pytorch.listed_blocks import EXTENTS, LISTED, with_block_mask
from attn_mlir.pytorch.operators import static_numbers
from attn_mlir.pytorch.readable import readable
from attn_mlir.pytorch.shapes import outside_of
from attn_mlir.runtime.call.repeats import Known
from attn_mlir.runtime.call.signatures import Signature
from attn_mlir.runtime.call.tensors import TensorView, dense_strides, described
from attn_mlir.runtime.call.torch_tensors import check_tensor, is_fake, is_tracing
from attn_mlir.runtime.kernel import chosen_for_all
from attn_mlir.trace import trace_sources

torch: Any = importlib.import_module("torch")

NO_SECOND = (
    "attention has no second derivative: its gradients have none; leave create_graph out, or "
    "differentiate another function of its operands, such as PyTorch's attention"
)
Options = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class DifferentiableCall:
    """A function of `api` as a node of autograd.

    Attributes:
      function: the function, made by `declared_by`; with `return_lse` it returns O and LSE.
      backward: the function of the gradients, made by `declared_by`. Its arguments are the
        operands, O, LSE and dO, then `dlse` and `wanted`, and `captured` if the function has
        modifiers.
      backward_in_graph: `backward` for tracers.
      operands: names of the first arguments of both functions; an operand whose name begins with q
        has rows of queries, any other one rows of keys.
      of_forward: names of arguments that the gradients do not depend on.
      in_caches: operands that a cache may replace; the values name the cache's content in errors.
      options: further arguments that have a gradient.
      checks_layouts: whether to refuse operands in a memory layout that `backward` does not read.
      node: the class of the nodes outside of tracers; autograd shows its name.
      wanted: the arguments that have a gradient, in the order of `backward`'s results.
      defaults: the default of every argument of the function.
      of_backward: the arguments of `backward`, and lists of blocks.
    """

    function: Callable[..., Any]
    backward: Callable[..., Any]
    backward_in_graph: Callable[..., Any]
    operands: tuple[str, ...]
    of_forward: Sequence[str]
    in_caches: Mapping[str, str]
    options: tuple[str, ...] = ()
    checks_layouts: bool = False
    node: Any = field(init=False)
    wanted: tuple[str, ...] = field(init=False)
    defaults: Options = field(init=False)
    of_backward: frozenset[str] = field(init=False)
    # calls whose gradients have kernels, with the name of each captured tensor, None for arrays
    _checked: Known[list[str | None]] = field(init=False, default_factory=lambda: Known())

    def __post_init__(self) -> None:
        parameters = inspect.signature(self.function).parameters
        passes = {"forward": staticmethod(self._forward), "backward": staticmethod(self._backward)}
        name = f"_{self.function.__name__.capitalize()}"
        vars(self).update(
            node=type(name, (torch.autograd.Function,), passes),
            wanted=self.operands + self.options,
            defaults={name: x.default for name, x in parameters.items()},
            of_backward=frozenset((*inspect.signature(self.backward).parameters, *LISTED)),
        )

    def apply(self, *arguments: Any, **options: Any) -> Any:
        """Calls the function outside of tracers, and records it as a node of autograd.

        Raises:
          SpecError: as the function; or the gradients of the call have no kernel.
        """
        operands, named, read = self.check_call(arguments, options)
        call = {**named, "return_lse": True}
        tensors = (*operands.values(), *map(named.get, self.options), *read.values())
        o, lse = self.node.apply(call, read, *tensors)
        return (o, lse) if named.get("return_lse") else o

    def _forward(
        self, ctx: Any, options: Options, read: Mapping[str, Any], *tensors: Any
    ) -> tuple[Any, Any]:
        """O and LSE of a call that autograd records.

        Args:
          options: the arguments of the function after the operands.
          read: the tensors that modifiers capture, by name.
          tensors: the arguments of `wanted`, then the tensors of `read`; autograd tracks tensors
            only if they are direct arguments.
        """
        operands = tensors[: len(self.operands)]
        o, lse = self.function(*operands, **options)
        self.save(ctx, operands, (o, lse), options, read)
        ctx.are_readable = self.checks_layouts
        return o, lse

    def _backward(self, ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        """The gradients of the arguments of `_forward`."""
        _, _, *needs = ctx.needs_input_grad
        captured = compress(ctx.read, needs[len(self.wanted) :])
        found = self.gradients(ctx, do, dlse, compress(self.wanted, needs), captured)
        return None, None, *map(found.get, self.wanted), *map(found.get, ctx.read)

    def check_call(
        self, arguments: Sequence[Any], options: Options
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Refuses a call whose gradients have no kernel.

        Returns:
          The operands and the other arguments by name, and the captured tensors by name.

        Raises:
          SpecError: as `check_gradients`.
        """
        named = {**dict(zip(self.defaults, arguments, strict=False)), **options}
        operands = {name: named.pop(name, None) for name in self.operands}
        return operands, named, self.check_gradients(operands, named)

    def register_call(self, operator: Any, call: GraphCall) -> None:
        """Registers the backward formula of an operator that a `GraphCall` made."""

        def call_of(*inputs: Any) -> tuple[list[Any], dict[str, Any]]:
            named = dict(zip(call.arguments, inputs, strict=True))
            options = call.unflattened(lambda tensor, _: tensor, named)
            return [options.pop(name, None) for name in self.operands], options

        self.register(operator, call_of, call.arguments)

    def register(
        self,
        operator: Any,
        call_of: Callable[..., tuple[Sequence[Any], Options]],
        names: Sequence[str],
    ) -> None:
        """Registers the backward formula of an operator that returns the function's O and LSE.

        Args:
          call_of: maps the operator's arguments to the operands and to the other arguments of the
            function by name.
          names: names of the operator's arguments; the argument `captured` has the lists of blocks,
            then the tensors that modifiers read.
        """

        def setup(ctx: Any, inputs: Sequence[Any], output: Sequence[Any]) -> None:
            operands, options = call_of(*inputs)
            if not options.get("return_lse"):
                raise SpecError("return_lse must be True: gradients are computed from LSE")
            known = static_numbers(options)
            if EXTENTS in options:
                known = with_block_mask(known, *operands[:2], are_read=False)
            read = self.check_gradients(dict(zip(self.operands, operands, strict=True)), known)
            self.save(ctx, operands, output, options, read)

        def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
            needs: dict[str, Any] = dict(zip(names, ctx.needs_input_grad, strict=False))
            wanted = [name for name in self.wanted if needs.get(name)]
            listed: Sequence[bool] = needs.get("captured", ())
            behind = len(listed) - len(ctx.read)  # number of lists of blocks
            found = self.gradients(ctx, do, dlse, wanted, compress(ctx.read, listed[behind:]))
            lists = {"captured": [None] * behind + [found.get(name) for name in ctx.read]}
            return tuple(lists.get(name, found.get(name)) for name in needs)

        operator.register_autograd(backward, setup_context=setup)

    def save(
        self,
        ctx: Any,
        operands: Sequence[Any],
        results: Sequence[Any],
        options: Options,
        read: Mapping[str, Any],
    ) -> None:
        """Saves the tensors and options that the gradients of a call are computed from.

        Args:
          results: O and LSE.
          options: the other arguments of the function; arguments of `of_forward` are not saved.
          read: the tensors that modifiers capture, by name; autograd checks that they are not
            modified before the backward pass.
        """
        of_backward = self.of_backward
        options = {name: x for name, x in options.items() if name in of_backward and x is not None}
        arrays = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
        ctx.save_for_backward(*operands, *results, *arrays.values(), *read.values())
        ctx.arrays, ctx.read = tuple(arrays), tuple(read)
        ctx.options = {name: x for name, x in options.items() if name not in arrays}
        ctx.are_readable = False
        ctx.set_materialize_grads(False)

    def gradients(
        self, ctx: Any, do: Any, dlse: Any, wanted: Iterable[str], captured: Iterable[str]
    ) -> dict[str, Any]:
        """The requested gradients, by the names of their arguments and captured tensors.

        They are deterministic if the call or `torch.use_deterministic_algorithms` asks for it.

        Args:
          do, dlse: the gradients of O and LSE; None stands for 0.
          wanted: names of arguments, some of `self.wanted`.
          captured: names of captured tensors.
        """
        count, saved = len(self.operands), ctx.saved_tensors
        operands, (o, lse, *others) = saved[:count], saved[count:]
        wanted, captured = tuple(wanted), tuple(captured)
        if (do is None and dlse is None) or not (wanted or captured):
            return {}
        options: dict[str, Any] = {**self._in_order(), **ctx.options}
        options |= zip(ctx.arrays, others, strict=False)
        if dlse is not None:
            options["dlse"] = dlse.contiguous()
        if wanted != self.operands:
            options["wanted"] = wanted
        if captured:
            options["captured"] = captured
        do = torch.zeros_like(o) if do is None else do
        with torch.no_grad():
            given = (*operands, o, lse, readable("do", do))
            if not ctx.are_readable:
                pairs = zip(self.operands, operands, strict=True)
                given = (*(readable(name, x) for name, x in pairs), *given[count:])
            if is_fake(o) or is_tracing():
                found = self.backward_in_graph(*(x.detach() for x in given), **options)
            elif EXTENTS in options:
                found = self.backward(*given, **with_block_mask(options, *operands[:2]))
            else:
                found = self.backward(*given, **options)
            made = dict(zip(self.wanted, found, strict=False))
            self._clear_outside(made, options)
        if captured:
            made |= found.captured
        made = {name: made[name] for name in (*wanted, *captured)}
        return _once(made, (*operands, do, *others))

    def _in_order(self) -> dict[str, bool]:
        """The option `deterministic`, for functions of gradients that have it."""
        if "deterministic" not in self.of_backward:
            return {}
        return {"deterministic": torch.are_deterministic_algorithms_enabled()}

    def _clear_outside(self, made: Mapping[str, Any], options: Options) -> None:
        """Zeroes the rows past the end of each sequence, which kernels do not write.

        Args:
          made: gradients or None, by the names of their arguments; gradients of operands are
            [batch, rows, ...], or [rows, ...] with offsets.
          options: the arguments of the function, with the lengths.
        """
        for side in ("q", "k"):
            if (used := options.get(f"seqused_{side}")) is None:
                continue
            names = [name for name in self.operands if name.startswith("q") == (side == "q")]
            if tensors := [made[name] for name in names if made[name] is not None]:
                outside = outside_of(tensors[0], used, options.get(f"cu_seqlens_{side}"))
                for x in tensors:
                    x.masked_fill_(outside[..., None, None], 0)

    def check_gradients(self, operands: Mapping[str, Any], options: Options) -> dict[str, Any]:
        """Refuses a call whose gradients have no kernel.

        The gradients are planned from the shapes of O and LSE; calls of equal shapes and options
        are planned once.

        Args:
          operands: the operands by the caller's names, in their order.
          options: the other arguments of the function, by name.

        Returns:
          The tensors that modifiers capture, by name.

        Raises:
          SpecError: names the argument that requires a gradient, and the reason.
        """
        signature = Signature(len(operands), *options)
        in_order = torch.are_deterministic_algorithms_enabled()
        values = (*operands.values(), *options.values(), in_order, chosen_for_all())
        with torch.no_grad():
            is_read = READER.add(signature, values)
        tensors = [signature.arrays[i] for i in signature.captured]
        arguments = (*tensors, *options.values())
        key = (*signature.key, *(getattr(x, "requires_grad", False) for x in arguments))
        if is_read and (names := self._checked.get(key)) is not None:
            pairs = zip(names, tensors, strict=True)
            return {name: x for name, x in pairs if name is not None}
        for name, x in {**operands, **options}.items():
            if isinstance(x, torch.Tensor) and name not in self.options:
                check_tensor(x, name, has_gradient=name in operands)
        with torch.no_grad():
            _, captured = trace_sources(options.get("score_mod"), options.get("mask_mod"))
            read = {name: x for name, x in captured.items() if isinstance(x, torch.Tensor)}
            self._plan(operands, options, read)
        if is_read:
            found = {id(x): name for name, x in read.items()}
            self._checked.put(key, [found.get(id(x)) for x in tensors])
        return read

    def _plan(self, operands: Mapping[str, Any], options: Options, read: Mapping[str, Any]) -> None:
        """Plans a call and its gradients; errors as `check_gradients` and as the function."""
        given: dict[str, Any] = {**operands, **{name: options.get(name) for name in self.options}}
        wanted = [name for name, x in given.items() if getattr(x, "requires_grad", False)]
        first = next(iter(wanted), self.operands[0])
        for own_name, (name, x) in zip(self.operands, operands.items(), strict=True):
            if isinstance(x, CACHES) and own_name in self.in_caches:
                held = self.in_caches[own_name]
                supported = f"gradients are those of {held} in tensors of their own"
                raise _without_gradient(
                    first, no_kernel(f"{name} of a {type(x).__name__}", supported)
                )
        found = [described(x, name) for name, x in operands.items()]
        dense = [_dense(x, x.shape, x.dtype) for x in found]
        views = dict(zip(self.operands, dense, strict=True))
        detached = {n: x.detach() for n in self.options if isinstance(x := given[n], torch.Tensor)}
        options = {**options, **detached}
        o, lse = planner_of(self.function)(**{**views, **options, "return_lse": True}).results
        if o.dtype != dense[0].dtype:
            supported = "gradients are those of O of q's dtype"
            raise _without_gradient(first, no_kernel(f"out_dtype {o.dtype}", supported))
        for name, value in options.items():
            is_known = name in self.of_forward or name in self.of_backward
            if not is_known and value is not self.defaults[name]:
                supported = "gradients are those of attention without it"
                raise _without_gradient(first, no_kernel(name, supported))
        o, lse = (_dense(dense[0], x.shape, x.dtype) for x in (o, lse))
        used = {n: x for n, x in options.items() if n in self.of_backward and x is not None}
        used = {**self._in_order(), **used}
        plan = functools.partial(planner_of(self.backward), *dense, o, lse, o, **used)
        try:
            plan()
        except AttnError as error:
            raise _without_gradient(first, str(error)) from error
        for name in (name for name, x in read.items() if x.requires_grad):
            try:
                plan(captured=(name,))
            except AttnError as error:
                raise _without_gradient(name, str(error)) from error


class _Once(torch.autograd.Function):
    """The identity, which refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> tuple[Any, ...]:
        del ctx
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise SpecError(NO_SECOND)


def _once(made: dict[str, Any], given: Sequence[Any]) -> dict[str, Any]:
    """Gradients that refuse to be differentiated, if autograd records the backward pass.

    Args:
      made: the gradients by name, or None.
      given: the tensors that they were computed from.
    """
    if not torch.is_grad_enabled():
        return made
    return dict(zip(made, _Once.apply(len(made), *made.values(), *given), strict=True))


def _without_gradient(name: str, why: str) -> SpecError:
    """The error for an argument that requires a gradient."""
    return SpecError(
        f"{name} requires a gradient, which this call has none of: {why}; call under "
        f"torch.no_grad(), or pass {name}.detach()"
    )


def _dense(like: TensorView, shape: Sequence[int], dtype: str) -> TensorView:
    """The view of a dense tensor on the device of `like`, without memory of its own."""
    strides = dense_strides(tuple(shape))
    return dataclasses.replace(like, shape=tuple(shape), strides=strides, dtype=dtype)
