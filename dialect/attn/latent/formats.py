"""Forms in which a cache stores its rows of latent attention, as data. Without MLIR.

```text
            8 bits, e4m3         16 bits, bf16   scales
v32         512                  64           4 f32 between them, one for 128 columns      656 bytes
model1      448                  64              8 bytes a row behind the rows of its page,  576 + 8
                                                 7 of them exponents e, 2^(e - 127), each for 64
e4m3        576, rope as well                    in a tensor of their own                     576
e4m3_rope16 512                  64              in a tensor of their own                     640
```
The first two are FlashMLA's for DeepSeek-V3.2 and for rows of 512 columns, the others Modular's for
prefill and for decoding. Where scales have a tensor of their own the caller says which columns
share one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from attn_mlir.dialect.attn.operands import Operand

PLAIN = "bf16"  # rows without any of this
Place = Literal["row", "page", "outside"]


@dataclass(frozen=True)
class ScaleFormat:
    """The scales of the 8-bit columns of a row.

    Attributes:
      place: `row`, between its columns; `page`, behind the rows of the row's page; `outside`, in a
        tensor of their own.
      dtype: `f32`, or `u8`: e stands for 2^(e - 127), and 255 for NaN; OCP Microscaling Formats,
        E8M0.
      group: columns that share a scale; 0 where the caller says.
      stored: numbers of a row, of which the last may be padding; 0 likewise.
    """

    place: Place
    dtype: str = "f32"
    group: int = 0
    stored: int = 0


@dataclass(frozen=True)
class LatentFormat:
    """How a row lies in a cache.

    Attributes:
      name: `kv_format` of a call.
      narrow: columns of 8 bits, the first ones.
      wide: columns of 16 bits, the others.
      row_bytes: from a row to the next.
      token_bytes: what a row takes, with scales of a page.
      wide_at, scales_at: bytes from the row's begin; the second where the row has them.
      scales: of the narrow columns.
    """

    name: str
    narrow: int
    wide: int
    row_bytes: int
    token_bytes: int
    wide_at: int
    scales: ScaleFormat
    scales_at: int = 0

    @property
    def columns(self) -> int:
        """Columns of a row, as many as a query has."""
        return self.narrow + self.wide

    @property
    def is_in_pages(self) -> bool:
        """Whether the page of a row has to be known to find its scales."""
        return self.scales.place == "page"

    @property
    def scaled_columns(self) -> int:
        """Columns of a row with scales of f32."""
        return self.narrow if self.scales.group and self.scales.dtype == "f32" else 0

    def groups(self, group: int) -> int:
        """How many scales a row has, where `group` columns share one."""
        return -(-self.narrow // group)

    def with_scales(self, group: int) -> "LatentFormat":
        """The same rows, with scales of f32 in a tensor of their own, each for `group` columns."""
        own = replace(self.scales, group=min(group, self.narrow), stored=self.groups(group))
        return replace(self, scales=own)


FORMATS: Mapping[str, LatentFormat] = MappingProxyType(
    {
        x.name: x
        for x in (
            LatentFormat("v32", 512, 64, 656, 656, 528, ScaleFormat("row", "f32", 128, 4), 512),
            LatentFormat("model1", 448, 64, 576, 584, 448, ScaleFormat("page", "u8", 64, 8)),
            LatentFormat("e4m3", 576, 0, 576, 576, 0, ScaleFormat("outside")),
            LatentFormat("e4m3_rope16", 512, 64, 640, 640, 512, ScaleFormat("outside")),
        )
    }
)
GROUPS = (32, 64, 128, 256, 512, 576)  # columns that may share a scale of a tensor


def row_extents(page: int | None) -> tuple[int | str, ...]:
    """The extents of rows before their columns; in pages where the kernel has to know these."""
    return ("s_kv",) if page is None else ("kv_pages", page)


def row_operands(form: LatentFormat, rows: Sequence[int | str]) -> tuple[Operand, ...]:
    """The operands of a kernel that reads rows: the narrow columns, and what there is of the
    others.

    Args:
      form: with the group of its scales, if it has any.
      rows: their extents before the columns.
    """
    found = [Operand("kv", "e4m3", (*rows, form.narrow))]
    if form.scales.stored:
        found.append(Operand("kv_scale", form.scales.dtype, (*rows, form.scales.stored)))
    if form.wide:
        found.append(Operand("kv_rope", "bf16", (*rows, form.wide)))
    return tuple(found)
