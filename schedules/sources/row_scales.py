"""Factors of rows of Q and of K of latent attention, which softmax multiplies scores by.

With all operands of 8 bits, q_nope and q_rope of a row share a factor, and k_nope and k_rope of a
key:

    S_ij = q_i x (k_j x (products of row i and key j))

A thread of softmax has a row of scores, and so one factor of Q; those of K are the same for all
rows. One warp reads these, four keys in each thread, and puts them into a slot of shared memory for
each key tile, from which all threads read them, four at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from ..operands.position_scales import PositionFactors
from ..operands.storage import OperandStorage
from .row_vectors import FilledVector, fill_vectors, vector_ring


@dataclass(frozen=True)
class RowFactors:
    """The factors of one operation.

    Attributes:
      queries: [batch, sq, heads, 1], or [total, heads, 1] as queries lie.
      keys: of one head, as k_nope lies.
      ring: of tiles [tile_n] of the factors of keys.
    """

    queries: Value
    keys: PositionFactors
    ring: b.Ring

    @classmethod
    def of(
        cls,
        op: attn.MlaOp,
        storages: Mapping[str, OperandStorage],
        arguments: Mapping[Value, Value],
        tile_n: int,
    ) -> "RowFactors | None":
        """Of an operation, with its ring; None without factors.

        Args:
          storages: how its operands are stored, by their names.

        Raises:
          VerifyError: nope and rope have other factors than one another, or only Q or K has any, or
            they lie otherwise than rows do.
        """
        _check(op, storages)
        if op.has_narrow_rope:
            return None
        queries = PositionFactors.of(storages["q_nope"], arguments)
        keys = PositionFactors.of(storages["k_nope"], arguments)
        if queries is None or keys is None:
            return None
        return cls(queries.tensor, keys, vector_ring("factors", tile_n))

    def fill(self, problem: Problem, tile: WorkTile) -> None:
        """The role that reads the factors of keys."""
        count, zero = problem.config.tile_n, b.constant(0)

        def load(tile: WorkTile, column: Value) -> Value:
            return self.keys.load(tile.keys, column, [], count, zero, 0)

        fill_vectors(problem, [FilledVector(self.ring, load)], tile)

    def of_rows(self, problem: Problem, tile: WorkTile, row0: Value) -> Value:
        """The factors of a query tile, f32 [tile_m], whose first row is at position `row0`."""
        queries, place = problem.rows, tile.queries

        def factor(row: Value) -> Value:
            position = b.INT.add(row0, queries.position(row))
            coords = [*place.lead, place.row(position), queries.head(tile.head, row), 0]
            return b.element(self.queries, coords)

        return b.generate(factor, [problem.config.tile_m], ir.F32Type.get())

    def scaled(self, pieces: Mapping[int, Value], rows: Value) -> dict[int, Value]:
        """The scores of the next key tile times the factors of their keys, and of their rows.

        Args:
          pieces: the scores from a column of the tile on, by that.
        """
        slot = self.ring.wait()
        found: dict[int, Value] = {}
        for column, scores in pieces.items():
            _, count = ws.FragmentType(scores.type).shape
            found[column] = b.times_columns(scores, b.load(b.rows(slot, column, count)))
        b.release(slot, "threads")
        return {column: b.times_rows(scores, rows) for column, scores in found.items()}


def _check(op: attn.MlaOp, storages: Mapping[str, OperandStorage]) -> None:
    """See `RowFactors.of`."""
    found = {name: _factors(op, name, storage) for name, storage in storages.items()}
    if op.has_narrow_rope:
        others = [x for x, factors in found.items() if factors is not None and x != "k_rope"]
        if others:
            raise op_error(op, f"expects no factors of {others[0]} where k_rope alone has 8 bits")
        return
    for side in ("q", "k"):
        nope, rope = found[f"{side}_nope"], found[f"{side}_rope"]
        if (nope is None) != (rope is None) or (nope is not None and nope != rope):
            raise op_error(op, f"expects the same factors of {side}_nope and {side}_rope")
        if nope is None:
            continue
        lies = OperandStorage.of(nope)
        is_alike = lies.is_alike(storages[f"{side}_nope"])
        if lies.pages is not None or lies.is_part_of_rows or not is_alike:
            raise op_error(op, f"expects factors of {side}_nope to be stored as it is")
        if attn.logical_type(nope).shape[3] != 1:
            raise op_error(op, f"expects one factor of {side}_nope for all columns of a row")
    if (found["q_nope"] is None) != (found["k_nope"] is None):
        raise op_error(op, "expects factors of rows for queries and keys, or for neither")


def _factors(op: attn.MlaOp, name: str, storage: OperandStorage) -> Value | None:
    """The factors of an operand: of rows, or of v of sequences and heads."""
    steps = storage.scales
    if len(steps) > 1:
        raise op_error(op, f"expects {name} to be scaled once")
    if not steps:
        return None
    rows = steps[0].scale_block.rows
    if rows != (0 if name == "v" else 1):
        kind = "sequences and heads" if name == "v" else "positions"
        raise op_error(op, f"expects factors of {kind} for {name}")
    return steps[0].factors
