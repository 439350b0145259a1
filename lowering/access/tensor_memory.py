"""Allocation of tensor memory at a kernel's beginning and end, and the order of accesses to it."""

from collections.abc import Iterator
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, llvm, nvvm
from attn_mlir.dialect.scalars import compare, constant, i32, when

from ..state.lowering import Lowering

Value = Any


def works_in_pairs(kernel: ws.KernelOp) -> bool:
    """Whether the kernel's products use pairs of CTAs."""
    return any(op.cta_count == ws.PAIR for op in products_of(kernel))


def products_of(op: Any) -> Iterator[ws.MmaOp]:
    """The products within an operation that accumulate in tensor memory."""
    return (inner for inner in ws.inside(op) if isinstance(inner, ws.MmaOp))


def _cta_group(kernel: ws.KernelOp) -> Any:
    """The attribute `cta_group` of all tensor-memory instructions of a kernel."""
    number = ws.PAIR if works_in_pairs(kernel) else 1
    return ir.Attribute.parse(f"#nvvm.cta_group<cta_{number}>")


def fence_tensor(kind: str) -> None:
    """`tcgen05.fence`: `before` or `after` a synchronisation of threads."""
    nvvm.Tcgen05FenceOp(ir.Attribute.parse(f"#nvvm.tcgen05_fence<{kind}>"))


def order_accesses(low: Lowering, *, after_wait: bool = False) -> None:
    """Fences after a wait that allows accesses to tensor memory, or before the first access.

    Args:
      after_wait: whether this is after a wait, where the fence of an earlier wait does not count.
    """
    if after_wait or not low.active.accesses.is_ordered:
        fence_tensor("after")
    low.active.accesses.is_ordered = True


def access_by_threads(low: Lowering) -> None:
    """Orders a load or store by the role's threads, and notes it."""
    order_accesses(low)
    low.active.accesses.is_accessing = True


def complete_accesses(low: Lowering) -> None:
    """Completes accesses to tensor memory before the arrival that signals them; none, no code."""
    if low.active.accesses.stored:
        wait_tensor_stores(low)
    if low.active.accesses.is_accessing or any(products_of(low.active.op)):
        fence_tensor("before")
    low.active.accesses.is_accessing = False


def wait_tensor_stores(low: Lowering) -> None:
    """`tcgen05.wait::st`: this thread's stores to tensor memory are complete."""
    nvvm.Tcgen05WaitOp(ir.Attribute.parse("#nvvm.tcgen05_wait<store>"))
    low.active.accesses.stored.clear()


class TensorMemory:
    """The kernel's tensor memory: the CTA's last warp allocates and frees it."""

    def __init__(self, low: Lowering, warp: Value, warp_count: int):
        plan = ir.DictAttr(low.kernel.operation.attributes["ws.plan"])
        self._low = low
        self._warp = warp
        self._group = low.tensor_group = _cta_group(low.kernel)
        self._last = warp_count - 1
        self._cols = ir.IntegerAttr(plan["tensor_cols"]).value
        # shared memory to which tcgen05.alloc writes the address
        self._cell = ir.IntegerAttr(plan["tensor_address"]).value

    def _by_owner(self) -> Any:
        return when(compare("eq", self._warp, self._last))

    def allocate(self) -> None:
        """Allocates the columns; the address is written to shared memory."""
        if self._cols:
            with self._by_owner():
                cell, cols = self._low.shared_pointer(self._cell), constant(self._cols)
                nvvm.Tcgen05AllocOp(cell, cols, group=self._group)
                nvvm.Tcgen05RelinquishAllocPermitOp(group=self._group)
                fence_tensor("before")

    def publish(self) -> None:
        """Reads the address in every thread, after the CTA's barrier."""
        if self._cols:
            fence_tensor("after")
            cell = self._low.shared_pointer(self._cell)
            self._low.tensor_base = llvm.LoadOp(i32(), cell).result

    def order_accesses(self) -> None:
        """Orders each thread's accesses before the CTA's last barrier."""
        if self._cols:
            fence_tensor("before")

    def free(self) -> None:
        """Frees the columns, after the CTA's last barrier."""
        if self._cols:
            with self._by_owner():
                fence_tensor("after")
                pointer = ir.Type.parse("!llvm.ptr<6>")
                address = llvm.IntToPtrOp(pointer, self._low.tensor_base).result
                nvvm.Tcgen05DeallocOp(address, constant(self._cols), group=self._group)
