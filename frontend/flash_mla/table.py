"""Arguments of FlashMLA that have no effect here."""

from __future__ import annotations

from attn_mlir.adapters import Table, neutral

NEUTRAL: Table = {
    **neutral("dropout_p", 0, instead="there is no dropout"),
    **neutral("deterministic", False, True, instead="the same call gives the same bits"),
    **neutral("is_varlen", True, False, instead="offsets tell the lengths in any case"),
    **neutral("num_splits", None, instead="the number of parts goes by the sizes"),
    **neutral("indexer_topk", 0, instead="there is no LSE of the first entries of a list alone"),
}  # fmt: skip

OF_PREFILL = "dropout_p softmax_scale causal deterministic is_varlen"
"""What follows the operands and their lengths in dense prefill."""
