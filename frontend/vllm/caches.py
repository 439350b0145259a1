"""vLLM's pools of keys and values as those of this package: views, no copies."""

from __future__ import annotations

from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flash.serving import NARROW_CACHES, reshape_and_cache_flash, typed_cache
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.runtime.kernel import DeviceChoice

POOL_RANK, STACKED_RANK = 4, 5
ENCODER_TYPES = ("encoder", "encoder_only")  # attn_type without a cache


def cache_views(kv_cache: Any, head_dim: int, kv_cache_dtype: str = "auto") -> tuple[Any, Any]:
    """Keys and values of a layer's pool, [blocks, block, kv_heads, head_dim] each.

    Args:
      kv_cache: [blocks, kv_heads, block, 2 head_dim], K and V side by side, as of vLLM 0.33, or [2,
        blocks, block, kv_heads, head_dim]. Of any strides but the last. One of 8 bits may be of
        bytes.
      head_dim: columns of a key.
      kv_cache_dtype: as of `reshape_and_cache_flash`.

    Raises:
      SpecError: another shape, or elements that `kv_cache_dtype` does not name.
    """
    kv_cache = typed_cache("kv_cache", kv_cache, kv_cache_dtype)
    shape = shape_of(kv_cache, "kv_cache")
    if len(shape) == STACKED_RANK and shape[0] == 2 and shape[-1] == head_dim:
        return kv_cache[0], kv_cache[1]
    if len(shape) == POOL_RANK and shape[-1] == 2 * head_dim:
        tokens_first = kv_cache.swapaxes(1, 2)
        return tokens_first[..., :head_dim], tokens_first[..., head_dim:]
    raise SpecError(
        f"kv_cache must be [blocks, kv_heads, block, {2 * head_dim}] or [2, blocks, block, "
        f"kv_heads, {head_dim}], got {list(shape)}"
    )


def cache_scales(kv_cache_dtype: str, k_scale: Any, v_scale: Any) -> tuple[Any, Any]:
    """A layer's `_k_scale` and `_v_scale` as factors of a cache; None where it has 16 bits.

    Args:
      kv_cache_dtype: of the cache.
      k_scale, v_scale: f32 of no axis, or [kv_heads].

    Raises:
      SpecError: one that a cache of 8 bits lacks.
    """
    if kv_cache_dtype not in NARROW_CACHES:
        return None, None
    found: list[Any] = []
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is None:
            raise SpecError(f"{name} must be an array of f32 for kv_cache_dtype {kv_cache_dtype}")
        found.append(scale.reshape(1) if shape_of(scale, name) == () else scale)
    return found[0], found[1]


def update_cache(
    key: Any,
    value: Any,
    kv_cache: Any,
    slot_mapping: Any,
    *,
    kv_cache_dtype: str = "auto",
    k_scale: Any = None,
    v_scale: Any = None,
    device: DeviceChoice = None,
) -> None:
    """Writes new keys and values into a layer's pool, as `do_kv_cache_update` has to.

    Args:
      key, value: [tokens or more, kv_heads, head_dim]; those past `slot_mapping` are padding.
      kv_cache, kv_cache_dtype: as of `cache_views`.
      slot_mapping: [tokens] i64, block x block_size + offset; a negative one is ignored.
      k_scale, v_scale: of the layer, for pools of 8 bits.
      device: see `attention`.

    Raises:
      SpecError: an argument is wrong; nothing was written.
    """
    pools = cache_views(kv_cache, shape_of(key, "key")[-1], kv_cache_dtype)
    scales = cache_scales(kv_cache_dtype, k_scale, v_scale)
    reshape_and_cache_flash(
        key, value, *pools, slot_mapping, kv_cache_dtype, *scales, device=device
    )
