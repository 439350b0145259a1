"""vLLM's classes of latent attention: decoding over the latent cache, and prefill."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from attn_mlir.errors import SpecError
from attn_mlir.vllm import LATENT_NAME, NAME
from attn_mlir.vllm.backend import Answers, is_served
from attn_mlir.vllm.latent import decode, prefill

host: Any = importlib.import_module("vllm.v1.attention.backend")
layers: Any = importlib.import_module("vllm.model_executor.layers.attention.mla_attention")
prefills: Any = importlib.import_module("vllm.v1.attention.backends.mla.prefill.base")

HEAD_SIZES = [512, 576]


class AttnMlirMLABackend(Answers, layers.MLACommonBackend):
    """Answers to what vLLM asks a backend of latent attention before it is chosen."""

    supported_kv_cache_dtypes: ClassVar[Any] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        """The name that it is registered by."""
        return LATENT_NAME

    @staticmethod
    def get_impl_cls() -> Any:
        """The class of a layer."""
        return AttnMlirMLAImpl

    @staticmethod
    def get_builder_cls() -> Any:
        """The class that makes metadata."""
        return AttnMlirMLAMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Latent columns, with and without rope beside them."""
        return HEAD_SIZES


class AttnMlirMLAMetadataBuilder(layers.MLACommonMetadataBuilder):
    """vLLM's own metadata; requests of a batch that decodes have equally many queries."""

    _cudagraph_support: ClassVar[Any] = host.AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[Any] = layers.QueryLenSupport.UNIFORM
    supports_non_causal_multi_token_decode: ClassVar[bool] = True


class AttnMlirMLAImpl(layers.MLACommonImpl):
    """A layer of latent attention."""

    can_return_lse_for_decode: bool = True
    lse_base_on_e: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ):
        """As vLLM's.

        Raises:
          SpecError: names what is not offered.
        """
        for name, value in {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
        }.items():
            if value:
                raise SpecError(f"{name} must be None in latent attention, got {value}")
        if kv_cache_dtype not in AttnMlirMLABackend.supported_kv_cache_dtypes:
            raise SpecError(f"kv_cache_dtype must be of 16 bits, got {kv_cache_dtype}")
        if str(getattr(attn_type, "value", attn_type)) != "decoder":
            raise SpecError(f"attn_type must be decoder, got {attn_type}")
        layers.MLACommonImpl.__init__(
            self,
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **mla_args,
        )

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any
    ) -> tuple[Any, Any]:
        """O over the latent cache, and its LSE; see `latent.decode`."""
        del layer
        of_decode = attn_metadata.decode
        return decode(
            q,
            kv_c_and_k_pe_cache,
            of_decode.block_table,
            of_decode.seq_lens,
            self.scale,
            is_causal=attn_metadata.causal,
        )


class AttnMlirPrefillBackend(prefills.MLAPrefillBackend):
    """Attention of projected heads of 192 and 128 columns, new tokens and context apart."""

    @staticmethod
    def get_name() -> str:
        """The name that it is registered by."""
        return NAME

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        """As of attention."""
        return is_served(device_capability)

    def supports_out(self) -> bool:
        """O is written where the caller says."""
        return True

    def run_prefill_new_tokens(
        self,
        q: Any,
        k: Any,
        v: Any,
        return_softmax_lse: bool,
        out: Any = None,
        output_scale: Any = None,
    ) -> Any:
        """Causal attention of new tokens to each other.

        Returns:
          O, with `return_softmax_lse` also LSE, [heads, tokens].

        Raises:
          SpecError: names what is not offered.
        """
        if output_scale is not None:
            raise SpecError("output_scale must be None: O is not quantised")
        batch = self._prefill_metadata
        offsets, longest = batch.query_start_loc, batch.max_query_len
        both = prefill(
            q, k, v, (offsets, offsets), (longest, longest), self.scale, is_causal=True, out=out
        )
        return both if return_softmax_lse else both[0]

    def run_prefill_context_chunk(
        self, chunk: Any, q: Any, k: Any, v: Any, out: Any = None
    ) -> tuple[Any, Any]:
        """Attention of new tokens to a part of their context, all of which they see.

        Returns:
          (o, lse), as of `run_prefill_new_tokens`.
        """
        offsets = chunk.query_start_loc, chunk.cu_seq_lens
        longest = chunk.max_query_len, chunk.max_seq_len
        return prefill(q, k, v, offsets, longest, self.scale, is_causal=False, out=out)
