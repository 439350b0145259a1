"""How a cache of keys and values is stored: the static properties of k and v. Without MLIR."""

import dataclasses
from dataclasses import dataclass

TABLE, TABLES, CSR = "table", "tables", "csr"  # forms of page lists
PAGE_LISTS = {
    TABLE: {"page_table": 2},
    TABLES: {"page_table": 2, "v_page_table": 2},
    CSR: {"indptr": 1, "indices": 1, "last_page_len": 1},
}  # names and ranks of the index arrays of each form
SCALE_TABLE = "scale_table"


@dataclass(frozen=True)
class Cache:
    """How the sequences of keys and values are stored in a cache.

    Attributes:
      page_size: positions of a page, if k and v are pools [pages, page_size, kv_heads, columns]; 0
        if each sequence is one row of [batch, sequence, kv_heads, columns].
      pages: how the pages of a sequence are listed. `table`: a row of `page_table` [batch,
        columns]; `tables`: the same for keys, and a row of `v_page_table` for values; `csr`:
        entries indptr[b] to indptr[b + 1] - 1 of `indices`, with last_page_len[b] positions in the
        last page. Empty without pages.
      selected: whether sequence b is row batch_idx[b] of k and v.
      padded: whether sequence b begins at position leftpad[b] of its row.
      scale_dtype: element type of the scales of 8-bit elements if each position has its own; these
        are stored as k and v are, with a scale per group in place of the columns. Empty if scales
        do not depend on the position.
      k_groups, v_groups: number of groups of columns, in k and in v, with a scale each.
      own_scale_table: whether the pages of scales are listed separately, in `scale_table`
        [batch, columns].
      scale_rows: neighbouring positions of a page that share their scales.
    """

    page_size: int = 0
    pages: str = ""
    selected: bool = False
    padded: bool = False
    scale_dtype: str = ""
    k_groups: int = 0
    v_groups: int = 0
    own_scale_table: bool = False
    scale_rows: int = 1

    def fields(self) -> dict[str, object]:
        """The canonical form as JSON values, without `scale_rows` where it is 1."""
        found = dataclasses.asdict(self)
        return found if self.scale_rows > 1 else {k: found[k] for k in found if k != "scale_rows"}

    @property
    def scale_page(self) -> int:
        """Blocks of positions of a page, each with scales of its own; 0 without pages."""
        return self.page_size // self.scale_rows

    @property
    def arrays(self) -> dict[str, int]:
        """Names and ranks of the index arrays, in the order of the call."""
        found = dict(PAGE_LISTS.get(self.pages, {}))
        found |= {"batch_idx": 1} if self.selected else {}
        found |= {"leftpad": 1} if self.padded else {}
        return found | ({SCALE_TABLE: 2} if self.own_scale_table else {})

    @property
    def axes(self) -> tuple[int | str, int | str]:
        """The first two extents of k and v: a number,
        or the name of a size that each call gives.
        """
        if self.page_size:
            return "pages", self.page_size
        return ("rows" if self.selected else "batch"), "sk"

    @property
    def short_name(self) -> str:
        """A short form for kernel names."""
        words = {f"p{self.page_size}": self.page_size, self.pages: self.pages != TABLE}
        words |= {"bi": self.selected, "lp": self.padded}
        scales = f"s{self.scale_dtype}g{self.k_groups}v{self.v_groups}"
        words |= {scales: self.scale_dtype, "st": self.own_scale_table}
        words |= {f"r{self.scale_rows}": self.scale_rows > 1}
        return "".join(word for word, wanted in words.items() if wanted)
