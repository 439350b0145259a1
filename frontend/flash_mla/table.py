"""Arguments of FlashMLA: those that have no effect here, and what the others are of ours."""

from __future__ import annotations

from attn_mlir.adapters import REQUIRED, Options, Table, neutral, passed, used
from attn_mlir.masks import Mask, causal, full
from attn_mlir.runtime.call.scalars import flag

V_DIM = 512

NEUTRAL: Table = {
    **neutral("dropout_p", 0, instead="there is no dropout"),
    **neutral("deterministic", False, True, instead="the same call gives the same bits"),
    **neutral("is_varlen", True, False, instead="offsets tell the lengths in any case"),
    **neutral("num_splits", None, instead="the number of parts goes by the sizes"),
    **neutral("indexer_topk", 0, instead="there is no LSE of the first entries of a list alone"),
}  # fmt: skip

OF_PREFILL = "dropout_p softmax_scale causal deterministic is_varlen"
"""The arguments after the operands and their lengths in dense prefill."""


def mask_of(is_causal: object) -> Mask:
    """The mask of a call.

    Raises:
      SpecError: `is_causal` is no flag.
    """
    return causal() if flag("causal", is_causal) else full()


_SCORES = (
    used("scale", softmax_scale=None),
    used("mask", mask_of, causal=False),
    *passed("device stream"),
)
PREFILL = Options(
    [
        used("cu_seqlens_q", cu_seqlens_qo=REQUIRED),
        used("cu_seqlens_k", cu_seqlens_kv=REQUIRED),
        used("max_seqlen_q", max_seqlen_qo=REQUIRED),
        used("max_seqlen_k", max_seqlen_kv=REQUIRED),
        *_SCORES,
    ]
)
PACKED_PREFILL = Options(
    [
        *(used(f"cu_seqlens_{side}", cu_seqlens=REQUIRED) for side in "qk"),
        *(used(f"max_seqlen_{side}", max_seqlen=REQUIRED) for side in "qk"),
        *_SCORES,
    ]
)
SPARSE = Options(
    [
        used("scale", sm_scale=REQUIRED),
        used("v_dim", d_v=V_DIM),
        used("sinks", attn_sink=None),
        *passed("topk_length device stream"),
    ]
)
NARROW_DECODING = Options(passed("device stream"))
DECODING = Options(
    [
        used("scale", softmax_scale=None),
        *passed("indices"),
        used("sinks", attn_sink=None),
        used("extra_kv", extra_k_cache=None),
        used("extra_indices", extra_indices_in_kvcache=None),
        *passed("device stream"),
    ]
)
