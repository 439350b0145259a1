"""The state of one lowering: the lowered form of each `ws` value, and where code is emitted.

A lowering walks the kernel and builds a new function beside it. MLIR's conversion framework is not
used, since from Python it cannot turn one value into several, as a fragment into vectors. Each `ws`
operation has one function, registered with `lowers`, in the file named after its family; all
other operations are cloned with their operands replaced.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm
from attn_mlir.dialect.scalars import INT, constant, i32
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.errors import VerifyError
from attn_mlir.passes.check_scalars import check_name

from ..layouts import Layout
from .accesses import Accesses
from .handles import BranchedIteration, CopyGroup, NextTile, Slot, SlotCursor, TileRef
from .instances import instances_of
from .parameters import Parameter, Pointer, Signature, Stride, Symbol
from .tensors import View, end_of, view_of

Value = Any

_LOWERINGS: dict[str, "Callable[[Lowering, Any], None]"] = {}


BYTE_BITS = 8
FULL_WARP = -1  # member mask of all 32 lanes


@dataclass
class RoleState:
    """The state of the lowering of one role.

    Attributes:
      op: the role.
      group: i32, number of the role's group that this warp belongs to.
      cursors: stack cells with stage and phase, by ring, instances of the groups and side.
      thread: i32, the number of this thread in its group.
      lane_base: i32, the warp's first tensor-memory lane in the address' lane field.
      accesses: what its threads have done in tensor memory.
      next_tile: the answer read last, if work tiles are claimed.
      is_fenced: whether each thread has executed a proxy fence after all of its accesses so far.
      elected: i1, whether this lane is the elected one, if a whole warp runs a role of one thread.
      iteration: the loop iteration being lowered, if it is branched; see `branched_turns`.
      copies: groups of copies in flight, in order of issue.
    """

    op: ws.RoleOp
    group: Value
    thread: Value
    lane_base: Value
    cursors: dict[tuple[Any, ...], SlotCursor]
    accesses: Accesses = field(default_factory=Accesses)
    next_tile: NextTile | None = None
    is_fenced: bool = False
    elected: Value = None
    iteration: BranchedIteration | None = None
    copies: list[CopyGroup] = field(default_factory=list[CopyGroup])


class Lowering:
    """The lowering of one kernel to the NVVM level."""

    def __init__(self, kernel: ws.KernelOp, target: Target, layouts: Mapping[Value, Layout]):
        self.kernel = kernel
        self.target = target
        self.values: dict[Any, Any] = {}
        self.layouts = layouts
        self._views: dict[Value, View] = {}
        self.signature = Signature(kernel)
        self.instances = instances_of(kernel)
        self.arguments: dict[Parameter, Value] = {}
        self.cta_count = ws.cta_count(kernel)
        self.smem: Value = None
        self.rank: Value = None  # this CTA's rank, in a cluster of several CTAs
        self.tensor_base: Value = None
        self.tensor_group: Any = None  # an attribute of all tensor-memory instructions of a kernel
        self.entry: Any = (
            None  # an operation of the entry block, before which stack cells are allocated
        )
        self.role: RoleState | None = None

    def __getitem__(self, value: Value) -> Any:
        """The lowered form of a value of the kernel."""
        return self.values[value]

    def __setitem__(self, value: Value, lowered: Any) -> None:
        self.values[value] = lowered

    @property
    def active(self) -> RoleState:
        """The role being lowered."""
        assert self.role is not None
        return self.role

    def lower_block(self, operations: Iterable[Any]) -> None:
        """Lowers operations in order at the current insertion point."""
        for op in operations:
            self.lower(op)

    def lower(self, op: Any) -> None:
        """Lowers one operation; a scalar operation without regions is cloned."""
        name = op.operation.name
        self._note_access(op)
        with op.operation.location:
            if name in _LOWERINGS:
                _LOWERINGS[name](self, op)
            elif name.startswith("ws.") or len(op.operation.regions):
                raise VerifyError(
                    f"'{name}' op has no lowering to the NVVM level",
                    op=name,
                    location=str(op.operation.location),
                )
            else:
                check_name(op)
                self._clone(op.operation)
        self._note_access(op)

    def _note_access(self, op: Any) -> None:
        """Resets `is_fenced` before and after an operation that may access memory.

        All operations may, in a region too, except commits, releases and waits for products.
        """
        if self.role is not None and not isinstance(op, (ws.CommitOp, ws.ReleaseOp, ws.SettleOp)):
            self.role.is_fenced = False

    def _clone(self, op: Any) -> None:
        copy = ir.Operation.create(
            op.name,
            results=[result.type for result in op.results],
            operands=[self.values[operand] for operand in op.operands],
            attributes=dict(op.attributes.items()),
        )
        for old, new in zip(op.results, copy.results, strict=True):
            self.values[old] = new

    def entry_point(self) -> Any:
        """The insertion point for allocations of stack cells."""
        return ir.InsertionPoint(self.entry)

    def slot(self, value: Value) -> Slot:
        """The ring slot of a value of the kernel, or of a view of a slot."""
        lowered = self.values[value]
        return lowered if isinstance(lowered, Slot) else self.slot(value.owner.source)

    def tile(self, value: Value) -> TileRef:
        """The lowered form of a tile: a slot, a buffer or a part of one."""
        lowered = self.values[value]
        return lowered.tile if isinstance(lowered, Slot) else lowered

    def tile_at(self, kind: ws.TileType, offset: int, number: Value, step: int) -> TileRef:
        """The tile at `offset + number * step`: bytes of shared or columns of tensor memory."""
        address = INT.add(INT.mul(number, step), offset)
        if kind.space == "tensor":
            address = INT.add(self.tensor_base, address)
        return TileRef(kind, address)

    def view(self, tensor: Value) -> View:
        """The view that a memref value of the kernel is."""
        if tensor not in self._views:
            self._views[tensor] = view_of(self.kernel, tensor)
        return self._views[tensor]

    def extent(self, tensor: Value, dim: int) -> Value:
        """Size of a dimension of a tensor argument or a view of one, i32."""
        view = self.view(tensor)
        if view.limited == dim:
            return self.values[end_of(tensor)]
        extent = view.dims[dim].extent
        return constant(extent) if isinstance(extent, int) else self.arguments[Symbol(extent)]

    def shared_pointer(self, offset: Value | int, extra: int = 0) -> Value:
        """Pointer to a byte offset of the kernel's dynamic shared memory.

        Args:
          offset: in bytes.
          extra: constant bytes to add, which fold into the instruction's address.
        """
        offset = constant(offset) if isinstance(offset, int) else offset
        return offset_pointer(offset_pointer(self.smem, offset), extra)

    def pointer_in(self, slot: Slot, offset: Value) -> Value:
        """`shared_pointer` to an offset in a slot, relative to `slot.start` if there is one."""
        if slot.start is None:
            return self.shared_pointer(offset)
        return offset_pointer(slot.start, INT.sub(offset, slot.tile.address))


def offset_pointer(pointer: Value, offset: Value | int) -> Value:
    """A pointer plus an offset in bytes."""
    if isinstance(offset, int) and not offset:
        return pointer
    none = -2147483648  # llvm.getelementptr: marks an index that is a run-time operand
    is_static = isinstance(offset, int)
    indices = ir.DenseI32ArrayAttr.get([offset if is_static else none])
    i8 = ir.IntegerType.get_signless(8)
    return llvm.GEPOp(pointer.type, pointer, [] if is_static else [offset], indices, i8, 0).result


def cell_type(element: Any) -> Any:
    """The LLVM type for an element in memory: signless integers, and i8 for floats of 8 bits."""
    element = ws.signless(element)
    bits = ws.element_bits(element)
    return ir.IntegerType.get_signless(bits) if bits == BYTE_BITS else element


def element_pointer(low: Lowering, tensor: Any, coords: Sequence[Value]) -> Value:
    """Global pointer to an element of a tensor argument or a view of one.

    Args:
      low: the lowering.
      tensor: the memref value of the kernel.
      coords: i32 each, within the view.
    """
    i64 = ir.IntegerType.get_signless(64)
    view = low.view(tensor)
    offset = arith.ConstantOp(i64, ir.IntegerAttr.get(i64, 0)).result
    for dim, coord in zip(view.dims, coords, strict=True):
        step = arith.ExtSIOp(i64, INT.mul(coord, dim.step)).result
        stride = low.arguments.get(Stride(view.argument, dim.axis))
        if stride is not None:  # the last axis has stride 1
            step = arith.MulIOp(step, stride).result
        offset = arith.AddIOp(offset, step).result
    base = low.arguments[Pointer(view.argument)]
    dynamic = ir.DenseI32ArrayAttr.get([-2147483648])
    element = cell_type(ir.MemRefType(tensor.type).element_type)
    return llvm.GEPOp(base.type, base, [offset], dynamic, element, 0).result


def uniform(value: Value) -> Value:
    """Broadcasts the first lane's i32, on which all lanes agree, so that branches are uniform."""
    kind = ir.Attribute.parse("#nvvm<shfl_kind idx>")
    clamp = constant(WARP_THREADS - 1)
    return nvvm.ShflOp(constant(FULL_WARP), value, constant(0), clamp, kind, results=[i32()]).res


def lowers(
    operation: Any,
) -> "Callable[[Callable[[Lowering, Any], None]], Callable[[Lowering, Any], None]]":
    """Registers the decorated function as the lowering of an operation class."""

    def register(function: "Callable[[Lowering, Any], None]") -> Any:
        lowers_named(operation.OPERATION_NAME, function)
        return function

    return register


def lowers_named(name: str, function: "Callable[[Lowering, Any], None]") -> None:
    """Registers a function as the lowering of an operation."""
    _LOWERINGS[name] = function


def load_input(low: Lowering, tensor: Any, coords: Sequence[Value]) -> Value:
    """Loads an element of an input by the read-only path; coordinates are clamped to the tensor."""
    inside = [
        INT.max(INT.min(coord, INT.sub(low.extent(tensor, dim), 1)), 0)
        for dim, coord in enumerate(coords)
    ]
    kind = ws.signless(ir.MemRefType(tensor.type).element_type)
    return llvm.LoadOp(kind, element_pointer(low, tensor, inside), invariant=True).result
