"""The kernel's frame: function, prologue and dispatch of the roles."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, gpu, ir, llvm, nvgpu, nvvm
from attn_mlir.dialect.scalars import INT, compare, constant, either, i1, i32, when
from attn_mlir.dialect.targets.limits import (
    WARP_THREADS,
    WARPGROUP_THREADS,
    WARPGROUP_WARPS,
    Target,
)
from attn_mlir.passes.check_registers import budget_of, roles_within, warpgroup_count

from ..access.tensor_memory import TensorMemory, wait_tensor_stores
from ..checks.legality import check_kernel
from ..copies.copies import tensor_map_value
from ..rings.clusters import meet, only_in, this_rank
from ..rings.followed import follow, is_followed
from ..rings.rings import RingState, drain
from ..state.lowering import FULL_WARP, Lowering, RoleState, uniform
from ..state.parameters import Pointer, Scalar, Stride, Symbol
from ..state.tensors import TensorMap
from .grid import check_waits

Value = Any

TENSOR_MAP_BYTES = 128  # bytes of a CUtensorMap
TENSOR_MAP_ALIGNMENT = 64  # CUDA driver API, cuTensorMapEncodeTiled
SMEM_SYMBOL = "dynamic_smem"
SMEM_ALIGNMENT = 1024  # the 128-byte swizzle uses absolute address bits 7..9
LANE_FIELD_BIT = 16  # position of the lane in a tensor-memory address
FLUSH_TO_ZERO = (  # f32 subnormals would cost instructions around ex2, rcp and lg2
    "#llvm.denormal_fpenv<default_output_mode = ieee, default_input_mode = ieee, "
    "float_output_mode = preservesign, float_input_mode = preservesign>"
)
NO_VECTORIZER = "noimplicitfloat"
"""Attribute of a function that LLVM's vectorizers leave alone.

The SLP vectorizer searches all vectors of the unrolled loops and improves none: without it the PTX
is the same byte for byte, and LLVM takes a third of the time (0.15 s instead of 0.46 s at D=128
causal, 0.39 s instead of 1.0 s with a softcap and documents; two cores of an AMD EPYC, LLVM 23).
"""


def lower_kernel(kernel: ws.KernelOp, target: Target) -> Lowering:
    """Builds a `gpu.module` with the kernel as an `llvm.func` before the `ws.kernel`.

    Args:
      kernel: a kernel with `ws.plan` on itself, its rings and its buffers.
      target: the chip.

    Returns:
      The finished lowering, whose `signature` describes the function's parameters.

    Raises:
      VerifyError: an operation has no lowering.
    """
    check_waits(kernel)
    low = Lowering(kernel, target, check_kernel(kernel, target))
    chip = f'#nvvm.target<chip = "{target.chip}", features = "{target.backend_features}", O = 3>'
    name = f"{kernel.sym_name.value}_module"
    module = gpu.GPUModuleOp(name, targets=ir.ArrayAttr.get([ir.Attribute.parse(chip)]))
    body = module.bodyRegion.blocks.append()
    with ir.InsertionPoint(body):
        _declare_smem()
        function = _declare_function(low)
        with ir.InsertionPoint(function.body.blocks.append(*_argument_types(low))):
            for parameter, argument in zip(
                low.signature.parameters, function.body.blocks[0].arguments, strict=True
            ):
                low.arguments[parameter] = argument
            _emit_body(low)
            llvm.ReturnOp()
    return low


def _declare_smem() -> None:
    element = ir.Type.parse("!llvm.array<0 x i8>")
    llvm.GlobalOp(
        element,
        SMEM_SYMBOL,
        ir.Attribute.parse("#llvm.linkage<external>"),
        addr_space=3,
        alignment=SMEM_ALIGNMENT,
    )


def _argument_types(low: Lowering) -> list[Any]:
    kinds = {
        TensorMap: ir.Type.parse("!llvm.ptr"),
        Pointer: ir.Type.parse("!llvm.ptr<1>"),
        Stride: ir.IntegerType.get_signless(64),
        Symbol: i32(),
    }
    return [
        low.signature.argument_type(parameter.argument)
        if isinstance(parameter, Scalar)
        else kinds[type(parameter)]
        for parameter in low.signature.parameters
    ]


def _declare_function(low: Lowering) -> Any:
    kinds = ", ".join(str(kind) for kind in _argument_types(low))
    function = llvm.LLVMFuncOp(
        low.kernel.sym_name.value, ir.TypeAttr.get(ir.Type.parse(f"!llvm.func<void ({kinds})>"))
    )
    threads = thread_count(low.kernel)
    function.attributes["gpu.kernel"] = ir.UnitAttr.get()
    function.attributes["nvvm.kernel"] = ir.UnitAttr.get()
    function.attributes["nvvm.reqntid"] = ir.DenseI32ArrayAttr.get([threads, 1, 1])
    if low.cta_count > 1:
        shape = ir.DenseI32ArrayAttr.get([low.cta_count, 1, 1])
        function.attributes["nvvm.cluster_dim"] = shape
    function.attributes["nvvm.minctasm"] = ir.IntegerAttr.get(i32(), 1)
    function.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get(NO_VECTORIZER)])
    function.attributes["denormal_fpenv"] = ir.Attribute.parse(FLUSH_TO_ZERO)
    by_value = ir.Type.parse(f"!llvm.array<{TENSOR_MAP_BYTES} x i8>")
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), TENSOR_MAP_ALIGNMENT)
    map_attributes = {
        "llvm.byval": ir.TypeAttr.get(by_value),
        "llvm.align": alignment,
        "nvvm.grid_constant": ir.UnitAttr.get(),
    }
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get(map_attributes if isinstance(parameter, TensorMap) else {})
            for parameter in low.signature.parameters
        ]
    )
    return function


def thread_count(kernel: ws.KernelOp) -> int:
    """Threads of a CTA."""
    return warpgroup_count(kernel) * WARPGROUP_THREADS


def _emit_body(low: Lowering) -> None:
    kernel = low.kernel
    low.smem = llvm.AddressOfOp(ir.Type.parse("!llvm.ptr<3>"), SMEM_SYMBOL).result
    low.entry = low.smem.owner
    thread = nvvm.ThreadIdXOp(results=[i32()]).result
    warp = uniform(arith.ShRUIOp(thread, constant(WARP_THREADS.bit_length() - 1)).result)
    if low.cta_count > 1:
        low.rank = this_rank()
    for name, argument in zip(kernel.names, kernel.body.blocks[0].arguments, strict=True):
        low[argument] = low.arguments.get(Scalar(name))
    declared = [op for op in kernel.body.blocks[0].operations if not isinstance(op, ws.RoleOp)]
    low.lower_block(declared)
    memory = TensorMemory(low, warp, thread_count(kernel) // WARP_THREADS)
    memory.allocate()
    with when(compare("eq", warp, 0)), _one_thread():
        _prepare(low, declared)
    meet(low)
    memory.publish()
    _dispatch(low, _segments(kernel), thread, warp)
    memory.order_accesses()
    meet(low)
    memory.free()


def _prepare(low: Lowering, declared: Sequence[Any]) -> None:
    """Emits code for one thread: initialises the barriers and prefetches the tensor maps."""
    for op in declared:
        if isinstance(op, ws.AllocRingOp):
            ring: RingState = low[op.ring]
            ring.init_barriers()
    nvvm.FenceMbarrierInitOp()
    for parameter in low.signature.parameters:
        if isinstance(parameter, TensorMap):
            nvgpu.TmaPrefetchOp(tensor_map_value(low, parameter))


@contextmanager
def _one_thread() -> Generator[None]:
    """Emits the body for one elected thread of the warp."""
    with when(nvvm.ElectSyncOp(results=[i1()]).result):
        yield
    nvvm.SyncWarpOp(constant(FULL_WARP))


@dataclass(frozen=True)
class _Segment:
    """Consecutive warpgroups with the same registers and one branch: warps `first` to `end` - 1,
    with `roles`.
    """

    first: int
    end: int
    registers: int
    roles: tuple[ws.RoleOp, ...]


def _segments(kernel: ws.KernelOp) -> list[_Segment]:
    """Divides the CTA's warps into segments: one role of warpgroups each, or roles that share."""
    total = thread_count(kernel) // WARP_THREADS
    segments: list[_Segment] = []
    first = 0
    while first < total:
        end, reach, roles = first, first + WARPGROUP_WARPS, list[Any]()
        while end < reach:  # a role may reach into a warpgroup of others
            end, roles = reach, roles_within(kernel, first, reach)
            reach = max([end, *(_round_up(sum(role.warp_range)) for role in roles)])
        segments.append(_Segment(first, end, budget_of(roles, first, end), tuple(roles)))
        first = end
    return segments


def _round_up(warps: int) -> int:
    return -(-warps // WARPGROUP_WARPS) * WARPGROUP_WARPS


def _dispatch(low: Lowering, segments: Sequence[_Segment], thread: Value, warp: Value) -> None:
    """A chain of branches on the warp's number, one per segment."""
    segment, *remaining = segments
    if not remaining:
        _segment(low, segment, thread, warp)
        return
    with either(compare("slt", warp, segment.end)) as (then, otherwise):
        with then:
            _segment(low, segment, thread, warp)
        with otherwise:
            _dispatch(low, remaining, thread, warp)


def _segment(low: Lowering, segment: _Segment, thread: Value, warp: Value) -> None:
    if not segment.roles:
        return
    _set_registers(low, segment.registers)
    for role in segment.roles:
        first, count = role.warp_range
        if (first, first + count) == (segment.first, segment.end):
            _role(low, role, thread, warp)
        else:
            begin, end = compare("sge", warp, first), compare("slt", warp, first + count)
            with when(arith.AndIOp(begin, end).result):
                _role(low, role, thread, warp)


def _set_registers(low: Lowering, budget: int) -> None:
    share = low.target.launch_registers(warpgroup_count(low.kernel))
    if budget and budget != share:
        action = "increase" if budget > share else "decrease"
        nvvm.SetMaxRegisterOp(budget, ir.Attribute.parse(f"#nvvm<action {action}>"))


def _role(low: Lowering, role: ws.RoleOp, thread: Value, warp: Value) -> None:
    first, count = role.warp_range
    warps_per_group = count // role.group_count
    group = constant(0)
    if role.group_count > 1:
        relative = INT.sub(warp, first)
        group = arith.DivUIOp(relative, constant(warps_per_group)).result
    quarter = arith.AndIOp(warp, constant(WARPGROUP_WARPS - 1)).result
    lane_base = INT.mul(quarter, WARP_THREADS << LANE_FIELD_BIT)
    low.role = RoleState(role, group, _in_group(role, thread), lane_base, cursors={})
    block = role.body.blocks[0]
    low[block.arguments[0]] = group
    with only_in(low, role.ranks, range(low.cta_count)):
        if is_followed(role):
            follow(low)
            low.lower_block(block.operations)
            drain(low)
            nvvm.SyncWarpOp(constant(FULL_WARP))
        elif role.lane_count == 1:
            with _one_thread():
                low.lower_block(block.operations)
                drain(low)
        else:
            low.lower_block(block.operations)
            drain(low)
        if low.active.accesses.stored:  # before tensor memory is freed
            wait_tensor_stores(low)
    low.role = None


def _in_group(role: ws.RoleOp, thread: Value) -> Value:
    """i32: the number of a thread of the role in its group."""
    first, count = (warps * WARP_THREADS for warps in role.warp_range)
    threads = count // role.group_count
    if first % threads:
        thread = INT.sub(thread, first)
    elif threads & threads - 1 == 0:
        return arith.AndIOp(thread, constant(threads - 1)).result
    return arith.RemUIOp(thread, constant(threads)).result
