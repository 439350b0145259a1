"""`attn.blocks`: lists of the blocks of scores that an attention operation computes."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.block import BLOCK_LISTS, COUNTS, Block
from attn_mlir.dialect.attn.dialect import AttnDialect

COUNTS_RANK = INDICES_RANK = 4


class BlocksOp(AttnDialect.Operation, name="blocks"):
    """Restricts the enclosing attention operation to listed blocks of scores; the others are
    hidden.

    Block (i, g, j) has the scores of the query positions from i x positions on, of the query heads
    from g x heads on, and of the keys from j x keys on. In the first blocks of a list, the tested
    ones, mask and `attn.keep` hide scores as usual. In the others they are not evaluated and hide
    nothing, so every score of such a block has to be visible, and all its keys must exist.

    Numbers are clamped, so that no list makes a kernel read out of bounds: the number of a key
    block to the last one, a count to the number of key blocks, and indices into the lists to their
    extents. So lists with an extent of 1 for batch or heads serve all of them.

    In `attn.kv_gradients` the lists are of query blocks for each key block, with both exchanged in
    what follows, and a block has all heads of a group.

    Operands:
      counts: [batch, head blocks, query blocks, 2], i32: the number of tested blocks, and of all
        listed ones.
      indices: [batch, head blocks, query blocks, key blocks], i32: numbers of key blocks.

    Attributes:
      block: positions, heads and keys of a block; heads divides the heads of a group. A kernel
        visits whole blocks, so its work tiles have this size.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example:
      "attn.blocks"(%counts, %indices) {block = array<i32: 256, 1, 128>}
        : (tensor<?x?x?x2xi32>, tensor<?x?x?x?xi32>) -> ()
    """

    counts: ext.Operand[Any]
    indices: ext.Operand[Any]
    block: Any

    ATTRIBUTE_CLASSES = MappingProxyType({"block": ir.DenseI32ArrayAttr})

    @property
    def extents(self) -> Block:
        """The extents of a block."""
        return Block(*self.block)

    def verify_invariants(self) -> bool:
        """Checks the lists' types, the block, and that an `attn` operation encloses it."""
        counts, indices = self.counts.type, self.indices.type
        if not _is_i32(counts, COUNTS_RANK) or counts.shape[-1] != COUNTS:
            axes = f"[batch, head blocks, query blocks, {COUNTS}]"
            return self._fail(f"counts to be a tensor {axes} of i32, got {counts}")
        if not _is_i32(indices, INDICES_RANK):
            axes = "[batch, head blocks, query blocks, key blocks]"
            return self._fail(f"indices to be a tensor {axes} of i32, got {indices}")
        extents = list(self.block)
        if len(extents) != len(Block._fields) or min(extents) < 1:
            names = ", ".join(Block._fields)
            return self._fail(f"a block of ({names}), each at least 1, got {extents}")
        parent = self.operation.parent
        if parent is None or not parent.name.startswith("attn."):
            got = "nothing" if parent is None else f"'{parent.name}'"
            return self._fail(f"to be inside an attn operation, is inside {got}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False


def make_blocks(arguments: Mapping[str, ir.Value], block: Sequence[int]) -> BlocksOp:
    """Builds an `attn.blocks` at the insertion point.

    Args:
      arguments: `BLOCK_LISTS`, by name; may have others.
      block: positions, heads and keys of a block.
    """
    lists = [arguments[name] for name in BLOCK_LISTS]
    return BlocksOp(*lists, ir.DenseI32ArrayAttr.get(list(block)))


def _is_i32(kind: Any, rank: int) -> bool:
    is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank == rank
    return is_tensor and str(kind.element_type) == "i32"
