"""Checks of what the lowering covers: refuses legal `ws` operations for which it has no code.

Here are those for every target. `copy_coverage` has those of copies, `cluster_coverage` those of
clusters, and a target's folder those of what only that target has.
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
    Site,
    check_features,
    check_line,
    check_one_thread,
    check_operation,
    check_warpgroups,
    check_whole,
    covers,
    cut_from,
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
      VerifyError: on the operation, with what was got and what is allowed.
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
            check_operation(Site(role, layouts), op)
    return layouts


def _is_in_short_lines(op: Any) -> bool:
    """Whether an operation makes a ring or buffer of tiles in lines of fewer than 128 bytes."""
    kinds = [value.type for value in op.operation.results]
    tiles = [x.tile for x in kinds if isinstance(x, ws.RingType | ws.BufferType)]
    return any(tile is not None and tile.line_bytes != ws.LINE_BYTES for tile in tiles)


def _check_lines(op: Any) -> None:
    """Refuses shared tiles in lines of fewer than 128 bytes where threads, or other copies, know
    these alone.
    """
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


@covers(ws.BarrierOp)
def _check_barrier(site: Site, op: ws.BarrierOp) -> None:
    if site.role.threads_per_group != WARP_THREADS:
        check_warpgroups(site, op, "a barrier of several warps")


@covers(ws.ReleaseOp)
def _check_handover(site: Site, op: ws.CommitOp | ws.ReleaseOp) -> None:
    if op.by.value not in (*BY_EVERY_THREAD, "warps"):
        check_one_thread(site, op)


@covers(ws.CommitOp)
def _check_commit(site: Site, op: ws.CommitOp) -> None:
    _check_handover(site, op)
    if op.by.value == "thread_copies":
        for user in ws.users(op.slot):
            if isinstance(user, ws.StoreOp | ws.CopyInOp | ws.GatherInOp | ws.ClaimOp):
                name = user.operation.name
                raise op_error(
                    op, f"by thread_copies expects a slot that ws.copy_rows alone fills, got {name}"
                )


def _check_ring(op: ws.AllocRingOp) -> None:
    """Checks that a role commits a slot by one agent alone, for which its barrier is armed."""
    for use in op.ring.uses:
        if isinstance(use.owner, ws.AcquireOp):
            commits = [u.owner for u in use.owner.slot.uses if isinstance(u.owner, ws.CommitOp)]
            agents = sorted({commit.by.value for commit in commits})
            if len(agents) > 1:
                raise op_error(
                    op, f"expects commits of a slot by one agent, got {', '.join(agents)}"
                )


@covers(ws.ViewOp)
def _check_view(_: Site, op: ws.ViewOp) -> None:
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


@covers(ws.RowsOp)
def _check_rows(_: Site, op: ws.RowsOp) -> None:
    first = ws.known_first(op)
    if first is not None and first % ATOM_ROWS:
        raise op_error(op, f"expects a first row in {ATOM_ROWS}s, got {first}")


@covers(ws.ColumnsAtOp)
def _check_columns_at(_: Site, op: ws.ColumnsAtOp) -> None:
    others = {user.operation.name for user in ws.users(op.part)} - {"ws.load"}
    if others:
        raise op_error(op, f"expects to be loaded alone, got {', '.join(sorted(others))}")


def _check_shared_access(op: Any, accessed: Any, layout: Layout) -> None:
    tile, left = ws.TileType(accessed.type), cut_from(accessed)[0]
    if tile.space != "shared" or len(tile.shape) == 1:
        return
    bits = ws.element_bits(tile.element)
    if bits not in COLUMN_BITS:
        raise op_error(op, f"expects shared columns of 8, 16 or 32 bits, got {tile}")
    step = unit_elements(bits)
    spans = [digit.count * digit.step for _, digit in layout.moves(COLUMN)]
    from_step = max([step, *spans])
    if tile.shape[1] % step or left % from_step:
        raise op_error(op, f"expects shared columns in {step}s, got {tile} from column {left}")


@covers(ws.LoadOp)
def _check_load(site: Site, op: ws.LoadOp) -> None:
    _check_shared_access(op, op.source, site.layouts[op.fragment])


@covers(ws.StoreOp)
def _check_store(site: Site, op: ws.StoreOp) -> None:
    _check_shared_access(op, op.target, site.layouts[op.fragment])


@covers(ws.ReduceOp)
def _check_reduce(site: Site, op: ws.ReduceOp) -> None:
    element = ws.FragmentType(op.fragment.type).element
    if not isinstance(element, ir.F32Type):
        raise op_error(op, f"expects elements of f32, got {element}")
    if crosses_warps(site.layouts[op.fragment], op.axis):
        raise op_error(op, "expects a reduction over what one warp holds")


@covers(ws.ReduceGroupOp)
def _check_reduce_group(site: Site, op: ws.ReduceGroupOp) -> None:
    if site.role.threads_per_group != WARP_THREADS:
        check_warpgroups(site, op, "a reduction over several warps")
    layout, (count,) = site.layouts[op.totals], ws.FragmentType(op.totals.type).shape
    if layout.moves(*layout.axes) or layout.is_single:
        raise op_error(op, "expects each thread to have all of the result")
    if count % ARRAY_STEP:
        raise op_error(op, f"expects a result in {ARRAY_STEP}s, got {count}")
    warps = site.role.threads_per_group // WARP_THREADS
    (room,) = ws.TileType(op.scratch.type).shape
    if room < warps * count:
        raise op_error(op, f"expects scratch of at least {warps * count} numbers, got {room}")


@covers(ws.FoldOp)
def _check_fold(site: Site, op: ws.FoldOp) -> None:
    whole, part = site.layouts[op.fragment], site.layouts[op.totals]
    columns = ws.FragmentType(op.totals.type).shape[1]
    widths = part.part_widths
    is_even = len(widths) == 1 and not any(width % widths[0] for width in whole.part_widths)
    if part.extent(COLUMN) != columns or not is_even:
        raise op_error(op, f"expects columns that each thread has some of, got {columns}")


@covers(ws.AnyOp)
def _check_any(site: Site, op: ws.AnyOp) -> None:
    if op.scope == "group" and site.role.threads_per_group != WARP_THREADS:
        check_warpgroups(site, op, "a condition of several warps")
