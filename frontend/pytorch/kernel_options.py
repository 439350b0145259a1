"""`kernel_options` of PyTorch's `flex_attention`: hints for Triton that no kernel here reads.

They say how to compute and not what, so that they are checked, told to whoever reads the log, and
left out. Names that PyTorch gives its kernels itself would change what is computed, and are
refused, as are unknown ones.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from attn_mlir import env
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import flag, integer

torch: Any = importlib.import_module("torch")

NUMBERS = frozenset(
    "num_warps num_stages num_consumer_groups BLOCK_M BLOCK_N BLOCK_M1 BLOCK_N1 BLOCK_M2 BLOCK_N2 "
    "SPLIT_KV "
    "PARTITION_SIZE kpack matrix_instr_nonkdim waves_per_eu".split()
)  # hints that are numbers
FLAGS = frozenset(
    "PRESCALE_QK ROWS_GUARANTEED_SAFE BLOCKS_ARE_CONTIGUOUS WRITE_DQ FORCE_USE_FLEX_ATTENTION "
    "USE_TMA".split()
)  # hints that are true or false
BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")
SET_BY_PYTORCH = frozenset(
    "OUTPUT_LOGSUMEXP OUTPUT_MAX SM_SCALE GQA_SHARED_HEADS QK_HEAD_DIM V_HEAD_DIM HAS_FULL_BLOCKS "
    "IS_DIVISIBLE "
    "SAFE_HEAD_DIM SAFE_N_BOUNDARY SKIP_MASK_SCORE SPARSE_Q_BLOCK_SIZE SPARSE_KV_BLOCK_SIZE "
    "FLOAT32_PRECISION".split()
)  # what PyTorch sets
PREFIXES = ("fwd_", "bwd_")  # of one pass alone


def check_kernel_options(options: object) -> None:
    """Refuses options that would change what is computed, and unknown ones; says that the others do
    nothing.

    Raises:
      SpecError: names the option.
    """
    if options is None:
        return
    if not isinstance(options, dict):
        raise SpecError(f"kernel_options must be a dict or None, got {shown(options, 40)}")
    hints = cast("dict[object, object]", options)
    for name, value in hints.items():
        _check(name, value)
    if hints and not torch.compiler.is_dynamo_compiling():
        names = ", ".join(map(str, hints))
        env.log_once(
            "info", f"flex_attention leaves out kernel_options {names}: hints for kernels of Triton"
        )


def _check(name: object, value: object) -> None:
    """Refuses one option."""
    if not isinstance(name, str):
        raise SpecError(f"kernel_options have names, got {shown(name, 40)}")
    hint = name[4:] if name.startswith(PREFIXES) else name
    called = f"kernel_options[{name!r}]"
    if hint in NUMBERS:
        integer(called, value, 0 if hint == "matrix_instr_nonkdim" else 1)
    elif hint in FLAGS:
        flag(called, value)
    elif hint == "BACKEND":
        if value not in BACKENDS:
            raise SpecError(
                f"{called} must be one of {', '.join(BACKENDS)}, got {shown(value, 40)}"
            )
    elif hint in SET_BY_PYTORCH:
        raise SpecError(f"{called} says what is computed and is PyTorch's own: leave it out")
    else:
        allowed = ", ".join(sorted(NUMBERS | FLAGS | {"BACKEND"}))
        raise SpecError(f"{called} is no option of flex_attention: hints are {allowed}")
