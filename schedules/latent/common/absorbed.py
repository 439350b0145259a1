"""The roles of absorbed latent attention that multiply, whatever keys they work on.

A row of a tile is a head of a query. A tile of keys is one of values as well: its first 512
columns. Which tiles there are and which of their keys count is a `Work`'s business; `sparse_roles`
has those that lists name.
"""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.latent import LATENT_COLUMNS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import NARROW_BITS, Configured
from attn_mlir.schedules.core.problem import MAX_EXPONENT
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import Rows, reciprocal, weigh

Value = Any
Scores = Callable[[], tuple[Value, Value | None]]

PIECE = 64 * 64  # elements of O in registers at a time: 32 registers of a thread


class Absorbed(Configured, Protocol):
    """What the roles know of a problem.

    Attributes:
      scale: f32, multiplies Q K^T.
      element, output: element types of Q and keys, and of O.
      columns: of a tile of Q or keys.
    """

    @property
    def scale(self) -> Value: ...

    @property
    def element(self) -> Any: ...

    @property
    def output(self) -> Any: ...

    @property
    def columns(self) -> int: ...


class Work(Protocol):
    """A work tile: the blocks of keys that each role walks once, and where its results go."""

    @property
    def count(self) -> Value:
        """Blocks."""
        ...

    @property
    def keeps_largest(self) -> bool:
        """Whether `leave` is told the largest score of each row."""
        ...

    def counts(self) -> Value | None:
        """i1: whether any key of the role's next block counts; None where one does in each."""
        ...

    def visit(
        self, ring: b.Ring, state: list[Value], turn_of: Callable[..., list[Value]]
    ) -> list[Value]:
        """Emits the loops of the softmax over all blocks, and returns the final state.

        Args:
          ring: of scores.
          turn_of: emits one block, from `Scores` and the state to the next state. That function
            takes a slot of the ring, and gives the scores, -inf where a key does not count, and
            `counts`.
        """
        ...

    def divisor(self, row: Row, maximum: Value, total: Value) -> Value:
        """[rows]: what O is divided by; 0 in rows in which no key counts."""
        ...

    def leave(self, row: Row, maximum: Value, total: Value, largest: Value | None) -> None:
        """Writes what a row has beside O."""
        ...


class Softened(Protocol):
    """The rings and buffers of a softmax that leaves O in tensor memory; see `AbsorbedStorage`.

    Rows of S may be more than the heads, each with some of a head's keys, and of O, each with some
    of its columns. A tile of P has the same lines of shared memory, each head's behind one another.

    Attributes:
      agent: by which the softmax hands over S, P and O.
    """

    agent: str
    s: b.Ring
    p: b.Ring
    o: b.Buffer
    settled: b.Ring

    def across(self, combine: Callable[[Value, Value], Value], rows: Value) -> Value:
        """Numbers of rows [rows], combined over the rows of each head."""
        ...


class AbsorbedStorage:
    """The rings and buffers of these roles.

    ```
    load --q,keys--> score --s--> softmax --p--> sum_up
            |                      | ^             | ^
            |                      | '---settled---' |
            '----------------------+-----keys--------'
                                   '--out--> store
    ```
    A tile of `keys` is read twice, by `score` as K and by `sum_up`, its first 512 columns, as V.
    `settled` says that the products so far are in O, which softmax may rescale, and goes back when
    O fits its maximum; the first time nothing is in O. `unread` says that `score` has read all of Q
    and K: the result may be staged in their place.
    """

    agent = "threads"

    def __init__(self, problem: Absorbed, *, loaders: int = 1):
        """With so many threads that copy parts of a tile of keys; 0 where warps write it."""
        config, element = problem.config, problem.element
        f32, rows = ir.F32Type.get(), config.tile_m
        self.q = b.Ring("q", b.tile([rows, problem.columns], element, "shared"))
        keys = b.tile([config.tile_n, problem.columns], element, "shared")
        self.keys = b.Ring(
            "keys", keys, stages=config.kv_stages, producers=("copy_engine",) * loaders
        )
        self.s = b.Ring("s", b.tile([rows, config.tile_n], f32, "tensor"), stages=2)
        self.p = b.Ring("p", b.tile([rows, config.tile_n], element, "shared"))
        self.o = b.Buffer("o", b.tile([rows, LATENT_COLUMNS], f32, "tensor"))
        self.settled = b.Ring("settled", None)
        self.unread = b.Ring("unread", None)
        self.out = b.Ring("out", b.tile([rows, LATENT_COLUMNS], problem.output, "shared"))

    def across(self, combine: Callable[[Value, Value], Value], rows: Value) -> Value:
        """As `Softened.across`: a head has one row."""
        del combine
        return rows


def score(problem: Absorbed, storage: AbsorbedStorage, work: Work) -> None:
    """Issues S = Q K^T, block by block, as far ahead of the softmax as there is room for S."""
    queries, unread = storage.q.wait(), storage.unread.acquire()

    def block(_: Value) -> list[Value]:
        counts = work.counts()
        keys, scores = storage.keys.wait(), storage.s.acquire()
        with where(counts):
            b.mma(scores, queries, keys, accumulate=False, b_layout="nk")
        b.commit(scores, "tensor_core")
        b.release(keys, "tensor_core")
        return []

    b.loop(0, work.count, [], block)
    b.release(queries, "tensor_core")
    b.commit(unread, "tensor_core")


def sum_up(problem: Absorbed, storage: AbsorbedStorage, work: Work) -> None:
    """Issues O += P V, block by block, V being the first columns of the keys."""
    b.commit(storage.settled.acquire(), "tensor_core")

    def block(_: Value, begun: Value) -> list[Value]:
        counts = work.counts()
        keys, settled = storage.keys.wait(), storage.settled.acquire()
        weights = storage.p.wait()
        values = b.view(keys, [problem.config.tile_n, LATENT_COLUMNS], problem.element)
        with where(counts):
            b.mma(storage.o.at(), weights, values, accumulate=begun, b_layout="kn")
        for read in (weights, keys):
            b.release(read, "tensor_core")
        b.commit(settled, "tensor_core")
        return [either_begun(begun, counts)]

    b.loop(0, work.count, [b.false()], block)


class Attended(NamedTuple):
    """What the softmax knows of its rows after the last block.

    Attributes:
      row: the arithmetic of a row.
      begun: i1, whether any key counts.
      maximum, total: [rows], of each row's head.
      inverse: [rows], what O is to be multiplied by.
      largest: [rows], the largest score of the row's head, where the work is told.
    """

    row: Row
    begun: Value
    maximum: Value
    total: Value
    inverse: Value
    largest: Value | None


def attend(problem: Absorbed, storage: Softened, work: Work) -> Attended:
    """Turns S into P, block by block, and keeps O in step with the maximum."""
    keeps, shape = work.keeps_largest, list(ws.TileType(storage.s.tile).shape)
    row = Row.scaled(problem.scale, problem.config.rescale_threshold, lift_of(problem))

    def block(scores_of: Scores, begun: Value, *state: Value) -> list[Value]:
        scores, counts = scores_of()
        largest, known = ([state[0]], state[1:]) if keeps else ([], state)
        largest = [storage.across(b.fmax, b.reduce_rows("max", scores, x)) for x in largest]
        rows, moved, factor, weights = weigh(
            problem, row, scores, Rows(*known), *largest, apart=True
        )
        settled = storage.settled.wait()
        with b.when(arith.AndIOp(moved, begun).result):
            for part in pieces(storage.o.at()):
                b.store(b.times_rows(b.load(part), factor), part)
        b.release(settled, storage.agent)
        slot = storage.p.acquire()
        b.store(b.rounded(weights, problem.element), b.view(slot, shape, problem.element))
        b.commit(slot, storage.agent)
        return [either_begun(begun, counts), *largest, *rows]

    largest = [b.fill(shape[:1], b.f32_constant(-math.inf))] if keeps else []
    state = [b.false(), *largest, *Rows.none(row, shape[0])]
    begun, *state = work.visit(storage.s, state, block)
    if keeps:
        largest, state = state[:1], state[1:]
    rows = Rows(*state)
    total = storage.across(b.fadd, rows.total())
    divisor = work.divisor(row, rows.maximum, total)
    inverse = b.map_elements(lambda t: reciprocal(t, None), divisor)
    return Attended(row, begun, rows.maximum, total, inverse, *(largest or [None]))


def softmax(problem: Absorbed, storage: AbsorbedStorage, work: Work) -> None:
    """Turns S into P, keeps O in step with the maximum, and writes the results of the work tile."""
    row, begun, maximum, total, inverse, largest = attend(problem, storage, work)
    settled = storage.settled.wait()
    b.release(storage.unread.wait(), "threads")
    slot = storage.out.acquire()
    with b.either(begun) as (some, none):
        with some:
            for part, target in zip(pieces(storage.o.at()), pieces(slot), strict=True):
                b.store(b.rounded(b.times_rows(b.load(part), inverse), problem.output), target)
        with none:
            for target in pieces(slot):
                nothing = b.fill(ws.TileType(target.type).shape, b.f32_constant(0.0))
                b.store(b.rounded(nothing, problem.output), target)
    b.release(settled, "threads")
    b.commit(slot, "threads")
    work.leave(row, maximum, total, largest)


def lift_of(problem: Absorbed) -> int:
    """P is 2^this where a score equals the row's maximum: above 0 for P of 8 bits, see
    `Problem.lift`.
    """
    narrow = ws.element_bits(problem.element) == NARROW_BITS
    return MAX_EXPONENT - problem.config.rescale_threshold if narrow else 0


@contextmanager
def where(counts: Value | None) -> Generator[None]:
    """What is written inside happens for blocks in which a key counts."""
    if counts is None:
        yield
        return
    with b.when(counts):
        yield


def either_begun(begun: Value, counts: Value | None) -> Value:
    """Whether a key has counted in this block or before."""
    return b.true() if counts is None else arith.OrIOp(begun, counts).result


def pieces(tile: Value) -> list[Value]:
    """The columns of a tile in parts of which a thread has 32 elements."""
    rows, columns = ws.TileType(tile.type).shape
    width = PIECE // rows
    return [b.columns(tile, c, width) for c in range(0, columns, width)]
