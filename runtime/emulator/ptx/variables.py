"""Declarations of variables."""

from .ast import REGISTER_BITS, Space, Variable
from .cursor import Cursor

SPACES: dict[str, Space] = {
    ".global": "global",
    ".const": "const",
    ".shared": "shared",
    ".local": "local",
    ".param": "param",
}


def variables(cursor: Cursor, space: Space, is_extern: bool = False) -> list[Variable]:
    """`.align n .type name[dims] = {...}, name ...` after the state space."""
    alignment, width = 0, 1
    while True:
        word = cursor.next()
        if word.text == ".align":
            alignment = _alignment(cursor)
        elif word.text in (".ptr", ".attribute"):
            raise cursor.error(f"'{word.text}' before the type", word)
        elif word.text in (".v2", ".v4"):
            width = int(word.text[2:])
        elif word.text[1:] in REGISTER_BITS:
            element = word.text[1:]
            break
        else:
            raise cursor.error(f"unknown type '{word.text}'", word)
    element_bytes = max(1, REGISTER_BITS[element] // 8)
    result: list[Variable] = []
    while True:
        while cursor.peek() in (".ptr", ".align", *SPACES):  # .param .u64 .ptr .align 16 name
            if cursor.next().text == ".align":
                _alignment(cursor)
        token = cursor.next()
        count, is_array = 1, width > 1
        while cursor.accept("["):
            is_array = True
            count *= 0 if cursor.peek() == "]" else cursor.count("an array's length", least=0)
            cursor.expect("]")
        initial: tuple[int | float | str, ...] = ()
        if cursor.accept("="):
            initial = tuple(_initialiser(cursor))
            count = count or len(initial)
        result.append(
            Variable(
                token.text,
                space,
                element,
                element_bytes,
                count * width,
                alignment or element_bytes * width,
                is_array,
                is_extern,
                initial,
                line=token.line,
            )
        )
        if space == "param" or not cursor.accept(","):
            return result


def _alignment(cursor: Cursor) -> int:
    token = cursor.tokens[cursor.at]
    value = cursor.integer()
    if value < 1 or value & (value - 1):
        raise cursor.error(f"an alignment is a power of two, got {value}", token)
    return value


def _initialiser(cursor: Cursor) -> list[int | float | str]:
    if cursor.accept("{"):
        values: list[int | float | str] = []
        with cursor.nested():
            while not cursor.accept("}"):
                values += _initialiser(cursor)
                cursor.accept(",")
        return values
    number = cursor.number()
    if number is not None and cursor.peek() != "(":
        return [number.value]
    return [_address(cursor, is_masked=number is not None)]


def _address(cursor: Cursor, *, is_masked: bool) -> str:
    """The name in an initial value: `f`, `x+8`, `generic(x)` or, masked, `0xff(x)`."""
    token = cursor.next()
    if not is_masked and cursor.accept("("):
        is_masked, token = True, cursor.next()
    elif is_masked:
        token = cursor.next()
    name = token.text
    if token.kind != "word":
        raise cursor.error(f"expected an initial value, got '{name}'", token)
    while cursor.peek() in ("+", "-"):
        cursor.accept("+")
        cursor.integer()
    if is_masked:
        cursor.expect(")")
    return name
