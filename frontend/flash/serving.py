"""Calls of serving engines beside attention, by vLLM's names: caches, states, plans."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attn_mlir.api.array_checks import checked_array
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.arrays import check_memory, on_stream
from attn_mlir.caches import ContiguousKV
from attn_mlir.calls import append_kv
from attn_mlir.errors import SpecError, shown
from attn_mlir.flash.functions import flash_attn_combine
from attn_mlir.flash.lengths import shape_of_rank
from attn_mlir.flash.rotary import as_f32, full_like
from attn_mlir.library import check_one_library, library_of
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.tensors import check_has_memory, shape_of, view
from attn_mlir.runtime.kernel import DeviceChoice

STATE_DTYPES = ("bf16", "f16", "f32")
NARROW_CACHES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
CACHES = {
    "auto": ("bfloat16", "float16"),
    "bfloat16": ("bfloat16",),
    "float16": ("float16",),
    **{name: (dtype,) for name, dtype in NARROW_CACHES.items()},
}
"""Elements of a cache by `kv_cache_dtype`, as numpy and torch call them."""

_append = renamed(
    append_kv,
    k="key_cache",
    v="value_cache",
    k_new="key",
    v_new="value",
)


def get_scheduler_metadata(*arguments: Any, cache_seqlens: Any = None, **options: Any) -> Any:
    """As FlashAttention 3's and vLLM's: a plan that functions take as `scheduler_metadata`.

    Kernels make their own plans from lengths on the device, so that this one says nothing.

    Args:
      arguments, options: of FlashAttention 3; they are not looked at.
      cache_seqlens: [batch] i32, the seventh by position; the plan lies where it does.

    Returns:
      [1] of i32.

    Raises:
      SpecError: `cache_seqlens` is no array of numpy, torch or cupy.
    """
    del options
    where = arguments[6] if len(arguments) > 6 else cache_seqlens
    library_of(where, "cache_seqlens")
    return full_like(where, 1, 0)


def reshape_and_cache_flash(
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    slot_mapping: Any,
    kv_cache_dtype: str,
    k_scale: Any,
    v_scale: Any,
    *,
    device: DeviceChoice = None,
    stream: object = None,
) -> None:
    """As `vllm._custom_ops.reshape_and_cache_flash`: writes keys and values into slots of a cache.

    Args:
      key, value: [tokens or more, kv_heads, head_dim], bf16 or f16; those past `slot_mapping` are
        padding.
      key_cache, value_cache: [blocks, block, kv_heads, head_dim], any strides but the last. One of
        8 bits may be of bytes (u8).
      slot_mapping: [tokens] i32 or i64, block x block_size + offset; a negative one is ignored.
      kv_cache_dtype: auto, bfloat16 or float16 for the cache's own elements; fp8, fp8_e4m3 or
        fp8_e5m2.
      k_scale, v_scale: f32 of one element, or [kv_heads]: elements of 8 bits are keys and values
        divided by them. Not looked at for others.
      device, stream: see `attention`.

    Raises:
      SpecError: an argument is wrong; see `append_kv`.
    """
    tokens = shape_of_rank("slot_mapping", slot_mapping, 1)[0]
    k_pages = typed_cache("key_cache", key_cache, kv_cache_dtype)
    v_pages = typed_cache("value_cache", value_cache, kv_cache_dtype)
    new: list[Any] = []
    for name, rows in (("key", key), ("value", value)):
        shape = shape_of(rows, name)
        if len(shape) != 3 or shape[0] < tokens:
            raise SpecError(
                f"{name} must be [{tokens} or more, kv_heads, head_dim] as slot_mapping has it, "
                f"got {list(shape)}"
            )
        new.append(rows[:tokens])
    scales = {"k_scale": k_scale, "v_scale": v_scale} if kv_cache_dtype in NARROW_CACHES else {}
    cache = ContiguousKV(k_pages, v_pages, None, **scales)
    _append(cache, *new, slot_mapping=slot_mapping, device=device, stream=stream)


def typed_cache(name: str, cache: Any, kv_cache_dtype: object) -> Any:
    """A cache with elements of its own type in the place of bytes, by `kv_cache_dtype`.

    Raises:
      SpecError: another name, or elements of another type.
    """
    if not isinstance(kv_cache_dtype, str) or kv_cache_dtype not in CACHES:
        raise SpecError(
            f"kv_cache_dtype must be {', '.join(CACHES)}, got {shown(kv_cache_dtype, 40)}"
        )
    shape_of(cache, name)
    found, wanted = str(cache.dtype).rpartition(".")[2], CACHES[kv_cache_dtype]
    if found in wanted:
        return cache
    if found != "uint8" or kv_cache_dtype not in NARROW_CACHES:
        raise SpecError(f"{name} is of {found}, kv_cache_dtype is {kv_cache_dtype}")
    if library_of(cache, name) == "torch":
        return cache.view(getattr(sys.modules["torch"], wanted[0]))
    import ml_dtypes

    return cache.view(np.dtype(getattr(ml_dtypes, wanted[0])))


@outside_graphs
def merge_attn_states(
    output: Any,
    prefix_output: Any,
    prefix_lse: Any,
    suffix_output: Any,
    suffix_lse: Any,
    output_lse: Any = None,
    prefill_tokens_with_context: int | None = None,
    output_scale: Any = None,
    *,
    device: DeviceChoice = None,
    stream: object = None,
) -> None:
    """As vLLM's `merge_attn_states`: attention to the keys of a prefix and of a suffix.

    Args:
      output: [tokens, heads, head_dim] of bf16, f16 or f32, which may be one of the
        others: written in place.
      prefix_output, suffix_output: O of both parts, likewise.
      prefix_lse, suffix_lse: [heads, tokens] f32, natural logarithms; -inf or +inf: no keys, and O
        of the part is not looked at.
      output_lse: [heads, tokens] f32, memory for the LSE of all keys; None: it is not wanted.
      prefill_tokens_with_context: only so many tokens have a prefix; those of the others are the
        suffix's. None: all have one.
      output_scale: refused unless None: O is not quantised.
      device, stream: see `attention`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    if output_scale is not None:
        raise SpecError("output_scale must be None: O is not quantised")
    outputs = {"prefix_output": prefix_output, "suffix_output": suffix_output}
    sums = {"prefix_lse": prefix_lse, "suffix_lse": suffix_lse}
    written = {"output": output, "output_lse": output_lse}
    for name, array in {**outputs, **sums, **written}.items():
        if array is not None:
            check_has_memory(view(array, name), name)
    check_one_library({**written, **outputs, **sums})
    axes = ("tokens", "heads", "head_dim")
    made = checked_array("output", output, axes, *STATE_DTYPES)
    shape = made.shape
    given = {
        n: checked_array(n, x, shape, *STATE_DTYPES, note=" as output") for n, x in outputs.items()
    }
    lse_shape = (shape[1], shape[0])
    given |= {n: checked_array(n, x, lse_shape, "f32") for n, x in sums.items()}
    check_memory("output", output, shape, made.dtype, {})
    if output_lse is not None:
        check_memory("output_lse", output_lse, lse_shape, "f32", {**given, "output": made})
    count = shape[0]
    if prefill_tokens_with_context is not None:
        count = min(integer("prefill_tokens_with_context", prefill_tokens_with_context), count)
    module: Any = sys.modules[library_of(output)]
    with on_stream(stream, output):
        parts = module.stack([as_f32(x[:count]) for x in outputs.values()])
        weights = module.stack([x[:, :count] for x in sums.values()])
        output[count:] = suffix_output[count:]
    where: dict[str, Any] = {"device": device, "stream": stream}
    named = {"out_dtype": made.dtype, "return_lse": output_lse is not None}
    o, lse = flash_attn_combine(parts, weights.swapaxes(-1, -2), **named, **where)
    with on_stream(stream, output):
        output[:count] = o
        if output_lse is not None:
            output_lse[:, :count] = lse.swapaxes(-1, -2)
            output_lse[:, count:] = suffix_lse[:, count:]
