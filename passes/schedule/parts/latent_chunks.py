"""Blocks of a latent cache that come in chunks of columns, and the two groups that hold half of O each.

A block of keys is one of values as well: its first 512 columns. A chunk of its columns has slots and
barriers of its own: scores begin with the first that is there, one product for each, and each is free as
soon as its last product is done.

```text
keys_0    columns   0-127    values of the first group
keys_128          128-255
keys_256          256-383    values of the second group
keys_384          384-575    of which 512-575 are of keys alone
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attn_mlir.dialect.attn.latent import LATENT_COLUMNS

from . import builder as b
from .found_ahead import each_turn
from .held_halves import leave
from .problem import Problem, Value, WorkTile
from .row_boxes import RowBoxes
from .transport import Queried, load_queries

HALF = LATENT_COLUMNS // 2  # columns of O in a group: 128 registers of each thread
CHUNK = 128  # columns of a slot of keys
Block = Sequence[Value]  # the slots of a block of keys, of each chunk


class Chunk(NamedTuple):
    """Some columns of all blocks of keys.

    Attributes:
      ring: of their slots.
      first, width: which columns.
      group: whose values are among them.
    """

    ring: b.Ring
    first: int
    width: int
    group: int

    @property
    def values(self) -> int:
        """How many columns are of values: the first ones."""
        return min(self.width, LATENT_COLUMNS - self.first)


def key_chunks(problem: Problem, beside: int) -> list[Chunk]:
    """Declares the rings of blocks.

    Args:
      beside: columns for which slots of the last chunk have room behind its values, whether these are
        loaded or not.
    """
    config, chunks = problem.config, list[Chunk]()
    for first in range(0, LATENT_COLUMNS, CHUNK):
        is_last = first + CHUNK == LATENT_COLUMNS
        width = problem.columns - first if is_last else CHUNK
        room = max(width, CHUNK + beside) if is_last else width
        kind = b.tile([config.tile_n, room], problem.element, "shared")
        ring = b.Ring(f"keys_{first}", kind, stages=config.kv_stages)
        chunks.append(Chunk(ring, first, width, first // HALF))
    return chunks


def load_chunks(
    problem: Problem, storage: Queried, chunks: Sequence[Chunk], boxes: RowBoxes, tile: WorkTile
) -> None:
    """Fills Q once, then the chunks of each block; one thread."""
    visited = problem.key_tiles(tile)

    def fill(turn: Value | int, found: Sequence[Value], *, is_whole: bool) -> None:
        key = visited.first_column(turn)
        for chunk in chunks:
            slot = chunk.ring.acquire()
            part = b.columns(slot, 0, chunk.width)
            boxes.load(part, tile, key, chunk.first, found, ends=not is_whole)
            b.commit(slot, "copy_engine")

    each_turn(
        visited,
        (lambda turn: boxes.find(tile, visited.first_column(turn))) if boxes.reads else None,
        fill,
        lambda: load_queries(problem, storage, tile),
    )


@dataclass(frozen=True)
class Half:
    """A group's products: scores of blocks, and its half of O, by chunks.

    Attributes:
      number: of the group.
      kept: slots at the end of a block that are free with its values, whoever multiplies them.
    """

    problem: Problem
    chunks: Sequence[Chunk]
    number: int
    kept: int = 0

    @property
    def own(self) -> list[int]:
        """The chunks with values of this half."""
        return [n for n, chunk in enumerate(self.chunks) if chunk.group == self.number]

    def none(self) -> list[Value]:
        """O of no key."""
        rows, zero = self.problem.config.tile_m, b.f32_constant(0.0)
        return [b.fill([rows, self.chunks[n].values], zero) for n in self.own]

    def wait(self) -> Block:
        """The slots of the next block."""
        return [chunk.ring.wait() for chunk in self.chunks]

    def wait_for_values(self) -> Block:
        """The same, where the group uses its values alone: other slots are free."""
        block = self.wait()
        self.release_others(block)
        return block

    def scores(
        self, queries: Value, block: list[Value], count: int, pending: Value | None = None
    ) -> Value:
        """S of the next block by so many more of its chunks, a product for each, pending.

        Args:
          block: the slots so far, to which these are appended.
          pending: S by those.
        """
        config = self.problem.config
        sums = pending
        if sums is None:
            sums = b.fill([config.tile_m, config.tile_n], b.f32_constant(0.0))
        for ring, first, width, _ in self.chunks[len(block) :][:count]:
            block.append(ring.wait())
            pair = b.columns(queries, first, width), b.columns(block[-1], 0, width)
            sums = b.product(sums, *pair, accumulate=first > 0, b_layout="nk")
        return sums

    def release_others(self, block: Block) -> None:
        """Hands back what has no values of this half, but for slots that are kept."""
        for number in range(len(block) - self.kept):
            if number not in self.own:
                b.release(block[number], "warps")

    def release_kept(self, block: Block) -> None:
        """Hands back the kept slots that have no values of this half."""
        for number in range(len(block) - self.kept, len(block)):
            if number not in self.own:
                b.release(block[number], "warps")

    def multiply(self, weights: Value, block: Block, sums: Sequence[Value]) -> list[Value]:
        """O += P V, pending."""
        values = (b.columns(block[n], 0, self.chunks[n].values) for n in self.own)
        return [
            b.product(own, weights, part, accumulate=True, b_layout="kn")
            for own, part in zip(sums, values, strict=True)
        ]

    def settle(self, pending: Sequence[Value], block: Block, newest: int = 0) -> list[Value]:
        """O with the products of a block, whose slots with values of this half are free.

        Args:
          newest: products issued behind these that may still run.
        """
        sums: list[Value] = []
        for number, part in zip(self.own, pending, strict=True):
            later = len(pending) - 1 - len(sums)
            sums.append(b.settle(part, newest=newest + later))
            b.release(block[number], "warps")
        return sums

    def leave(self, out: b.Ring | None, tile: WorkTile, result: Sequence[Value]) -> None:
        """This half of O of a work tile, to a slot of `out`, or to memory where there is none."""
        chunks = [self.chunks[n] for n in self.own]
        parts = [(c.first, c.values, x) for c, x in zip(chunks, result, strict=True)]
        leave(self.problem, out, tile, parts)
