"""Arrays of mbarriers in shared memory, by `nvgpu`; waits by `nvvm`, which takes an i32 parity."""

from typing import Any

from attn_mlir.dialect._mlir import arith, builtin, ir, llvm, nvgpu, nvvm, scf
from attn_mlir.dialect.scalars import constant, i1

Value = Any

WAIT_TICKS = 10_000_000  # suspend-time hint of try_wait in ns; the loop around it repeats
BARRIER_BYTES = 8  # PTX ISA, mbarrier object


def index(value: Value | int) -> Value:
    """An i32 or a Python integer as `index`."""
    kind = ir.IndexType.get()
    if isinstance(value, int):
        return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, value)).result
    return arith.IndexCastOp(kind, value).result


def memref_struct(pointer: Value, rank: int) -> Value:
    """The LLVM form of a memref whose only meaningful field is its pointer."""
    text = f"!llvm.struct<(ptr<3>, ptr<3>, i64, array<{rank} x i64>, array<{rank} x i64>)>"
    struct = llvm.UndefOp(ir.Type.parse(text)).result
    i64 = ir.IntegerType.get_signless(64)

    def number(value: int) -> Value:
        return llvm.ConstantOp(i64, ir.IntegerAttr.get(i64, value)).result

    fields = [([0], pointer), ([1], pointer), ([2], number(0)), ([4, rank - 1], number(1))]
    for path, field in fields:
        location = ir.DenseI64ArrayAttr.get(path)
        struct = llvm.InsertValueOp(struct, field, location).result
    return struct


class BarrierRun:
    """`count` consecutive mbarriers that start at a shared pointer."""

    def __init__(self, pointer: Value, count: int):
        space = "memorySpace = #gpu.address_space<workgroup>"
        kind = ir.Type.parse(f"!nvgpu.mbarrier.group<{space}, num_barriers = {count}>")
        struct = memref_struct(pointer, 1)
        self.count = count
        self.pointer = pointer
        self.group = builtin.UnrealizedConversionCastOp([kind], [struct]).result

    def init(self, number: int, arrivals: int) -> None:
        """Initialises a barrier whose phases need `arrivals` arrivals each."""
        nvgpu.MBarrierInitOp(self.group, index(arrivals), index(number))

    def wait(self, number: Value, parity: Value) -> None:
        """Blocks until the phase of this parity (i32, 0 or 1) has completed."""
        nvvm.MBarrierTryWaitParityOp(self.address(number), parity, constant(WAIT_TICKS))

    def wait_for_cluster(self, number: Value, parity: Value) -> None:
        """As `wait`, and acquires the writes of other CTAs of the cluster before their arrivals."""
        scope = ir.Attribute.parse("#nvvm.mem_scope<cluster>")
        poll = scf.WhileOp([], [])
        with ir.InsertionPoint(poll.before.blocks.append()):
            completed = nvvm.MBarrierTryWaitOp(
                self.address(number), parity, scope=scope, results=[i1()]
            )
            true = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), 1)).result
            scf.ConditionOp(arith.XOrIOp(completed.result, true).result, [])
        with ir.InsertionPoint(poll.after.blocks.append()):
            scf.YieldOp([])

    def arrive(self, number: Value | int) -> Value:
        """One arrival of each executing thread; returns the token of its phase."""
        return nvgpu.MBarrierArriveOp(self.group, index(number)).token

    def expect(self, number: Value | int, tx_bytes: Value | int) -> None:
        """One arrival, and makes the phase wait for `tx_bytes` more bytes."""
        nvgpu.MBarrierArriveExpectTxOp(self.group, index(tx_bytes), index(number))

    def announce(self, number: Value, tx_bytes: int) -> None:
        """Makes the phase wait for `tx_bytes` more bytes, without an arrival."""
        nvvm.MBarrierExpectTxOp(self.address(number), constant(tx_bytes))

    def address(self, number: Value) -> Value:
        """Shared pointer to one barrier."""
        i64 = ir.IntegerType.get_signless(64)
        dynamic = ir.DenseI32ArrayAttr.get([-2147483648])
        return llvm.GEPOp(self.pointer.type, self.pointer, [number], dynamic, i64, 0).result
