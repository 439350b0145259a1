"""New tokens in fewer bits: the divisors of their elements, and scales computed from them.

Scales per position are computed from the new rows; see `attn.append`.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.element_types import OF_MLIR

from .. import emit as b
from .destinations import Destination
from .roles import Problem, WorkTile, as_f32, each_row, group_count, upcast

Value = Any

SCALE_EXPONENTS = {"f32": (-80, 80), "bf16": (-80, 80), "f16": (-14, 15)}
"""Scales of positions lie between these powers of two: those that attention accepts, and normal
numbers of f16."""


def divisors(
    problem: Problem, of: Destination, tile: WorkTile, scale_rows: Value, chunks: Sequence[Value]
) -> list[Value | None]:
    """The divisor of each chunk of a row. Stores the scales of positions."""
    if of.scales is None:
        scales = _scale_rows(problem, of, tile) if _has_scaled_fp8(problem, of) else None
        return [scales] * len(chunks)
    per_group, divisor_rows = problem.group(of) // problem.width, list[Value | None]()
    for number in range(group_count(of)):
        group_chunks = chunks[number * per_group : (number + 1) * per_group]
        scales = _computed_scales(problem, of, group_chunks)
        coords = [0, 0, tile.head, number]
        b.store_rows(scales, scale_rows, of.scales.tensor, coords, [0, 1])
        divisor = b.broadcast(
            b.map_rows(lambda x, _: as_f32(x), scales, element=ir.F32Type.get()), problem.width
        )
        divisor_rows += [divisor] * per_group
    return divisor_rows


def _computed_scales(problem: Problem, of: Destination, chunks: Sequence[Value]) -> Value:
    """The scale of each row of a group, in its stored type; see `attn.append`."""
    assert of.scales is not None
    element = ir.MemRefType(of.scales.tensor.type).element_type
    largest = OF_MLIR[str(ir.MemRefType(of.tensor.type).element_type)].largest
    least, most = (2.0**x for x in SCALE_EXPONENTS[str(element)])
    maxima = each_row(problem, lambda _: b.f32_constant(0.0), ir.F32Type.get())
    for chunk in chunks:
        maxima = b.reduce_rows("max", b.map_elements(b.fabs, upcast(chunk)), maxima)

    def scale_of(x: Value, _: Value) -> Value:
        x = b.fmax(arith.DivFOp(x, b.f32_constant(largest)).result, b.f32_constant(least))
        return arith.MinNumFOp(x, b.f32_constant(most)).result

    scales = b.map_rows(scale_of, maxima)
    if element == ir.F32Type.get():
        return scales
    return b.map_rows(lambda x, _: arith.TruncFOp(element, x).result, scales, element=element)


def _has_scaled_fp8(problem: Problem, of: Destination) -> bool:
    """Whether the cache has scales, and elements of fewer bits than the tokens."""
    kinds = [ir.MemRefType(x.type).element_type for x in (of.tensor, problem.k_new)]
    return of.scale_table is not None and ws.element_bits(kinds[0]) < ws.element_bits(kinds[1])


def _scale_rows(problem: Problem, of: Destination, tile: WorkTile) -> Value:
    """The divisor of each row of the tile."""

    def scale_of(row: Value) -> Value:
        sequence = problem.token(tile, row).sequence
        return b.element(of.scale_table, [sequence, tile.head])

    return b.broadcast(each_row(problem, scale_of, ir.F32Type.get()), problem.width)


def stored(chunk: Value, scales: Value | None, element: Any) -> Value:
    """A fragment converted to the cache's element type."""
    if scales is not None:
        chunk = b.map_elements(_divided, upcast(chunk), scales)
    if ws.FragmentType(chunk.type).element == element:
        return chunk
    return b.rounded(upcast(chunk), element)


def _divided(x: Value, scale: Value) -> Value:
    """x / scale, rounded once."""
    return arith.DivFOp(x, scale).result
