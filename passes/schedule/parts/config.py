"""What the parts of an attention kernel read of its configuration; schedules add entries of their own."""

from dataclasses import dataclass
from typing import Any

from attn_mlir.passes.schedule.entries import Entries

NARROW_BITS = 8


@dataclass(frozen=True)
class Config(Entries):
    """Tiles of an attention kernel.

    Attributes:
      tile_m: query rows per tile: M of one product.
      q_tiles: query tiles per CTA, one softmax warpgroup each.
      tile_n: key columns per tile.
      kv_stages: slots of the ring that K and V tiles share.
      exp2_period: of this many elements, 4 exponentials run as polynomials on the FMA units;
        0 for none.
      exp2_start: first of the four 32-column fragments of a row that has any; the last has none.
      rescale_threshold: the running maximum is kept until a new one exceeds it by this much, in
        units of log2. Every probability stays below 2^8: those of 16 bits begin at 1, those of 8
        bits at 2^(8 - threshold), so that small ones are not lost.
      packed_heads: query heads of one group whose rows share a query tile.
      tile_order: of `ws.tiles`.
    """

    tile_m: int = 128
    q_tiles: int = 2
    tile_n: int = 128
    kv_stages: int = 5
    exp2_period: int = 16
    exp2_start: int = 1
    rescale_threshold: int = 8
    packed_heads: int = 1
    tile_order: str = "single"

    @property
    def rows_per_cta(self) -> int:
        """Query rows that one CTA computes."""
        return self.tile_m * self.q_tiles

    @property
    def heads_per_cta(self) -> int:
        """Query heads that one CTA computes."""
        return self.packed_heads

    def product(self, stored: Any) -> Any:
        """Element type of the operands of both products, given that of keys and values."""
        return stored
