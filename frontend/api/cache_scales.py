"""Checks the scales of a cache's positions, and brings them to kernel form.

They are stored like keys and values, with groups in place of columns: `k_scale` [pages, page,
heads, groups] or [rows, positions, heads, groups], in the layout of the cache, and in one array for
K and V if these are in one. If a page or row of scales has n times fewer positions than one of
keys, n neighbouring positions share a scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.api.array_checks import checked_array
from attn_mlir.arrays import as_i32
from attn_mlir.caches import LAYOUTS, ContiguousKV, PagedKV
from attn_mlir.compiling.dtypes import NARROW_DTYPES, SCALE_DTYPES
from attn_mlir.dialect.attn.cache import SCALE_TABLE, Cache
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.schedules.policy.tiling import SCALE_GROUPS, has_scale_groups

POOL_RANK = 4
BOTH = 2  # extent of the axis for K and V in a pool of both
NAMES = {"k": "k_scale", "v": "v_scale"}


@dataclass(frozen=True)
class PositionScales:
    """The scales of the positions of a cache.

    Attributes:
      scales: those of k and of v, [pages, page, heads, groups] or [rows, positions, heads, groups].
      kind: how the cache is stored.
      table: their page table, if it is not that of k and v.
    """

    scales: tuple[TensorView, TensorView]
    kind: Cache
    table: object | None

    def arrays(self, batch: int, columns: int) -> dict[str, object]:
        """Their index array by name; empty without a `scale_table`.

        Args:
          batch: number of sequences.
          columns: least number of columns of the table.

        Raises:
          SpecError: says what is wrong with it.
        """
        if self.table is None:
            return {}
        table = as_i32(self.table, SCALE_TABLE)
        entries = checked_array(SCALE_TABLE, table, ("batch", "columns"), "i32")
        if entries.shape[0] != batch or entries.shape[1] < columns:
            raise SpecError(
                f"{SCALE_TABLE} must be [{batch}, {columns} or more], got {list(entries.shape)}"
            )
        check_dense_rows(entries, SCALE_TABLE)
        return {SCALE_TABLE: table}


def position_scales(
    cache: ContiguousKV | PagedKV, operands: Mapping[str, TensorView], kind: Cache
) -> PositionScales | None:
    """The scales of a cache's positions; None if the cache has scales per head.

    Args:
      operands: k and v, as [pages, page, heads, columns] or [rows, positions, heads, columns].
      kind: how k and v are stored.

    Raises:
      SpecError: names the argument, what was got and what is allowed.
    """
    arrays = {"k": cache.k_scale, "v": cache.v_scale}
    scales = {operand: view(x, NAMES[operand]) for operand, x in arrays.items() if x is not None}
    if not any(len(x.shape) >= POOL_RANK for x in scales.values()):
        return None
    layout, table = "[rows, positions, heads, groups]", None
    if isinstance(cache, PagedKV):
        layout, table = LAYOUTS[cache.layout].replace("D]", "groups]"), cache.scale_table
        if cache.v_pages is None and "v" not in scales:
            scales = _split_both(scales["k"], layout)
    for operand, name in NAMES.items():
        if operand not in scales:
            raise SpecError(f"{name} is missing: keys and values both have scales of positions")
        if len(scales[operand].shape) != POOL_RANK:
            raise SpecError(f"{name} must be {layout}, got {list(scales[operand].shape)}")
    if isinstance(cache, PagedKV) and cache.layout == "HND":
        scales = {operand: heads_inside(x) for operand, x in scales.items()}
    k, v = (_checked(operand, scales[operand], operands[operand], layout) for operand in NAMES)
    if k.dtype != v.dtype:
        raise SpecError(f"v_scale is {v.dtype}, k_scale is {k.dtype}: both must be the same")
    for operand, scale in zip(NAMES, (k, v), strict=True):
        _check_extents(operand, scale, operands[operand], kind, has_table=table is not None)
    extents = [(operands[s].shape[1], x.shape[1]) for s, x in zip(NAMES, (k, v), strict=True)]
    rows = [positions // blocks if blocks else 1 for positions, blocks in extents]
    if rows[0] != rows[1]:
        raise SpecError(
            f"v_scale is of {rows[1]} neighbouring positions, k_scale of {rows[0]}: both must be "
            "of as many"
        )
    if rows[0] > 1 and kind.padded:
        raise SpecError(
            f"leftpad is for scales of each position, k_scale is of {rows[0]} neighbouring ones"
        )
    layout_of_cache = dataclasses.replace(
        kind,
        scale_dtype=k.dtype,
        k_groups=int(k.shape[3]),
        v_groups=int(v.shape[3]),
        own_scale_table=table is not None,
        scale_rows=rows[0],
    )
    return PositionScales((k, v), layout_of_cache, table)


def _split_both(both: TensorView, layout: str) -> dict[str, TensorView]:
    """The scales of k and v, taken from one array of both."""
    if len(both.shape) != POOL_RANK + 1 or both.shape[1] != BOTH:
        expected = layout.replace("pages,", "pages, 2,")
        raise SpecError(f"k_scale must be {expected} without v_scale, got {list(both.shape)}")
    return {"k": half(both, 0), "v": half(both, 1)}


def _checked(operand_name: str, scale: TensorView, operand: TensorView, layout: str) -> TensorView:
    """Checks the dtype and the groups of one operand's scales, and returns them in layout NHD."""
    name, shape = NAMES[operand_name], list(scale.shape)
    if operand.dtype not in NARROW_DTYPES:
        raise SpecError(
            f"{name} is for keys and values of 8 bits, got {operand.dtype}: leave it out"
        )
    if scale.dtype not in SCALE_DTYPES:
        allowed = ", ".join(SCALE_DTYPES)
        raise SpecError(f"{name} must be {layout} of {allowed}, got {shape} of {scale.dtype}")
    if shape[2] != operand.shape[2]:
        raise SpecError(f"{name} has {shape[2]} heads, {operand_name} has {operand.shape[2]}")
    if not has_scale_groups(operand.shape[3], shape[3]):
        raise SpecError(
            f"{name} has {shape[3]} groups of {operand.shape[3]} columns: groups are {SCALE_GROUPS}"
        )
    if min(scale.strides) < 0 or (shape[3] > 1 and scale.strides[3] != 1):
        raise SpecError(
            f"{name} has strides {list(scale.strides)}: its groups must be dense (stride 1), and "
            "no stride below 0"
        )
    return scale


def _check_extents(
    operand_name: str, scale: TensorView, operand: TensorView, kind: Cache, *, has_table: bool
) -> None:
    """Refuses scales whose extents are not those of the operand."""
    name, extents, expected = NAMES[operand_name], tuple(scale.shape[:2]), tuple(operand.shape[:2])
    is_divided = expected[1] % extents[1] == 0 if extents[1] else not expected[1]
    if not kind.page_size and (extents[0] != expected[0] or not is_divided):
        raise SpecError(
            f"{name} has {extents[0]} rows of {extents[1]} positions, {operand_name} has "
            f"{expected[0]} of {expected[1]}"
        )
    if scale.empty and (kind.page_size or (kind.selected and extents[1])):
        raise SpecError(f"{name} has no element: shape {list(scale.shape)}")
    if kind.page_size and not is_divided:
        raise SpecError(
            f"{name} has pages of {extents[1]} positions, {operand_name} has pages of {expected[1]}"
        )
    if kind.page_size and extents[0] != expected[0] and not has_table:
        raise SpecError(
            f"{name} has {extents[0]} pages, {operand_name} has {expected[0]} (pass scale_table?)"
        )


def half(both: TensorView, number: int) -> TensorView:
    """K or V of a pool of both, or the table of one of them."""
    strides = (both.strides[0], *both.strides[2:])
    tensor = both.reshaped((both.shape[0], *both.shape[2:]), strides)
    return tensor.moved(number * both.strides[1])


def heads_inside(pool: TensorView) -> TensorView:
    """A pool of layout HND as a view of layout NHD."""
    order = (0, 2, 1, 3)
    return pool.reshaped([pool.shape[i] for i in order], [pool.strides[i] for i in order])


def check_dense_rows(table: TensorView, name: str) -> None:
    """Refuses a table whose rows are not dense.

    Raises:
      SpecError: names the table and its strides.
    """
    if not table.empty and (min(table.strides) < 0 or table.strides[-1] != 1):
        raise SpecError(
            f"{name} has strides {list(table.strides)}: its rows must be dense (stride 1), and "
            "their stride not below 0"
        )
