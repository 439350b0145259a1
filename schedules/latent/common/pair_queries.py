"""Where a pair of CTAs keeps Q: all in shared memory, or but for its first columns in tensor
memory.

```text
WholeQueries   q, all columns                        where elements have 8 bits
SplitQueries   q, a chunk of columns | tail ──softmax──► rest, tensor memory
```
The columns of `rest` are copied to shared memory in strips, where values come later, so who fills
these waits until the strips have been read.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b

from .absorbed import Absorbed

Value = Any

TAIL_STRIPS = 4  # strips of Q on their way to tensor memory
STRIP = 64  # columns of a line of shared memory, staged at a time


class Heads(NamedTuple):
    """The heads of a query that a CTA has.

    Attributes:
      q, o: memrefs, whose last dimensions are heads and columns.
      place, result: coordinates of the query in q and in o, in front of the heads.
      head: the first of the heads.
    """

    q: Value
    o: Value
    place: tuple[Value, ...]
    result: tuple[Value, ...]
    head: Value


class WholeQueries:
    """All columns in a tile of shared memory.

    Attributes:
      columns: of the tile.
    """

    def __init__(self, problem: Absorbed, at_leader: Callable[..., b.Ring], columns: int = 0):
        """With what makes rings that the even CTA reads for both; all columns if there are none
        given.
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

    def load_others(self, heads: Heads) -> None:
        """Copies the other columns in: none."""

    def settle(self, agent: str) -> None:
        """What the softmax does before its first block: nothing."""

    def wait_until_settled(self, agent: str) -> None:
        """What a role waits for that fills slots of values: nothing."""

    @contextmanager
    def reading(self) -> Generator[Callable[[int], Value]]:
        """Of the role that issues S: gives the columns of a chunk that begins at one; after that Q
        is read.
        """
        queries = self._first.wait()
        yield lambda _: queries
        b.release(queries, "tensor_core")

    def _copy(self, target: Value, heads: Heads, column: int) -> None:
        place = [*heads.place, heads.head, column]
        b.copy_in(heads.q, target, place, heads_and_columns(heads.place))


class SplitQueries(WholeQueries):
    """The first columns in a tile of shared memory, the others in tensor memory, where each head is
    twice.

    `moved` says that the softmax of both CTAs has them there.
    """

    def __init__(
        self,
        problem: Absorbed,
        at_leader: Callable[..., b.Ring],
        columns: int,
        pair: Sequence[Sequence[int]],
    ):
        super().__init__(problem, at_leader, columns)
        rows, others = ws.PAIR * problem.config.tile_m, problem.columns - columns
        strip = b.tile([rows, STRIP], problem.element, "shared")
        self._tail = b.Ring("tail", strip, stages=TAIL_STRIPS)
        self._rest = b.Buffer("rest", b.tile([rows, others], problem.element, "tensor"))
        self._moved = b.Ring("moved", None, full_at=pair, empty_at=pair)

    def load_others(self, heads: Heads) -> None:
        """Copies strips of them in, each twice, one below the other."""
        count = self._problem.config.tile_m
        for column in range(self.columns, self._problem.columns, STRIP):
            slot = self._tail.acquire()
            for number in range(ws.PAIR):
                self._copy(b.rows(slot, number * count, count), heads, column)
            b.commit(slot, "copy_engine")

    def settle(self, agent: str) -> None:
        """Moves strips to tensor memory."""
        rest, moved = self._rest.at(), self._moved.acquire()
        for column in range(0, self._problem.columns - self.columns, STRIP):
            slot = self._tail.wait()
            b.store(b.load(slot), b.columns(rest, column, STRIP))
            b.release(slot, agent)
        b.commit(moved, agent)

    def wait_until_settled(self, agent: str) -> None:
        """Strips are out of the place of values."""
        b.release(self._moved.wait(), agent)

    @contextmanager
    def reading(self) -> Generator[Callable[[int], Value]]:
        """As `WholeQueries.reading`."""
        with super().reading() as first:
            moved, rest = self._moved.wait(), self._rest.at()

            def chunk(column: int) -> Value:
                if not column:
                    return first(column)
                return b.columns(rest, column - self.columns, self.columns)

            yield chunk
        b.release(moved, "tensor_core")


def heads_and_columns(place: Sequence[Value]) -> list[int]:
    """The dimensions of Q or O that lie behind the place of a query."""
    return [len(place), len(place) + 1]
