"""Recipes of tensor maps: how a map's numbers follow from a tensor's shape, strides and address.

A recipe first says how the tensor is seen: as elements of which type, and which two of its axes are
walked as one. Then it says of each dimension of the map, innermost first, which axis it walks: from
which element on, in steps of how many, how often. Everything that copies boxes is made of these few
words; `docs/reference/bundle.md` has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.element_types import DECLARED
from attn_mlir.expr import Expr, from_list
from attn_mlir.runtime.file.fields import DTYPE_BYTES, Reader

MAP_DTYPES = tuple(row.name for row in DECLARED if row.tensor_map)
SWIZZLE_BYTES = {"none": 4096, "32B": 32, "64B": 64, "128B": 128}  # widest box; cuda.h, 256 x 16 B
L2_PROMOTIONS = ("none", "64B", "128B", "256B")  # cuda.h, CUtensorMapL2promotion, in its order
BOX_WIDTH_MULTIPLE_BYTES = 16  # cuda.h, cuTensorMapEncodeTiled: boxDim[0]
MAP_BYTES = 128  # of a tensor map; cuda.h, CUtensorMap
MAX_MAP_RANK = 5  # cuda.h, cuTensorMapEncodeTiled: tensorRank
MAX_BOX_EXTENT = 256  # cuda.h, cuTensorMapEncodeTiled: boxDim
FARTHEST = 2**31 - 1  # elements between the ends of an axis and what a dimension walks of it


@dataclass(frozen=True)
class MapDim:
    """One dimension of a tensor map: `extent` steps of `step` elements along an axis.

    Attributes:
      axis: of the tensor.
      first: element of the axis that it begins with; negative, where the map's base lies in front
        of the tensor. See `lowering.tensors` for what that is good for.
      rest: elements of the axis behind what the map has of it.
    """

    extent: Expr
    axis: int
    step: int
    first: int = 0
    rest: int = 0


@dataclass(frozen=True)
class Merged:
    """Two axes walked as one: steps along `inner` go on through `outer`.

    The stride of `outer` has to be a whole number of those of `inner`, which may be more than
    `inner` has elements: then the merged axis has elements between that are not the tensor's. Its
    number remains `inner`; nothing walks `outer` any more.

    Attributes:
      extent: name of its number of elements, for the extents of the map.
      multiple: of steps along `inner`, that both axes must have: where a dimension takes so many at
        once, each of `outer` begins with a whole one.
    """

    outer: int
    inner: int
    extent: str
    multiple: int = 1


@dataclass(frozen=True)
class TensorMapParam:
    """A 128-byte tensor map, `dims` and `box` innermost first.

    Attributes:
      dtype: what the map takes the tensor's memory for, by whose elements the dense axis is
        counted; None for the tensor's own.
      l2: bytes that the L2 cache fetches where it misses, of `L2_PROMOTIONS`.
    """

    tensor: str
    box: tuple[int, ...]
    swizzle: str
    dims: tuple[MapDim, ...]
    dtype: str | None = None
    l2: str = "128B"
    merged: Merged | None = None


def read_tensor_map(
    reader: Reader, tensor: str, dtype: str, rank: int, dense: int | None, symbols: Sequence[str]
) -> TensorMapParam:
    """The recipe in an entry of `params`.

    Args:
      tensor, dtype: the tensor that it is about.
      rank: how many axes the tensor has.
      dense: the axis of stride 1, which a map's first dimension walks.
      symbols: sizes of a call.

    Raises:
      SpecError: names the field, what was got and what is allowed.
    """
    merged = _merged(reader, rank, symbols)
    symbol_names = symbols if merged is None else (*symbols, merged.extent)
    dims = tuple(_dim(dim, rank, symbol_names) for dim in reader.objects("dims"))
    box = reader.integers("box", 1, MAX_BOX_EXTENT)
    if not 1 <= len(dims) <= MAX_MAP_RANK or len(box) != len(dims):
        allowed = f"as long as dims (1 to {MAX_MAP_RANK}), which has {len(dims)} entries"
        raise reader.wrong("box", allowed)
    if dims[0].axis != dense or dims[0].step != 1:
        raise reader.wrong("dims", f"led by the unit-stride axis {dense}, step 1")
    if merged is not None and merged.outer in [dim.axis for dim in dims]:
        raise reader.wrong("dims", f"without axis {merged.outer}, which is merged")
    stated = reader.text("dtype", MAP_DTYPES) if "dtype" in reader.fields else None
    if stated is None and dtype not in MAP_DTYPES:
        raise reader.wrong("tensor", f"a tensor of {', '.join(MAP_DTYPES)}")
    swizzle = reader.text("swizzle", tuple(SWIZZLE_BYTES))
    width_bytes, widest = box[0] * DTYPE_BYTES[stated or dtype], SWIZZLE_BYTES[swizzle]
    if width_bytes % BOX_WIDTH_MULTIPLE_BYTES or width_bytes > widest:
        allowed = f"a multiple of {BOX_WIDTH_MULTIPLE_BYTES} bytes wide, at most {widest}"
        raise reader.wrong("box", f"{allowed} with swizzle {swizzle}")
    l2 = reader.text("l2", L2_PROMOTIONS) if "l2" in reader.fields else "128B"
    return TensorMapParam(tensor, box, swizzle, dims, stated, l2, merged)


def _dim(reader: Reader, rank: int, symbols: Sequence[str]) -> MapDim:
    return MapDim(
        extent=from_list(reader.fields.get("extent"), symbols, where=reader.name("extent")),
        axis=reader.integer("axis", 0, rank - 1),
        step=reader.integer("step", 1),
        first=reader.integer("first", -FARTHEST) if "first" in reader.fields else 0,
        rest=reader.integer("rest", 0) if "rest" in reader.fields else 0,
    )


def _merged(reader: Reader, rank: int, symbols: Sequence[str]) -> Merged | None:
    if "merged" not in reader.fields:
        return None
    fields = Reader(reader.fields["merged"], reader.name("merged"))
    merged = Merged(
        fields.integer("outer", 0, rank - 1),
        fields.integer("inner", 0, rank - 1),
        fields.identifier("extent"),
        fields.integer("multiple", 1) if "multiple" in fields.fields else 1,
    )
    if merged.outer == merged.inner:
        raise fields.wrong("outer", f"another axis than inner, {merged.inner}")
    if merged.extent in symbols:
        raise fields.wrong("extent", f"another name than those of sizes, {list(symbols)}")
    return merged
