"""SGLang's interface of attention backends, as far as a plug-in meets it: names and signatures of 0.5.23.

No test installs the engine. `installed` stands in for the package while classes over it are imported and used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from attn_mlir.validation.hosts.modules import standing_in

VERSION = "0.5.23"
ATTENTION = "sglang.srt.layers.attention"
OURS = ("attn_mlir.sglang.backend",)  # imports the package


class Backend:
    """`AttentionBackend`."""

    forward_metadata: Any = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.init_forward_metadata_out_graph(forward_batch)

    def init_forward_metadata_out_graph(
        self, forward_batch: Any, in_capture: bool = False
    ) -> None: ...

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, **options: Any
    ) -> Any:
        step = (
            self.forward_decode if forward_batch.forward_mode.is_decode() else self.forward_extend
        )
        return step(q, k, v, layer, forward_batch, **options)

    def forward_decode(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def forward_extend(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


class Mode:
    """`ForwardMode`: what a step is."""

    def __init__(self, name: str):
        self.name = name

    def is_decode(self) -> bool:
        return self.name == "decode"

    def is_idle(self) -> bool:
        return self.name == "idle"


class Pool:
    """`MHATokenToKVPool`: keys and values of each layer, [places, heads, columns], the place 0 for padding."""

    def __init__(self, keys: Any, values: Any):
        self.buffers = keys, values

    def get_key_buffer(self, layer_id: int) -> Any:
        return self.buffers[0]

    def get_value_buffer(self, layer_id: int) -> Any:
        return self.buffers[1]

    def set_kv_buffer(
        self,
        layer: Any,
        loc_info: Any,
        cache_k: Any,
        cache_v: Any,
        k_scale: Any = None,
        v_scale: Any = None,
    ) -> None:
        for buffer, new, scale in zip(
            self.buffers, (cache_k, cache_v), (k_scale, v_scale), strict=True
        ):
            buffer[loc_info] = (new if scale is None else new / scale).to(buffer.dtype)


def layer(heads: int, kv_heads: int, head_dim: int, **changes: Any) -> Any:
    """`RadixAttention`."""
    usual = {
        "tp_q_head_num": heads, "tp_k_head_num": kv_heads, "tp_v_head_num": kv_heads, "qk_head_dim": head_dim,
        "v_head_dim": head_dim, "scaling": head_dim**-0.5, "layer_id": 0, "logit_cap": 0.0,
        "sliding_window_size": -1, "is_cross_attention": False, "attn_type": "decoder", "k_scale": None,
        "v_scale": None,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **changes})


@contextmanager
def installed(version: str = VERSION) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The package in the place of what is installed; yields the backends by name, and the choices."""
    backends, choices = dict[str, Any](), ["triton", "fa3"]

    def register(name: str) -> Callable[[Any], Any]:
        return lambda made: backends.setdefault(name, made)

    contents = {
        "sglang": {"__version__": version},
        f"{ATTENTION}.attention_registry": {"register_attention_backend": register},
        f"{ATTENTION}.base_attn_backend": {"AttentionBackend": Backend},
        "sglang.srt.arg_groups.choices": {
            "ATTENTION_BACKEND_CHOICES": choices,
            "add_attention_backend_choices": choices.extend,
        },
    }
    with standing_in(contents, OURS):
        yield backends, choices
