"""Calls that a model's layers make, whose kernels `prebuild` keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.caches import PagedKV
from attn_mlir.calls import append_kv, attention, mla_decode
from attn_mlir.cli.model_config import Layer
from attn_mlir.masks import Mask, causal, chunked, sliding_window
from attn_mlir.mods import softcap

Call = Callable[[], object]
TOKENS = (2048, 512, 128, 32)  # queries of a prefill: few of them have kernels of their own
KEYS = 4096  # positions of each sequence in its cache
BATCH = 8  # sequences that are decoded
LATENT_STEP = 8  # heads of latent decoding are a multiple of it


def calls_of(layer: Layer, page_size: int) -> Iterator[tuple[str, Call]]:
    """Calls of a layer with a name each: prefill, decoding and append, for caches in pages.

    Attention is called with one split of the keys, the default, and with a number that it chooses.
    Nothing of the operands is looked at but sizes and dtypes.
    """
    dtype: Any = ml_dtypes.bfloat16 if layer.dtype == "bf16" else np.float16

    def array(*shape: int, of: Any = dtype) -> Any:
        return np.zeros(shape, of)

    mask = _mask(layer)
    options: dict[str, Any] = {"mask": mask}
    if layer.cap is not None:
        options["score_mod"] = softcap(layer.cap)
    if layer.sinks:
        options["sinks"] = array(layer.heads, of=np.float32)
    for tokens in TOKENS:
        q = array(tokens, layer.heads, layer.head_dim)
        k = array(tokens, layer.kv_heads, layer.head_dim)
        v = array(tokens, layer.kv_heads, layer.v_head_dim)
        yield from _split(f"prefill of {tokens}", attention, q[None], k[None], v[None], **options)
        offsets = _ragged(tokens, "q") | _ragged(tokens, "k")
        name = f"prefill of {tokens} in sequences"
        yield from _split(name, attention, q, k, v, **offsets, **options)
    pages = KEYS // page_size
    table = np.arange(BATCH * pages, dtype=np.int32).reshape(BATCH, pages)
    lengths = np.full(BATCH, KEYS, np.int32)
    slots = np.arange(BATCH, dtype=np.int64) * KEYS
    if layer.latent is not None:
        rows = array(BATCH * pages, page_size, 1, layer.latent)
        latent = PagedKV(rows, None, table, lengths)
        heads = -(-layer.heads // LATENT_STEP) * LATENT_STEP
        new = array(BATCH, 1, heads, layer.latent)
        yield from _split("decoding", mla_decode, new, latent, scale=1.0)
        return
    k_pages, v_pages = (
        array(BATCH * pages, page_size, layer.kv_heads, columns)
        for columns in (layer.head_dim, layer.v_head_dim)
    )
    cache = PagedKV(k_pages, v_pages, table, lengths)
    one = PagedKV(k_pages, v_pages, table[:1], lengths[:1])
    for tokens in TOKENS:
        q, ends = array(tokens, layer.heads, layer.head_dim), _ragged(tokens, "q")
        yield from _split(f"prefill of {tokens} over pages", attention, q, one, **ends, **options)
    new_q = array(BATCH, 1, layer.heads, layer.head_dim)
    yield from _split("decoding", attention, new_q, cache, **options)
    k, v = (array(BATCH, layer.kv_heads, x) for x in (layer.head_dim, layer.v_head_dim))
    yield "append", lambda: append_kv(cache, k, v, slot_mapping=slots)


def _ragged(tokens: int, side: str) -> dict[str, Any]:
    """Lengths of one sequence, `q` or `k`, which are those of any number of them."""
    ends = np.array([0, tokens], np.int32)
    return {f"cu_seqlens_{side}": ends, f"max_seqlen_{side}": tokens}


def _split(
    name: str, function: Callable[..., object], *operands: Any, **options: Any
) -> Iterator[tuple[str, Call]]:
    """A call with one split of the keys, and one with as many as it chooses."""
    for splits, words in ((1, ""), (0, ", split")):
        call = functools.partial(function, *operands, num_splits=splits, **options)
        yield f"{name}{words}", call


def _mask(layer: Layer) -> Mask:
    if layer.window is not None:
        return sliding_window(layer.window - 1, 0)
    return causal() if layer.chunk is None else causal() & chunked(layer.chunk)
