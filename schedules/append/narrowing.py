"""New tokens in fewer bits: what elements are divided by, and the factors that are found from them.

Factors that every position has of its own are those of the new rows; see `attn.append`.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.element_types import OF_MLIR

from .. import emit as b
from .destinations import Destination
from .roles import Place, Problem, each_row, group_count, wide, widened

Value = Any

FACTOR_EXPONENTS = {"f32": (-80, 80), "bf16": (-80, 80), "f16": (-14, 15)}
"""Factors of positions lie between these powers of two: what attention takes, and what f16 has
without losing bits."""


def divisors(
    problem: Problem, of: Destination, place: Place, scale_rows: Value, pieces: Sequence[Value]
) -> list[Value | None]:
    """What each of the pieces of a row is divided by. Writes the factors that positions have."""
    if of.scales is None:
        factors = _factors(problem, of, place) if _is_narrowed(problem, of) else None
        return [factors] * len(pieces)
    per_group, found = problem.group(of) // problem.width, list[Value | None]()
    for number in range(group_count(of)):
        own = pieces[number * per_group : (number + 1) * per_group]
        factors = _measured(problem, of, own)
        at = [0, 0, place.head, number]
        b.store_rows(factors, scale_rows, of.scales.tensor, at, [0, 1])
        divisor = b.broadcast(
            b.map_rows(lambda x, _: wide(x), factors, element=ir.F32Type.get()), problem.width
        )
        found += [divisor] * per_group
    return found


def _measured(problem: Problem, of: Destination, pieces: Sequence[Value]) -> Value:
    """The factor of each row of a group, as it is stored; see `attn.append`."""
    assert of.scales is not None
    element = ir.MemRefType(of.scales.tensor.type).element_type
    largest = OF_MLIR[str(ir.MemRefType(of.tensor.type).element_type)].largest
    least, most = (2.0**x for x in FACTOR_EXPONENTS[str(element)])
    found = each_row(problem, lambda _: b.f32_constant(0.0), ir.F32Type.get())
    for piece in pieces:
        found = b.reduce_rows("max", b.map_elements(b.fabs, widened(piece)), found)

    def factor(x: Value, _: Value) -> Value:
        x = b.fmax(arith.DivFOp(x, b.f32_constant(largest)).result, b.f32_constant(least))
        return arith.MinNumFOp(x, b.f32_constant(most)).result

    factors = b.map_rows(factor, found)
    if element == ir.F32Type.get():
        return factors
    return b.map_rows(lambda x, _: arith.TruncFOp(element, x).result, factors, element=element)


def _is_narrowed(problem: Problem, of: Destination) -> bool:
    """Whether the cache has factors and elements of fewer bits than the tokens."""
    kinds = [ir.MemRefType(x.type).element_type for x in (of.tensor, problem.k_new)]
    return of.factors is not None and ws.element_bits(kinds[0]) < ws.element_bits(kinds[1])


def _factors(problem: Problem, of: Destination, place: Place) -> Value:
    """What each row of the tile is divided by."""

    def factor(row: Value) -> Value:
        sequence = problem.token(place, row).sequence
        return b.element(of.factors, [sequence, place.head])

    return b.broadcast(each_row(problem, factor, ir.F32Type.get()), problem.width)


def stored(piece: Value, factors: Value | None, element: Any) -> Value:
    """A fragment as the cache has it."""
    if factors is not None:
        piece = b.map_elements(_divided, widened(piece), factors)
    if ws.FragmentType(piece.type).element == element:
        return piece
    return b.rounded(widened(piece), element)


def _divided(x: Value, factor: Value) -> Value:
    """x / factor, rounded once."""
    return arith.DivFOp(x, factor).result
