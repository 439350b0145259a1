"""Converters of the options of requests: each checks one option and returns its canonical form.

Requests declare their options with these; `schedules` and the requests' `check_together` check
combinations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from attn_mlir.compiling.dtypes import SCALE_DTYPES
from attn_mlir.dialect.attn.cache import PAGE_LISTS, Cache
from attn_mlir.dialect.attn.coordinates import HEAD_OFFSET, OFFSETS, Offsets
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.masks import public
from attn_mlir.dialect.attn.programs.reads import COORDINATES, KEY_PARTS
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, TARGETS, target_named
from attn_mlir.errors import SpecError, TargetError, no_kernel, shown
from attn_mlir.masks import Mask
from attn_mlir.runtime.call.scalars import as_int, integer
from attn_mlir.schedules.policy.registry import names_of
from attn_mlir.schedules.policy.tiling import (
    KEYS_IN_ROWS_TILES,
    MAX_HEAD_DIM,
    MAX_Q_TILES,
    STAGE_COUNTS,
    STREAM_KEYS,
    TILE_N,
)

if TYPE_CHECKING:
    from attn_mlir.dialect.attn.programs.program import Program

MAX_PAGE = 1 << 20  # positions; far above any cache
HEAD_DIM_STEP = 8
NARROW_HEAD_DIM_STEP = 16
MAX_HEADS = 1 << 16  # far above any model; a typing error should not compile
TILE_ROWS = target_named(DEFAULT_TARGET).rows_per_product  # of a query tile
BLOCK_ROWS, BLOCK_KEYS = (TILE_ROWS, MAX_Q_TILES * TILE_ROWS), (32, *TILE_N)

_LENGTH_FLAGS = {
    "cu_seqlens_q": "ragged_q",
    "cu_seqlens_k": "ragged_k",
    "seqused_q": "used_q",
    "seqused_k": "used_k",
    "cache_seqlens": "cached_k",
}  # index array -> field of `Lengths`


def unchecked(value: Any) -> Any:
    """The value of an option whose check needs other options: `check_together` has it."""
    return value


def one_of(name: str, allowed: Collection[str], value: object, *, optional: bool = False) -> str:
    """One of these texts.

    Args:
      optional: whether None would be right as well, as the message says.

    Raises:
      SpecError: something else.
    """
    if is_one_of(allowed, value):
        return cast(str, value)
    otherwise = " or None" if optional else ""
    raise SpecError(
        f"{name} must be one of {', '.join(allowed)}{otherwise}, got {shown(value, 40)}"
    )


def is_one_of(names: Collection[str], value: object) -> bool:
    """Whether a value is one of these texts; arrays may be asked as well."""
    return isinstance(value, str) and value in names


def schedule(operation: str, value: object) -> str:
    """The name of a schedule of an operation.

    Raises:
      SpecError: there is none by this name.
    """
    return one_of("schedule", names_of(operation), value, optional=True)


def query_tiles(value: object) -> int:
    """Query tiles of a CTA.

    Raises:
      SpecError: neither 1 nor 2, nor 4, which one schedule has (its policy).
    """
    return _number("query_tiles", value, KEYS_IN_ROWS_TILES, "1, 2")


def stage_count(name: str, value: object) -> int:
    """Stages inside a product.

    Raises:
      SpecError: another number than those of `STAGE_COUNTS`.
    """
    return _number(name, value, STAGE_COUNTS, ", ".join(map(str, STAGE_COUNTS)))


def _number(name: str, value: object, allowed: Collection[int], shown_as: str) -> int:
    number = as_int(value)
    if number is None or number not in allowed:
        raise SpecError(f"{name} must be {shown_as} or None, got {shown(value, 40)}")
    return number


def split_size(value: object) -> int:
    """Keys of a split.

    Raises:
      SpecError: no whole key tiles.
    """
    keys = as_int(value)
    if keys is None or keys < 1 or keys % STREAM_KEYS:
        raise SpecError(
            f"split_size must be a multiple of {STREAM_KEYS} keys or None, got {shown(value, 40)}"
        )
    return keys


def head_dim(name: str, size: object, step: int, most: int = MAX_HEAD_DIM) -> int:
    """A head size.

    Raises:
      SpecError: one that has no kernel: no multiple of `step`, or above `most`.
    """
    number = as_int(size)
    if number is not None and not number % step and 0 < number <= most:
        return number
    above = 0 if number is None else -(-number // step) * step
    hint = f" (pad to {above}?)" if 0 < above <= most else ""
    supported = f"supported are multiples of {step} up to {most}{hint}"
    raise SpecError(no_kernel(f"{name} {shown(size, 40)}", supported))


def lengths(value: object) -> Lengths:
    """The static lengths: which arrays give them.

    Raises:
      SpecError: no `Lengths`.
    """
    if not isinstance(value, Lengths):
        raise SpecError(
            f"lengths must be a Lengths of attn_mlir.dialect.attn.lengths, got {shown(value)}"
        )
    return value


def lengths_of(names: list[str]) -> Lengths:
    """The static lengths of these index arrays and numbers."""
    return Lengths(**{_LENGTH_FLAGS[name]: True for name in names if name in _LENGTH_FLAGS})


def offsets(value: object) -> Offsets:
    """Which offsets of coordinates a call gives.

    Raises:
      SpecError: no `Offsets`, one that names what is no offset or names it twice, or one offset of
        heads for each sequence.
    """
    if not isinstance(value, Offsets):
        raise SpecError(
            f"offsets must be an Offsets of attn_mlir.dialect.attn.coordinates, got {shown(value)}"
        )
    names = (*value.numbers, *value.arrays)
    if len({*names}) < len(names) or not {*names} <= {*OFFSETS} or HEAD_OFFSET in value.arrays:
        raise SpecError(f"offsets must name each of {', '.join(OFFSETS)} once at most: {value}")
    numbers, arrays = (
        tuple(x for x in OFFSETS if x in some) for some in (value.numbers, value.arrays)
    )
    return Offsets(numbers, arrays)


def offsets_of(names: list[str]) -> Offsets:
    """The offsets of these names, of which those of arrays end in their shape."""
    numbers = tuple(name for name in names if not name.endswith("[batch]"))
    arrays = tuple(name.removesuffix("[batch]") for name in names if name.endswith("[batch]"))
    return Offsets(numbers, arrays)


def page(name: str, size: object) -> int:
    """The size of a page.

    Raises:
      SpecError: no such size.
    """
    return integer(name, size, least=1, most=MAX_PAGE)


def cache(value: object) -> Cache:
    """The storage of a cache.

    Raises:
      SpecError: no `Cache`, or one whose fields do not go together.
    """
    if not isinstance(value, Cache):
        raise SpecError(
            f"cache must be a Cache of attn_mlir.dialect.attn.cache, got {shown(value)}"
        )
    if bool(value.page_size) != (value.pages in PAGE_LISTS):
        raise SpecError(
            f"cache with a page_size, and no other, must list pages by one of "
            f"{', '.join(PAGE_LISTS)}, "
            f"got page_size {shown(value.page_size, 40)} and pages {shown(value.pages, 40)}"
        )
    if value.page_size:
        page("page_size", value.page_size)
        if value.selected or value.padded:
            raise SpecError("a cache with pages has neither batch_idx nor leftpad")
    if value.scale_dtype not in ("", *SCALE_DTYPES):
        raise SpecError(
            f"scale_dtype of a cache must be one of {', '.join(SCALE_DTYPES)}, got "
            f"{shown(value.scale_dtype, 40)}"
        )
    if value.own_scale_table and not (value.scale_dtype and value.page_size):
        raise SpecError("scale_table of a cache is for scales of positions in pages")
    rows = value.scale_rows
    if rows != 1 and (not value.scale_dtype or value.padded or rows < 1 or value.page_size % rows):
        raise SpecError(
            "scale_rows of a cache must divide its pages, for scales of positions without "
            f"padding, got {shown(rows, 40)} for page_size {value.page_size}"
        )
    return value


def mask(value: object) -> Mask:
    """A mask in closed form.

    Raises:
      SpecError: none of `attn_mlir.masks`.
    """
    if not isinstance(value, Mask):
        made = ", ".join(f"{kind.make.__name__}()" for kind in public() if kind.make is not None)
        supported = f"supported are {made} and what &, | and ~ make of them"
        raise SpecError(no_kernel(f"mask {shown(value)}", supported))
    return value


def modifier(value: Program) -> Program:
    """A traced score modifier.

    Raises:
      SpecError: something else, such as a function.
    """
    if not callable(getattr(value, "canonical", None)):
        raise SpecError(
            "modifier must be what attn_mlir.trace.trace returns or None, got "
            f"{shown(value)}: functions are the score_mod and mask_mod of mha(...)"
        )
    return value


def modifier_of(text: object) -> Program:
    """The modifier whose canonical text this is."""
    from attn_mlir.compiling.modifier_text import read_modifier  # needs numpy

    return read_modifier(text)


def block(value: object, group: int) -> tuple[int, int, int]:
    """Positions, heads and keys of a block of scores that is one work tile.

    Args:
      group: query heads per key head.

    Raises:
      SpecError: none of 1 or 2 tiles of 128 rows, times 64 or 128 keys.
    """
    sizes = cast("Sequence[object]", value) if isinstance(value, Sequence) else ()
    extents = [as_int(extent) or 0 for extent in sizes]
    if len(extents) == 3 and min(extents) > 0:
        positions, heads, keys = extents
        if positions * heads in BLOCK_ROWS and keys in BLOCK_KEYS and group % heads == 0:
            return positions, heads, keys
    supported = (
        f"it must be (positions, heads, keys) with positions x heads of {BLOCK_ROWS}, heads that "
        f"divide {group} and keys of {BLOCK_KEYS}"
    )
    raise SpecError(no_kernel(f"block {shown(cast(object, value), 40)}", supported))


def adjoints(value: object) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    """Names of tensors, each with the coordinates of scores that are axes before its own, or None.

    Raises:
      SpecError: it is no sequence of such pairs.
    """
    found: list[tuple[str, tuple[str, ...] | None]] = []
    for item in cast("Sequence[Any]", value) if isinstance(value, Sequence) else (None,):
        match item:
            case [str(name), None]:
                found.append((name, None))
            case [str(name), [*lead]] if set(lead) <= {*COORDINATES, *KEY_PARTS}:
                found.append((name, tuple(map(str, lead))))
            case _:
                expected = (
                    f"pairs of a name and some of {', '.join((*COORDINATES, *KEY_PARTS))}, or None"
                )
                raise SpecError(f"adjoints must be {expected}, got {shown(item, 40)}")
    return tuple(found)


def gradient_block(value: object, group: int) -> tuple[int, int, int]:
    """Positions, heads and keys of a block of scores that is one work tile of gradients.

    Args:
      group: query heads per key head.

    Raises:
      SpecError: it is none; a policy says which sizes have kernels.
    """
    sizes = cast("Sequence[object]", value) if isinstance(value, Sequence) else ()
    extents = [as_int(extent) or 0 for extent in sizes]
    if len(extents) != 3 or min(extents) < 1 or extents[1] not in (1, group):
        supported = f"it must be (positions, heads, keys), with 1 or {group} heads"
        raise SpecError(no_kernel(f"block {shown(cast(object, value), 40)}", supported))
    positions, heads, keys = extents
    return positions, heads, keys


def check_target(target: str) -> str:
    """The target itself.

    Raises:
      TargetError: no chip that we know. Whether a kernel has a schedule for it is found out when
        it is compiled.
    """
    if not is_one_of(tuple(TARGETS), target):
        raise TargetError(
            f"target {shown(target, 40)} is not known: supported are {', '.join(TARGETS)}"
        )
    return target
