"""The options of requests whose latent cache may be stored in 8 bits."""

from __future__ import annotations

from functools import partial
from typing import Any

from attn_mlir.compiling.options import MAX_PAGE
from attn_mlir.compiling.request import Request, option, request
from attn_mlir.dialect.attn.latent.formats import FORMATS, GROUPS, PLAIN, LatentFormat
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.schedules.policy.facts import Fp8Rows

KV_FORMATS = (PLAIN, *FORMATS)


def one_of(name: str, value: Any, *, allowed: tuple[Any, ...]) -> Any:
    """The value itself.

    Raises:
      SpecError: none of these.
    """
    if isinstance(value, bool) or value not in allowed:
        names = " or ".join(map(str, allowed))
        raise SpecError(f"{name} must be {names}, got {shown(value, 40)}")
    return value


@request
class PackedRequest(Request):
    """A request with rows of a latent cache, which its operation has as one tensor.

    Args:
      kv_format: how rows of the cache are stored, see `attn_mlir.dialect.attn.latent.formats`.
      kv_group: columns that share a scale, where these have a tensor of their own; None without.
      kv_page: rows of a page of the cache, where the format needs it; else None.
    """

    kv_format: str = option(
        converter=partial(one_of, "kv_format", allowed=KV_FORMATS), default=PLAIN
    )
    kv_group: int | None = option(
        converter=partial(one_of, "kv_group", allowed=GROUPS), default=None
    )
    kv_page: int | None = option(
        converter=partial(integer, "kv_page", least=1, most=MAX_PAGE), default=None
    )

    def check_format(self, columns: int, *, has_page_table: bool = False) -> None:
        """Refuses rows without a query's columns, and scales or pages that the format does not use.

        Args:
          columns: of a query.
          has_page_table: whether the request says elsewhere how rows lie in pages.

        Raises:
          SpecError: names the option.
        """
        stored = FORMATS.get(self.kv_format)
        if stored is not None and stored.columns != columns:
            raise SpecError(
                f"head_dim must be {stored.columns} with kv_format {self.kv_format!r}, got "
                f"{columns}"
            )
        may_group = stored is not None and stored.scales.place == "outside"
        if self.kv_group is not None and not may_group:
            raise SpecError(
                f"kv_group must be None with kv_format {self.kv_format!r}, got {self.kv_group}"
            )
        needs_page = stored is not None and stored.is_in_pages and not has_page_table
        if (self.kv_page is not None) != needs_page:
            raise SpecError(
                f"kv_page must be {'None' if self.kv_page else 'the rows of a page'} with "
                f"kv_format {self.kv_format!r}, got {self.kv_page}"
            )

    @property
    def is_narrow(self) -> bool:
        """Whether products take rows of 8 bits as they are."""
        return False

    @property
    def form(self) -> LatentFormat | None:
        """The format of rows that the kernel widens, with the group of their scales; else None."""
        stored = None if self.is_narrow else FORMATS.get(self.kv_format)
        if stored is None or self.kv_group is None:
            return stored
        return stored.with_scales(self.kv_group)

    @property
    def narrow_rows(self) -> Fp8Rows | None:
        """How rows are stored in 8 bits, where they are widened."""
        if self.form is None:
            return None
        return Fp8Rows(self.form.scales.group or self.form.narrow, self.form.scaled_columns)

    @property
    def format_words(self) -> list[str]:
        """The words of a kernel's name."""
        if self.form is None:
            return []
        values = {f"by{self.kv_group}": self.kv_group, f"page{self.kv_page}": self.kv_page}
        return [self.kv_format, *(word for word, is_set in values.items() if is_set)]
