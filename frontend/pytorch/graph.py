"""Attention with a score modifier inside the graphs of `torch.compile`.

A modifier is Python, so it is traced twice. PyTorch's compiler, which finds the guards and the
tensors that it needs, traces it to a graph for one score; when that graph is run or compiled
further, our tracing makes a program of it. Between the two is a higher-order operator, whose
operands are the tensors that the modifier reads. It only calls `call.call` or
`attention_call.modified_call`, so that backends see `attn_mlir::attention` or
`attn_mlir::attention_call`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from attn_mlir.pytorch.attention_call import modified_call
from attn_mlir.pytorch.call import call
from attn_mlir.runtime.call.tensors import described
from attn_mlir.trace import MaskMod, ScoreMod

torch: Any = importlib.import_module("torch")
fx: Any = importlib.import_module("torch.fx")
_base: Any = importlib.import_module("torch._higher_order_ops.base_hop")

_KEEPS = ("clone", "item")  # methods that do not change the value of one number


def call_in_graph(
    q: Any,
    k: Any,
    v: Any,
    *,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    return_lse: bool,
    **options: Any,
) -> tuple[Any, Any]:
    """`call.call` for PyTorch's compiler, which traces through this function."""
    batch, sq, heads, _ = q.shape
    shapes = ((batch, sq, heads, v.shape[3]), (batch, heads, sq) if return_lse else (0,))
    options |= {"score_mod": score_mod, "mask_mod": mask_mod, "return_lse": return_lse}
    return traced_call(*shapes, q.dtype, q=q, k=k, v=v, **options)


def traced_call(
    o_shape: tuple[int, ...],
    lse_shape: tuple[int, ...],
    dtype: Any,
    *,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    **options: Any,
) -> tuple[Any, Any]:
    """The higher-order operator for results of these shapes.

    Args:
      dtype: dtype of O.
      options: q, k, v and options of `call.call` or, with `cache`, of
        `attention_call.modified_call`.
    """
    device = options["q"].device

    def body(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> tuple[Any, ...]:
        results = [score + b + h + q_idx + kv_idx]  # names the coordinates, see `_coordinates`
        if score_mod is not None:
            results.append(_cloned(score_mod(score, b, h, q_idx, kv_idx), b))
        if mask_mod is not None:
            results.append(_cloned(mask_mod(b, h, q_idx, kv_idx), b))
        o = torch.empty(o_shape, dtype=dtype, device=device)
        return (*results, o, torch.empty(lse_shape, dtype=torch.float32, device=device))

    # of one element, not of rank 0: indexing with such a tensor asks for its value
    coordinates = [torch.zeros(1, dtype=torch.int32, device=device) for _ in range(4)]
    score = torch.zeros(1, dtype=torch.float32, device=device)
    options["has_score_mod"] = score_mod is not None
    *_, o, lse = flex_op(body, score, *coordinates, **options)
    return o, lse


def _cloned(result: Any, index: Any) -> Any:
    """A result of a modifier as a new tensor, never one of its arguments."""
    if isinstance(result, torch.Tensor):
        return result.clone()
    return torch.where(index == index, result, result)


class FlexOperator(_base.BaseHOP):
    """A higher-order operator for `call`: PyTorch's compiler makes a graph of its function
    argument.
    """

    def __init__(self) -> None:
        super().__init__("attn_mlir_flex")  # pyright: ignore[reportUnknownMemberType]

    def __call__(
        self, body: Any, *operands: Any, q: Any, has_score_mod: bool, **options: Any
    ) -> tuple[Any, ...]:
        """Returns as many results as `body` does; the last two are O and LSE.

        Args:
          body: the function of `call_in_graph` or, within a graph, its graph.
          operands: the arguments of that graph.
          q, options: see `traced_call`.
        """
        if not isinstance(body, fx.GraphModule):  # the compiler did not trace it
            closure = inspect.getclosurevars(body).nonlocals
            mods = {name: closure[name] for name in ("score_mod", "mask_mod")}
            count = 1 + sum(mod is not None for mod in mods.values())
        else:
            (output,) = body.graph.find_nodes(op="output")
            names, *results, _, _ = output.args[0]
            coordinates = _coordinates(names)
            modifiers = [
                _mod_of(body, result, coordinates, operands, q.device) for result in results
            ]
            count = 1 + len(results)
            mods = {"score_mod": modifiers.pop(0) if has_score_mod else None}
            mods["mask_mod"] = _without_score(modifiers.pop()) if modifiers else None
        attend: Callable[..., Any] = modified_call if "cache" in options else call
        o, lse = attend(q, **mods, **options)
        return (*[o] * count, o, lse)


flex_op = FlexOperator()


def _coordinates(total: Any) -> list[Any]:
    """The placeholders of score, batch, head, query and key, found as terms of a sum, in order."""
    terms: list[Any] = []
    while total.op != "placeholder":
        total, term = total.args
        terms.append(term)
    return [total, *reversed(terms)]


def _mod_of(
    body: Any, result: Any, coordinates: Sequence[Any], operands: Sequence[Any], device: Any
) -> Callable[..., Any]:
    """A function that computes one result of a graph from a score and its coordinates.

    Operands that it does not need are not touched, since sizes among them would become constants.
    """
    needed = _needed(result)
    placeholders = body.graph.find_nodes(op="placeholder")
    captured: dict[str, Any] = {}
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"coordinate_{i}") for i, node in enumerate(coordinates)}
    for node, operand in zip(placeholders, operands, strict=True):
        if node in needed and node not in copies:
            copies[node] = graph.placeholder(node.name)
            operand = _passed(operand, device)
            if isinstance(operand, torch.Tensor):
                with torch.no_grad():  # `traced` says whether it may require a gradient
                    operand = described(operand, node.name)
            captured[node.name] = operand
    for node in body.graph.nodes:
        if node not in needed or node in copies:
            continue
        if node.op == "call_method" and node.target in _KEEPS:
            copies[node] = copies[node.args[0]]
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].kwargs = {x: y for x, y in copies[node].kwargs.items() if x != "device"}
    graph.output(copies[result])
    module: Any = fx.GraphModule(body, graph)
    forward: Callable[..., Any] = cast("Any", type(module)).forward

    def mod(*coordinates: Any) -> Any:
        return forward(None, *coordinates, *captured.values())

    return mod


def _needed(result: Any) -> set[Any]:
    """A node and all nodes that it depends on."""
    needed: set[Any] = set()
    stack = [result]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    return needed


def _passed(operand: Any, device: Any) -> Any:
    """An operand as kernels take it; floats, which the compiler made host tensors, as numbers."""
    if not isinstance(operand, torch.Tensor):
        return operand if isinstance(operand, bool | float) else int(operand)
    if operand.dim():
        return operand
    return operand.to(device, torch.float32 if operand.dtype == torch.float64 else operand.dtype)


def _without_score(mod: Callable[..., Any]) -> MaskMod:
    """A predicate from a function whose first argument is the score."""

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return mod(None, b, h, q_idx, kv_idx)

    return mask_mod
