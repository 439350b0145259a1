"""The kernel's parameters: what the function takes, and how the runtime makes each of them.

The list is found by looking at what the kernel uses; its entries are at once the keys by which
lowerings find their function argument and the recipes that go into the bundle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.errors import VerifyError

from .layouts import CHUNK_ELEMENTS, copy_box

Expression = Any  # an integer, a symbol's name, or [operator, left, right]; see the bundle's schema

_OPERATORS = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.ceildivsi": "ceildiv",
    "arith.floordivsi": "floordiv",
    "arith.maxsi": "max",
    "arith.minsi": "min",
}


@dataclass(frozen=True)
class TensorMap:
    """A tensor map over one tensor, for boxes of `rows` x `columns` along two of its dimensions."""

    argument: int
    dims: tuple[int, int]
    rows: int
    columns: int


@dataclass(frozen=True)
class Pointer:
    """A tensor's address."""

    argument: int


@dataclass(frozen=True)
class Stride:
    """A tensor's stride along one dimension, in elements, i64."""

    argument: int
    axis: int


@dataclass(frozen=True)
class Symbol:
    """A run-time size, i32."""

    name: str


@dataclass(frozen=True)
class Scalar:
    """A scalar argument of the call."""

    argument: int


_ORDER = (TensorMap, Pointer, Stride, Symbol, Scalar)


def _parameter_order(parameter: "Parameter") -> tuple[int, int]:
    """By kind, then in the order of the call."""
    return _ORDER.index(type(parameter)), getattr(parameter, "argument", 0)


Parameter = TensorMap | Pointer | Stride | Symbol | Scalar


class Signature:
    """The parameters of one kernel, in order, and the symbols and expressions behind them."""

    def __init__(self, kernel: ws.KernelOp):
        self.kernel = kernel
        self._arguments = list(kernel.body.blocks[0].arguments)
        found: dict[Parameter, None] = {}
        for parameter in self._scan(kernel):
            found.setdefault(parameter)
        self.parameters = sorted(found, key=_parameter_order)

    def argument_number(self, tensor: Any) -> int:
        """Position of a tensor or scalar among the kernel's arguments."""
        return self._arguments.index(tensor)

    def mapped_arguments(self) -> set[int]:
        """The arguments that the copy engine moves."""
        return {p.argument for p in self.parameters if isinstance(p, TensorMap)}

    def tensor_map(self, tensor: Any, tile: ws.TileType, dims: Any) -> TensorMap:
        """The tensor map of a copy."""
        rows, columns = tile.shape
        return TensorMap(self.argument_number(tensor), tuple(dims), rows, columns)

    def symbol(self, extent: ws.ExtentOp) -> Symbol | int:
        """The name of a run-time size, or a static size itself."""
        number = self.argument_number(extent.source)
        static = ir.MemRefType(extent.source.type)
        if not static.is_dynamic_dim(extent.dim.value):
            return static.get_dim_size(extent.dim.value)
        return Symbol(self.kernel.dims[number][extent.dim.value])

    def _scan(self, op: Any) -> Iterator[Parameter]:
        for region in op.operation.regions:
            for block in region.blocks:
                for inner in block.operations:
                    yield from self._used(inner)
                    yield from self._scan(inner)

    def _used(self, op: Any) -> Iterator[Parameter]:
        if isinstance(op, ws.TmaLoadOp):
            yield self.tensor_map(op.source, ws.TileType(op.target.type), op.dims)
        elif isinstance(op, ws.TmaStoreOp):
            yield self.tensor_map(op.target, ws.TileType(op.source.type), op.dims)
        elif isinstance(op, ws.StoreGlobalOp):
            number = self.argument_number(op.target)
            rank = ir.MemRefType(op.target.type).rank
            yield Pointer(number)
            yield from (Stride(number, axis) for axis in range(rank - 1))
            (axis,) = list[int](op.dims)
            name = self.kernel.dims[number][axis]
            if name:
                yield Symbol(name)
        elif isinstance(op, ws.ExtentOp):
            symbol = self.symbol(op)
            if isinstance(symbol, Symbol):
                yield symbol
        elif isinstance(op, ws.ElementOp):
            number = self.argument_number(op.source)
            rank = ir.MemRefType(op.source.type).rank
            yield Pointer(number)
            yield from (Stride(number, axis) for axis in range(rank - 1))
            yield from (Symbol(name) for name in self.kernel.dims[number] if name)
        for operand in op.operation.operands:
            if operand in self._arguments and not isinstance(operand.type, ir.MemRefType):
                yield Scalar(self.argument_number(operand))

    def expression(self, value: Any) -> Expression:
        """An i32 of the kernel as an expression over the call's symbols.

        Raises:
          VerifyError: it depends on something that is not known before the launch.
        """
        owner = value.owner
        name = getattr(getattr(owner, "operation", None), "name", "a block argument")
        if isinstance(owner, arith.ConstantOp):
            return ir.IntegerAttr(owner.value).value
        if isinstance(owner, ws.ExtentOp):
            symbol = self.symbol(owner)
            return symbol.name if isinstance(symbol, Symbol) else symbol
        if name in _OPERATORS:
            operands = [self.expression(operand) for operand in owner.operation.operands]
            return [_OPERATORS[name], *operands]
        raise VerifyError(
            f"'ws.tiles' op expects extents known at launch, got {name}", op="ws.tiles"
        )

    def recipes(self) -> list[dict[str, Any]]:
        """The parameters as the bundle describes them."""
        return [self._recipe(parameter) for parameter in self.parameters]

    def _recipe(self, parameter: Parameter) -> dict[str, Any]:
        names = self.kernel.names
        match parameter:
            case TensorMap(argument, dims, rows, columns):
                inner, *_ = box = copy_box(rows, columns)
                return {
                    "kind": "tensor_map",
                    "tensor": names[argument],
                    "box": [*box, *[1] * (len(self.kernel.dims[argument]) - 2)],
                    "swizzle": "128B",
                    "dims": self._map_dims(argument, dims, inner),
                }
            case Pointer(argument):
                return {"kind": "pointer", "tensor": names[argument]}
            case Stride(argument, axis):
                return {"kind": "stride", "tensor": names[argument], "axis": axis, "type": "i64"}
            case Symbol(name=symbol):
                return {"kind": "symbol", "symbol": symbol, "type": "i32"}
            case Scalar(argument):
                kind = str(self._arguments[argument].type)
                return {"kind": "scalar", "scalar": names[argument], "type": kind}

    def _map_dims(self, argument: int, dims: tuple[int, int], inner: int) -> list[dict[str, Any]]:
        """Dimensions of a tensor map, innermost first: line, rows, chunks, then the others."""
        rows, columns = dims
        kind = ir.MemRefType(self._arguments[argument].type)
        extents = [
            name or kind.get_dim_size(i) for i, name in enumerate(self.kernel.dims[argument])
        ]
        chunks = kind.get_dim_size(columns) // CHUNK_ELEMENTS
        others = [axis for axis in reversed(range(kind.rank)) if axis not in dims]
        return [
            {"extent": inner, "axis": columns, "step": 1},
            {"extent": extents[rows], "axis": rows, "step": 1},
            {"extent": chunks, "axis": columns, "step": inner},
            *({"extent": extents[axis], "axis": axis, "step": 1} for axis in others),
        ]


def coordinate_order(rank: int, dims: Any) -> list[int]:
    """Which tensor coordinate each further map dimension takes, after line, row and chunk."""
    return [axis for axis in reversed(range(rank)) if axis not in tuple(dims)]
