"""Tensor arguments in a kernel: views, tensor maps, and strides for element addresses."""

from dataclasses import dataclass, replace
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.scalars import INT, is_constant

from ..layouts import chunk_count, line_elements

MAX_MAP_RANK = 5  # CUDA driver API, cuTensorMapEncodeTiled

Extent = int | str  # an extent: a number, or the name of a run-time size


@dataclass(frozen=True)
class ViewDim:
    """A dimension of a view: `extent` steps of `step` elements along an axis of the argument."""

    axis: int
    step: int
    extent: Extent


@dataclass(frozen=True)
class View:
    """A tensor argument, possibly with dimensions split, merged, or ending early.

    Attributes:
      argument: name of the kernel's argument.
      dims: one entry per dimension of the view.
      limited: the dimension that ends early, by `ws.limit`.
      merged: the axes merged into one dimension by `ws.collapse`, outer and inner.
    """

    argument: str
    dims: tuple[ViewDim, ...]
    limited: int | None = None
    merged: tuple[int, int] | None = None

    @property
    def merged_extent(self) -> str:
        """The name of the extent of merged axes in a tensor map's recipe."""
        return f"{self.argument}.rows"


def view_of(kernel: ws.KernelOp, tensor: Any) -> View:
    """The view of a memref value of a kernel."""
    owner = tensor.owner
    if isinstance(owner, ws.LimitOp):
        return replace(view_of(kernel, owner.source), limited=owner.dim.value)
    if isinstance(owner, ws.ExpandOp):
        source = view_of(kernel, owner.source)
        dims = list(source.dims)
        split, inner = dims[owner.dim.value], owner.factor.value
        assert isinstance(split.extent, int)
        dims[owner.dim.value : owner.dim.value + 1] = [
            ViewDim(split.axis, split.step * inner, split.extent // inner),
            ViewDim(split.axis, split.step, inner),
        ]
        return View(source.argument, tuple(dims))
    if isinstance(owner, ws.CollapseOp):
        source, dim = view_of(kernel, owner.source), owner.dim.value
        pages, tokens = source.dims[dim : dim + 2]
        rows = replace(tokens, extent=source.merged_extent)
        inner_dims = source.dims[dim + 2 :]
        merged = pages.axis, tokens.axis
        return replace(source, dims=(*source.dims[:dim], rows, *inner_dims), merged=merged)
    number = list(kernel.body.blocks[0].arguments).index(tensor)
    kind = ir.MemRefType(tensor.type)
    names = kernel.dims[number]
    dims = [ViewDim(axis, 1, name or kind.get_dim_size(axis)) for axis, name in enumerate(names)]
    return View(ir.StringAttr(kernel.arg_names[number]).value, tuple(dims))


def end_of(tensor: Any) -> Any:
    """The end, i32 of the kernel, of a view that ends early; None if it does not."""
    return tensor.owner.end if isinstance(tensor.owner, ws.LimitOp) else None


@dataclass(frozen=True)
class TensorMap:
    """A tensor map for the tiles [rows, columns] of a view.

    Rows run along the view's dimension `row_dims[0]`; if there is a `row_dims[1]`, its whole extent
    is the inner one. Columns run along `column_dim`. If the 128-byte lines of a row can be a
    dimension of the map, a tile is one box; otherwise it has a box for the columns of each line.

    If a view ends early, so that a box of m rows has only n of the view, the map has two dimensions
    of the same stride for rows: the row within the box, of extent m, and the row. The base is m
    rows before the tensor, and the box for the rows from i on starts at (m - n, i + n): that is row
    i again, but the first dimension ends after n rows, beyond which the engine reads 0 and writes
    nothing. Needs n > 0. Measured on an H200: exact for 1 <= n <= m, also if the memory before the
    tensor is not mapped; it is never accessed.

    Attributes:
      view: the view.
      row_dims, column_dim: dimensions of the view.
      rows, columns: extents of a tile.
      element_bits: width of an element.
      line_bytes: of a line of the tile.
      is_apart: whether each line of a row is a box: the tile is some rows of a larger one, so that
        its lines are not contiguous in shared memory, or its first column need not begin a line of
        the tensor.
    """

    view: View
    row_dims: tuple[int, ...]
    column_dim: int
    rows: int
    columns: int
    element_bits: int
    line_bytes: int
    is_apart: bool = False

    @property
    def line(self) -> int:
        """Elements in a line of a tile."""
        return line_elements(self.element_bits, self.line_bytes)

    @property
    def _chunks(self) -> int:
        """Lines of a row of a tile."""
        return chunk_count(self.columns, self.element_bits, self.line_bytes)

    @property
    def argument(self) -> str:
        """Name of the kernel's argument."""
        return self.view.argument

    @property
    def other_dims(self) -> list[int]:
        """Dimensions of the view in which a tile has extent 1, fastest first."""
        taken = (*self.row_dims, self.column_dim)
        return [dim for dim in reversed(range(len(self.view.dims))) if dim not in taken]

    @property
    def has_chunk_dim(self) -> bool:
        """Whether one box covers all columns."""
        width = self.view.dims[self.column_dim].extent
        fits = isinstance(width, int) and width % self.line == 0 and self.rank < MAX_MAP_RANK
        return fits and not self.is_apart

    @property
    def is_limited(self) -> bool:
        """Whether the rows end early."""
        return self.view.limited is not None

    @property
    def rank(self) -> int:
        """Dimensions of the map, the one for lines not counted."""
        return len(self.view.dims) + self.is_limited

    @property
    def box_rows(self) -> int:
        """Extent of a box along the first row dimension."""
        inner = self._static(self.row_dims[1]) if len(self.row_dims) > 1 else 1
        return self.rows // inner

    @property
    def box_count(self) -> int:
        """Boxes per tile."""
        return 1 if self.has_chunk_dim else self._chunks

    def box(self) -> list[int]:
        """Extents of a box, innermost first: line, rows, chunks, then ones."""
        rows = [*(self._static(dim) for dim in self.row_dims[1:]), self.box_rows]
        chunks = [self._chunks] if self.has_chunk_dim else []
        return [self.line, *rows, *chunks, *[1] * (len(self.other_dims) + self.is_limited)]

    def _static(self, dim: int) -> int:
        extent = self.view.dims[dim].extent
        assert isinstance(extent, int)
        return extent

    def merged(self) -> dict[str, Any] | None:
        """The axes that the map merges, as the bundle describes them."""
        if self.view.merged is None:
            return None
        outer, inner = self.view.merged
        return {"outer": outer, "inner": inner, "extent": self.view.merged_extent}

    def dims(self) -> list[dict[str, Any]]:
        """Dimensions of the map as the bundle describes them, innermost first."""
        column = self.view.dims[self.column_dim]
        line = {"extent": column.extent, "axis": column.axis, "step": 1}
        chunks: list[dict[str, Any]] = []
        if self.has_chunk_dim:
            line["extent"] = self.line
            count = self._static(self.column_dim) // self.line
            chunks = [{"extent": count, "axis": column.axis, "step": self.line}]
        plain = [self.view.dims[dim] for dim in (*reversed(self.row_dims), *self.other_dims)]
        entries = [{"extent": d.extent, "axis": d.axis, "step": d.step} for d in plain]
        rows = len(self.row_dims)
        ends: list[dict[str, Any]] = []
        if self.is_limited:
            row = entries[rows - 1]
            ends = [{**row, "extent": ["add", row["extent"], 1]}]
            first = -self.box_rows * row["step"]
            entries[rows - 1] = {**row, "extent": self.box_rows, "first": first}
        return [line, *entries[:rows], *chunks, *entries[rows:], *ends]

    def coordinates(self, coords: list[Any], chunk: int, end: Any = None) -> list[Any]:
        """Coordinates of a box in the map's order, from those of the tile.

        Args:
          coords: of the tile's first element, one per dimension of the view.
          chunk: number of the box, 0 .. `box_count` - 1.
          end: the end of the rows, if they end early.
        """
        column, chunks = self._columns_from(coords[self.column_dim], chunk)
        *inner, first = [coords[dim] for dim in reversed(self.row_dims)]
        outer = [coords[dim] for dim in self.other_dims]
        if not self.is_limited:
            return [column, *inner, first, *chunks, *outer]
        valid = INT.min(INT.sub(end, first), self.box_rows)
        skipped = INT.sub(self.box_rows, valid)
        return [column, *inner, skipped, *chunks, *outer, INT.add(first, valid)]

    def _columns_from(self, first: Any, chunk: int) -> tuple[Any, list[Any]]:
        """Coordinates of a box along the line and, where there is one, the dimension of lines.

        Args:
          first: column of the tile's first element; a multiple of a line unless lines are apart.
        """
        if is_constant(first, 0):
            return chunk * self.line, [0] if self.has_chunk_dim else []
        if self.has_chunk_dim:
            return 0, [INT.floordiv(first, self.line)]
        return INT.add(first, chunk * self.line), []
