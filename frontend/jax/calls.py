"""Attention of arrays of jax as one function with a custom gradient."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.api.attention_backward import WANTED
from attn_mlir.errors import SpecError
from attn_mlir.jax.callbacks import Operation, computed

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")


@dataclass(frozen=True)
class Call:
    """A call of attention without its arrays.

    Attributes:
      forward: the operation that computes O and LSE.
      backward: `attention_backward` of the same call, before `wanted` and `captured` are filled in.
      refused: why the call has no gradients; "" if it has them.
      returns_lse: whether the caller gets LSE.
      kinds: classes of the options: jax keeps what it compiled for 1, and True is equal to that.
    """

    forward: Operation
    backward: Operation
    refused: str = ""
    returns_lse: bool = False
    kinds: tuple[type, ...] = ()


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Differentiated:
    """Names of the arrays whose gradients are requested."""

    names: tuple[str, ...]


@functools.partial(jax.jit, static_argnums=0)
def attend(call: Call, arrays: Mapping[str, Any]) -> list[Any]:
    """O, and LSE if the caller gets it.

    Args:
      arrays: array arguments of `attention` by name, and the arrays that modifiers read.
    """
    return _attend(call, dict(arrays))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: Call, arrays: dict[str, Any]) -> list[Any]:
    return _forward(call, arrays, returns_lse=call.returns_lse)


def _forward(call: Call, arrays: Mapping[str, Any], *, returns_lse: bool) -> list[Any]:
    options = (*call.forward.options, ("return_lse", returns_lse))
    made = computed(dataclasses.replace(call.forward, options=options), arrays)
    if (inside := _inside(arrays, "q", made[0].shape)) is None:
        return made
    o = jnp.where(inside[..., None, None], made[0], jnp.zeros((), made[0].dtype))
    return [o, *(jnp.where(inside[..., None, :], x, -jnp.inf) for x in made[1:])]


def _saved(call: Call, arrays: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """The results, and the residuals for the backward pass."""
    wanted = _Differentiated(tuple(name for name, x in arrays.items() if x.perturbed))
    values = {name: x.value for name, x in arrays.items()}
    if wanted.names and call.refused:
        raise SpecError(call.refused)
    o, lse = _forward(call, values, returns_lse=True)
    return [o, lse][: 1 + call.returns_lse], (values, o, lse, wanted)


def _gradients(call: Call, saved: tuple[Any, ...], cotangents: list[Any]) -> tuple[dict[str, Any]]:
    arrays, o, lse, wanted = saved
    do, dlse = (None if _is_zero(x) else x for x in [*cotangents, None][:2])
    found: dict[str, Any] = dict.fromkeys(arrays)
    if do is None and dlse is None:
        return (found,)
    given = {**arrays, "o": o, "lse": lse, "do": jnp.zeros_like(o) if do is None else do}
    if dlse is not None:
        given["dlse"] = dlse
    asked = tuple(name for name in WANTED if name in wanted.names)
    captured = tuple(name for name in wanted.names if name in call.backward.captured)
    options = dict(call.backward.options) | {"wanted": asked, "captured": captured}
    if options.get("deterministic") is None:  # some captured gradients need any order of additions
        options["deterministic"] = not captured
    operation = dataclasses.replace(call.backward, options=tuple(options.items()))
    made = computed(operation, given)
    for name, x in zip((*asked, *captured), made, strict=True):
        side = {"q": "q", "k": "k", "v": "k"}.get(name)
        inside = None if side is None else _inside(arrays, side, x.shape)
        found[name] = x if inside is None else jnp.where(inside[..., None, None], x, 0)
    return (found,)


_attend.defvjp(_saved, _gradients, symbolic_zeros=True)


def _is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


def _inside(arrays: Mapping[str, Any], side: str, shape: tuple[int, ...]) -> Any:
    """Which rows belong to a sequence, bools [batch, rows] or [total]; None if all of them do.

    Kernels do not write rows outside of every sequence.

    Args:
      side: `q` or `k`.
      shape: shape of an array with these rows.
    """
    used, offsets = (arrays.get(f"{name}_{side}") for name in ("seqused", "cu_seqlens"))
    if offsets is None:
        return None if used is None else jnp.arange(shape[1]) < used[:, None]
    rows = jnp.arange(shape[0])
    sequence = jnp.searchsorted(offsets[1:], rows, side="right")
    known = jnp.minimum(sequence, offsets.shape[0] - 2)
    inside = sequence == known
    return inside if used is None else inside & (rows - offsets[known] < used[known])
