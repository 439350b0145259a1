"""The compute roles of absorbed latent attention, for any source of keys.

A row of a tile is a head of a query. The first 512 columns of a tile of keys are its values. A
`Work` says which blocks of keys a work tile has, and which of their keys are visible.
"""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.latent.columns import LATENT_COLUMNS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import FP8_BITS, Configured
from attn_mlir.schedules.core.problem import MAX_EXPONENT
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import RowState, reciprocal, softmax_step

Value = Any
Scores = Callable[[], tuple[Value, Value | None]]

CHUNK_ELEMENTS = 64 * 64  # elements of O in registers at a time: 32 registers of a thread


class Absorbed(Configured, Protocol):
    """The problem of these roles.

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
    """A work tile: its blocks of keys, their mask, and the destination of row results."""

    @property
    def count(self) -> Value:
        """Blocks."""
        ...

    @property
    def needs_row_max(self) -> bool:
        """Whether `store_statistics` gets the largest score of each row."""
        ...

    def any_visible(self) -> Value | None:
        """i1: whether any key of the role's next block is visible; None if one is in each block."""
        ...

    def loop_over_blocks(
        self, ring: b.Ring, state: list[Value], iteration: Callable[..., list[Value]]
    ) -> list[Value]:
        """Emits the loops of the softmax over all blocks, and returns the final state.

        Args:
          ring: of scores.
          iteration: emits one block, from `Scores` and the state to the next state. `Scores` takes
            a slot of the ring and returns the scores, -inf for hidden keys, and `any_visible`.
        """
        ...

    def divisor(self, row: Row, maximum: Value, total: Value) -> Value:
        """[rows]: the divisor of O; 0 in rows without a visible key."""
        ...

    def store_statistics(
        self, row: Row, maximum: Value, total: Value, largest: Value | None
    ) -> None:
        """Stores the results of rows other than O, such as the LSE."""
        ...


class SoftmaxStorage(Protocol):
    """The rings and buffers of a softmax with O in tensor memory; see `AbsorbedStorage`.

    A head may have several rows: in S each with some of its keys, in O each with some of its
    columns. A tile of P has the same lines of shared memory.

    Attributes:
      agent: of the softmax's commits and releases of S, P and O.
    """

    agent: str
    s: b.Ring
    p: b.Ring
    o: b.Buffer
    settled: b.Ring

    def across(self, combine: Callable[[Value, Value], Value], rows: Value) -> Value:
        """Values of rows [rows], combined over the rows of each head."""
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
    A tile of `keys` is read twice: by `score` as K, and by `sum_up`, its first 512 columns, as V.
    A full slot of `settled` signals that O has all products so far and softmax may rescale it; an
    empty one that O is rescaled. The first time O is empty. `unread` signals that `score` has read
    all of Q and K, so that the result may be staged in their memory.
    """

    agent = "threads"

    def __init__(self, problem: Absorbed, *, loaders: int = 1):
        """With `loaders` threads that copy parts of a tile of keys; 0 if warps write it."""
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
        """As of `SoftmaxStorage`: a head has one row."""
        del combine
        return rows


def issue_qk(problem: Absorbed, storage: AbsorbedStorage, work: Work) -> None:
    """Issues S = Q K^T, block by block, ahead of the softmax by the stages of S."""
    queries, unread = storage.q.wait(), storage.unread.acquire()

    def block(_: Value) -> list[Value]:
        counts = work.any_visible()
        keys, scores = storage.keys.wait(), storage.s.acquire()
        with when_visible(counts):
            b.mma(scores, queries, keys, accumulate=False, b_layout="nk")
        b.commit(scores, "tensor_core")
        b.release(keys, "tensor_core")
        return []

    b.loop(0, work.count, [], block)
    b.release(queries, "tensor_core")
    b.commit(unread, "tensor_core")


def issue_pv(problem: Absorbed, storage: AbsorbedStorage, work: Work) -> None:
    """Issues O += P V, block by block, V being the first columns of the keys."""
    b.commit(storage.settled.acquire(), "tensor_core")

    def block(_: Value, begun: Value) -> list[Value]:
        counts = work.any_visible()
        keys, settled = storage.keys.wait(), storage.settled.acquire()
        weights = storage.p.wait()
        values = b.view(keys, [problem.config.tile_n, LATENT_COLUMNS], problem.element)
        with when_visible(counts):
            b.mma(storage.o.at(), weights, values, accumulate=begun, b_layout="kn")
        for read in (weights, keys):
            b.release(read, "tensor_core")
        b.commit(settled, "tensor_core")
        return [either_begun(begun, counts)]

    b.loop(0, work.count, [b.false()], block)


class SoftmaxResult(NamedTuple):
    """The state of the softmax after the last block.

    Attributes:
      row: the arithmetic of a row.
      begun: i1, whether any key is visible.
      maximum, total: [rows], m_i and l_i of each row's head.
      inverse: [rows], the factor of O: 1 / l_i.
      largest: [rows], the largest score of the row's head, if `Work.needs_row_max`.
    """

    row: Row
    begun: Value
    maximum: Value
    total: Value
    inverse: Value
    largest: Value | None


def online_softmax(problem: Absorbed, storage: SoftmaxStorage, work: Work) -> SoftmaxResult:
    """Online softmax: computes P from S, block by block, and rescales O when m_i changes."""
    needs_max, shape = work.needs_row_max, list(ws.TileType(storage.s.tile).shape)
    row = Row.scaled(problem.scale, problem.config.rescale_threshold, exponent_bias(problem))

    def block(scores_of: Scores, begun: Value, *state: Value) -> list[Value]:
        scores, counts = scores_of()
        largest, row_state = ([state[0]], state[1:]) if needs_max else ([], state)
        largest = [storage.across(b.fmax, b.reduce_rows("max", scores, x)) for x in largest]
        rows, has_new_max, alpha, weights = softmax_step(
            problem, row, scores, RowState(*row_state), *largest, apart=True
        )
        settled = storage.settled.wait()
        with b.when(arith.AndIOp(has_new_max, begun).result):
            for part in column_chunks(storage.o.at()):
                b.store(b.times_rows(b.load(part), alpha), part)
        b.release(settled, storage.agent)
        slot = storage.p.acquire()
        b.store(b.rounded(weights, problem.element), b.view(slot, shape, problem.element))
        b.commit(slot, storage.agent)
        return [either_begun(begun, counts), *largest, *rows]

    largest = [b.fill(shape[:1], b.f32_constant(-math.inf))] if needs_max else []
    state = [b.false(), *largest, *RowState.empty(row, shape[0])]
    begun, *state = work.loop_over_blocks(storage.s, state, block)
    if needs_max:
        largest, state = state[:1], state[1:]
    rows = RowState(*state)
    total = storage.across(b.fadd, rows.total())
    divisor = work.divisor(row, rows.maximum, total)
    inverse = b.map_elements(lambda t: reciprocal(t, None), divisor)
    return SoftmaxResult(row, begun, rows.maximum, total, inverse, *(largest or [None]))


def softmax(problem: Absorbed, storage: AbsorbedStorage, work: Work) -> None:
    """The softmax role: online softmax, then the results of the work tile."""
    row, begun, maximum, total, inverse, largest = online_softmax(problem, storage, work)
    settled = storage.settled.wait()
    b.release(storage.unread.wait(), "threads")
    slot = storage.out.acquire()
    with b.either(begun) as (visible, empty):
        with visible:
            for part, target in zip(
                column_chunks(storage.o.at()), column_chunks(slot), strict=True
            ):
                b.store(b.rounded(b.times_rows(b.load(part), inverse), problem.output), target)
        with empty:
            for target in column_chunks(slot):
                nothing = b.fill(ws.TileType(target.type).shape, b.f32_constant(0.0))
                b.store(b.rounded(nothing, problem.output), target)
    b.release(settled, "threads")
    b.commit(slot, "threads")
    work.store_statistics(row, maximum, total, largest)


def exponent_bias(problem: Absorbed) -> int:
    """The exponent bias of P: log2 of P at the row's maximum, above 0 for P of 8 bits."""
    is_fp8 = ws.element_bits(problem.element) == FP8_BITS
    return MAX_EXPONENT - problem.config.rescale_threshold if is_fp8 else 0


@contextmanager
def when_visible(counts: Value | None) -> Generator[None]:
    """Emits the body under the condition that the block has a visible key."""
    if counts is None:
        yield
        return
    with b.when(counts):
        yield


def either_begun(begun: Value, counts: Value | None) -> Value:
    """i1: whether this block or an earlier one has a visible key."""
    return b.true() if counts is None else arith.OrIOp(begun, counts).result


def column_chunks(tile: Value) -> list[Value]:
    """The columns of a tile in chunks of 32 elements per thread."""
    rows, columns = ws.TileType(tile.type).shape
    width = CHUNK_ELEMENTS // rows
    return [b.columns(tile, c, width) for c in range(0, columns, width)]
