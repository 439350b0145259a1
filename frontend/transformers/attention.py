"""Attention of one layer, with the signature that models of `transformers` call."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir import mods
from attn_mlir.calls import attention
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import causal, full, sliding_window
from attn_mlir.pytorch.elements import added, visible
from attn_mlir.transformers.masks import VisibleKeys
from attn_mlir.transformers.sequences import Sequences, sequences_of

torch: Any = importlib.import_module("torch")
host: Any = importlib.import_module("transformers.masking_utils")

# What reaches a layer and does not change what it computes. Anything else that is given is refused.
NEUTRAL = (
    "position_ids", "use_cache", "output_hidden_states", "output_router_logits",
    "num_items_in_batch", "seq_idx",
)  # fmt: skip
INSTEAD = {  # of an option that is refused
    "output_attentions": 'attention has no weights: attn_implementation="eager" returns them',
    "cache": "continuous batching is not offered",
}


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    max_length_q: Any = None,
    max_length_k: Any = None,
    deterministic: bool | None = None,
    **options: Any,
) -> tuple[Any, None]:
    """Attention of one layer.

    Args:
      module: the layer.
      query: [batch, heads, sq, head_dim].
      key: [batch, kv_heads, sk, head_dim].
      value: [batch, kv_heads, sk, v_head_dim].
      attention_mask: from `masks.attention_mask`, or of one element for each score: bool, True
        where it is visible, or float, added to it.
      sliding_window, is_causal: of layers without a mask; a mask says it all.
      softcap: bound of the scores.
      s_aux: [heads], sinks.
      position_bias: [1 or batch, 1 or heads, sq, sk], added to the scores.
      cu_seq_lens_q, cu_seq_lens_k: [sequences + 1], of a batch of one row: where packed sequences
        begin, and where the last one ends. Queries see keys of their own sequence, and of these
        what the mask says.
      max_length_q, max_length_k: no sequence is longer.

    Returns:
      O [batch, sq, heads, v_head_dim], and no weights.

    Raises:
      SpecError: an option that would be left out, a mask that is missing or for other sizes,
        operands that no kernel takes.
    """
    _check_options(dropout, options)
    packed = sequences_of(cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    shape = (q.shape[0], 1, q.shape[1], k.shape[1])
    changes: list[Any] = []
    if position_bias is not None:
        changes.append(added(_checked("position_bias", position_bias, shape, q.shape[2])))
    if attention_mask is None:
        keys = without_mask(module, shape, is_causal, sliding_window, packed)
    elif isinstance(attention_mask, VisibleKeys):
        keys = _checked_keys(attention_mask, shape, is_causal)
    else:
        mask_tensor = _checked("attention_mask", attention_mask, shape, q.shape[2])
        is_bool = mask_tensor.dtype == torch.bool
        keys = VisibleKeys(shape, full(), visible(mask_tensor) if is_bool else None)
        changes += [] if is_bool else [added(mask_tensor)]
    attend, predicate = attention, keys.predicate
    if packed is not None:
        attend, predicate = packed.attend, _within(packed, keys)
        changes = [packed.within(x) for x in changes]
    if softcap is not None:
        changes.insert(0, mods.softcap(softcap))
    o = attend(
        q,
        k,
        v,
        mask=keys.mask,
        score_mod=changes[0] if len(changes) == 1 else mods.compose(*changes) if changes else None,
        mask_mod=predicate,
        scale=scaling,
        sinks=s_aux,
        deterministic=deterministic,
        **({} if packed else {"seqused_k": keys.seqused}),
    )
    return o, None


def _within(packed: Sequences, keys: VisibleKeys) -> Any:
    """The predicate of a mask for the positions of a sequence.

    Raises:
      SpecError: the mask is over a cache with more slots than tokens.
    """
    if keys.seqused is not None:
        raise SpecError("cu_seq_lens_q excludes a cache that is allocated at once")
    if keys.predicate is None or keys.is_packed:  # sequences do not see each other anyway
        return None
    return packed.within(keys.predicate)


def _check_options(dropout: float, options: dict[str, Any]) -> None:
    """Refuses options that would be left out."""
    if dropout:
        raise SpecError(f"dropout must be 0, got {dropout}: there is no dropout")
    for name, value in options.items():
        if name not in NEUTRAL and value is not None and value is not False:
            raise SpecError(
                f"{name} is not offered for models of transformers, got {shown(value)}"
                + (f": {INSTEAD[name]}" if name in INSTEAD else "")
            )


def _checked_keys(keys: VisibleKeys, shape: tuple[int, ...], is_causal: bool | None) -> VisibleKeys:
    """A mask that was made for this step.

    Raises:
      SpecError: it is for other sizes, or causal where the call says that the layer is not.
    """
    if keys.shape[2:] != shape[2:] or keys.shape[0] != shape[0]:
        raise SpecError(
            f"attention_mask is for [batch, 1, sq, sk] = {list(keys.shape)}, the layer has "
            f"{list(shape)}"
        )
    if is_causal is False and keys.is_causal:
        raise SpecError(
            "is_causal=False and a causal mask contradict each other: set is_causal=False in the "
            "model's config, from which the mask is made"
        )
    return keys


def _checked(name: str, tensor: Any, shape: tuple[int, ...], heads: int) -> Any:
    """A tensor of one element for each score.

    Raises:
      SpecError: something else.
    """
    if not isinstance(tensor, torch.Tensor):
        raise SpecError(f"{name} must be a tensor, got {shown(tensor)}")
    scores = (shape[0], heads, *shape[2:])
    if tensor.ndim != 4 or any(n not in (1, m) for n, m in zip(tensor.shape, scores, strict=True)):
        raise SpecError(
            f"{name} has shape {list(tensor.shape)}: it must be [batch, heads, sq, sk], each 1 or "
            f"that of the scores, which are {list(scores)}"
        )
    if not tensor.is_floating_point() and (name == "position_bias" or tensor.dtype != torch.bool):
        raise SpecError(f"{name} is {tensor.dtype}, allowed are bool (of a mask) and floats")
    return tensor


def without_mask(
    module: Any,
    shape: tuple[int, int, int, int],
    is_causal: bool | None,
    window: int | None,
    packed: Sequences | None = None,
) -> VisibleKeys:
    """The visible keys of a layer without a mask.

    Raises:
      SpecError: its name has no mask function, so that no mask was made; or its queries are not at
        a known place among the keys.
    """
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if name is not None and name not in host.ALL_MASK_ATTENTION_FUNCTIONS.valid_keys():
        raise SpecError(
            f"attn_implementation {name!r} has no mask function, so that transformers makes no "
            f"masks: call attn_mlir.transformers.register({name!r})"
        )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal:
        if window is not None:
            raise SpecError(f"sliding_window={window} of a layer that is not causal needs a mask")
        return VisibleKeys(shape, full())
    if packed is None and shape[2] not in (1, shape[3]):
        raise SpecError(
            f"attention_mask is missing: a causal layer has {shape[2]} queries and {shape[3]} keys"
        )
    return VisibleKeys(shape, causal() if window is None else sliding_window(window - 1, 0))
