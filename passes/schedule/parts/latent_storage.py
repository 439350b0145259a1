"""The rings of keys and values of latent attention, whose tiles are of different sizes.

```text
one ring     kv    [tile_n, max(nope + rope, v_head_dim)]   K(0) V(0) K(1) V(1) ...
two rings    k     [tile_n, nope + rope]                    K(0) K(1) ...
             v     [tile_n, v_head_dim]                     V(0) V(1) ...
rope apart   kv    [tile_n, max(nope, v_head_dim)]          nope(0) V(0) nope(1) V(1) ...
             rope  [tile_n, rope]                           rope(0) rope(1) ...
```
In one ring a tile of values leaves columns of its slot empty. With rings of their own there are as many
slots for either, so their number is even; which of the two have more slots depends on what shared memory is
left (`RingSlots`). With rope apart scores are two products, of which the second adds to the first; lines of a
slot of rope are as long as its rows, where these have up to 64 bytes. Rope of 8 bits under 16 always has such
a ring, which warps of its own fill (`narrow_rope`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.dialect import ws
from attn_mlir.passes.target.limits import LINE_BYTES, Target, line_of_rows, shared_tile_bytes
from attn_mlir.passes.target.tiling import SMEM_FOR_BARRIERS

from . import builder as b
from .key_slots import KeySlots, WholeKeys
from .kv_source import KEYS, KVSource
from .latent import LatentKV
from .problem import Problem, Value, WorkTile
from .queries import columns_of, element_of, side_by_side
from .row_factors import RowFactors
from .storage import Storage

ENOUGH_STAGES = 3  # K(n), V(n - 1) and what is copied meanwhile


class PartedKeys:
    """A tile of keys in a slot of each of two rings."""

    is_copied: ClassVar[bool] = (
        True  # whether the copy engine fills slots of rope, in lines of any length
    )

    def __init__(self, problem: Problem, own: b.Ring, shared: b.Ring):
        """With the columns of a head in `own`, in which values lie in turn, and rope in `shared`."""
        self._problem, self._own, self._shared = problem, own, shared
        self._nope = columns_of(problem.k)

    def fill(
        self, source: KVSource, tile: WorkTile, first_column: Value, found: Sequence[Value]
    ) -> None:
        """One slot of each, with a barrier each."""
        assert isinstance(source, LatentKV)
        slot = self._own.acquire()
        source.load_nope(self._nope_in(slot), tile, first_column)
        b.commit(slot, "copy_engine")
        slot = self._shared.acquire()
        source.load_rope(slot, tile, first_column, found)
        b.commit(slot, "copy_engine")

    def wait(self) -> list[Value]:
        """One slot of each."""
        return [self._own.wait(), self._shared.wait()]

    def multiply(self, scores: Value, queries: Value, slots: Sequence[Value]) -> None:
        """Two products."""
        own, shared = slots
        nope_queries, rope_queries = side_by_side(queries, self._problem.q)
        b.mma(scores, nope_queries, self._nope_in(own), accumulate=False, b_layout="nk")
        b.mma(scores, rope_queries, shared, accumulate=True, b_layout="nk")

    def release(self, slots: Sequence[Value]) -> None:
        """One slot of each."""
        for slot in slots:
            b.release(slot, "tensor_core")

    def _nope_in(self, slot: Value) -> Value:
        return b.view(slot, [self._problem.config.tile_n, self._nope], self._problem.element)


class OwnKeys(PartedKeys):
    """As `PartedKeys`, of which others fill the slots of rope."""

    is_copied = False

    def fill(
        self, source: KVSource, tile: WorkTile, first_column: Value, found: Sequence[Value]
    ) -> None:
        """The slot of the columns of a head."""
        slot = self._own.acquire()
        source.load(KEYS, self._nope_in(slot), tile, first_column, found)
        b.commit(slot, "copy_engine")


class LatentStorage(Storage):
    """As `Storage`, with a ring of rope."""

    def __init__(
        self,
        problem: Problem,
        rope_stages: int,
        keys: type[PartedKeys] = PartedKeys,
        factors: RowFactors | None = None,
    ):
        """With so many slots for rope; `keys` says who fills them, and `factors` are as of `Storage`."""
        self._rope_stages, self._kind = rope_stages, keys
        super().__init__(problem, factors)

    def _keys_and_values(self, problem: Problem) -> tuple[KeySlots, b.Ring]:
        config, nope = problem.config, columns_of(problem.k)
        shape = [config.tile_n, max(nope, problem.v_columns)]
        kv = b.Ring("kv", b.tile(shape, problem.element, "shared"), stages=config.kv_stages)
        columns, element = columns_of(problem.q[-1]), element_of(problem.q[-1])
        line = (
            line_of_rows(columns, ws.element_bits(element)) if self._kind.is_copied else LINE_BYTES
        )
        rope = b.tile([config.tile_n, columns], element, "shared", line)
        self.rope = b.Ring("rope", rope, stages=self._rope_stages)
        return self._kind(problem, kv, self.rope), kv


class TwoRings(Storage):
    """As `Storage`, with a ring of keys and one of values."""

    def __init__(self, problem: Problem, stages: int, factors: RowFactors | None = None):
        """With so many slots for values; `factors` are as of `Storage`."""
        self._stages = stages
        super().__init__(problem, factors)

    def _keys_and_values(self, problem: Problem) -> tuple[KeySlots, b.Ring]:
        config, element = problem.config, problem.element
        keys = b.tile([config.tile_n, problem.columns], element, "shared")
        values = b.tile([config.tile_n, problem.v_columns], element, "shared")
        k = b.Ring("k", keys, stages=config.kv_stages)
        return WholeKeys(problem, k), b.Ring("v", values, stages=self._stages)


@dataclass(frozen=True)
class RingSlots:
    """How many slots the rings of keys and values have.

    Attributes:
      kv: of nope and values, of whole keys and values, or of whole keys alone.
      rope: of rope; 0 where it lies behind nope.
      values: of values; 0 where they lie in the slots of keys.
    """

    kv: int
    rope: int
    values: int = 0

    @staticmethod
    def of(
        target: Target,
        sizes: tuple[int, int, int],
        *,
        whole: int,
        tile_n: int,
        staged_bytes: int,
        bits: int = 16,
        is_apart: bool = False,
    ) -> "RingSlots":
        """Two rings where these have more slots than one; else rope apart where that gives the three slots
        that overlap needs, and whole keys do not. Rope apart as well where it takes less of shared memory
        so, in lines of its own length, and there are more slots.

        Args:
          sizes: columns of nope, rope and values, of so many bits each.
          whole: slots of whole keys that there is room for.
          staged_bytes: what is staged of Q and O.
          is_apart: whether rope is apart in any case; 0 slots of keys where there is no room.
        """
        nope, rope, values = sizes
        own, key, value = (
            shared_tile_bytes(tile_n, columns, bits)
            for columns in (max(nope, values), nope + rope, values)
        )
        line = LINE_BYTES if is_apart else line_of_rows(rope, bits)
        shared = shared_tile_bytes(tile_n, rope, bits, line)
        left = target.smem_bytes - SMEM_FOR_BARRIERS - staged_bytes
        kv = max((n for n in range(2, 16) if n * own + -(-n // 2) * shared <= left), default=0)
        if is_apart or whole < ENOUGH_STAGES <= kv:
            return RingSlots(kv, -(-kv // 2))
        pairs = left // (key + value)
        is_shorter = shared_tile_bytes(tile_n, nope, bits) + shared < key
        if is_shorter and kv > max(whole, 2 * pairs):
            return RingSlots(kv, -(-kv // 2))
        return RingSlots(pairs, 0, pairs) if 2 * pairs > whole else RingSlots(whole, 0)
