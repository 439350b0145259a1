"""The options of attention, each checked by itself; `schedules` checks combinations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attn_mlir.compiling import options
from attn_mlir.compiling.dtypes import DTYPES, dtype_name
from attn_mlir.compiling.request import option, request
from attn_mlir.compiling.sequences import GroupedRequest
from attn_mlir.dialect.attn.coordinates import NO_OFFSETS, Offsets
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.runtime.call.scalars import flag


def _dtype(name: str, allowed: tuple[str, ...]) -> Callable[[object], Any]:
    """Converter of a dtype."""
    return partial(dtype_name, argument=name, allowed=allowed)


MODIFIER: Any = option(
    converter=options.modifier,
    default=None,
    written=lambda modifier: modifier.canonical(),
    read=options.modifier_of,
)
"""A traced score modifier, as an option."""


@request
class MhaOptions(GroupedRequest):
    """The options of `MhaSpec`, whose docstring says what each means."""

    head_dim: int = option(converter=options.unchecked)
    v_head_dim: int = option(converter=options.unchecked, default=None)
    dtype: str = option(converter=_dtype("dtype", DTYPES), default="bf16")
    kv_dtype: str = option(converter=_dtype("kv_dtype", DTYPES), default=None)
    modifier: Program | None = MODIFIER
    schedule: str | None = option(converter=partial(options.schedule, "mha"), default=None)
    block: tuple[int, int, int] | None = option(
        converter=options.unchecked, default=None, written=list, read=tuple
    )
    joined: bool = option(converter=partial(flag, "joined"), default=False)
    split_size: int | None = option(converter=options.split_size, default=None)
    offsets: Offsets = option(
        converter=options.offsets,
        default=NO_OFFSETS,
        written=lambda offsets: [*offsets.numbers, *(f"{name}[batch]" for name in offsets.arrays)],
        read=options.offsets_of,
    )
    partial: bool = option(converter=partial(flag, "partial"), default=False)
