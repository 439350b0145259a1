"""vLLM's classes of an attention backend: what is offered, metadata of a batch, and a layer."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, ClassVar

from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import as_float
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.vllm import NAME
from attn_mlir.vllm.attention import (
    AttnMlirMetadata,
    Scores,
    attend,
    attend_without_cache,
    check_layer,
    head_size_refusal,
)
from attn_mlir.vllm.caches import ENCODER_TYPES, update_cache

torch: Any = importlib.import_module("torch")
host: Any = importlib.import_module("vllm.v1.attention.backend")

CAPABILITIES = ((9, 0), (10, 0))  # of sm_90a and sm_100a


def is_served(capability: Any) -> bool:
    """Whether it is Hopper or data-centre Blackwell; vLLM has None for no device."""
    return capability is not None and (capability.major, capability.minor) in CAPABILITIES


class Answers:
    """Answers of attention and of latent attention alike."""

    supported_dtypes: ClassVar[Any] = [torch.float16, torch.bfloat16]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Those that are boxes of the copy engine in all schedules; others are copied by threads
        and have to be asked of the functions.
        """
        return [16, 32, host.MultipleOf(64)]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Hopper and data-centre Blackwell."""
        return is_served(capability)

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Yes, all requests of a batch alike."""
        return True


class AttnMlirBackend(Answers, host.AttentionBackend):
    """Answers to what vLLM asks a backend before it is chosen."""

    supported_kv_cache_dtypes: ClassVar[Any] = [
        "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2",
    ]  # fmt: skip
    forward_includes_kv_cache_update: ClassVar[bool] = False

    @staticmethod
    def get_name() -> str:
        """The name that it is registered by."""
        return NAME

    @staticmethod
    def get_impl_cls() -> Any:
        """The class of a layer."""
        return AttnMlirImpl

    @staticmethod
    def get_builder_cls() -> Any:
        """The class that makes metadata."""
        return AttnMlirMetadataBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Multiples of 8 up to 256."""
        return head_size_refusal(head_size, None) is None

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: Any, kv_cache_dtype: Any, *_: Any, **__: Any
    ) -> str | None:
        """The reason why pools of 8 bits are refused at a head size; else None."""
        return head_size_refusal(head_size, kv_cache_dtype)

    @classmethod
    def supports_sink(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Decoders, and encoders, whose keys are not cached."""
        return attn_type in ("decoder", *ENCODER_TYPES)


class AttnMlirMetadataBuilder(host.AttentionMetadataBuilder):
    """Metadata of a batch: views of vLLM's tensors, whose addresses graphs keep.

    Launches are decided by numbers of the host: a graph serves batches of as many requests and
    tokens whose requests have at most as many queries and keys.
    """

    _cudagraph_support: ClassVar[Any] = host.AttentionCGSupport.UNIFORM_BATCH
    supports_update_block_table: ClassVar[bool] = True

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any):
        host.AttentionMetadataBuilder.__init__(
            self, kv_cache_spec, layer_names, vllm_config, device
        )
        self._block_size = int(getattr(kv_cache_spec, "block_size", 0))

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> AttnMlirMetadata:
        """The metadata of a batch.

        Raises:
          SpecError: names what is not offered.
        """
        del fast_build
        common = common_attn_metadata
        return AttnMlirMetadata.of(common, self._block_size, common_prefix_len=common_prefix_len)

    def update_block_table(
        self, metadata: AttnMlirMetadata, blk_table: Any, slot_mapping: Any
    ) -> AttnMlirMetadata:
        """The metadata with the blocks of another group of layers."""
        return metadata.with_blocks(blk_table, slot_mapping)


class AttnMlirImpl(host.AttentionImpl):
    """A layer: its scores, and calls for a batch."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: Any = None,
    ):
        """As vLLM's.

        Raises:
          SpecError: names what is not offered.
        """
        if (factor := as_float(scale)) is None:
            raise SpecError(f"scale must be a number, got {shown(scale, 40)}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, factor
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = str(getattr(attn_type, "value", attn_type))
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.scores = Scores(self.scale, sliding_window, logits_soft_cap, slopes, sinks)
        sizes = num_heads, self.num_kv_heads, head_size
        check_layer(*sizes, self.scores, self.attn_type, kv_cache_dtype)

    def process_weights_after_loading(self, act_dtype: Any) -> None:
        """Sinks, which are loaded by now, in f32."""
        if (sinks := self.scores.sinks) is not None:
            self.scores = dataclasses.replace(self.scores, sinks=sinks.float())

    def forward(
        self,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: AttnMlirMetadata | None,
        output: Any,
        output_scale: Any = None,
        output_block_scale: Any = None,
    ) -> Any:
        """Attention of a batch into `output`, which is returned.

        Args:
          attn_metadata: None in the run that measures memory: O is 0.

        Raises:
          SpecError: names what is not offered.
        """
        for name, scale in {
            "output_scale": output_scale,
            "output_block_scale": output_block_scale,
        }.items():
            if scale is not None:
                raise SpecError(f"{name} must be None: O is not quantised")
        shape_of(output, "output")
        if attn_metadata is None:
            return output.fill_(0)
        scores = self._scores_on(query)
        if self.attn_type in ENCODER_TYPES:
            attend_without_cache(query, key, value, attn_metadata, output, scores)
        else:
            scales = {"k_scale": layer._k_scale, "v_scale": layer._v_scale}
            attend(
                query,
                kv_cache,
                attn_metadata,
                output,
                scores,
                kv_cache_dtype=self.kv_cache_dtype,
                **scales,
            )
        return output

    def _scores_on(self, query: Any) -> Scores:
        """The scores of the layer, with slopes where the query lies."""
        slopes = self.scores.alibi_slopes
        if slopes is not None and slopes.device != query.device:
            self.scores = dataclasses.replace(self.scores, alibi_slopes=slopes.to(query.device))
        return self.scores

    def do_kv_cache_update(
        self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any
    ) -> None:
        """Writes the new keys and values into the layer's pool; an encoder has none."""
        if self.attn_type in ENCODER_TYPES:
            return
        update_cache(
            key,
            value,
            kv_cache,
            slot_mapping,
            kv_cache_dtype=self.kv_cache_dtype,
            k_scale=layer._k_scale,
            v_scale=layer._v_scale,
        )
