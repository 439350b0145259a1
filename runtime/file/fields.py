"""A reader for fields of `bundle.json`, and the names of element types."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import cast

from attn_mlir.element_types import DECLARED
from attn_mlir.errors import SpecError

DTYPE_BYTES = {row.name: row.packed_bytes(1) for row in DECLARED}  # element types of tensors
MAX_DEPTH = 64  # most nesting of objects and lists, far above that of any report
F32_MAX = 3.4028234663852886e38

Dim3 = tuple[int, int, int]

# Allowed names of arguments, sizes, kernels and chips, which messages and tables print.
NAME = re.compile(r"[A-Za-z_$%][\w$%.\-]{0,511}", re.ASCII)


class Reader:
    """Reads one JSON object, with errors that name the field."""

    def __init__(self, value: object, where: str):
        if not isinstance(value, dict):
            raise SpecError(f"bundle.json: {where or 'the file'} is not an object: {value!r:.80}")
        self.fields = cast("dict[str, object]", value)
        self.where = where

    def name(self, field: str) -> str:
        return f"{self.where}.{field}" if self.where else field

    def wrong(self, field: str, allowed: str) -> SpecError:
        got = f"got {self.fields[field]!r:.80}" if field in self.fields else "it is missing"
        return SpecError(f"bundle.json: {self.name(field)} must be {allowed}, {got}")

    def text(self, field: str, choices: Sequence[str] | None = None) -> str:
        value = self.fields.get(field)
        if not isinstance(value, str) or (choices is not None and value not in choices):
            raise self.wrong(field, f"one of {list(choices)}" if choices else "a string")
        return value

    def identifier(self, field: str) -> str:
        """A name that can be printed as it is."""
        value = self.text(field)
        if not NAME.fullmatch(value):
            raise self.wrong(field, "a name of letters, digits, _, $, %, . and -")
        return value

    def integer(self, field: str, low: int, high: int = 2**31 - 1) -> int:
        value = self.fields.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(field, f"an integer from {low} to {high}")
        return value

    def number(self, field: str) -> float | None:
        value = self.fields.get(field)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(field, "a number or null")
        if not abs(value) <= F32_MAX:  # also of a NaN
            raise self.wrong(field, "finite and within f32")
        return float(value)

    def items(self, field: str) -> list[object]:
        value = self.fields.get(field)
        if not isinstance(value, list):
            raise self.wrong(field, "a list")
        return cast("list[object]", value)

    def integers(self, field: str, low: int, high: int) -> tuple[int, ...]:
        values = self.items(field)
        numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
        if len(numbers) != len(values) or not all(low <= v <= high for v in numbers):
            raise self.wrong(field, f"a list of integers from {low} to {high}")
        return tuple(numbers)

    def flag(self, field: str) -> bool:
        """An optional boolean, False by default."""
        value = self.fields.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return bool(value)

    def dim3(self, field: str, most: int) -> Dim3:
        values = self.integers(field, 1, most)
        if len(values) != 3 or math.prod(values) > most:
            raise self.wrong(field, f"three sizes of at most {most} together")
        return (values[0], values[1], values[2])

    def objects(self, field: str) -> list[Reader]:
        return [
            Reader(item, f"{self.name(field)}[{index}]")
            for index, item in enumerate(self.items(field))
        ]

    def mapping(self, field: str) -> dict[str, object]:
        return Reader(self.fields.get(field, {}), self.name(field)).fields


def check_depth(value: object) -> None:
    """Refuses values that are nested too deeply for recursive functions."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, object]", item).values()
            elif isinstance(item, list):
                inner += cast("list[object]", item)
        if not inner:
            return
        level = inner
    raise SpecError(f"bundle.json: lists and objects are nested more than {MAX_DEPTH} deep")
