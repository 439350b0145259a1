"""Pools of pages seen as one matrix: `ws.collapse`, and the distance of its pages, `ws.pitch`."""

from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .dialect import WS, fail


class CollapseOp(WS.Operation, name="collapse", traits=[Pure]):
    """A tensor with two dimensions walked as one: [.., pages, tokens, ..] as [.., rows, ..].

    Token t of page p is row p x `ws.pitch` + t, so that one tensor map serves every page, and a
    copy may take rows of several. What lies between the pages in memory counts as rows as well: a
    call is refused where the pitch is no whole number of rows. Rows in front of the first page and
    behind the last read as zeros.

    Operands:
      source: tensor argument.

    Attributes:
      dim: the outer one of the two dimensions.

    Memory effects: none. Hardware: any. Only the copy engine copies through the view.

    Example:
      %rows = "ws.collapse"(%pool) {dim = 0 : i64} : (memref<?x16x576xbf16>) -> memref<?x576xbf16>
    """

    source: ext.Operand[Any]
    dim: ir.IntegerAttr
    view: ext.Result[Any]

    def verify_invariants(self) -> bool:
        """Two dimensions of a memref; the result has one of unknown extent in their place."""
        if not _has_pair(self):
            return False
        source, view, dim = self.source.type, self.view.type, self.dim.value
        shape = list(source.shape)
        shape[dim : dim + 2] = [ir.ShapedType.get_dynamic_size()]
        if not isinstance(view, ir.MemRefType) or list(view.shape) != shape:
            extents = ", ".join("?" if extent < 0 else str(extent) for extent in shape)
            return fail(self, f"expects a memref of shape [{extents}] as result, got {view}")
        if view.element_type != source.element_type:
            return fail(self, f"expects elements of the source's type, got {view}")
        return True


class PitchOp(WS.Operation, name="pitch", traits=[Pure]):
    """Steps along dimension `dim` + 1 of a tensor that lead to the next element of dimension `dim`,
    as i32.

    Operands:
      source: tensor argument.

    Attributes:
      dim: the outer one of the two dimensions.

    Memory effects: none. Hardware: any.

    Example:
      %pitch = "ws.pitch"(%pool) {dim = 0 : i64} : (memref<?x16x576xbf16>) -> i32
    """

    source: ext.Operand[Any]
    dim: ir.IntegerAttr
    steps: ext.Result[I32] = ext.infer_result()

    @staticmethod
    def verify_invariants(op: "PitchOp") -> bool:
        """`source` is a memref with another dimension behind `dim`."""
        return _has_pair(op)


def _has_pair(op: Any) -> bool:
    """Whether the source is a memref that has the dimensions `dim` and `dim` + 1."""
    if not isinstance(op.source.type, ir.MemRefType):
        return fail(op, f"expects a memref, got {op.source.type}")
    rank, dim = op.source.type.rank, op.dim.value
    if not 0 <= dim < rank - 1:
        return fail(op, f"expects dim to have another behind it, got {dim} of {rank}")
    return True
