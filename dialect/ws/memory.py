"""Operations on tiles: parts and other views, register traffic, copy-engine traffic."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .dialect import WS, FragmentType, TileType, fail, tile_bytes

DIMS = MappingProxyType({"dims": ir.DenseI32ArrayAttr})  # what the binding cannot declare


class ViewOp(WS.Operation, name="view", traits=[Pure]):
    """The front of a tile's storage seen as a tile of another type in the same space."""

    source: ext.Operand[TileType]
    view: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "ViewOp") -> bool:
        """Same space and rows, not more bytes."""
        source, view = TileType(op.source.type), TileType(op.view.type)
        if source.space != view.space:
            return fail(op, f"expects a view in {source.space} memory, got {view.space}")
        if source.shape[0] != view.shape[0]:
            return fail(op, f"expects {source.shape[0]} rows, got {view.shape[0]}")
        if tile_bytes(view) > tile_bytes(source):
            return fail(op, f"expects at most {tile_bytes(source)} bytes, got {tile_bytes(view)}")
        return True


class ColumnsOp(WS.Operation, name="columns", traits=[Pure]):
    """Columns `first` .. `first` + result columns - 1 of a tile."""

    source: ext.Operand[TileType]
    first: ir.IntegerAttr
    part: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "ColumnsOp") -> bool:
        """Same space, rows and element type; the columns lie inside."""
        source, part = TileType(op.source.type), TileType(op.part.type)
        if len(source.shape) != 2 or len(part.shape) != 2:
            return fail(op, "expects tiles with two dimensions")
        if (source.space, source.shape[0], source.element) != (
            part.space,
            part.shape[0],
            part.element,
        ):
            return fail(op, f"expects a part of {source}, got {part}")
        end = op.first.value + part.shape[1]
        if op.first.value < 0 or end > source.shape[1]:
            return fail(
                op,
                f"expects columns within 0..{source.shape[1]}, got {op.first.value}..{end}",
            )
        return True


def _check_same_shape(op: Any, tile: TileType, fragment: FragmentType) -> bool:
    if (tile.shape, tile.element) != (fragment.shape, fragment.element):
        return fail(op, f"expects tile and fragment of one shape, got {tile} and {fragment}")
    return True


class LoadOp(WS.Operation, name="load"):
    """Reads a tile into a fragment."""

    source: ext.Operand[TileType]
    fragment: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "LoadOp") -> bool:
        """Tile and fragment have one shape and element type."""
        return _check_same_shape(op, TileType(op.source.type), FragmentType(op.fragment.type))


class StoreOp(WS.Operation, name="store"):
    """Writes a fragment into a tile."""

    fragment: ext.Operand[FragmentType]
    target: ext.Operand[TileType]

    @staticmethod
    def verify_invariants(op: "StoreOp") -> bool:
        """Tile and fragment have one shape and element type."""
        return _check_same_shape(op, TileType(op.target.type), FragmentType(op.fragment.type))


def _check_global(op: Any, tensor: Any, shape: Sequence[int], element: Any) -> bool:
    if not isinstance(tensor.type, ir.MemRefType):
        return fail(op, f"expects a memref, got {tensor.type}")
    kind = ir.MemRefType(tensor.type)
    if kind.element_type != element:
        return fail(op, f"expects elements of {kind.element_type}, got {element}")
    if len(op.coords) != kind.rank:
        return fail(op, f"expects {kind.rank} coordinates, got {len(op.coords)}")
    dims = list(op.dims)
    if len(dims) != len(shape) or len(set(dims)) != len(dims):
        return fail(op, f"expects {len(shape)} distinct dims, got {dims}")
    if any(not 0 <= dim < kind.rank for dim in dims):
        return fail(op, f"expects dims in 0..{kind.rank - 1}, got {dims}")
    return True


class TmaLoadOp(WS.Operation, name="tma_load"):
    """Copy engine: fills a shared tile from a box of a tensor; outside the tensor it reads 0.

    Operands:
      source: tensor argument.
      target: shared tile, a slot of a ring whose commit is `by = "tma"`.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: the tensor dimensions that the tile's rows and columns run along.
    """

    source: ext.Operand[Any]
    target: ext.Operand[TileType]
    coords: Sequence[ext.Operand[I32]]
    dims: Any

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "TmaLoadOp") -> bool:
        """Shared tile; coordinates and dims fit the tensor."""
        tile = TileType(op.target.type)
        if tile.space != "shared":
            return fail(op, f"expects a shared tile, got {tile}")
        return _check_global(op, op.source, tile.shape, tile.element)


class TmaStoreOp(WS.Operation, name="tma_store"):
    """Copy engine: writes a shared tile to a box of a tensor; nothing outside the tensor."""

    source: ext.Operand[TileType]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "TmaStoreOp") -> bool:
        """Shared tile; coordinates and dims fit the tensor."""
        tile = TileType(op.source.type)
        if tile.space != "shared":
            return fail(op, f"expects a shared tile, got {tile}")
        return _check_global(op, op.target, tile.shape, tile.element)


class StoreGlobalOp(WS.Operation, name="store_global"):
    """Threads write a fragment to a tensor, rows outside the tensor left out."""

    fragment: ext.Operand[FragmentType]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "StoreGlobalOp") -> bool:
        """Coordinates and dims fit the tensor."""
        fragment = FragmentType(op.fragment.type)
        return _check_global(op, op.target, fragment.shape, fragment.element)
