"""`dot_product_attention` with the signature and the masks of `jax.nn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from attn_mlir import mods
from attn_mlir.adapters import adapter, neutral
from attn_mlir.errors import SpecError, shown
from attn_mlir.jax.host import implementation
from attn_mlir.masks import Mask, causal, sliding_window
from attn_mlir.naming import rename
from attn_mlir.runtime.call.scalars import as_int, flag, integer
from attn_mlir.trace import MaskMod

TABLE = neutral(
    "implementation", None, "xla", "cudnn", instead="kernels of this package", is_logged=True
)
MOST = 2**30  # positions of a window
NAMES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "seqused_q": "query_seq_lengths",
    "seqused_k": "key_value_seq_lengths",
}


@adapter(TABLE, "query key value bias mask", "implementation")
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    return_residual: bool = False,
) -> Any:
    """Computes `jax.nn.dot_product_attention`, with gradients of query, key, value and bias.

    Args:
      query: [batch, T, N, H] or [T, N, H], bfloat16 or float16.
      key: [batch, S, K, H] or [S, K, H]; K divides N.
      value: [batch, S, K, Hv] or [S, K, Hv].
      bias: floats that are added to the scores, [batch, N, T, S] or fewer axes; each extent is 1 or
        that of the scores.
      mask: bools, True for visible scores; shapes as of bias.
      scale: factor of the scores, a number that is known when jax traces; H^-0.5 by default.
      is_causal: whether query i sees only keys 0 ... i.
      query_seq_lengths, key_value_seq_lengths: [batch] i32, the numbers of queries and keys of each
        sequence; O of queries beyond is 0.
      local_window_size: how many keys before and after its own position a query sees, as one number
        or as two.
      return_residual: also return LSE, [batch, T, N] or [T, N] in key's dtype.

    Returns:
      O [batch, T, N, Hv] or [T, N, Hv]; with `return_residual` also LSE. O of a query that sees no
      key is 0, whereas jax returns the mean of value.

    Raises:
      SpecError: an argument is wrong or has no kernel, such as float32.
      ImportError: jax is missing, or its version is not supported.
    """
    module = implementation()
    jnp = module.jax.numpy
    given = {"query": query, "key": key, "value": value, "bias": bias, "mask": mask}
    needed = ("query", "key", "value")
    arrays = {
        name: module.as_array(name, x)
        for name, x in given.items()
        if x is not None or name in needed
    }
    shape = arrays["query"].shape
    for name, x in arrays.items():
        if x.ndim > 4:
            raise SpecError(f"{name} must have at most 4 dimensions, got shape {list(x.shape)}")
        arrays[name] = x.reshape((1,) * (4 - x.ndim) + x.shape)
    q, k, v = (arrays[name] for name in needed)
    sizes = {"batch": q.shape[0], "heads": q.shape[2], "sq": q.shape[1], "sk": k.shape[1]}
    seen = mods.visible_where(arrays["mask"]) if "mask" in arrays else None
    added = mods.bias(arrays["bias"]) if "bias" in arrays else None
    for mod in (added, seen):
        mods.check_extents(mod, sizes)
    closed = _mask(flag("is_causal", is_causal), local_window_size)
    named = {"q": q, "k": k, "v": v, "scale": scale, "mask": closed}
    named |= {"seqused_q": query_seq_lengths, "seqused_k": key_value_seq_lengths}
    named |= {"score_mod": added, "mask_mod": seen}
    gradients: dict[str, Any] | None = None
    lengths = (query_seq_lengths, key_value_seq_lengths)
    if closed is not None and (sizes["sq"] != sizes["sk"] or lengths != (None, None)):
        named["q_offset"] = 0  # positions count from the first query and the first key
        gradients = {"score_mod": added, "mask_mod": _from_top(closed, max(sizes.values()), seen)}
    named = {name: x for name, x in named.items() if x is not None}
    try:
        call = module.call_of(named, gradients, return_lse=flag("return_residual", return_residual))
        o, *lse = module.attend(*call)
    except SpecError as error:
        rename(error, NAMES)
        raise
    o = o.reshape((*shape[:-1], v.shape[-1]))
    if not return_residual:
        return o
    rows = jnp.swapaxes(lse[0], 1, 2).astype(k.dtype)
    return o, module.jax.lax.stop_gradient(rows.reshape(shape[:-1]))


def _mask(is_causal: bool, window: Any) -> Mask | None:
    """The mask in closed form; None for full attention.

    Raises:
      SpecError: the window is not one or two integers.
    """
    if window is None:
        return causal() if is_causal else None
    given = (window, window) if as_int(window) is not None else window
    items = cast("Sequence[object]", given) if isinstance(given, tuple | list) else ()
    sizes = [as_int(x) for x in items]
    if len(sizes) != 2 or None in sizes:
        raise SpecError(f"local_window_size must be one or two integers, got {shown(window, 40)}")
    before, after = (integer("local_window_size", x, 0, MOST) for x in sizes)
    return sliding_window(before, 0 if is_causal else after)


def _from_top(mask: Mask, most: int, seen: MaskMod | None) -> MaskMod:
    """The predicate of a mask whose positions count from the top left, combined with another one.

    Args:
      most: a bound of the numbers of queries and keys.
      seen: the other predicate, or None.
    """

    def from_top(b: Any, h: Any, q: Any, k: Any) -> Any:
        return mask.visible(q, k, most, most)

    return from_top if seen is None else mods.and_masks(from_top, seen)
