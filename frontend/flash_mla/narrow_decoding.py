"""FlashMLA's decoding over whole sequences in 8 bits, with the names that vLLM's form of it has."""

from __future__ import annotations

import sys
from typing import Any

from attn_mlir.adapters import adapter
from attn_mlir.arrays import on_stream
from attn_mlir.caches import PagedKV
from attn_mlir.calls import mla_decode
from attn_mlir.errors import SpecError
from attn_mlir.flash_mla.table import NARROW_DECODING, NEUTRAL, V_DIM, mask_of
from attn_mlir.latent_heads import with_filled_heads
from attn_mlir.library import library_of
from attn_mlir.lse import mark_without_keys
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.tensors import shape_of, view
from attn_mlir.runtime.call.torch_tensors import is_batched

RANK, NARROW = 4, "e4m3"
_decode = renamed(
    mla_decode,
    k="k_cache",
    k_pages="k_cache",
    page_table="block_table",
    seqused="cache_seqlens",
    scale="softmax_scale",
)


def get_mla_metadata_dense_fp8(*arguments: Any, **options: Any) -> tuple[None, None]:
    """As `get_mla_metadata_dense_fp8` of vLLM's FlashMLA: nothing, as kernels go by the lengths.

    Args:
      arguments, options: they are not looked at.
    """
    del arguments, options
    return None, None


@adapter(
    NEUTRAL,
    "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits "
    "softmax_scale causal descale_q descale_k",
    options=NARROW_DECODING,
)
def flash_mla_with_kvcache_fp8(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    descale_q: Any = None,
    descale_k: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    """As `flash_mla_with_kvcache_fp8` of vLLM's FlashMLA, on top of `attn_mlir.mla_decode`.

    The products are of 16 bits: e4m3 widens to bf16 without loss, and q is multiplied by both
    factors, which rounds it once more where these are no powers of two.

    Args:
      q: [batch, seq_len_q, num_heads_q, 576] of e4m3 or bf16.
      k_cache: [num_blocks, page_block_size, 1, 576] of e4m3.
      block_table: [batch, max_num_blocks_per_seq] i32; cache_seqlens: [batch] i32.
      head_dim_v: 512; tile_scheduler_metadata, num_splits: not looked at.
      softmax_scale: of the scores; 1 / sqrt(576) if None.
      causal: whether a query sees the rows up to its own alone.
      descale_q, descale_k: f32 of one element, factors of q and of k_cache; 1 if None.
      device, stream: see `attn_mlir.attention`.

    Returns:
      (out, softmax_lse), as of `flash_mla_with_kvcache`, out of bf16.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    del tile_scheduler_metadata, num_splits
    integer("head_dim_v", head_dim_v, V_DIM, V_DIM)
    for name, x in {"q": q, "k_cache": k_cache}.items():
        if len(shape := shape_of(x, name)) != RANK:
            raise SpecError(f"{name} must have {RANK} dimensions, got {list(shape)}")
    for name, x in {"descale_q": descale_q, "descale_k": descale_k}.items():
        if x is not None and (found := view(x, name)).shape not in ((1,), ()):
            raise SpecError(f"{name} must be of one element, got {list(found.shape)}")
    if (dtype := view(k_cache, "k_cache").dtype) != NARROW:
        raise SpecError(f"k_cache must be of {NARROW}, got {dtype}")
    if is_batched(k_cache):  # PyTorch cannot view such elements as bytes
        raise SpecError("k_cache has no rule for torch.vmap: pass it with a batch of its own")
    stream = options.get("stream")
    with on_stream(stream, q):
        wide, rows = _as(q, "bfloat16", (descale_q, descale_k)), _bytes(k_cache)
        scale = shape_of(q, "q")[-1] ** -0.5 if softmax_scale is None else softmax_scale
        cache = PagedKV(rows, None, block_table, cache_seqlens)

        def decode(q: Any, sinks: Any) -> tuple[Any, ...]:
            return _decode(
                q, cache, scale=scale, sinks=sinks, mask=mask_of(causal), kv_format=NARROW,
                **options,
            )  # fmt: skip

        out, lse = with_filled_heads(decode, wide, None, axis=2, stream=stream)
        mark_without_keys(lse, stream)
        return _as(out, "bfloat16", (descale_k,)), lse


def _as(array: Any, dtype: str, factors: tuple[Any, ...]) -> Any:
    """The product of an array and factors, computed in f32, in a dtype of its library."""
    library = library_of(array)
    given = [x for x in factors if x is not None]
    if library == "torch":
        torch: Any = sys.modules[library]
        product = array.float() if given else array
        for x in given:
            product = product * x.float()
        return product.to(getattr(torch, dtype))
    import ml_dtypes

    product = array.astype("float32") if given else array
    for x in given:
        product = product * x
    return product.astype(getattr(ml_dtypes, dtype))


def _bytes(array: Any) -> Any:
    """Elements of 8 bits as u8, without a copy."""
    library = library_of(array)
    return array.view(sys.modules[library].uint8)
