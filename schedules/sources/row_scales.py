"""Scales of rows of Q and K of latent attention, by which softmax multiplies scores.

With all operands of 8 bits, q_nope and q_rope of a row share a scale, as do k_nope and k_rope of a
key:

    S_ij = q_i x (k_j x (products of row i and key j))

A thread of softmax has a row of scores, and so one scale of Q; the scales of K are the same for all
rows. One warp loads them for each key tile, four keys per thread, and stores them in a slot of
shared memory, from which all threads read them, four at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from ..operands.position_scales import PositionScales
from ..operands.storage import OperandStorage
from .row_vectors import FilledVector, fill_vectors, vector_ring


@dataclass(frozen=True)
class RowScales:
    """The scales of one operation.

    Attributes:
      queries: [batch, sq, heads, 1], or [total, heads, 1] as queries lie.
      keys: of one head, as k_nope lies.
      ring: of tiles [tile_n] of the scales of keys.
    """

    queries: Value
    keys: PositionScales
    ring: b.Ring

    @classmethod
    def of(
        cls,
        op: attn.MlaOp,
        storages: Mapping[str, OperandStorage],
        arguments: Mapping[Value, Value],
        tile_n: int,
    ) -> "RowScales | None":
        """The scales of an operation, with their ring; None without scales.

        Args:
          storages: how its operands are stored, by their names.

        Raises:
          VerifyError: nope and rope have other scales than one another, or only Q or K has any, or
            they lie otherwise than rows do.
        """
        _check(op, storages)
        if op.has_narrow_rope:
            return None
        queries = PositionScales.of(storages["q_nope"], arguments)
        keys = PositionScales.of(storages["k_nope"], arguments)
        if queries is None or keys is None:
            return None
        return cls(queries.tensor, keys, vector_ring("scales", tile_n))

    def fill(self, problem: Problem, tile: WorkTile) -> None:
        """The role that reads the scales of keys."""
        count, zero = problem.config.tile_n, b.constant(0)

        def load(tile: WorkTile, column: Value) -> Value:
            return self.keys.load(tile.keys, column, [], count, zero, 0)

        fill_vectors(problem, [FilledVector(self.ring, load)], tile)

    def of_rows(self, problem: Problem, tile: WorkTile, row0: Value) -> Value:
        """The scales of a query tile, f32 [tile_m], whose first row is at position `row0`."""
        queries, sequence = problem.rows, tile.queries

        def scale(row: Value) -> Value:
            position = b.INT.add(row0, queries.position(row))
            coords = [*sequence.lead, sequence.row(position), queries.head(tile.head, row), 0]
            return b.element(self.queries, coords)

        return b.generate(scale, [problem.config.tile_m], ir.F32Type.get())

    def scaled(self, chunks: Mapping[int, Value], rows: Value) -> dict[int, Value]:
        """The scores of the next key tile times the scales of their keys, and of their rows.

        Args:
          chunks: the scores from a column of the tile on, by that.
        """
        slot = self.ring.wait()
        by_operand: dict[int, Value] = {}
        for column, scores in chunks.items():
            _, count = ws.FragmentType(scores.type).shape
            by_operand[column] = b.times_columns(scores, b.load(b.rows(slot, column, count)))
        b.release(slot, "threads")
        return {column: b.times_rows(scores, rows) for column, scores in by_operand.items()}


def _check(op: attn.MlaOp, storages: Mapping[str, OperandStorage]) -> None:
    """See `RowScales.of`."""
    by_operand = {name: _scales(op, name, storage) for name, storage in storages.items()}
    if op.has_narrow_rope:
        scaled_operands = [
            x for x, scales in by_operand.items() if scales is not None and x != "k_rope"
        ]
        if scaled_operands:
            raise op_error(
                op, f"expects no scales of {scaled_operands[0]} where k_rope alone has 8 bits"
            )
        return
    for operand in ("q", "k"):
        nope, rope = by_operand[f"{operand}_nope"], by_operand[f"{operand}_rope"]
        if (nope is None) != (rope is None) or (nope is not None and nope != rope):
            raise op_error(op, f"expects the same scales of {operand}_nope and {operand}_rope")
        if nope is None:
            continue
        lies = OperandStorage.of(nope)
        is_alike = lies.is_alike(storages[f"{operand}_nope"])
        if lies.pages is not None or lies.is_part_of_rows or not is_alike:
            raise op_error(op, f"expects scales of {operand}_nope to be stored as it is")
        if attn.logical_type(nope).shape[3] != 1:
            raise op_error(op, f"expects one scale of {operand}_nope for all columns of a row")
    if (by_operand["q_nope"] is None) != (by_operand["k_nope"] is None):
        raise op_error(op, "expects scales of rows for queries and keys, or for neither")


def _scales(op: attn.MlaOp, name: str, storage: OperandStorage) -> Value | None:
    """The scales of an operand: of rows, or of v of sequences and heads."""
    steps = storage.scales
    if len(steps) > 1:
        raise op_error(op, f"expects {name} to be scaled once")
    if not steps:
        return None
    rows = steps[0].scale_block.rows
    if rows != (0 if name == "v" else 1):
        kind = "sequences and heads" if name == "v" else "positions"
        raise op_error(op, f"expects scales of {kind} for {name}")
    return steps[0].scales
