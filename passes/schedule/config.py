"""The numbers that a schedule is built with; chosen by `attn-configure`, kept on the operation."""

from dataclasses import dataclass, fields
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import VerifyError

ATTRIBUTE = "attn.config"  # discardable dictionary of `attn.mha`


@dataclass(frozen=True)
class Exp2Pattern:
    """Which columns of a tile compute 2^x on the multiply-add units.

    The last `count` of every `period` columns between `begin` and `end`; period 0 is none.
    """

    period: int
    count: int
    begin: int
    end: int


@dataclass(frozen=True)
class MhaConfig:
    """Configuration of the attention kernel with two query tiles.

    Attributes:
      tile_m: query rows per query tile, one per thread of a softmax group.
      query_tiles: query tiles per work tile.
      tile_n: keys per tile.
      kv_stages: slots of the ring that K and V share.
      softmax_registers, correction_registers, other_registers: per thread, for the warpgroups.
      exp2_period, exp2_count, exp2_begin, exp2_end: see `Exp2Pattern`.
    """

    tile_m: int
    query_tiles: int
    tile_n: int
    kv_stages: int
    softmax_registers: int
    correction_registers: int
    other_registers: int
    exp2_period: int
    exp2_count: int
    exp2_begin: int
    exp2_end: int

    @property
    def exp2(self) -> Exp2Pattern:
        """The pattern of the emulated exponentials."""
        return Exp2Pattern(self.exp2_period, self.exp2_count, self.exp2_begin, self.exp2_end)

    @classmethod
    def of(cls, op: Any) -> "MhaConfig":
        """Reads the configuration from an operation.

        Raises:
          VerifyError: `attn.config` or one of its entries is missing.
        """
        name = op.operation.name
        if ATTRIBUTE not in op.operation.attributes:
            raise VerifyError(f"'{name}' op has no {ATTRIBUTE}: run attn-configure first", op=name)
        entries = ir.DictAttr(op.operation.attributes[ATTRIBUTE])
        missing = [field.name for field in fields(cls) if field.name not in entries]
        if missing:
            raise VerifyError(f"'{name}' op expects {', '.join(missing)} in {ATTRIBUTE}", op=name)
        numbers = {f.name: ir.IntegerAttr(entries[f.name]).value for f in fields(cls)}
        return cls(**numbers)

    def to_attribute(self) -> Any:
        """The dictionary to store under `ATTRIBUTE`."""
        i64 = ir.IntegerType.get_signless(64)
        return ir.DictAttr.get(
            {f.name: ir.IntegerAttr.get(i64, getattr(self, f.name)) for f in fields(self)}
        )
