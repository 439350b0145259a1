"""The table of masks: what the file of a mask says of it.

Text forms, names in `attn_mlir`, help of command lines, attributes of the dialect and its reference
page follow from this table. A mask of another project is registered by its file as well, before the
first kernel is made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from attn_mlir.extensions import note

from .base import Mask

_MakeT = TypeVar("_MakeT", bound=Callable[..., Mask])


@dataclass(frozen=True)
class Kind:
    """One class of masks.

    Attributes:
      mask: the class.
      example: a mask of it, for pages and tests.
      make: the public function that makes masks, of integers; None for combinations, which have
        operators.
      usage: the mask on a command line, such as `chunked:SIZE`.
      note: explains the example on a command line, where it needs that.
    """

    mask: type[Mask]
    example: Mask
    make: Callable[..., Mask] | None = None
    usage: str = ""
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The mask's names in text: its keyword and that of its function."""
        own = (self.mask.keyword,)
        return own if self.make is None else tuple(dict.fromkeys((*own, self.make.__name__)))

    @property
    def counts(self) -> range:
        """The numbers of parameters that its function takes."""
        code, defaults = self.make.__code__, self.make.__defaults__ or ()  # pyright: ignore
        return range(code.co_argcount - len(defaults), code.co_argcount + 1)


MASKS: list[type[Mask]] = []
"""The classes of masks, as they were registered."""

KINDS: dict[str, Kind] = {}
"""The entries of the table, by keyword."""

PYTHON_NAMES: dict[str, str] = {}
"""Keywords of masks by the names of the functions of `attn_mlir` that make them, where these
differ.
"""


def register(kind: Kind) -> None:
    """Adds a class of masks to the table."""
    keyword = kind.mask.keyword
    assert keyword not in KINDS, f"two masks are named {keyword}"
    note(kind.mask.__module__)
    KINDS[keyword] = kind
    MASKS.append(kind.mask)
    if kind.make is not None and kind.make.__name__ != keyword:
        PYTHON_NAMES[kind.make.__name__] = keyword


def makes(
    mask: type[Mask], *, example: Mask, usage: str, note: str = ""
) -> Callable[[_MakeT], _MakeT]:
    """Decorator of the public function that makes masks of a class; registers the class."""

    def add(make: _MakeT) -> _MakeT:
        register(Kind(mask, example, make, usage, note))
        return make

    return add


def public() -> Iterator[Kind]:
    """The entries that have a function in `attn_mlir`."""
    return (kind for kind in KINDS.values() if kind.make is not None)
