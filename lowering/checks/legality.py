"""Legality checks for every target: they refuse valid `ws` operations without a lowering.

`copy_legality` has those of copies, `cluster_legality` those of clusters, and a target's folder
those of its own instructions.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import WARP_THREADS, Target
from attn_mlir.passes.check_plan import check_plan
from attn_mlir.passes.check_scalars import DIALECTS, check_scalar
from attn_mlir.passes.plan_memory import BY_EVERY_THREAD

from ..access.groups import ARRAY_STEP
from ..access.reductions import crosses_warps
from ..layouts import ATOM_ROWS, COLUMN, Layout, unit_elements
from ..layouts.inference import layouts_of
from ..state.checks import (
    COLUMN_BITS,
    Layouts,
    OpContext,
    check_features,
    check_line,
    check_one_thread,
    check_operation,
    check_warpgroups,
    check_whole,
    cut_from,
    legality_check,
)

_OF_ANY_LINES = frozenset(
    x.OPERATION_NAME
    for x in (
        ws.AcquireOp, ws.CommitOp, ws.WaitOp, ws.ReleaseOp, ws.ViewOp, ws.ColumnsOp, ws.RowsOp,
        ws.CopyInOp,
        ws.CopyOutOp, ws.MmaOp,
    )
)  # fmt: skip


def check_kernel(kernel: ws.KernelOp, target: Target) -> Layouts:
    """Refuses a kernel that cannot be lowered, before anything is emitted.

    Returns:
      The layout of each of its fragments.

    Raises:
      VerifyError: on the operation; the message says what it got and what is allowed.
    """
    check_plan(kernel, target)
    roles = kernel.roles()
    if not roles:
        raise op_error(kernel, "expects at least one role")
    has_short_lines = False
    for op in kernel.body.blocks[0].operations:
        if isinstance(op, ws.AllocRingOp):
            _check_ring(op)
        has_short_lines |= _is_in_short_lines(op)
    layouts: dict[Any, Layout] = {}
    for role in roles:
        check_features(role, target)
        end = sum(role.warp_range)
        if end > target.warps_per_cta:
            raise op_error(
                role,
                f"expects warps below {target.warps_per_cta}, got {role.warp_range[0]}..{end - 1}",
            )
        for op in ws.inside(role):
            _check_lanes(role, op)
            if has_short_lines:
                _check_lines(op)
            if op.operation.name.partition(".")[0] in DIALECTS:
                check_scalar(op)
            check_features(op, target)
        layouts.update(layouts_of(role))
        for op in ws.inside(role):
            check_operation(OpContext(role, layouts), op)
    return layouts


def _is_in_short_lines(op: Any) -> bool:
    """Whether an operation allocates tiles in lines of fewer than 128 bytes."""
    kinds = [value.type for value in op.operation.results]
    tiles = [x.tile for x in kinds if isinstance(x, ws.RingType | ws.BufferType)]
    return any(tile is not None and tile.line_bytes != ws.LINE_BYTES for tile in tiles)


def _check_lines(op: Any) -> None:
    """Refuses shared tiles in lines of fewer than 128 bytes, unless the operation supports them."""
    if op.operation.name in _OF_ANY_LINES:
        return
    for value in op.operation.operands:
        if isinstance(value.type, ws.TileType) and value.type.line_bytes != ws.LINE_BYTES:
            raise op_error(
                op, f"expects lines of {ws.LINE_BYTES} bytes, got {ws.TileType(value.type)}"
            )


def _check_lanes(role: ws.RoleOp, op: Any) -> None:
    if role.lane_count == 1 and any(
        isinstance(value.type, ws.FragmentType)
        for value in (*op.operation.operands, *op.operation.results)
    ):
        raise op_error(op, "expects a fragment in a role of whole warps, got one thread")


@legality_check(ws.BarrierOp)
def _check_barrier(context: OpContext, op: ws.BarrierOp) -> None:
    if context.role.threads_per_group != WARP_THREADS:
        check_warpgroups(context, op, "a barrier of several warps")


@legality_check(ws.ReleaseOp)
def _check_agent(context: OpContext, op: ws.CommitOp | ws.ReleaseOp) -> None:
    if op.by.value not in (*BY_EVERY_THREAD, "warps"):
        check_one_thread(context, op)


@legality_check(ws.CommitOp)
def _check_commit(context: OpContext, op: ws.CommitOp) -> None:
    _check_agent(context, op)
    if op.by.value == "thread_copies":
        for user in ws.users(op.slot):
            if isinstance(user, ws.StoreOp | ws.CopyInOp | ws.GatherInOp | ws.ClaimOp):
                name = user.operation.name
                raise op_error(
                    op, f"by thread_copies expects a slot that ws.copy_rows alone fills, got {name}"
                )


def _check_ring(op: ws.AllocRingOp) -> None:
    """Checks that a role commits a slot by one agent, which its barrier counts on."""
    for use in op.ring.uses:
        if isinstance(use.owner, ws.AcquireOp):
            commits = [u.owner for u in use.owner.slot.uses if isinstance(u.owner, ws.CommitOp)]
            agents = sorted({commit.by.value for commit in commits})
            if len(agents) > 1:
                raise op_error(
                    op, f"expects commits of a slot by one agent, got {', '.join(agents)}"
                )


@legality_check(ws.ViewOp)
def _check_view(_: OpContext, op: ws.ViewOp) -> None:
    rows = ws.TileType(op.source.type).shape[0]
    if len(ws.TileType(op.source.type).shape) > 1:
        check_line(op, op.source)
    if rows != ws.TileType(op.view.type).shape[0]:
        check_whole(op, op.source)
        if rows % ATOM_ROWS:
            raise op_error(
                op, f"expects a multiple of {ATOM_ROWS} rows to put others below, got {rows}"
            )
        if (pitch := ws.pitch_rows(op.source)) != rows:
            raise op_error(op, f"expects all rows of a shared tile, got {rows} of {pitch}")
        if ws.lines_of(ws.TileType(op.view.type)) > 1 and rows & (rows - 1):
            raise op_error(op, f"expects a power of two of rows in several lines, got {rows}")


@legality_check(ws.RowsOp)
def _check_rows(_: OpContext, op: ws.RowsOp) -> None:
    first = ws.known_first(op)
    if first is not None and first % ATOM_ROWS:
        raise op_error(op, f"expects a first row in {ATOM_ROWS}s, got {first}")


@legality_check(ws.ColumnsAtOp)
def _check_columns_at(_: OpContext, op: ws.ColumnsAtOp) -> None:
    is_tensor = ws.TileType(op.part.type).space == "tensor"
    allowed = {"ws.load", "ws.store" if is_tensor else "ws.product"}
    if others := {user.operation.name for user in ws.users(op.part)} - allowed:
        expected = "loaded or stored" if is_tensor else "loaded or multiplied"
        raise op_error(op, f"expects to be {expected} alone, got {', '.join(sorted(others))}")


def _check_shared_access(op: Any, accessed: Any, layout: Layout) -> None:
    tile, left = ws.TileType(accessed.type), cut_from(accessed)[0]
    if tile.space != "shared" or len(tile.shape) == 1:
        return
    bits = ws.element_bits(tile.element)
    if bits not in COLUMN_BITS:
        raise op_error(op, f"expects shared columns of 8, 16 or 32 bits, got {tile}")
    step = unit_elements(bits)
    spans = [digit.count * digit.step for _, digit in layout.thread_digits(COLUMN)]
    from_step = max([step, *spans])
    if tile.shape[1] % step or left % from_step:
        raise op_error(op, f"expects shared columns in {step}s, got {tile} from column {left}")


@legality_check(ws.LoadOp)
def _check_load(context: OpContext, op: ws.LoadOp) -> None:
    _check_shared_access(op, op.source, context.layouts[op.fragment])


@legality_check(ws.StoreOp)
def _check_store(context: OpContext, op: ws.StoreOp) -> None:
    _check_shared_access(op, op.target, context.layouts[op.fragment])


@legality_check(ws.ReduceOp)
def _check_reduce(context: OpContext, op: ws.ReduceOp) -> None:
    element = ws.FragmentType(op.fragment.type).element
    if not isinstance(element, ir.F32Type):
        raise op_error(op, f"expects elements of f32, got {element}")
    if crosses_warps(context.layouts[op.fragment], op.axis):
        raise op_error(op, "expects a reduction over what one warp holds")


@legality_check(ws.ReduceGroupOp)
def _check_reduce_group(context: OpContext, op: ws.ReduceGroupOp) -> None:
    if context.role.threads_per_group != WARP_THREADS:
        check_warpgroups(context, op, "a reduction over several warps")
    layout, (count,) = context.layouts[op.totals], ws.FragmentType(op.totals.type).shape
    if layout.thread_digits(*layout.axes) or layout.is_single:
        raise op_error(op, "expects each thread to have all of the result")
    if count % ARRAY_STEP:
        raise op_error(op, f"expects a result in {ARRAY_STEP}s, got {count}")
    warps = context.role.threads_per_group // WARP_THREADS
    (capacity,) = ws.TileType(op.scratch.type).shape
    if capacity < warps * count:
        raise op_error(op, f"expects scratch of at least {warps * count} numbers, got {capacity}")


@legality_check(ws.FoldOp)
def _check_fold(context: OpContext, op: ws.FoldOp) -> None:
    whole, part = context.layouts[op.fragment], context.layouts[op.totals]
    columns = ws.FragmentType(op.totals.type).shape[1]
    widths = part.part_widths
    is_even = len(widths) == 1 and not any(width % widths[0] for width in whole.part_widths)
    if part.extent(COLUMN) != columns or not is_even:
        raise op_error(op, f"expects columns that each thread has some of, got {columns}")


@legality_check(ws.AnyOp)
def _check_any(context: OpContext, op: ws.AnyOp) -> None:
    if op.scope == "group" and context.role.threads_per_group != WARP_THREADS:
        check_warpgroups(context, op, "a condition of several warps")
