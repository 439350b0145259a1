"""The storage of Q in a pair of CTAs: shared memory, and tensor memory for all but the first chunk.

```text
WholeQueries   q, all columns                        where elements have 8 bits
SplitQueries   q, a chunk of columns | tail ──softmax──► rest, tensor memory
```
The columns of `rest` are copied to shared memory in chunks, where values come later. The producer
of V waits until Q's chunks have been copied out.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b

from .absorbed import Absorbed

Value = Any

TAIL_CHUNKS = 4  # chunks of Q on their way to tensor memory
CHUNK = 64  # columns of a line of shared memory, staged at a time


class Heads(NamedTuple):
    """The heads of a query in a CTA.

    Attributes:
      q, o: memrefs, whose last dimensions are heads and columns.
      q_coords, o_coords: coordinates of the query in q and in o, before the heads.
      head: the first of the heads.
    """

    q: Value
    o: Value
    q_coords: tuple[Value, ...]
    o_coords: tuple[Value, ...]
    head: Value


class WholeQueries:
    """All columns in a tile of shared memory.

    Attributes:
      columns: of the tile.
    """

    def __init__(self, problem: Absorbed, at_leader: Callable[..., b.Ring], columns: int = 0):
        """With a function that declares rings which the even CTA reads for both.

        Args:
          columns: of the tile; 0 for all.
        """
        self._problem = problem
        self.columns = columns or problem.columns
        tile = b.tile([problem.config.tile_m, self.columns], problem.element, "shared")
        self._first = at_leader("q", tile)

    def load_first(self, heads: Heads) -> None:
        """Copies the tile's columns in."""
        slot = self._first.acquire()
        self._copy(slot, heads, 0)
        b.commit(slot, "copy_engine")

    def load_tail(self, heads: Heads) -> None:
        """Copies the other columns in; there are none here."""

    def copy_tail(self, agent: str) -> None:
        """Copies the tail to tensor memory, in the softmax before its first block."""

    def wait_for_tail(self, agent: str) -> None:
        """Waits, before a role fills slots of values, until the tail is copied."""

    @contextmanager
    def reading(self) -> Generator[Callable[[int], Value]]:
        """Yields a function from a chunk's first column to the operand of S; then releases Q."""
        queries = self._first.wait()
        yield lambda _: queries
        b.release(queries, "tensor_core")

    def _copy(self, target: Value, heads: Heads, column: int) -> None:
        coords = [*heads.q_coords, heads.head, column]
        b.copy_in(heads.q, target, coords, heads_and_columns(heads.q_coords))


class SplitQueries(WholeQueries):
    """The first columns in a tile of shared memory, the others twice per head in tensor memory.

    `moved` signals that the softmax of both CTAs has copied them there.
    """

    def __init__(
        self,
        problem: Absorbed,
        at_leader: Callable[..., b.Ring],
        columns: int,
        pair: Sequence[Sequence[int]],
    ):
        super().__init__(problem, at_leader, columns)
        rows, tail_columns = ws.PAIR * problem.config.tile_m, problem.columns - columns
        chunk_tile = b.tile([rows, CHUNK], problem.element, "shared")
        self._tail = b.Ring("tail", chunk_tile, stages=TAIL_CHUNKS)
        self._tail_operand = b.Buffer(
            "rest", b.tile([rows, tail_columns], problem.element, "tensor")
        )
        self._tail_copied = b.Ring("moved", None, full_at=pair, empty_at=pair)

    def load_tail(self, heads: Heads) -> None:
        """Copies chunks of them in, each twice, one below the other."""
        count = self._problem.config.tile_m
        for column in range(self.columns, self._problem.columns, CHUNK):
            slot = self._tail.acquire()
            for number in range(ws.PAIR):
                self._copy(b.rows(slot, number * count, count), heads, column)
            b.commit(slot, "copy_engine")

    def copy_tail(self, agent: str) -> None:
        """Copies chunks to tensor memory."""
        operand, copied = self._tail_operand.at(), self._tail_copied.acquire()
        for column in range(0, self._problem.columns - self.columns, CHUNK):
            slot = self._tail.wait()
            b.store(b.load(slot), b.columns(operand, column, CHUNK))
            b.release(slot, agent)
        b.commit(copied, agent)

    def wait_for_tail(self, agent: str) -> None:
        """Waits until the chunks have left the slots of values."""
        b.release(self._tail_copied.wait(), agent)

    @contextmanager
    def reading(self) -> Generator[Callable[[int], Value]]:
        """As `WholeQueries.reading`."""
        with super().reading() as first:
            copied, operand = self._tail_copied.wait(), self._tail_operand.at()

            def chunk(column: int) -> Value:
                if not column:
                    return first(column)
                return b.columns(operand, column - self.columns, self.columns)

            yield chunk
        b.release(copied, "tensor_core")


def heads_and_columns(place: Sequence[Value]) -> list[int]:
    """The dimensions of Q or O after the coordinates of a query."""
    return [len(place), len(place) + 1]
