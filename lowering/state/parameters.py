"""The kernel's parameters, and how the runtime computes each of them.

The parameters are those that the kernel's operations use. A parameter is the key of the function's
argument for lowerings, and makes its recipe in the bundle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.scalars import multiple_of
from attn_mlir.errors import VerifyError
from attn_mlir.expr import Expr, names
from attn_mlir.passes.analysis.protocol.integers import (
    Integers,
    NoExpressionError,
    known_at_launch,
)

from ..layouts import SWIZZLE_BYTES, SWIZZLES, line_elements, unit_elements
from .tensors import TensorMap, view_of


@dataclass(frozen=True)
class Pointer:
    """A tensor's address."""

    argument: str


@dataclass(frozen=True)
class Stride:
    """A tensor's stride along one dimension, in elements, i64."""

    argument: str
    axis: int


@dataclass(frozen=True)
class Symbol:
    """A run-time size, i32."""

    name: str


@dataclass(frozen=True)
class Scalar:
    """A scalar argument of the call."""

    argument: str


_ORDER = (TensorMap, Pointer, Stride, Symbol, Scalar)


Parameter = TensorMap | Pointer | Stride | Symbol | Scalar


class Signature:
    """The parameters of one kernel in order, with the symbols and expressions that they use."""

    def __init__(self, kernel: ws.KernelOp):
        self.kernel = kernel
        self._arguments = dict(zip(kernel.names, kernel.body.blocks[0].arguments, strict=True))
        self._dims = dict(zip(kernel.names, kernel.dims, strict=True))
        self._vectorised: set[str] = (
            set()
        )  # operations in which threads access several columns at a time
        self._gathered: set[Parameter] = set()  # maps of rows that copies gather
        self._integers = Integers(kernel)
        parameters: dict[Parameter, None] = {}
        for parameter in self._scan(kernel):
            parameters.setdefault(parameter)
        self.parameters = sorted(parameters, key=self._order)

    def _order(self, parameter: "Parameter") -> tuple[int, bool, int]:
        """Sort key: by kind, then in the order of the call's arguments.

        Maps of gather copies come first: ptxas adds a map's offset among the parameters to their
        address in every iteration, so the most used map has offset 0.
        """
        called = getattr(parameter, "argument", None)
        names = list(self._arguments)
        position = 0 if called is None else names.index(called)
        return _ORDER.index(type(parameter)), parameter not in self._gathered, position

    def argument_type(self, name: str) -> Any:
        """The MLIR type of the argument of that name."""
        return self._arguments[name].type

    def _name_of(self, value: Any) -> str | None:
        """The name of an argument; None for other values."""
        return next((name for name, argument in self._arguments.items() if argument == value), None)

    def aligned_arguments(self) -> set[str]:
        """The arguments that threads access by several elements at a time."""
        mapped = {p.argument for p in self.parameters if isinstance(p, TensorMap)}
        return mapped | self._vectorised

    def row_multiple(self, argument: str) -> int:
        """Elements of one access where threads load or store chosen rows of an argument; else 1."""
        kind = ir.MemRefType(self.argument_type(argument))
        return (
            unit_elements(ws.element_bits(kind.element_type)) if argument in self._vectorised else 1
        )

    def tensor_map(self, op: ws.CopyInOp | ws.CopyOutOp | ws.ReduceOutOp) -> TensorMap:
        """The tensor map of a copy between a tile of the kernel and a tensor."""
        is_in = isinstance(op, ws.CopyInOp)
        tensor, tile = (op.source, op.target) if is_in else (op.target, op.source)
        kind = ws.TileType(tile.type)
        is_apart = ws.pitch_rows(tile) != kind.shape[0] and ws.lines_of(kind) > 1
        return self._map(op, tensor, kind, is_apart=is_apart)

    def prefetch_map(self, op: ws.PrefetchBoxOp) -> TensorMap:
        """The tensor map of a prefetch: that of a copy to a whole tile."""
        return self._map(op, op.source, op.kind)

    def _map(self, op: Any, tensor: Any, kind: Any, *, is_apart: bool = False) -> TensorMap:
        """The tensor map of tiles of a kind, whose lines are apart unless those of the tensor."""
        *row_dims, column_dim = list[int](op.dims)
        view, bits = view_of(self.kernel, tensor), ws.element_bits(kind.element)
        (rows, columns), line = kind.shape, kind.line_bytes
        is_apart |= multiple_of(op.coords[column_dim]) % line_elements(bits, line) != 0
        return TensorMap(view, tuple(row_dims), column_dim, rows, columns, bits, line, is_apart)

    def gather_map(self, op: ws.GatherInOp) -> TensorMap:
        """The tensor map of a gather copy, whose boxes are 128-byte lines of one row."""
        kind = ws.TileType(op.target.type)
        row, column = list[int](op.dims)
        bits = ws.element_bits(kind.element)
        view = view_of(self.kernel, op.source)
        line = line_elements(bits)
        return TensorMap(view, (row,), column, 1, line, bits, SWIZZLE_BYTES, is_apart=True)

    def symbol(self, extent: ws.ExtentOp) -> Symbol | int:
        """The name of a run-time size, or a static size itself."""
        name = self._name_of(extent.source)
        assert name is not None
        static = ir.MemRefType(extent.source.type)
        if not static.is_dynamic_dim(extent.dim.value):
            return static.get_dim_size(extent.dim.value)
        return Symbol(self._dims[name][extent.dim.value])

    def strides(self, pitch: ws.PitchOp) -> list[Stride]:
        """The strides whose quotient is a pitch; one stride if the inner one is 1."""
        name, dim = view_of(self.kernel, pitch.source).argument, pitch.dim.value
        dense = len(self._dims[name]) - 1
        return [Stride(name, axis) for axis in (dim, dim + 1) if axis != dense]

    def _scan(self, op: Any) -> Iterator[Parameter]:
        for region in op.operation.regions:
            for block in region.blocks:
                for inner in block.operations:
                    yield from self._used(inner)
                    yield from self._scan(inner)

    def _used(self, op: Any) -> Iterator[Parameter]:
        if isinstance(op, ws.CopyInOp | ws.CopyOutOp | ws.ReduceOutOp):
            yield self.tensor_map(op)
        elif isinstance(op, ws.PrefetchBoxOp):
            yield self.prefetch_map(op)
        elif isinstance(op, ws.GatherInOp):
            self._gathered.add(self.gather_map(op))
            yield self.gather_map(op)
        elif isinstance(op, ws.StoreGlobalOp | ws.StoreRowsOp):
            yield from self._accessed(op.target, op.fragment)
        elif isinstance(op, ws.LoadGlobalOp):
            yield from self._accessed(op.source, op.fragment)
        elif isinstance(op, ws.LoadRowsOp | ws.CopyRowsOp):
            yield from self._accessed(op.source)
        elif isinstance(op, ws.ArriveLastOp | ws.DrawOp):
            yield from self._addressed(op.counter)
        elif isinstance(op, ws.AwaitTurnOp | ws.SetTurnOp):
            yield from self._addressed(op.cell)
        elif isinstance(op, ws.StoreEntryOp | ws.ScatterOp):
            yield from self._addressed(op.target)
        elif isinstance(op, ws.ExtentOp):
            symbol = self.symbol(op)
            if isinstance(symbol, Symbol):
                yield symbol
        elif isinstance(op, ws.PitchOp):
            yield from self.strides(op)
        elif isinstance(op, ws.ElementOp | ws.PrefetchLineOp):
            yield from self._addressed(op.source)
        elif isinstance(op, ws.TilesOp):
            for ends in op.ends:
                yield from self._addressed(ends)
        for operand in op.operation.operands:
            name = self._name_of(operand)
            if name is not None and not isinstance(operand.type, ir.MemRefType):
                yield Scalar(name)

    def _accessed(self, tensor: Any, fragment: Any = None) -> Iterator[Parameter]:
        """As `_addressed`; of several elements at a time, unless a fragment [rows] is accessed."""
        if fragment is None or len(ws.FragmentType(fragment.type).shape) == 2:
            self._vectorised.add(view_of(self.kernel, tensor).argument)
        yield from self._addressed(tensor)

    def _addressed(self, tensor: Any) -> Iterator[Parameter]:
        """The parameters that threads need to address elements of a tensor."""
        name = view_of(self.kernel, tensor).argument
        yield Pointer(name)
        dims = self._dims[name]
        yield from (Stride(name, axis) for axis in range(len(dims) - 1))
        yield from (Symbol(symbol) for symbol in dims if symbol)

    def expression(self, value: Any) -> Expr:
        """An i32 of the kernel as an expression over the call's symbols and scalars.

        Raises:
          VerifyError: it depends on values that are not known before the launch.
        """
        try:
            expr = self._integers(value)
        except NoExpressionError as error:
            got = getattr(getattr(error.owner, "operation", None), "name", "a block argument")
        else:
            unknown = sorted(names(expr) - known_at_launch(self.kernel))
            if not unknown:
                return expr
            got = ", ".join(unknown)
        raise VerifyError(
            f"'ws.tiles' op expects extents known at launch, got {got}", op="ws.tiles"
        )

    def recipes(self) -> list[dict[str, Any]]:
        """The parameters as the bundle describes them."""
        return [self._recipe(parameter) for parameter in self.parameters]

    def _recipe(self, parameter: Parameter) -> dict[str, Any]:
        match parameter:
            case TensorMap() as tensor_map:
                merged = tensor_map.merged()
                return {
                    "kind": "tensor_map",
                    "tensor": tensor_map.argument,
                    "box": tensor_map.box(),
                    "swizzle": SWIZZLES[tensor_map.line_bytes],
                    "dims": tensor_map.dims(),
                    **({} if merged is None else {"merged": merged}),
                }
            case Pointer(argument):
                return {"kind": "pointer", "tensor": argument}
            case Stride(argument, axis):
                return {"kind": "stride", "tensor": argument, "axis": axis, "type": "i64"}
            case Symbol(name=symbol):
                return {"kind": "symbol", "symbol": symbol, "type": "i32"}
            case Scalar(argument):
                kind = str(self.argument_type(argument))
                return {"kind": "scalar", "scalar": argument, "type": kind}
