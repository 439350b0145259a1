"""`attn.scaled`: an operand whose stored elements are multiplied by scales."""

from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.scale import ScaleBlock
from attn_mlir.dialect.attn.storage import (
    SEQUENCE_RANK,
    ViewType,
    logical_type,
    stored_type,
    view_type,
)

TABLE_RANK = 2
TABLE_TYPE = "f32"
BLOCK_SCALE_TYPES = ("f32", "f16", "bf16")


class ScaledOp(AttnDialect.Operation, name="scaled", traits=[Pure]):
    """Multiplies every element by the scale of its block.

    A block is `rows` neighbouring positions of a sequence and head, and `columns` neighbouring
    columns. Element (b, s, h, c) has scale (b, s / rows, h, c / columns), rounded down:

        block           one scale for          scales
        [0, columns]    a sequence and head     [batch, kv_heads]
        [1, columns]    a position and head     [batch, sequence, kv_heads, 1]
        [1, 32]         32 columns of one       [batch, sequence, kv_heads, columns / 32]
        [32, 1]         a column of 32          [batch, sequence / 32, kv_heads, columns]
        [64, 128]       64 x 128 elements       [batch, sequence / 64, kv_heads, columns / 128]

    The scales are those of a quantisation: greater than 0 and finite, which is not checked.

    Results:
      view: same logical and stored type as `source`.

    Operands:
      source: [batch, sequence, heads, columns], a tensor or a view. A query head has the scale of
        the key-value head that it reads.
      scales: [batch, kv_heads], f32, where blocks are whole sequences; an extent of 1 stands for
        all sequences, or all heads. Else [batch, row blocks, kv_heads or 1, column blocks], f32,
        f16 or bf16, a tensor or a view. Scales in pages outside the pool are 0; those behind a
        sequence's length are not used.

    Attributes:
      block: rows and columns of a block; 0 rows stand for all of a sequence, whose scale serves
        all columns.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.scaled"(%k, %scales) {block = array<i32: 0, 128>}
        : (tensor<?x?x4x128xf8E4M3FN>, tensor<?x?xf32>)
          -> !attn.view<tensor<?x?x4x128xf8E4M3FN>, tensor<?x?x4x128xf8E4M3FN>>
    """

    source: ext.Operand[Any]
    scales: ext.Operand[Any]
    view: ext.Result[ViewType]
    block: Any

    ATTRIBUTE_CLASSES = MappingProxyType({"block": ir.DenseI32ArrayAttr})

    @property
    def scale_block(self) -> ScaleBlock:
        """The elements that share a scale."""
        return ScaleBlock(*self.block)

    def verify_invariants(self) -> bool:
        """Checks a source of rank 4, its scales and their blocks, and the type of the view."""
        logical, scales = logical_type(self.source), logical_type(self.scales)
        if not isinstance(logical, ir.RankedTensorType) or logical.rank != SEQUENCE_RANK:
            layout = "[batch, sequence, heads, columns]"
            return self._fail(f"source to stand for a tensor {layout}, got {self.source.type}")
        if len(self.block) != len(ScaleBlock._fields) or min(self.block) < 0:
            return self._fail(f"a block of rows and columns, got {list(self.block)}")
        check = _table_misfit if self.scale_block.is_whole else _block_misfit
        if misfit := check(logical, scales, self.scale_block):
            return self._fail(misfit)
        expected = view_type(logical, stored_type(self.source))
        if self.view.type != expected:
            return self._fail(f"a result of type {expected}, got {self.view.type}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'attn.scaled' op expects {message}")
        return False


def _table_misfit(logical: Any, scales: Any, block: ScaleBlock) -> str:
    """The error in scales of whole sequences; "" if none."""
    is_table = isinstance(scales, ir.RankedTensorType) and scales.rank == TABLE_RANK
    if not is_table or str(scales.element_type) != TABLE_TYPE:
        return f"scales to be a tensor [batch, kv_heads] of {TABLE_TYPE}, got {scales}"
    if logical.is_dynamic_dim(3) or block.columns != logical.shape[3]:
        return f"a block of all columns of {logical}, got {list(block)}"
    return ""


def _block_misfit(logical: Any, scales: Any, block: ScaleBlock) -> str:
    """The error in scales of blocks of positions; "" if none."""
    if not isinstance(scales, ir.RankedTensorType) or scales.rank != SEQUENCE_RANK:
        return f"scales to be a tensor [batch, row blocks, kv_heads, column blocks], got {scales}"
    if str(scales.element_type) not in BLOCK_SCALE_TYPES:
        return f"scales of positions of type {', '.join(BLOCK_SCALE_TYPES)}, got {scales}"
    if any(kind.is_dynamic_dim(dim) for kind in (logical, scales) for dim in (2, 3)):
        return f"static heads and groups of scales of positions, got {scales}"
    (heads, columns), (own, groups) = list(logical.shape)[2:], list(scales.shape)[2:]
    if own not in (1, heads) or groups < 1 or columns % groups:
        return (
            f"scales of {heads} heads or 1, in groups that divide {columns} columns, got {scales}"
        )
    if columns // groups != block.columns:
        return f"a block of {columns // groups} columns for {groups} groups, got {list(block)}"
    if not any(kind.is_dynamic_dim(1) for kind in (logical, scales)):
        rows = -(-logical.shape[1] // block.rows)
        if scales.shape[1] != rows:
            return f"{rows} blocks of {block.rows} positions, got {scales}"
    return ""


def make_scaled(source: ir.Value, scales: ir.Value, *, rows: int = 1) -> ir.Value:
    """The view of an operand with scales, at the insertion point.

    Args:
      scales: [batch, kv_heads] of whole sequences, or of blocks of positions.
      rows: positions of such a block.
    """
    logical, kind = logical_type(source), logical_type(scales)
    is_whole = kind.rank == TABLE_RANK
    block = [0, logical.shape[3]] if is_whole else [rows, logical.shape[3] // kind.shape[3]]
    view = view_type(logical, stored_type(source))
    return ScaledOp(source, scales, view, ir.DenseI32ArrayAttr.get(block)).view
