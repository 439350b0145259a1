"""How a cache of keys and values lies: what is static about the operand that takes the place of k and v."""

from dataclasses import dataclass

TABLE, TABLES, CSR = "table", "tables", "csr"  # how pages of a sequence are listed
PAGE_LISTS = {
    TABLE: {"page_table": 2},
    TABLES: {"page_table": 2, "v_page_table": 2},
    CSR: {"indptr": 1, "indices": 1, "last_page_len": 1},
}  # names and ranks of the index arrays
SCALE_TABLE = "scale_table"


@dataclass(frozen=True)
class Cache:
    """How the sequences of keys and values are found in a cache.

    Attributes:
      page_size: positions of a page, of which k and v are pools [pages, page_size, kv_heads,
        columns]; 0 where each sequence is one row of [batch, sequence, kv_heads, columns].
      pages: how a sequence's pages are listed: `table`, a row of `page_table` [batch, columns];
        `tables`, for values a row of `v_page_table` instead; or `csr`, the entries of `indices` from indptr[b] to before indptr[b + 1], where the last page
        holds last_page_len[b] positions. Empty without pages.
      selected: sequence b is row batch_idx[b] of k and v.
      padded: it begins at position leftpad[b] of its row.
      scale_dtype: of the factors of elements of 8 bits, where each position has its own; they lie as
        k and v do, with a factor for each group in the place of the columns. Empty where factors do
        not depend on the position.
      k_groups, v_groups: groups of columns of k and of v that have a factor each.
      own_scale_table: the pages of factors are listed by `scale_table` [batch, columns].
    """

    page_size: int = 0
    pages: str = ""
    selected: bool = False
    padded: bool = False
    scale_dtype: str = ""
    k_groups: int = 0
    v_groups: int = 0
    own_scale_table: bool = False

    @property
    def arrays(self) -> dict[str, int]:
        """Names and ranks of the index arrays, in the order of the call."""
        found = dict(PAGE_LISTS.get(self.pages, {}))
        found |= {"batch_idx": 1} if self.selected else {}
        found |= {"leftpad": 1} if self.padded else {}
        return found | ({SCALE_TABLE: 2} if self.own_scale_table else {})

    @property
    def axes(self) -> tuple[int | str, int | str]:
        """The first two extents of k and v: a number, or the name of what each call tells."""
        if self.page_size:
            return "pages", self.page_size
        return ("rows" if self.selected else "batch"), "sk"

    @property
    def short_name(self) -> str:
        """For names of kernels."""
        words = {f"p{self.page_size}": self.page_size, self.pages: self.pages != TABLE}
        words |= {"bi": self.selected, "lp": self.padded}
        factors = f"s{self.scale_dtype}g{self.k_groups}v{self.v_groups}"
        words |= {factors: self.scale_dtype, "st": self.own_scale_table}
        return "".join(word for word, wanted in words.items() if wanted)
