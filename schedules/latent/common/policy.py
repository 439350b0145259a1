"""Rules that policies of absorbed latent attention share: tiles of heads, and pairs of CTAs."""

from typing import ClassVar, NamedTuple

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import HALF_ROWS, LINE_BYTES, Target, shared_tile_bytes
from attn_mlir.element_types import type_bits
from attn_mlir.schedules.policy.base import Call, Policy
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Knob, Knobs, half_tile_knobs
from attn_mlir.schedules.policy.refusal import Mismatch

PAIR_FEATURES = frozenset({Feature.CLUSTERS, Feature.REGISTER_BUDGETS})
HALF_TILE_HEADS = 8  # heads of a tile of 64 rows come in multiples of them
PAIR_HEADS = 2 * HALF_ROWS  # heads of a pair of CTAs
PAIR_SCALE_COLUMNS = 32  # of rows of 8 bits, at least: scales of fewer do not fit the registers
PAIR_SCALED_COLUMNS = 512, 128
"""Likewise of rows of sequences with scales of f32: at most so many columns, with so many to a
scale.
"""

MAX_CHUNK = 192  # columns of keys in a slot where they are chunks
CHUNK_STEP = LINE_BYTES // 2  # columns of 16 bits in a line of shared memory
KEY_HALVES = 2  # parts of a block's values, by keys
KEY_BYTES = 1 << 17  # of the slots of keys
KEY_ROWS = 64  # of a slot: half of a block


class HalfTileRows(NamedTuple):
    """The rows of a tile of 64 in the kernels of absorbed latent attention.

    Attributes:
      heads: of a query, side by side.
      positions: of queries.
    """

    heads: int
    positions: int

    @classmethod
    def of(cls, heads: int, *, is_listed: bool) -> "HalfTileRows":
        """As many heads as divide all of them, a multiple of 8, and of queries as many as fit.

        Args:
          heads: of a query, a multiple of 8: the copy engine fills whole patterns of a tile.
          is_listed: whether each query has keys of its own.
        """
        counts = range(HALF_TILE_HEADS, HALF_ROWS + 1, HALF_TILE_HEADS)
        per_tile = max(count for count in counts if heads % count == 0)
        return cls(per_tile, 1 if is_listed else HALF_ROWS // per_tile)


class PairSlots(NamedTuple):
    """The slots of rings that fit a CTA of a pair.

    Attributes:
      chunk: columns of keys in a slot, and of Q in shared memory.
      keys, values, scores: slots of each; of values half of a block's entries.
    """

    chunk: int
    keys: int
    values: int
    scores: int

    @classmethod
    def of(cls, head_dim: int, element_bits: int) -> "PairSlots":
        """Chunks are whole lines, as many as divide the columns of a row: 192 or 128 columns.

        With 8-bit elements a slot has a whole row, which is half as many bytes.
        """
        is_fp8 = element_bits == 8
        lines = (c for c in range(MAX_CHUNK, 0, -CHUNK_STEP) if head_dim % c == 0)
        chunk = head_dim if is_fp8 else next(lines)
        keys = KEY_BYTES // shared_tile_bytes(KEY_ROWS, chunk, element_bits)
        return cls(chunk, keys, *((3, 2) if is_fp8 else (KEY_HALVES, 1)))


class PairPolicy(Policy):
    """A mix-in of policies: 128 heads in a pair of CTAs, with O in tensor memory."""

    suffix: ClassVar[str] = "pair"
    knobs: ClassVar[tuple[Knob, ...]] = half_tile_knobs(tile_n=128)

    def takes(self, facts: Facts, call: Call) -> bool:
        """Problems that pairs have a kernel for."""
        return pair_mismatch(facts) is None

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy, and of pairs."""
        return pair_mismatch(facts) or super().mismatch(facts, target)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """As many slots of keys as fit."""
        slots = PairSlots.of(facts.head_dim, type_bits(facts.q_type))
        return {**super().choose(facts, call, {}), "kv_stages": slots.keys, **asked}


def pair_mismatch(facts: Facts) -> Mismatch | None:
    """The reason why pairs of CTAs have no kernel for a problem; None if they have one."""
    if facts.heads % PAIR_HEADS:
        return Mismatch("heads", f"a multiple of {PAIR_HEADS}", facts.heads)
    if facts.rows is None:
        return None
    of_sequences = facts.operation == "mla_decode" and not facts.indexed_rows
    scaled = facts.rows.scaled_columns if of_sequences else 0
    most, least = PAIR_SCALED_COLUMNS if scaled else (0, PAIR_SCALE_COLUMNS)
    if facts.rows.group < least:
        return Mismatch("columns that share a scale", f"at least {least}", facts.rows.group)
    if scaled > most:
        return Mismatch("columns with scales", f"at most {most}", scaled)
    return None
