"""Compares what the GPU and the emulator left behind.

Everything is compared bit for bit, with two exceptions that PTX itself makes: the payload and sign
of a NaN are not specified, so one NaN is as good as another where a column holds floating-point
numbers; and functions marked `.approx` or `.full` have bounds of their own, below. Columns checked
as "number" are compared where the operand is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.validation.differential.case import Bytes, Column, Program

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Bound:
    """|got - want| <= absolute + relative * |want|; both may hold for other reasons, see `judge`.

    Attributes:
      limit: arguments beyond this magnitude are not bounded.
    """

    relative: float = 0.0
    absolute: float = 0.0
    limit: float = np.inf


# PTX ISA, "Floating-Point Instructions" and "Half Precision Floating-Point Instructions": the
# documented maximal error, to which half a unit in the last place of the emulator's own (correctly
# rounded) result is added.
BOUNDS = {
    "rcp": Bound(relative=1.5 * 2.0**-23),
    "div": Bound(relative=2.5 * 2.0**-23),
    "sqrt": Bound(relative=2.0**-23 + 2.0**-24),
    "rsqrt": Bound(relative=2.0**-22.9 + 2.0**-24),
    "sin": Bound(absolute=2.0**-20.5, relative=2.0**-24, limit=2 * np.pi),
    "cos": Bound(absolute=2.0**-20.5, relative=2.0**-24, limit=2 * np.pi),
    "lg2": Bound(absolute=2.0**-22, relative=2.0**-22),
    "ex2": Bound(relative=2.0**-22 + 2.0**-24),
    "tanh": Bound(relative=2.0**-11 + 2.0**-24),
    "tanh.f16": Bound(absolute=2.0**-10.987, relative=2.0**-11),
    "tanh.bf16": Bound(absolute=2.0**-8, relative=2.0**-8),
    "ex2.f16": Bound(relative=2.0**-9.9 + 2.0**-11, absolute=2.0**-24),
    "ex2.bf16": Bound(relative=2.0**-7 + 2.0**-8),
    "rcp.f64": Bound(relative=2.0**-20),
    "rsqrt.f64": Bound(relative=2.0**-20),
}


@dataclass(frozen=True)
class Difference:
    """Elements of one column that differ.

    Attributes:
      count: how many. first: index, GPU's and emulator's bits of the first few.
    """

    program: str
    column: Column
    count: int
    first: list[tuple[int, int, int]]

    def __str__(self) -> str:
        width = 2 * bits_of(self.column.dtype).itemsize
        cases = "; ".join(
            f"[{i}] gpu 0x{g:0{width}x} emulator 0x{e:0{width}x}" for i, g, e in self.first
        )
        return f"{self.program}: {self.column.label}: {self.count} of {self.column.count}: {cases}"


def bits_of(dtype: str) -> np.dtype[Any]:
    """The unsigned type of an element."""
    return np.dtype(f"u{2 if dtype == 'bf16' else int(dtype[1:])}")


def numbers(raw: Array, dtype: str) -> Array | None:
    """float64 values of floating-point elements; None for integers."""
    if dtype == "bf16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if dtype[0] == "f":
        return raw.view(dtype).astype(np.float64)
    return None


def elements(buffer: Bytes, column: Column) -> Array:
    """The bits of a column's elements."""
    kind = bits_of(column.dtype)
    return np.frombuffer(buffer.tobytes(), kind, column.count, column.start)


def _within(got: Array, want: Array, argument: Array | None, rule: str) -> Array:
    bound = BOUNDS[rule.split()[1].replace("16x2", "16")]
    with np.errstate(all="ignore"):
        close = np.abs(got - want) <= bound.absolute + bound.relative * np.abs(want)
        if argument is not None and np.isfinite(bound.limit):
            close |= np.abs(argument) > bound.limit
    return close | (got == want)


def differences(
    program: Program, gpu: dict[int, Bytes], emulated: dict[int, Bytes]
) -> list[Difference]:
    """Columns that differ beyond what PTX allows."""
    found: list[Difference] = []
    for position, column in enumerate(program.columns):
        g, e = elements(gpu[column.buffer], column), elements(emulated[column.buffer], column)
        bad = g != e
        if not bad.any():
            continue
        with np.errstate(all="ignore"):
            x, y = numbers(g, column.dtype), numbers(e, column.dtype)
        if x is not None and y is not None:
            bad &= ~(np.isnan(x) & np.isnan(y))
            if column.check != "exact":
                argument = program.columns[position + 1]  # stored right behind the result
                raw = elements(gpu[argument.buffer], argument)
                with np.errstate(all="ignore"):
                    operand = numbers(raw, argument.dtype)
                if column.check == "number":
                    bad &= ~np.isnan(operand) if operand is not None else bad
                else:
                    bad &= ~_within(x, y, operand, column.check)
        if bad.any():
            where = np.flatnonzero(bad)
            first = [(int(i), int(g[i]), int(e[i])) for i in where[:4]]
            found.append(Difference(program.name, column, int(bad.sum()), first))
    return found
