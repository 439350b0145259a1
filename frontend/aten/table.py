"""Arguments of PyTorch's operators of flash attention: what each is here."""

from __future__ import annotations

from attn_mlir.adapters import ANYTHING, REQUIRED, Options, Table, neutral, passed, used
from attn_mlir.flash.options import NO_WINDOW, mask_of
from attn_mlir.masks import Mask

_NO_DROPOUT = "there is no dropout"

NEUTRAL: Table = {
    **neutral("dropout_p", 0, instead=_NO_DROPOUT),
    **neutral("return_debug_mask", False, instead="attention has no weights"),
    **neutral("rng_state unused philox_seed philox_offset", None, ANYTHING, instead=_NO_DROPOUT),
}

OPERANDS = "query key value"
LENGTHS = "cum_seq_q cum_seq_k max_q max_k"
OF_FORWARD = "dropout_p is_causal return_debug_mask"
GRADIENT = f"grad_out {OPERANDS} out logsumexp"


def _longest(offsets: object, longest: int) -> int | None:
    """The length of the longest sequence, which counts where sequences have offsets."""
    return None if offsets is None else longest


def _window(left: int | None, right: int | None) -> tuple[int, int]:
    """The limits of a window, -1 for none."""
    return NO_WINDOW[0] if left is None else left, NO_WINDOW[1] if right is None else right


def _parts(num_splits: int | None) -> int:
    """The number of parts of the keys, 0 for a choice by the sizes."""
    return 0 if num_splits is None else num_splits


def _mask(is_causal: bool, left: int | None, right: int | None) -> Mask:
    return mask_of(is_causal, _window(left, right))


_SEQUENCES = [
    *(used(f"cu_seqlens_{x}", **{f"cum_seq_{x}": REQUIRED}) for x in "qk"),
    *(
        used(f"max_seqlen_{x}", _longest, **{f"cum_seq_{x}": REQUIRED, f"max_{x}": REQUIRED})
        for x in "qk"
    ),
]
_WINDOW: dict[str, object] = {"window_size_left": None, "window_size_right": None}

FORWARD = Options(
    [
        *_SEQUENCES,
        used("causal", is_causal=False),
        used("window_size", _window, **_WINDOW),
        used("softmax_scale", scale=None),
        used("num_splits", _parts, num_splits=None),
        *passed("seqused_k alibi_slopes block_table"),
    ]
)
"""As options of `flash_attn_varlen_func`."""

BACKWARD = Options([*_SEQUENCES, used("mask", _mask, is_causal=False, **_WINDOW), *passed("scale")])
"""As options of `attention_backward`."""
