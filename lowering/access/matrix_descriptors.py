"""Descriptors of shared tiles as SSA values, with run-time addresses."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm
from attn_mlir.dialect.scalars import INT, constant, i32

from ..layouts import Operand, line_elements
from ..state.handles import TileRef
from ..state.lowering import Lowering
from .inline_ptx import opaque

Value = Any

ADDRESS_UNIT_BITS = 4  # descriptors hold addresses in units of 16 bytes
ADDRESS_MASK = 0x3FFFF  # 18-bit shared addresses


def matrix_descriptor(low: Lowering, tile: TileRef, operand: Operand) -> Value:
    """The matrix descriptor of a shared tile for K step 0, i64; the tile begins with a line."""
    address = llvm.PtrToIntOp(i32(), low.shared_pointer(first_line(tile))).result
    masked = arith.AndIOp(opaque(address), constant(ADDRESS_MASK)).result
    units = arith.ShRUIOp(masked, constant(ADDRESS_UNIT_BITS)).result
    wide = arith.ExtUIOp(ir.IntegerType.get_signless(64), units).result
    return arith.OrIOp(wide, _i64(operand.descriptor)).result


def low_word(low: Lowering, tile: TileRef, operand: Operand) -> Value:
    """The low word, i32, of the matrix descriptor for K step 0; only this word has the address."""
    address = llvm.PtrToIntOp(i32(), low.shared_pointer(first_line(tile))).result
    masked = arith.AndIOp(address, constant(ADDRESS_MASK)).result
    units = arith.ShRUIOp(masked, constant(ADDRESS_UNIT_BITS)).result
    return arith.OrIOp(units, constant(operand.descriptor & (1 << 32) - 1)).result


def first_line(tile: TileRef) -> Value:
    """The address of the first line of columns of a tile, which may be part of a wider one."""
    if not tile.first_column:
        return tile.address
    line_bytes = tile.kind.line_bytes
    line = tile.first_column // line_elements(ws.element_bits(tile.kind.element), line_bytes)
    return INT.add(tile.address, line * tile.pitch * line_bytes)


def advanced(descriptor: Value, step_bytes: int) -> Value:
    """The descriptor with `step_bytes` added to its address, whose field does not overflow."""
    if not step_bytes:
        return descriptor
    return arith.AddIOp(descriptor, _i64(step_bytes >> ADDRESS_UNIT_BITS)).result


def _i64(value: int) -> Value:
    kind = ir.IntegerType.get_signless(64)
    signed = value - (value >> 63 << 64)  # swizzles of short lines set bit 63
    return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, signed)).result
