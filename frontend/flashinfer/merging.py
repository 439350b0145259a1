"""Merges states of attention, O with its LSE in base 2, of several splits of the keys."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.arrays import check_memory
from attn_mlir.compiling.splits import MAX_SPLITS
from attn_mlir.errors import SpecError
from attn_mlir.flash import flash_attn_combine
from attn_mlir.flashinfer.options import tensor
from attn_mlir.runtime.call.tensors import view

torch: Any = importlib.import_module("torch")

LN_2 = math.log(2.0)
STATE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@outside_graphs
def merge_state(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> tuple[Any, Any]:
    """As `flashinfer.merge_state`: attention to the keys of both splits.

    Args:
      v_a, v_b: O, [tokens, heads, head_dim], bf16, f16 or f32.
      s_a, s_b: LSE in base 2, [tokens, heads] f32; -inf or +inf: no keys, and O is not looked at.

    Returns:
      O and LSE likewise.

    Raises:
      SpecError: an argument is wrong.
    """
    states = {"v_a": v_a, "s_a": s_a, "v_b": v_b, "s_b": s_b}
    return _merged(states, ("v_a", "v_b"), ("s_a", "s_b"))


@outside_graphs
def merge_state_in_place(v: Any, s: Any, v_other: Any, s_other: Any, mask: Any = None) -> None:
    """As `flashinfer.merge_state_in_place`: `merge_state` into v and s.

    Args:
      mask: [tokens] bool, which rows are merged; others stay as they are. All if None.

    Raises:
      SpecError: an argument is wrong.
    """
    states = {"v": v, "s": s, "v_other": v_other, "s_other": s_other}
    if mask is not None and tensor(mask, "mask", 1, "bool").shape[0] != tensor(v, "v", 3).shape[0]:
        raise SpecError(f"mask must be [{v.shape[0]}], got {list(mask.shape)}")
    first, second = view(tensor(v, "v", 3), "v"), view(tensor(s, "s", 2, "f32"), "s")
    check_memory("v", v, first.shape, first.dtype, {"s": second})
    check_memory("s", s, second.shape, "f32", {})
    merged = _merged(states, ("v", "v_other"), ("s", "s_other"))
    for state, result in zip((v, s), merged, strict=True):
        rows = result if mask is None else torch.where(_along(mask, result), result, state)
        state.copy_(rows)


@outside_graphs
def merge_states(v: Any, s: Any) -> tuple[Any, Any]:
    """As `flashinfer.merge_states`: attention to the keys of all splits.

    Args:
      v: [tokens, parts, heads, head_dim], bf16, f16 or f32; s: [tokens, parts, heads] f32, in base
        2.

    Returns:
      O [tokens, heads, head_dim] and LSE [tokens, heads].

    Raises:
      SpecError: an argument is wrong; the parts are 1 to 256.
    """
    tensor(v, "v", 4)
    if tuple(tensor(s, "s", 3, "f32").shape) != tuple(v.shape[:3]):
        raise SpecError(f"s must be {list(v.shape[:3])} as v, got {list(s.shape)}")
    _check_dtype("v", v)
    if not 1 <= v.shape[1] <= MAX_SPLITS:
        raise SpecError(f"v has {v.shape[1]} parts, allowed are 1 to {MAX_SPLITS}")
    return merged(v.transpose(0, 1), s.transpose(0, 1), v.dtype)


def merged(outputs: Any, lses: Any, dtype: Any) -> tuple[Any, Any]:
    """The state for all keys, by the kernel that combines splits.

    The kernel gets natural logarithms of the weights relative to the largest one: with large LSEs
    a change of base would round away their differences.

    Args:
      outputs: [parts, tokens, heads, head_dim]; sums: [parts, tokens, heads], in base 2; +inf and
        -inf alike are those of parts without keys.
      dtype: of O.
    """
    largest = torch.where(lses.isinf(), -torch.inf, lses).amax(0)
    largest = torch.where(largest.isinf(), 0.0, largest)  # no part has keys
    natural = ((lses - largest).transpose(-1, -2) * LN_2).contiguous().transpose(-1, -2)
    o, lse = flash_attn_combine(outputs.float().contiguous(), natural, out_dtype=dtype)
    return o, (largest + lse / LN_2).contiguous()


def _merged(states: dict[str, Any], outputs: Sequence[str], lses: Sequence[str]) -> tuple[Any, Any]:
    first = tensor(states[outputs[0]], outputs[0], 3)
    for name in outputs:
        o = tensor(states[name], name, 3)
        if o.shape != first.shape or o.dtype != first.dtype:
            raise SpecError(
                f"{name} must be {list(first.shape)} of {first.dtype} as {outputs[0]}, got "
                f"{list(o.shape)} of {o.dtype}"
            )
        _check_dtype(name, o)
    for name in lses:
        if tuple(tensor(states[name], name, 2, "f32").shape) != tuple(first.shape[:2]):
            raise SpecError(
                f"{name} must be {list(first.shape[:2])}, got {list(states[name].shape)}"
            )
    stacked: Any = torch.stack([states[name] for name in outputs])
    return merged(stacked, torch.stack([states[name] for name in lses]), first.dtype)


def _check_dtype(name: str, value: Any) -> None:
    if value.dtype not in STATE_DTYPES:
        raise SpecError(f"{name} must be of bf16, f16 or f32, got {value.dtype}")


def _along(mask: Any, state: Any) -> Any:
    """A truth value per row, for all that a row has."""
    return mask.view(-1, *[1] * (state.dim() - 1))
