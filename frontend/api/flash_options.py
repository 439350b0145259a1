"""The options of FlashAttention 2, 3 and 4 in `flash`: those passed on, and those without effect.

Code that calls FlashAttention passes many arguments with values that have no effect. These values
are accepted, others are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask, chunked, sliding_window
from attn_mlir.mods import softcap as capped
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.runtime.scalars import as_float, as_int, flag, integer
from attn_mlir.trace import ScoreMod

Window = Sequence[int | None]
NO_WINDOW = (-1, -1)
CACHE = "flash_attn_with_kvcache takes it"
ROTARY = "rotate q and k before the call, or pass it to flash_attn_with_kvcache"
BLOCKS = "pass block_mask= to attn_mlir.attention"
TUNING = "the kernel decides by itself"


class Options(TypedDict, total=False):
    """Keyword arguments of the functions of `flash` that their signatures do not name.

    Attributes:
      attention_chunk: positions of a chunk; a query sees the keys of its own chunk. 0: all keys.
      learnable_sink: [heads], see `attention`.
      num_splits: number of parts of the keys; 0 chooses.
      q_descale, k_descale, v_descale: factors of 8-bit operands, see `attention`.
      return_lse: also return LSE, [batch, heads, sq]; [heads, total_q] for queries by offsets.
      out: memory for O, see `attention`.
      device, stream: see `attention`.
    """

    attention_chunk: int
    learnable_sink: Any
    num_splits: int
    q_descale: Any
    k_descale: Any
    v_descale: Any
    return_lse: bool
    out: Any
    device: DeviceChoice
    stream: object
    qv: None
    pack_gqa: None
    sm_margin: int
    scheduler_metadata: None
    page_table: None
    cache_batch_idx: None
    cache_leftpad: None
    leftpad_k: None
    rotary_cos: None
    rotary_sin: None
    rotary_seqlens: None
    seqlens_rotary: None
    rotary_interleaved: bool
    score_mod: None
    mask_mod: None
    aux_tensors: None
    block_sparse_tensors: None
    full_block_cnt: None
    full_block_idx: None
    mask_block_cnt: None
    mask_block_idx: None
    block_size: None
    cu_total_m_blocks: None
    cu_total_n_blocks: None
    score_mod_bwd: None
    block_sparse_tensors_bwd: None
    aux_scalars: None
    gather_kv_indices: None
    min_seqlen_k: None
    seqlen_k_per_split: None
    disable_scheduler_metadata: bool


# Values without effect by name, and what to do instead of passing another value.
NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "dropout_p": ((0,), "there is no dropout"),
    "alibi_slopes": ((None,), "pass score_mod=mods.alibi(slopes) to attn_mlir.attention"),
    "deterministic": ((False, True), "the same call gives the same bits in any case"),
    "return_attn_probs": ((False,), "probabilities are never stored; pass return_lse=True for LSE"),
    "qv": ((None,), "a second part of q and k is not offered"),
    "pack_gqa": ((None,), TUNING),
    "sm_margin": ((0,), TUNING),
    "scheduler_metadata": ((None,), TUNING),
    **dict.fromkeys(("block_table", "page_table", "cache_batch_idx", "cache_leftpad"), ((None,), CACHE)),
    "leftpad_k": ((None,), "flash_attn_with_kvcache takes cache_leftpad"),
    **dict.fromkeys(("rotary_cos", "rotary_sin", "rotary_seqlens", "seqlens_rotary"), ((None,), ROTARY)),
    "rotary_interleaved": ((True, False), ROTARY),
    "score_mod": ((None,), "pass score_mod(score, b, h, q, k) to attn_mlir.attention"),
    "mask_mod": ((None,), "pass mask_mod(b, h, q, k) to attn_mlir.attention"),
    "aux_tensors": ((None,), "modifiers of attn_mlir.attention capture tensors"),
    "block_sparse_tensors": ((None,), BLOCKS),
    **dict.fromkeys(("full_block_cnt", "full_block_idx"), ((None,), BLOCKS)),
    **dict.fromkeys(("mask_block_cnt", "mask_block_idx"), ((None,), BLOCKS)),
    "block_size": ((None,), BLOCKS),
    **dict.fromkeys(("cu_total_m_blocks", "cu_total_n_blocks"), ((None,), BLOCKS)),
    **dict.fromkeys(("score_mod_bwd", "block_sparse_tensors_bwd"), ((None,), "there is no backward pass")),
    "aux_scalars": ((None,), "modifiers of attn_mlir.attention capture numbers"),
    "gather_kv_indices": ((None,), "keys by index are not offered"),
    "min_seqlen_k": ((None,), TUNING),
    "disable_scheduler_metadata": ((False, True), TUNING),
    "seqlen_k_per_split": ((None,), "pass split_size to attn_mlir.attention"),
    "virtual_batch_idx": ((None,), "rows are combined one by one, wherever sequences end"),
    "cu_seqlens": ((None,), "rows are combined one by one, wherever sequences end"),
    "seqused": ((None,), "rows are combined one by one, however many count"),
}  # fmt: skip


def refuse_meaningful(function: str, given: Mapping[str, object]) -> None:
    """Refuses options with values that are not supported.

    Args:
      function: name of the function they were passed to.
      given: the options by name.

    Raises:
      SpecError: names the first one, with what is allowed and what to do.
    """
    for name, value in given.items():
        if name not in NEUTRAL:
            raise SpecError(f"{function} has no argument {name}")
        allowed, instead = NEUTRAL[name]
        if not any(_is_same(value, neutral) for neutral in allowed):
            text = " or ".join(map(str, allowed))
            raise SpecError(f"{name} must be {text}, got {shown(value)}: {instead}")


def _is_same(value: object, neutral: object) -> bool:
    if neutral is None:
        return value is None
    if isinstance(neutral, bool):
        try:
            return flag("", value) is neutral
        except SpecError:
            return False
    return as_float(value) == neutral


def passed_on(function: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options that `attention` takes as well, under its names.

    Raises:
      SpecError: an option that is not supported, see `refuse_meaningful`.
    """
    names = {name: name for name in ("num_splits", "q_descale", "k_descale", "v_descale")}
    names |= {name: name for name in ("return_lse", "out", "device", "stream")}
    names["learnable_sink"] = "sinks"
    others = {name: value for name, value in options.items() if name not in names}
    refuse_meaningful(function, others)
    return {names[name]: value for name, value in options.items() if name in names}


def mask_of(is_causal: object, window_size: Window) -> Mask:
    """The mask of a window, causal as well if `is_causal`.

    Raises:
      SpecError: `window_size` is no pair of limits.
    """
    try:
        left, right = (None if as_int(limit) == -1 else limit for limit in window_size)
    except (TypeError, ValueError):
        raise SpecError(f"window_size must be (left, right), got {shown(window_size)}") from None
    limits = [limit if as_int(limit) is None else as_int(limit) for limit in (left, right)]
    window = sliding_window(*limits)
    return sliding_window(limits[0], 0) if flag("causal", is_causal) else window


def chunked_mask(mask: Mask, attention_chunk: object) -> Mask:
    """The mask, with keys of other chunks of `attention_chunk` positions hidden; for 0 the mask itself.

    Raises:
      SpecError: `attention_chunk` is no number of positions.
    """
    size = integer("attention_chunk", attention_chunk)
    return mask & chunked(size) if size else mask


def score_mod_of(cap: object) -> ScoreMod | None:
    """The modifier for a softcap; None without one.

    Raises:
      SpecError: a cap that is no number, or out of range.
    """
    number = as_float(cap)
    if number is None:
        raise SpecError(f"softcap must be a number, got {shown(cap)}")
    return None if number == 0.0 else capped(number)
