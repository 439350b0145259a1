"""`ws-plan-memory`: where every ring, buffer and barrier of a kernel lies.

Two rings may occupy the same bytes if, in every run of the ring proof, the last use of one comes
before the first use of the other: O is staged where Q was, once the last product has read Q. Rings
that borrow their place (`ws.alloc_inside`) lie in that of their lender, which is in use while any
of them is. All others are disjoint. The largest is placed first, each at the lowest offset that is
free during its use.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import location_text, op_error
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.dialect.targets.module import target_of
from attn_mlir.errors import ResourceError
from attn_mlir.passes.analysis.protocol.skeleton import (
    Process,
    Step,
    fixed_instance,
    processes,
    steps,
)
from attn_mlir.passes.analysis.protocol.trace import Trace, precedes
from attn_mlir.passes.infrastructure.analyses import analysed
from attn_mlir.passes.infrastructure.registry import register

from .check_registers import check_registers
from .verify_rings import prove

PLAN = "ws.plan"  # attribute that holds the plan of a kernel, ring or buffer
BARRIER_BYTES = 8  # PTX ISA, mbarrier object
BY_EVERY_THREAD = ("threads", "thread_copies")  # agents that arrive once per thread
ADDRESS_CELL_BYTES = 8  # where tcgen05.alloc leaves the address, padded
MIN_TENSOR_COLS = 32  # PTX ISA, tcgen05.alloc: a power of two from 32


@dataclass(frozen=True)
class Item:
    """A ring or buffer to be placed.

    Attributes:
      op: its declaration.
      value: the SSA value of the declaration.
      label: name for memory maps and messages.
      space: shared or tensor.
      extent: bytes of one slot, or its columns of tensor memory.
      step: from the begin of a slot to that of the next one.
      count: slots in all instances.
      alignment: of the first slot, in bytes or columns.
      lender: the declaration of the ring whose place it borrows; None for a place of its own.
      first: where the first slot begins in the lender's place.
    """

    op: Any
    value: Any
    label: str
    space: str
    extent: int
    step: int
    count: int
    alignment: int
    lender: ws.AllocRingOp | None = None
    first: int = 0

    @property
    def total(self) -> int:
        """Bytes or columns from the first slot to the end of the last one."""
        return self.step * (self.count - 1) + self.extent


@dataclass(frozen=True)
class Region:
    """A line of the memory map.

    Attributes:
      space: shared or tensor.
      label: what lies there.
      begin, end: from this byte or column to before that one.
      is_borrowed: whether the bytes or columns belong to another region.
    """

    space: str
    label: str
    begin: int
    end: int
    is_borrowed: bool = False


@register
@dataclass(frozen=True)
class PlanMemory:
    """Places rings, buffers and barriers, and stores the places as `ws.plan`.

    Attributes:
      target: the chip whose limits apply; the module's, or sm_100a, where none is named.
      print_map: writes the memory map to stderr.
    """

    name: ClassVar[str] = "ws-plan-memory"
    target: str = ""
    print_map: bool = False

    def run(self, module: Any) -> None:
        """Plans every kernel of the module.

        Raises:
          ResourceError: memory or registers are over-subscribed; lists what takes how much.
          VerifyError: the rings do not pass their proof.
          TargetError: an unknown chip, or not the module's.
        """
        kernels = list(ir.get_ops_of_type(module, ws.KernelOp))
        target = target_of(module, self.target, keep=bool(kernels))
        for kernel in kernels:
            regions = plan(kernel, target)
            if self.print_map:
                print(render_map(kernel.sym_name.value, regions), file=sys.stderr)


def plan(kernel: ws.KernelOp, target: Target) -> list[Region]:
    """Plans one kernel and returns its memory map; errors as `PlanMemory.run`."""
    check_cluster(kernel, target)
    traces = analysed(prove, kernel)
    check_registers(kernel, target)
    items = [item for op in kernel.body.blocks[0].operations if (item := placed_item(op))]
    shared = [item for item in items if item.space == "shared"]
    tensor = [item for item in items if item.space == "tensor"]
    own = [item for item in items if item.lender is None]
    offsets = _place([x for x in own if x.space == "shared"], traces)
    offsets |= _place([x for x in own if x.space == "tensor"], [])
    for item in items:
        if item.lender is not None:
            offsets[item.value] = offsets[item.lender.ring] + item.first
    barriers = _end(shared, offsets)
    members = analysed(processes, kernel)
    position = barriers
    for item in items:
        entries = {"offset": offsets[item.value], "slot_step": item.step}
        if isinstance(item.op, ws.AllocRingOp):
            full, empty = arrivals(item.value, members)
            for name, count in zip(sides(item.op), (full, empty), strict=False):
                entries |= {name: position, f"{name}_count": count}
                position += item.count * BARRIER_BYTES
        _store(item.op, entries)
    cell, position = position, position + ADDRESS_CELL_BYTES
    cols = _end(tensor, offsets)
    granted = max(MIN_TENSOR_COLS, 1 << (cols - 1).bit_length()) if cols else 0
    _store(kernel, {"smem_bytes": position, "tensor_cols": granted, "tensor_address": cell})
    regions = memory_map(kernel)
    _check_fits(kernel, regions, target, position, cols)
    return regions


def check_cluster(kernel: ws.KernelOp, target: Target) -> None:
    """Refuses a cluster of more CTAs than every GPU with the chip can run together."""
    count, most = ws.cta_count(kernel), target.cluster_ctas[0]
    if count > most:
        raise ResourceError(
            f"the kernel's cluster has {count} CTAs, {target.chip} holds at most {most} together",
            location=location_text(kernel.operation.location),
        )


def sides(ring: ws.AllocRingOp) -> tuple[str, ...]:
    """The kinds of barriers that a ring's slots have."""
    return ("full",) if ring.is_known_empty else ("full", "empty")


def placed_item(op: Any) -> Item | None:
    """The memory that a declaration needs; None for an operation that declares none."""
    if isinstance(op, ws.AllocRingOp):
        kind = ws.RingType(op.ring.type)
        value, count = op.ring, kind.stages * kind.instances
    elif isinstance(op, ws.AllocBufferOp):
        kind = ws.BufferType(op.buffer.type)
        value, count = op.buffer, kind.instances
    else:
        return None
    if kind.tile is None:  # tokens have barriers alone
        return Item(op, value, op.label, "shared", 0, 0, count, 1)
    extent, alignment = ws.footprint(kind.tile)
    item = Item(op, value, op.label, kind.tile.space, extent, extent, count, alignment)
    if isinstance(op, ws.AllocInsideOp):
        whole = placed_item(op.declared_lender)
        assert whole is not None
        step = whole.step // op.parts
        return replace(item, step=step, lender=op.declared_lender, first=op.offset)
    return item


def _place(items: Sequence[Item], traces: Sequence[Trace]) -> dict[Any, int]:
    """Offsets by first fit, largest item first; items that are never in use together may
    overlap.
    """
    placed: list[tuple[Item, int]] = []
    for item in sorted(items, key=lambda item: -item.total):
        taken = [(other, at) for other, at in placed if _meet(item, other, traces)]
        ends = (_align(at + other.total, item.alignment) for other, at in taken)
        begins = (at for other, at in taken if _are_alike(item, other))
        offset = next(
            offset
            for offset in sorted({0, *ends, *begins})
            if not any(_collide(item, offset, other, at, traces) for other, at in taken)
        )
        placed.append((item, offset))
    return {item.value: offset for item, offset in placed}


def _are_alike(a: Item, b: Item) -> bool:
    """Whether two rings have the same number of instances, above 1, of the same size."""
    are_rings = isinstance(a.op, ws.AllocRingOp) and isinstance(b.op, ws.AllocRingOp)
    return are_rings and _instances(a) == _instances(b) > 1 and a.total == b.total


def _instances(item: Item) -> int:
    return ws.RingType(item.value.type).instances


def _collide(a: Item, at: int, b: Item, there: int, traces: Sequence[Trace]) -> bool:
    """Whether two items that are in use together would overlap at these offsets.

    Alike rings may overlap if each instance of one is done before that of the other begins.
    """
    if at + a.total <= there or there + b.total <= at:
        return False
    if at != there or not _are_alike(a, b):
        return True
    return any(_meet(a, b, traces, (instance, instance)) for instance in range(_instances(a)))


def _meet(
    a: Item, b: Item, traces: Sequence[Trace], instances: tuple[int, int] | None = None
) -> bool:
    """Whether two items, or rings at their places, are in use at the same time in some run; a
    buffer is always in use.

    Args:
      instances: compare one instance of `a` with one of `b`; all of them by default.
    """
    if not (isinstance(a.op, ws.AllocRingOp) and isinstance(b.op, ws.AllocRingOp)):
        return True
    ours, theirs = ([ring.ring for ring in ws.sharing(item.op)] for item in (a, b))
    if not any(_is_used(trace, ours) and _is_used(trace, theirs) for trace in traces):
        return True
    return not any(
        all(
            precedes(trace, *pair, instances) for trace in traces for pair in product(first, second)
        )
        for first, second in ((ours, theirs), (theirs, ours))
    )


def _is_used(trace: Trace, rings: Sequence[Any]) -> bool:
    return any(ring in rings for ring, _ in trace.events)


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _end(items: Sequence[Item], offsets: dict[Any, int]) -> int:
    return max((offsets[item.value] + item.total for item in items), default=0)


def arrivals(ring: Any, members: Sequence[Process]) -> tuple[int, int]:
    """Arrivals that complete a phase of a ring's full and of its empty barriers.

    A handover by an engine is one arrival; one by threads or their copies is one per thread of the
    group, one by warps one per warp. Arrivals of all roles that fill or use a slot together add up.
    In a cluster a handover counts at every CTA that the ring lists for it, except for the copy
    engine where one arrival announces the bytes of all CTAs: that arrival is at the CTA that
    expects them.

    Raises:
      VerifyError: the number differs between instances or CTAs, though the plan has one for all.
    """
    arrived: dict[
        tuple[str, int, int, int, str], int
    ] = {}  # step, instance, CTA, process and agent
    for number, process in enumerate(members):
        for step in steps(process):
            if step.ring == ring and step.by:
                lists = ring.owner.full_at if step.kind == "commit" else ring.owner.empty_at
                count = _arrivals_of(process, step)
                instance = fixed_instance(process, step)
                is_bytes = step.kind == "commit" and step.by == "copy_engine"
                is_once = is_bytes and ws.announces_at_once(step.slot.owner)
                for rank in lists[process.rank]:
                    if not is_once or rank == process.rank:
                        arrived[step.kind, instance, rank, number, step.by] = count
    return _one_number(ring, arrived, "commit"), _one_number(ring, arrived, "release")


def _arrivals_of(process: Process, step: Step) -> int:
    """Arrivals of a process at the barrier of one handover."""
    if step.by == "warps":
        if process.threads % WARP_THREADS:
            raise op_error(
                step.op,
                f"expects a role of whole warps for a handover by warps, got {process.threads} "
                f"threads in role {process.label}",
            )
        return process.threads // WARP_THREADS
    return process.threads if step.by in BY_EVERY_THREAD else 1


def _one_number(ring: Any, arrived: dict[tuple[str, int, int, int, str], int], kind: str) -> int:
    """Arrivals that one kind of step makes at each barrier:
    the same number wherever there are any.
    """
    totals: dict[tuple[int, int], int] = {}
    for (step, instance, rank, _, _), count in arrived.items():
        if step == kind:
            totals[instance, rank] = totals.get((instance, rank), 0) + count
    first, *others = sorted(totals) or [(0, 0)]
    expected = totals.get(first, 0)
    for place in others:
        if totals[place] != expected:
            what, mine, theirs = "CTA", place[1], first[1]
            if place[0] != first[0]:
                what, mine, theirs = "instance", place[0], first[0]
            raise op_error(
                ring.owner,
                f"expects as many arrivals in every {what}: {kind}s of {what} {mine} have "
                f"{totals[place]}, those of {what} {theirs} {expected}",
            )
    return expected


def _store(op: Any, entries: dict[str, int]) -> None:
    i64 = ir.IntegerType.get_signless(64)
    values = {name: ir.IntegerAttr.get(i64, number) for name, number in entries.items()}
    op.operation.attributes[PLAN] = ir.DictAttr.get(values)


def _check_fits(
    kernel: ws.KernelOp, regions: Sequence[Region], target: Target, smem_bytes: int, cols: int
) -> None:
    limits = {
        "shared": (smem_bytes, target.smem_bytes, "B of shared memory"),
        "tensor": (cols, target.tensor_columns, "columns of tensor memory"),
    }
    for space, (needed, limit, unit) in limits.items():
        if needed > limit:
            parts = [
                f"{r.label} {r.end - r.begin}"
                for r in regions
                if r.space == space and not r.is_borrowed
            ]
            raise ResourceError(
                f"the kernel needs {needed} {unit}, {target.chip} gives {limit}: "
                f"{', '.join(parts)}; try fewer stages or smaller tiles",
                location=location_text(kernel.operation.location),
            )


def memory_map(kernel: ws.KernelOp) -> list[Region]:
    """The memory map of a planned kernel."""
    regions: list[Region] = []
    for op in kernel.body.blocks[0].operations:
        item = placed_item(op)
        if item is not None and item.total:
            begin = planned_offset(op)
            is_borrowed = item.lender is not None
            regions.append(Region(item.space, item.label, begin, begin + item.total, is_borrowed))
    shared_end = max((region.end for region in regions if region.space == "shared"), default=0)
    regions.append(Region("shared", "barriers", shared_end, _entry(kernel, "smem_bytes")))
    return sorted(regions, key=lambda region: (region.space, region.begin, region.end))


def planned_offset(op: Any) -> int:
    """The byte or column at which a planned declaration's first slot begins."""
    return _entry(op, "offset")


def _entry(op: Any, name: str) -> int:
    return ir.IntegerAttr(ir.DictAttr(op.operation.attributes[PLAN])[name]).value


def render_map(name: str, regions: Sequence[Region]) -> str:
    """The memory map as text, one line per region with its offsets; regions may overlap."""
    lines = [f"memory map of {name}"]
    for region in regions:
        unit = "B" if region.space == "shared" else "cols"
        lines.append(
            f"  {region.space:<7}{region.begin:>8} ..{region.end:>8}"
            f"{region.end - region.begin:>9} {unit:<5}{region.label}"
        )
    return "\n".join(lines)
