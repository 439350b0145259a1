"""Keys and values of sparse latent attention by a pair of CTAs, copied by threads (`ws.copy_rows`).

All copies of a block are in flight before any is waited for; a slot is committed when its copies
have arrived.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b

from ..common.absorbed_pair import KEY_HALVES, VALUE_COLUMNS
from ..common.rows import PlainRows
from .pair import SparsePairStorage
from .problem import Query, SparseProblem
from .roles import SparseWork

Value = Any


class Copied(NamedTuple):
    """A slot that warps copy of a block: some columns of the rows of some entries.

    Attributes:
      ring: of slots.
      first: of the entries; those from it on fill the slot's rows.
      column: the first of the columns.
    """

    ring: b.Ring
    first: Value | int
    column: Value | int


def copy_keys(
    problem: SparseProblem, storage: SparsePairStorage, source: PlainRows, query: Query
) -> None:
    """Copies this CTA's half of the keys, in chunks of columns."""
    first = b.INT.mul(b.rank(), storage.cta_keys)
    shares = [
        Copied(storage.k, first, column)
        for column in range(0, problem.head_dim, storage.slots.chunk)
    ]
    _copy(problem, storage, source, shares, query)


def copy_values(
    problem: SparseProblem, storage: SparsePairStorage, source: PlainRows, query: Query
) -> None:
    """Copies this CTA's half of the columns of the values, in halves of the entries, after Q's
    tail.
    """
    storage.q.wait_for_tail(storage.agent)
    count, column = problem.config.tile_n // KEY_HALVES, b.INT.mul(b.rank(), VALUE_COLUMNS)
    shares = [Copied(storage.v, half * count, column) for half in range(KEY_HALVES)]
    _copy(problem, storage, source, shares, query)


def _copy(
    problem: SparseProblem,
    storage: SparsePairStorage,
    source: PlainRows,
    shares: Sequence[Copied],
    query: Query,
) -> None:
    """Fills the slots of each block."""
    work = SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        indices = storage.rows.wait()
        is_visible = work.any_visible_in(indices)
        rows = {share.first: _slot_rows(indices, share) for share in shares}
        slots: list[Value] = []
        for share in shares:
            slot = share.ring.acquire()
            with b.when(is_visible):
                b.copy_rows(
                    source.tensor,
                    slot,
                    [0, share.column],
                    [0, 1],
                    lambda _, row: row,
                    rows[share.first],
                )
            slots.append(slot)
        for slot in slots:
            b.commit(slot, storage.agent)
        b.release(indices, storage.agent)
        return []

    b.loop(0, query.blocks, [], block)


def _slot_rows(rows: Value, share: Copied) -> Value:
    """The rows of a slot, of a block's rows."""
    (count, _) = ws.TileType(share.ring.tile).shape

    def row(offset: Value) -> Value:
        return b.entry(rows, b.INT.add(offset, share.first))

    return b.generate(row, [count], b.i32())
