"""FlashAttention 2's forward and backward passes by themselves, for schemes that distribute them.

Ring attention calls each once for every shard of the keys, and the backward pass with O and LSE of
all shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.adapters import REQUIRED, Options, adapter, neutral, passed, used
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.arrays import check_memory, on_stream
from attn_mlir.calls import attention_backward
from attn_mlir.flash.functions import LENGTHS, attend
from attn_mlir.flash.lengths import distance, with_slopes
from attn_mlir.flash.options import mask_of, score_mod_of
from attn_mlir.flash.table import NEUTRAL
from attn_mlir.library import check_one_library
from attn_mlir.masks import Mask
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.tensors import check_has_memory, view

SCORES = "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes"
FORWARD = f"{SCORES} return_softmax"
BACKWARD = f"{SCORES} deterministic rng_state"
GRADIENTS = "dout q k v out softmax_lse dq dk dv"  # what the backward passes begin with
TABLE = {
    **NEUTRAL,
    **neutral("return_softmax", False, instead="probabilities are not computed"),
    **neutral("rng_state", None, instead="there is no dropout"),
    **neutral("zero_tensors", False, True, instead="the kernels write all rows of sequences"),
}
_mask_of = renamed(
    mask_of, **{f"{x} of a sliding window": f"window_size_{x}" for x in ("left", "right")}
)
Results = tuple[Any, Any, None, None]


def _mask(causal: object, left: int, right: int) -> Mask:
    """The mask of a window whose sides are two arguments."""
    return _mask_of(causal, (left, right))


OPTIONS = (
    used("scale", softmax_scale=None),
    used("mask", _mask, causal=False, window_size_left=-1, window_size_right=-1),
    used("score_mod", score_mod_of, softcap=0.0),
    *passed("device stream"),
)
LENGTH_OPTIONS = (
    *passed("cu_seqlens_q cu_seqlens_k", REQUIRED),
    *passed("max_seqlen_q max_seqlen_k"),
)
OF_BACKWARD = Options([*OPTIONS, *passed("deterministic", False)])
OF_BACKWARD_SEQUENCES = Options([*LENGTH_OPTIONS, *OF_BACKWARD.rows])
OF_FORWARD = Options([*OPTIONS, used("return_lse", lambda: True)])
OF_FORWARD_SEQUENCES = Options([*LENGTH_OPTIONS, *passed("seqused_k"), *OF_FORWARD.rows])

_backward = renamed(attention_backward, do="dout", o="out", lse="softmax_lse")


def _with_slopes(options: Options) -> Options:
    """The options of a pass, with the slopes, which are no argument of ours."""
    return Options([*options.rows, *passed("alibi_slopes")])


@adapter(TABLE, f"q k v {FORWARD}", options=_with_slopes(OF_FORWARD))
def flash_attn_forward(q: Any, k: Any, v: Any, **options: Any) -> Results:
    """As `flash_attn.flash_attn_interface._flash_attn_forward`.

    Args:
      q, k, v, options: as of `flash_attn_func`; its `window_size` is two arguments.

    Returns:
      O and LSE; None in the place of probabilities and of the state of random numbers.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return *attend((q, k, v), options, OF_FORWARD), None, None


@adapter(
    TABLE,
    f"q k v {LENGTHS} {FORWARD} block_table leftpad_k seqused_k",
    "zero_tensors",
    options=_with_slopes(OF_FORWARD_SEQUENCES),
)
def flash_attn_varlen_forward(q: Any, k: Any, v: Any, **options: Any) -> Results:
    """As `flash_attn.flash_attn_interface._flash_attn_varlen_forward`.

    Args:
      q, k, v, options: as of `flash_attn_varlen_func`, without pages.

    Returns:
      As `_flash_attn_forward`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return *attend((q, k, v), options, OF_FORWARD_SEQUENCES), None, None


@outside_graphs
@adapter(TABLE, f"{GRADIENTS} {BACKWARD}", options=_with_slopes(OF_BACKWARD))
def flash_attn_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    **options: Any,
) -> None:
    """As `flash_attn.flash_attn_interface._flash_attn_backward`.

    Args:
      dout: the gradient of O.
      q, k, v, options: as of `_flash_attn_forward`.
      out, softmax_lse: what that returned, or O and LSE of all keys where k and v are a shard.
      dq, dk, dv: memory for the gradients of q, k and v, of their shapes and dtypes; None: one is
        not wanted. With `deterministic` they have the same bits every time.

    Returns:
      None, in the place of the row sums that FlashAttention returns.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    written = {"dq": dq, "dk": dk, "dv": dv}
    _write_gradients(written, (q, k, v, out, softmax_lse, dout), options, OF_BACKWARD)


@outside_graphs
@adapter(
    TABLE,
    f"{GRADIENTS} {LENGTHS} {BACKWARD}",
    "zero_tensors",
    options=_with_slopes(OF_BACKWARD_SEQUENCES),
)
def flash_attn_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    **options: Any,
) -> None:
    """As `flash_attn.flash_attn_interface._flash_attn_varlen_backward`.

    Args:
      dout, q, k, v, out, softmax_lse, dq, dk, dv: as of `_flash_attn_backward`, of sequences one
        behind the other.
      options: as of `_flash_attn_varlen_forward`.

    Returns:
      As `_flash_attn_backward`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    written = {"dq": dq, "dk": dk, "dv": dv}
    _write_gradients(written, (q, k, v, out, softmax_lse, dout), options, OF_BACKWARD_SEQUENCES)


def _write_gradients(
    written: Mapping[str, Any],
    operands: tuple[Any, ...],
    given: Mapping[str, Any],
    options: Options,
) -> None:
    """Computes the gradients, and writes those that have memory.

    Args:
      written: memory for dq, dk and dv.
      operands: q, k, v, O, LSE and the gradient of O.
    """
    q, k = operands[:2]
    names = ("q", "k", "v", "out", "softmax_lse", "dout")
    memory = {name: array for name, array in written.items() if array is not None}
    named = dict(zip(names, operands, strict=True))
    views = {name: view(array, name) for name, array in named.items()}
    for name, array in memory.items():
        check_has_memory(view(array, name), name)
    check_one_library({**named, **memory})
    for name, array in memory.items():
        model = views[name[1:]]
        check_memory(name, array, model.shape, model.dtype, views)
    if not memory:
        return
    others: dict[str, Any] = {"wanted": tuple(name[1:] for name in memory)}
    if (slopes := given.get("alibi_slopes")) is not None:
        ours = options.ours(given)
        others["score_mod"] = with_slopes(ours["score_mod"], slopes, distance(q, k, ours))
    found = options.call(_backward, *operands, given=given, **others)
    with on_stream(given.get("stream"), q):
        for name, array in memory.items():
            array[...] = getattr(found, name)
