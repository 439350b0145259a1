"""The private attributes of FlashInfer's wrappers that engines read after `plan`.

They cannot be set: another score is an argument of `plan`, `run` or `forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attn_mlir.flashinfer.buffers import Buffers
from attn_mlir.flashinfer.options import TORCH_DTYPES
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.runtime.call.scalars import as_int


def _of_plan(read: Callable[[Problem], Any]) -> Any:
    """An attribute that `plan` sets."""

    def attribute(wrapper: PlannedAttributes) -> Any:
        problem: Problem | None = vars(wrapper)["_problem"]
        if problem is None:
            raise AttributeError("plan has not been called: it sets this attribute")
        return read(problem)

    return property(attribute)


def _of_buffer(name: str) -> Any:
    """An index tensor: the caller's buffer for graphs, else that of `plan`; None before it."""

    def attribute(wrapper: PlannedAttributes) -> Any:
        buffers: Buffers = vars(wrapper)["_buffers"]
        tensors = buffers.external or buffers.current
        found = (x for key, x in tensors.items() if key.startswith(f"{name}_buf"))
        return next(found, None)

    return property(attribute)


class PlannedAttributes:
    """The settings of a wrapper, by FlashInfer's names.

    `_window_left` is -1 for all keys, `_logits_soft_cap` 0 without a cap, `_sm_scale` None for
    1 / sqrt(head_dim); dtypes are PyTorch's.
    """

    _problem: Problem | None
    _buffers: Buffers

    _window_left = _of_plan(lambda problem: as_int(problem.window_left))
    _logits_soft_cap = _of_plan(lambda problem: problem.cap)
    _sm_scale = _of_plan(lambda problem: problem.scale)
    _causal = _of_plan(lambda problem: problem.causal)
    _pos_encoding_mode = _of_plan(lambda problem: problem.positions)
    _rope_scale = _rope_theta = _of_plan(lambda problem: None)
    _num_qo_heads = _of_plan(lambda problem: problem.heads)
    _num_kv_heads = _of_plan(lambda problem: problem.kv_heads)
    _cached_q_data_type = _of_plan(lambda problem: TORCH_DTYPES[problem.dtype])
    _cached_kv_data_type = _of_plan(lambda problem: TORCH_DTYPES[problem.kv_dtype])
    _cached_o_data_type = _of_plan(lambda problem: TORCH_DTYPES[problem.out_dtype or problem.dtype])

    _qo_indptr_buf = _of_buffer("qo_indptr")
    _kv_indptr_buf = _of_buffer("kv_indptr")
    _paged_kv_indptr_buf = _of_buffer("paged_kv_indptr")
    _paged_kv_indices_buf = _of_buffer("paged_kv_indices")
    _paged_kv_last_page_len_buf = _of_buffer("paged_kv_last_page_len")

    @property
    def device(self) -> Any:
        """Where calls are."""
        return self._buffers.device

    @property
    def _fixed_batch_size(self) -> int:
        """The batch of a wrapper for graphs; 0 of another one."""
        offsets = next(iter((self._buffers.external or {}).values()), None)
        return 0 if offsets is None else offsets.shape[0] - 1
