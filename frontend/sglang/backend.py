"""SGLang's class of an attention backend."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.sglang.batches import Batch, Buffers, attend, batch_of

torch: Any = importlib.import_module("torch")
host: Any = importlib.import_module("sglang.srt.layers.attention.base_attn_backend")

ENCODER_ONLY = "encoder_only"
TRANSLATED = "translate_loc_from_full_to_swa"  # of pools that keep windows apart


class AttnMlirBackend(host.AttentionBackend):
    """Attention over SGLang's token pool: extension and decoding, with graphs of decoding."""

    def __init__(self, runner: Any):
        """The backend of a model runner.

        Raises:
          SpecError: names what is not offered.
        """
        host.AttentionBackend.__init__(self)
        if getattr(runner, "use_mla_backend", False):
            raise SpecError("use_mla_backend must be False: latent attention is not offered here")
        self.token_to_kv_pool = runner.token_to_kv_pool
        if hasattr(self.token_to_kv_pool, TRANSLATED):
            raise SpecError(
                "a pool of windows apart is not offered: pass --disable-hybrid-swa-memory"
            )
        self._req_to_token = runner.req_to_token_pool.req_to_token
        self._page_size = int(runner.page_size)
        self._max_context_len = int(runner.model_config.context_len)
        self._device = runner.device
        self._buffers: Buffers | None = None
        self.forward_metadata: Batch | None = None

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocates what graphs of decoding read."""
        del max_num_tokens
        sizes = max_bs, self._max_context_len, self._page_size
        self._buffers = Buffers.of(*sizes, self._device)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Tokens of the requests that fill up a graph."""
        return 1

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """The batch of a step outside of graphs.

        Raises:
          SpecError: names what is not offered.
        """
        mode = self._checked(forward_batch).forward_mode
        if mode.is_idle():
            self.forward_metadata = None
            return
        new_lens, most = None, 1
        if not mode.is_decode():
            new_lens = forward_batch.extend_seq_lens
            most = max(forward_batch.extend_seq_lens_cpu)
        lengths = forward_batch.seq_lens_cpu
        longest = self._max_context_len if lengths is None else int(lengths.max())
        self.forward_metadata = batch_of(
            forward_batch.seq_lens,
            new_lens,
            (int(most), longest),
            self._req_to_token,
            forward_batch.req_pool_indices,
            self._page_size,
        )

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """The batch of a graph of decoding, in buffers that stay where they are.

        Raises:
          SpecError: names what is not offered.
        """
        del in_capture
        mode = self._checked(forward_batch).forward_mode
        if self._buffers is None or not mode.is_decode():
            raise SpecError("graphs are of decoding, after init_cuda_graph_state")
        where = self._req_to_token, forward_batch.req_pool_indices
        self.forward_metadata = self._buffers.filled(forward_batch.seq_lens, *where)

    @staticmethod
    def _checked(forward_batch: Any) -> Any:
        if getattr(forward_batch, "spec_info", None) is not None:
            raise SpecError("spec_info must be None: drafts and their trees are not offered")
        return forward_batch

    def forward_extend(
        self,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        *,
        sinks: Any = None,
        **options: Any,
    ) -> Any:
        """Writes new keys and values into the pool, and attends to those of their requests.

        Returns:
          [tokens, heads x v_head_dim].

        Raises:
          SpecError: names what is not offered.
        """
        for name, value in options.items():
            if value is not None:
                raise SpecError(f"{name} must be None: it is not offered")
        if layer.is_cross_attention:
            raise SpecError("is_cross_attention must be False: encoders' keys are not offered")
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            places = forward_batch.out_cache_loc
            pool.set_kv_buffer(layer, places, k, v, layer.k_scale, layer.v_scale)
        batch = self.forward_metadata
        if batch is None:
            raise SpecError("init_forward_metadata comes first")
        out = attend(
            q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
            pool.get_key_buffer(layer.layer_id),
            pool.get_value_buffer(layer.layer_id),
            batch,
            self._page_size,
            scaling=layer.scaling,
            window=layer.sliding_window_size,
            logit_cap=layer.logit_cap,
            k_scale=layer.k_scale,
            v_scale=layer.v_scale,
            sinks=None if sinks is None else sinks.float(),
            is_causal=getattr(layer.attn_type, "value", layer.attn_type) != ENCODER_ONLY,
        )
        return out.reshape(-1, layer.tp_q_head_num * layer.v_head_dim)

    forward_decode = forward_extend  # one new token of each request
