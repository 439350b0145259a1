"""A device's printf: C's conversions of arguments packed in a buffer."""

import re
import struct
from collections.abc import Callable

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|ll|[hlLzjt])?(?P<kind>[a-zA-Z%])"
)
_LONG = ("l", "ll", "j", "z", "t")
MAX_WIDTH = 1 << 12  # of one field; what a kernel asks for beyond is refused


class FormatError(Exception):
    """A conversion that printf has not, or a field that is too wide."""


def formatted(
    form: str, load: Callable[[int, int], bytes], text_at: Callable[[int], str]
) -> tuple[str, int]:
    """The text, and how many arguments it took.

    Args:
      load: bytes of the arguments, by offset and count. An argument is aligned to its size, of 4 or
        8 bytes.
      text_at: the text at an address, for `%s`.

    Raises:
      FormatError: a conversion is unknown.
    """
    place, count = 0, 0

    def take(size: int) -> bytes:
        nonlocal place, count
        at = -(-place // size) * size
        place, count = at + size, count + 1
        return load(at, size)

    def number(text: str | None) -> int | None:
        value = int.from_bytes(take(4), "little", signed=True) if text == "*" else text
        value = None if value is None else int(value or 0)
        if value is not None and abs(value) > MAX_WIDTH:
            raise FormatError(f"a field of {value} characters, {MAX_WIDTH} are allowed")
        return value

    def one(match: re.Match[str]) -> str:
        kind = match["kind"]
        if kind == "%":
            return "%"
        flags, width, precision = match["flags"], number(match["width"]), number(match["precision"])
        spelled = "%" + flags + ("" if width is None else str(width))
        if precision is not None and precision >= 0:
            spelled += f".{precision}"
        if kind in "di":
            size = 8 if match["length"] in _LONG else 4
            return (spelled + "d") % int.from_bytes(take(size), "little", signed=True)
        if kind in "uoxX":
            size = 8 if match["length"] in _LONG else 4
            value = int.from_bytes(take(size), "little")
            alternate = "0" if kind == "o" and "#" in flags else ""
            shown = (spelled.replace("#", "") if kind == "o" else spelled) + kind.replace("u", "d")
            return alternate + shown % value
        if kind in "fFeEgG":
            return (spelled + kind) % struct.unpack("<d", take(8))
        if kind in "aA":
            text = struct.unpack("<d", take(8))[0].hex()
            return ("%" + flags.replace("#", "") + str(width or "") + "s") % text
        if kind == "c":
            return (spelled + "c") % chr(take(4)[0])
        if kind == "s":
            return (spelled + "s") % text_at(int.from_bytes(take(8), "little"))
        if kind == "p":
            return ("%" + flags + str(width or "") + "s") % hex(int.from_bytes(take(8), "little"))
        raise FormatError(f"the conversion '{match[0]}' is unknown")

    return _CONVERSION.sub(one, form), count
