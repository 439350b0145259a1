"""Operations on tiles: parts and views, loads and stores of fragments,
copies by the copy engine.
"""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, arith, ext, ir
from attn_mlir.dialect.targets.limits import HALF_ROWS

from .cluster import Targets, check_targets, targets
from .dialect import WS, FragmentType, TileType, element_bits, fail, tile_bytes

DIMS = MappingProxyType(
    {"dims": ir.DenseI32ArrayAttr}
)  # attributes that the binding cannot declare
TENSOR_ROWS = 2 * HALF_ROWS  # of a tile in tensor memory with a row in each lane
REGISTER_BITS = 32  # of a column of tensor memory
OUT_KINDS = ("add",)  # kinds of reductions into tensors


class ViewOp(WS.Operation, name="view", traits=[Pure]):
    """A view of the first bytes of a tile as a tile of another type in the same space.

    Operands:
      source: the tile; the view has the same number of rows and at most as many bytes. Or a whole
        shared tile [R, n C] as [n R, C], where C columns are whole lines of 128 bytes: row i R + r
        of the view is the i-th part of row r. So a tile can be boxes of R rows side by side, each
        of which one copy fills. With several lines R is a power of two, and the view is only loaded
        and stored.

    Memory effects: none, both are the same memory. Hardware: that of the tile's space.

    Example:
      %p = "ws.view"(%s)
        : (!ws.tile<vector<128x128xf32>, "tensor">) -> !ws.tile<vector<128x128xbf16>, "tensor">
    """

    source: ext.Operand[TileType]
    view: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "ViewOp") -> bool:
        """Checks for the same space and rows, or parts of rows below one another, and no more
        bytes.
        """
        source, view = TileType(op.source.type), TileType(op.view.type)
        if source.space != view.space:
            return fail(op, f"expects a view in {source.space} memory, got {view.space}")
        if source.line_bytes != view.line_bytes:
            return fail(
                op, f"expects a view in lines of {source.line_bytes} bytes, got {view.line_bytes}"
            )
        if source.shape[0] != view.shape[0] and not _is_stacked(source, view):
            return fail(op, f"expects {source.shape[0]} rows, got {view.shape[0]}")
        if tile_bytes(view) > tile_bytes(source):
            return fail(op, f"expects at most {tile_bytes(source)} bytes, got {tile_bytes(view)}")
        return True


def lines_of(tile: TileType) -> int:
    """Lines in a row of a shared tile."""
    return -(-tile.shape[1] * element_bits(tile.element) // (8 * tile.line_bytes))


def _space_and_lines(tile: TileType) -> tuple[str, int]:
    """The space of a tile, and its lines."""
    return tile.space, tile.line_bytes


def _is_stacked(source: TileType, view: TileType) -> bool:
    """Whether a view [n R, C] of a shared tile [R, n C] has parts of rows that are whole lines."""
    if (source.space, source.element) != ("shared", view.element) or len(view.shape) != 2:
        return False
    (rows, columns), (more, fewer) = source.shape, view.shape
    in_lines = fewer * element_bits(view.element) % (8 * view.line_bytes) == 0
    return in_lines and more % rows == 0 and rows * columns == more * fewer


class ColumnsOp(WS.Operation, name="columns", traits=[Pure]):
    """Columns `first` .. `first` + result columns - 1 of a tile.

    Operands:
      source: [R, C].

    Attributes:
      first: the first column.

    Memory effects: none, both are the same memory. Hardware: that of the tile's space.

    Example:
      %part = "ws.columns"(%o) {first = 16 : i64}
        : (!ws.tile<vector<128x64xf32>, "tensor">) -> !ws.tile<vector<128x16xf32>, "tensor">
    """

    source: ext.Operand[TileType]
    first: ir.IntegerAttr
    part: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "ColumnsOp") -> bool:
        """Checks for the same space, rows and element type, and columns within the source."""
        source, part = TileType(op.source.type), TileType(op.part.type)
        if len(source.shape) != 2 or len(part.shape) != 2:
            return fail(op, "expects tiles with two dimensions")
        whole, selected = ((_space_and_lines(t), t.shape[0], t.element) for t in (source, part))
        if whole != selected:
            return fail(op, f"expects a part of {source}, got {part}")
        end = op.first.value + part.shape[1]
        if op.first.value < 0 or end > source.shape[1]:
            return fail(
                op,
                f"expects columns within 0..{source.shape[1]}, got {op.first.value}..{end}",
            )
        return True


class ColumnsAtOp(WS.Operation, name="columns_at", traits=[Pure]):
    """Columns `first` .. `first` + result columns - 1 of a tile, where `first` is computed.

    So roles of several groups, or warps, use different columns by the same code. The part, and what
    is cut from it, is loaded or multiplied into registers; in tensor memory loaded or stored.

    Operands:
      source: [R, C] in shared memory, or [128, C] in tensor memory.
      first: i32, the first column, a multiple of a line of 128 bytes in shared memory, and of 32
        bits in tensor memory; all columns lie within the source.

    Memory effects: none, both are the same memory. Hardware: that of the tile's space.

    Example:
      %half = "ws.columns_at"(%slot, %first)
        : (!ws.tile<vector<64x256xbf16>, "shared">, i32) -> !ws.tile<vector<64x128xbf16>, "shared">
    """

    source: ext.Operand[TileType]
    first: ext.Operand[I32]
    part: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "ColumnsAtOp") -> bool:
        """Checks for tiles with the same rows and element type, and for known columns inside."""
        source, part = TileType(op.source.type), TileType(op.part.type)
        if len(source.shape) != 2 or len(part.shape) != 2:
            return fail(op, "expects tiles with two dimensions")
        is_shared = source.space == "shared"
        if not is_shared and source.shape[0] != TENSOR_ROWS:
            rows = f"of {TENSOR_ROWS} rows in tensor memory"
            return fail(op, f"expects a shared tile, or one {rows}, got {source}")
        whole, selected = ((_space_and_lines(t), t.shape[0], t.element) for t in (source, part))
        if whole != selected:
            return fail(op, f"expects a part of {source}, got {part}")
        begin = known_first(op) or 0
        end = begin + part.shape[1]
        if begin < 0 or end > source.shape[1]:
            return fail(op, f"expects columns within 0..{source.shape[1]}, got {begin}..{end}")
        step = (8 * source.line_bytes if is_shared else REGISTER_BITS) // element_bits(
            source.element
        )
        if begin % step:
            return fail(op, f"expects a first column in {step}s, got {begin}")
        return True


class RowsOp(WS.Operation, name="rows", traits=[Pure]):
    """Rows `first` .. `first` + result rows - 1 of a shared tile.

    Copies can fill or write such a part, so that one tile can consist of several pages, strips or
    sequences; a tile of one dimension of several lists.

    Operands:
      source: [R, C] or [R] in shared memory.
      first: i32, the first row, a multiple of 8; all rows lie within the source.

    Memory effects: none, both are the same memory. Hardware: any.

    Example:
      %page = "ws.rows"(%slot, %first)
        : (!ws.tile<vector<128x64xbf16>, "shared">, i32) -> !ws.tile<vector<16x64xbf16>, "shared">
    """

    source: ext.Operand[TileType]
    first: ext.Operand[I32]
    part: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "RowsOp") -> bool:
        """Checks for shared tiles with the same columns and element type, and for known rows
        inside.
        """
        source, part = TileType(op.source.type), TileType(op.part.type)
        if source.space != "shared":
            return fail(op, f"expects a shared tile, got {source}")
        whole, selected = ((_space_and_lines(t), t.shape[1:], t.element) for t in (source, part))
        if whole != selected:
            return fail(op, f"expects a part of {source}, got {part}")
        first = known_first(op)
        begin = 0 if first is None else first
        end = begin + part.shape[0]
        if begin < 0 or end > source.shape[0]:
            return fail(op, f"expects rows within 0..{source.shape[0]}, got {begin}..{end}")
        return True


def known_first(op: RowsOp | ColumnsAtOp) -> int | None:
    """The first row or column of a part if it is a constant; else None."""
    owner = op.first.owner
    if isinstance(owner, arith.ConstantOp):
        return ir.IntegerAttr(owner.value).value
    return None


PARTS = RowsOp | ColumnsOp | ColumnsAtOp
"""Operations that make part of a tile."""


def pitch_rows(tile: Any) -> int:
    """Rows of the whole tile that a tile is part of: lines between its 128-byte columns."""
    owner = tile.owner
    rows = TileType(tile.type).shape[0]
    if isinstance(owner, ViewOp) and TileType(owner.source.type).shape[0] != rows:
        return pitch_rows(owner.source) if lines_of(TileType(tile.type)) > 1 else rows
    if isinstance(owner, PARTS | ViewOp):
        return pitch_rows(owner.source)
    return rows


def users(tile: Any) -> Iterator[Any]:
    """The operations that use a tile, or a part or view of it, other than those that make these."""
    for use in tile.uses:
        op = use.owner
        if isinstance(op, ViewOp | PARTS):
            yield from users(op.operation.results[0])
        else:
            yield op


def _check_same_shape(op: Any, tile: TileType, fragment: FragmentType) -> bool:
    if (tile.shape, tile.element) != (fragment.shape, fragment.element):
        return fail(op, f"expects tile and fragment of one shape, got {tile} and {fragment}")
    return True


class LoadOp(WS.Operation, name="load"):
    """Reads a tile into a fragment.

    Operands:
      source: [R, C], or [R] in shared memory.

    Memory effects: reads the tile. Hardware: tensor memory needs sm_100.

    Example:
      %s = "ws.load"(%tile)
        : (!ws.tile<vector<128x64xf32>, "tensor">) -> !ws.frag<vector<128x64xf32>>
    """

    source: ext.Operand[TileType]
    fragment: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "LoadOp") -> bool:
        """Checks that tile and fragment have the same shape and element type."""
        return _check_same_shape(op, TileType(op.source.type), FragmentType(op.fragment.type))


class StoreOp(WS.Operation, name="store"):
    """Writes a fragment into a tile.

    Operands:
      fragment: [R, C] or [R].
      target: a tile of the same shape.

    Memory effects: writes the tile. Hardware: tensor memory needs sm_100.

    Example:
      "ws.store"(%p, %tile)
        : (!ws.frag<vector<128x64xbf16>>, !ws.tile<vector<128x64xbf16>, "tensor">) -> ()
    """

    fragment: ext.Operand[FragmentType]
    target: ext.Operand[TileType]

    @staticmethod
    def verify_invariants(op: "StoreOp") -> bool:
        """Checks that tile and fragment have the same shape and element type."""
        return _check_same_shape(op, TileType(op.target.type), FragmentType(op.fragment.type))


class ExpandOp(WS.Operation, name="expand", traits=[Pure]):
    """A view of a tensor with a static dimension split: [.., n x factor, ..] as [.., n, factor,
    ..].

    Operands:
      source: tensor argument.

    Attributes:
      dim: the dimension to split.
      factor: extent of the inner dimension; divides that of the source.

    Memory effects: none. Hardware: any.

    Example:
      %groups = "ws.expand"(%q) {dim = 2 : i64, factor = 4 : i64}
        : (memref<?x?x16x64xbf16>) -> memref<?x?x4x4x64xbf16>
    """

    source: ext.Operand[Any]
    dim: ir.IntegerAttr
    factor: ir.IntegerAttr
    view: ext.Result[Any]

    def verify_invariants(self) -> bool:
        """Checks for a static dimension that the factor divides, and the type of the result."""
        if not isinstance(self.source.type, ir.MemRefType):
            return fail(self, f"expects a memref, got {self.source.type}")
        dim, factor = self.dim.value, self.factor.value
        rank = self.source.type.rank
        if not 0 <= dim < rank or self.source.type.is_dynamic_dim(dim):
            return fail(self, f"expects dim to be a static one of 0..{rank - 1}, got {dim}")
        shape = list(self.source.type.shape)
        if factor < 1 or shape[dim] % factor:
            return fail(self, f"expects a factor that divides {shape[dim]}, got {factor}")
        shape[dim : dim + 1] = [shape[dim] // factor, factor]
        view = self.view.type
        if not isinstance(view, ir.MemRefType) or list(view.shape) != shape:
            return fail(self, f"expects a memref of shape {shape} as result, got {view}")
        if view.element_type != self.source.type.element_type:
            return fail(self, f"expects elements of the source's type, got {view}")
        return True


class LimitOp(WS.Operation, name="limit", traits=[Pure]):
    """A view of a tensor that ends earlier along one dimension, at an end known at run time.

    Copies through it read 0 and write nothing beyond the end, although the tensor has further rows,
    of another sequence for example. Only the first row dimension of a copy can be limited. A copy
    by the copy engine has to begin before the end, with an element inside the tensor: its map
    begins before the tensor, and a GPU faults if a copy of no element finds no memory there.

    Operands:
      source: tensor argument or `ws.expand` of one.
      end: i32, from 0 to the extent of the dimension.

    Attributes:
      dim: the dimension.

    Memory effects: none. Hardware: any.

    Example:
      %sequence = "ws.limit"(%rows, %end) {dim = 0 : i64}
        : (memref<?x4x64xbf16>, i32) -> memref<?x4x64xbf16>
    """

    source: ext.Operand[Any]
    end: ext.Operand[I32]
    dim: ir.IntegerAttr
    view: ext.Result[Any]

    def verify_invariants(self) -> bool:
        """Checks for a dimension of the memref, and the type of the result."""
        if not isinstance(self.source.type, ir.MemRefType):
            return fail(self, f"expects a memref, got {self.source.type}")
        rank = self.source.type.rank
        if not 0 <= self.dim.value < rank:
            return fail(self, f"expects dim in 0..{rank - 1}, got {self.dim.value}")
        if self.view.type != self.source.type:
            return fail(self, f"expects a result of type {self.source.type}, got {self.view.type}")
        return True


def check_number(op: Any, tensor: Any, coords: Sequence[Any], what: str) -> bool:
    """Whether coordinates name an element of a tensor of i32; reports it if not.

    Args:
      what: what the element is, for messages.
    """
    kind = tensor.type
    if not isinstance(kind, ir.MemRefType):
        return fail(op, f"expects a memref, got {kind}")
    if str(kind.element_type) != "i32":
        return fail(op, f"expects {what} of i32, got {kind.element_type}")
    if len(coords) != kind.rank:
        return fail(op, f"expects {kind.rank} coordinates, got {len(coords)}")
    return True


def check_global(
    op: Any, tensor: Any, shape: Sequence[int], element: Any, *, by_rows: bool = False
) -> bool:
    """Whether coordinates and dims of an operation fit a tensor; reports it if not.

    Args:
      by_rows: whether threads access each row by itself, so that the rows need not fill the inner
        one of two row dimensions.
    """
    if not isinstance(tensor.type, ir.MemRefType):
        return fail(op, f"expects a memref, got {tensor.type}")
    kind = ir.MemRefType(tensor.type)
    if kind.element_type != element:
        return fail(op, f"expects elements of {kind.element_type}, got {element}")
    if len(op.coords) != kind.rank:
        return fail(op, f"expects {kind.rank} coordinates, got {len(op.coords)}")
    dims = list[int](op.dims)
    if len(dims) not in (len(shape), len(shape) + 1) or len(set(dims)) != len(dims):
        count = f"{len(shape)} or {len(shape) + 1}"
        return fail(op, f"expects {count} distinct dims, got {dims}")
    if any(not 0 <= dim < kind.rank for dim in dims):
        return fail(op, f"expects dims in 0..{kind.rank - 1}, got {dims}")
    if len(dims) > len(shape):
        inner = dims[1]
        extent = 0 if kind.is_dynamic_dim(inner) else kind.get_dim_size(inner)
        if not extent:
            return fail(op, f"expects dim {inner} to be static")
        if shape[0] % extent and not by_rows:
            return fail(op, f"expects dim {inner} of {extent} to divide {shape[0]} rows")
    return True


class CopyInOp(WS.Operation, name="copy_in"):
    """Copy engine: fills a shared tile from a box of a tensor, with zeros outside the tensor.

    Operands:
      source: tensor argument.
      target: shared tile, a slot of a ring whose commit is `by = "copy_engine"`, or some rows or
        columns of one.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: the tensor dimensions along which the tile's rows and columns run. With a third entry
        between the two, of static extent n, row r is at r / n of the first and r % n of that one.
      receivers (optional): in a cluster, for each rank the CTAs that receive the box, in their slot
        with the same number; by default the CTA itself.

    Memory effects: reads the tensor, writes the tile, asynchronously. Hardware: sm_90 on.

    Example:
      "ws.copy_in"(%k, %slot, %batch, %row, %head, %column)
        {dims = array<i32: 1, 3>, operandSegmentSizes = array<i32: 1, 1, 4>}
        : (memref<?x?x4x64xbf16>, !ws.tile<vector<128x64xbf16>, "shared">, i32, i32, i32, i32) -> ()
    """

    source: ext.Operand[Any]
    target: ext.Operand[TileType]
    coords: Sequence[ext.Operand[I32]]
    dims: Any

    ATTRIBUTE_CLASSES = DIMS
    OPTIONAL_ATTRIBUTES = MappingProxyType({"receivers": ir.ArrayAttr})

    @property
    def receivers(self) -> Targets:
        """For each rank, the CTAs that receive the box."""
        return targets(self, "receivers")

    @staticmethod
    def verify_invariants(op: "CopyInOp") -> bool:
        """Checks for a shared tile, coordinates and dims that fit the tensor, and valid ranks."""
        if not check_targets(op, "receivers"):
            return False
        tile = TileType(op.target.type)
        if tile.space != "shared":
            return fail(op, f"expects a shared tile, got {tile}")
        return check_global(op, op.source, tile.shape, tile.element)


class CopyOutOp(WS.Operation, name="copy_out"):
    """Copy engine: writes a shared tile to a box of a tensor, but nothing outside the tensor.

    Operands:
      source: shared tile.
      target: tensor argument.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: as in `ws.copy_in`.

    Memory effects: reads the tile, writes the tensor, asynchronously; a release by
    `copy_engine` waits until the tile has been read. Hardware: sm_90 on.

    Example:
      "ws.copy_out"(%slot, %o, %batch, %row, %head, %column)
        {dims = array<i32: 1, 3>, operandSegmentSizes = array<i32: 1, 1, 4>}
        : (!ws.tile<vector<128x64xbf16>, "shared">, memref<?x?x4x64xbf16>, i32, i32, i32, i32) -> ()
    """

    source: ext.Operand[TileType]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "CopyOutOp") -> bool:
        """Checks for a shared tile, and coordinates and dims that fit the tensor."""
        tile = TileType(op.source.type)
        if tile.space != "shared":
            return fail(op, f"expects a shared tile, got {tile}")
        return check_global(op, op.target, tile.shape, tile.element)


class ReduceOutOp(WS.Operation, name="reduce_out"):
    """Copy engine: adds the elements of a shared tile to those of a box of a tensor.

    Each element is added atomically, so CTAs that share a tile of a result need no counter for
    that; but rounding depends on the order of additions. Sums are complete for later kernels.
    Nothing outside the tensor is changed.

    Operands:
      source: shared tile of f32, f16, bf16 or i32.
      target: tensor argument of role `inout`.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: as in `ws.copy_in`.
      kind: `add`.

    Memory effects: reads the tile, reads and writes the tensor, asynchronously; a release by
    `copy_engine` waits until the tile has been read. Hardware: sm_90 on.

    Example:
      "ws.reduce_out"(%slot, %sums, %row, %column)
        {dims = array<i32: 0, 1>, kind = "add", operandSegmentSizes = array<i32: 1, 1, 2>}
        : (!ws.tile<vector<128x32xf32>, "shared">, memref<?x?xf32>, i32, i32) -> ()
    """

    source: ext.Operand[TileType]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any
    kind: ir.StringAttr

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "ReduceOutOp") -> bool:
        """Checks for a shared tile, coordinates and dims that fit the tensor, and the kind."""
        tile = TileType(op.source.type)
        if tile.space != "shared":
            return fail(op, f"expects a shared tile, got {tile}")
        if op.kind.value not in OUT_KINDS:
            return fail(op, f"expects a kind of {', '.join(OUT_KINDS)}, got {op.kind.value}")
        return check_global(op, op.target, tile.shape, tile.element)
