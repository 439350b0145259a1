"""The entries of an attention kernel's configuration that all schedules share."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from attn_mlir.schedules.core.entries import Entries

from .modifier import Modifier

SCORES_AT_A_TIME = 16  # scores that a thread modifies at a time where registers are few
FP8_BITS = 8


@dataclass(frozen=True)
class Config(Entries):
    """Tiles of an attention kernel; the schedules' own configurations inherit from it.

    Attributes:
      tile_m: query rows per tile: M of one product.
      q_tiles: query tiles per CTA, one softmax warpgroup each.
      tile_n: key columns per tile.
      kv_stages: slots of the ring that K and V tiles share.
      exp2_period: of every this many exponentials, 4 run as polynomials on the FMA units; 0 for
        none.
      exp2_start: the first of a row's four 32-column fragments with such polynomials; the last one
        has none.
      rescale_threshold: the running maximum is kept until a new one exceeds it by this much, in
        units of log2. Every probability stays below 2^8: where a score equals the running maximum,
        a 16-bit one is 1 and an 8-bit one 2^(8 - threshold), so that small ones are not lost.
      packed_heads: query heads of one group whose rows share a query tile.
      tile_order: the order of work tiles, as in `ws.tiles`.
    """

    shares_rows: ClassVar[bool] = False  # whether values may be the front of the rows of keys
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

    @property
    def alternating_heads(self) -> int:
        """Heads of rows whose work tiles start alternately; 1 if one head follows the other."""
        return 1

    @property
    def owns_keys(self) -> bool:
        """Whether a thread holds one column of S, all query rows of a key; else it holds a row."""
        return False

    def scores_at_a_time(self, modifier: Modifier, element_bits: int) -> int:
        """Scores that a thread modifies at a time; 0 for any number.

        Limited, for lack of registers, if the modifier reads two tensors by query and key.

        Args:
          element_bits: bits of an element of the operands.
        """
        del element_bits
        return SCORES_AT_A_TIME if modifier.readings > 1 else 0

    def product(self, stored: Any) -> Any:
        """Element type of the operands of both products, given that of keys and values."""
        return stored


class Configured(Protocol):
    """Has the configuration of a kernel."""

    @property
    def config(self) -> Config:
        """The configuration."""
        ...
