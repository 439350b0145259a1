"""vLLM's interface of attention backends, as far as a plug-in meets it: names, defaults, signatures of 0.33.

No test installs the engine. `installed` stands in for the package while classes over it are imported and used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

from attn_mlir.validation.hosts.modules import standing_in

VERSION = "0.33.0"
BACKEND = "vllm.v1.attention.backend"
REGISTRY = "vllm.v1.attention.backends.registry"
PREFILL = "vllm.v1.attention.backends.mla.prefill"
LATENT = "vllm.model_executor.layers.attention.mla_attention"
OURS = ("attn_mlir.vllm.backend", "attn_mlir.vllm.latent_backend")  # that import the package


@dataclass(frozen=True)
class MultipleOf:
    base: int


class CGSupport(Enum):
    NEVER, UNIFORM_SINGLE_TOKEN_DECODE, UNIFORM_BATCH, ALWAYS = range(4)


class QueryLenSupport(Enum):
    SINGLE_ONLY, UNIFORM, VARLEN = "single_only", "uniform", "varlen"


class Backend(ABC):
    """`AttentionBackend`: what is asked before a choice."""

    forward_includes_kv_cache_update = True

    @staticmethod
    @abstractmethod
    def get_name() -> str: ...

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> Any: ...

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> Any: ...

    @classmethod
    def is_mla(cls) -> bool:
        return False


class Builder(ABC):
    """`AttentionMetadataBuilder`."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any):
        self.kv_cache_spec, self.layer_names = kv_cache_spec, layer_names
        self.vllm_config, self.device = vllm_config, device

    @abstractmethod
    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Any: ...

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        return self.build(0, common_attn_metadata)


class Impl(ABC):
    """`AttentionImpl`: a layer."""

    supports_quant_query_input = False

    @abstractmethod
    def __init__(self, *arguments: Any, **options: Any): ...

    @abstractmethod
    def forward(self, *arguments: Any, **options: Any) -> Any: ...


class LatentBackend(Backend):
    @classmethod
    def is_mla(cls) -> bool:
        return True


class LatentBuilder(Builder):
    """Metadata of vLLM's own: requests that decode stand in front."""

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Any:
        common = common_attn_metadata
        of_decode = SimpleNamespace(block_table=common.block_table_tensor, seq_lens=common.seq_lens)
        return SimpleNamespace(decode=of_decode, causal=common.causal)


class LatentImpl:
    def __init__(self, num_heads: int, head_size: int, scale: float, *_: Any, **dims: Any):
        self.num_heads, self.head_size, self.scale, self.dims = num_heads, head_size, scale, dims


class PrefillBackend(ABC):
    """`MLAPrefillBackend`."""

    def __init__(self, num_heads: int, scale: float, **_: Any):
        self.num_heads, self.scale = num_heads, scale

    def prepare_metadata(self, prefill_metadata: Any) -> None:
        self._prefill_metadata = prefill_metadata

    @abstractmethod
    def run_prefill_new_tokens(self, *arguments: Any, **options: Any) -> Any: ...

    @abstractmethod
    def run_prefill_context_chunk(self, *arguments: Any, **options: Any) -> Any: ...


@dataclass
class CommonMetadata:
    """`CommonAttentionMetadata`: what builders make metadata of."""

    query_start_loc: Any
    seq_lens: Any
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    causal: Any = True
    dcp_local_seq_lens: Any = None
    mm_req_doc_ranges: Any = None
    rswa_prefix_lens: Any = None


@dataclass
class Names:
    """An enumeration of backends that grows, and whose members may be overridden."""

    paths: dict[str, str | None] = field(
        default_factory=lambda: {"CUSTOM": None, "FLASH_ATTN": "theirs"}
    )

    @property
    def __members__(self) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(name=name) for name in self.paths}

    def register_backend(self, backend: Any, class_path: str) -> None:
        name = backend if isinstance(backend, str) else backend.name
        if isinstance(backend, str) and name in self.paths:
            raise ValueError(f"Backend {name} already exists")
        self.paths[name] = class_path


@contextmanager
def installed(version: str = VERSION) -> Iterator[tuple[Names, Names]]:
    """The package in the place of what is installed; yields the names of attention and of MLA prefill."""
    names, prefills = Names(), Names()
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": version},
        BACKEND: {
            "AttentionBackend": Backend,
            "AttentionMetadataBuilder": Builder,
            "AttentionImpl": Impl,
            "AttentionCGSupport": CGSupport,
            "MultipleOf": MultipleOf,
        },
        REGISTRY: {"AttentionBackendEnum": names, "register_backend": names.register_backend},
        f"{PREFILL}.base": {"MLAPrefillBackend": PrefillBackend},
        f"{PREFILL}.registry": {
            "MLAPrefillBackendEnum": prefills,
            "register_mla_prefill_backend": prefills.register_backend,
        },
        LATENT: {
            "MLACommonBackend": LatentBackend,
            "MLACommonMetadataBuilder": LatentBuilder,
            "MLACommonImpl": LatentImpl,
            "QueryLenSupport": QueryLenSupport,
        },
    }
    with standing_in(contents, OURS):
        yield names, prefills
