"""`jit_args`: of the kernels that callers of FlashInfer describe by C++, the one with a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from attn_mlir.errors import SpecError, no_kernel, shown

NAME, TENSORS, SCALARS = 11, 7, 9  # of gen_customize_batch_prefill_module, flashinfer/jit
SINK = ("AttentionSink", ["sink"], ["sm_scale"])
WITHOUT = ("use_fp16_qk_reduction", "pos_encoding_mode")  # keywords that ask for something else
_HINT = "modifiers are Python functions: pass them to attn_mlir.attention"


def declares_sinks(jit_args: object, jit_kwargs: object) -> bool:
    """Whether the arguments describe an attention sink.

    Such a wrapper's `run` takes, behind its operands, the sinks [num_qo_heads] and sm_scale.

    Args:
      jit_args: None, or a list of FlashInfer's: the name `AttentionSink` stands at 11, of its
        tensors ["sink"] at 7, of its scalars ["sm_scale"] at 9.
      jit_kwargs: options of a kernel's template by name.

    Raises:
      SpecError: they describe something else.
    """
    if jit_args is None:
        if jit_kwargs is not None:
            raise SpecError("jit_kwargs are of jit_args, which are None")
        return False
    is_list = isinstance(jit_args, tuple | list)
    entries: Sequence[Any] = cast("Sequence[Any]", jit_args) if is_list else list[Any]()
    if len(entries) <= NAME:
        raise SpecError(f"jit_args must be a list of FlashInfer's, got {shown(jit_args, 40)}")
    described = (entries[NAME], list(entries[TENSORS]), list(entries[SCALARS]))
    if described != SINK:
        variant = f"jit_args of {described[0]!r} with {described[1]} and {described[2]}"
        raise SpecError(no_kernel(variant, "AttentionSink with a sink and sm_scale has", _HINT))
    options = cast("Mapping[str, Any]", jit_kwargs or {})
    for name in WITHOUT:
        if options.get(name):
            raise SpecError(no_kernel(f"{name} of jit_kwargs at {options[name]!r}", _HINT))
    return True
